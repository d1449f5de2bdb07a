//! Reads the elements of one array.

use std::{
    io::{BufReader, Read},
    ops::Range,
};

use fmt_core::{
    ByteSource, BytesStream, Encoding, Entry, Error, ErrorKind, Limits, StoredDType, TENSOR_STREAM_UNIT,
    TensorStream, Verification, check_buffer, read_into, read_range, row_range, source_error, tensor_of,
};
use fmt_zip::SourceCursor;
use tensor_core::{Bytes, Tensor, TensorSpec};

use crate::{
    columns::RowsOfColumns,
    header::{Element, Header},
    order::to_row_major,
};

/// One array of a file, with validated structure.
#[derive(Clone, Copy)]
pub(crate) struct Array<'e> {
    pub(crate) entry: &'e Entry,
    pub(crate) form: &'e Form,
}

/// Properties of an array that its `Entry` does not contain.
pub(crate) struct Form {
    /// The element layout, if the dtype is known.
    element: Option<Element>,
    is_column_major: bool,
    place: StorageKind,
}

/// How the array's bytes are stored.
pub(crate) enum StorageKind {
    /// Uncompressed, without a checksum.
    Plain,
    /// Uncompressed. `crc` covers the header and the elements; `head_crc` is the checksum of the header
    /// alone.
    Stored { head_crc: u32, crc: u32 },
    /// Deflated, header and elements together.
    Deflated {
        compressed: Range<u64>,
        head_len: u64,
        crc: u32,
    },
}

impl Form {
    /// Creates an array whose elements are at `range`.
    pub(crate) fn new(name: &str, header: &Header, range: Range<u64>, place: StorageKind) -> (Entry, Self) {
        let mut entry = Entry::new(name.to_owned(), header.dtype.clone(), header.shape.clone(), range);
        entry.is_big_endian = header.is_big_endian;
        entry.unsupported = match &header.dtype {
            StoredDType::Known(_) => None,
            StoredDType::Opaque(dtype) => Some(dtype.reason()),
            _ => Some(refusal(&header.descr)),
        };
        if header.is_column_major && header.shape.rank() > 1 {
            entry.encoding = Encoding::ColumnMajor;
        }
        if let StorageKind::Stored { crc, .. } | StorageKind::Deflated { crc, .. } = place {
            entry.checksum = Some(format!("crc32:{crc:08x}"));
        }
        if let StorageKind::Deflated { .. } = place {
            entry.encoding = Encoding::Deflate;
        }
        let form = Self {
            element: header.element,
            is_column_major: header.is_column_major,
            place,
        };
        (entry, form)
    }

    /// Creates an entry for an unreadable archive member.
    pub(crate) fn unsupported(name: &str, range: Range<u64>, reason: String) -> (Entry, Self) {
        let shape = tensor_core::Shape::vector(range.end - range.start);
        let dtype = StoredDType::Unknown("?".to_owned());
        let mut entry = Entry::new(name.to_owned(), dtype, shape, range);
        entry.encoding = Encoding::Unknown("zip".to_owned());
        entry.unsupported = Some(reason);
        let form = Self {
            element: None,
            is_column_major: false,
            place: StorageKind::Plain,
        };
        (entry, form)
    }
}

