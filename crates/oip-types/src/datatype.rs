//! The protocol's datatypes and their names.

use std::fmt;

use tensor_core::{DType, Naming, QuotedName};

use crate::ServiceError;

/// The type of a tensor's elements as the protocol names it: a fixed-width dtype, or BYTES.
///
/// BF16 is an extension shared with Triton and its clients. Names are case-sensitive.
///
/// ```
/// use oip_types::DataType;
///
/// assert_eq!(DataType::from_name("FP32").unwrap(), DataType::FP32);
/// assert_eq!(DataType::BYTES.to_string(), "BYTES");
/// let error = DataType::from_name("fp32").unwrap_err();
/// assert_eq!(error.to_string(), "unknown datatype 'fp32' (did you mean 'FP32'?)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// Fixed-width elements.
    Fixed(DType),
    /// Byte strings of any length.
    Bytes,
}

impl DataType {
    /// Booleans, one byte each.
    pub const BOOL: Self = Self::Fixed(DType::Bool);
    /// Unsigned 8-bit integers.
    pub const UINT8: Self = Self::Fixed(DType::U8);
    /// Unsigned 16-bit integers.
    pub const UINT16: Self = Self::Fixed(DType::U16);
    /// Unsigned 32-bit integers.
    pub const UINT32: Self = Self::Fixed(DType::U32);
    /// Unsigned 64-bit integers.
    pub const UINT64: Self = Self::Fixed(DType::U64);
    /// Signed 8-bit integers.
    pub const INT8: Self = Self::Fixed(DType::I8);
    /// Signed 16-bit integers.
    pub const INT16: Self = Self::Fixed(DType::I16);
    /// Signed 32-bit integers.
    pub const INT32: Self = Self::Fixed(DType::I32);
    /// Signed 64-bit integers.
    pub const INT64: Self = Self::Fixed(DType::I64);
    /// IEEE 754 half precision.
    pub const FP16: Self = Self::Fixed(DType::F16);
    /// bfloat16, an extension of the protocol.
    pub const BF16: Self = Self::Fixed(DType::BF16);
    /// IEEE 754 single precision.
    pub const FP32: Self = Self::Fixed(DType::F32);
    /// IEEE 754 double precision.
    pub const FP64: Self = Self::Fixed(DType::F64);
    /// Byte strings of any length.
    pub const BYTES: Self = Self::Bytes;

    /// Returns the protocol's name for the datatype.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed(dtype) => dtype.name_in(Naming::Oip),
            Self::Bytes => "BYTES",
        }
    }

    /// Looks up a datatype by the protocol's name.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the name is unknown, with a suggestion
    /// when it is only misspelled.
    pub fn from_name(name: &str) -> Result<Self, ServiceError> {
        if name == Self::Bytes.name() {
            return Ok(Self::Bytes);
        }
        DType::from_name(Naming::Oip, name)
            .map(Self::Fixed)
            .map_err(|error| {
                let is_string = ["BYTES", "STRING", "TYPE_STRING", "STR"]
                    .iter()
                    .any(|s| name.eq_ignore_ascii_case(s));
                let suggestion = match error.suggestion() {
                    _ if is_string => Some(Self::Bytes),
                    suggestion => suggestion.map(Self::Fixed),
                };
                let hint = suggestion.map_or(String::new(), |meant| format!(" (did you mean '{meant}'?)"));
                ServiceError::invalid(format!("unknown datatype {}{hint}", QuotedName(name)))
            })
    }

    /// Returns the fixed-width dtype; `None` for BYTES.
    #[must_use]
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::Fixed(dtype) => Some(dtype),
            Self::Bytes => None,
        }
    }
}

impl From<DType> for DataType {
    fn from(dtype: DType) -> Self {
        Self::Fixed(dtype)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourteen_names_of_the_protocol() {
        let names = [
            "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16",
            "FP32", "FP64", "BYTES",
        ];
        for name in names {
            assert_eq!(DataType::from_name(name).unwrap().name(), name);
        }
    }

    #[test]
    fn wrong_names_are_refused_with_a_hint() {
        for (name, hint) in [
            ("fp32", "FP32"),
            ("string", "BYTES"),
            ("float64", "FP64"),
            ("TYPE_INT8", "INT8"),
        ] {
            let message = DataType::from_name(name).unwrap_err().to_string();
            assert!(
                message.ends_with(&format!("(did you mean '{hint}'?)")),
                "{message}"
            );
        }
        for name in ["", "FLOAT", "COMPLEX64"] {
            assert!(
                !DataType::from_name(name)
                    .unwrap_err()
                    .to_string()
                    .contains("did you mean")
            );
        }
    }
}
