//! Calls of Python code that may run for long, such as models, and still run when the interpreter ends.
//!
//! A thread that asks for the interpreter's lock after that is ended by Python up to 3.13 with
//! `pthread_exit`, which unwinds its stack. Frames of Rust cannot take that: guards on it would give back a
//! lock that the thread does not have, and the process aborts. So the thread stops here instead, as Python
//! 3.14 does by itself, and ends with the process.
//!
//! Threads that Python did not start keep what Python knows of them from one call to the next, as its own
//! threads do.

use std::{mem, thread};

use pyo3::{ffi, prelude::*, types::PyTuple};

/// Does something with the interpreter. `None` if that is ending.
///
/// Python forgets a thread that it did not start when the thread gives back the interpreter's lock, and with
/// it what models and libraries keep in `threading.local` and context variables. From the first call of this
/// on, it forgets the thread when that ends.
pub(crate) fn attached<T>(step: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    thread_local! {
        static KNOWN: AttachedThread = const { AttachedThread };
    }
    let is_known = is_known();
    Python::try_attach(|py| {
        if !is_known && KNOWN.try_with(|_| ()).is_ok() {
            know(py);
        }
        step(py)
    })
}

/// Whether Python knows this thread: one of its own, or one that it was told to remember.
#[expect(unsafe_code, reason = "the stable ABI has a function for it, pyo3 has none")]
fn is_known() -> bool {
    // SAFETY: it may be called at any time, also before and after the interpreter's life: it gives null then.
    let state = unsafe { ffi::PyGILState_GetThisThreadState() };
    !state.is_null()
}

/// Has Python remember this thread, until [`AttachedThread`] is dropped.
#[expect(unsafe_code, reason = "pyo3 counts no further than its own guards")]
fn know(_attached: Python<'_>) {
    // SAFETY: the thread is attached, so this call only increments its counter. `AttachedThread` decrements
    // it.
    unsafe { ffi::PyGILState_Ensure() };
}

/// Has Python forget this thread when it ends.
struct AttachedThread;

impl Drop for AttachedThread {
    #[expect(unsafe_code, reason = "see `know`")]
    fn drop(&mut self) {
        // Python has forgotten all other threads where it was forked or is ending.
        if is_known() {
            // SAFETY: the thread is attached, and its thread state's counter is one higher than `try_attach`
            // made it: `know` incremented it. `PyGILState_LOCKED` says that the thread was already attached,
            // so this call only decrements the counter; the end of `try_attach` releases the GIL.
            let forget =
                |_: Python<'_>| unsafe { ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED) };
            Python::try_attach(forget);
        }
    }
}

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
    // SAFETY: both pointers are borrowed from live objects, the second is a tuple, and no named arguments are
    // a null pointer. The thread is attached, as `Bound` says. Unwinding ends at `stop`.
    let found = unsafe { PyObject_Call(callable.as_ptr(), arguments.as_ptr(), std::ptr::null_mut()) };
    mem::forget(stop);
    // SAFETY: the call gives a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), found) }
}
