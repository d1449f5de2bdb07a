//! Converts errors to Python exceptions.

use std::{error::Error, io, path::Path, time::Duration};

use oip_client::ClientError;
use pyo3::{
    create_exception,
    exceptions::{PyException, PyOSError},
    prelude::*,
};

create_exception!(
    tensorferry,
    TensorFileError,
    PyException,
    "A tensor file cannot be read or written. Attributes: `file` (its path, or None for one in memory), `kind` (such as \
     'Truncated'), `tensor` (its name or None), `byte` (where in the file, or None), `rule` (of the format's page, or None)."
);
create_exception!(
    tensorferry,
    InferenceError,
    PyException,
    "A call of a server failed. Attributes: `kind` (such as 'Refused'), `code` (the protocol's, such as 'NotFound', or \
     None when the server said nothing), `status` (HTTP's number as text, or the name of gRPC's code), `message` (the \
     server's own words), `retry_after` (seconds, or None)."
);

/// Converts an error about a file; system errors become an `OSError` with errno and path.
pub(crate) fn of_file(py: Python<'_>, error: &fmt_core::Error, path: Option<&Path>) -> PyErr {
    if let Some(number) = error.source().and_then(number) {
        return of_system(number, error.to_string(), path);
    }
    let text = match path {
        Some(path) => format!("{}: {error}", path.display()),
        None => error.to_string(),
    };
    let exception = TensorFileError::new_err(text);
    let value = exception.value(py);
    let set = [
        value.setattr("kind", error.kind().to_string()),
        value.setattr("file", path.map(|path| path.as_os_str())),
        value.setattr("tensor", error.tensor()),
        value.setattr("byte", error.byte()),
        value.setattr("rule", error.broken_rule()),
    ];
    set.into_iter().find_map(Result::err).unwrap_or(exception)
}

/// Returns the errno of an error or of one of its causes. If an I/O error has no errno, as in some libraries,
/// its kind is mapped to one.
pub(crate) fn number(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(number) = error.downcast_ref::<io::Error>().and_then(of_kind_or_raw) {
            return Some(number);
        }
        cause = error.source();
    }
    None
}

fn of_kind_or_raw(error: &io::Error) -> Option<i32> {
    // These errno values are the same on all POSIX systems.
    error.raw_os_error().or(match error.kind() {
        io::ErrorKind::NotFound => Some(2),
        io::ErrorKind::PermissionDenied => Some(13),
        io::ErrorKind::AlreadyExists => Some(17),
        io::ErrorKind::NotADirectory => Some(20),
        io::ErrorKind::StorageFull => Some(28),
        io::ErrorKind::ReadOnlyFilesystem => Some(30),
        _ => None,
    })
}

/// Creates an `OSError`. Python chooses the subclass by errno and adds the path to the message.
pub(crate) fn of_system(number: i32, text: String, path: Option<&Path>) -> PyErr {
    match path {
        Some(path) => PyOSError::new_err((number, text, path.as_os_str().to_owned())),
        None => PyOSError::new_err((number, text)),
    }
}

/// Creates an error for a misuse that only the native module can detect.
pub(crate) fn usage(message: impl Into<String>) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(message.into())
}

/// Converts the error of a failed call to a Python exception.
pub(crate) fn of_call(py: Python<'_>, error: &ClientError) -> PyErr {
    let status = error.status().map(|status| {
        let status = status.to_string();
        // Keeps only the status itself, without the transport prefix (`HTTP`, `gRPC`).
        status.rsplit(' ').next().unwrap_or_default().to_owned()
    });
    let exception = InferenceError::new_err(error.to_string());
    let value = exception.value(py);
    let set = [
        value.setattr("kind", error.kind().to_string()),
        value.setattr("code", error.code().map(|code| format!("{code:?}"))),
        value.setattr("status", status),
        value.setattr("message", error.message()),
        value.setattr(
            "retry_after",
            error.retry_delay().map(|delay| delay.as_secs_f64()),
        ),
    ];
    set.into_iter().find_map(Result::err).unwrap_or(exception)
}

/// Creates the error for a call that exceeded its own timeout.
pub(crate) fn of_timeout(py: Python<'_>, limit: Duration) -> PyErr {
    let message = format!("no response within {} s", limit.as_secs_f64());
    let exception = InferenceError::new_err(message.clone());
    let value = exception.value(py);
    let set = [
        value.setattr("kind", "Timeout"),
        value.setattr("code", "DeadlineExceeded"),
        value.setattr("status", None::<&str>),
        value.setattr("message", message),
        value.setattr("retry_after", None::<f64>),
    ];
    set.into_iter().find_map(Result::err).unwrap_or(exception)
}
