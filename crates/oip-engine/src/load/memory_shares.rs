//! Estimates the memory that each of several concurrent loads takes.

use std::collections::BTreeMap;

use oip_model::private_memory;
use parking_lot::Mutex;

/// Splits the memory growth of the process evenly among the concurrent loads, so that the shares add up to
/// the growth.
#[derive(Default)]
pub(crate) struct MemoryShares(Mutex<Shares>);

#[derive(Default)]
struct Shares {
    /// Memory in use when a load last began or ended; `None` if unknown.
    last: Option<i64>,
    /// The share of each running load, keyed by load number.
    running: BTreeMap<u64, i64>,
    next: u64,
}

/// A running load. Dropping the value ends the load.
pub(crate) struct Share<'a> {
    of: &'a MemoryShares,
    load: u64,
}

impl Share<'_> {
    /// Ends the load. Returns the approximate memory that the load took, in bytes; `None` if unknown.
    pub(crate) fn end(self) -> Option<u64> {
        self.of.with(|shares, now| shares.end(self.load, now))
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.of.with(|shares, now| shares.end(self.load, now));
    }
}

impl MemoryShares {
    /// Begins a load, which runs until the returned share ends or is dropped.
    pub(crate) fn begin(&self) -> Share<'_> {
        let load = self.with(Shares::begin);
        Share { of: self, load }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Shares, Option<i64>) -> T) -> T {
        let mut shares = self.0.lock();
        let now = private_memory().and_then(|bytes| i64::try_from(bytes).ok());
        change(&mut shares, now)
    }
}

impl Shares {
    fn begin(&mut self, now: Option<i64>) -> u64 {
        self.split(now);
        let load = self.next;
        self.next += 1;
        self.running.insert(load, 0);
        load
    }

    fn end(&mut self, load: u64, now: Option<i64>) -> Option<u64> {
        self.split(now);
        let share = self.running.remove(&load)?;
        now.map(|_| u64::try_from(share).unwrap_or(0))
    }

    /// Adds the memory growth since the last begin or end of a load to the shares of the running loads.
    fn split(&mut self, now: Option<i64>) {
        let before = std::mem::replace(&mut self.last, now);
        let (Some(before), Some(now), Ok(loads @ 1..)) = (before, now, i64::try_from(self.running.len()))
        else {
            return;
        };
        let each = (now - before) / loads;
        for share in self.running.values_mut() {
            *share += each;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grew_is_split_among_those_that_run() {
        let mut shares = Shares::default();
        let first = shares.begin(Some(1000));
        let second = shares.begin(Some(1100));
        // Before the third load begins, the first two share the growth of 200 bytes. After that, 60 bytes are
        // freed.
        let third = shares.begin(Some(1300));
        assert_eq!(shares.end(third, Some(1240)), Some(0));
        assert_eq!(shares.end(first, Some(1240)), Some(180));
        assert_eq!(shares.end(second, Some(1540)), Some(380));
        // Memory growth between loads is not attributed to a load.
        let alone = shares.begin(Some(5000));
        assert_eq!(shares.end(alone, Some(5007)), Some(7));
        let unknown = shares.begin(None);
        assert_eq!(shares.end(unknown, None), None);
    }
}
