//! Reads unencoded tensors, for the readers of all formats: whole, by rows, or as a stream.

use std::ops::Range;

use tensor_core::{Tensor, TensorSpec};

use crate::{
    ByteSource, Entry, Error, ErrorKind, SourceStream, TensorStream, check_buffer, read_into, read_range,
    row_range, tensor_of,
};

/// A dense tensor stored unencoded in a source: row-major, little-endian, contiguous.
///
/// Implements reading for [`TensorReader`](crate::TensorReader)s of all formats: a reader that implements
/// [`TensorReader::raw`](crate::TensorReader::raw) needs no other read method. A tensor that can only be
/// copied ([`Entry::is_copied_only`]) supports only streaming.
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
    /// The tensor's name, for errors.
    name: Option<&'a str>,
    /// Dtype and shape, or the reason why the tensor cannot be read as numbers.
    spec: Result<TensorSpec, &'a str>,
    range: Range<u64>,
    /// The rule that restricts the tensor to copying.
    rule: Option<&'static str>,
}

impl<'a> RawTensor<'a> {
    /// Creates a raw tensor of a source. The reader must have validated that the entry's range has the length
    /// of its dtype and shape.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the tensor can be neither read as numbers nor copied.
    pub fn new(source: &'a dyn ByteSource, entry: &'a Entry) -> Result<Self, Error> {
        let spec = entry.spec().filter(|_| entry.unsupported.is_none());
        let reason = entry.unsupported.as_deref().unwrap_or("the tensor");
        if spec.is_none() && !entry.is_copied_only() {
            return Err(Error::new(ErrorKind::Unsupported, reason).of_tensor(&entry.name));
        }
        Ok(Self {
            source,
            name: Some(&entry.name),
            spec: spec.ok_or(reason),
            range: entry.range.clone(),
            rule: None,
        })
    }

    /// Like [`RawTensor::new`], but errors about unsupported tensors name `rule`.
    ///
    /// # Errors
    /// The errors of [`RawTensor::new`].
    pub fn under_rule(
        source: &'a dyn ByteSource,
        entry: &'a Entry,
        rule: &'static str,
    ) -> Result<Self, Error> {
        let raw = Self::new(source, entry).map_err(|error| error.rule(rule))?;
        Ok(Self {
            rule: Some(rule),
            ..raw
        })
    }

    /// Creates a raw tensor whose bytes begin at `start`, for readers without entries. Errors do not contain
    /// the tensor's name.
    #[must_use]
    pub fn at(source: &'a dyn ByteSource, spec: TensorSpec, start: u64) -> Self {
        // The reader has validated that the bytes lie within the source.
        let range = start..start + spec.byte_len();
        Self {
            source,
            name: None,
            spec: Ok(spec),
            range,
            rule: None,
        }
    }

    fn spec(&self) -> Result<&TensorSpec, Error> {
        self.spec.as_ref().map_err(|reason| {
            let error = Error::new(ErrorKind::Unsupported, *reason);
            match self.rule {
                Some(rule) => error.rule(rule),
                None => error,
            }
        })
    }

    /// Reads the whole tensor, without a copy if the source is in memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a tensor that can only be copied; otherwise the errors of
    /// [`read_range`].
    pub fn tensor(&self) -> Result<Tensor, Error> {
        let read = self
            .spec()
            .and_then(|spec| read(self.source, spec.clone(), self.range.clone()));
        self.named(read)
    }

    /// Reads a range of rows without reading the remainder of the tensor.
    ///
    /// # Errors
    /// The errors of [`RawTensor::tensor`] and [`row_range`].
    pub fn rows(&self, rows: Range<u64>) -> Result<Tensor, Error> {
        let part = self.spec().and_then(|spec| row_range(spec, rows));
        let start = self.range.start;
        let rows =
            part.and_then(|(spec, bytes)| read(self.source, spec, start + bytes.start..start + bytes.end));
        self.named(rows)
    }

    /// Reads the whole tensor into a buffer of exactly its length.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the buffer has another length; otherwise the errors of
    /// [`RawTensor::tensor`].
    pub fn read_into(&self, out: &mut [u8]) -> Result<(), Error> {
        let fits = self.spec().and_then(|spec| check_buffer(spec, out.len()));
        self.named(fits.and_then(|()| read_into(self.source, self.range.start, out, "the data")))
    }

    /// Returns a stream of the tensor's bytes.
    #[must_use]
    pub fn stream(&self) -> Box<dyn TensorStream + 'a> {
        Box::new(SourceStream::new(self.source, self.range.clone()))
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
    tensor_of(spec, bytes).map_err(|error| error.at(at))
}
