//! Names of dtypes and logical types, and the sizes of their elements (O9).

use fmt_core::{OpaqueDType, StoredDType};
use tensor_core::{DType, Naming};

use crate::container::Version;

/// The element type of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartType {
    pub(crate) dtype: StoredDType,
    /// Whether every byte must be 0 or 1.
    pub(crate) is_zero_or_one: bool,
    /// Bits per element.
    bits: u64,
}

/// Returns the dtype called `name` in versions 1.1 to 2.
pub(crate) fn dtype_of(name: &str, version: Version) -> Option<DType> {
    Some(match name {
        "f64" => DType::F64,
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "i64" => DType::I64,
        "i32" => DType::I32,
        "i16" => DType::I16,
        "i8" => DType::I8,
        "u64" => DType::U64,
        "u32" => DType::U32,
        "u16" => DType::U16,
        "u8" => DType::U8,
        // In version 2, booleans are a logical type.
        "bool" if version == Version::V1 => DType::Bool,
        _ => return None,
    })
}

/// Returns the dtype called `name` in version 1.0, which has the names of version 0.1.
pub(crate) fn dtype_of_v1_0(name: &str) -> Option<DType> {
    DType::ALL
        .into_iter()
        .find(|dtype| dtype.name_in(Naming::Numpy) == name)
}

/// The known logical types, each with its dtype, the bits per element, and the name that the opaque dtype has
/// in all formats (empty for booleans, which are not opaque).
pub(crate) const LOGICAL: [(&str, DType, u32, &str); 9] = [
    ("bool", DType::U8, 8, ""),
    ("f8_e4m3fn", DType::U8, 8, "F8_E4M3"),
    ("f8_e5m2", DType::U8, 8, "F8_E5M2"),
    ("f8_e4m3fnuz", DType::U8, 8, "F8_E4M3FNUZ"),
    ("f8_e5m2fnuz", DType::U8, 8, "F8_E5M2FNUZ"),
    ("f8_e8m0", DType::U8, 8, "F8_E8M0"),
    ("f4_e2m1", DType::U8, 4, "F4"),
    ("complex64", DType::F32, 64, "C64"),
    ("complex128", DType::F64, 128, "C128"),
];

/// Combines a dtype and a logical type; `None` if the logical type is unknown. If the logical type requires
/// another dtype, the error is that dtype.
pub(crate) fn joined(dtype: DType, logical: Option<&str>) -> Option<Result<PartType, DType>> {
    let (takes, bits, name) = match logical {
        None => return Some(Ok(plain(dtype))),
        // The logical type is the dtype itself.
        Some(same) if same == dtype.name() => return Some(Ok(plain(dtype))),
        Some(logical) => {
            let (_, takes, bits, name) = LOGICAL.iter().find(|(known, ..)| *known == logical)?;
            (*takes, *bits, *name)
        }
    };
    if takes != dtype {
        return Some(Err(takes));
    }
    let is_bool = name.is_empty();
    Some(Ok(PartType {
        dtype: match is_bool {
            true => StoredDType::Known(DType::Bool),
            false => StoredDType::Opaque(OpaqueDType::of_bits(name, bits)),
        },
        is_zero_or_one: is_bool,
        bits: bits.into(),
    }))
}

/// Returns the format's names for a dtype: the dtype of its bytes, and the logical type if it differs.
pub(crate) fn names_of(stored: &StoredDType) -> Option<(&'static str, Option<&'static str>)> {
    if let StoredDType::Known(dtype) = stored
        && *dtype != DType::Bool
    {
        return Some((dtype.name(), None));
    }
    let mut logical = LOGICAL.iter();
    let (name, takes) = logical.find_map(|(name, takes, ..)| {
        let found = joined(*takes, Some(name))?.ok()?;
        (found.dtype == *stored).then_some((*name, *takes))
    })?;
    Some((takes.name(), Some(name)))
}

fn plain(dtype: DType) -> PartType {
    PartType {
        dtype: StoredDType::Known(dtype),
        is_zero_or_one: false,
        bits: 8 * dtype.size() as u64,
    }
}

impl PartType {
    /// Returns the size of `count` elements in bytes; `None` if the size overflows 64 bits. Unused bits of
    /// the last byte are padding.
    pub(crate) fn byte_len(&self, count: u64) -> Option<u64> {
        let bits = u128::from(count) * u128::from(self.bits);
        u64::try_from(bits.div_ceil(8)).ok()
    }

    /// Returns whether half of the last byte is padding, which no other format has.
    pub(crate) fn has_padding(&self, count: u64) -> bool {
        self.bits == 4 && !count.is_multiple_of(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_logical_types() {
        let len = |dtype, logical, count| joined(dtype, logical).unwrap().unwrap().byte_len(count);
        assert_eq!(len(DType::F32, None, 3), Some(12));
        assert_eq!(len(DType::F32, Some("f32"), 3), Some(12));
        assert_eq!(len(DType::F32, Some("complex64"), 3), Some(24));
        assert_eq!(len(DType::U8, Some("f4_e2m1"), 3), Some(2));
        assert_eq!(len(DType::U8, Some("bool"), u64::MAX), Some(u64::MAX));
        assert_eq!(len(DType::F64, Some("complex128"), 1 << 60), None);
        assert_eq!(joined(DType::F32, Some("bool")), Some(Err(DType::U8)));
        assert_eq!(joined(DType::U8, Some("int3")), None);
    }
}
