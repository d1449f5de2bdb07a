//! Writes files of every format.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use fmt_core::{AtomicFile, Error, Format, Plan, PlannedEntry};
use parking_lot::Mutex;
use pyo3::prelude::*;
use tensor_core::{DType, Naming, Shape, TensorSpec};

use crate::{
    buffer::{Buffer, PythonBytes},
    error, opaque,
};

/// A tensor to write: name, dtype (NumPy's name), shape, and an object with its bytes.
pub(crate) type TensorArguments<'py> = (String, String, Vec<u64>, Bound<'py, PyAny>);

/// Writes a file, and publishes it at its path when it is complete.
#[pyfunction]
pub(crate) fn save_file(
    py: Python<'_>,
    path: PathBuf,
    tensors: Vec<TensorArguments<'_>>,
    metadata: BTreeMap<String, String>,
    format: Option<&str>,
) -> PyResult<u64> {
    let format = wanted_format(&path, format)?;
    let (plan, arrays) = planned(py, tensors, metadata)?;
    let saved = py.detach(|| {
        let mut file = AtomicFile::create(&path)?;
        let len = write(format, Box::new(&mut file), plan, &arrays)?;
        file.persist()?;
        Ok(len)
    });
    saved.map_err(|error: Error| error::of_file(py, &error, Some(&path)))
}

/// Encodes tensors as a file in memory, and returns its bytes.
#[pyfunction]
pub(crate) fn save_bytes(
    py: Python<'_>,
    tensors: Vec<TensorArguments<'_>>,
    metadata: BTreeMap<String, String>,
    format: &str,
) -> PyResult<Buffer> {
    let format = wanted_format(Path::new(""), Some(format))?;
    let (plan, arrays) = planned(py, tensors, metadata)?;
    let memory = Memory::default();
    let saved = py.detach(|| write(format, Box::new(memory.clone()), plan, &arrays));
    saved.map_err(|error| error::of_file(py, &error, None))?;
    let bytes = std::mem::take(&mut *memory.0.lock());
    Ok(Buffer::new(bytes.into()))
}

/// Returns the requested format, or else the format that the file's extension implies.
pub(crate) fn wanted_format(path: &Path, format: Option<&str>) -> PyResult<&'static dyn Format> {
    let found = match format {
        Some(id) => tensor_files::format(id),
        None => tensor_files::format_of_path(path),
    };
    found.ok_or_else(|| {
        let ids: Vec<&str> = tensor_files::formats().iter().map(|format| format.id()).collect();
        let what = format.map_or_else(
            || {
                format!(
                    "the name of '{}' does not say which format it has",
                    path.display()
                )
            },
            |id| format!("unknown format '{id}'"),
        );
        error::usage(format!("{what}: expected one of {}", ids.join(", ")))
    })
}

fn planned(
    py: Python<'_>,
    tensors: Vec<TensorArguments<'_>>,
    metadata: BTreeMap<String, String>,
) -> PyResult<(Plan, Vec<PythonBytes>)> {
    let (mut entries, mut arrays) = (
        Vec::with_capacity(tensors.len()),
        Vec::with_capacity(tensors.len()),
    );
    for given in tensors {
        let (entry, array) = entry(given)?;
        entries.push(entry);
        arrays.push(array);
    }
    py.check_signals()?;
    Ok((Plan { entries, metadata }, arrays))
}

/// Creates the entry of a tensor in the planned file, and borrows the tensor's bytes.
pub(crate) fn entry(
    (name, dtype, shape, array): TensorArguments<'_>,
) -> PyResult<(PlannedEntry, PythonBytes)> {
    let wrong = |what: String| error::usage(format!("tensor '{name}': {what}"));
    let shape = Shape::new(&shape).map_err(|error| wrong(error.to_string()))?;
    let planned = match opaque::from_numpy(&dtype) {
        Some(dtype) => PlannedEntry::opaque(&*name, dtype, shape)
            .ok_or_else(|| wrong("the byte length does not fit 64 bits".to_owned()))?,
        None => {
            let dtype = DType::from_name(Naming::Numpy, &dtype).map_err(|error| wrong(error.to_string()))?;
            let spec = TensorSpec::new(dtype, shape).map_err(|error| wrong(error.to_string()))?;
            PlannedEntry::dense(&*name, spec)
        }
    };
    let array = PythonBytes::new(&array)?;
    let (expected, found) = (planned.spec.byte_len(), array.len());
    if found as u64 != expected {
        return Err(wrong(format!("expected {expected} bytes, found {found}")));
    }
    Ok((planned, array))
}

fn write<'w>(
    format: &dyn Format,
    out: Box<dyn Write + Send + 'w>,
    plan: Plan,
    arrays: &[PythonBytes],
) -> Result<u64, Error> {
    let mut writer = format.create(out, plan)?;
    for array in arrays {
        array.in_pieces(|piece| writer.write(piece))?;
    }
    writer.finish()
}

/// A growing buffer in memory as the target of a writer.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut memory = self.0.lock();
        memory.try_reserve(bytes.len())?;
        memory.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
