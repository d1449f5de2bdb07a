//! The layout of a file, and its constants.

use tensor_core::DType;

use crate::generated::tensor_buffers::DataType;

/// The first and the last four bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"TBS1";
/// The prefix of the magic of all versions.
pub(crate) const FAMILY: &[u8] = b"TBS";
/// Size of the index's length and the final magic in bytes.
pub(crate) const TAIL: u64 = 8;
/// Minimum offset of tensor data: the end of the magic.
pub(crate) const DATA_START: u64 = MAGIC.len() as u64;
/// Minimum length of a file: magic, length, magic.
pub(crate) const SHORTEST: u64 = DATA_START + TAIL;
/// The version of the format that this crate writes.
pub(crate) const VERSION: &str = "1.0.0";
/// The short name, see [`fmt_core::Format::id`].
pub(crate) const FORMAT: &str = "tbuf";
/// The key of the format's only metadata entry.
pub(crate) const MODEL: &str = "model";

/// The format's dtypes and their numbers in files.
pub(crate) const DTYPES: [(DataType, DType); 10] = [
    (DataType::Float32, DType::F32),
    (DataType::Float64, DType::F64),
    (DataType::Int8, DType::I8),
    (DataType::Int16, DType::I16),
    (DataType::Int32, DType::I32),
    (DataType::Int64, DType::I64),
    (DataType::UInt8, DType::U8),
    (DataType::UInt16, DType::U16),
    (DataType::UInt32, DType::U32),
    (DataType::UInt64, DType::U64),
];

/// Returns the dtype whose number in files is `stored`; `None` if the number is unknown.
pub(crate) fn dtype_of(stored: DataType) -> Option<DType> {
    let found = DTYPES.iter().find(|(number, _)| *number == stored);
    found.map(|(_, dtype)| *dtype)
}

/// Returns the number that encodes `dtype` in files; `None` if the format lacks that dtype.
pub(crate) fn number_of(dtype: DType) -> Option<DataType> {
    let found = DTYPES.iter().find(|(_, known)| *known == dtype);
    found.map(|(number, _)| *number)
}

/// Returns the id of a tensor with this name: 64-bit FNV-1a over the name's UTF-8 bytes and one byte `0xFF`.
///
/// The specification says only that an id is a hash of the name. The reference implementation writes this
/// hash, so ids agree between writers. Readers must not rely on it.
///
/// ```
/// assert_eq!(fmt_tbuf::tensor_id("weights"), 0xc9cd_0e82_baed_f153);
/// ```
#[must_use]
pub fn tensor_id(name: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
    fold(hash, 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids equal those that the reference implementation writes.
    #[test]
    fn t6_ids_are_those_of_the_first_implementation() {
        let known = [
            ("", 0xaf64_724c_8602_eb6e),
            ("a", 620_310_408_636_712_809),
            ("b", 623_125_158_404_365_294),
            ("weights", 14_541_294_726_493_892_947),
            ("1", 574_148_512_446_984_985),
            ("2", 577_526_212_168_281_502),
            ("input_1", 14_989_721_240_899_004_360),
            ("layer.0.weight", 12_814_702_170_722_358_207),
        ];
        for (name, id) in known {
            assert_eq!(tensor_id(name), id, "{name}");
        }
    }

    /// The format has ten dtypes, numbered from one.
    #[test]
    fn t14_numbers_and_dtypes() {
        for (index, (number, dtype)) in DTYPES.into_iter().enumerate() {
            assert_eq!(usize::try_from(number.0), Ok(index + 1));
            assert_eq!((dtype_of(number), number_of(dtype)), (Some(dtype), Some(number)));
        }
        for number in [0, 11, 127, -128, -1] {
            assert_eq!(dtype_of(DataType(number)), None);
        }
        for dtype in [DType::Bool, DType::F16, DType::BF16] {
            assert_eq!(number_of(dtype), None);
        }
    }
}
