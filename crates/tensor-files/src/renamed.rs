use std::{ops::Range, path::Path};

use fmt_btf::Names;
use fmt_core::{
    ByteSource, Entry, Error, FileSource, Lint, Metadata, TensorReader, TensorStream, Verification,
    read_range,
};
use tensor_core::{SparseCoo, Tensor};

/// A file of names that is longer than this is none.
const LONGEST: u64 = 256 << 20;

/// A reader whose tensors have other names, and whose file says something about itself elsewhere.
struct Renamed {
    inner: Box<dyn TensorReader>,
    entries: Vec<Entry>,
    metadata: Metadata,
    lint: Option<Lint>,
}

/// Gives a BTF file's tensors the names that stand beside it, if they do and fit.
pub(crate) fn with_names_beside(inner: Box<dyn TensorReader>, path: &Path) -> Box<dyn TensorReader> {
    let names_path = Names::path_for(path);
    if !names_path.exists() {
        return inner;
    }
    // Only a regular file is read, and a pipe is not waited for.
    let json = FileSource::open(&names_path)
        .and_then(|file| read_range(&file, 0..file.len().min(LONGEST), "the file of names"));
    let names = json.and_then(|json| Names::from_json(&json, inner.entries().len()));
    let mut entries = inner.entries().to_vec();
    let (metadata, lint) = match names {
        Ok(names) => {
            for (entry, name) in entries.iter_mut().zip(names.names()) {
                entry.name.clone_from(name);
            }
            (names.metadata().clone(), None)
        }
        Err(error) => {
            let message = format!("{} is not used: {error}", names_path.display());
            let lint = Lint {
                message,
                tensor: None,
                range: None,
            };
            (inner.metadata().clone(), Some(lint))
        }
    };
    Box::new(Renamed {
        inner,
        entries,
        metadata,
        lint,
    })
}

impl TensorReader for Renamed {
    fn format(&self) -> &'static str {
        self.inner.format()
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        self.inner.tensor(index)
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        self.inner.sparse(index)
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        self.inner.rows(index, rows)
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        self.inner.stream(index)
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        self.inner.read_into(index, out)
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        self.inner.verify(index)
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        let mut lints = self.inner.lints()?;
        lints.extend(self.lint.clone());
        Ok(lints)
    }
}
