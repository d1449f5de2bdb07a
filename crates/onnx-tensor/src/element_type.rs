//! The element type of a tensor, as a value.

use std::fmt;

/// The element type of a tensor.
///
/// `tensor_core::DType` is another list: it has the types of tensors in files and requests, with more floats
/// and without strings.
///
/// ```
/// use onnx_tensor::ElementType;
///
/// assert_eq!(ElementType::F16.size_of(), 2);
/// assert!(ElementType::U8.is_integer() && !ElementType::Bool.is_number());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    /// Booleans of one byte, which is 0 or 1.
    Bool,
    /// Unsigned integers of 8 bits.
    U8,
    /// Unsigned integers of 16 bits.
    U16,
    /// Unsigned integers of 32 bits.
    U32,
    /// Unsigned integers of 64 bits.
    U64,
    /// Signed integers of 8 bits.
    I8,
    /// Signed integers of 16 bits.
    I16,
    /// Signed integers of 32 bits.
    I32,
    /// Signed integers of 64 bits.
    I64,
    /// IEEE 754 floats of 16 bits.
    F16,
    /// IEEE 754 floats of 32 bits.
    F32,
    /// IEEE 754 floats of 64 bits.
    F64,
    /// UTF-8 strings of any length.
    String,
}

impl ElementType {
    /// All element types, in the order of declaration.
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
        Self::F32,
        Self::F64,
        Self::String,
    ];

    /// Converts an ONNX type code (`TensorProto.DataType`); `None` for unsupported types.
    #[must_use]
    pub const fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            1 => Self::F32,
            2 => Self::U8,
            3 => Self::I8,
            4 => Self::U16,
            5 => Self::I16,
            6 => Self::I32,
            7 => Self::I64,
            8 => Self::String,
            9 => Self::Bool,
            10 => Self::F16,
            11 => Self::F64,
            12 => Self::U32,
            13 => Self::U64,
            _ => return None,
        })
    }

    /// Returns ONNX's name of a type code that [`ElementType::from_code`] does not support.
    #[must_use]
    pub fn name_of_code(code: i32) -> String {
        const FIRST: i32 = 14;
        const NAMES: [&str; 12] = [
            "COMPLEX64",
            "COMPLEX128",
            "BFLOAT16",
            "FLOAT8E4M3FN",
            "FLOAT8E4M3FNUZ",
            "FLOAT8E5M2",
            "FLOAT8E5M2FNUZ",
            "UINT4",
            "INT4",
            "FLOAT4E2M1",
            "FLOAT8E8M0",
            "UINT2",
        ];
        let name = code.checked_sub(FIRST).and_then(|at| usize::try_from(at).ok());
        match (name.and_then(|at| NAMES.get(at)), Self::from_code(code)) {
            (Some(name), _) => (*name).to_owned(),
            (None, Some(known)) => known.name().to_owned(),
            (None, None) => format!("of the unknown type {code}"),
        }
    }

    /// Returns the type's name in the Open Inference Protocol, such as `FP32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::U8 => "UINT8",
            Self::U16 => "UINT16",
            Self::U32 => "UINT32",
            Self::U64 => "UINT64",
            Self::I8 => "INT8",
            Self::I16 => "INT16",
            Self::I32 => "INT32",
            Self::I64 => "INT64",
            Self::F16 => "FP16",
            Self::F32 => "FP32",
            Self::F64 => "FP64",
            Self::String => "BYTES",
        }
    }

    /// Returns the bytes of one element in memory. For strings this excludes their contents.
    #[must_use]
    pub const fn size_of(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::String => size_of::<String>(),
        }
    }

    /// Returns whether the elements are signed integers.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Returns whether the elements are unsigned integers.
    #[must_use]
    pub const fn is_unsigned(self) -> bool {
        matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    /// Returns whether the elements are integers, signed or unsigned.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        self.is_signed() || self.is_unsigned()
    }

    /// Returns whether the elements are floating-point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    /// Returns whether the elements are integers or floating-point numbers.
    #[must_use]
    pub const fn is_number(self) -> bool {
        self.is_integer() || self.is_float()
    }

    /// Returns whether elements have a fixed width: all types except strings.
    #[must_use]
    pub const fn is_copy(self) -> bool {
        !matches!(self, Self::String)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
