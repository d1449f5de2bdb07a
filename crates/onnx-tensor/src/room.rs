//! The memory budget of the values of all runs.
//!
//! A run reserves the bytes of a value before the value is created. If only the node's kernel can determine
//! the size, the kernel reserves them through [`size::admit_shape`](crate::size::admit_shape) and
//! [`size::admit_texts`](crate::size::admit_texts), which charge the account of the run on their thread
//! ([`Room::during`]).

use std::{
    cell::RefCell,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use machine_memory::memory_limit;

use crate::prelude::*;

use crate::faults::{NoRoom, gib};

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

/// The memory account of one run: the bytes of its values, and the bytes reserved for further values.
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

    /// Creates an account with a separate budget of `limit` bytes, for tests. The budget is leaked.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn of_limit(limit: u64) -> Self {
        Self::of(Box::leak(Box::new(Total::new(limit))))
    }

    /// Calls `run`, the kernel of a node. While it runs, [`ask_for_more`] on this thread reserves memory
    /// from this account. So does [`ask_for_shape`] if `shapes_are_unknown`, that is, if no memory is
    /// reserved for the outputs.
    pub fn during<T>(&mut self, shapes_are_unknown: bool, run: impl FnOnce() -> T) -> T {
        /// Ends the kernel's access to the account, even after a panic.
        struct Reset(Option<NodeAccount>);
        impl Drop for Reset {
            fn drop(&mut self) {
                NODE.set(self.0.take());
            }
        }
        let lent = NodeAccount {
            room: std::mem::take(self),
            shapes_are_unknown,
            asked: 0,
        };
        let reset = Reset(NODE.replace(Some(lent)));
        let result = run();
        if let Some(NodeAccount { room, asked, .. }) = NODE.take() {
            *self = room;
            self.release(asked);
        }
        drop(reset);
        result
    }
}

thread_local! {
    /// The memory account that the node on this thread charges.
    static NODE: RefCell<Option<NodeAccount>> = const { RefCell::new(None) };
}

/// The account of a run while one of its kernels runs.
struct NodeAccount {
    room: Room<'static>,
    shapes_are_unknown: bool,
    /// Bytes that the kernel has reserved.
    asked: u64,
}

impl NodeAccount {
    fn ask(&mut self, bytes: u64) -> Result<()> {
        self.room.ask(bytes)?;
        self.room.hold(bytes);
        self.asked = self.asked.saturating_add(bytes);
        Ok(())
    }
}

/// Reserves memory for an output whose size only the kernel can determine. Does nothing outside of kernels,
/// and in kernels for whose outputs memory is already reserved.
///
/// # Errors
/// Returns [`NoRoom`] if all runs together would exceed the budget.
pub fn ask_for_shape(bytes: u64) -> Result<()> {
    NODE.with_borrow_mut(|lent| match lent {
        Some(lent) if lent.shapes_are_unknown => lent.ask(bytes),
        _ => Ok(()),
    })
}

/// Reserves memory for what a kernel allocates beyond its outputs of known shape: strings, and intermediate
/// values. Does nothing outside of kernels.
///
/// # Errors
/// Returns [`NoRoom`] if all runs together would exceed the budget.
pub fn ask_for_more(bytes: u64) -> Result<()> {
    NODE.with_borrow_mut(|lent| lent.as_mut().map_or(Ok(()), |lent| lent.ask(bytes)))
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
            gib(wanted),
            gib(self.total.limit)
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

    #[test]
    fn kernels_ask_for_sizes_that_only_they_know() {
        let mut room = Room::of_limit(100);
        room.hold(20);
        assert!(ask_for_more(1000).is_ok(), "no kernel runs");
        let made = room.during(true, || {
            assert!(ask_for_shape(50).is_ok() && ask_for_shape(31).is_err());
            ask_for_more(30)
        });
        assert!(made.is_ok() && room.ask(81).is_err() && room.ask(80).is_ok());
        room.during(false, || {
            assert!(ask_for_shape(1000).is_ok(), "the node has asked");
            assert!(ask_for_more(81).is_err());
        });
        let panics = || room.during(true, || std::panic::resume_unwind(Box::new("a bug")));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(ask_for_more(1000).is_ok());
    }
}
