use std::{
    io::{BufReader, Read},
    ops::Range,
};

use fmt_core::{
    ByteSource, BytesStream, Encoding, Entry, Error, ErrorKind, Limits, StoredDType, TENSOR_STREAM_UNIT,
    TensorStream, Verification, read_range, row_range, source_error,
};
use fmt_zip::SourceCursor;
use tensor_core::{Bytes, Tensor, TensorSpec};

use crate::{header::Header, order::to_row_major};

/// One array of a file, all that is structural proven.
pub(crate) struct Array {
    pub(crate) entry: Entry,
    is_column_major: bool,
    place: Place,
}

/// How the array's bytes are stored.
pub(crate) enum Place {
    /// As they are, with nothing to hold them against.
    Plain,
    /// As they are. The checksum covers the header too, whose own is at hand.
    Stored { head_crc: u32, crc: u32 },
    /// Deflated, header and elements together.
    Deflated {
        compressed: Range<u64>,
        head_len: u64,
        crc: u32,
    },
}

impl Array {
    /// An array whose elements stand at `range`.
    pub(crate) fn new(name: &str, header: &Header, range: Range<u64>, place: Place) -> Self {
        let dtype = header
            .dtype
            .map_or_else(|| StoredDType::Unknown(header.descr.clone()), StoredDType::Known);
        let mut entry = Entry::new(name.to_owned(), dtype, header.shape.clone(), range);
        entry.is_big_endian = header.is_big_endian;
        entry.unsupported = header.dtype.is_none().then(|| {
            format!(
                "the dtype {} is not supported",
                tensor_core::Quoted(&header.descr)
            )
        });
        if header.is_column_major && header.shape.rank() > 1 {
            entry.encoding = Encoding::ColumnMajor;
        }
        if let Place::Stored { crc, .. } | Place::Deflated { crc, .. } = place {
            entry.checksum = Some(format!("crc32:{crc:08x}"));
        }
        if let Place::Deflated { .. } = place {
            entry.encoding = Encoding::Deflate;
        }
        Self {
            entry,
            is_column_major: header.is_column_major,
            place,
        }
    }

    /// A member of an archive that cannot be read.
    pub(crate) fn unsupported(name: &str, range: Range<u64>, reason: String) -> Self {
        let shape = tensor_core::Shape::vector(range.end - range.start);
        let dtype = StoredDType::Unknown("?".to_owned());
        let mut entry = Entry::new(name.to_owned(), dtype, shape, range);
        entry.encoding = Encoding::Unknown("zip".to_owned());
        entry.unsupported = Some(reason);
        Self {
            entry,
            is_column_major: false,
            place: Place::Plain,
        }
    }

    fn readable(&self) -> Result<TensorSpec, Error> {
        let spec = self.entry.spec().filter(|_| self.entry.unsupported.is_none());
        spec.ok_or_else(|| {
            let reason = self.entry.unsupported.as_deref().unwrap_or("the array");
            Error::new(ErrorKind::Unsupported, reason).rule("N4")
        })
    }

    /// Whether the stored bytes are the tensor's as they are.
    fn is_plain(&self, spec: &TensorSpec) -> bool {
        let is_swapped = self.entry.is_big_endian && spec.dtype().size() > 1;
        let is_transposed = self.is_column_major && spec.shape().rank() > 1;
        !is_swapped && !is_transposed
    }

    pub(crate) fn tensor(&self, source: &dyn ByteSource, limits: &Limits) -> Result<Tensor, Error> {
        let spec = self.readable()?;
        let stored = self.stored(source, &spec, limits, false)?;
        self.converted(spec, stored, limits)
    }

    pub(crate) fn rows(
        &self,
        source: &dyn ByteSource,
        rows: Range<u64>,
        limits: &Limits,
    ) -> Result<Tensor, Error> {
        let spec = self.readable()?;
        let (part, bytes) = row_range(&spec, rows.clone())?;
        let is_transposed = self.is_column_major && spec.shape().rank() > 1;
        if is_transposed || matches!(self.place, Place::Deflated { .. }) {
            // Rows are scattered over all of it, or behind what must be inflated first.
            let whole = self.tensor(source, limits)?;
            return whole
                .rows(rows)
                .map_err(|error| Error::new(ErrorKind::OutOfBounds, error.to_string()));
        }
        let start = self.entry.range.start;
        let stored = read_range(source, start + bytes.start..start + bytes.end, "the rows")?;
        self.converted(part, stored, limits)
    }

