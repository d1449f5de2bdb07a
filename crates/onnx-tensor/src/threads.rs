//! Threads within a request: operators split large work into parts, some of which idle threads compute.
//!
//! The process has one pool. The request's own thread also computes parts, and never waits for a part that
//! has not started. The number of computing threads is bounded ([`configure`]): all threads help a request
//! that runs alone, and if there are as many requests as threads, there are no helpers. The first large
//! operator creates the pool; with a limit of 1 there is none.
//!
//! Parts are disjoint blocks of a result and no sum is split, so results do not depend on the number of
//! threads.
//!
//! ```
//! use onnx_tensor::threads;
//!
//! let mut squares = vec![0.0f64; 1 << 20];
//! let _run = threads::start(0);
//! // A part of less than 100,000 elements is not worth another thread here.
//! let parts = threads::parts(squares.len() as u64, 100_000);
//! let length = squares.len().div_ceil(parts);
//! let items = squares.chunks_mut(length).enumerate().collect();
//! threads::for_each(items, |(part, squares): (usize, &mut [f64])| {
//!     for (at, square) in squares.iter_mut().enumerate() {
//!         *square = ((part * length + at) as f64).powi(2);
//!     }
//!     Ok::<(), String>(())
//! })?;
//! assert_eq!(squares[1000], 1_000_000.0);
//! # Ok::<(), String>(())
//! ```

