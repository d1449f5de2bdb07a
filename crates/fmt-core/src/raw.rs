use std::ops::Range;

use tensor_core::{Tensor, TensorSpec};

use crate::{
    ByteSource, Entry, Error, ErrorKind, SourceStream, TensorStream, read_range, row_range, source_error,
};

/// A dense tensor whose bytes stand in a source as they are: row-major, little-endian, nothing between them.
///
/// What [`TensorReader`](crate::TensorReader)s do for such tensors, once for all formats.
///
/// ```
/// use bytes::Bytes;
/// use fmt_core::{Entry, RawTensor, StoredDType};
/// use tensor_core::{DType, Shape};
///
/// let source = Bytes::from_static(b"head123456");
/// let shape = Shape::new(&[3, 2])?;
/// let entry = Entry::new("w".to_owned(), StoredDType::Known(DType::U8), shape, 4..10);
/// let rows = RawTensor::new(&source, &entry).unwrap().rows(1..2).unwrap();
/// assert_eq!(rows.bytes(), "34");
/// assert_eq!(rows.bytes().as_ptr(), source[6..].as_ptr());
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
pub struct RawTensor<'a> {
    source: &'a dyn ByteSource,
    entry: &'a Entry,
    spec: TensorSpec,
}

impl<'a> RawTensor<'a> {
    /// A tensor of a source. That the entry's range is as long as its dtype and shape say is the reader's to have proven.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the entry says so.
    pub fn new(source: &'a dyn ByteSource, entry: &'a Entry) -> Result<Self, Error> {
        let spec = entry.spec().filter(|_| entry.unsupported.is_none());
        let spec = spec.ok_or_else(|| {
            let reason = entry.unsupported.as_deref().unwrap_or("the tensor");
            Error::new(ErrorKind::Unsupported, reason).of_tensor(&entry.name)
        })?;
        Ok(Self { source, entry, spec })
    }

    /// All of it, without a copy where the source is memory.
    ///
    /// # Errors
    /// As [`read_range`].
    pub fn tensor(&self) -> Result<Tensor, Error> {
        self.read(self.spec.clone(), self.entry.range.clone())
    }

    /// Some of its rows, without reading the others.
    ///
    /// # Errors
    /// As [`row_range`] and [`read_range`].
    pub fn rows(&self, rows: Range<u64>) -> Result<Tensor, Error> {
        let part = row_range(&self.spec, rows);
        let (spec, bytes) = part.map_err(|error| error.of_tensor(&self.entry.name))?;
        let start = self.entry.range.start;
        self.read(spec, start + bytes.start..start + bytes.end)
    }

    /// All of it into a buffer of exactly its length.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the buffer has another length; else as [`read_range`].
    pub fn read_into(&self, out: &mut [u8]) -> Result<(), Error> {
        let name = &self.entry.name;
        if out.len() as u64 != self.spec.byte_len() {
            let error = Error::new(ErrorKind::SizeMismatch, "the length of the buffer");
            return Err(error
                .of_tensor(name)
                .expected(format_args!("{} bytes for {}", self.spec.byte_len(), self.spec))
                .found(out.len()));
        }
        let start = self.entry.range.start;
        let read = self.source.read_into(start, out);
        read.map_err(|error| source_error(error, start, "the data").of_tensor(name))
    }

    /// All of it, one part after the other.
    #[must_use]
    pub fn stream(&self) -> Box<dyn TensorStream + 'a> {
        Box::new(SourceStream::new(self.source, self.entry.range.clone()))
    }

    fn read(&self, spec: TensorSpec, range: Range<u64>) -> Result<Tensor, Error> {
        let at = range.start;
        let bytes = read_range(self.source, range, "the data");
        let bytes = bytes.map_err(|error| error.of_tensor(&self.entry.name))?;
        Tensor::new(spec, bytes).map_err(|error| {
            let error = Error::new(ErrorKind::SizeMismatch, error.to_string());
            error.of_tensor(&self.entry.name).at(at)
        })
    }
}
