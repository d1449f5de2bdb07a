//! The supported ONNX element types.

use std::fmt;

use tensor_core::{DType, Naming};

use crate::proto::tensor_proto::DataType as Code;

/// The type of a tensor's elements.
///
/// `Display` writes the names of the Open Inference Protocol.
///
/// ```
/// use onnx_graph::ElementType;
///
/// let float = ElementType::from_code(1).unwrap();
/// assert_eq!((float.to_string(), float.dtype()), ("FP32".to_owned(), Some(tensor_core::DType::F32)));
/// assert_eq!(ElementType::from_code(14), None); // COMPLEX64
/// assert_eq!(ElementType::name_of_code(14), "COMPLEX64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Elements of fixed width, such as numbers and booleans.
    Fixed(DType),
    /// Strings, which have no dtype.
    String,
}

impl ElementType {
    /// Returns the type of an ONNX type code; `None` for unsupported types.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        Some(Self::Fixed(match Code::try_from(code).ok()? {
            Code::Float => DType::F32,
            Code::Double => DType::F64,
            Code::Float16 => DType::F16,
            Code::Bfloat16 => DType::BF16,
            Code::Uint8 => DType::U8,
            Code::Uint16 => DType::U16,
            Code::Uint32 => DType::U32,
            Code::Uint64 => DType::U64,
            Code::Int8 => DType::I8,
            Code::Int16 => DType::I16,
            Code::Int32 => DType::I32,
            Code::Int64 => DType::I64,
            Code::Bool => DType::Bool,
            Code::String => return Some(Self::String),
            Code::Unknown
            | Code::Complex64
            | Code::Complex128
            | Code::Float8e4m3fn
            | Code::Float8e4m3fnuz
            | Code::Float8e5m2
            | Code::Float8e5m2fnuz
            | Code::Uint4
            | Code::Int4
            | Code::Float4e2m1 => return None,
        }))
    }

    /// Returns ONNX's name for a type code, for messages.
    #[must_use]
    pub fn name_of_code(code: i32) -> String {
        match Code::try_from(code) {
            Ok(Code::Unknown) => "of no type".to_owned(),
            Ok(code) => code.as_str_name().to_owned(),
            Err(_) => format!("of the unknown type {code}"),
        }
    }

    /// Returns the dtype of fixed-width elements; `None` for strings.
    #[must_use]
    pub fn dtype(self) -> Option<DType> {
        match self {
            Self::Fixed(dtype) => Some(dtype),
            Self::String => None,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fixed(dtype) => dtype.name_in(Naming::Oip),
            Self::String => "BYTES",
        })
    }
}
