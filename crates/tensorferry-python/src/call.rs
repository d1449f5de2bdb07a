//! How a call runs: its caller waits for it, or a callback is told.

use std::{future::Future, time::Duration};

use pyo3::{IntoPyObjectExt, prelude::*};
use tokio::runtime::Runtime;

use crate::error;

/// What is called when a call has ended: with an exception and None, or with None and the result.
pub(crate) type Callback = Option<Py<PyAny>>;

/// A call that runs.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Call(tokio::task::AbortHandle);

#[pymethods]
impl Call {
    /// Ends it, unless it has ended; its callback is not called then.
    fn cancel(&self) {
        self.0.abort();
    }
}

/// Why a call failed.
pub(crate) enum Failure {
    Call(oip_client::ClientError),
    Timeout(Duration),
}

impl Failure {
    fn into_py(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => error::of_call(py, &error),
            Self::Timeout(limit) => error::of_timeout(py, limit),
        }
    }
}

/// How long a call is waited for before Python looks for signals.
const SIGNALS: Duration = Duration::from_millis(100);

/// Waits for a call without the interpreter's lock, or spawns it.
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
        let mut call = std::pin::pin!(call);
        loop {
            let waiting = async { tokio::time::timeout(SIGNALS, call.as_mut()).await };
            match py.detach(|| runtime.block_on(waiting)) {
                Ok(outcome) => {
                    let value = outcome.map_err(|failure| failure.into_py(py))?;
                    return value.into_py_any(py);
                }
                // Ctrl-C ends the call.
                Err(_) => py.check_signals()?,
            }
        }
    };
    let task = runtime.spawn(async move {
        let outcome = call.await;
        // None when the interpreter is ending: nobody waits then.
        Python::try_attach(|py| {
            let outcome = match outcome {
                Ok(value) => value.into_py_any(py),
                Err(failure) => Err(failure.into_py(py)),
            };
            let (error, value) = match outcome {
                Ok(value) => (py.None(), value),
                Err(error) => (error.into_value(py).into_any(), py.None()),
            };
            if let Err(error) = callback.call1(py, (error, value)) {
                error.write_unraisable(py, None);
            }
        });
    });
    Call(task.abort_handle()).into_py_any(py)
}
