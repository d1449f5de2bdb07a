//! The interface of readers: lists a file's tensors, and reads and verifies them.

use std::ops::Range;

use tensor_core::{QuotedName, SparseCoo, Tensor};

use crate::{BytesStream, Entry, Error, ErrorKind, Layout, Metadata, RawTensor, TensorStream};

/// An open file of any format.
///
/// Opening validates the structure; afterwards reading fails only for I/O errors, corrupt data, or tensors
/// stored in an unsupported way. Such tensors are listed, and all other tensors can be read.
///
/// Tensors are identified by their index in [`TensorReader::entries`].
pub trait TensorReader: Send + Sync {
    /// Returns the format's short name, such as `tbuf`.
    fn format(&self) -> &'static str;

    /// Returns the descriptions of the file's tensors.
    fn entries(&self) -> &[Entry];

    /// Returns the file's metadata.
    fn metadata(&self) -> &Metadata;

    /// Returns the index of the tensor with this name.
    fn find(&self, name: &str) -> Option<usize> {
        self.entries().iter().position(|entry| entry.name == name)
    }

    /// Reads a dense tensor by name.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when there is no tensor of this name; otherwise the errors of
    /// [`TensorReader::tensor`].
    fn get(&self, name: &str) -> Result<Tensor, Error> {
        match self.find(name) {
            Some(index) => self.tensor(index),
            None => Err(no_such_tensor(name, self.entries())),
        }
    }

    /// Returns a tensor that is stored as in memory: raw, row-major, little-endian. A reader whose tensors
    /// are all stored this way implements only this method and inherits the methods for reading dense
    /// tensors; other readers implement those methods.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the tensor is stored differently, or cannot be read.
    ///
    /// # Panics
    /// When there is no tensor with this index.
    fn raw(&self, index: usize) -> Result<RawTensor<'_>, Error> {
        let entry = &self.entries()[index];
        Err(Error::new(ErrorKind::Unsupported, "the tensor is not stored as it is").of_tensor(&entry.name))
    }

    /// Reads a dense tensor. Raw little-endian bytes in memory are not copied; bytes that must be copied are
    /// verified against their checksum.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the entry is unsupported or the tensor is sparse,
    /// [`ErrorKind::Corrupt`] when the checksum does not match or a frame is damaged, [`ErrorKind::TooLarge`]
    /// beyond the limits, [`ErrorKind::Io`].
    ///
    /// # Panics
    /// When there is no tensor with this index.
    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        self.raw(index)?.tensor()
    }

    /// Reads all readable dense tensors, by index, within a total budget in bytes.
    ///
    /// A file can refer to the same bytes many times, and few bytes can decode to many: the budget bounds the
    /// memory for loading an untrusted file.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when the tensors exceed the budget, before any of them is read; otherwise as
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

    /// Reads a sparse tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the tensor is not sparse; otherwise the errors of
    /// [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no tensor with this index.
    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        let entry = &self.entries()[index];
        Err(Error::new(ErrorKind::Unsupported, "the tensor is not sparse").of_tensor(&entry.name))
    }

    /// Reads a range of rows (entries along axis 0) of a dense tensor, without reading the remainder if the
    /// encoding allows that.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when the rows do not exist; otherwise the errors of
    /// [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no tensor with this index.
    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        self.raw(index)?.rows(rows)
    }

    /// Returns a stream of a dense tensor's bytes. The checksum is verified at the end. Readers keep only one
    /// frame or part in memory; the default implementation reads tensors that are not raw as a whole.
    ///
    /// # Errors
    /// The errors of [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no tensor with this index.
    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        match self.raw(index) {
            Ok(raw) => Ok(raw.stream()),
            Err(_) => Ok(Box::new(BytesStream::new(self.tensor(index)?.into_bytes()))),
        }
    }

    /// Copies a dense tensor's bytes, row-major and little-endian, into a buffer of exactly their length. The
    /// checksum is verified.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the buffer has another length; otherwise the errors of
    /// [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no tensor with this index.
    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        self.raw(index)?.read_into(out)
    }

    /// Verifies a tensor's checksum, and decodes compressed bytes. The default implementation suits formats
    /// without checksums.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when a checksum does not match or a frame is damaged; otherwise as
    /// [`TensorReader::tensor`].
    ///
    /// # Panics
    /// When there is no tensor with this index.
    fn verify(&self, index: usize) -> Result<Verification, Error> {
        self.raw(index).map(|_| Verification::Unchecked)
    }

    /// Returns warnings about valid but suspicious contents: bytes that belong to no tensor, nonzero padding,
    /// and the lints of the format's page in docs/formats.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the bytes cannot be read.
    fn lints(&self) -> Result<Vec<Lint>, Error>;

    /// Returns the tensors that share the bytes of an earlier one, as in
    /// [`shared_ranges`](crate::shared_ranges). The list is empty for formats that do not allow sharing, or
    /// do not record it.
    fn shared(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// Returns the names of parts of the file that are neither tensors nor metadata, such as a text file in
    /// an archive of arrays. The list is empty for formats without such parts.
    fn foreign_parts(&self) -> &[String] {
        &[]
    }
}

/// Creates the error for an unknown name; lists the existing names if there are few.
fn no_such_tensor(name: &str, entries: &[Entry]) -> Error {
    const SHOWN: usize = 5;
    let error = Error::new(ErrorKind::OutOfBounds, "there is no such tensor").of_tensor(name);
    let mut names: Vec<_> = entries
        .iter()
        .take(SHOWN)
        .map(|entry| QuotedName(&entry.name).to_string())
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
    /// A checksum of the tensor or of a frame matches.
    Ok,
    /// The tensor has no checksum.
    Unchecked,
    /// The checksum is of an unknown kind.
    UnknownChecksum(String),
}

/// A warning about valid but suspicious contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lint {
    /// The message to show to the user.
    pub message: String,
    /// The name of the tensor concerned, if any.
    pub tensor: Option<String>,
    /// The byte range of the file that the message is about, if any.
    pub range: Option<Range<u64>>,
}
