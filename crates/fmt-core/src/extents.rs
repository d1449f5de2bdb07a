//! Finds overlaps and holes between the byte ranges of a file's tensors.

use std::ops::Range;

use crate::{Error, ErrorKind};

/// Checks the byte ranges of tensors for partial overlaps.
///
/// Two tensors may share the same range (tied weights); an empty range may be anywhere. Partial overlap is an
/// error: only broken writers produce it, and a hostile file could use it to make a reader do unbounded work.
///
/// ```
/// use fmt_core::{ErrorKind, check_overlaps, holes};
///
/// let ranges = [64..128, 0..64, 64..128, 100..100];
/// assert!(check_overlaps(&ranges).is_ok());
/// assert_eq!(check_overlaps(&[0..10, 8..12]).unwrap_err().kind(), ErrorKind::Overlap);
/// assert_eq!(holes(&[10..20, 24..30], 4..32), [4..10, 20..24, 30..32]);
/// ```
///
/// # Errors
/// [`ErrorKind::Overlap`] for the first two ranges, in file order, that overlap partially.
pub fn check_overlaps(ranges: &[Range<u64>]) -> Result<(), Error> {
    let is_in_order = |pair: &[Range<u64>]| pair[0].end <= pair[1].start;
    if ranges.windows(2).all(is_in_order) {
        return Ok(());
    }
    for pair in sorted(ranges).windows(2) {
        let ((first, a), (second, b)) = (&pair[0], &pair[1]);
        if b.start < a.end && a != b {
            let error = Error::new(
                ErrorKind::Overlap,
                format!("the data of tensors {first} and {second} overlaps"),
            );
            let found = format!("bytes {} to {} and {} to {}", a.start, a.end, b.start, b.end);
            return Err(error
                .at(b.start)
                .expected("ranges apart or the same")
                .found(found));
        }
    }
    Ok(())
}

/// Returns the parts of `within` that none of `ranges` covers, in order.
#[must_use]
pub fn holes(ranges: &[Range<u64>], within: Range<u64>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut covered = within.start;
    for (_, range) in sorted(ranges) {
        if range.start > covered {
            found.push(covered..range.start);
        }
        covered = covered.max(range.end);
    }
    if covered < within.end {
        found.push(covered..within.end);
    }
    found
}

/// Returns the nonempty ranges sorted by start, each with its index.
fn sorted(ranges: &[Range<u64>]) -> Vec<(usize, Range<u64>)> {
    let mut sorted: Vec<_> = ranges
        .iter()
        .cloned()
        .enumerate()
        .filter(|(_, range)| !range.is_empty())
        .collect();
    sorted.sort_by_key(|(number, range)| (range.start, range.end, *number));
    sorted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_within_another_is_an_overlap() {
        for ranges in [[0..100, 10..20], [10..20, 0..100], [0..10, 0..20], [5..6, 0..20]] {
            assert!(check_overlaps(&ranges).is_err(), "{ranges:?}");
        }
        assert!(check_overlaps(&[0..10, 0..10, 0..10, 3..3]).is_ok());
        // In sorted order, the first range is not next to `50..60`, which it overlaps.
        assert!(check_overlaps(&[0..100, 0..100, 50..60]).is_err());
    }

    proptest! {
        #[test]
        fn holes_and_ranges_cover_everything(starts in prop::collection::vec((0u64..100, 0u64..10), 0..10)) {
            let ranges: Vec<_> = starts.into_iter().map(|(start, len)| start..start + len).collect();
            let holes = holes(&ranges, 0..200);
            for byte in 0..200 {
                let in_range = ranges.iter().any(|range| range.contains(&byte));
                prop_assert_eq!(in_range, !holes.iter().any(|hole| hole.contains(&byte)));
            }
        }
    }
}
