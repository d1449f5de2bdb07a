//! Reads and validates the offset table and the head of every record, when a file is opened.

use std::ops::Range;

use fmt_core::{ByteSource, Error, ErrorKind, Limits, ReadOptions, read_range};
use tensor_core::{DType, Shape, TensorSpec};

use crate::{
    arena::Arena,
    layout::{DENSE, HEADER, LONGEST, WORD, dtype_of, is_coo, word},
    table::{Table, make_room},
    window::Window,
};

/// The validated table and records of a file.
///
/// The index is small compared with the file, whatever counts the file declares: records shared by several
/// table entries are stored once, and records do not overlap.
#[derive(Debug)]
pub(crate) struct Index {
    /// The distinct records, in file order.
    stored: Vec<StoredRecord>,
    /// Maps each tensor to its record; `None` if every tensor `i` has record `i`.
    record_of: Option<Box<[u32]>>,
    dims: Arena,
    /// Offset of the end of the offset table.
    pub(crate) table_end: u64,
}

/// A validated record: its header, and where its dimensions are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredRecord {
    pub(crate) offset: u64,
    /// Number of entries of a supported COO tensor, otherwise 0.
    nnz: u64,
    /// Position of the dimensions in the [`Arena`].
    dims: u32,
    rank: u8,
    pub(crate) dtype: u8,
    pub(crate) layout: u8,
    pub(crate) has_reserved_bits: bool,
}

impl StoredRecord {
    /// Returns the offset in the file where the header and dimensions end, and the body begins.
    pub(crate) fn body(&self) -> u64 {
        self.offset + HEADER + WORD * u64::from(self.rank)
    }

    /// Returns the dtype, if dtype and layout are known, so that the record can be read.
    pub(crate) fn readable_dtype(&self) -> Option<DType> {
        let is_known = self.layout == DENSE || is_coo(self.layout);
        dtype_of(self.dtype).filter(|_| is_known)
    }

    /// Returns the number of entries of a COO tensor; `None` for other layouts.
    pub(crate) fn nnz(&self) -> Option<u64> {
        is_coo(self.layout).then_some(self.nnz)
    }

    /// Returns the range of a COO tensor's indices, without the two dimensions that are stored before them.
    pub(crate) fn indices(&self) -> Range<u64> {
        let start = self.body() + 2 * WORD;
        start..start + self.nnz * u64::from(self.rank) * WORD
    }
}

impl Index {
    /// Reads and validates the table and all records.
    pub(crate) fn read(source: &dyn ByteSource, options: &ReadOptions) -> Result<Self, Error> {
        let limits = &options.limits;
        let count = read_count(source, limits)?;
        let table_end = WORD + WORD * count;
        let table = read_range(source, WORD..table_end, "the table of offsets")?;
        let table = Table::new(&table);
        let in_file_order = table.check(table_end, source.len(), options.lenient)?;

        let mut records = Records {
            window: Window::new(source),
            file_len: source.len(),
            options,
            index_budget: limits
                .index_bytes
                .min(Arena::LARGEST_INDEX)
                .saturating_sub(table_end),
            dims: Arena::default(),
            last_end: table_end,
            last_tensor: None,
        };
        let mut stored = Vec::new();
        let mut record_of = None;
        if in_file_order {
            make_room(&mut stored, count)?;
            for (number, offset) in table.offsets().enumerate() {
                stored.push(records.read(number, offset)?);
            }
        } else {
            let order = table.order()?;
            let is_new = |at: usize| at == 0 || table.at(order[at - 1]) != table.at(order[at]);
            let distinct = (0..order.len()).filter(|&at| is_new(at)).count();
            make_room(&mut stored, distinct as u64)?;
            let mut places = Vec::new();
            make_room(&mut places, count)?;
            places.resize(order.len(), 0);
            for (at, &number) in order.iter().enumerate() {
                if is_new(at) {
                    stored.push(records.read(number as usize, table.at(number))?);
                }
                // The cast is exact: the index of a record is less than the number of tensors, which fits 32
                // bits.
                places[number as usize] = (stored.len() - 1) as u32;
            }
            record_of = Some(places.into_boxed_slice());
        }
        Ok(Self {
            stored,
            record_of,
            dims: records.dims,
            table_end,
        })
    }