    pub(crate) fn read_into(
        &self,
        source: &dyn ByteSource,
        out: &mut [u8],
        limits: &Limits,
    ) -> Result<(), Error> {
        let spec = self.readable()?;
        if out.len() as u64 != spec.byte_len() {
            let error = Error::new(ErrorKind::SizeMismatch, "the length of the buffer");
            return Err(error
                .expected(format_args!("{} bytes for {spec}", spec.byte_len()))
                .found(out.len()));
        }
        if self.is_plain(&spec) && !matches!(self.place, Place::Deflated { .. }) {
            let start = self.entry.range.start;
            let read = source.read_into(start, out);
            read.map_err(|error| source_error(error, start, "the data"))?;
            return self.check(out).map(drop);
        }
        let stored = self.stored(source, &spec, limits, true)?;
        out.copy_from_slice(self.converted(spec, stored, limits)?.bytes());
        Ok(())
    }

    /// The elements one part after the other. An array in column-major order is read as a whole: each row is scattered
    /// over all of it.
    pub(crate) fn stream<'a>(
        &self,
        source: &'a dyn ByteSource,
        limits: &Limits,
    ) -> Result<Box<dyn TensorStream + 'a>, Error> {
        let spec = self.readable()?;
        if self.is_column_major && spec.shape().rank() > 1 {
            let whole = self.tensor(source, limits)?;
            return Ok(Box::new(BytesStream::new(whole.into_bytes())));
        }
        Ok(Box::new(ArrayStream::new(self, source, &spec)?))
    }

    pub(crate) fn verify(&self, source: &dyn ByteSource, limits: &Limits) -> Result<Verification, Error> {
        let spec = self.readable()?;
        if !matches!(self.place, Place::Plain) {
            let mut stream = ArrayStream::new(self, source, &spec)?;
            let mut buffer = vec![0; stream.piece()];
            while stream.read(&mut buffer)? > 0 {}
        } else if !source.is_in_memory() {
            self.stored(source, &spec, limits, true)?;
        }
        Ok(match self.place {
            Place::Plain => Verification::Unchecked,
            _ => Verification::Ok,
        })
    }

    /// The elements as they are stored, inflated. Bytes that will be copied are held against the checksum.
    fn stored(
        &self,
        source: &dyn ByteSource,
        spec: &TensorSpec,
        limits: &Limits,
        is_checked: bool,
    ) -> Result<Bytes, Error> {
        if let Place::Deflated {
            compressed,
            head_len,
            crc,
        } = &self.place
        {
            check_budget(spec, limits)?;
            let bytes = read_range(source, compressed.clone(), "the compressed data")?;
            return inflate(&bytes, *head_len, spec.byte_len(), *crc)
                .map(Bytes::from)
                .map_err(|error| error.at(compressed.start));
        }
        let bytes = read_range(source, self.entry.range.clone(), "the data")?;
        if is_checked || !self.is_plain(spec) || !source.is_in_memory() {
            self.check(&bytes)?;
        }
        Ok(bytes)
    }

    fn check(&self, bytes: &[u8]) -> Result<(), Error> {
        let Place::Stored { head_crc, crc } = self.place else {
            return Ok(());
        };
        let mut hasher = crc32fast::Hasher::new_with_initial(head_crc);
        hasher.update(bytes);
        let found = hasher.finalize();
        if found == crc {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Corrupt, "the checksum").at(self.entry.range.start);
        Err(error
            .rule("N11")
            .expected(format_args!("crc32 {crc:08x}"))
            .found(format_args!("{found:08x}")))
    }

    fn converted(&self, spec: TensorSpec, stored: Bytes, limits: &Limits) -> Result<Tensor, Error> {
        let bytes = if self.is_plain(&spec) {
            stored
        } else {
            check_budget(&spec, limits)?;
            to_row_major(&stored, &spec, self.is_column_major, self.entry.is_big_endian)?.into()
        };
        Tensor::new(spec, bytes).map_err(|error| {
            let error = Error::new(ErrorKind::SizeMismatch, error.to_string());
            error.rule("N6")
        })
    }
}

/// Bytes that are read at a time where only their checksum is wanted.
const PIECE: usize = 32 << 10;

/// An array's bytes in the order of the file, swapped where that is needed, held against the checksum at the end.
struct ArrayStream<'a> {
    input: Box<dyn Read + Send + 'a>,
    start: u64,
    is_deflated: bool,
    /// Bytes of an element that is turned around, or 1.
    swapped: usize,
    left: u64,
    check: Option<(crc32fast::Hasher, u32)>,
}

