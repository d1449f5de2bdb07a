//! A short-lived cache of model names.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

/// A cached sorted list of all model names. It limits requests for unknown models to one listing per second,
/// across all clients.
#[derive(Default)]
pub(crate) struct ModelNames(Mutex<Option<(Instant, Arc<[String]>)>>);

impl ModelNames {
    const FRESH: Duration = Duration::from_secs(1);

    /// Returns the cached names, unless they are too old.
    pub(crate) fn fresh(&self) -> Option<Arc<[String]>> {
        let kept = self.kept();
        let kept = kept.as_ref().filter(|(when, _)| when.elapsed() < Self::FRESH);
        kept.map(|(_, names)| names.clone())
    }

    /// Caches names that were just read.
    pub(crate) fn keep(&self, names: Arc<[String]>) {
        *self.kept() = Some((Instant::now(), names));
    }

    fn kept(&self) -> MutexGuard<'_, Option<(Instant, Arc<[String]>)>> {
        self.0.lock()
    }
}
