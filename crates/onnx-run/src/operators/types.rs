use std::fmt;

use onnx_tensor::prelude::*;

/// A set of element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types(u16);

impl Types {
    pub(crate) const BOOL: Self = Self(1);
    pub(crate) const U8: Self = Self(1 << 1);
    pub(crate) const U16: Self = Self(1 << 2);
    pub(crate) const U32: Self = Self(1 << 3);
    pub(crate) const U64: Self = Self(1 << 4);
    pub(crate) const I8: Self = Self(1 << 5);
    pub(crate) const I16: Self = Self(1 << 6);
    pub(crate) const I32: Self = Self(1 << 7);
    pub(crate) const I64: Self = Self(1 << 8);
    pub(crate) const F16: Self = Self(1 << 9);
    pub(crate) const F32: Self = Self(1 << 10);
    pub(crate) const F64: Self = Self(1 << 11);
    pub(crate) const STRING: Self = Self(1 << 12);

    /// FP16 and FP32.
    pub(crate) const SHORT_FLOATS: Self = Self::F16.and(Self::F32);
    pub(crate) const FLOATS: Self = Self::SHORT_FLOATS.and(Self::F64);
    pub(crate) const SIGNED: Self = Self::I8.and(Self::I16).and(Self::I32).and(Self::I64);
    pub(crate) const UNSIGNED: Self = Self::U8.and(Self::U16).and(Self::U32).and(Self::U64);
    pub(crate) const INTEGERS: Self = Self::SIGNED.and(Self::UNSIGNED);
    pub(crate) const NUMBERS: Self = Self::INTEGERS.and(Self::FLOATS);
    /// Everything of fixed width.
    pub(crate) const FIXED: Self = Self::NUMBERS.and(Self::BOOL);
    pub(crate) const ALL: Self = Self::FIXED.and(Self::STRING);

    /// The union of two sets.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn contains(self, element_type: ElementType) -> bool {
        let single = match element_type {
            ElementType::Bool => Self::BOOL,
            ElementType::U8 => Self::U8,
            ElementType::U16 => Self::U16,
            ElementType::U32 => Self::U32,
            ElementType::U64 => Self::U64,
            ElementType::I8 => Self::I8,
            ElementType::I16 => Self::I16,
            ElementType::I32 => Self::I32,
            ElementType::I64 => Self::I64,
            ElementType::F16 => Self::F16,
            ElementType::F32 => Self::F32,
            ElementType::F64 => Self::F64,
            ElementType::String => Self::STRING,
        };
        self.0 & single.0 != 0
    }
}

/// The datatypes' names, groups for short.
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
            if rest & types.0 == types.0 {
                write!(f, "{separator}{name}")?;
                rest &= !types.0;
                separator = ", ";
            }
        }
        Ok(())
    }
}
