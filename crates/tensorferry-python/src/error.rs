//! Errors as Python exceptions with attributes.

use oip_client::ClientError;
use pyo3::{create_exception, exceptions::PyException, prelude::*};

create_exception!(
    tensorferry,
    TensorFileError,
    PyException,
    "A tensor file cannot be read or written. Attributes: `kind` (such as 'Truncated'), `tensor` (its name or None), \
     `byte` (where in the file, or None), `rule` (of the format's page, or None)."
);
create_exception!(
    tensorferry,
    InferenceError,
    PyException,
    "A call of a server failed. Attributes: `kind` (such as 'Refused'), `code` (the protocol's, such as 'NotFound', or \
     None when the server said nothing)."
);

/// An error of a file; what the system refuses becomes an `OSError` with its number where there is one.
pub(crate) fn of_file(py: Python<'_>, error: &fmt_core::Error) -> PyErr {
    if let Some(cause) =
        std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>())
        && let Some(number) = cause.raw_os_error()
    {
        return pyo3::exceptions::PyOSError::new_err((number, error.to_string()));
    }
    let exception = TensorFileError::new_err(error.to_string());
    let value = exception.value(py);
    let set = [
        value.setattr("kind", error.kind().to_string()),
        value.setattr("tensor", error.tensor()),
        value.setattr("byte", error.byte()),
        value.setattr("rule", error.broken_rule()),
    ];
    set.into_iter().find_map(Result::err).unwrap_or(exception)
}

/// Wrong use that only the native half can see.
pub(crate) fn usage(message: impl Into<String>) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(message.into())
}

/// An error of a call.
pub(crate) fn of_call(py: Python<'_>, error: &ClientError) -> PyErr {
    let exception = InferenceError::new_err(error.to_string());
    let value = exception.value(py);
    let set = [
        value.setattr("kind", format!("{:?}", error.kind())),
        value.setattr("code", error.code().map(|code| format!("{code:?}"))),
    ];
    set.into_iter().find_map(Result::err).unwrap_or(exception)
}
