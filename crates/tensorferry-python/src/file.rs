//! Reads files of every format, and compares and verifies whole files.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use fmt_core::{
    ByteSource, Encoding, ErrorKind, FileSource, Layout, ReadOptions, StoredDType, TENSOR_STREAM_UNIT,
    TensorReader, Verification,
};
use pyo3::{prelude::*, types::PyDict};
use tensor_core::{Naming, Tensor};
use tensor_files::{Manifest, Tolerance};

use crate::{
    buffer::{Buffer, Fresh, PythonBytes},
    error, opaque,
};

/// An open file.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct File {
    reader: Box<dyn TensorReader>,
    /// The path; `None` for a file in memory.
    path: Option<PathBuf>,
}

/// A tensor's description: name, dtype (NumPy's name, or the file's if NumPy has none), shape, size in bytes
/// (None if the dtype is unknown), layout, why it cannot be read (None if it can), and safetensors' name of
/// the dtype.
type Described = (
    String,
    String,
    Vec<u64>,
    Option<u64>,
    String,
    Option<String>,
    String,
);

#[pymethods]
impl File {
    /// Opens a file. With `mmap`, raw tensors are views of the mapped file.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, mmap: bool) -> PyResult<Self> {
        let options = ReadOptions::default();
        let opened = py.detach(|| {
            if !mmap {
                return tensor_files::open(&path, &options);
            }
            let source = FileSource::open(&path)?;
            let mapped = crate::buffer::map(source.file())
                .map_err(|error| fmt_core::Error::io("the file cannot be mapped", error))?;
            let source: Arc<dyn ByteSource> = Arc::new(mapped);
            tensor_files::open_source(source, Some(&path), &options)
        });
        let reader = opened.map_err(|error| error::of_file(py, &error, Some(&path)))?;
        let path = Some(path);
        Ok(Self { reader, path })
    }

    /// Opens a file in memory.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let data = PythonBytes::new(data)?;
        let opened = py.detach(|| {
            let bytes: Bytes = data.to_vec().into();
            tensor_files::open_source(Arc::new(bytes), None, &ReadOptions::default())
        });
        let reader = opened.map_err(|error| error::of_file(py, &error, None))?;
        Ok(Self { reader, path: None })
    }

    /// Returns the path, or None for a file in memory.
    #[getter]
    fn path(&self) -> Option<&OsStr> {
        self.path.as_deref().map(Path::as_os_str)
    }

    /// Returns the format's short name.
    #[getter]
    fn format(&self) -> &'static str {
        self.reader.format()
    }

    /// Returns the file's metadata.
    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        self.reader.metadata().clone()
    }

    /// Describes the file's tensors.
    fn entries(&self) -> Vec<Described> {
        let entries = self.reader.entries().iter();
        entries
            .map(|entry| {
                let numpy = match &entry.dtype {
                    StoredDType::Known(dtype) => Some(dtype.name_in(Naming::Numpy)),
                    StoredDType::Opaque(dtype) if entry.is_copied_only() => opaque::numpy_name(dtype),
                    _ => None,
                };
                let known = entry.dtype.known();
                let stored = known.map_or_else(
                    || entry.dtype.to_string(),
                    |dtype| dtype.name_in(Naming::Safetensors).to_owned(),
                );
                let is_for_numpy = known.is_none() && numpy.is_some();
                let layout = match &entry.layout {
                    Layout::Dense => "dense".to_owned(),
                    Layout::Coo { .. } => "coo".to_owned(),
                    other => format!("{other:?}"),
                };
                (
                    entry.name.clone(),
                    numpy.map_or_else(|| stored.clone(), str::to_owned),
                    entry.shape.dims().to_vec(),
                    entry.byte_len(),
                    layout,
                    entry.unsupported.clone().filter(|_| !is_for_numpy),
                    stored,
                )
            })
            .collect()
    }

    /// Reads the bytes of a dense tensor.
    fn tensor(&self, py: Python<'_>, index: usize) -> PyResult<Buffer> {
        self.known(index)?;
        let bytes = py.detach(|| match self.reader.entries()[index].is_copied_only() {
            true => self.copied(index),
            false => self.reader.tensor(index).map(Tensor::into_bytes),
        });
        let bytes = bytes.map_err(|error| self.failed(py, &error))?;
        Ok(Buffer::new(bytes))
    }

    /// Reads rows of a dense tensor: bytes and shape.
    fn rows(&self, py: Python<'_>, index: usize, start: u64, stop: u64) -> PyResult<(Buffer, Vec<u64>)> {
        self.known(index)?;
        let rows = py.detach(|| match self.reader.entries()[index].is_copied_only() {
            true => self.copied_rows(index, start, stop),
            false => {
                let rows = self.reader.rows(index, start..stop)?;
                let shape = rows.shape().dims().to_vec();
                Ok((rows.into_bytes(), shape))
            }
        });
        let (bytes, shape) = rows.map_err(|error| self.failed(py, &error))?;
        Ok((Buffer::new(bytes), shape))
    }

    /// Reads a dense tensor into a newly created array.
    fn read_into(&self, py: Python<'_>, index: usize, out: &Bound<'_, PyAny>) -> PyResult<()> {
        self.known(index)?;
        let mut out = Fresh::new(out)?;
        let read = py.detach(|| match self.reader.entries()[index].is_copied_only() {
            true => {
                let bytes = self.copied(index)?;
                let out = out.as_mut();
                if out.len() != bytes.len() {
                    let error = fmt_core::Error::new(ErrorKind::SizeMismatch, "the array for the tensor");
                    return Err(error.expected(bytes.len()).found(out.len()));
                }
                out.copy_from_slice(&bytes);
                Ok(())
            }
            false => self.reader.read_into(index, out.as_mut()),
        });
        read.map_err(|error| self.failed(py, &error))
    }

    /// Checks every tensor's checksum. Returns names with "ok", "unchecked", or the mismatch.
    fn verify(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let verified: Result<Vec<_>, fmt_core::Error> = py.detach(|| {
            let entries = self.reader.entries().iter().enumerate();
            entries
                .map(|(index, entry)| {
                    let verdict = match self.reader.verify(index)? {
                        Verification::Ok => "ok".to_owned(),
                        Verification::UnknownChecksum(kind) => format!("unknown checksum {kind}"),
                        _ => "unchecked".to_owned(),
                    };
                    Ok((entry.name.clone(), verdict))
                })
                .collect()
        });
        verified.map_err(|error| self.failed(py, &error))
    }
}

