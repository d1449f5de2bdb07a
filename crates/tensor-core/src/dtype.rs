//! The element types and their names in other projects.

use std::{fmt, str::FromStr};

use crate::QuotedName;

/// The type of a tensor's elements: fixed width, one value per element.
///
/// The list is closed on purpose: a new dtype affects every reader, writer and encoder, so adding one is a
/// breaking change that the compiler should flag.
///
/// ```
/// use tensor_core::{DType, Naming};
///
/// assert_eq!(DType::BF16.size(), 2);
/// assert_eq!(DType::F32.to_string(), "f32");
/// assert_eq!(DType::F32.name_in(Naming::Oip), "FP32");
/// assert_eq!(DType::from_name(Naming::Numpy, "uint16"), Ok(DType::U16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// One byte per element: 0 is false, everything else is true; 1 is the canonical true.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 8-bit integer, two's complement.
    I8,
    /// Signed 16-bit integer, two's complement.
    I16,
    /// Signed 32-bit integer, two's complement.
    I32,
    /// Signed 64-bit integer, two's complement.
    I64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [Self; 13] = [
        Self::Bool,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
    ];

    /// Returns the size of an element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns the kind of number: bool, unsigned, signed or float.
    #[must_use]
    pub const fn kind(self) -> DTypeKind {
        match self {
            Self::Bool => DTypeKind::Bool,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => DTypeKind::Unsigned,
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => DTypeKind::Signed,
            Self::F16 | Self::BF16 | Self::F32 | Self::F64 => DTypeKind::Float,
        }
    }

    /// Returns the canonical name: `bool`, `u8`, `f32`, `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name_in(Naming::Canonical)
    }

    /// Returns the name of the dtype in another project's naming scheme.
    #[must_use]
    pub const fn name_in(self, naming: Naming) -> &'static str {
        let row = NAMES[self as usize];
        match naming {
            Naming::Canonical => row.0,
            Naming::Numpy => row.1,
            Naming::Oip => row.2,
            Naming::TritonConfig => row.3,
            Naming::Safetensors => row.4,
        }
    }

    /// Looks up a name of one naming scheme. Names are case-sensitive.
    ///
    /// # Errors
    /// [`UnknownDType`] when the scheme lacks the name. The error has a suggestion if the name differs only
    /// in case or belongs to another scheme.
    pub fn from_name(naming: Naming, name: &str) -> Result<Self, UnknownDType> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name_in(naming) == name)
            .ok_or_else(|| {
                let suggestion = Self::ALL.into_iter().find(|dtype| {
                    Naming::ALL
                        .into_iter()
                        .any(|naming| dtype.name_in(naming).eq_ignore_ascii_case(name))
                });
                UnknownDType {
                    name: name.chars().take(UnknownDType::KEPT_CHARS).collect(),
                    naming,
                    suggestion,
                }
            })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        Self::from_name(Naming::Canonical, name)
    }
}

/// The kind of number a dtype holds.
///
/// ```
/// use tensor_core::{DType, DTypeKind};
/// assert_eq!(DType::BF16.kind(), DTypeKind::Float);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DTypeKind {
    /// Booleans.
    Bool,
    /// Unsigned integers.
    Unsigned,
    /// Signed integers.
    Signed,
    /// Floating point numbers.
    Float,
}

/// A naming scheme for dtypes.
///
/// ```
/// use tensor_core::{DType, Naming};
/// let names: Vec<_> = Naming::ALL.into_iter().map(|naming| DType::I64.name_in(naming)).collect();
/// assert_eq!(names, ["i64", "int64", "INT64", "TYPE_INT64", "I64"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// The names of this crate: `f32`, `bf16`, `bool`.
    Canonical,
    /// NumPy and `ml_dtypes`: `float32`, `bfloat16`, `bool`. zTensor 0.1 uses the same names.
    Numpy,
    /// The Open Inference Protocol: `FP32`, `BF16`, `BOOL`.
    Oip,
    /// Triton's model configuration: `TYPE_FP32`, `TYPE_BF16`, `TYPE_BOOL`.
    TritonConfig,
    /// safetensors: `F32`, `BF16`, `BOOL`.
    Safetensors,
}

