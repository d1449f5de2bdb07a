//! Progress messages of a download.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Logs the progress of a download at intervals.
pub(crate) struct Progress<'m> {
    url: &'m str,
    model: &'m str,
    of: u64,
    done: AtomicU64,
    told: Mutex<Instant>,
}

impl<'m> Progress<'m> {
    pub(crate) fn new(url: &'m str, model: &'m str, of: u64) -> Self {
        let told = Mutex::new(Instant::now());
        Self {
            url,
            model,
            of,
            done: AtomicU64::new(0),
            told,
        }
    }

    /// Returns the number of bytes that have been fetched.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    pub(crate) fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Relaxed) + bytes;
        let mut told = self.told.lock();
        if told.elapsed() >= PROGRESS_INTERVAL {
            *told = Instant::now();
            tracing::info!(
                url = self.url,
                model = self.model,
                bytes = done,
                of = self.of,
                "fetching"
            );
        }
    }
}
