//! A thread pool for long-running work of transports: parsing and serializing large bodies, compressing,
//! copying.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use futures_channel::oneshot;
use oip_types::{ErrorCode, ServiceError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Lease;

/// A fixed number of threads for work that would block the threads of a transport. Clones share the pool.
///
/// Small jobs run before large ones, and large jobs never occupy all threads (unless there is only one), so
/// that a few large bodies do not delay all other requests. A job whose request was cancelled or is past its
/// deadline is not started. On Linux the threads have a lower priority than those of transports and models.
///
/// The pool needs no async runtime. Threads start when there is work, and end when the last clone of the pool
/// is dropped.
///
/// ```
/// use oip_resources::{CpuPool, Lease};
///
/// let pool = CpuPool::new(2);
/// let lease = Lease::unlimited();
/// let sum = pool.run(&lease, 800, || Ok((0..100).sum::<u64>()));
/// assert_eq!(futures_executor::block_on(sum).unwrap(), 4950);
/// ```
#[derive(Clone)]
pub struct CpuPool(Arc<Owner>);

/// Stops the threads when the last clone of the pool is dropped.
struct Owner(Arc<Pool>);

struct Pool {
    threads: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Small jobs; the key is the arrival number, as in `large`.
    small: BTreeMap<u64, Job>,
    large: BTreeMap<u64, Job>,
    arrivals: u64,
    /// Number of jobs started.
    begun: u64,
    running_large: usize,
    started: usize,
    idle: usize,
    is_closed: bool,
}

type Job = Box<dyn FnOnce() + Send>;

/// While large jobs are waiting and may run, one of every `TURN_OF_LARGE` jobs started is a large one.
const TURN_OF_LARGE: u64 = 4;

impl CpuPool {
    /// A job that handles at most this many bytes is small.
    pub const SMALL: u64 = 1 << 20;

    /// Creates a pool of `threads` threads, at least one.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Owner(Arc::new(Pool {
            threads: threads.max(1),
            queue: Mutex::default(),
            changed: Condvar::new(),
        }))))
    }

    /// Runs `work` for a request. `bytes` is roughly how much memory `work` reads or writes.
    ///
    /// If the future is dropped before the work starts, the closure and everything that it owns are dropped
    /// immediately. Work that is running is not interrupted, so long-running work should call
    /// [`Lease::check`]. The pool has no timer; the caller enforces the deadline.
    ///
    /// # Errors
    /// The errors of `work`; the errors of [`Lease::check`] when the work is about to start;
    /// [`ErrorCode::Internal`] when the work panics; [`ErrorCode::Unavailable`] when no thread can be
    /// started.
    pub async fn run<T: Send + 'static>(
        &self,
        lease: &Lease,
        bytes: u64,
        work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let (sender, receiver) = oneshot::channel();
        let lease = lease.clone();
        let job = Box::new(move || {
            if sender.is_canceled() {
                return;
            }
            let result = lease.check().and_then(|()| {
                catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
            });
            let _ = sender.send(result);
        });
        let queued = QueuedJob {
            pool: &self.0.0,
            arrival: self.0.0.push(job, bytes > Self::SMALL)?,
        };
        let result = receiver.await;
        std::mem::forget(queued);
        result.unwrap_or_else(|_| Err(ServiceError::internal("the request's work was lost")))
    }
}

/// Creates a pool with one thread per core.
impl Default for CpuPool {
    fn default() -> Self {
        Self::new(thread::available_parallelism().map_or(1, usize::from))
    }
}

impl std::fmt::Debug for CpuPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuPool({} threads)", self.0.0.threads)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

/// Removes a job from the queue when its future is dropped.
struct QueuedJob<'p> {
    pool: &'p Pool,
    arrival: u64,
}

impl Drop for QueuedJob<'_> {
    fn drop(&mut self) {
        let mut queue = self.pool.lock();
        let job = queue.small.remove(&self.arrival);
        let job = job.or_else(|| queue.large.remove(&self.arrival));
        drop(queue);
        // Dropping the job may take a long time, so the lock is released first.
        drop(job);
    }
}

impl Pool {
    /// Queues a job, and starts a thread for it if none is idle and the limit allows it.
    fn push(self: &Arc<Self>, job: Job, is_large: bool) -> Result<u64, ServiceError> {
        let mut queue = self.lock();
        let waiting = queue.small.len() + queue.large.len();
        if waiting >= queue.idle && queue.started < self.threads {
            let pool = self.clone();
            let thread = thread::Builder::new().name("cpu".to_owned());
            match thread.spawn(move || pool.work()) {
                Ok(_) => queue.started += 1,
                Err(error) if queue.started == 0 => {
                    let message = "cannot start a thread for the request";
                    return Err(ServiceError::new(ErrorCode::Unavailable, message).caused_by(error));
                }
                // The other threads will run the job.
                Err(_) => {}
            }
        }
        let arrival = queue.arrivals;
        queue.arrivals += 1;
        let jobs = if is_large {
            &mut queue.large
        } else {
            &mut queue.small
        };
        jobs.insert(arrival, job);
        drop(queue);
        self.changed.notify_one();
        Ok(arrival)
    }

