//! Constants of the format: magic numbers, sizes and keys.

use fmt_core::Error;
use tensor_core::{DType, Naming};

/// The format's short name.
pub(crate) const FORMAT: &str = "ztensor";
/// The magic: the first eight bytes (Z21).
pub(crate) const MAGIC: [u8; 8] = *b"ZTEN0001";
/// The prefix of all ASCII magic numbers of the format (Z21).
pub(crate) const FAMILY: &[u8] = b"ZTEN";
/// The prefix of the magic of version 2 (Z21).
pub(crate) const FAMILY_V2: &[u8] = b"\x89ZT2";
/// Alignment of blobs, and offset of the first blob (Z10).
pub(crate) const ALIGNMENT: u64 = 64;
/// Size in bytes of the index length at the end of the file.
pub(crate) const TAIL: u64 = 8;
/// Minimum length of a file: magic, empty array, its length (Z22).
pub(crate) const SHORTEST: u64 = 17;

/// Maps the rules of lower crates to their names in docs/formats/ztensor.md.
pub(crate) const RULES: &[(&str, &str)] = &[
    (fmt_cbor::WELL_FORMED, "Z25"),
    (fmt_cbor::TYPES, "Z3"),
    (fmt_cbor::LIMITS, "Z12"),
    (fmt_cbor::SHAPES, "Z18"),
    (fmt_zstd::FRAMES, "Z15"),
    (fmt_zstd::TABLES, "Z16"),
    (fmt_zstd::LEVELS, "Z17"),
    (fmt_zstd::MEMORY, "Z12"),
    (fmt_zstd::CHECKSUMS, "Z4"),
];

/// Renames the rule in an error of a lower crate, such as `fmt-cbor`, to the rule of this format.
pub(crate) fn named(error: Error) -> Error {
    error.rename_rule(RULES)
}

/// The known keys, in the order in which they are written (Z2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Name,
    Offset,
    Size,
    Dtype,
    Layout,
    Shape,
    Encoding,
    Endianness,
    Checksum,
}

impl Key {
    /// Returns the name of the key in files.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Offset => "offset",
            Self::Size => "size",
            Self::Dtype => "dtype",
            Self::Layout => "layout",
            Self::Shape => "shape",
            Self::Encoding => "encoding",
            Self::Endianness => "data_endianness",
            Self::Checksum => "checksum",
        }
    }

    /// Returns the key called `name`; `None` for custom fields.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"name" => Self::Name,
            b"offset" => Self::Offset,
            b"size" => Self::Size,
            b"dtype" => Self::Dtype,
            b"layout" => Self::Layout,
            b"shape" => Self::Shape,
            b"encoding" => Self::Encoding,
            b"data_endianness" => Self::Endianness,
            b"checksum" => Self::Checksum,
            _ => return None,
        })
    }
}

pub(crate) const DENSE: &str = "dense";
pub(crate) const RAW: &str = "raw";
pub(crate) const ZSTD: &str = "zstd";
pub(crate) const LITTLE: &str = "little";
pub(crate) const BIG: &str = "big";

/// Returns the name of `dtype` in files.
pub(crate) fn dtype_name(dtype: DType) -> &'static str {
    dtype.name_in(Naming::Numpy)
}

/// Returns the dtype called `name` in files; `None` if unknown.
pub(crate) fn dtype_of(name: &str) -> Option<DType> {
    // A match is faster than searching the list of all names; a test below compares the match with the list.
    Some(match name {
        "bool" => DType::Bool,
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_dtypes() {
        for dtype in DType::ALL {
            assert_eq!(dtype_of(dtype_name(dtype)), Some(dtype));
        }
    }
}
