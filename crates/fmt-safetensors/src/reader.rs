//! Reads safetensors files.

use std::{fmt, sync::Arc};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, Lint, Metadata, RawTensor, ReadOptions, TensorReader, read_range,
};

use crate::{
    header::Header,
    layout::{FORMAT, LENGTH, LONGEST_HEADER},
};

/// An open safetensors file.
///
/// Opening reads and validates the header; each tensor is then one slice of the source: zero-copy for memory,
/// one read for a file. Tensors are in data order.
///
/// Tensors with a dtype that `tensor-core` lacks (FP8, FP4, complex numbers and future dtypes) are listed
/// with [`Entry::unsupported`], and reading them fails.
///
/// With [`ReadOptions::lenient`], the header may begin with white space (S2) and exceed the reference crate's
/// maximum size (S1).
///
/// See the crate documentation for an example.
pub struct SafetensorsReader {
    source: Arc<dyn ByteSource>,
    header: Header,
    header_len: u64,
}

fmt_core::open_by_path_and_bytes!(SafetensorsReader);

impl SafetensorsReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// If the file is invalid. The error has the position, and [`Error::broken_rule`] names the broken rule
    /// in docs/formats/safetensors.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let len = source.len();
        // The first eight bytes of any file can be read as a length, but only in safetensors is it followed
        // by a brace. If there is none, the error says that the file may be of another format.
        let of_length = |kind, what: &str| {
            let first = || read_range(&*source, LENGTH..LENGTH + 1, "the header");
            let what = match len > LENGTH && first().is_ok_and(|first| first.first() != Some(&b'{')) {
                true => format!("the file is not in the safetensors format, or it is damaged: {what}"),
                false => what.to_owned(),
            };
            Error::new(kind, what).at(0).rule("S1")
        };
        if len < LENGTH {
            let error = of_length(ErrorKind::Truncated, "the length of the header is truncated");
            return Err(error.expected("8 bytes").found(len));
        }
        let first = read_range(&*source, 0..LENGTH, "the length of the header")?;
        let header_len = first.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let (index_bytes, is_lenient) = (options.limits.index_bytes, options.lenient);
        let most = match is_lenient {
            true => index_bytes,
            false => LONGEST_HEADER.min(index_bytes),
        };
        if header_len > most {
            let error = of_length(ErrorKind::TooLarge, "the length of the header");
            let expected = match is_lenient || most == index_bytes {
                true => format!("at most {most}, the reader's limit"),
                false => format!(
                    "at most {most}, as in the safetensors crate; {index_bytes} where reading is lenient"
                ),
            };
            return Err(error.expected(expected).found(header_len));
        }
        if header_len > len - LENGTH {
            let error = of_length(ErrorKind::Truncated, "the header is truncated");
            return Err(error
                .expected(format_args!("{header_len} bytes"))
                .found(len - LENGTH));
        }
        let json = read_range(&*source, LENGTH..LENGTH + header_len, "the header")?;
        let header = Header::parse(&json, len - LENGTH - header_len, options)?;
        Ok(Self {
            source,
            header,
            header_len,
        })
    }

    /// Returns the size of the header with its padding.
    pub(crate) fn header_len(&self) -> u64 {
        self.header_len
    }
}

impl TensorReader for SafetensorsReader {
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
        RawTensor::under_rule(&*self.source, &self.header.entries[index], "S4")
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        // Misaligned elements cannot be viewed in place on any host.
        let is_misaligned = |entry: &&Entry| {
            let width = entry.dtype.known().map_or(1, |dtype| dtype.size() as u64);
            !entry.range.is_empty() && !entry.range.start.is_multiple_of(width)
        };
        let lints = self
            .header
            .entries
            .iter()
            .filter(is_misaligned)
            .map(|entry| Lint {
                message: "the data is not aligned for its dtype: it cannot be viewed in place (S9)"
                    .to_owned(),
                tensor: Some(entry.name.clone()),
                range: Some(entry.range.clone()),
            });
        Ok(lints.collect())
    }
}

impl fmt::Debug for SafetensorsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetensorsReader")
            .field("tensors", &self.header.entries.len())
            .field("bytes", &self.source.len())
            .finish()
    }
}
