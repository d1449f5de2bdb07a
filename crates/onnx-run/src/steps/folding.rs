//! Bounds the memory of folded constants, and drops those that nothing reads any more.
//!
//! A small file can describe a long chain of large constants, so the total size of folded constants has a
//! limit that depends on the size of the file's own constants. Nodes whose results would exceed the limit run
//! for each request, where [`Room`](onnx_tensor::room::Room) bounds them.

use std::collections::HashMap;

use onnx_tensor::prelude::*;

use crate::steps::values::Slot;
use onnx_tensor::size;

/// Bytes that folded constants may take in addition to twice the bytes of the file's constants.
const MORE_BYTES: u64 = 64 << 20;

/// Maximum size in bytes of a folded constant that is not counted, since its node would take as much memory.
const FREE: u64 = 1 << 10;

/// The memory of folded constants, and the remaining readers of all values.
pub(crate) struct Folding {
    /// Bytes that further folded constants may take.
    left: u64,
    /// Counted bytes of folded constants.
    counted: HashMap<Slot, u64>,
    /// Number of node inputs and graph outputs that read a value, without those of removed nodes.
    readers: HashMap<Slot, usize>,
}

impl Folding {
    /// Creates the limit and the counts for a model whose constants take `bytes` bytes.
    pub(crate) fn beside(bytes: u64) -> Self {
        Self {
            left: bytes.saturating_mul(2).saturating_add(MORE_BYTES),
            counted: HashMap::new(),
            readers: HashMap::new(),
        }
    }

    /// Returns the maximum size in bytes of the outputs of a folded node that reads `inputs`, whose memory it
    /// frees if it is their last reader.
    pub(crate) fn limit<'s>(&self, inputs: impl IntoIterator<Item = &'s Slot>) -> u64 {
        // A node that reads a value twice counts as two readers.
        let mut reads: HashMap<Slot, usize> = HashMap::new();
        for slot in inputs {
            *reads.entry(*slot).or_default() += 1;
        }
        let freed = reads
            .iter()
            .filter(|(slot, reads)| self.readers.get(slot) == Some(*reads));
        let freed: u64 = freed.filter_map(|(slot, _)| self.counted.get(slot)).sum();
        self.left.saturating_add(freed).max(FREE)
    }

    /// Counts the folded constant in `slot`.
    pub(crate) fn count(&mut self, slot: Slot, value: &Tensor) {
        let bytes = size::of_value(value);
        if bytes > FREE && self.counted.insert(slot, bytes).is_none() {
            self.left = self.left.saturating_sub(bytes);
        }
    }

    /// Adds a reader of the value in `slot`.
    pub(crate) fn add_reader(&mut self, slot: Slot) {
        *self.readers.entry(slot).or_default() += 1;
    }

    /// Counts the readers of `alias` as readers of `slot`, which holds the same value.
    pub(crate) fn redirect(&mut self, alias: Slot, slot: Slot) {
        if alias != slot
            && let Some(count) = self.readers.remove(&alias)
        {
            *self.readers.entry(slot).or_default() += count;
        }
    }

    /// Returns whether the value in `slot` has readers.
    pub(crate) fn is_read(&self, slot: Slot) -> bool {
        self.readers.get(&slot).is_some_and(|&count| count > 0)
    }

    /// Removes a reader of the value in `slot`. Returns whether it was the last one, so that a constant can
    /// be dropped.
    pub(crate) fn remove_reader(&mut self, slot: Slot) -> bool {
        if let Some(count) = self.readers.get_mut(&slot) {
            *count = count.saturating_sub(1);
        }
        let is_last = !self.is_read(slot);
        if is_last && let Some(bytes) = self.counted.remove(&slot) {
            self.left = self.left.saturating_add(bytes);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Checks that a folded node may reuse the memory of an input that nothing else reads, so that a chain
    /// needs memory for only one constant.
    #[test]
    fn inputs_that_a_folded_node_frees_count_for_its_outputs() {
        const BYTES: u64 = 48 << 20;
        let mut folding = Folding::beside(0);
        let value = Tensor::zero_of(ElementType::U8, &[BYTES as usize]).unwrap();
        let slot = Slot(1);
        folding.add_reader(slot);
        folding.count(slot, &value);
        assert_eq!(folding.limit(&[]), MORE_BYTES - BYTES);
        assert_eq!(folding.limit(&[slot]), MORE_BYTES);
        folding.add_reader(slot);
        assert_eq!(folding.limit(&[slot]), MORE_BYTES - BYTES);
        assert_eq!(folding.limit(&[slot, slot]), MORE_BYTES);
    }
}
