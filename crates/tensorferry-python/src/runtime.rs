//! The threads behind clients and servers of this process.

use std::sync::{Mutex, PoisonError};

use pyo3::PyResult;
use tokio::runtime::{Builder, Runtime};

/// The runtime of this process: one thread that drives all connections; callers wait on their own.
///
/// It is never dropped: a thread may wait for the interpreter's lock when the interpreter ends. A forked process has none of
/// its threads, so it gets a runtime of its own.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);
    let process = std::process::id();
    let mut found = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, runtime)) = *found
        && owner == process
    {
        return Ok(runtime);
    }
    let runtime: &'static Runtime = Box::leak(Box::new(
        Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tensorferry")
            .enable_all()
            .build()?,
    ));
    *found = Some((process, runtime));
    Ok(runtime)
}
