//! Constants of the format: sizes, offsets and codes.

use tensor_core::DType;

/// The format's short name.
pub(crate) const FORMAT: &str = "btf";

/// Size of a count, an offset or a dimension in bytes.
pub(crate) const WORD: u64 = 8;

/// Size of a record before its dimensions: rank, dtype, layout, six reserved bytes.
pub(crate) const HEADER: u64 = 16;

/// Maximum length of a file, and of any part of a file: operating systems use signed 64-bit file sizes (rule
/// B19).
pub(crate) const LONGEST: u64 = i64::MAX as u64;

/// The dense layout: all elements, row-major.
pub(crate) const DENSE: u8 = 0;

/// TFRT's code for COO (rule B1).
pub(crate) const COO_OF_TFRT: u8 = 1;

/// The specification's code for COO.
pub(crate) const COO: u8 = 2;

/// The first of TFRT's dtype codes that the specification lacks (rule B2).
pub(crate) const FIRST_EXTENSION: u8 = 6;

/// The dtypes, indexed by code.
pub(crate) const DTYPES: [DType; 10] = [
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F32,
    DType::F64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

/// Returns the dtype that `code` stands for; `None` if the code is unknown.
pub(crate) fn dtype_of(code: u8) -> Option<DType> {
    DTYPES.get(usize::from(code)).copied()
}

/// Returns the code of a dtype, if the format has it.
pub(crate) fn code_of(dtype: DType) -> Option<u8> {
    let code = DTYPES.iter().position(|known| *known == dtype)?;
    u8::try_from(code).ok()
}

pub(crate) fn is_coo(layout: u8) -> bool {
    matches!(layout, COO | COO_OF_TFRT)
}

/// Returns the number of padding bytes after a record of `len` bytes.
pub(crate) fn padding(len: u64) -> u64 {
    len.wrapping_neg() % WORD
}

/// Reads the little-endian word at the start of `bytes`.
pub(crate) fn word(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |word: &[u8; 8]| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_dtypes_belong_together() {
        for code in 0..=u8::MAX {
            assert_eq!(dtype_of(code).map(code_of), (code < 10).then_some(Some(code)));
        }
        assert_eq!(
            [DType::Bool, DType::F16, DType::BF16].map(code_of),
            [None, None, None]
        );
    }

    #[test]
    fn padding_reaches_the_next_multiple_of_eight() {
        let paddings: Vec<u64> = (8..18).map(padding).collect();
        assert_eq!(paddings, [0, 7, 6, 5, 4, 3, 2, 1, 0, 7]);
    }
}
