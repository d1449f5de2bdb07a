//! One file or several as one, whose reading can be watched and ended.

use std::{
    collections::HashMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::Mutex,
};

use fmt_core::{Entry, Error, ErrorKind, Lint, Metadata, TensorReader, TensorStream, Verification};
use tensor_core::{SparseCoo, Tensor};

use crate::{
    failure::{About, Failure, Outcome},
    files,
    progress::Progress,
    table,
};

/// Tensors of one or more files, in their order.
pub(crate) struct Sources {
    readers: Vec<Box<dyn TensorReader>>,
    /// For each tensor the file and its index there.
    places: Vec<(usize, usize)>,
    entries: Vec<Entry>,
    metadata: Metadata,
    foreign: Vec<String>,
    progress: Mutex<Progress>,
}

impl Sources {
    /// Opens one file.
    pub(crate) fn one(path: &Path) -> Outcome<Self> {
        Self::all(std::slice::from_ref(&path.to_owned()))
    }

    /// Opens files, no two of which may have a tensor of the same name, or say other things under the same key.
    pub(crate) fn all(paths: &[PathBuf]) -> Outcome<Self> {
        let readers = paths
            .iter()
            .map(|path| files::open(path))
            .collect::<Outcome<Vec<_>>>()?;
        let (mut places, mut entries, mut metadata) = (Vec::new(), Vec::<Entry>::new(), Metadata::new());
        let mut owners: HashMap<String, &Path> = HashMap::new();
        for (source, (path, reader)) in paths.iter().zip(&readers).enumerate() {
            for (key, value) in reader.metadata() {
                let known = metadata.entry(key.clone()).or_insert_with(|| value.clone());
                if known != value {
                    let what = format!("the files say different things under '{}'", table::text(key));
                    let error = Error::new(ErrorKind::Duplicate, what);
                    let quoted = |text: &str| format!("'{}'", table::text(text));
                    return Err(error.expected(quoted(known)).found(quoted(value))).about(path);
                }
            }
            for (index, entry) in reader.entries().iter().enumerate() {
                if let Some(owner) = owners.insert(entry.name.clone(), path)
                    && owner != *path
                {
                    let error = Error::new(ErrorKind::Duplicate, "the name is in two of the files")
                        .of_tensor(&entry.name);
                    return Err(error.found(format_args!("in {} as well", owner.display()))).about(path);
                }
                places.push((source, index));
                entries.push(entry.clone());
            }
        }
        let foreign = readers
            .iter()
            .flat_map(|reader| reader.foreign_parts().to_vec())
            .collect();
        let total = entries
            .iter()
            .filter_map(Entry::byte_len)
            .fold(0, u64::saturating_add);
        Ok(Self {
            readers,
            places,
            entries,
            metadata,
            foreign,
            progress: Mutex::new(Progress::new(total)),
        })
    }

    /// The same, without a bar: for the second of two files that are read side by side.
    pub(crate) fn without_progress(self) -> Self {
        Self {
            progress: Mutex::new(Progress::hidden()),
            ..self
        }
    }

    fn place(&self, index: usize) -> (&dyn TensorReader, usize) {
        let (source, index) = self.places[index];
        (&*self.readers[source], index)
    }

    /// Notes that bytes were read.
    fn seen(&self, bytes: u64) -> Result<(), Error> {
        // A panic elsewhere leaves nothing half-done in a progress bar.
        let mut progress = self
            .progress
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        progress
            .advance(bytes)
            .map_err(|_| Error::new(ErrorKind::Io, "interrupted"))
    }
}

impl TensorReader for Sources {
    fn format(&self) -> &'static str {
        self.readers.first().map_or("", |reader| reader.format())
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let (reader, own) = self.place(index);
        let tensor = reader.tensor(own)?;
        self.seen(tensor.bytes().len() as u64)?;
        Ok(tensor)
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        let (reader, own) = self.place(index);
        let sparse = reader.sparse(own)?;
        self.seen(self.entries[index].byte_len().unwrap_or(0))?;
        Ok(sparse)
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let (reader, own) = self.place(index);
        let tensor = reader.rows(own, rows)?;
        self.seen(tensor.bytes().len() as u64)?;
        Ok(tensor)
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let (reader, own) = self.place(index);
        Ok(Box::new(Watched {
            inner: reader.stream(own)?,
            sources: self,
        }))
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let (reader, own) = self.place(index);
        reader.read_into(own, out)?;
        self.seen(out.len() as u64)
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        let (reader, own) = self.place(index);
        self.seen(0)?;
        reader.verify(own)
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        let mut lints = Vec::new();
        for reader in &self.readers {
            lints.extend(reader.lints()?);
        }
        Ok(lints)
    }

    fn foreign_parts(&self) -> &[String] {
        &self.foreign
    }
}

/// A stream whose bytes are noted as read.
struct Watched<'r> {
    inner: Box<dyn TensorStream + 'r>,
    sources: &'r Sources,
}

impl TensorStream for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.inner.read(out)?;
        self.sources.seen(len as u64)?;
        Ok(len)
    }
}

/// An interrupt rather than the error that it caused.
pub(crate) fn unless_interrupted(failure: Failure) -> Failure {
    if crate::progress::is_interrupted() {
        Failure::Interrupted
    } else {
        failure
    }
}
