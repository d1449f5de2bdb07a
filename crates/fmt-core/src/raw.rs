use std::ops::Range;

use tensor_core::{Tensor, TensorSpec};

use crate::{
    ByteSource, Entry, Error, ErrorKind, SourceStream, TensorStream, check_buffer, read_into, read_range,
    row_range, tensor_of,
};

/// A dense tensor whose bytes stand in a source as they are: row-major, little-endian, nothing between them.
///
/// Reading of such tensors for [`TensorReader`](crate::TensorReader)s, once for all formats: a reader that implements
/// [`TensorReader::raw`](crate::TensorReader::raw) needs no other way to read. A tensor that is copied only
/// ([`Entry::is_copied_only`]) has a stream, and nothing else.
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
    /// Dtype and shape, or why there are no numbers to read.
    spec: Result<TensorSpec, &'a str>,
    range: Range<u64>,
    /// The rule that forbids to read what is copied only.
    rule: Option<&'static str>,
}

impl<'a> RawTensor<'a> {
    /// A tensor of a source. That the entry's range is as long as its dtype and shape say is the reader's to have proven.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the entry says so, and its bytes cannot be copied either.
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

    /// As [`RawTensor::new`], with the rule of the format's page that errors about unsupported tensors name.
    ///
    /// # Errors
    /// As [`RawTensor::new`].
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

    /// A tensor whose bytes begin at `start`, for readers without entries. Errors do not name it.
    #[must_use]
    pub fn at(source: &'a dyn ByteSource, spec: TensorSpec, start: u64) -> Self {
        // The reader has proven that the bytes lie inside the source.
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

    /// All of it, without a copy where the source is memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a tensor that is copied only; else as [`read_range`].
    pub fn tensor(&self) -> Result<Tensor, Error> {
        let read = self
            .spec()
            .and_then(|spec| read(self.source, spec.clone(), self.range.clone()));
        self.named(read)
    }

    /// Some of its rows, without reading the others.
    ///
    /// # Errors
    /// As [`RawTensor::tensor`] and [`row_range`].
    pub fn rows(&self, rows: Range<u64>) -> Result<Tensor, Error> {
        let part = self.spec().and_then(|spec| row_range(spec, rows));
        let start = self.range.start;
        let rows =
            part.and_then(|(spec, bytes)| read(self.source, spec, start + bytes.start..start + bytes.end));
        self.named(rows)
    }

    /// All of it into a buffer of exactly its length.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the buffer has another length; else as [`RawTensor::tensor`].
    pub fn read_into(&self, out: &mut [u8]) -> Result<(), Error> {
        let fits = self.spec().and_then(|spec| check_buffer(spec, out.len()));
        self.named(fits.and_then(|()| read_into(self.source, self.range.start, out, "the data")))
    }

    /// All of it, one part after the other.
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
