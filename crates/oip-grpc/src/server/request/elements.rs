//! Typed contents: elements in repeated fields are counted first, then decoded into the tensor's buffer.

use bytes::Bytes;
use oip_types::{DataType, ErrorCode, ServiceError, TensorValue};
use tensor_core::{DType, Shape};

use super::{
    account::Account,
    cursor::{Cursor, Failure, WireType, count_fixed, count_varints},
};

/// A field of `InferTensorContents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Bool,
    Int,
    Int64,
    Uint,
    Uint64,
    Fp32,
    Fp64,
    Bytes,
}

impl Field {
    const ALL: [Self; 8] = [
        Self::Bool,
        Self::Int,
        Self::Int64,
        Self::Uint,
        Self::Uint64,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// Returns the field with the number `tag`, if it exists.
    pub(super) fn of(tag: u32) -> Option<Self> {
        let index = usize::try_from(tag).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool_contents",
            Self::Int => "int_contents",
            Self::Int64 => "int64_contents",
            Self::Uint => "uint_contents",
            Self::Uint64 => "uint64_contents",
            Self::Fp32 => "fp32_contents",
            Self::Fp64 => "fp64_contents",
            Self::Bytes => "bytes_contents",
        }
    }

    /// Returns the field for a datatype's elements.
    fn holding(datatype: DataType) -> Option<Self> {
        let dtype = match datatype {
            DataType::Bytes => return Some(Self::Bytes),
            DataType::Fixed(dtype) => dtype,
        };
        match dtype {
            DType::Bool => Some(Self::Bool),
            DType::I8 | DType::I16 | DType::I32 => Some(Self::Int),
            DType::I64 => Some(Self::Int64),
            DType::U8 | DType::U16 | DType::U32 => Some(Self::Uint),
            DType::U64 => Some(Self::Uint64),
            DType::F32 => Some(Self::Fp32),
            DType::F64 => Some(Self::Fp64),
            // 16-bit floats are sent raw.
            _ => None,
        }
    }

    /// Returns the wire type of an unpacked element.
    fn wire_type(self) -> WireType {
        match self {
            Self::Bool | Self::Int | Self::Int64 | Self::Uint | Self::Uint64 => WireType::Varint,
            Self::Fp32 => WireType::ThirtyTwoBit,
            Self::Fp64 => WireType::SixtyFourBit,
            Self::Bytes => WireType::LengthDelimited,
        }
    }
}

/// The undecoded typed contents of one input.
pub(super) struct Elements<'m> {
    /// The input's message, already validated.
    input: &'m [u8],
    counts: [u64; Field::ALL.len()],
    /// Total size of all byte strings.
    string_bytes: u64,
    /// The packed elements, if they are contiguous.
    only_run: Option<&'m [u8]>,
}

impl<'m> Elements<'m> {
    /// Creates empty contents for the input whose message is `input`.
    pub(super) fn of(input: &'m [u8]) -> Self {
        Self {
            input,
            counts: [0; Field::ALL.len()],
            string_bytes: 0,
            only_run: None,
        }
    }

    /// Counts the elements in one occurrence of a field; returns the bytes examined.
    pub(super) fn count(
        &mut self,
        field: Field,
        cursor: &mut Cursor<'m>,
        wire_type: WireType,
    ) -> Result<usize, Failure> {
        let (mut run, mut looked_at) = (None, 0);
        let found = match (field, wire_type) {
            (Field::Bytes, _) => {
                self.string_bytes += cursor.bytes(wire_type)?.len() as u64;
                1
            }
            (_, WireType::LengthDelimited) => {
                let packed = cursor.delimited()?;
                run = Some(packed);
                match field.wire_type() {
                    WireType::ThirtyTwoBit => count_fixed(packed, 4)?,
                    WireType::SixtyFourBit => count_fixed(packed, 8)?,
                    _ => {
                        looked_at = packed.len();
                        count_varints(packed)?
                    }
                }
            }
            _ => {
                wire_type.expect(field.wire_type())?;
                cursor.skip(wire_type, 0, 1)?;
                1
            }
        };
        self.only_run = run.filter(|_| self.counts == [0; Field::ALL.len()]);
        self.counts[field as usize] += found;
        Ok(looked_at)
    }

    /// Decodes the elements of a tensor.
    pub(super) fn decode(
        &self,
        datatype: DataType,
        shape: Shape,
        message: &Bytes,
        account: &mut Account<'_>,
        budget: &mut usize,
    ) -> Result<TensorValue, Failure> {
        let field = Field::holding(datatype).ok_or_else(|| {
            ServiceError::invalid(format!(
                "{datatype} has no typed contents; send raw_input_contents"
            ))
        })?;
        let is_filled = |other: &&Field| self.counts[**other as usize] > 0;
        if let Some(other) = Field::ALL.iter().filter(is_filled).find(|other| **other != field) {
            let (expected, other) = (field.name(), other.name());
            let message = format!("expected {expected} for {datatype}, found {other}");
            return Err(ServiceError::invalid(message).into());
        }
        let (expected, found) = (shape.element_count(), self.counts[field as usize]);
        if expected != found {
            let message = format!("expected {expected} elements for shape {shape}, found {found}");
            return Err(ServiceError::invalid(message).into());
        }
        let size = match datatype.dtype() {
            Some(dtype) => found.saturating_mul(dtype.size() as u64),
            // Each byte string has a length prefix.
            None => found.saturating_mul(4).saturating_add(self.string_bytes),
        };
        let within = usize::try_from(size)
            .ok()
            .and_then(|size| budget.checked_sub(size));
        let Some(left) = within else {
            let message = format!("the data of {datatype}{shape} is larger than the server accepts");
            return Err(ServiceError::new(ErrorCode::TooLarge, message).into());
        };
        *budget = left;
        let raw = match (field, self.only_run) {
            // The bytes of packed fixed-width numbers are already those of the tensor.
            (Field::Fp32 | Field::Fp64, Some(run)) => message.slice_ref(run),
            _ => self.copy(field, datatype, size, account)?,
        };
        Ok(TensorValue::from_raw(datatype, shape, raw)?)
    }

