//! Sets of element types.

use std::fmt;

/// A set of element types.
///
/// ```
/// use onnx_operators::Types;
///
/// let types = Types::FLOATS.and(Types::I64);
/// assert!(types.contains(Types::F16) && !types.contains(Types::BOOL));
/// assert_eq!(types.to_string(), "floats, INT64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u16);

impl Types {
    /// The set that contains only BOOL.
    pub const BOOL: Self = Self(1);
    /// The set that contains only UINT8.
    pub const U8: Self = Self(1 << 1);
    /// The set that contains only UINT16.
    pub const U16: Self = Self(1 << 2);
    /// The set that contains only UINT32.
    pub const U32: Self = Self(1 << 3);
    /// The set that contains only UINT64.
    pub const U64: Self = Self(1 << 4);
    /// The set that contains only INT8.
    pub const I8: Self = Self(1 << 5);
    /// The set that contains only INT16.
    pub const I16: Self = Self(1 << 6);
    /// The set that contains only INT32.
    pub const I32: Self = Self(1 << 7);
    /// The set that contains only INT64.
    pub const I64: Self = Self(1 << 8);
    /// The set that contains only FP16.
    pub const F16: Self = Self(1 << 9);
    /// The set that contains only FP32.
    pub const F32: Self = Self(1 << 10);
    /// The set that contains only FP64.
    pub const F64: Self = Self(1 << 11);
    /// The set that contains only BYTES, the type of ONNX's strings.
    pub const STRING: Self = Self(1 << 12);

    /// The set of FP16 and FP32.
    pub const SHORT_FLOATS: Self = Self::F16.and(Self::F32);
    /// The set of all floats: FP16, FP32 and FP64.
    pub const FLOATS: Self = Self::SHORT_FLOATS.and(Self::F64);
    /// The set of signed integers, INT8 to INT64.
    pub const SIGNED: Self = Self::I8.and(Self::I16).and(Self::I32).and(Self::I64);
    /// The set of unsigned integers, UINT8 to UINT64.
    pub const UNSIGNED: Self = Self::U8.and(Self::U16).and(Self::U32).and(Self::U64);
    /// The set of signed and unsigned integers.
    pub const INTEGERS: Self = Self::SIGNED.and(Self::UNSIGNED);
    /// The set of integers and floats.
    pub const NUMBERS: Self = Self::INTEGERS.and(Self::FLOATS);
    /// The set of all types of fixed width: numbers and BOOL.
    pub const FIXED: Self = Self::NUMBERS.and(Self::BOOL);
    /// The set of all supported types.
    pub const ALL: Self = Self::FIXED.and(Self::STRING);

    /// Returns the union of two sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether this set contains all types of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Writes the datatypes' names, with short names for groups.
impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GROUPS: &[(Types, &str)] = &[
            (Types::ALL, "all"),
            (Types::FIXED, "all but BYTES"),
            (Types::NUMBERS, "numbers"),
            (Types::FLOATS, "floats"),
            (Types::INTEGERS, "integers"),
            (Types::SIGNED, "signed integers"),
            (Types::BOOL, "BOOL"),
            (Types::U8, "UINT8"),
            (Types::U16, "UINT16"),
            (Types::U32, "UINT32"),
            (Types::U64, "UINT64"),
            (Types::I8, "INT8"),
            (Types::I16, "INT16"),
            (Types::I32, "INT32"),
            (Types::I64, "INT64"),
            (Types::F16, "FP16"),
            (Types::F32, "FP32"),
            (Types::F64, "FP64"),
            (Types::STRING, "BYTES"),
        ];
        let (mut rest, mut separator) = (self.0, "");
        for (types, name) in GROUPS {
            if Self(rest).contains(*types) {
                write!(f, "{separator}{name}")?;
                rest &= !types.0;
                separator = ", ";
            }
        }
        Ok(())
    }
}
