//! Typed contents of responses: sized first, then written without an intermediate copy.

use bytes::Bytes;
use oip_types::{BytesTensor, ServiceError, TensorValue};
use prost::encoding::encoded_len_varint;
use tensor_core::{DType, Tensor};

use super::pieces::Pieces;

/// A tensor encoded as `InferTensorContents`.
pub(super) struct TypedContents {
    elements: Elements,
    /// Size of the encoded `InferTensorContents` in bytes.
    pub(super) len: usize,
}

enum Elements {
    /// An empty tensor, for which nothing is written.
    None,
    /// Floats, and valid booleans: their packed form equals the tensor's bytes.
    AsIs {
        tag: u32,
        bytes: Bytes,
    },
    /// The elements as packed varints, and their size in bytes.
    Integers {
        tag: u32,
        tensor: Tensor,
        len: usize,
    },
    Strings(BytesTensor),
}

/// Field number of byte strings in `InferTensorContents`.
const BYTES_CONTENTS: u32 = 8;

impl TypedContents {
    /// Prepares the typed form of a tensor; `None` for datatypes without one.
    pub(super) fn of(value: &TensorValue) -> Option<Self> {
        let elements = match value {
            TensorValue::Bytes(tensor) => Elements::Strings(tensor.clone()),
            TensorValue::Fixed(tensor) if tensor.bytes().is_empty() => {
                // Also returns `None` for an empty tensor if its datatype has no typed form.
                field_of(tensor.spec().dtype())?;
                Elements::None
            }
            TensorValue::Fixed(tensor) => {
                let tag = field_of(tensor.spec().dtype())?;
                let bytes = tensor.bytes();
                match tensor.spec().dtype() {
                    DType::F32 | DType::F64 => Elements::AsIs {
                        tag,
                        bytes: bytes.clone(),
                    },
                    DType::Bool if bytes.iter().all(|byte| *byte <= 1) => Elements::AsIs {
                        tag,
                        bytes: bytes.clone(),
                    },
                    _ => {
                        let mut len = 0;
                        integers(tensor, |value| {
                            len += encoded_len_varint(value);
                            Ok(())
                        })
                        .ok()?;
                        Elements::Integers {
                            tag,
                            tensor: tensor.clone(),
                            len,
                        }
                    }
                }
            }
        };
        let len = match &elements {
            Elements::None => 0,
            Elements::AsIs { bytes, .. } => delimited_len(bytes.len()),
            Elements::Integers { len, .. } => delimited_len(*len),
            Elements::Strings(tensor) => tensor.iter().map(|element| delimited_len(element.len())).sum(),
        };
        Some(Self { elements, len })
    }

    pub(super) fn write(self, pieces: &mut Pieces<'_>) -> Result<(), ServiceError> {
        match self.elements {
            Elements::None => Ok(()),
            Elements::AsIs { tag, bytes } => {
                pieces.delimited(tag, bytes.len())?;
                pieces.append(bytes)
            }
            Elements::Integers { tag, tensor, len } => {
                pieces.delimited(tag, len)?;
                integers(&tensor, |value| pieces.varint(value))
            }
            Elements::Strings(tensor) => tensor.elements().try_for_each(|element| {
                pieces.delimited(BYTES_CONTENTS, element.len())?;
                pieces.append(element)
            }),
        }
    }
}

/// Returns the size of a length-delimited field with a value of `len` bytes. The field number is at most 15.
pub(super) fn delimited_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

/// Returns the field number for a datatype's elements.
fn field_of(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::Bool => 1,
        DType::I8 | DType::I16 | DType::I32 => 2,
        DType::I64 => 3,
        DType::U8 | DType::U16 | DType::U32 => 4,
        DType::U64 => 5,
        DType::F32 => 6,
        DType::F64 => 7,
        // 16-bit floats are sent raw.
        _ => return None,
    })
}

/// Calls `each` with the elements of an integer or boolean tensor in protobuf's encoding, which extends
/// negative elements to 64 bits.
fn integers(tensor: &Tensor, each: impl FnMut(u64) -> Result<(), ServiceError>) -> Result<(), ServiceError> {
    fn go<const N: usize>(
        tensor: &Tensor,
        widen: fn([u8; N]) -> u64,
        each: impl FnMut(u64) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        let (elements, _) = tensor.bytes().as_chunks::<N>();
        elements.iter().copied().map(widen).try_for_each(each)
    }
    match tensor.spec().dtype() {
        DType::Bool => go::<1>(tensor, |[byte]| u64::from(byte != 0), each),
        DType::U8 => go::<1>(tensor, |[byte]| byte.into(), each),
        DType::U16 => go(tensor, |bytes| u16::from_le_bytes(bytes).into(), each),
        DType::U32 => go(tensor, |bytes| u32::from_le_bytes(bytes).into(), each),
        DType::U64 => go(tensor, u64::from_le_bytes, each),
        DType::I8 => go(
            tensor,
            |bytes| i64::from(i8::from_le_bytes(bytes)).cast_unsigned(),
            each,
        ),
        DType::I16 => go(
            tensor,
            |bytes| i64::from(i16::from_le_bytes(bytes)).cast_unsigned(),
            each,
        ),
        DType::I32 => go(
            tensor,
            |bytes| i64::from(i32::from_le_bytes(bytes)).cast_unsigned(),
            each,
        ),
        DType::I64 => go(tensor, |bytes| i64::from_le_bytes(bytes).cast_unsigned(), each),
        // No other dtype is an integer, so there is nothing to pass.
        _ => Ok(()),
    }
}
