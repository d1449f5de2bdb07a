//! The native half of the Python package `tensorferry`: files, clients, and a server for models of the same
//! process.
//!
//! The public interface is in `python/tensorferry`; this module, `tensorferry._native`, is private to it.
//! This module handles only bytes, names of dtypes and shapes; the Python half converts them to NumPy arrays.

mod buffer;
mod call;
mod client;
mod convert;
mod error;
mod error_recording;
mod file;
mod opaque;
mod python_code;
mod runtime;
mod save;
mod server;
mod stream;
mod wire;
mod writer;

use pyo3::prelude::*;

/// The private native module.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add(
        "TensorFileError",
        module.py().get_type::<error::TensorFileError>(),
    )?;
    module.add("InferenceError", module.py().get_type::<error::InferenceError>())?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<file::File>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<call::Call>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<writer::Writer>()?;
    module.add_function(wrap_pyfunction!(file::formats, module)?)?;
    module.add_function(wrap_pyfunction!(convert::convert, module)?)?;
    module.add_function(wrap_pyfunction!(file::diff, module)?)?;
    module.add_function(wrap_pyfunction!(file::manifest, module)?)?;
    module.add_function(wrap_pyfunction!(file::check_manifest, module)?)?;
    module.add_function(wrap_pyfunction!(save::save_file, module)?)?;
    module.add_function(wrap_pyfunction!(save::save_bytes, module)?)?;
    Ok(())
}