    /// Returns the number of tensors.
    pub(crate) fn len(&self) -> usize {
        self.record_of
            .as_ref()
            .map_or(self.stored.len(), |records| records.len())
    }

    /// Returns a tensor's record.
    ///
    /// # Panics
    /// When there is no such tensor.
    pub(crate) fn get(&self, number: usize) -> &StoredRecord {
        let slot = self
            .record_of
            .as_ref()
            .map_or(number, |records| records[number] as usize);
        &self.stored[slot]
    }

    /// Returns the distinct records in file order.
    pub(crate) fn records(&self) -> &[StoredRecord] {
        &self.stored
    }

    pub(crate) fn dims(&self, stored: &StoredRecord) -> &[u64] {
        self.dims.get(stored.dims, stored.rank)
    }

    /// Returns dtype and shape of a record that can be read.
    pub(crate) fn spec(&self, stored: &StoredRecord) -> Option<TensorSpec> {
        let shape = Shape::new(self.dims(stored)).ok()?;
        TensorSpec::new(stored.readable_dtype()?, shape).ok()
    }

    /// Returns the range of a record's elements: the data of a dense tensor, or the indices, the values'
    /// length and the values of a sparse tensor. The range is empty for a record that cannot be read, because
    /// its end is unknown.
    pub(crate) fn data(&self, stored: &StoredRecord) -> Range<u64> {
        let Some(spec) = self.spec(stored) else {
            return stored.body()..stored.body();
        };
        match stored.nnz() {
            None => stored.body()..stored.body() + spec.byte_len(),
            Some(nnz) => {
                let indices = stored.indices();
                indices.start..indices.end + WORD + nnz * spec.dtype().size() as u64
            }
        }
    }
}

/// Reads the number of tensors and checks it against the file's size, then against the limits (rule B17).
fn read_count(source: &dyn ByteSource, limits: &Limits) -> Result<u64, Error> {
    let len = source.len();
    let of_count = |kind, what: &str| Error::new(kind, what).at(0).rule("B17");
    if len < WORD {
        let error = of_count(ErrorKind::Truncated, "the number of tensors is truncated");
        return Err(error.expected("8 bytes").found(len));
    }
    let head = read_range(source, 0..WORD, "the number of tensors")?;
    let count = word(&head);
    let room = (len - WORD) / WORD;
    if count > room {
        let (kind, what) = if count > LONGEST {
            (ErrorKind::OutOfBounds, "the number of tensors")
        } else if count > LONGEST / WORD - 1 {
            (
                ErrorKind::Overflow,
                "the length of the table of offsets does not fit 63 bits: the number of tensors",
            )
        } else if count > limits.tensors {
            // No writer produces that many tensors, so these bytes are not a count: the file has another
            // format.
            (ErrorKind::OutOfBounds, "the number of tensors")
        } else {
            (
                ErrorKind::Truncated,
                "the table of offsets is truncated: the number of tensors",
            )
        };
        let swapped = count.swap_bytes();
        let hint = if swapped <= room {
            format!("; in big-endian it would be {swapped}, and this format is little-endian")
        } else {
            "; the file may be of another format".to_owned()
        };
        let expected = format!("at most {room}, given the file's length");
        let hint = if kind == ErrorKind::Truncated {
            ""
        } else {
            &hint[..]
        };
        return Err(of_count(kind, what)
            .expected(expected)
            .found(format_args!("{count}{hint}")));
    }
    if count > limits.tensors || WORD + WORD * count > limits.index_bytes {
        let most = limits.tensors.min((limits.index_bytes / WORD).saturating_sub(1));
        let error = of_count(ErrorKind::TooLarge, "the number of tensors");
        return Err(error
            .expected(format_args!("at most {most}, the reader's limit"))
            .found(count));
    }
    if u32::try_from(count).is_err() {
        let error = of_count(ErrorKind::TooLarge, "the number of tensors");
        return Err(error.expected("less than 2^32").found(count));
    }
    Ok(count)
}

