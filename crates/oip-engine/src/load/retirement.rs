//! Ends versions that are no longer in service.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::versions::served_version::ServedVersion;

/// Ends each version after its last request, on a separate thread.
#[derive(Default)]
pub(crate) struct Retirement {
    ending: Mutex<usize>,
    changed: Condvar,
    is_hurried: AtomicBool,
}

impl Retirement {
    /// How long to wait for a thread that hangs in its model; practically forever.
    const PATIENCE: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Ends a version that new requests can no longer find, and then calls `then`.
    pub(crate) fn retire(self: &Arc<Self>, served: Arc<ServedVersion>, then: impl FnOnce() + Send + 'static) {
        *self.lock() += 1;
        let this = self.clone();
        let then = Arc::new(Mutex::new(Some(then)));
        let take_then = {
            let then = then.clone();
            move || then.lock().take()
        };
        let end = move || {
            let mut pause = Duration::from_millis(1);
            // Running requests still hold a reference; new ones cannot find the version.
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
            // If no thread can be started, the version ends with its last request, and shutdown does not wait
            // for it.
            tracing::error!(%error, "cannot start a thread to unload a model");
            let then = then.lock().take();
            if let Some(then) = then {
                then();
            }
            *self.lock() -= 1;
        }
    }

    /// Waits until all versions have ended. From this call on, versions end without waiting for their running
    /// requests. Returns whether all of them ended by the deadline.
    pub(crate) fn finish(&self, deadline: Instant) -> bool {
        self.is_hurried.store(true, Ordering::Relaxed);
        let patience = deadline.saturating_duration_since(Instant::now());
        let mut ending = self.lock();
        self.changed
            .wait_while_for(&mut ending, |ending| *ending > 0, patience);
        *ending == 0
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.ending.lock()
    }
}
