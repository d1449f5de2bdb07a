use std::ops::Range;

use tensor_core::{Tensor, TensorSpec};

use crate::{
    ByteSource, Entry, Error, ErrorKind, SourceStream, TensorStream, check_buffer, read_range, row_range,
    source_error,
};

/// A dense tensor whose bytes stand in a source as they are: row-major, little-endian, nothing between them.
///
/// Reading of such tensors for [`TensorReader`](crate::TensorReader)s, once for all formats.
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
    /// For errors.
    name: Option<&'a str>,
    spec: TensorSpec,
    start: u64,
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
        Ok(Self {
            name: Some(&entry.name),
            ..Self::at(source, spec, entry.range.start)
        })
    }

    /// A tensor whose bytes begin at `start`, for readers without entries. Errors do not name it.
    #[must_use]
    pub fn at(source: &'a dyn ByteSource, spec: TensorSpec, start: u64) -> Self {
        Self {
            source,
            name: None,
            spec,
            start,
        }
    }

    /// All of it, without a copy where the source is memory.
    ///
    /// # Errors
    /// As [`read_range`].
    pub fn tensor(&self) -> Result<Tensor, Error> {
        self.named(read(self.source, self.spec.clone(), self.range()))
    }

    /// Some of its rows, without reading the others.
    ///
    /// # Errors
    /// As [`row_range`] and [`read_range`].
    pub fn rows(&self, rows: Range<u64>) -> Result<Tensor, Error> {
        let part = row_range(&self.spec, rows);
        let rows = part.and_then(|(spec, bytes)| {
            read(
                self.source,
                spec,
                self.start + bytes.start..self.start + bytes.end,
            )
        });
        self.named(rows)
    }

    /// All of it into a buffer of exactly its length.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the buffer has another length; else as [`read_range`].
    pub fn read_into(&self, out: &mut [u8]) -> Result<(), Error> {
        let read = check_buffer(&self.spec, out.len()).and_then(|()| {
            let read = self.source.read_into(self.start, out);
            read.map_err(|error| source_error(error, self.start, "the data"))
        });
        self.named(read)
    }

    /// All of it, one part after the other.
    #[must_use]
    pub fn stream(&self) -> Box<dyn TensorStream + 'a> {
        Box::new(SourceStream::new(self.source, self.range()))
    }

    /// The reader has proven that the bytes lie inside the source.
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.spec.byte_len()
    }

    fn named<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| match self.name {
            Some(name) => error.of_tensor(name),
            None => error,
        })
    }
}

fn read(source: &dyn ByteSource, spec: TensorSpec, range: Range<u64>) -> Result<Tensor, Error> {
    let at = range.start;
    let bytes = read_range(source, range, "the data")?;
    Tensor::new(spec, bytes).map_err(|error| Error::new(ErrorKind::SizeMismatch, error.to_string()).at(at))
}