use std::{
    cell::Cell,
    hint,
    sync::{
        LazyLock, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use rayon_core::{ThreadPool, ThreadPoolBuilder, Yield};

/// Parts per thread. If a helper begins late or is slow, the other threads compute more of the parts.
const PARTS_PER_THREAD: usize = 4;

/// Number of spin iterations before a thread sleeps until its helpers finish their last parts. Spinning takes
/// about as long as sleeping and waking.
const SPINS: u32 = 1 << 11;

/// How long a helper spins for further parts before it sleeps. Waking a helper costs about as much as a part.
/// Most nodes that are not split take less time than this.
const WATCH: Duration = Duration::from_micros(100);

/// How long helpers are paused after a run has waited for a late one, as a multiple of the time that the run
/// lost. A helper that does not start before the work is done, or stalls within a part, has lost its core to
/// another program.
const REST: u32 = 16;

/// The threads of this process.
static PROCESS: LazyLock<Threads> =
    LazyLock::new(|| Threads::new(thread::available_parallelism().map_or(1, usize::from)));

thread_local! {
    /// The current run of this thread; `None` outside of runs and within a part.
    static SHARE: Cell<Option<Share>> = const { Cell::new(None) };
}

/// Limits the number of threads of this process that compute at a time to `limit`, counting those of requests
/// and helpers. The default is [`thread::available_parallelism`]. Each helper calls `on_start` first. An
/// existing pool does not grow.
pub fn configure(limit: usize, on_start: fn()) {
    PROCESS.limit.store(limit.max(1), Ordering::Relaxed);
    // Only the first call sets `on_start`, before helpers exist.
    let _ = PROCESS.on_start.set(on_start);
}

/// Returns how many threads of this process may compute at a time.
#[must_use]
pub fn limit() -> usize {
    PROCESS.limit.load(Ordering::Relaxed)
}

/// Starts a run on this thread, which lasts until the returned value is dropped. The run uses at most `most`
/// threads; 0 means all.
///
/// Outside of a run, and within a part, work is not split.
pub fn start(most: usize) -> Run {
    PROCESS.start(most)
}

/// Returns the number of parts to split `work` units into, so that each part has at least `least` units.
/// Returns 1 if there are no helper threads.
#[inline]
#[must_use]
pub fn parts(work: u64, least: u64) -> usize {
    if work / 2 < least {
        return 1;
    }
    parts_of_large(work, least)
}

#[cold]
fn parts_of_large(work: u64, least: u64) -> usize {
    let threads = SHARE.get().map_or(1, Share::most);
    if threads == 1 {
        return 1;
    }
    let most = usize::try_from(work / least.max(1)).unwrap_or(usize::MAX);
    most.min(threads * PARTS_PER_THREAD)
}

/// Calls `work` once per item, on this thread and on idle ones.
///
/// # Errors
/// Returns the first error of `work`. Items that have not started by then are dropped.
///
/// # Panics
/// Panics if `work` panics, after all running parts have ended.
pub fn for_each<I: Send, E: Send>(items: Vec<I>, work: impl Fn(I) -> Result<(), E> + Sync) -> Result<(), E> {
    let count = items.len();
    let items = Mutex::new(items.into_iter());
    let error = Mutex::new(None);
    // The trait object lets the functions below be compiled once, instead of once per type of `work`.
    let step = || {
        let Some(item) = lock(&items).next() else {
            return false;
        };
        let Err(failed) = work(item) else {
            return true;
        };
        *lock(&items) = Vec::new().into_iter();
        lock(&error).get_or_insert(failed);
        false
    };
    match SHARE.get() {
        Some(share) if count > 1 => share.repeat(count, &step),
        _ => while step() {},
    }
    let error = error.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok(()), Err)
}

/// Computes one item. Returns whether there may be further items.
type Step<'s> = &'s (dyn Fn() -> bool + Sync);

/// Guard of a run; see [`start`]. The runs of a thread are nested.
#[derive(Debug)]
#[must_use]
pub struct Run {
    threads: &'static Threads,
    outer: Option<Share>,
}

impl Drop for Run {
    fn drop(&mut self) {
        SHARE.set(self.outer);
        self.threads.computing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread pool and its limits. Operators use the pool of the process; tests create their own.
#[derive(Debug)]
pub struct Threads {
    limit: AtomicUsize,
    on_start: OnceLock<fn()>,
    /// Number of threads that compute: the runs and their helpers.
    computing: AtomicUsize,
    /// The pool, once a run has needed it; `None` if the system could not create threads.
    pool: OnceLock<Option<ThreadPool>>,
    idle: Mutex<Idle>,
    born: Instant,
    /// Time until which no helpers are used, in nanoseconds from `born`; 0 if it has passed.
    rest: AtomicU64,
}

impl Threads {
    /// Creates a pool of at most `limit` threads, including those of requests.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit.max(1)),
            on_start: OnceLock::new(),
            computing: AtomicUsize::new(0),
            pool: OnceLock::new(),
            idle: Mutex::default(),
            born: Instant::now(),
            rest: AtomicU64::new(0),
        }
    }

    /// Returns whether the pool exists, that is, whether a run was large enough to be split.
    #[must_use]
    pub fn has_pool(&self) -> bool {
        matches!(self.pool.get(), Some(Some(_)))
    }

    /// Starts a run on these threads; see [`start`].
    pub fn start(&'static self, most: usize) -> Run {
        self.computing.fetch_add(1, Ordering::Relaxed);
        let most = if most == 0 { usize::MAX } else { most };
        let share = Share { threads: self, most };
        Run {
            threads: self,
            outer: SHARE.replace(Some(share)),
        }
    }

    fn pool(&'static self) -> Option<&'static ThreadPool> {
        let make = || {
            let on_start = self.on_start.get().copied();
            let threads = ThreadPoolBuilder::new()
                .num_threads(self.limit.load(Ordering::Relaxed) - 1)
                .thread_name(|index| format!("helper-{index}"))
                .start_handler(move |_| on_start.unwrap_or(|| {})());
            let pool = threads.build();
            let pool = pool
                .inspect_err(|error| tracing::warn!(%error, "operators are computed on one thread"))
                .ok()?;
            pool.spawn_broadcast(|_| self.help());
            Some(pool)
        };
        self.pool.get_or_init(make).as_ref()
    }

    /// Runs the loop of a pool thread: it works, spins for a while to look for work, and then sleeps. rayon's
    /// own threads sleep sooner, so a model with many small nodes would wake them for each node.
    fn help(&self) {
        loop {
            lock(&self.idle).watching += 1;
            self.watch();
            {
                let mut idle = lock(&self.idle);
                idle.watching -= 1;
                idle.asleep.push(thread::current());
            }
            // A thread that queued work before this point counted this helper as spinning, and did not wake
            // it.
            if rayon_core::yield_now() != Some(Yield::Executed) {
                thread::park();
            }
            let this = thread::current().id();
            lock(&self.idle).asleep.retain(|thread| thread.id() != this);
        }
    }

    /// Computes parts of runs until none has arrived for [`WATCH`], no run is computing, another program
    /// needs the core, or helpers are paused.
    fn watch(&self) {
        let mut since = Instant::now();
        while since.elapsed() < WATCH {
            if rayon_core::yield_now() == Some(Yield::Executed) {
                since = Instant::now();
            }
            if self.computing.load(Ordering::Relaxed) == 0 || self.is_crowded() || self.rests() {
                return;
            }
            hint::spin_loop();
        }
    }

    /// Wakes sleeping helpers until `needed` helpers are awake, including the spinning ones.
    fn wake(&self, needed: usize) {
        let mut idle = lock(&self.idle);
        let watching = usize::try_from(idle.watching).unwrap_or(0);
        let first = idle.asleep.len().saturating_sub(needed.saturating_sub(watching));
        idle.asleep.drain(first..).for_each(|thread| thread.unpark());
    }

    /// Records the time that was lost to a helper without a core, and pauses the use of helpers.
    fn rest(&self, lost: Duration) {
        let end = self.born.elapsed() + lost * REST;
        self.rest
            .fetch_max(u64::try_from(end.as_nanos()).unwrap_or(0), Ordering::Relaxed);
    }

    fn rests(&self) -> bool {
        let end = self.rest.load(Ordering::Relaxed);
        if end == 0 {
            return false;
        }
        let is_over = self.born.elapsed().as_nanos() > u128::from(end);
        if is_over {
            self.rest.store(0, Ordering::Relaxed);
        }
        !is_over
    }

    /// Reserves up to `wanted` idle threads.
    fn reserve(&self, wanted: usize) -> usize {
        if self.rests() {
            return 0;
        }
        let limit = self.limit.load(Ordering::Relaxed);
        let mut taken = 0;
        let take = |computing: usize| {
            taken = wanted.min(limit.saturating_sub(computing));
            (taken > 0).then(|| computing + taken)
        };
        let (order, counter) = (Ordering::Relaxed, &self.computing);
        counter.fetch_update(order, order, take).map_or(0, |_| taken)
    }

    /// Returns whether more threads compute than the limit. This happens when requests arrive after helpers
    /// have begun.
    fn is_crowded(&self) -> bool {
        self.computing.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed)
    }
}

/// Counts of helper threads without work.
#[derive(Debug, Default)]
struct Idle {
    /// Number of spinning helpers. A helper that finds work while it falls asleep is not counted, so the
    /// number is too low by one while that helper works.
    watching: isize,
    asleep: Vec<Thread>,
}

/// Limits of one run.
#[derive(Clone, Copy, Debug)]
struct Share {
    threads: &'static Threads,
    most: usize,
}

impl Share {
    fn most(self) -> usize {
        self.most.min(self.threads.limit.load(Ordering::Relaxed))
    }

    /// Calls `step` for `count` items until it returns false.
    fn repeat(self, count: usize, step: Step<'_>) {
        let wanted = (count - 1).min(self.most() - 1);
        let pool = (wanted > 0).then(|| self.threads.pool()).flatten();
        // There are no more helpers than threads in the pool, so no helper has to wait for a thread.
        let helpers = pool.map_or(0, |pool| {
            self.threads.reserve(wanted.min(pool.current_num_threads()))
        });
        let (Some(pool), 1..) = (pool, helpers) else {
            while step() {}
            return;
        };
        let _whole = Whole::begin();
        let work = Work::new(step);
        let (to_begin, at_work) = (AtomicUsize::new(helpers), AtomicUsize::new(helpers));
        let begun = Instant::now();
        let late = pool.in_place_scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| {
                    to_begin.fetch_sub(1, Ordering::Relaxed);
                    let _helper = Helper::begin(self.threads, &at_work);
                    work.go_on(|| self.threads.is_crowded());
                });
            }
            self.threads.wake(helpers);
            work.go_on(|| false);
            let done = Instant::now();
            if to_begin.load(Ordering::Relaxed) > 0 {
                // A helper that has not started may be waking up, so it gets a grace period.
                return Some((done, WATCH));
            }
            for _ in 0..SPINS {
                if at_work.load(Ordering::Relaxed) == 0 {
                    return None;
                }
                hint::spin_loop();
            }
            // A helper has at most one part left, which should take no longer than all parts of this thread.
            Some((done, WATCH.max(2 * (done - begun))))
        });
        if let Some((done, usual)) = late
            && done.elapsed() > usual
        {
            self.threads.rest(done.elapsed());
        }
    }
}

