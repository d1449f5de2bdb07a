//! Writes files tensor by tensor.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
};

use fmt_core::{AtomicFile, Error, Format, Plan, PlannedEntry};
use parking_lot::{Mutex, MutexGuard};
use pyo3::{exceptions::PyOSError, prelude::*};

use crate::{
    error,
    save::{TensorArguments, entry, wanted_format},
};

/// Writes a file whose tensors are not known in advance.
///
/// The formats need a list of all tensors before the first byte. So tensors are first written to an unnamed
/// file in the target's directory, and copied into the target when the writer is finished.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Writer {
    path: PathBuf,
    format: &'static dyn Format,
    metadata: BTreeMap<String, String>,
    gathered: Mutex<Option<GatheredTensors>>,
}

struct GatheredTensors {
    spool: BufWriter<File>,
    entries: Vec<PlannedEntry>,
    names: BTreeSet<String>,
}

#[pymethods]
impl Writer {
    #[new]
    fn new(path: PathBuf, metadata: BTreeMap<String, String>, format: Option<&str>) -> PyResult<Self> {
        let format = wanted_format(&path, format)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let spool = tempfile::tempfile_in(folder);
        let spool = spool.map_err(|error| {
            let what = format!(
                "no temporary file can be created in the directory '{}'",
                folder.display()
            );
            system(&error, &what, &path)
        })?;
        Ok(Self {
            format,
            metadata,
            gathered: Mutex::new(Some(GatheredTensors {
                spool: BufWriter::with_capacity(1 << 20, spool),
                entries: Vec::new(),
                names: BTreeSet::new(),
            })),
            path,
        })
    }

    /// Appends a tensor to the unnamed file.
    fn add(&self, py: Python<'_>, tensor: TensorArguments<'_>) -> PyResult<()> {
        let (entry, array) = entry(tensor)?;
        let added = py.detach(|| {
            let mut gathered = self.gathered();
            let Some(gathered) = gathered.as_mut() else {
                return Ok(Err("the writer is closed".to_owned()));
            };
            if !gathered.names.insert(entry.name.clone()) {
                return Ok(Err(format!("tensor '{}': it was added before", entry.name)));
            }
            array.in_pieces(|piece| gathered.spool.write_all(piece))?;
            gathered.entries.push(entry);
            Ok(Ok(()))
        });
        match added {
            Ok(added) => added.map_err(error::usage),
            Err(error) => {
                // Closes the writer, because a partially written tensor would shift the bytes of the next
                // one.
                self.abort();
                let error: std::io::Error = error;
                Err(system(
                    &error,
                    "the tensors that were gathered cannot be written",
                    &self.path,
                ))
            }
        }
    }

    /// Writes the target file, and publishes it at its path when it is complete. Returns its size in bytes.
    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        let Some(gathered) = self.gathered().take() else {
            return Err(error::usage("the writer is closed"));
        };
        let written = py.detach(|| self.write(gathered));
        written.map_err(|error| error::of_file(py, &error, Some(&self.path)))
    }

    /// Closes the writer, and drops all tensors that were added.
    fn abort(&self) {
        drop(self.gathered().take());
    }
}

/// Creates the error for a target that the system could not write.
fn system(error: &std::io::Error, what: &str, path: &Path) -> PyErr {
    match error::number(error) {
        Some(number) => error::of_system(number, format!("{what}: {error}"), Some(path)),
        None => PyOSError::new_err(format!("{}: {what}: {error}", path.display())),
    }
}

impl Writer {
    fn gathered(&self) -> MutexGuard<'_, Option<GatheredTensors>> {
        self.gathered.lock()
    }

    fn write(&self, gathered: GatheredTensors) -> Result<u64, Error> {
        let failed = |error| Error::io("the tensors that were gathered", error);
        let mut spool = gathered
            .spool
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        spool.rewind().map_err(failed)?;
        let mut file = AtomicFile::create(&self.path)?;
        let plan = Plan {
            entries: gathered.entries,
            metadata: self.metadata.clone(),
        };
        let mut writer = self.format.create(Box::new(&mut file), plan)?;
        let mut piece = vec![0; 1 << 20];
        loop {
            match spool.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => writer.write(&piece[..read])?,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let len = writer.finish()?;
        file.persist()?;
        Ok(len)
    }
}
