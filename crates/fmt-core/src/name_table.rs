//! Looks up tensors by name in a bounded number of steps, even if names were chosen to collide.

use std::hash::{BuildHasher, RandomState};

use hashbrown::{HashTable, hash_table};

use crate::Entry;

/// Maps names to tensor indices without copying the names: 9 to 18 bytes per tensor.
///
/// Each table has its own random hash key, so an attacker cannot prepare colliding names.
///
/// ```
/// use fmt_core::NameTable;
///
/// let names = ["weight", "bias", "weight"];
/// let (table, twice) = NameTable::of(names.len(), |number| names[number as usize]);
/// assert_eq!(table.find("bias", |number| names[number as usize]), Some(1));
/// assert_eq!(twice, Some((0, 2)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    table: HashTable<Slot>,
    hasher: RandomState,
}

/// A slot of the table: the tensor's index, and half of its name's hash, so that the table can grow without
/// reading names.
#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u32,
    hash: u32,
}

impl Slot {
    /// Returns a 64-bit hash that repeats the stored 32 bits: the table uses the upper and the lower bits for
    /// different purposes.
    fn full_hash(&self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.hash)
    }
}

impl NameTable {
    /// Creates a table with capacity for `count` names, if memory allows.
    #[must_use]
    pub fn with_capacity(count: usize) -> Self {
        let mut names = Self::default();
        // If the reservation fails, the table grows as it fills.
        let _ = names.table.try_reserve(count, Slot::full_hash);
        names
    }

    /// Creates a table of the names of tensors `0..count`, at most `u32::MAX`. Of two tensors with the same
    /// name, the table contains the first. Also returns the indices of the first pair with the same name.
    pub fn of<'a>(count: usize, name: impl Fn(u32) -> &'a str) -> (Self, Option<(u32, u32)>) {
        let mut names = Self::with_capacity(count);
        let mut twice = None;
        for number in 0..u32::try_from(count).unwrap_or(u32::MAX) {
            if let Err(first) = names.insert(number, name(number), &name) {
                twice.get_or_insert((first, number));
            }
        }
        (names, twice)
    }

    /// Creates a table of the names of `entries`, like [`NameTable::of`].
    #[must_use]
    pub fn of_entries(entries: &[Entry]) -> (Self, Option<(u32, u32)>) {
        Self::of(entries.len(), |number| &*entries[number as usize].name)
    }

    /// Returns the index of the entry with this name.
    #[must_use]
    pub fn find_entry(&self, wanted: &str, entries: &[Entry]) -> Option<usize> {
        let found = self.find(wanted, |number| &*entries[number as usize].name)?;
        Some(found as usize)
    }

    fn slot(&self, number: u32, name: &str) -> Slot {
        let hash = self.hasher.hash_one(name) as u32;
        Slot { number, hash }
    }

    /// Adds the tensor with this index. `name` returns the name of any tensor that was added.
    ///
    /// # Errors
    /// Returns the index of the tensor that already has this name. In that case, nothing is added.
    pub fn insert<'a>(
        &mut self,
        number: u32,
        wanted: &str,
        name: impl Fn(u32) -> &'a str,
    ) -> Result<(), u32> {
        let slot = self.slot(number, wanted);
        let is_it = |found: &Slot| found.hash == slot.hash && name(found.number) == wanted;
        match self.table.entry(slot.full_hash(), is_it, Slot::full_hash) {
            hash_table::Entry::Occupied(found) => Err(found.get().number),
            hash_table::Entry::Vacant(vacant) => {
                vacant.insert(slot);
                Ok(())
            }
        }
    }

    /// Removes the tensor named `wanted`; called before that tensor's name changes.
    pub fn remove<'a>(&mut self, wanted: &str, name: impl Fn(u32) -> &'a str) {
        let slot = self.slot(0, wanted);
        let is_it = |found: &Slot| found.hash == slot.hash && name(found.number) == wanted;
        if let Ok(found) = self.table.find_entry(slot.full_hash(), is_it) {
            found.remove();
        }
    }

    /// Returns the index of the tensor with this name.
    #[must_use]
    pub fn find<'a>(&self, wanted: &str, name: impl Fn(u32) -> &'a str) -> Option<u32> {
        let slot = self.slot(0, wanted);
        let is_it = |found: &Slot| found.hash == slot.hash && name(found.number) == wanted;
        let found = self.table.find(slot.full_hash(), is_it)?;
        Some(found.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_the_first_of_two_stays() {
        let names = ["c", "a", "b", "a", ""];
        let name = |number: u32| names[number as usize];
        let mut table = NameTable::with_capacity(0);
        let inserted: Vec<_> = (0..5)
            .map(|number| table.insert(number, name(number), name))
            .collect();
        assert_eq!(inserted, [Ok(()), Ok(()), Ok(()), Err(1), Ok(())]);
        assert_eq!((table.find("a", name), table.find("", name)), (Some(1), Some(4)));
        assert_eq!(table.find("d", name), None);
        table.remove("a", name);
        table.remove("d", name);
        assert_eq!(table.find("a", name), None);
    }
}
