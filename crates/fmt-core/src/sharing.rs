//! Finds tensors of a file that share bytes: tied weights.

use std::collections::HashMap;

use crate::{Encoding, Entry, Layout};

/// Returns pairs `(tensor, first tensor with the same bytes)` of indices, in order. Use this function in
/// readers whose entries are all in one file, so that equal ranges are the same bytes.
///
/// ```
/// use fmt_core::{Entry, StoredDType, shared_ranges};
/// use tensor_core::{DType, Shape};
///
/// let entry = |name: &str, range| {
///     Entry::new(name.to_owned(), StoredDType::Known(DType::U8), Shape::vector(4), range)
/// };
/// let entries = [entry("embed", 0..4), entry("bias", 4..8), entry("lm_head", 0..4)];
/// assert_eq!(shared_ranges(&entries), [(2, 0)]);
/// ```
#[must_use]
pub fn shared_ranges(entries: &[Entry]) -> Vec<(usize, usize)> {
    let mut firsts: HashMap<(u64, u64), usize> = HashMap::with_capacity(entries.len());
    let mut shared = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        // Entries do not record strides, so strided tensors may differ; unsupported tensors are not compared.
        let is_told = entry.layout == Layout::Dense && entry.encoding != Encoding::Strided;
        let is_had = entry.unsupported.is_none() || entry.is_copied_only();
        if !is_told || !is_had || entry.range.is_empty() {
            continue;
        }
        let first = *firsts
            .entry((entry.range.start, entry.range.end))
            .or_insert(index);
        let other = &entries[first];
        let is_same = other.dtype == entry.dtype
            && other.byte_len() == entry.byte_len()
            && other.encoding == entry.encoding
            && other.is_big_endian == entry.is_big_endian;
        if first != index && is_same {
            shared.push((index, first));
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use tensor_core::{DType, Shape};

    use super::*;
    use crate::StoredDType;

    #[test]
    fn other_readings_of_the_same_bytes_are_other_tensors() {
        let entry = || {
            let dtype = StoredDType::Known(DType::F32);
            Entry::new("w".to_owned(), dtype, Shape::vector(4), 64..80)
        };
        let with = |change: fn(&mut Entry)| {
            let mut other = entry();
            change(&mut other);
            shared_ranges(&[entry(), other]).len()
        };
        assert_eq!(with(|_| {}), 1);
        assert_eq!(
            with(|entry| entry.shape = Shape::new(&[2, 2]).unwrap_or(Shape::vector(4))),
            1
        );
        assert_eq!(with(|entry| entry.range = 0..0), 0);
        assert_eq!(with(|entry| entry.range = 64..79), 0);
        assert_eq!(with(|entry| entry.dtype = StoredDType::Known(DType::I32)), 0);
        assert_eq!(with(|entry| entry.is_big_endian = true), 0);
        assert_eq!(with(|entry| entry.encoding = Encoding::Zstd), 0);
        assert_eq!(with(|entry| entry.encoding = Encoding::Strided), 0);
        assert_eq!(with(|entry| entry.unsupported = Some("it is".to_owned())), 0);
        assert_eq!(with(|entry| entry.layout = Layout::Coo { nnz: 1 }), 0);
    }
}
