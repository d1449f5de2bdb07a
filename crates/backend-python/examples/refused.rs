//! Shows which files are Python models, and that they are refused until Python is allowed.
//!
//! ```sh
//! cargo run --package backend-python --example refused
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use backend_python::{PythonBackend, Settings};
use oip_model::{Backend, LoadContext, ModelSource};

fn main() {
    let backend = PythonBackend::new(Settings::default());
    println!("files: {}", backend.file_names().join(", "));
    let source = ModelSource::new(
        "m",
        "1",
        "models/m/1/model.py",
        b"class Model: ...".as_slice().into(),
    );
    match backend.load(&source, &LoadContext::default()) {
        Ok(_) => println!("loaded"),
        Err(error) => println!("refused: {}", error.message()),
    }
}