impl Naming {
    /// Every naming scheme.
    pub const ALL: [Self; 5] = [
        Self::Canonical,
        Self::Numpy,
        Self::Oip,
        Self::TritonConfig,
        Self::Safetensors,
    ];
}

/// The error for an unknown dtype name.
///
/// ```
/// use tensor_core::{DType, Naming};
/// let error = DType::from_name(Naming::Oip, "fp32").unwrap_err();
/// assert_eq!(error.to_string(), "unknown dtype 'fp32' (did you mean 'FP32'?)");
/// assert_eq!(error.suggestion(), Some(DType::F32));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDType {
    name: String,
    naming: Naming,
    suggestion: Option<DType>,
}

impl UnknownDType {
    /// Maximum length of an untrusted name kept in an error, in characters.
    const KEPT_CHARS: usize = 2 * QuotedName::MAX_CHARS;

    /// Returns the name as given, truncated if very long.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the dtype that was probably meant, if a similar name is known.
    #[must_use]
    pub fn suggestion(&self) -> Option<DType> {
        self.suggestion
    }
}

impl fmt::Display for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown dtype {}", QuotedName(&self.name))?;
        match self.suggestion {
            Some(dtype) => write!(f, " (did you mean '{}'?)", dtype.name_in(self.naming)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UnknownDType {}

/// For each dtype in declaration order: canonical, NumPy, OIP, Triton configuration and safetensors names.
const NAMES: [(&str, &str, &str, &str, &str); 13] = [
    ("bool", "bool", "BOOL", "TYPE_BOOL", "BOOL"),
    ("u8", "uint8", "UINT8", "TYPE_UINT8", "U8"),
    ("u16", "uint16", "UINT16", "TYPE_UINT16", "U16"),
    ("u32", "uint32", "UINT32", "TYPE_UINT32", "U32"),
    ("u64", "uint64", "UINT64", "TYPE_UINT64", "U64"),
    ("i8", "int8", "INT8", "TYPE_INT8", "I8"),
    ("i16", "int16", "INT16", "TYPE_INT16", "I16"),
    ("i32", "int32", "INT32", "TYPE_INT32", "I32"),
    ("i64", "int64", "INT64", "TYPE_INT64", "I64"),
    ("f16", "float16", "FP16", "TYPE_FP16", "F16"),
    ("bf16", "bfloat16", "BF16", "TYPE_BF16", "BF16"),
    ("f32", "float32", "FP32", "TYPE_FP32", "F32"),
    ("f64", "float64", "FP64", "TYPE_FP64", "F64"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_every_naming_finds_its_dtype_again() {
        for dtype in DType::ALL {
            for naming in Naming::ALL {
                assert_eq!(
                    DType::from_name(naming, dtype.name_in(naming)),
                    Ok(dtype),
                    "{naming:?}"
                );
            }
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
    }

    #[test]
    fn declaration_order_matches_the_tables() {
        for (index, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, index);
        }
        let widths: Vec<usize> = DType::ALL.into_iter().map(DType::size).collect();
        assert_eq!(widths, [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8]);
    }

    #[test]
    fn names_are_case_sensitive_and_say_what_was_meant() {
        let error = DType::from_name(Naming::Oip, "float32").unwrap_err();
        assert_eq!(error.suggestion(), Some(DType::F32));
        let error = DType::from_name(Naming::Numpy, "complex64").unwrap_err();
        assert_eq!(error.to_string(), "unknown dtype 'complex64'");
        let error = DType::from_name(Naming::Oip, &"x".repeat(1 << 20)).unwrap_err();
        assert!(error.to_string().len() < 200);
    }
}