impl<'a> ArrayStream<'a> {
    fn new(array: &Array, source: &'a dyn ByteSource, spec: &TensorSpec) -> Result<Self, Error> {
        let range = array.entry.range.clone();
        let mut stream = Self {
            input: Box::new(SourceCursor::new(source, range.start)),
            start: range.start,
            is_deflated: false,
            swapped: if array.entry.is_big_endian {
                spec.dtype().size()
            } else {
                1
            },
            left: spec.byte_len(),
            check: None,
        };
        match &array.place {
            Place::Plain => {}
            Place::Stored { head_crc, crc } => {
                stream.check = Some((crc32fast::Hasher::new_with_initial(*head_crc), *crc));
            }
            Place::Deflated {
                compressed,
                head_len,
                crc,
            } => {
                let cursor = SourceCursor::new(source, compressed.start);
                let len = compressed.end - compressed.start;
                let stored = BufReader::with_capacity(PIECE.min(len as usize), cursor).take(len);
                let mut inflating = flate2::bufread::DeflateDecoder::new(stored);
                let mut head = Vec::new();
                // Proven to be short when the file was opened.
                let read = inflating.by_ref().take(*head_len).read_to_end(&mut head);
                read.map_err(|_| stream.damaged())?;
                let mut hasher = crc32fast::Hasher::new();
                hasher.update(&head);
                stream.input = Box::new(inflating);
                stream.is_deflated = true;
                stream.check = Some((hasher, *crc));
            }
        }
        Ok(stream)
    }

    /// The length of a buffer to read it with.
    fn piece(&self) -> usize {
        let len = usize::try_from(self.left).map_or(PIECE, |left| left.clamp(1, PIECE));
        len.next_multiple_of(TENSOR_STREAM_UNIT)
    }

    fn damaged(&self) -> Error {
        let error = Error::new(ErrorKind::Corrupt, "the compressed data cannot be inflated");
        error.at(self.start).rule("N11")
    }

    /// Holds what was read against the checksum, and makes sure that nothing follows.
    fn check_end(&mut self) -> Result<(), Error> {
        let Some((hasher, expected)) = self.check.take() else {
            return Ok(());
        };
        if self.is_deflated && self.input.read(&mut [0]).map_err(|_| self.damaged())? != 0 {
            let error = Error::new(
                ErrorKind::Corrupt,
                "the compressed data holds more than the array",
            );
            return Err(error.at(self.start).rule("N11"));
        }
        let found = hasher.finalize();
        if found == expected {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Corrupt, "the checksum").at(self.start);
        Err(error
            .rule("N11")
            .expected(format_args!("crc32 {expected:08x}"))
            .found(format_args!("{found:08x}")))
    }
}

impl TensorStream for ArrayStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let len = usize::try_from(self.left).map_or(out.len(), |left| left.min(out.len()));
        let out = &mut out[..len];
        let read = self.input.read_exact(out);
        read.map_err(|error| {
            if self.is_deflated {
                self.damaged()
            } else {
                source_error(error, self.start, "the data")
            }
        })?;
        self.left -= len as u64;
        if let Some((hasher, _)) = &mut self.check {
            hasher.update(out);
        }
        if self.swapped > 1 {
            out.chunks_exact_mut(self.swapped).for_each(<[u8]>::reverse);
        }
        if self.left == 0 {
            self.check_end()?;
        }
        Ok(len)
    }
}

/// Bytes that are not the file's own are made only within the reader's limit.
fn check_budget(spec: &TensorSpec, limits: &Limits) -> Result<(), Error> {
    if spec.byte_len() <= limits.decoded_bytes {
        return Ok(());
    }
    let error = Error::new(
        ErrorKind::TooLarge,
        "the tensor must be converted, and is too large for that",
    );
    Err(error
        .rule("N7")
        .expected(format_args!(
            "at most {} bytes, the reader's limit",
            limits.decoded_bytes
        ))
        .found(spec.byte_len()))
}

/// Inflates a header, which is passed by, and so many bytes, which must be all and fit the checksum.
fn inflate(compressed: &[u8], head_len: u64, len: u64, crc: u32) -> Result<Vec<u8>, Error> {
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what).rule("N11");
    let damaged = |_| corrupt("the compressed data cannot be inflated");
    let mut hasher = crc32fast::Hasher::new();
    let mut inflating = flate2::bufread::DeflateDecoder::new(compressed);
    let mut head = Vec::new();
    // Proven to be short when the file was opened.
    inflating
        .by_ref()
        .take(head_len)
        .read_to_end(&mut head)
        .map_err(damaged)?;
    hasher.update(&head);
    let len = usize::try_from(len).map_err(|_| corrupt("the array does not fit memory"))?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| Error::new(ErrorKind::TooLarge, "there is no memory for the array").rule("N7"))?;
    bytes.resize(len, 0);
    inflating.read_exact(&mut bytes).map_err(damaged)?;
    if inflating.read(&mut [0]).map_err(damaged)? != 0 {
        return Err(corrupt("the compressed data holds more than the array"));
    }
    hasher.update(&bytes);
    let found = hasher.finalize();
    if found != crc {
        let error = corrupt("the checksum");
        return Err(error
            .expected(format_args!("crc32 {crc:08x}"))
            .found(format_args!("{found:08x}")));
    }
    Ok(bytes)
}
