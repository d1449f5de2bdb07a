//! Lints that all formats share, about bytes that belong to no tensor.

use std::ops::Range;

use crate::{ByteSource, Error, Lint, holes, read_into};

/// Bytes read at once from a hole, a range that belongs to no tensor.
const CHUNK: usize = 64 << 10;

/// Lints the parts of `within` that no range covers: reports nonzero bytes, and runs of zeros longer than
/// `padding`, the alignment. Messages name `rule`, a rule of the format's page.
///
/// ```
/// use bytes::Bytes;
/// let file = Bytes::from_static(b"head1234\0\0hidden\0\0");
/// let lints = fmt_core::lint_holes(&file, &[4..8], 4..18, 4096, "T12")?;
/// assert_eq!((lints.len(), lints[0].range.clone()), (1, Some(10..16)));
/// # Ok::<(), fmt_core::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Io`](crate::ErrorKind::Io) and [`ErrorKind::Changed`](crate::ErrorKind::Changed) when the
/// bytes cannot be read.
pub fn lint_holes(
    source: &dyn ByteSource,
    ranges: &[Range<u64>],
    within: Range<u64>,
    padding: u64,
    rule: &str,
) -> Result<Vec<Lint>, Error> {
    let mut lints = Vec::new();
    let mut buffer = Vec::new();
    for hole in holes(ranges, within) {
        let (kind, range) = match marks(source, &hole, &mut buffer)? {
            Some(marks) => ("bytes that are not zero", marks),
            None if hole.end - hole.start > padding => ("zero bytes", hole),
            None => continue,
        };
        lints.push(Lint {
            message: format!("{kind} belong to no tensor ({rule})"),
            tensor: None,
            range: Some(range),
        });
    }
    Ok(lints)
}

/// Returns the range from the first to the last nonzero byte of a hole.
fn marks(
    source: &dyn ByteSource,
    hole: &Range<u64>,
    buffer: &mut Vec<u8>,
) -> Result<Option<Range<u64>>, Error> {
    let mut marks: Option<Range<u64>> = None;
    let mut at = hole.start;
    while at < hole.end {
        let len = usize::try_from(hole.end - at).map_or(CHUNK, |rest| rest.min(CHUNK));
        buffer.resize(len, 0);
        read_into(source, at, buffer, "what lies between the tensors")?;
        let is_mark = |byte: &u8| *byte != 0;
        if let (Some(first), Some(last)) = (buffer.iter().position(is_mark), buffer.iter().rposition(is_mark))
        {
            let start = marks.map_or(at + first as u64, |marks| marks.start);
            marks = Some(start..at + last as u64 + 1);
        }
        at += len as u64;
    }
    Ok(marks)
}
