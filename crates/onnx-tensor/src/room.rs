//! The memory budget of the values of all runs.

use std::sync::{
    LazyLock,
    atomic::{AtomicU64, Ordering},
};

use system_memory::memory_limit;

use crate::prelude::*;

use crate::{faults::NoRoom, size};

/// Bytes that a run reserves at a time, so that small runs do not contend for one counter.
const STEP: u64 = 16 << 20;

/// The memory budget of this process.
static ALL: LazyLock<Total> =
    LazyLock::new(|| Total::new(memory_limit().map_or(u64::MAX, |limit| limit / 8 * 3)));

#[derive(Debug)]
struct Total {
    limit: u64,
    taken: AtomicU64,
}

impl Total {
    const fn new(limit: u64) -> Self {
        Self {
            limit,
            taken: AtomicU64::new(0),
        }
    }

    fn take(&self, bytes: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|&taken| taken <= self.limit);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }
}

/// The memory of one run: the bytes of its values, and the bytes reserved for further values.
#[derive(Debug)]
pub struct Room<'t> {
    total: &'t Total,
    taken: u64,
    held: u64,
}

impl Default for Room<'static> {
    fn default() -> Self {
        Self::new()
    }
}

impl Room<'static> {
    /// Creates the account of a run in the budget of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::of(&ALL)
    }
}

impl<'t> Room<'t> {
    fn of(total: &'t Total) -> Self {
        Self {
            total,
            taken: 0,
            held: 0,
        }
    }

    /// Reserves memory for values that are allocated next.
    ///
    /// # Errors
    /// Returns [`NoRoom`] if all runs together would exceed the budget.
    pub fn ask(&mut self, bytes: u64) -> Result<()> {
        let wanted = self.held.saturating_add(bytes);
        let Some(missing) = wanted.checked_sub(self.taken).filter(|&missing| missing > 0) else {
            return Ok(());
        };
        let step = missing.checked_next_multiple_of(STEP).unwrap_or(missing);
        for bytes in [step, missing] {
            if self.total.take(bytes) {
                self.taken += bytes;
                return Ok(());
            }
        }
        Err(NoRoom(format!(
            "the values of this run would take {}, and all runs together may take {}",
            size::gib(wanted),
            size::gib(self.total.limit)
        ))
        .into())
    }

    /// Counts `bytes` bytes of an existing value.
    pub fn hold(&mut self, bytes: u64) {
        self.held = self.held.saturating_add(bytes);
    }

    /// Subtracts `bytes` bytes of a dropped value.
    pub fn release(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.total.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_share_what_there_is_and_give_it_back() {
        let total = Total::new(100 << 20);
        let (mut one, mut other) = (Room::of(&total), Room::of(&total));
        assert!(one.ask(1).is_ok());
        assert_eq!(total.taken.load(Ordering::Relaxed), STEP);
        one.hold(60 << 20);
        assert!(one.ask(1).is_ok(), "what was not asked for counts too");
        assert!(other.ask(50 << 20).is_err());
        assert!(other.ask(36 << 20).is_ok(), "the last bytes, less than a step");
        assert!(other.ask(u64::MAX).is_err());
        one.release(60 << 20);
        drop((one, other));
        assert_eq!(total.taken.load(Ordering::Relaxed), 0);
    }
}