    /// Writes the elements in raw form into a buffer of `size` bytes.
    fn copy(
        &self,
        field: Field,
        datatype: DataType,
        size: u64,
        account: &mut Account<'_>,
    ) -> Result<Bytes, Failure> {
        // Copying reads every element a second time, so the input's length counts as work again.
        account.work(self.input.len())?;
        let charge = account.lease().charge(size)?;
        let mut out = Vec::new();
        // The message contains all counted elements, so the buffer is at most eight times as large as the
        // message.
        out.try_reserve_exact(usize::try_from(size).unwrap_or(usize::MAX))
            .map_err(|error| {
                ServiceError::new(ErrorCode::Overloaded, "the system is out of memory").caused_by(error)
            })?;
        let mut writer = Writer {
            out,
            index: 0,
            datatype,
        };
        let mut input = Cursor::new(self.input);
        while !input.is_empty() {
            let (tag, wire_type) = input.key()?;
            if tag != CONTENTS {
                input.skip(wire_type, tag, super::cursor::MAX_DEPTH)?;
                continue;
            }
            let mut contents = Cursor::new(input.bytes(wire_type)?);
            while !contents.is_empty() {
                let (tag, wire_type) = contents.key()?;
                if Field::of(tag) == Some(field) {
                    writer.field(field, &mut contents, wire_type)?;
                } else {
                    contents.skip(wire_type, tag, super::cursor::MAX_DEPTH)?;
                }
            }
        }
        Ok(charge.own(writer.out))
    }
}

/// Field number of an input's typed contents.
const CONTENTS: u32 = 5;

/// Writes elements in raw form.
struct Writer {
    out: Vec<u8>,
    /// Number of elements written.
    index: u64,
    datatype: DataType,
}

impl Writer {
    /// Writes the elements of one occurrence of a field.
    fn field(&mut self, field: Field, cursor: &mut Cursor<'_>, wire_type: WireType) -> Result<(), Failure> {
        if field == Field::Bytes {
            let element = cursor.bytes(wire_type)?;
            let len = u32::try_from(element.len()).map_err(|_| {
                let len = element.len();
                ServiceError::invalid(format!("a BYTES element of {len} bytes is longer than 4 GiB"))
            })?;
            self.out.extend_from_slice(&len.to_le_bytes());
            self.out.extend_from_slice(element);
            return Ok(());
        }
        if wire_type != WireType::LengthDelimited {
            return self.number(field, cursor);
        }
        let mut packed = Cursor::new(cursor.delimited()?);
        match field {
            Field::Fp32 | Field::Fp64 => self.out.extend_from_slice(packed.rest()),
            _ => {
                while !packed.is_empty() {
                    self.number(field, &mut packed)?;
                }
            }
        }
        Ok(())
    }

    fn number(&mut self, field: Field, cursor: &mut Cursor<'_>) -> Result<(), Failure> {
        match field {
            Field::Fp32 => self.out.extend_from_slice(&cursor.fixed::<4>()?),
            Field::Fp64 => self.out.extend_from_slice(&cursor.fixed::<8>()?),
            Field::Bool => self.out.push(u8::from(cursor.varint()? != 0)),
            Field::Int64 | Field::Uint64 => self.out.extend_from_slice(&cursor.varint()?.to_le_bytes()),
            // Bits beyond 32 are ignored, as protobuf demands.
            Field::Int => {
                let value = (cursor.varint()? as u32).cast_signed();
                match self.datatype.dtype() {
                    Some(DType::I8) => self.narrow(i8::try_from(value).map(i8::to_le_bytes), value)?,
                    Some(DType::I16) => self.narrow(i16::try_from(value).map(i16::to_le_bytes), value)?,
                    _ => self.out.extend_from_slice(&value.to_le_bytes()),
                }
            }
            Field::Uint => {
                let value = cursor.varint()? as u32;
                match self.datatype.dtype() {
                    Some(DType::U8) => self.narrow(u8::try_from(value).map(u8::to_le_bytes), value)?,
                    Some(DType::U16) => self.narrow(u16::try_from(value).map(u16::to_le_bytes), value)?,
                    _ => self.out.extend_from_slice(&value.to_le_bytes()),
                }
            }
            Field::Bytes => {}
        }
        self.index += 1;
        Ok(())
    }

    /// Writes a number that may exceed the datatype's range.
    fn narrow<const N: usize, E>(
        &mut self,
        bytes: Result<[u8; N], E>,
        value: impl std::fmt::Display,
    ) -> Result<(), Failure> {
        let (index, datatype) = (self.index, self.datatype);
        let bytes = bytes.map_err(|_| {
            ServiceError::invalid(format!("element {index}: {value} does not fit {datatype}"))
        })?;
        self.out.extend_from_slice(&bytes);
        Ok(())
    }
}