    /// Runs a thread's main loop.
    fn work(&self) {
        yield_to_others();
        let mut queue = self.lock();
        loop {
            if let Some((job, is_large)) = queue.take(self.threads) {
                drop(queue);
                job();
                queue = self.lock();
                if is_large {
                    queue.running_large -= 1;
                    // A large job that waited for this one to finish may now run.
                    self.changed.notify_one();
                }
            } else if queue.is_closed {
                return;
            } else {
                queue.idle += 1;
                self.changed.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

impl Queue {
    /// Takes the next job, and returns whether it is a large one.
    fn take(&mut self, threads: usize) -> Option<(Job, bool)> {
        let may_be_large = self.running_large < threads.saturating_sub(1).max(1) && !self.large.is_empty();
        let is_turn_of_large = (self.begun + 1).is_multiple_of(TURN_OF_LARGE);
        let is_large = may_be_large && (is_turn_of_large || self.small.is_empty());
        let jobs = if is_large {
            &mut self.large
        } else {
            &mut self.small
        };
        let (_, job) = jobs.pop_first()?;
        self.begun += 1;
        self.running_large += usize::from(is_large);
        Some((job, is_large))
    }
}

/// Lowers the priority of this thread.
fn yield_to_others() {
    // On Linux the nice value is per thread, elsewhere per process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(10);
}

fn panicked(panic: &(dyn Any + Send)) -> ServiceError {
    let cause = panic.downcast_ref::<String>().map(String::as_str);
    let cause = cause.or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!(cause = cause.unwrap_or("unknown"), "work on a request panicked");
    ServiceError::internal("the server has a bug; this request is lost")
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        task::{Context, Poll, Waker},
        time::Duration,
    };

    use futures_executor::block_on;

    use super::*;
    use crate::{ByteBudget, TimeLimits};

    /// Returns a job that blocks its thread until the sender is dropped.
    fn blocker() -> (mpsc::Sender<()>, impl FnOnce() -> Result<(), ServiceError> + Send) {
        let (sender, receiver) = mpsc::channel::<()>();
        (sender, move || {
            let _ = receiver.recv();
            Ok(())
        })
    }

    fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_panic_is_an_internal_error_and_the_thread_goes_on() {
        let pool = CpuPool::new(1);
        let lease = Lease::unlimited();
        let error = block_on(pool.run(&lease, 1, || -> Result<(), _> { panic!("oh") })).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert_eq!(block_on(pool.run(&lease, 1, || Ok(7))).unwrap(), 7);
    }

    #[test]
    fn work_that_is_given_up_frees_its_memory_at_once_and_is_not_begun() {
        let pool = CpuPool::new(1);
        let budget = ByteBudget::new(100);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let (release, block) = blocker();
        let mut blocking = Box::pin(pool.run(&lease, 1, block));
        assert!(poll_once(blocking.as_mut()).is_pending());

        let (body, begun) = (lease.charge(60).unwrap().own(vec![0; 60]), Arc::new(()));
        let seen = begun.clone();
        let mut given_up = Box::pin(pool.run(&lease, 60, move || {
            let _keep = (body, seen);
            Ok(())
        }));
        assert!(poll_once(given_up.as_mut()).is_pending());
        assert_eq!(budget.used(), 60);
        drop(given_up);
        assert_eq!((budget.used(), Arc::strong_count(&begun)), (0, 1));
        drop(release);
        block_on(blocking).unwrap();
    }

    #[test]
    fn work_beyond_its_deadline_or_of_clients_that_left_is_not_begun() {
        let pool = CpuPool::new(1);
        let (late, gone) = (Lease::unlimited(), Lease::unlimited());
        late.set_timeout(Duration::ZERO);
        drop(gone.guard());
        for (lease, code) in [(late, ErrorCode::DeadlineExceeded), (gone, ErrorCode::Cancelled)] {
            let work = || -> Result<(), ServiceError> { panic!("it was begun") };
            assert_eq!(block_on(pool.run(&lease, 1, work)).unwrap_err().code(), code);
        }
    }

    #[test]
    fn large_jobs_leave_a_thread_to_small_ones() {
        let pool = CpuPool::new(2);
        let lease = Lease::unlimited();
        let (releases, blocks): (Vec<_>, Vec<_>) = (0..5).map(|_| blocker()).unzip();
        let mut large: Vec<_> = blocks
            .into_iter()
            .map(|block| Box::pin(pool.run(&lease, CpuPool::SMALL + 1, block)))
            .collect();
        for job in &mut large {
            assert!(poll_once(job.as_mut()).is_pending());
        }
        for _ in 0..3 {
            block_on(pool.run(&lease, CpuPool::SMALL, || Ok(()))).unwrap();
        }
        drop(releases);
        large.into_iter().for_each(|job| block_on(job).unwrap());
    }

    #[test]
    fn large_jobs_have_their_turn_among_small_ones() {
        let mut queue = Queue::default();
        for arrival in 0..8 {
            queue.small.insert(arrival, Box::new(|| ()));
        }
        queue.large.insert(8, Box::new(|| ()));
        let order: Vec<bool> = (0..9).map(|_| queue.take(2).unwrap().1).collect();
        assert_eq!(order.iter().position(|is_large| *is_large), Some(3));
        assert!(queue.take(2).is_none());
    }

    #[test]
    fn threads_end_with_the_pool() {
        let pool = CpuPool::new(3);
        block_on(pool.run(&Lease::unlimited(), 1, || Ok(()))).unwrap();
        let inner = Arc::downgrade(&pool.0.0);
        drop(pool);
        while inner.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
