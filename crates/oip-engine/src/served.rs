use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use oip_types::ModelConfig;

use crate::{instances::Instances, repository::ModelFolder};

/// A version of a model that takes requests, with what there is to know of it.
///
/// Whoever works with it holds it by an [`Arc`]; when nobody does any more, it can be ended without losing a request.
pub(crate) struct Served {
    pub(crate) instances: Instances,
    pub(crate) config: Arc<ModelConfig>,
    labels: Labels,
}

impl Served {
    pub(crate) fn new(instances: Instances, config: ModelConfig, labels: Labels) -> Self {
        Self {
            instances,
            config: Arc::new(config),
            labels,
        }
    }

    /// The names of an output's classes; empty where there are none.
    pub(crate) fn labels(&self, output: &str) -> Arc<[String]> {
        self.labels.0.get(output).cloned().unwrap_or_default()
    }
}

/// The names of classes, by outputs.
#[derive(Debug, Default)]
pub(crate) struct Labels(BTreeMap<String, Arc<[String]>>);

impl Labels {
    /// The largest file with labels that is read, in bytes.
    const MAX_BYTES: u64 = 16 << 20;

    /// Reads the files with labels that a configuration names, one label a line.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub(crate) fn read(folder: &ModelFolder, config: &ModelConfig) -> Result<Self, String> {
        let mut labels = BTreeMap::new();
        for output in config
            .output
            .iter()
            .filter(|output| !output.label_filename.is_empty())
        {
            let bytes = folder.read(&[&output.label_filename], Self::MAX_BYTES)?;
            let text = std::str::from_utf8(&bytes);
            let text = text.map_err(|_| format!("{} is not UTF-8", output.label_filename))?;
            labels.insert(output.name.clone(), text.lines().map(str::to_owned).collect());
        }
        Ok(Self(labels))
    }
}

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
    pub(crate) fn retire(self: &Arc<Self>, served: Arc<Served>, then: impl FnOnce() + Send + 'static) {
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
            served.instances.stop();
            served.instances.join(Instant::now() + Self::PATIENCE);
            drop(served);
            if let Some(then) = take_then() {
                then();
            }
            *this.lock() -= 1;
            this.changed.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("retire".to_owned()).spawn(end) {
            // What runs then ends when the last request lets go of it; only nobody waits for that.
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
