//! Looks up tensors by name in a bounded number of steps, even if names were chosen to collide.

use crate::layout::tensor_id;

/// Maps the hashes of names to tensor indices.
///
/// The map is a sorted list rather than a hash table: it takes 16 bytes per tensor, files that this crate
/// writes are already in this order, and colliding names cost `log2 n` comparisons rather than a linear scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    /// Name hashes with tensor indices, sorted by hash, then by name, then by index.
    sorted: Vec<(u64, u32)>,
}

impl NameTable {
    /// Creates the table; `name` returns the name of each index.
    pub(crate) fn new<'a>(count: u32, name: impl Fn(u32) -> &'a str) -> Self {
        let mut sorted: Vec<(u64, u32)> = (0..count)
            .map(|number| (tensor_id(name(number)), number))
            .collect();
        let by_hash = |a: &(u64, u32), b: &(u64, u32)| a.0.cmp(&b.0);
        let by_name = |a: &(u64, u32), b: &(u64, u32)| name(a.1).cmp(name(b.1)).then(a.1.cmp(&b.1));
        if !sorted.is_sorted_by(|a, b| a.0 < b.0) {
            sorted.sort_unstable_by(|a, b| by_hash(a, b).then_with(|| by_name(a, b)));
        }
        Self { sorted }
    }

    /// Returns the index of the first tensor called `wanted`.
    pub(crate) fn find<'a>(&self, wanted: &str, name: impl Fn(u32) -> &'a str) -> Option<u32> {
        let hash = tensor_id(wanted);
        // This search compares only hashes, so it compiles to code without branches. Few names share a hash
        // unless they were chosen to collide.
        let same_hash = &self.sorted[self.sorted.partition_point(|(found, _)| *found < hash)..];
        let number = match same_hash {
            [(first, number), rest @ ..]
                if *first == hash && rest.first().is_none_or(|next| next.0 != hash) =>
            {
                *number
            }
            [(first, _), ..] if *first == hash => {
                let is_before = |(found, number): &(u64, u32)| *found == hash && name(*number) < wanted;
                let (_, number) = *same_hash.get(same_hash.partition_point(is_before))?;
                number
            }
            _ => return None,
        };
        (name(number) == wanted).then_some(number)
    }

    /// Returns the indices of two tensors with the same name, if there are any.
    pub(crate) fn duplicate<'a>(&self, name: impl Fn(u32) -> &'a str) -> Option<(u32, u32)> {
        let is_same = |pair: &&[(u64, u32)]| pair[0].0 == pair[1].0 && name(pair[0].1) == name(pair[1].1);
        let pair = self.sorted.windows(2).find(is_same)?;
        Some((pair[0].1, pair[1].1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_the_first_of_two_wins() {
        let names = ["c", "a", "b", "a", ""];
        let name = |number: u32| names[number as usize];
        let table = NameTable::new(5, name);
        assert_eq!(table.find("a", name), Some(1));
        assert_eq!(table.find("b", name), Some(2));
        assert_eq!(table.find("", name), Some(4));
        assert_eq!(table.find("d", name), None);
        assert_eq!(table.duplicate(name), Some((1, 3)));
        assert_eq!(NameTable::new(3, name).duplicate(name), None);
        assert_eq!(NameTable::default().find("a", name), None);
    }

    #[test]
    fn names_with_the_same_hash_are_told_apart() {
        let names = [
            "GReLUrM4wMqfg9yzV3KQ",
            "a",
            "8yn0iYCKYHlIj4-BwPqk",
            "b",
            "GReLUrM4wMqfg9yzV3KQ",
        ];
        let name = |number: u32| names[number as usize];
        assert_eq!(tensor_id(names[0]), tensor_id(names[2]));
        let table = NameTable::new(4, name);
        assert_eq!(
            (table.find(names[0], name), table.find(names[2], name)),
            (Some(0), Some(2))
        );
        assert_eq!(table.duplicate(name), None);
        let table = NameTable::new(2, name);
        assert_eq!(
            (table.find(names[0], name), table.find(names[2], name)),
            (Some(0), None)
        );
        let table = NameTable::new(5, name);
        assert_eq!(
            (table.find(names[0], name), table.duplicate(name)),
            (Some(0), Some((0, 4)))
        );
    }
}
