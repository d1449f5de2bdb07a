//! Reads GGUF files.

use std::{fmt, sync::Arc};

use fmt_core::{ByteSource, Entry, Error, Lint, Metadata, RawTensor, ReadOptions, TensorReader};

use crate::header::{FORMAT, Header};

/// An open GGUF file.
///
/// Opening reads and validates the header; each tensor is then one slice of the source: zero-copy for memory,
/// one read for a file. Metadata values are strings; other types are JSON, with their types under the key
/// `gguf.types`.
///
/// Quantised tensors are streams of blocks ([`crate::Dequantizer`] converts them to floats); reading them as
/// numbers fails with the reason in [`Entry::unsupported`].
///
/// See the crate documentation for an example.
pub struct GgufReader {
    source: Arc<dyn ByteSource>,
    header: Header,
}

fmt_core::open_by_path_and_bytes!(GgufReader);

impl GgufReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// If the file is invalid. [`Error::broken_rule`] names the broken rule in docs/formats/gguf.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let header = Header::read(&*source, options)?;
        Ok(Self { source, header })
    }

    pub(crate) fn data_start(&self) -> u64 {
        self.header.data
    }
}

impl TensorReader for GgufReader {
    fn format(&self) -> &'static str {
        FORMAT
    }

    fn entries(&self) -> &[Entry] {
        &self.header.entries
    }

    fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.header.find(name)
    }

    fn raw(&self, index: usize) -> Result<RawTensor<'_>, Error> {
        RawTensor::under_rule(&*self.source, &self.header.entries[index], "G4")
    }

    fn shared(&self) -> Vec<(usize, usize)> {
        fmt_core::shared_ranges(self.entries())
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        let of = |entry: &Entry, message: String| Lint {
            message,
            tensor: Some(entry.name.clone()),
            range: None,
        };
        let lints = self.header.entries.iter().flat_map(|entry| {
            let is_long = entry.name.len() > LONGEST_KNOWN_NAME;
            let long = is_long
                .then(|| format!("llama.cpp reads no names of more than {LONGEST_KNOWN_NAME} bytes (G8)"));
            let scalar = entry.shape.dims().is_empty().then(|| {
                "the Python package gguf opens no file with a tensor without dimensions (G8)".to_owned()
            });
            long.into_iter().chain(scalar).map(|message| of(entry, message))
        });
        Ok(lints.collect())
    }
}

/// Maximum name length that llama.cpp accepts.
const LONGEST_KNOWN_NAME: usize = 63;

impl fmt::Debug for GgufReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufReader")
            .field("tensors", &self.header.entries.len())
            .field("bytes", &self.source.len())
            .finish()
    }
}