impl Array<'_> {
    fn readable(&self) -> Result<TensorSpec, Error> {
        let spec = self.entry.spec().filter(|_| self.entry.unsupported.is_none());
        spec.ok_or_else(|| {
            let reason = self.entry.unsupported.as_deref().unwrap_or("the array");
            Error::new(ErrorKind::Unsupported, reason).rule("N4")
        })
    }

    /// Returns the element layout and the total size, if the array can be read or copied.
    fn sized(&self) -> Result<(Element, u64), Error> {
        match (self.form.element, self.entry.byte_len()) {
            (Some(element), Some(len)) => Ok((element, len)),
            _ => self
                .readable()
                .and(Err(Error::new(ErrorKind::Unsupported, "the dtype").rule("N4"))),
        }
    }

    fn is_transposed(&self) -> bool {
        self.form.is_column_major && self.entry.shape.rank() > 1
    }

    /// Returns whether the stored bytes are the tensor's bytes in memory, without any conversion.
    fn is_plain(&self) -> bool {
        let is_swapped = self.entry.is_big_endian && self.form.element.is_none_or(|element| element.word > 1);
        !is_swapped && !self.is_transposed()
    }

    pub(crate) fn tensor(&self, source: &dyn ByteSource, limits: &Limits) -> Result<Tensor, Error> {
        let spec = self.readable()?;
        let bytes = self.whole(source, limits, false)?;
        tensor_of(spec, bytes).map_err(|error| error.rule("N6"))
    }

    /// Returns all bytes, row-major and little-endian.
    fn whole(&self, source: &dyn ByteSource, limits: &Limits, is_checked: bool) -> Result<Bytes, Error> {
        let stored = self.stored(source, limits, is_checked)?;
        self.converted(self.entry.shape.dims(), stored, limits)
    }

    pub(crate) fn rows(
        &self,
        source: &dyn ByteSource,
        rows: Range<u64>,
        limits: &Limits,
    ) -> Result<Tensor, Error> {
        let spec = self.readable()?;
        let (part, bytes) = row_range(&spec, rows.clone())?;
        if let Some(mut stream) = self.rows_of_columns(source, rows.clone()) {
            check_budget(part.byte_len(), limits)?;
            let bytes = read_all(&mut stream, part.byte_len())?;
            return tensor_of(part, bytes).map_err(|error| error.rule("N6"));
        }
        if self.is_transposed() || matches!(self.form.place, StorageKind::Deflated { .. }) {
            // The rows are scattered over the whole array, or follow data that must be inflated first.
            let whole = self.tensor(source, limits)?;
            return whole
                .rows(rows)
                .map_err(|error| Error::new(ErrorKind::OutOfBounds, error.to_string()));
        }
        let start = self.entry.range.start;
        let stored = read_range(source, start + bytes.start..start + bytes.end, "the rows")?;
        let bytes = self.converted(part.shape().dims(), stored, limits)?;
        tensor_of(part, bytes).map_err(|error| error.rule("N6"))
    }

    pub(crate) fn read_into(
        &self,
        source: &dyn ByteSource,
        out: &mut [u8],
        limits: &Limits,
    ) -> Result<(), Error> {
        let spec = self.readable()?;
        check_buffer(&spec, out.len())?;
        if self.is_plain() && !matches!(self.form.place, StorageKind::Deflated { .. }) {
            read_into(source, self.entry.range.start, out, "the data")?;
            return self.check(out).map(drop);
        }
        out.copy_from_slice(&self.whole(source, limits, true)?);
        Ok(())
    }

    /// Streams the elements. An array in column-major order is read a block of rows at a time, or as a whole
    /// if that is cheaper.
    pub(crate) fn stream<'a>(
        &self,
        source: &'a dyn ByteSource,
        limits: &Limits,
    ) -> Result<Box<dyn TensorStream + 'a>, Error> {
        self.sized()?;
        if !self.is_transposed() {
            return Ok(Box::new(ArrayStream::new(*self, source)?));
        }
        let rows = self.entry.shape.dims().first().copied().unwrap_or(0);
        if let Some(stream) = self.rows_of_columns(source, 0..rows) {
            if let StorageKind::Stored { .. } = self.form.place {
                // The checksum covers the bytes in file order, not in row order.
                self.verify(source)?;
            }
            return Ok(Box::new(stream));
        }
        let whole = self.whole(source, limits, false)?;
        Ok(Box::new(BytesStream::new(whole)))
    }

    /// Returns a stream over a range of rows of a column-major array, if reading them separately is cheaper.
    fn rows_of_columns<'a>(&self, source: &'a dyn ByteSource, rows: Range<u64>) -> Option<RowsOfColumns<'a>> {
        let is_stored = self.is_transposed() && !matches!(self.form.place, StorageKind::Deflated { .. });
        let (element, is_big) = (self.form.element.filter(|_| is_stored)?, self.entry.is_big_endian);
        let start = self.entry.range.start;
        RowsOfColumns::new(source, start, element, is_big, self.entry.shape.dims(), rows)
    }

    pub(crate) fn verify(&self, source: &dyn ByteSource) -> Result<Verification, Error> {
        self.sized()?;
        // Without a checksum, verification only checks that all bytes are readable, which bytes in memory
        // always are.
        if !matches!(self.form.place, StorageKind::Plain) || !source.is_in_memory() {
            let mut stream = ArrayStream::new(*self, source)?;
            let mut buffer = vec![0; stream.piece()];
            while stream.read(&mut buffer)? > 0 {}
        }
        Ok(match self.form.place {
            StorageKind::Plain => Verification::Unchecked,
            _ => Verification::Ok,
        })
    }

    /// Returns the stored elements, inflated if necessary. The checksum is verified unless the bytes are a
    /// slice of memory and `is_checked` is false.
    fn stored(&self, source: &dyn ByteSource, limits: &Limits, is_checked: bool) -> Result<Bytes, Error> {
        let (_, len) = self.sized()?;
        if let StorageKind::Deflated {
            compressed,
            head_len,
            crc,
        } = &self.form.place
        {
            check_budget(len, limits)?;
            let bytes = read_range(source, compressed.clone(), "the compressed data")?;
            return inflate(&bytes, *head_len, len, *crc)
                .map(Bytes::from)
                .map_err(|error| error.at(compressed.start));
        }
        let bytes = read_range(source, self.entry.range.clone(), "the data")?;
        if is_checked || !self.is_plain() || !source.is_in_memory() {
            self.check(&bytes)?;
        }
        Ok(bytes)
    }

    fn check(&self, bytes: &[u8]) -> Result<(), Error> {
        let StorageKind::Stored { head_crc, crc } = self.form.place else {
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

    fn converted(&self, dims: &[u64], stored: Bytes, limits: &Limits) -> Result<Bytes, Error> {
        if self.is_plain() {
            return Ok(stored);
        }
        let (element, _) = self.sized()?;
        check_budget(stored.len() as u64, limits)?;
        let is_big_endian = self.entry.is_big_endian;
        to_row_major(&stored, element, dims, self.form.is_column_major, is_big_endian).map(Bytes::from)
    }
}

/// Reads a stream to its end.
fn read_all(stream: &mut dyn TensorStream, len: u64) -> Result<Vec<u8>, Error> {
    let no_memory = || Error::new(ErrorKind::TooLarge, "not enough memory for the rows").rule("N7");
    let len = usize::try_from(len).map_err(|_| no_memory())?;
    let room = len.next_multiple_of(TENSOR_STREAM_UNIT);
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(room).map_err(|_| no_memory())?;
    bytes.resize(room, 0);
    stream.read(&mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Returns why an array of this dtype cannot be read, and what to do about it.
fn refusal(descr: &str) -> String {
    let kind = match descr.trim_start_matches(['<', '>', '|', '=']).as_bytes() {
        [b'O', ..] => "is that of Python objects, which are pickled; save numbers or fixed-width strings",
        [b'[', ..] => "has fields; save each field as an array of its own",
        _ => "is not supported",
    };
    format!("the dtype {} {kind}", tensor_core::QuotedName(descr))
}

/// Bytes per read when only the checksum is computed.
const PIECE: usize = 32 << 10;

/// An array's bytes in file order, byte-swapped if needed, with the checksum verified at the end.
struct ArrayStream<'a> {
    input: Box<dyn Read + Send + 'a>,
    start: u64,
    is_deflated: bool,
    /// Size of the words that are byte-swapped; 1 if none are.
    swapped: usize,
    left: u64,
    check: Option<(crc32fast::Hasher, u32)>,
}

impl<'a> ArrayStream<'a> {
    fn new(array: Array<'_>, source: &'a dyn ByteSource) -> Result<Self, Error> {
        let (element, len) = array.sized()?;
        let range = array.entry.range.clone();
        let mut stream = Self {
            input: Box::new(SourceCursor::new(source, range.start)),
            start: range.start,
            is_deflated: false,
            swapped: if array.entry.is_big_endian {
                element.word as usize
            } else {
                1
            },
            left: len,
            check: None,
        };
        match &array.form.place {
            StorageKind::Plain => {}
            StorageKind::Stored { head_crc, crc } => {
                stream.check = Some((crc32fast::Hasher::new_with_initial(*head_crc), *crc));
            }
            StorageKind::Deflated {
                compressed,
                head_len,
                crc,
            } => {
                let cursor = SourceCursor::new(source, compressed.start);
                let len = compressed.end - compressed.start;
                let stored = BufReader::with_capacity(PIECE.min(len as usize), cursor).take(len);
                let mut inflating = flate2::bufread::DeflateDecoder::new(stored);
                let mut head = Vec::new();
                // Opening the file has limited the length of the header.
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

    /// Returns the buffer size for reading.
    fn piece(&self) -> usize {
        let len = usize::try_from(self.left).map_or(PIECE, |left| left.clamp(1, PIECE));
        len.next_multiple_of(TENSOR_STREAM_UNIT)
    }

    fn damaged(&self) -> Error {
        let error = Error::new(ErrorKind::Corrupt, "the compressed data cannot be inflated");
        error.at(self.start).rule("N11")
    }

    /// Verifies the checksum, and that no data follows the array.
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

/// Checks a conversion buffer against the reader's limit.
fn check_budget(len: u64, limits: &Limits) -> Result<(), Error> {
    if len <= limits.decoded_bytes {
        return Ok(());
    }
    let error = Error::new(ErrorKind::TooLarge, "the tensor is too large to be converted");
    Err(error
        .rule("N7")
        .expected(format_args!(
            "at most {} bytes, the reader's limit",
            limits.decoded_bytes
        ))
        .found(len))
}

/// Inflates and skips the header, then inflates exactly `len` bytes and verifies the checksum.
fn inflate(compressed: &[u8], head_len: u64, len: u64, crc: u32) -> Result<Vec<u8>, Error> {
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what).rule("N11");
    let damaged = |_| corrupt("the compressed data cannot be inflated");
    let mut hasher = crc32fast::Hasher::new();
    let mut inflating = flate2::bufread::DeflateDecoder::new(compressed);
    let mut head = Vec::new();
    // Opening the file has limited the length of the header.
    inflating
        .by_ref()
        .take(head_len)
        .read_to_end(&mut head)
        .map_err(damaged)?;
    hasher.update(&head);
    let len = usize::try_from(len).map_err(|_| corrupt("the array does not fit into memory"))?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| Error::new(ErrorKind::TooLarge, "not enough memory for the array").rule("N7"))?;
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
