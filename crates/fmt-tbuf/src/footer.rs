//! Parses both ends of a file: the magic at the start; the length of the index and the magic at the end.

use std::ops::Range;

use fmt_core::{ByteSource, Cursor, Error, ErrorKind, Limits, read_range};
use tensor_core::QuotedName;

use crate::layout::{DATA_START, FAMILY, MAGIC, SHORTEST, TAIL};

/// Checks the magic at both ends of the file and the length of the index, and returns the range of the index.
pub(crate) fn locate_index(source: &dyn ByteSource, limits: &Limits) -> Result<Range<u64>, Error> {
    let len = source.len();
    let head = read_range(source, 0..len.min(DATA_START), "the magic")?;
    check_magic(&head, 0, "the first four bytes")?;
    if len < SHORTEST {
        let error = Error::new(ErrorKind::Truncated, "the file is too short").at(len);
        return Err(error
            .expected(format_args!("at least {SHORTEST} bytes"))
            .found(format_args!("{len} bytes"))
            .rule("T2"));
    }
    let tail = read_range(source, len - TAIL..len, "the end of the file")?;
    let mut cursor = Cursor::new(&tail, len - TAIL);
    let size = cursor.u32("the length of the index")?;
    check_magic(cursor.take(4, "the magic")?, len - 4, "the last four bytes")?;

    let at_size = |kind, what: &str| Error::new(kind, what).at(len - TAIL).found(size).rule("T2");
    // The shortest index, of 8 bytes, has the root's offset and a table without fields.
    if size < 8 {
        let error = at_size(ErrorKind::Malformed, "the length of the index");
        return Err(error.expected("at least 8"));
    }
    let size = u64::from(size);
    let room = len - SHORTEST;
    if size > room {
        let error = at_size(ErrorKind::OutOfBounds, "the length of the index");
        return Err(error.expected(format_args!("at most {room}, given the file's length")));
    }
    if size > limits.index_bytes {
        let error = at_size(ErrorKind::TooLarge, "the length of the index").rule("T20");
        return Err(error.expected(format_args!("at most {}, the reader's limit", limits.index_bytes)));
    }
    Ok(len - TAIL - size..len - TAIL)
}

/// Checks a possibly truncated magic: a file that ends within it is reported as a truncated file of this
/// format.
fn check_magic(found: &[u8], at: u64, which: &str) -> Result<(), Error> {
    if MAGIC.starts_with(found) {
        return Ok(());
    }
    let is_other_version =
        found.len() == MAGIC.len() && found.starts_with(FAMILY) && found[FAMILY.len()].is_ascii_digit();
    let kind = if is_other_version {
        ErrorKind::BadVersion
    } else {
        ErrorKind::BadMagic
    };
    let error = Error::new(kind, format!("{which} of the file")).at(at).rule("T1");
    let shown = String::from_utf8_lossy(found);
    Err(error.expected("'TBS1'").found(QuotedName(&shown)))
}
