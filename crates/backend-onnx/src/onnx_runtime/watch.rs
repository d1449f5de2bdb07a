//! Terminates runs whose request is cancelled. One thread watches all runs.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
    thread,
    time::{Duration, Instant},
};

use oip_model::CancelToken;
use ort::session::RunOptions;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// How often the cancel tokens of running requests are polled. Tokens are flags without notification.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long the thread keeps polling after the last run ends, so that a busy server need not wake it for
/// every request.
const LINGER: Duration = Duration::from_millis(200);

/// Watches a run until the returned guard is dropped.
pub(super) fn watch(cancel: &CancelToken, options: &Arc<RunOptions>) -> WatchGuard {
    static WATCHER: LazyLock<Arc<Watcher>> = LazyLock::new(Watcher::start);
    let watcher = WATCHER.clone();
    let mut runs = watcher.lock();
    let id = runs.next_id;
    runs.next_id += 1;
    runs.active.insert(id, (cancel.clone(), options.clone()));
    if std::mem::take(&mut runs.is_asleep) {
        watcher.begun.notify_one();
    }
    drop(runs);
    WatchGuard { watcher, id }
}

/// A run that is watched until this value is dropped.
pub(super) struct WatchGuard {
    watcher: Arc<Watcher>,
    id: u64,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        // The watching thread terminates runs under the lock, so it cannot hit a later run with the same
        // options.
        self.watcher.lock().active.remove(&self.id);
    }
}

struct Watcher {
    runs: Mutex<Runs>,
    begun: Condvar,
}

#[derive(Default)]
struct Runs {
    next_id: u64,
    active: HashMap<u64, (CancelToken, Arc<RunOptions>)>,
    /// Whether the watching thread sleeps until it is woken.
    is_asleep: bool,
}

impl Watcher {
    fn start() -> Arc<Self> {
        let watcher = Arc::new(Self {
            runs: Mutex::default(),
            begun: Condvar::new(),
        });
        let looking = watcher.clone();
        let thread = thread::Builder::new()
            .name("onnx-watch".to_owned())
            .spawn(move || looking.look());
        // Without the watching thread, runs cannot be cancelled.
        if let Err(error) = thread {
            tracing::error!(%error, "cannot start a thread that ends cancelled runs");
        }
        watcher
    }

    fn look(&self) {
        let mut runs = self.lock();
        let mut idle_since = Instant::now();
        loop {
            if !runs.active.is_empty() {
                idle_since = Instant::now();
            } else if idle_since.elapsed() > LINGER {
                runs.is_asleep = true;
                while runs.is_asleep {
                    self.begun.wait(&mut runs);
                }
                idle_since = Instant::now();
            }
            drop(runs);
            thread::sleep(INTERVAL);
            runs = self.lock();
            for (cancel, options) in runs.active.values() {
                if cancel.is_cancelled() {
                    // If termination fails, the run continues, so the error is ignored.
                    let _ = options.terminate();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock()
    }
}
