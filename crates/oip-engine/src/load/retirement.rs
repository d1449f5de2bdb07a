//! The end of versions that are not served any more.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::run::served_version::ServedVersion;

/// Ends what is not served any more, each on a thread of its own, once its last request is answered.
#[derive(Default)]
pub(crate) struct Retirement {
    ending: Mutex<usize>,
    changed: Condvar,
    is_hurried: AtomicBool,
}

impl Retirement {
    /// How long a thread that hangs in its model is waited for; in effect for ever.
    const PATIENCE: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Ends a version that new requests cannot find any more, and then calls `then`.
    pub(crate) fn retire(self: &Arc<Self>, served: Arc<ServedVersion>, then: impl FnOnce() + Send + 'static) {
        *self.lock() += 1;
        let this = self.clone();
        let then = Arc::new(Mutex::new(Some(then)));
        let take_then = {
            let then = then.clone();
            move || then.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let end = move || {
            let mut pause = Duration::from_millis(1);
            // Those who found it before it was gone still hold it. Nobody new can.
            while Arc::strong_count(&served) > 1 && !this.is_hurried.load(Ordering::Relaxed) {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            served.stop();
            served.join(Instant::now() + Self::PATIENCE);
            drop(served);
            if let Some(then) = take_then() {
                then();
            }
            *this.lock() -= 1;
            this.changed.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("retire".to_owned()).spawn(end) {
            // Then the model ends with its last request, and nothing waits for that.
            tracing::error!(%error, "the system gave no thread to unload a model");
            let then = then.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(then) = then {
                then();
            }
            *self.lock() -= 1;
        }
    }

    /// Waits for everything to end, now without regard for those who still hold it; returns whether all did in time.
    pub(crate) fn finish(&self, deadline: Instant) -> bool {
        self.is_hurried.store(true, Ordering::Relaxed);
        let patience = deadline.saturating_duration_since(Instant::now());
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience, |ending| *ending > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
