//! Parses the start and end of a file: magic number and footer.

use std::ops::Range;

use fmt_core::{ByteSource, Error, ErrorKind, ReadOptions, read_into, read_range};

use crate::layout::{FAMILY, FAMILY_V2, MAGIC, SHORTEST, TAIL};

/// Checks the start and end of the file, and returns the range of the index.
pub(crate) fn locate_index(source: &dyn ByteSource, options: &ReadOptions) -> Result<Range<u64>, Error> {
    let len = source.len();
    let head = read_range(source, 0..len.min(MAGIC.len() as u64), "the magic")?;
    check_magic(&head)?;
    // A lenient reader accepts an empty index, which means no tensors.
    let shortest = SHORTEST - u64::from(options.lenient);
    if len < shortest {
        let error = Error::new(ErrorKind::Truncated, "the file").at(len).rule("Z22");
        return Err(error
            .expected(format_args!("at least {shortest} bytes"))
            .found(len));
    }
    let end = len - TAIL;
    let mut tail = [0; TAIL as usize];
    read_into(source, end, &mut tail, "the length of the index")?;
    let index_len = u64::from_le_bytes(tail);
    if index_len == 0 && !options.lenient {
        let error = Error::new(ErrorKind::Malformed, "the length of the index")
            .at(end)
            .rule("Z11");
        return Err(error.expected("at least 1: an empty array").found(0));
    }
    let most = end - MAGIC.len() as u64;
    if index_len > most {
        let error = Error::new(ErrorKind::OutOfBounds, "the length of the index")
            .at(end)
            .rule("Z22");
        return Err(error
            .expected(format_args!("at most {most}, given the file's length"))
            .found(index_len));
    }
    if index_len > options.limits.index_bytes {
        let error = Error::new(ErrorKind::TooLarge, "the length of the index")
            .at(end)
            .rule("Z12");
        return Err(error
            .expected(format_args!("at most {}, the limit", options.limits.index_bytes))
            .found(index_len));
    }
    Ok(end - index_len..end)
}

fn check_magic(head: &[u8]) -> Result<(), Error> {
    if head == MAGIC {
        return Ok(());
    }
    if MAGIC.starts_with(head) {
        let error = Error::new(ErrorKind::Truncated, "the magic")
            .at(head.len() as u64)
            .rule("Z22");
        return Err(error
            .expected(format_args!("{} bytes", MAGIC.len()))
            .found(head.len()));
    }
    let shown = head.escape_ascii().to_string();
    let version = head.strip_prefix(FAMILY);
    let is_numbered = |digits: &[u8]| digits.len() == 4 && digits.iter().all(u8::is_ascii_digit);
    let (kind, expected) = if head.starts_with(FAMILY_V2) {
        (
            ErrorKind::BadVersion,
            "ZTEN0001; this is version 2 of zTensor, which has a reader of its own",
        )
    } else if version.is_some_and(is_numbered) {
        (
            ErrorKind::BadVersion,
            "ZTEN0001; this is another version of zTensor (1.x has a reader of its own)",
        )
    } else {
        (ErrorKind::BadMagic, "ZTEN0001")
    };
    Err(Error::new(kind, "the magic")
        .at(0)
        .expected(expected)
        .found(shown)
        .rule("Z21"))
}
