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

/// A token that operators check to see whether their run should stop: its request was cancelled, or its
/// deadline has passed.
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

/// Number of steps between two checks of the token. A step takes a few nanoseconds.
const STEPS: u64 = 1 << 16;

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
    #[inline]
    pub fn spend(&mut self, steps: u64) -> Result<()> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps < STEPS {
            return Ok(());
        }
        self.check()
    }

    #[cold]
    fn check(&mut self) -> Result<()> {
        self.steps = 0;
        check_all()
    }

    /// Calls `run` for consecutive chunks of `elements`.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    #[inline(always)]
    pub fn over<T>(&mut self, elements: &mut [T], mut run: impl FnMut(&mut [T])) -> Result<()> {
        let mut rest = elements;
        while !rest.is_empty() {
            let (part, others) = rest.split_at_mut(rest.len().min(PART));
            self.spend(part.len() as u64)?;
            run(part);
            rest = others;
        }
        Ok(())
    }

    /// Calls `run` for corresponding chunks of two slices, up to the end of the shorter one.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    #[inline(always)]
    pub fn pairs<A, B>(
        &mut self,
        mut from: &[A],
        mut to: &mut [B],
        mut run: impl FnMut(&[A], &mut [B]),
    ) -> Result<()> {
        loop {
            let count = from.len().min(to.len()).min(PART);
            if count == 0 {
                return Ok(());
            }
            let (from_part, from_rest) = from.split_at(count);
            let (to_part, to_rest) = to.split_at_mut(count);
            self.spend(count as u64)?;
            run(from_part, to_part);
            (from, to) = (from_rest, to_rest);
        }
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

    /// Copies a slice into a vector.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn copy<T: Clone>(&mut self, from: &[T]) -> Result<Vec<T>> {
        let mut made = Vec::with_capacity(from.len());
        self.append(from, &mut made)?;
        Ok(made)
    }

    /// Appends a copy of a slice to a vector.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn append<T: Clone>(&mut self, from: &[T], to: &mut Vec<T>) -> Result<()> {
        for part in from.chunks(PART) {
            self.spend(part.len() as u64)?;
            to.extend_from_slice(part);
        }
        Ok(())
    }

    /// Copies bytes; a step is a word of 8 bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn copy_bytes(&mut self, from: &[u8], to: &mut [u8]) -> Result<()> {
        self.spend(1)?;
        for (from, to) in from.chunks(8 * PART).zip(to.chunks_mut(8 * PART)) {
            self.spend(from.len() as u64 / 8)?;
            to.copy_from_slice(from);
        }
        Ok(())
    }

    /// Returns `count` copies of an element.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn repeat<T: Clone>(&mut self, element: &T, count: usize) -> Result<Vec<T>> {
        let mut made = Vec::with_capacity(count);
        while made.len() < count {
            let end = count.min(made.len() + PART);
            self.spend((end - made.len()) as u64)?;
            made.resize(end, element.clone());
        }
        Ok(made)
    }

    /// Returns the results of `function` for the indices below `count`. Unlike in [`Pace::collect`], the loop
    /// is vectorized if `function` is simple.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn indices<T>(&mut self, count: usize, function: impl Fn(usize) -> T) -> Result<Vec<T>> {
        let mut made = Vec::with_capacity(count);
        for first in (0..count).step_by(PART) {
            let end = count.min(first + PART);
            self.spend((end - first) as u64)?;
            made.extend((first..end).map(&function));
        }
        Ok(made)
    }

    /// Collects the items of an iterator.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn collect<T>(&mut self, items: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
        let mut items = items.into_iter();
        let mut made = Vec::with_capacity(items.size_hint().0);
        loop {
            let before = made.len();
            made.extend(items.by_ref().take(PART));
            if made.len() == before {
                return Ok(made);
            }
            self.spend((made.len() - before) as u64)?;
        }
    }
}

/// Calls `work` once per item, on this thread and on idle ones. All of these threads stop when this thread's
/// run is cancelled.
///
/// # Errors
/// Returns the first error of `work`, which also stops the other threads.
pub fn in_parts<I: Send>(items: Vec<I>, work: impl Fn(I, &mut Pace) -> Result<()> + Sync) -> Result<()> {
    let limits = ThreadLimits::of_this_thread();
    threads::for_each(items, |item| {
        let _here = limits.set();
        work(item, &mut Pace::default())
    })
}

/// The token and the time limit of a thread, which also apply to its helper threads.
struct ThreadLimits {
    token: Option<Arc<dyn Cancellation>>,
    end: Option<Instant>,
}

impl ThreadLimits {
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

    #[inline]
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

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, time::Duration};

    use super::*;

    /// Cancels a run while all of its parts are running, and checks that all of them stop.
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
        // The helper threads have not kept the cancelled token.
        let _next = start(Arc::new(Flag::default()));
        assert!(in_parts(vec![(); 100], |(), pace| pace.spend(STEPS)).is_ok());
    }

    #[test]
    fn parts_are_joined_in_order() -> Result<()> {
        let numbers: Vec<usize> = (0..2 * PART + 1).collect();
        let mut pace = Pace::default();
        assert!(pace.copy(&numbers)? == numbers);
        assert!(pace.collect(0..numbers.len())? == numbers);
        assert!(pace.indices(numbers.len(), |at| at)? == numbers);
        assert!(pace.indices(0, |at| at)?.is_empty());
        let mut appended = vec![7];
        pace.append(&numbers, &mut appended)?;
        assert!(appended[0] == 7 && appended[1..] == numbers);
        assert!(pace.repeat(&7u8, 2 * PART + 1)? == vec![7; 2 * PART + 1]);
        let bytes = pace.map(&numbers, |&number| number as u8)?;
        let mut copied = vec![0; bytes.len()];
        pace.copy_bytes(&bytes, &mut copied)?;
        assert!(copied == bytes);
        pace.pairs(&bytes[..3], &mut copied[5..], |from, to| to.copy_from_slice(from))?;
        assert!(copied[5..8] == bytes[..3] && copied[8..] == bytes[8..]);
        Ok(())
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
