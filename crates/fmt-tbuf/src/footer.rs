//! The ends of a file: magic in front, length of the index and magic behind.

use std::{io, ops::Range};

use fmt_core::{ByteSource, Cursor, Error, ErrorKind, Limits};
use tensor_core::Quoted;

use crate::layout::{DATA_START, FAMILY, MAGIC, SHORTEST, TAIL};

/// Checks both ends and says where the index stands.
pub(crate) fn locate_index(source: &dyn ByteSource, limits: &Limits) -> Result<Range<u64>, Error> {
    let len = source.len();
    let head = read(source, 0..len.min(DATA_START), "the magic")?;
    check_magic(&head, 0, "the first four bytes")?;
    if len < SHORTEST {
        let error = Error::new(ErrorKind::Truncated, "the file is too short").at(len);
        return Err(error
            .expected(format_args!("at least {SHORTEST} bytes"))
            .found(format_args!("{len} bytes"))
            .rule("T2"));
    }
    let tail = read(source, len - TAIL..len, "the end of the file")?;
    let mut cursor = Cursor::new(&tail, len - TAIL);
    let size = cursor.u32("the length of the index")?;
    check_magic(cursor.take(4, "the magic")?, len - 4, "the last four bytes")?;

    let at_size = |kind, what: &str| Error::new(kind, what).at(len - TAIL).found(size).rule("T2");
    // At least the root's offset and a table without fields.
    if size < 8 {
        let error = at_size(ErrorKind::Malformed, "the length of the index");
        return Err(error.expected("at least 8"));
    }
    let size = u64::from(size);
    let room = len - SHORTEST;
    if size > room {
        let error = at_size(ErrorKind::OutOfBounds, "the length of the index");
        return Err(error.expected(format_args!("at most {room}, which the file has room for")));
    }
    if size > limits.index_bytes {
        let error = at_size(ErrorKind::TooLarge, "the length of the index").rule("T20");
        return Err(error.expected(format_args!("at most {}, the reader's limit", limits.index_bytes)));
    }
    Ok(len - TAIL - size..len - TAIL)
}

/// Holds what there is of a magic against it: a file that is cut off within it is a short file of this kind.
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
    Err(error.expected("'TBS1'").found(Quoted(&shown)))
}

/// Reads from a source. Bytes that were there when the file was opened and are not any more are a changed file.
pub(crate) fn read(
    source: &dyn ByteSource,
    range: Range<u64>,
    what: &str,
) -> Result<tensor_core::Bytes, Error> {
    let (at, len) = (range.start, range.end - range.start);
    let bytes = source.read(range).map_err(|error| io_error(error, at, what))?;
    if bytes.len() as u64 != len {
        return Err(io_error(io::ErrorKind::UnexpectedEof.into(), at, what));
    }
    Ok(bytes)
}

/// What it means that reading failed.
pub(crate) fn io_error(error: io::Error, at: u64, what: &str) -> Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        let changed = format!("{what} is not there any more: the file became shorter");
        return Error::new(ErrorKind::Changed, changed).at(at);
    }
    Error::io(format!("{what} cannot be read"), error).at(at)
}