/// Reads records in file order.
struct Records<'a> {
    window: Window<'a>,
    file_len: u64,
    options: &'a ReadOptions,
    /// Remaining limit on the total size of headers and dimensions, in bytes.
    index_budget: u64,
    dims: Arena,
    /// Offset of the end of the previous record, or of the table.
    last_end: u64,
    last_tensor: Option<usize>,
}

impl Records<'_> {
    fn read(&mut self, number: usize, offset: u64) -> Result<StoredRecord, Error> {
        if offset < self.last_end {
            let before = self
                .last_tensor
                .map_or_else(String::new, |last| format!(" with tensor {last}'s"));
            let error = Error::new(ErrorKind::Overlap, format!("the record overlaps{before}"));
            return Err(error
                .of_tensor(&number.to_string())
                .at(offset)
                .rule("B4")
                .expected(format_args!(
                    "a record at {} or later, or the same record",
                    self.last_end
                ))
                .found(format_args!("one at {offset}")));
        }
        let read = self.read_unnamed(offset);
        let (stored, end) = read.map_err(|error| error.of_tensor(&number.to_string()))?;
        self.last_end = end;
        self.last_tensor = Some(number);
        Ok(stored)
    }

    /// Reads a record. Returns the record and the offset where it ends, not counting padding.
    /// [`Table::check`] has ensured that the header lies within the file.
    fn read_unnamed(&mut self, offset: u64) -> Result<(StoredRecord, u64), Error> {
        let header = self.window.get(offset, HEADER, "the header of the record")?;
        let rank = word(header);
        let (dtype, layout) = (header[8], header[9]);
        let reserved = header[10..16].iter().position(|byte| *byte != 0);
        if let (Some(position), false) = (reserved, self.options.lenient) {
            let error = Error::new(ErrorKind::Malformed, "a reserved byte of the header").rule("B6");
            let found = header[10 + position];
            return Err(error.at(offset + 10 + position as u64).expected(0).found(found));
        }
        let body = self.check_rank(offset, rank)?;
        let dims = self
            .window
            .get(offset + HEADER, body - offset - HEADER, "the dimensions")?;
        let (dims, rank) = (self.dims.push(dims), rank as u8);
        let mut stored = StoredRecord {
            offset,
            nnz: 0,
            dims,
            rank,
            dtype,
            layout,
            has_reserved_bits: reserved.is_some(),
        };
        let end = match stored.readable_dtype() {
            // The end of a record with an unknown dtype or layout is unknown.
            None => {
                self.check_shape(&stored, 1)?;
                body
            }
            Some(dtype) => {
                let byte_len = self.check_shape(&stored, dtype.size() as u64)?;
                if is_coo(layout) {
                    self.read_coo(&mut stored, dtype, byte_len / dtype.size() as u64)?
                } else {
                    self.check_end(body, Some(byte_len), "the data")?
                }
            }
        };
        Ok((stored, end))
    }

    /// Checks a record's rank, and returns the offset where the dimensions end.
    fn check_rank(&mut self, offset: u64, rank: u64) -> Result<u64, Error> {
        let of_rank = |kind, what: &str| Error::new(kind, what).at(offset).rule("B17").found(rank);
        let dims_start = offset + HEADER;
        let end = rank.checked_mul(WORD).and_then(|len| len.checked_add(dims_start));
        let end = end.filter(|end| *end <= LONGEST);
        let end = end.ok_or_else(|| {
            of_rank(
                ErrorKind::Overflow,
                "the length of the dimensions does not fit 63 bits: the rank",
            )
        })?;
        let most = self.options.limits.rank.min(Shape::MAX_RANK as u64);
        if end > self.file_len {
            let room = (self.file_len - dims_start) / WORD;
            let (kind, what) = if rank > most {
                // No writer produces that many dimensions, so these bytes are not a rank.
                (ErrorKind::OutOfBounds, "the rank")
            } else {
                (ErrorKind::Truncated, "the dimensions are truncated: the rank")
            };
            let expected = format!("at most {room}, given the file's length");
            return Err(of_rank(kind, what).expected(expected));
        }
        if rank > most {
            let expected = format!("at most {most}, the reader's limit");
            return Err(of_rank(ErrorKind::TooLarge, "the rank").expected(expected));
        }
        let len = end - offset;
        self.index_budget = self.index_budget.checked_sub(len).ok_or_else(|| {
            let error = Error::new(ErrorKind::TooLarge, "the headers of all records");
            error
                .at(offset)
                .rule("B17")
                .expected(format_args!(
                    "at most {} bytes with the table, the reader's limit",
                    self.options.limits.index_bytes
                ))
                .found("more")
        })?;
        Ok(end)
    }

    /// Returns the total size of all elements of `width` bytes. The size must fit 63 bits, even for a sparse
    /// tensor (rule B19).
    fn check_shape(&self, stored: &StoredRecord, width: u64) -> Result<u64, Error> {
        let dims = self.dims.get(stored.dims, stored.rank);
        let bytes = if dims.contains(&0) {
            Some(0)
        } else {
            dims.iter().try_fold(width, |bytes, &dim| bytes.checked_mul(dim))
        };
        let bytes = bytes.filter(|bytes| *bytes <= LONGEST);
        bytes.ok_or_else(|| {
            let error = Error::new(
                ErrorKind::Overflow,
                "the length of the tensor does not fit 63 bits",
            );
            error
                .at(stored.offset + HEADER)
                .rule("B19")
                .found(format_args!("{width} bytes times {dims:?}"))
        })
    }

    /// Returns the end of the `len` bytes at `start`, and checks that it is within the file (rule B18).
    /// `what` names the bytes in errors.
    fn check_end(&self, start: u64, len: Option<u64>, what: &str) -> Result<u64, Error> {
        let end = len
            .and_then(|len| len.checked_add(start))
            .filter(|end| *end <= LONGEST);
        let end = end.ok_or_else(|| {
            let what = format!("the end of {what} does not fit 63 bits");
            Error::new(ErrorKind::Overflow, what).at(start).rule("B19")
        })?;
        if end > self.file_len {
            let error = Error::new(ErrorKind::Truncated, format!("{what} is truncated"));
            let left = self.file_len.saturating_sub(start);
            return Err(error
                .at(start)
                .rule("B18")
                .expected(format_args!("{} bytes", end - start))
                .found(left));
        }
        Ok(end)
    }

    /// Reads and checks the lengths in the payload of a COO tensor; returns the offset where the payload
    /// ends.
    fn read_coo(
        &mut self,
        stored: &mut StoredRecord,
        dtype: DType,
        element_count: u64,
    ) -> Result<u64, Error> {
        let (body, rank) = (stored.body(), u64::from(stored.rank));
        let indices_start = self.check_end(body, Some(2 * WORD), "the shape of the indices")?;
        let shape = self.window.get(body, 2 * WORD, "the shape of the indices")?;
        let (nnz, columns) = (word(shape), word(&shape[WORD as usize..]));
        let mismatch = |at: u64, what: &str| Error::new(ErrorKind::SizeMismatch, what).at(at).rule("B13");
        if columns != rank {
            let error = mismatch(body + WORD, "the second dimension of the indices");
            return Err(error
                .expected(format_args!("{rank}, the tensor's rank"))
                .found(columns));
        }
        let indices_len = nnz.checked_mul(rank * WORD).filter(|len| *len <= LONGEST);
        let values_len = nnz.checked_mul(dtype.size() as u64);
        if indices_len.is_none() || values_len.is_none_or(|len| len > LONGEST) {
            let error = Error::new(
                ErrorKind::Overflow,
                "the length of the sparse tensor does not fit 63 bits",
            );
            return Err(error
                .at(body)
                .rule("B19")
                .found(format_args!("{nnz} entries of rank {rank}")));
        }
        if nnz > element_count && !self.options.lenient {
            let error = mismatch(body, "the number of entries");
            return Err(error
                .expected(format_args!("at most {element_count}, one for each element"))
                .found(nnz));
        }
        let indices_end = self.check_end(indices_start, indices_len, "the index data")?;
        let values_start = self.check_end(indices_end, Some(WORD), "the length of the values")?;
        let values = word(self.window.get(indices_end, WORD, "the length of the values")?);
        if values != nnz {
            let error = mismatch(indices_end, "the length of the values");
            return Err(error
                .expected(format_args!("{nnz}, as many as indices"))
                .found(values));
        }
        stored.nnz = nnz;
        self.check_end(values_start, values_len, "the values")
    }
}
