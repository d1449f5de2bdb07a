//! The offset table at the start of a file: the first step of reading, before the records.

use fmt_core::{Error, ErrorKind, reserve};

use crate::layout::{HEADER, LONGEST, WORD, word};

/// The offsets of the records.
pub(crate) struct Table<'a> {
    bytes: &'a [u8],
}

impl<'a> Table<'a> {
    /// Wraps the bytes of the offset table, which are between the count and the records.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> + '_ {
        self.bytes.chunks_exact(WORD as usize).map(word)
    }

    pub(crate) fn at(&self, number: u32) -> u64 {
        word(&self.bytes[number as usize * WORD as usize..])
    }

    /// Checks that each offset is aligned (unless `lenient`) and leads to a header after the table and within
    /// the file. Returns whether the offsets are ascending, in which case they need not be sorted.
    pub(crate) fn check(&self, table_end: u64, file_len: u64, lenient: bool) -> Result<bool, Error> {
        let mut ascends = true;
        let mut last = 0;
        for (number, offset) in self.offsets().enumerate() {
            ascends &= offset > last;
            last = offset;
            let is_aligned = lenient || offset.is_multiple_of(WORD);
            if is_aligned && offset >= table_end && offset < file_len && file_len - offset >= HEADER {
                continue;
            }
            return Err(bad_offset(number, offset, table_end, file_len, is_aligned));
        }
        Ok(ascends)
    }

    /// Returns the tensor indices sorted by offset.
    pub(crate) fn order(&self) -> Result<Vec<u32>, Error> {
        let count = self.bytes.len() / WORD as usize;
        let mut order = Vec::new();
        make_room(&mut order, count as u64)?;
        order.extend(0..count as u32);
        order.sort_unstable_by_key(|&number| (self.at(number), number));
        Ok(order)
    }
}

/// Reserves memory for `count` items, one for each entry of the table or fewer.
pub(crate) fn make_room<T>(items: &mut Vec<T>, count: u64) -> Result<(), Error> {
    reserve(items, count).map_err(|error| error.rule("B17"))
}

#[cold]
fn bad_offset(number: usize, offset: u64, table_end: u64, file_len: u64, is_aligned: bool) -> Error {
    let at = WORD + WORD * number as u64;
    let error = |kind, what: &str| {
        Error::new(kind, what)
            .of_tensor(&number.to_string())
            .at(at)
            .rule("B4")
            .found(offset)
    };
    if !is_aligned {
        return error(ErrorKind::Misaligned, "the offset of the record").expected("a multiple of 8");
    }
    if offset > LONGEST - HEADER {
        return error(
            ErrorKind::Overflow,
            "the end of the record does not fit 63 bits: its offset",
        );
    }
    if offset < table_end || offset >= file_len {
        return error(ErrorKind::OutOfBounds, "the offset of the record").expected(format_args!(
            "{table_end} to {file_len}, between the table and the end of the file"
        ));
    }
    error(
        ErrorKind::Truncated,
        "the header of the record is truncated: its offset",
    )
    .expected(format_args!("16 bytes before the file's end at {file_len}"))
}
