//! The names of models, kept for a moment.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The names of all models, in order, as they were a moment ago: clients that ask for models that do not exist cost at most one
/// list a second, whatever their number.
#[derive(Default)]
pub(crate) struct ModelNames(Mutex<Option<(Instant, Arc<[String]>)>>);

impl ModelNames {
    const FRESH: Duration = Duration::from_secs(1);

    /// The names, if they are not too old.
    pub(crate) fn fresh(&self) -> Option<Arc<[String]>> {
        let kept = self.kept();
        let kept = kept.as_ref().filter(|(when, _)| when.elapsed() < Self::FRESH);
        kept.map(|(_, names)| names.clone())
    }

    /// Keeps names that were just read.
    pub(crate) fn keep(&self, names: Arc<[String]>) {
        *self.kept() = Some((Instant::now(), names));
    }

    fn kept(&self) -> MutexGuard<'_, Option<(Instant, Arc<[String]>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
