//! Runs jobs on several threads.

use std::{
    num::NonZeroUsize,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
};

use fmt_core::Error;

/// Runs all jobs, on the calling thread and `threads - 1` others. After an error, jobs that have not started
/// are skipped. Of several errors, the one nearest to the start of the file is returned.
pub(crate) fn for_each<J: Send>(
    jobs: Vec<J>,
    threads: usize,
    work: impl Fn(J) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let threads = threads.min(jobs.len());
    let jobs = Mutex::new(jobs.into_iter());
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let work = || {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(job) = job else { return };
            if let Err(error) = work(job) {
                // Removes the remaining jobs from the queue.
                jobs.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .by_ref()
                    .for_each(drop);
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                if failure
                    .as_ref()
                    .is_none_or(|earlier| error.byte() < earlier.byte())
                {
                    *failure = Some(error);
                }
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If a thread cannot be started, the calling thread runs its jobs.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Returns the default number of threads: one per CPU, at most 16.
#[must_use]
pub fn default_threads() -> usize {
    /// More threads do not increase memory bandwidth.
    const MOST: usize = 16;
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        thread::available_parallelism()
            .map_or(1, NonZeroUsize::get)
            .min(MOST)
    })
}