impl File {
    fn failed(&self, py: Python<'_>, error: &fmt_core::Error) -> PyErr {
        error::of_file(py, error, self.path.as_deref())
    }

    /// Reads the bytes of a tensor with an opaque dtype as they are stored.
    fn copied(&self, index: usize) -> Result<Bytes, fmt_core::Error> {
        const PIECE: usize = 1 << 20;
        let entry = &self.reader.entries()[index];
        let no_room = || {
            let error = fmt_core::Error::new(ErrorKind::TooLarge, "not enough memory for the tensor");
            error.of_tensor(&entry.name)
        };
        let len = entry.byte_len().and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or_else(no_room)?;
        let room = len
            .checked_next_multiple_of(TENSOR_STREAM_UNIT)
            .ok_or_else(no_room)?;
        // The declared length of compressed data is not trusted.
        if entry.encoding != Encoding::Raw && len as u64 > ReadOptions::default().limits.decoded_bytes {
            return Err(no_room());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(room).map_err(|_| no_room())?;
        let mut stream = self.reader.stream(index)?;
        // Memory grows as bytes arrive. The loop reads to the end of the stream, where checksums are
        // compared.
        loop {
            let start = bytes.len();
            let piece = PIECE.min(room.saturating_sub(start)).max(TENSOR_STREAM_UNIT);
            bytes.resize(start + piece, 0);
            let read = stream.read(&mut bytes[start..])?;
            bytes.truncate(start + read);
            if read < piece {
                break;
            }
        }
        if bytes.len() != len {
            let error = fmt_core::Error::new(ErrorKind::SizeMismatch, "the tensor's data");
            return Err(error.of_tensor(&entry.name).expected(len).found(bytes.len()));
        }
        Ok(bytes.into())
    }

    /// Reads rows of a tensor with an opaque dtype, by reading the whole tensor.
    fn copied_rows(&self, index: usize, start: u64, stop: u64) -> Result<(Bytes, Vec<u64>), fmt_core::Error> {
        let entry = &self.reader.entries()[index];
        let mut shape = entry.shape.dims().to_vec();
        let rows = shape.first().copied().unwrap_or(0);
        if start > stop || stop > rows {
            let error = fmt_core::Error::new(ErrorKind::OutOfBounds, "there are no such rows");
            let error = error
                .of_tensor(&entry.name)
                .expected(format_args!("rows up to {rows}"));
            return Err(error.found(format_args!("{start} to {stop}")));
        }
        let bytes = self.copied(index)?;
        let row = bytes.len() / usize::try_from(rows).unwrap_or(usize::MAX).max(1);
        // The rows lie within the buffer, so their offsets fit `usize`.
        let bytes = bytes.slice(start as usize * row..stop as usize * row);
        shape[0] = stop - start;
        Ok((bytes, shape))
    }

    fn known(&self, index: usize) -> PyResult<()> {
        let count = self.reader.entries().len();
        if index < count {
            return Ok(());
        }
        Err(error::usage(format!(
            "there are {count} tensors, found index {index}"
        )))
    }
}

/// Returns all formats: short name and file extensions.
#[pyfunction]
pub(crate) fn formats() -> Vec<(&'static str, Vec<&'static str>)> {
    let formats = tensor_files::formats().iter();
    formats
        .map(|format| (format.id(), format.extensions().to_vec()))
        .collect()
}

/// Compares two files by names and contents. Returns a dictionary for each difference.
#[pyfunction]
pub(crate) fn diff<'py>(
    py: Python<'py>,
    first: PathBuf,
    second: PathBuf,
    rtol: f64,
    atol: f64,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let options = ReadOptions::default();
    let tolerance = Tolerance {
        absolute: atol,
        relative: rtol,
    };
    let differences = py.detach(|| {
        let open = |path: &PathBuf| tensor_files::open(path, &options).map_err(|error| (error, path.clone()));
        let (first, second) = (open(&first)?, open(&second)?);
        Ok(tensor_files::diff(&*first, &*second, tolerance))
    });
    let differences = differences
        .map_err(|(error, path): (fmt_core::Error, PathBuf)| error::of_file(py, &error, Some(&path)))?;
    let mut found = Vec::new();
    for difference in differences {
        let row = PyDict::new(py);
        row.set_item("name", &difference.name)?;
        row.set_item("text", difference.to_string())?;
        found.push(row);
    }
    Ok(found)
}

/// Returns a manifest of a file's tensors, as `tensor manifest` does: text or JSON, equal for equal tensors
/// in any format.
#[pyfunction]
pub(crate) fn manifest(py: Python<'_>, path: PathBuf, as_json: bool) -> PyResult<String> {
    let made = py.detach(|| {
        let reader = tensor_files::open(&path, &ReadOptions::default())?;
        Manifest::of(&*reader)
    });
    let made = made.map_err(|error: fmt_core::Error| error::of_file(py, &error, Some(&path)))?;
    Ok(if as_json { made.to_json() } else { made.to_text() })
}

/// Checks a file against a manifest. Returns differences by name.
#[pyfunction]
pub(crate) fn check_manifest(
    py: Python<'_>,
    path: PathBuf,
    manifest: &str,
) -> PyResult<Vec<(String, String)>> {
    let wanted = Manifest::parse(manifest.as_bytes()).map_err(|error| error::of_file(py, &error, None))?;
    let differences = py.detach(|| {
        let reader = tensor_files::open(&path, &ReadOptions::default())?;
        Ok(wanted.differences(&Manifest::of(&*reader)?))
    });
    differences.map_err(|error: fmt_core::Error| error::of_file(py, &error, Some(&path)))
}