/// Guard that prevents nested splitting on this thread while it exists.
struct Whole(Option<Share>);

impl Whole {
    fn begin() -> Self {
        Self(SHARE.take())
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        SHARE.set(self.0);
    }
}

/// A reserved helper thread, which is released on drop.
struct Helper<'h> {
    threads: &'static Threads,
    at_work: &'h AtomicUsize,
}

impl<'h> Helper<'h> {
    fn begin(threads: &'static Threads, at_work: &'h AtomicUsize) -> Self {
        lock(&threads.idle).watching -= 1;
        Self { threads, at_work }
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        lock(&self.threads.idle).watching += 1;
        self.threads.computing.fetch_sub(1, Ordering::Relaxed);
        self.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Work that several threads run step by step.
struct Work<'s> {
    step: Step<'s>,
    /// Set when no steps are left, or when a step has panicked.
    is_ended: AtomicBool,
}

impl<'s> Work<'s> {
    fn new(step: Step<'s>) -> Self {
        Self {
            step,
            is_ended: AtomicBool::new(false),
        }
    }

    /// Calls the step until no items are left, a step has failed, or `should_leave` returns true.
    fn go_on(&self, should_leave: impl Fn() -> bool) {
        while !self.is_ended.load(Ordering::Relaxed) && !should_leave() {
            let ends = EndOnPanic(&self.is_ended);
            if !(self.step)() {
                self.is_ended.store(true, Ordering::Relaxed);
            }
            drop(ends);
        }
    }
}

/// Ends the work of all threads when one of them panics.
struct EndOnPanic<'e>(&'e AtomicBool);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        panic::{AssertUnwindSafe, catch_unwind},
        sync::mpsc,
        time::Duration,
    };

    use super::*;

    fn threads(limit: usize) -> &'static Threads {
        Box::leak(Box::new(Threads::new(limit)))
    }

    /// Returns the threads that computed 64 items, without duplicates.
    fn used() -> HashSet<thread::ThreadId> {
        let (done, found) = mpsc::channel();
        let work = |item: usize| done.send((item, thread::current().id())).map_err(|_| ());
        assert_eq!(for_each((0..64).collect(), work), Ok(()));
        drop(done);
        let (mut items, ids): (Vec<_>, HashSet<_>) = found.into_iter().unzip();
        items.sort_unstable();
        assert_eq!(items, (0..64).collect::<Vec<_>>());
        ids
    }

    #[test]
    fn every_item_is_computed_once() {
        for limit in 1..5 {
            let threads = threads(limit);
            let _run = threads.start(0);
            for _ in 0..100 {
                assert!(used().len() <= limit);
            }
            assert_eq!(
                threads.computing.load(Ordering::Relaxed),
                1,
                "all helpers are idle again"
            );
        }
    }

    #[test]
    fn idle_threads_help() {
        let _run = threads(3).start(0);
        // Each item waits for two other items, which must run at the same time.
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel()).unzip();
        let items = receivers.into_iter().enumerate().collect();
        let work = |(item, receiver): (usize, mpsc::Receiver<()>)| {
            for sender in &senders {
                let _ = sender.send(());
            }
            for _ in 0..3 {
                receiver.recv_timeout(Duration::from_secs(60)).map_err(|_| item)?;
            }
            Ok::<(), usize>(())
        };
        assert_eq!(for_each(items, work), Ok(()));
    }

    #[test]
    fn helpers_sleep_where_no_run_is_left_and_are_woken() {
        let threads = threads(3);
        for _ in 0..3 {
            // Ends the pause after late helpers, which another test covers.
            threads.rest.store(0, Ordering::Relaxed);
            let run = threads.start(0);
            let (send, receive) = mpsc::channel();
            let items = vec![(Some(receive), None), (None, Some(send))];
            // The first item waits for the second one, which another thread has to compute.
            let work = |(receive, send): (Option<mpsc::Receiver<()>>, Option<mpsc::Sender<()>>)| {
                if let Some(send) = send {
                    let _ = send.send(());
                }
                let Some(receive) = receive else {
                    return Ok(());
                };
                receive.recv_timeout(Duration::from_secs(60)).map_err(|_| ())
            };
            assert_eq!(for_each(items, work), Ok(()));
            drop(run);
            let begun = Instant::now();
            while lock(&threads.idle).asleep.len() < 2 {
                assert!(begun.elapsed() < Duration::from_secs(60), "all helpers sleep");
                thread::yield_now();
            }
            assert_eq!(lock(&threads.idle).watching, 0);
        }
    }

    #[test]
    fn nobody_helps_where_one_thread_is_the_limit_or_all_are_busy() {
        let here = HashSet::from([thread::current().id()]);
        assert_eq!((used(), parts(100, 1)), (here.clone(), 1), "outside of a run");
        let single = threads(1);
        let run = single.start(0);
        assert_eq!((used(), parts(100, 1)), (here.clone(), 1));
        assert!(!single.has_pool());
        drop(run);
        let busy = threads(2);
        {
            let _one = busy.start(0);
            let _other = busy.start(0);
            assert_eq!(used(), here, "two runs on two threads");
        }
        let run = busy.start(1);
        assert_eq!(
            (used(), parts(100, 1)),
            (here, 1),
            "a run that may use one thread"
        );
        drop(run);
        assert_eq!(busy.computing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn work_is_split_where_each_part_is_worth_it() {
        let _run = threads(3).start(2);
        let expected = [(0, 1), (19, 1), (20, 2), (39, 3), (1000, 2 * PARTS_PER_THREAD)];
        for (work, count) in expected {
            assert_eq!(parts(work, 10), count, "{work}");
        }
        let nested = for_each(vec![(); 8], |()| match parts(1000, 10) {
            1 => Ok(()),
            count => Err(count),
        });
        assert_eq!(nested, Ok(()), "parts are not split again");
        assert_eq!(parts(20, 10), 2);
    }

    #[test]
    fn the_first_error_ends_all() {
        let threads = threads(3);
        let _run = threads.start(0);
        let begun = AtomicUsize::new(0);
        let outcome = for_each((0..100).collect(), |item: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            Err(item)
        });
        assert!(outcome.is_err());
        assert!(begun.into_inner() <= 3, "each thread fails once at most");
        assert_eq!(threads.computing.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_panic_is_the_run_s_and_helpers_go_on() {
        let threads = threads(3);
        let _run = threads.start(0);
        for _ in 0..10 {
            let begun = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                for_each(vec![(); 100], |()| -> Result<(), ()> {
                    begun.fetch_add(1, Ordering::Relaxed);
                    std::panic::resume_unwind(Box::new("a bug"));
                })
            }));
            assert!(outcome.is_err());
            assert!(begun.into_inner() <= 3);
            assert_eq!(threads.computing.load(Ordering::Relaxed), 1);
            assert_eq!(parts(100, 1), 3 * PARTS_PER_THREAD);
        }
        used();
    }

    #[test]
    fn nobody_helps_for_a_while_after_a_helper_came_late() {
        let threads = threads(2);
        assert_eq!(threads.reserve(1), 1);
        threads.computing.store(0, Ordering::Relaxed);
        threads.rest(Duration::from_secs(3600));
        let run = threads.start(0);
        assert_eq!(used(), HashSet::from([thread::current().id()]));
        drop(run);
        threads.rest.store(1, Ordering::Relaxed);
        assert_eq!((threads.reserve(1), threads.rest.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn helpers_leave_where_more_threads_compute_than_should() {
        let left = AtomicUsize::new(3);
        let step = || left.fetch_sub(1, Ordering::Relaxed) > 1;
        let work = Work::new(&step);
        work.go_on(|| true);
        assert_eq!(left.load(Ordering::Relaxed), 3);
        work.go_on(|| false);
        assert_eq!(left.load(Ordering::Relaxed), 0);
        let threads = threads(2);
        let _one = threads.start(0);
        let _other = threads.start(0);
        assert!(!threads.is_crowded());
        let _more = threads.start(0);
        assert!(threads.is_crowded());
    }
}
