//! Runs calls: the calling thread blocks, or a callback receives the result.

use std::{
    error::Error,
    future::Future,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use oip_client::{BlockingClient, ClientError, ErrorKind, InferenceClient, Patience};
use pyo3::{IntoPyObjectExt, prelude::*};
use tokio::runtime::Runtime;

use crate::{
    error, python_code,
    runtime::{Drives, Process},
};

/// A Python callback for the end of a call. It receives an exception and None, or None and the result.
pub(crate) type Callback = Option<Py<PyAny>>;

/// A running call.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Call {
    task: tokio::task::AbortHandle,
    process: Process,
}

#[pymethods]
impl Call {
    /// Cancels the call unless it has ended; the callback of a cancelled call is not called. Does nothing in
    /// a forked process.
    fn cancel(&self) {
        if self.process.is_current() {
            self.task.abort();
        }
    }
}

/// Why a call failed.
pub(crate) enum Failure {
    Call(ClientError),
    Timeout(Duration),
}

impl Failure {
    pub(crate) fn into_py(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => error::of_call(py, &error),
            Self::Timeout(limit) => error::of_timeout(py, limit),
        }
    }
}

/// Interval at which Python checks for signals during a call.
const SIGNALS: Duration = Duration::from_millis(100);

/// Runs a call on this thread, without the GIL.
pub(crate) fn wait_here<T, F>(
    py: Python<'_>,
    client: &BlockingClient,
    timeout: Option<Duration>,
    call: impl FnOnce(Arc<dyn InferenceClient>) -> F + Send,
) -> PyResult<Py<PyAny>>
where
    T: Send + for<'py> IntoPyObject<'py>,
    F: Future<Output = oip_client::Result<T>>,
{
    static UNTIL_A_SIGNAL: LazyLock<Patience> = LazyLock::new(|| {
        // `try_attach` returns `None` when the interpreter is shutting down.
        Patience::default().unless(|| match Python::try_attach(|py| py.check_signals()) {
            Some(Err(signal)) => Err(signal.into()),
            Some(Ok(())) | None => Ok(()),
        })
    });
    let mut patience = UNTIL_A_SIGNAL.clone();
    if let Some(timeout) = timeout {
        patience = patience.within(timeout);
    }
    let start = Instant::now();
    let outcome = py.detach(|| client.call(patience, |client| call(Arc::new(client))));
    let error = match outcome {
        Ok(value) => return value.into_py_any(py),
        Err(error) => error,
    };
    if let Some(signal) = error.source().and_then(|cause| cause.downcast_ref::<PyErr>()) {
        // Ctrl-C ended the call.
        return Err(signal.clone_ref(py));
    }
    match timeout.filter(|limit| error.kind() == ErrorKind::Timeout && start.elapsed() >= *limit) {
        Some(limit) => Err(Failure::Timeout(limit).into_py(py)),
        None => Err(Failure::Call(error).into_py(py)),
    }
}

/// Waits for a call, without the GIL.
pub(crate) fn wait<T>(
    py: Python<'_>,
    with: &impl Drives,
    call: impl Future<Output = Result<T, Failure>> + Send,
) -> PyResult<Py<PyAny>>
where
    T: Send + for<'py> IntoPyObject<'py>,
{
    let mut call = std::pin::pin!(call);
    loop {
        let waiting = async { tokio::time::timeout(SIGNALS, call.as_mut()).await };
        match py.detach(|| with.block_on(waiting)) {
            Ok(outcome) => {
                let value = outcome.map_err(|failure| failure.into_py(py))?;
                return value.into_py_any(py);
            }
            // Ctrl-C ends the call.
            Err(_) => py.check_signals()?,
        }
    }
}

/// Runs a call on a runtime. Without a callback, blocks until the call ends; with a callback, spawns the
/// call.
pub(crate) fn run<T>(
    py: Python<'_>,
    runtime: &'static Runtime,
    callback: Callback,
    call: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> PyResult<Py<PyAny>>
where
    T: Send + 'static + for<'py> IntoPyObject<'py>,
{
    let Some(callback) = callback else {
        return wait(py, runtime, call);
    };
    let task = runtime.spawn(async move {
        let outcome = call.await;
        // `attached` returns `None` when the interpreter is shutting down.
        python_code::attached(|py| {
            let outcome = match outcome {
                Ok(value) => value.into_py_any(py),
                Err(failure) => Err(failure.into_py(py)),
            };
            let (error, value) = match outcome {
                Ok(value) => (py.None(), value),
                Err(error) => (error.into_value(py).into_any(), py.None()),
            };
            let told = (error, value).into_pyobject(py);
            let told = told.and_then(|told| python_code::call(callback.bind(py), &told));
            if let Err(error) = told {
                error.write_unraisable(py, None);
            }
        });
    });
    let call = Call {
        task: task.abort_handle(),
        process: Process::current(),
    };
    call.into_py_any(py)
}
