//! Stable sorts that can be cancelled.

use std::cmp::Ordering;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    size,
};

/// Sorts elements stably, and checks for cancellation.
///
/// # Errors
/// Fails if the run is cancelled, or if there is no memory for a sorted copy of many elements.
pub fn sort_by<T: Copy>(elements: &mut Vec<T>, compare: impl Fn(&T, &T) -> Ordering) -> Result<()> {
    /// Maximum number of elements that are sorted without a check for cancellation.
    const FEW: usize = 1 << 16;
    if elements.len() <= FEW {
        elements.sort_by(compare);
        return Ok(());
    }
    let each = (size_of::<T>() + 2 * size_of::<usize>()) as u64;
    size::admit_now(elements.len() as u64 * each)?;
    let order = sorted(elements.len(), 1, &|a, b, _| {
        Ok(compare(&elements[a], &elements[b]))
    })?;
    *elements = Pace::default().map(&order, |&at| elements[at])?;
    Ok(())
}

/// Compares the items at two indices. Checks for cancellation if the items are long.
pub(crate) type Comparison<'c> = &'c dyn Fn(usize, usize, &mut Pace) -> Result<Ordering>;

/// Returns the indices of `length` items in stable sorted order. Merges sorted runs, with checks for
/// cancellation. A comparison takes up to `steps` steps. The trait object `compare` lets the function be
/// compiled once for all types: each copy would take 9 KB of code.
pub(crate) fn sorted(length: usize, steps: usize, compare: Comparison<'_>) -> Result<Vec<usize>> {
    /// Number of items per run.
    const RUN: usize = 1 << 12;
    // Runs are shorter if comparisons take long, so that each run takes the same time. Items whose comparison
    // takes more than RUN steps are only merged, since a sort cannot stop within a comparison.
    let together = (RUN / steps.max(1)).max(1);
    let mut pace = Pace::default();
    let mut order: Vec<usize> = pace.indices(length, |at| at)?;
    for run in order.chunks_mut(together).filter(|run| run.len() > 1) {
        let rounds = run.len().ilog2() as usize + 1;
        pace.spend((run.len() * rounds).saturating_mul(steps) as u64)?;
        // A comparison of few steps does not check for cancellation, and so does not fail.
        let order = |a: &usize, b: &usize| compare(*a, *b, &mut Pace::default());
        run.sort_by(|a, b| order(a, b).unwrap_or(Ordering::Equal));
    }
    let mut width = together;
    let mut merged = Vec::with_capacity(length);
    while width < length {
        for pair in order.chunks(2 * width) {
            let (mut first, mut second) = pair.split_at(width.min(pair.len()));
            while let ([a, ..], [b, ..]) = (first, second) {
                pace.spend(1)?;
                let from = match compare(*a, *b, &mut pace)?.is_le() {
                    true => &mut first,
                    false => &mut second,
                };
                let (next, rest) = from.split_at(1);
                merged.extend_from_slice(next);
                *from = rest;
            }
            pace.append(first, &mut merged)?;
            pace.append(second, &mut merged)?;
        }
        std::mem::swap(&mut order, &mut merged);
        merged.clear();
        width *= 2;
    }
    Ok(order)
}

/// Returns the indices of keys in stable sorted order: a radix sort by bytes, from the lowest one. Bytes that are
/// the same in all keys are skipped.
///
/// # Errors
/// Fails if the run is cancelled.
pub(crate) fn sorted_keys(keys: &[u64]) -> Result<Vec<usize>> {
    let mut pace = Pace::default();
    let mut items: Vec<(u64, usize)> = pace.indices(keys.len(), |at| (keys[at], at))?;
    let mut counts = [[0usize; 256]; 8];
    for keys in keys.chunks(PART) {
        pace.spend(4 * keys.len() as u64)?;
        for key in keys {
            let digits = key.to_le_bytes().into_iter().zip(&mut counts);
            digits.for_each(|(digit, counts)| counts[usize::from(digit)] += 1);
        }
    }
    let mut sorted = pace.copy(&items)?;
    for (byte, counts) in counts.iter_mut().enumerate() {
        if counts.contains(&keys.len()) {
            continue;
        }
        // Replaces each count by the position of the first item with this digit.
        let mut position = 0;
        for count in counts.iter_mut() {
            position += std::mem::replace(count, position);
        }
        for items in items.chunks(PART) {
            pace.spend(2 * items.len() as u64)?;
            for item in items {
                let next = &mut counts[usize::from(item.0.to_le_bytes()[byte])];
                sorted[*next] = *item;
                *next += 1;
            }
        }
        std::mem::swap(&mut items, &mut sorted);
    }
    pace.map(&items, |&(_, at)| at)
}

/// Bytes that [`sorted_keys`] takes for each key: two lists of keys and indices, and the indices.
pub(crate) const BYTES_PER_KEY: u64 = (2 * size_of::<(u64, usize)>() + size_of::<usize>()) as u64;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{cancelling::Cancelled, testing::while_cancelled};

    #[test]
    fn many_are_sorted_as_few_are() {
        for length in [0, 5, 100_000] {
            let mut pairs: Vec<(usize, usize)> = (0..length).map(|at| (at * 7919 % 1009, at)).collect();
            let mut expected = pairs.clone();
            expected.sort();
            sort_by(&mut pairs, |a, b| a.0.cmp(&b.0)).unwrap();
            assert!(pairs == expected, "{length}");
        }
        let mut many: Vec<usize> = (0..1 << 18).collect();
        let ended = while_cancelled(|| sort_by(&mut many, |a, b| b.cmp(a)));
        assert!(ended.unwrap_err().is::<Cancelled>());
    }

    #[test]
    fn runs_are_merged_and_equal_parts_keep_their_order() {
        for length in [0, 1, 4095, 4096, 4097, 12_289, 50_000] {
            let values: Vec<usize> = (0..length).map(|at| at * 7919 % 1009).collect();
            let mut expected: Vec<usize> = (0..length).collect();
            expected.sort_by_key(|&at| values[at]);
            let order = sorted(length, 1, &|a, b, _| Ok(values[a].cmp(&values[b]))).unwrap();
            assert!(order == expected, "{length}");
        }
    }

    #[test]
    fn keys_are_sorted_stably() {
        for length in [0, 1, 2, 300, 40_000] {
            for (factor, limit) in [(7919, 1009), (0x9e37_79b9_7f4a_7c15, u64::MAX), (1, 1)] {
                let keys: Vec<u64> = (0..length)
                    .map(|at: u64| at.wrapping_mul(factor) % limit)
                    .collect();
                let mut expected: Vec<usize> = (0..keys.len()).collect();
                expected.sort_by_key(|&at| keys[at]);
                assert!(sorted_keys(&keys).unwrap() == expected, "{length}");
            }
        }
        let many = vec![0; 1 << 18];
        let ended = while_cancelled(|| sorted_keys(&many));
        assert!(ended.unwrap_err().is::<Cancelled>());
    }

    #[test]
    fn a_sort_ends_when_nobody_waits_for_it() {
        let ended = while_cancelled(|| sorted(1 << 20, 1, &|a, b, _| Ok(b.cmp(&a))));
        assert!(ended.unwrap_err().is::<Cancelled>());
        let slow = |a: usize, b: usize, pace: &mut Pace| {
            pace.spend(1 << 20)?;
            Ok(b.cmp(&a))
        };
        let ended = while_cancelled(|| sorted(20, 1 << 20, &slow));
        assert!(ended.unwrap_err().is::<Cancelled>());
        assert_eq!(sorted(3, 1 << 20, &slow).unwrap(), [2, 1, 0]);
    }
}
