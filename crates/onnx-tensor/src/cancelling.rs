//! Cooperative cancellation: long operators check whether their request was cancelled.

use std::{
    cell::RefCell,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use crate::prelude::*;

use crate::{
    threads,
    time_limit::{self, TimeLimit},
};

/// Tells operators whether their run should stop: its request was cancelled, or its deadline has passed.
pub trait Cancellation: Send + Sync {
    /// Returns whether the run should stop.
    fn is_cancelled(&self) -> bool;
}

thread_local! {
    static TOKEN: RefCell<Option<Arc<dyn Cancellation>>> = const { RefCell::new(None) };
}

/// Sets the cancellation token of this thread until the returned value is dropped.
pub fn start(token: Arc<dyn Cancellation>) -> Run {
    let outer = TOKEN.replace(Some(token));
    Run { outer }
}

/// Guard of [`start`]: restores the thread's earlier token when dropped.
#[must_use]
pub struct Run {
    outer: Option<Arc<dyn Cancellation>>,
}

impl Drop for Run {
    fn drop(&mut self) {
        TOKEN.set(self.outer.take());
    }
}

/// The error that ends a cancelled run.
#[derive(Debug)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cancelled")
    }
}

impl std::error::Error for Cancelled {}

/// Returns whether an error comes from a cancelled run.
pub fn is_cancelled(error: &Error) -> bool {
    error
        .chain()
        .any(<dyn std::error::Error + 'static>::is::<Cancelled>)
}

/// Number of steps between two checks of the token. A step takes some nanoseconds.
const STEPS: u64 = 1 << 18;

/// Number of elements that an operator processes between two calls of [`Pace::spend`]. The number is large
/// enough that the cost of the calls is negligible.
pub const PART: usize = 1 << 14;

/// Counts the steps of an operator, so that it stops soon after a cancellation.
#[derive(Debug, Default)]
pub struct Pace {
    steps: u64,
}

impl Pace {
    /// Counts `steps` steps, done or about to be done, and checks the token from time to time.
    ///
    /// # Errors
    /// Returns [`Cancelled`] if the request was cancelled or its deadline has passed, and
    /// [`OutOfTime`](crate::faults::OutOfTime) if constant folding has used up the time for preparing the
    /// model.
    pub fn spend(&mut self, steps: u64) -> Result<()> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps < STEPS {
            return Ok(());
        }
        self.steps = 0;
        check_all()
    }

    /// Calls `run` for consecutive parts of `elements`.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn over<T>(&mut self, elements: &mut [T], mut run: impl FnMut(&mut [T])) -> Result<()> {
        for part in elements.chunks_mut(PART) {
            self.spend(part.len() as u64)?;
            run(part);
        }
        Ok(())
    }

    /// Calls `run` for corresponding parts of two slices.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn pairs<A, B>(
        &mut self,
        from: &[A],
        to: &mut [B],
        mut run: impl FnMut(&[A], &mut [B]),
    ) -> Result<()> {
        for (from, to) in from.chunks(PART).zip(to.chunks_mut(PART)) {
            self.spend(from.len() as u64)?;
            run(from, to);
        }
        Ok(())
    }

    /// Applies `function` to each element, and returns the results.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn map<'f, A, B>(&mut self, from: &'f [A], function: impl Fn(&'f A) -> B) -> Result<Vec<B>> {
        let mut made = Vec::with_capacity(from.len());
        for part in from.chunks(PART) {
            self.spend(part.len() as u64)?;
            made.extend(part.iter().map(&function));
        }
        Ok(made)
    }
}

/// Calls `work` once per item, on this thread and on idle ones. All of these threads stop when this thread's
/// run is cancelled.
///
/// # Errors
/// Returns the first error of `work`, which also stops the other threads.
pub fn in_parts<I: Send>(items: Vec<I>, work: impl Fn(I, &mut Pace) -> Result<()> + Sync) -> Result<()> {
    let limits = Limits::of_this_thread();
    threads::for_each(items, |item| {
        let _here = limits.set();
        work(item, &mut Pace::default())
    })
}

