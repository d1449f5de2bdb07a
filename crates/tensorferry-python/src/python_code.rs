//! Calls Python code that may run for a long time, such as models, and may still be running when the
//! interpreter ends.
//!
//! If a thread requests the GIL after the interpreter has ended, Python up to 3.13 ends the thread with
//! `pthread_exit`, which unwinds its stack. The unwinding must not reach Rust frames: guards in them would
//! release a GIL that the thread does not hold, and the process would abort. So the thread blocks here
//! instead, as in Python 3.14, and ends with the process.
//!
//! Threads that Python did not start keep their Python thread state from one call to the next, like Python's
//! own threads.

use std::{mem, thread};

use pyo3::{ffi, prelude::*, types::PyTuple};

/// Runs `step` with the GIL; returns `None` if the interpreter is shutting down.
///
/// Python deletes the state of a thread that it did not start when the thread releases the GIL, and with it
/// all values that models and libraries keep in `threading.local` and context variables. After the first call
/// of this function, the state is kept until the thread ends.
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

/// Returns whether this thread has a Python thread state: Python started it, or [`know`] created the state.
#[expect(unsafe_code, reason = "the stable ABI has a function for it, pyo3 has none")]
fn is_known() -> bool {
    // SAFETY: the function may be called at any time; without an interpreter it returns null.
    let state = unsafe { ffi::PyGILState_GetThisThreadState() };
    !state.is_null()
}

/// Keeps the Python state of this thread until [`AttachedThread`] is dropped.
#[expect(unsafe_code, reason = "pyo3 counts no further than its own guards")]
fn know(_attached: Python<'_>) {
    // SAFETY: the thread is attached, so this call only increments its counter. `AttachedThread` decrements
    // it.
    unsafe { ffi::PyGILState_Ensure() };
}

/// Deletes the Python state of this thread when the thread ends.
struct AttachedThread;

impl Drop for AttachedThread {
    #[expect(unsafe_code, reason = "see `know`")]
    fn drop(&mut self) {
        // After a fork, or while the interpreter shuts down, Python has already deleted the states of other
        // threads.
        if is_known() {
            // SAFETY: the thread is attached, and its thread state's counter is one higher than `try_attach`
            // made it: `know` incremented it. `PyGILState_LOCKED` means that the thread was already attached,
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

/// Blocks the thread forever when it is dropped.
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
    // SAFETY: both pointers are borrowed from live objects, the second one is a tuple, and a null pointer
    // means no named arguments. The thread is attached, since it has a `Bound`. Unwinding does not go beyond
    // `stop`.
    let found = unsafe { PyObject_Call(callable.as_ptr(), arguments.as_ptr(), std::ptr::null_mut()) };
    mem::forget(stop);
    // SAFETY: the call returns a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), found) }
}
