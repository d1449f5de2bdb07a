use std::ops::Range;

use tensor_core::{Quoted, SparseCoo, Tensor};

use crate::{BytesStream, Entry, Error, ErrorKind, Layout, Metadata, RawTensor, TensorStream};

/// An open file of any format.
///
/// Everything structural was proven when it was opened; afterwards reading can fail only because the system cannot read,
/// the data is corrupt, or the tensor is stored in a way that is not supported. Such a tensor is listed and the others
/// can be read.
///
/// Tensors are known by their index in [`TensorReader::entries`].
pub trait TensorReader: Send + Sync {
    /// The format's short name, such as `tbuf`.
    fn format(&self) -> &'static str;

    /// What the file says about its tensors.
    fn entries(&self) -> &[Entry];

    /// What the file says about itself as a whole.
    fn metadata(&self) -> &Metadata;

    /// The index of the tensor with this name.
    fn find(&self, name: &str) -> Option<usize> {
        self.entries().iter().position(|entry| entry.name == name)
    }

    /// A dense tensor by its name.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when there is no tensor of this name; else as [`TensorReader::tensor`].
    fn get(&self, name: &str) -> Result<Tensor, Error> {
        match self.find(name) {
            Some(index) => self.tensor(index),
            None => Err(no_such_tensor(name, self.entries())),
        }
    }

    /// A tensor whose bytes stand in the file as they are in memory. Readers of formats that store nothing else implement
    /// this, and inherit all ways to read a dense tensor; others implement these.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the tensor is stored otherwise, or cannot be read.
    ///
    /// # Panics
    /// When there is no such index.
    fn raw(&self, index: usize) -> Result<RawTensor<'_>, Error> {
        let entry = &self.entries()[index];
        Err(Error::new(ErrorKind::Unsupported, "the tensor is not stored as it is").of_tensor(&entry.name))
    }

    /// A dense tensor. Bytes in memory that are stored raw and little-endian are not copied; what must be copied is checked
    /// against its checksum.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the entry says so or the tensor is sparse, [`ErrorKind::Corrupt`] when checksum
    /// or frames do not hold, [`ErrorKind::TooLarge`] beyond the limits, [`ErrorKind::Io`].
    ///
    /// # Panics
    /// When there is no such index.
    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        self.raw(index)?.tensor()
    }

    /// All dense tensors that can be read, by index, within a budget of bytes over all of them.
    ///
    /// A file can name the same bytes many times and say little that decodes to much: who loads all of a file that
    /// nobody vouches for says how much that may come to.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when the tensors take more, before any of them is read; else as
    /// [`TensorReader::tensor`].
    fn load_all(&self, budget: u64) -> Result<Vec<(usize, Tensor)>, Error> {
        let is_readable = |entry: &&Entry| entry.unsupported.is_none() && entry.layout == Layout::Dense;
        let bytes = self.entries().iter().filter(is_readable);
        let total = bytes
            .map(|entry| entry.byte_len().unwrap_or(u64::MAX))
            .fold(0, u64::saturating_add);
        if total > budget {
            let error = Error::new(ErrorKind::TooLarge, "the bytes of all tensors together");
            return Err(error
                .expected(format_args!("at most {budget}, the budget"))
                .found(total));
        }
        let entries = self.entries().iter().enumerate();
        entries
            .filter(|(_, entry)| is_readable(entry))
            .map(|(index, _)| Ok((index, self.tensor(index)?)))
            .collect()
    }

    /// A sparse tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the tensor is not sparse; else as [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no such index.
    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        let entry = &self.entries()[index];
        Err(Error::new(ErrorKind::Unsupported, "the tensor is not sparse").of_tensor(&entry.name))
    }

    /// Some rows (entries along axis 0) of a dense tensor, without reading the rest where the encoding allows.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when there are no such rows; else as [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no such index.
    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        self.raw(index)?.rows(rows)
    }

    /// A dense tensor's bytes one part after the other, checked against their checksum at the end. Readers need no more
    /// memory for it than one frame or part takes; the provided implementation reads a tensor that is not raw as a whole.
    ///
    /// # Errors
    /// As [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no such index.
    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        match self.raw(index) {
            Ok(raw) => Ok(raw.stream()),
            Err(_) => Ok(Box::new(BytesStream::new(self.tensor(index)?.into_bytes()))),
        }
    }

    /// Copies a dense tensor's bytes, row-major and little-endian, into a buffer of exactly their length. They are checked
    /// against their checksum.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the buffer has another length; else as [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no such index.
    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        self.raw(index)?.read_into(out)
    }

    /// Checks a tensor's bytes against its checksum, and decodes what is compressed. The provided implementation is for
    /// formats without checksums.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when they do not hold; else as [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no such index.
    fn verify(&self, index: usize) -> Result<Verification, Error> {
        self.raw(index).map(|_| Verification::Unchecked)
    }

    /// What is legal but odd in the file as a whole: bytes that belong to nothing, padding that is not zero, and what
    /// the format's page calls a lint.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the bytes in question cannot be read.
    fn lints(&self) -> Result<Vec<Lint>, Error>;

    /// Tensors whose bytes are those of one before them, by their numbers, as [`shared_ranges`](crate::shared_ranges) gives
    /// them. Readers of formats in which that cannot be, or is not known, give none.
    fn shared(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// What the file holds beside tensors and metadata, by name, such as a text in an archive of arrays. No other format
    /// has a place for it.
    fn foreign_parts(&self) -> &[String] {
        &[]
    }
}

/// Says what names there are, as far as there are few.
fn no_such_tensor(name: &str, entries: &[Entry]) -> Error {
    const SHOWN: usize = 5;
    let error = Error::new(ErrorKind::OutOfBounds, "there is no such tensor").of_tensor(name);
    let mut names: Vec<_> = entries
        .iter()
        .take(SHOWN)
        .map(|entry| Quoted(&entry.name).to_string())
        .collect();
    if names.is_empty() {
        return error;
    }
    if entries.len() > SHOWN {
        names.push(format!("{} more", entries.len() - SHOWN));
    }
    error.expected(format_args!("one of {}", names.join(", ")))
}

/// The result of verifying a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verification {
    /// A checksum was there and holds, or a frame's own.
    Ok,
    /// There is nothing to check the bytes against.
    Unchecked,
    /// There is a checksum of a kind that is not known.
    UnknownChecksum(String),
}

/// Something legal but odd in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lint {
    /// Its name in messages.
    pub message: String,
    /// The tensor it is about, if it is about one.
    pub tensor: Option<String>,
    /// The bytes of the file it is about, if there are any.
    pub range: Option<Range<u64>>,
}
