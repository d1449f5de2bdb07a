//! What drives connections: a thread, or the callers that wait for answers.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use pyo3::{PyResult, exceptions::PyRuntimeError};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    task::yield_now,
};

/// The process that made something. Threads do not come along when a process forks, and connections cannot be shared.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// What to say to a forked process that uses it.
    pub(crate) fn check(self, what: &str) -> PyResult<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this {what} was made before the process was forked: make one in each process"
        )))
    }
}

/// A value of this process. It is never dropped: a thread may wait for the interpreter's lock when the interpreter ends. A forked
/// process has none of the threads behind it, so it gets one of its own.
struct OfProcess<T: 'static>(Mutex<Option<(Process, &'static T)>>);

impl<T> OfProcess<T> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn get(&self, make: impl FnOnce() -> std::io::Result<T>) -> PyResult<&'static T> {
        let process = Process::current();
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((owner, value)) = *found
            && owner == process
        {
            return Ok(value);
        }
        let value: &'static T = Box::leak(Box::new(make()?));
        *found = Some((process, value));
        Ok(value)
    }
}

/// The runtime with a thread that drives its connections, for what nobody waits for.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: OfProcess<Runtime> = OfProcess::new();
    RUNTIME.get(|| {
        Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tensorferry")
            .enable_all()
            .build()
    })
}

/// The runtime whose connections are driven by those who wait for answers, which saves two switches of threads for each call.
pub(crate) fn shared() -> PyResult<&'static Shared> {
    static SHARED: OfProcess<Shared> = OfProcess::new();
    SHARED.get(Shared::new)
}

/// A runtime without a thread. Of several callers, one drives the connections of all. When nobody has called for a while a thread takes
/// over: servers speak at any time over HTTP/2, and wait for an answer when they drain.
pub(crate) struct Shared {
    runtime: Arc<Runtime>,
    keeper: Arc<Keeper>,
}

/// What callers and the thread know of each other.
#[derive(Default)]
struct Keeper {
    callers: AtomicUsize,
    /// Whether anybody has called since the thread looked last.
    was_called: AtomicBool,
    is_driving: AtomicBool,
    give_way: Notify,
}

/// How often the thread looks whether anybody calls.
const LOOK: Duration = Duration::from_millis(100);

/// Something that a thread can wait with.
pub(crate) trait Drives: Sync {
    /// Waits on this thread.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

impl Drives for Runtime {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.block_on(future)
    }
}

impl Drives for Shared {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _calling = self.keeper.call();
        self.runtime.block_on(future)
    }
}

impl Shared {
    fn new() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let keeper = Arc::new(Keeper::default());
        let (handle, kept) = (Arc::new(runtime), keeper.clone());
        let runtime = handle.clone();
        thread::Builder::new()
            .name("tensorferry-keep".to_owned())
            .spawn(move || {
                loop {
                    thread::sleep(LOOK);
                    kept.drive_while_nobody_calls(&handle);
                }
            })?;
        Ok(Self { runtime, keeper })
    }

    /// To make connections in.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

impl Keeper {
    fn call(&self) -> Calling<'_> {
        self.callers.fetch_add(1, Ordering::SeqCst);
        self.was_called.store(true, Ordering::Relaxed);
        if self.is_driving.load(Ordering::SeqCst) {
            self.give_way.notify_one();
        }
        Calling(self)
    }

    fn drive_while_nobody_calls(&self, runtime: &Runtime) {
        if self.was_called.swap(false, Ordering::Relaxed) {
            return;
        }
        self.is_driving.store(true, Ordering::SeqCst);
        // A caller that comes meanwhile is seen here, or sees the flag.
        if self.callers.load(Ordering::SeqCst) == 0 {
            runtime.block_on(self.give_way.notified());
        }
        self.is_driving.store(false, Ordering::SeqCst);
    }
}

/// A caller that waits.
struct Calling<'k>(&'k Keeper);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets connections see what happened while nobody drove them, above all that the server has closed them: a request on such a
/// connection would be lost, and not every request can be sent again.
pub(crate) async fn let_connections_notice() {
    // Once for the system to be asked, once for the connections that have something to read.
    yield_now().await;
    yield_now().await;
}
