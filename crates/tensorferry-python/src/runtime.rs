//! What drives the connections of this process: a thread, or the callers that wait for answers.

use std::sync::{Mutex, PoisonError};

use pyo3::PyResult;
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};

/// A runtime of this process. It is never dropped: a thread may wait for the interpreter's lock when the interpreter ends. A forked
/// process has none of its threads, so it gets a runtime of its own.
struct OfProcess(Mutex<Option<(u32, &'static Runtime)>>);

impl OfProcess {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn get(&self, mut builder: Builder) -> PyResult<&'static Runtime> {
        let process = std::process::id();
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((owner, runtime)) = *found
            && owner == process
        {
            return Ok(runtime);
        }
        let runtime: &'static Runtime = Box::leak(Box::new(builder.enable_all().build()?));
        *found = Some((process, runtime));
        Ok(runtime)
    }
}

/// The runtime with a thread, for calls and streams that go on while nobody waits for them.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: OfProcess = OfProcess::new();
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("tensorferry");
    RUNTIME.get(builder)
}

/// The runtime without threads: of those that wait for calls, one drives the connections of all.
pub(crate) fn local() -> PyResult<&'static Runtime> {
    static RUNTIME: OfProcess = OfProcess::new();
    RUNTIME.get(Builder::new_current_thread())
}

/// Lets the connections of [`local`] see what happened while nobody waited, above all that the server has closed them: a request on
/// such a connection would be lost, and not every request can be sent again.
pub(crate) async fn let_connections_notice() {
    // Once for the system to be asked, once for the connections that have something to read.
    yield_now().await;
    yield_now().await;
}
