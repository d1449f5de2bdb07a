//! Calls of Python code that may run for long, such as models, and still run when the interpreter ends.
//!
//! A thread that asks for the interpreter's lock after that is ended by Python up to 3.13 with `pthread_exit`, which unwinds its stack.
//! Frames of Rust cannot take that: guards on it would give back a lock that the thread does not have, and the process aborts. So the
//! thread stops here instead, as Python 3.14 does by itself, and ends with the process.

use std::{mem, thread};

use pyo3::{ffi, prelude::*, types::PyTuple};

#[expect(
    unsafe_code,
    reason = "the function of the stable ABI, declared as one that may unwind: pyo3's declaration says that it does not"
)]
unsafe extern "C-unwind" {
    fn PyObject_Call(
        callable: *mut ffi::PyObject,
        arguments: *mut ffi::PyObject,
        named: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Stops the thread for good when it is dropped.
struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}

/// Calls a Python object.
#[expect(unsafe_code, reason = "see the module")]
pub(crate) fn call<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let stop = Stop;
    // SAFETY: both pointers are borrowed from live objects, the second is a tuple, and no named arguments are a null pointer. The
    // thread is attached, as `Bound` says. Unwinding ends at `stop`.
    let found = unsafe { PyObject_Call(callable.as_ptr(), arguments.as_ptr(), std::ptr::null_mut()) };
    mem::forget(stop);
    // SAFETY: the call gives a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), found) }
}
