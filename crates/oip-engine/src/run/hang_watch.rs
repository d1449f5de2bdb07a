//! Counts the threads that do not return from their model.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use oip_model::CancelToken;
use parking_lot::Mutex;

/// Detects threads that hang in their model.
///
/// A thread cannot be killed. If a thread has not returned from the model some time after its batch was
/// abandoned, it counts as lost until it returns. There is no watchdog thread; the state is computed on
/// demand.
pub(crate) struct HangWatch {
    slots: Vec<Mutex<Option<Running>>>,
    /// Number of threads in the model.
    inside: AtomicUsize,
    patience: Duration,
    start: Instant,
    /// Time of the last check in milliseconds since `start`, and the number of lost threads at that time.
    looked: AtomicU64,
    lost: AtomicUsize,
}

/// A running batch.
struct Running {
    cancel: CancelToken,
    /// Time at which the watch noticed that no client waits for the batch.
    given_up: Option<Instant>,
    is_lost: bool,
}

impl HangWatch {
    /// Creates a watch for `threads` threads, each of which may continue an abandoned batch for `patience`.
    pub(crate) fn new(threads: usize, patience: Duration) -> Self {
        Self {
            slots: (0..threads).map(|_| Mutex::default()).collect(),
            inside: AtomicUsize::new(0),
            patience,
            start: Instant::now(),
            looked: AtomicU64::new(0),
            lost: AtomicUsize::new(0),
        }
    }

    /// Returns the number of threads.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Records that a thread enters the model.
    pub(crate) fn begin(&self, slot: usize, cancel: &CancelToken) {
        let before = self.slots[slot].lock().replace(Running {
            cancel: cancel.clone(),
            given_up: None,
            is_lost: false,
        });
        self.inside
            .fetch_add(usize::from(before.is_none()), Ordering::Relaxed);
    }

    /// Records that a thread has returned from the model. Returns whether it counted as lost.
    pub(crate) fn end(&self, slot: usize) -> bool {
        let running = self.slots[slot].lock().take();
        self.inside
            .fetch_sub(usize::from(running.is_some()), Ordering::Relaxed);
        let was_lost = running.is_some_and(|running| running.is_lost);
        if was_lost {
            self.lost.fetch_sub(1, Ordering::Relaxed);
        }
        was_lost
    }

    /// Returns the number of lost threads; the number may be a few milliseconds old. Does not read the clock
    /// while no thread is in the model.
    pub(crate) fn recently_lost(&self, now: impl FnOnce() -> Instant) -> usize {
        const INTERVAL: u64 = 5;
        if self.inside.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let now = now();
        let time = now.saturating_duration_since(self.start).as_millis() as u64;
        let looked = self.looked.load(Ordering::Relaxed);
        if time >= looked + INTERVAL {
            self.looked.store(time, Ordering::Relaxed);
            self.look(now);
        }
        self.lost.load(Ordering::Relaxed)
    }

    /// Checks all threads and returns the number of lost ones.
    pub(crate) fn look(&self, now: Instant) -> usize {
        for slot in &self.slots {
            if let Some(running) = &mut *slot.lock()
                && !running.is_lost
                && running.cancel.is_cancelled()
            {
                let since = *running.given_up.get_or_insert(now);
                running.is_lost = now.saturating_duration_since(since) >= self.patience;
                self.lost
                    .fetch_add(usize::from(running.is_lost), Ordering::Relaxed);
            }
        }
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_lost_some_time_after_all_have_given_up_and_until_they_come_back() {
        let watch = HangWatch::new(2, Duration::from_secs(5));
        let [one, other] = [CancelToken::new(None), CancelToken::new(None)];
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        watch.begin(0, &CancelToken::all_of(&[one.clone(), other.clone()]));
        watch.begin(1, &CancelToken::new(None));
        one.cancel();
        assert_eq!(watch.look(after(100)), 0, "somebody waits still");
        other.cancel();
        assert_eq!([watch.look(after(100)), watch.look(after(104))], [0, 0]);
        assert_eq!([watch.look(after(105)), watch.look(after(106))], [1, 1]);
        assert!(watch.end(0));
        assert!(!watch.end(1));
        assert_eq!(watch.recently_lost(|| after(107)), 0);
        // No thread is in the model.
        watch.end(1);
        assert_eq!(watch.recently_lost(|| unreachable!()), 0);
        watch.begin(1, &one);
        assert_eq!(
            [200, 205].map(|seconds| watch.recently_lost(|| after(seconds))),
            [0, 1]
        );
    }
}