/// The token and the time limit of a thread, which its helper threads also obey.
struct Limits {
    token: Option<Arc<dyn Cancellation>>,
    end: Option<Instant>,
}

impl Limits {
    #[inline(never)]
    fn of_this_thread() -> Self {
        Self {
            token: TOKEN.with_borrow(Clone::clone),
            end: time_limit::end(),
        }
    }

    /// Sets the token and the time limit on this thread until the returned value is dropped.
    #[inline(never)]
    fn set(&self) -> LimitsOfThread {
        LimitsOfThread {
            _run: self.token.clone().map(start),
            _limit: time_limit::until(self.end),
        }
    }
}

struct LimitsOfThread {
    _run: Option<Run>,
    _limit: TimeLimit,
}

impl onnx_gemm::Pace for Pace {
    type Stopped = Error;

    fn spend(&mut self, steps: u64) -> Result<()> {
        Self::spend(self, steps)
    }
}

/// Checks the cancellation token and the time limit of this thread.
///
/// # Errors
/// Returns the errors of [`Pace::spend`].
pub fn check_all() -> Result<()> {
    check()?;
    time_limit::check()
}

/// Checks the cancellation token of this thread.
///
/// # Errors
/// Returns [`Cancelled`] if the request was cancelled or its deadline has passed.
pub fn check() -> Result<()> {
    let is_cancelled = TOKEN.with_borrow(|token| token.as_ref().is_some_and(|token| token.is_cancelled()));
    match is_cancelled {
        true => Err(Cancelled.into()),
        false => Ok(()),
    }
}

/// A [`Cancellation`] that another thread sets.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// Cancels the runs that use this flag.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Cancellation for Flag {
    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Calls `run` as if its request were cancelled, for tests.
pub fn while_cancelled<T>(run: impl FnOnce() -> T) -> T {
    let token = Arc::new(Flag::default());
    token.cancel();
    let _run = start(token);
    run()
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, time::Duration};

    use super::*;

    /// All parts of a split run are at work when it is cancelled, and all of them end.
    #[test]
    fn a_cancelled_run_ends_on_all_its_threads() {
        const PARTS: usize = 3;
        let threads: &'static threads::Threads = Box::leak(Box::new(threads::Threads::new(PARTS)));
        let _split = threads.start(0);
        let until = Instant::now() + Duration::from_secs(60);
        let [begun, ended] = [(); 2].map(|()| AtomicUsize::new(0));
        let token = Arc::new(Flag::default());
        let run = start(token.clone());
        let outcome = in_parts(vec![(); 100], |(), pace| {
            if begun.fetch_add(1, Ordering::Relaxed) + 1 == PARTS {
                token.cancel();
            }
            let stopped = loop {
                let spent = pace.spend(STEPS);
                if spent.is_err() || Instant::now() > until {
                    break spent;
                }
            };
            ended.fetch_add(1, Ordering::Relaxed);
            stopped
        });
        assert!(outcome.is_err_and(|error| is_cancelled(&error)));
        assert_eq!([begun, ended].map(AtomicUsize::into_inner), [PARTS; 2]);
        drop(run);
        // The threads do not keep the token.
        let _next = start(Arc::new(Flag::default()));
        assert!(in_parts(vec![(); 100], |(), pace| pace.spend(STEPS)).is_ok());
    }

    #[test]
    fn steps_end_with_their_run() {
        let is_ended = || Pace::default().spend(STEPS).is_err();
        assert!(!is_ended());
        let [outer, inner] = [(); 2].map(|()| Arc::new(Flag::default()));
        let run = start(outer.clone());
        {
            let _inner = start(inner.clone());
            inner.cancel();
            assert!(is_ended());
            let mut pace = Pace::default();
            assert!(pace.spend(STEPS - 1).is_ok(), "it looks now and then");
            assert!(pace.spend(1).is_err() && pace.spend(1).is_ok());
        }
        assert!(!is_ended());
        outer.cancel();
        assert!(is_ended());
        drop(run);
        assert!(!is_ended());
    }
}
