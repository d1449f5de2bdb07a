//! Runtimes that drive connections: a background thread, or blocking callers.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use pyo3::{PyResult, exceptions::PyRuntimeError};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    task::yield_now,
};

/// The process that created a value. Threads do not survive a fork, and connections cannot be shared.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Fails in a forked process.
    pub(crate) fn check(self, what: &str) -> PyResult<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this {what} was created before the process was forked: create one in each process"
        )))
    }
}

/// A value per process, never dropped, since a thread may wait for the GIL while the interpreter shuts down.
/// A forked process lacks the value's threads, so it creates its own value.
struct OfProcess<T: 'static>(Mutex<Option<(Process, &'static T)>>);

impl<T> OfProcess<T> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn get(&self, make: impl FnOnce() -> std::io::Result<T>) -> PyResult<&'static T> {
        let process = Process::current();
        let mut found = self.0.lock();
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

/// Returns the runtime with a background thread, for calls that no thread blocks on.
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

/// Returns the runtime that blocking callers drive, which saves two thread switches per call.
pub(crate) fn shared() -> PyResult<&'static SharedRuntime> {
    static SHARED: OfProcess<SharedRuntime> = OfProcess::new();
    SHARED.get(SharedRuntime::new)
}

/// A runtime without its own thread. One of the blocking callers drives the connections of all callers. After
/// a while without calls a background thread takes over, since servers may send at any time over HTTP/2, and
/// wait for acknowledgements when they drain.
pub(crate) struct SharedRuntime {
    runtime: Arc<Runtime>,
    keeper: Arc<Keeper>,
}

/// State shared by callers and the background thread.
#[derive(Default)]
struct Keeper {
    callers: AtomicUsize,
    /// Whether there was a call since the background thread last checked.
    was_called: AtomicBool,
    is_driving: AtomicBool,
    give_way: Notify,
}

/// Interval at which the background thread checks for calls.
const LOOK: Duration = Duration::from_millis(100);

/// A runtime that can block on a future.
pub(crate) trait Drives: Sync {
    /// Blocks this thread on a future.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

impl Drives for Runtime {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.block_on(future)
    }
}

impl Drives for SharedRuntime {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _calling = self.keeper.call();
        self.runtime.block_on(future)
    }
}

impl SharedRuntime {
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

    /// Returns the runtime, to create connections in.
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
        // A concurrent caller is either counted in `callers`, or sees the flag `is_driving`.
        if self.callers.load(Ordering::SeqCst) == 0 {
            runtime.block_on(self.give_way.notified());
        }
        self.is_driving.store(false, Ordering::SeqCst);
    }
}

/// Counts a blocking caller in `callers` until the value is dropped.
struct Calling<'k>(&'k Keeper);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets connections process the events that arrived while no thread drove them. The server may have closed a
/// connection: a request on it would be lost, and not every request can be repeated.
pub(crate) async fn let_connections_notice() {
    // The first yield polls the system for events, the second one the connections that became readable.
    yield_now().await;
    yield_now().await;
}
