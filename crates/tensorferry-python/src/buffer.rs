//! Shares memory with Python. All `unsafe` code of this crate is here, except that of `python_code.rs`, which
//! concerns threads.

use std::{ffi::c_int, os::raw::c_void, ptr, sync::Arc};

use bytes::Bytes;
use pyo3::{buffer::PyBuffer, exceptions::PyBufferError, ffi, prelude::*};
use tensor_core::SpareBuffers;

/// Read-only bytes owned by Rust, exposed to Python by the buffer protocol without a copy. Views keep the
/// bytes alive.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Buffer(Bytes);

impl Buffer {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[expect(unsafe_code, reason = "the buffer protocol is made of raw pointers")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let bytes = &slf.get().0;
        let Ok(len) = bytes.len().try_into() else {
            return Err(PyBufferError::new_err("the buffer is too large for Python"));
        };
        // SAFETY: the view is Python's own and not null. It takes a reference to this object, which is frozen
        // and owns the bytes, so they stay in place for as long as the view lives; it is marked read-only.
        let filled = unsafe {
            let start = bytes.as_ptr().cast_mut().cast::<c_void>();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags)
        };
        if filled == -1 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}

/// Contiguous bytes owned by Python: an array, `bytes`, a `memoryview`.
///
/// Python code in another thread may change these bytes at any time, so they are never borrowed as a Rust
/// slice, but copied out piece by piece.
pub(crate) struct PythonBytes(PyBuffer<u8>);

impl PythonBytes {
    /// Bytes per piece.
    const PIECE: usize = 1 << 20;

    /// Borrows the bytes of an object, which must be contiguous.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the array must be contiguous"));
        }
        Ok(Self(buffer))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// Copies the bytes from the offset `from` into `out`.
    #[expect(unsafe_code, reason = "Python's memory is read through its pointer")]
    fn copy_out(&self, from: usize, out: &mut [u8]) {
        assert!(from <= self.len() && out.len() <= self.len() - from);
        // SAFETY: `PyBuffer` holds the buffer, so Python neither frees nor resizes its memory; the range was
        // just checked; `out` is a Rust slice, so source and target do not overlap.
        unsafe {
            let start = self.0.buf_ptr().cast::<u8>().cast_const().add(from);
            ptr::copy_nonoverlapping(start, out.as_mut_ptr(), out.len());
        }
    }

    /// Passes all bytes to `each`, in pieces. Does not need the GIL.
    pub(crate) fn in_pieces<E>(&self, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut piece = vec![0; Self::PIECE.min(self.len())];
        let mut from = 0;
        while from < self.len() {
            let len = piece.len().min(self.len() - from);
            self.copy_out(from, &mut piece[..len]);
            each(&piece[..len])?;
            from += len;
        }
        Ok(())
    }

    /// Copies all bytes into a buffer that returns to `spare` when it is dropped.
    pub(crate) fn to_spare(&self, spare: &Arc<SpareBuffers>) -> Bytes {
        let len = self.len();
        if len < SpareBuffers::LEAST_KEPT {
            return self.to_vec().into();
        }
        let copy = match spare.take(len).filter(|warm| warm.len() >= len) {
            Some(mut warm) => {
                self.copy_out(0, &mut warm[..len]);
                warm
            }
            None => self.to_vec(),
        };
        spare.lend(copy, len)
    }

    /// Copies all bytes into a new vector.
    #[expect(
        unsafe_code,
        reason = "memory that is about to be written to is not filled with zeros first"
    )]
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let len = self.len();
        let mut bytes = Vec::<u8>::with_capacity(len);
        if len > 0 {
            // SAFETY: `PyBuffer` holds the buffer, so Python neither frees nor resizes its memory; the vector
            // is new and has capacity for as many bytes, so source and target do not overlap; the length is
            // set after all bytes are written.
            unsafe {
                let start = self.0.buf_ptr().cast::<u8>().cast_const();
                ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), len);
                bytes.set_len(len);
            }
        }
        bytes
    }
}

/// Writable memory of Python that nothing else uses while this value exists: a newly created array.
pub(crate) struct Fresh(PyBuffer<u8>);

impl Fresh {
    /// Borrows an object's memory for writing.
    ///
    /// The Python code must pass an array that it has just created and not shared; [`Fresh::as_mut`] relies
    /// on that.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() || buffer.readonly() {
            return Err(PyBufferError::new_err(
                "the array must be contiguous and writable",
            ));
        }
        Ok(Self(buffer))
    }

    #[expect(unsafe_code, reason = "files are read straight into the array")]
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: the buffer is held, writable and contiguous, and only the caller has a reference to the
        // array until the call returns, so nothing else reads or writes it. Any bytes are valid `u8`s.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}

/// Maps a file. The Python caller has promised that nothing changes the file while it is mapped.
#[expect(
    unsafe_code,
    reason = "`mmap=True` is that promise, as the documentation of `safe_open` says"
)]
pub(crate) fn map(file: &std::fs::File) -> std::io::Result<Bytes> {
    // SAFETY: the caller passed `mmap=True`. Its documentation requires that no process changes or truncates
    // the file while an array that was read from it is in use.
    unsafe { tensor_mmap::map(file) }
}
