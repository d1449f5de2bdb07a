//! Writes a file: the offset table from the declared tensors, followed by their records.

use std::{fmt, io::Write};

use fmt_core::{Error, ErrorKind, Layout, Outstanding, Plan, Sink, TensorWriter};
use tensor_core::{SparseCoo, Tensor};

use crate::{
    CooCode, RecordSpec, WriteOptions,
    capabilities::CAPABILITIES,
    layout::{COO, COO_OF_TFRT, DENSE, HEADER, LONGEST, WORD, code_of, padding},
    order::IndexCheck,
};

/// Writes a BTF file sequentially to any [`Write`].
///
/// The offset table comes first, so all tensors are declared in advance, and anything that the format cannot
/// store is refused before the first byte. The tensors' bytes follow in pieces of any size; memory holds only
/// the declarations. The same tensors in the same order give the same bytes.
///
/// ```
/// use fmt_btf::{BtfReader, BtfWriter, RecordSpec, WriteOptions};
/// use fmt_core::{AtomicFile, TensorReader};
/// use tensor_core::{DType, Shape, SparseCoo, Tensor, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.btf");
/// let bias = Tensor::from_vec(Shape::vector(2), vec![0.5f32, -0.5])?;
/// let counts = TensorSpec::new(DType::I16, Shape::new(&[1000, 8])?)?;
/// let sparse = SparseCoo::from_dense(&Tensor::from_vec(Shape::new(&[2, 2])?, vec![0i64, 7, 0, 0])?.view());
/// let records = vec![(&bias).into(), RecordSpec::dense(counts), (&sparse).into()];
///
/// // The file appears under its name only when it is complete.
/// let mut writer = BtfWriter::new(AtomicFile::create(&path)?, records, WriteOptions::default())?;
/// writer.tensor(&bias)?;
/// // This tensor is written in pieces and never in memory as a whole.
/// for row in 0..1000i16 {
///     writer.write(&[row.to_le_bytes(); 8].concat())?;
/// }
/// writer.sparse(&sparse)?;
/// writer.finish()?.persist()?;
///
/// assert_eq!(BtfReader::from_path(&path)?.sparse(2)?, sparse);
/// # Ok(())
/// # }
/// ```
///
/// After an I/O error or an error in the indices of a sparse tensor the file is unusable, and every further
/// call fails.
pub struct BtfWriter<W> {
    sink: Sink<W>,
    records: Vec<RecordSpec>,
    coo_code: u8,
    has_table: bool,
    /// The parts to be written: two for each sparse tensor and one for each dense tensor, numbered by
    /// [`part_of`].
    outstanding: Outstanding,
    /// Checks the indices of the sparse tensor being written.
    indices: IndexCheck,
}

/// Returns the number of one of a record's parts: its indices, or its elements (values, if it is sparse).
fn part_of(record: usize, is_indices: bool) -> usize {
    2 * record + usize::from(!is_indices)
}

impl<W: Write> BtfWriter<W> {
    /// Creates a writer for the tensors that `records` declares. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a dtype that the format does not have, [`ErrorKind::TooLarge`] for
    /// sizes that readers would refuse, [`ErrorKind::SizeMismatch`] for more entries than the tensor has
    /// elements.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "options are values, as for the writers of other formats"
    )]
    pub fn new(out: W, records: Vec<RecordSpec>, options: WriteOptions) -> Result<Self, Error> {
        let (count, most) = (records.len() as u64, options.limits.tensors);
        if count > most {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("B17");
            return Err(error
                .expected(format_args!("at most {most}, the limit of readers"))
                .found(count));
        }
        let mut index_len = WORD + WORD * count;
        let mut len = Some(index_len);
        for (number, record) in records.iter().enumerate() {
            record.check(number, &options)?;
            index_len += HEADER + WORD * record.spec().shape().rank() as u64;
            len = len.and_then(|len| len.checked_add(record.record_len()?));
        }
        let too_large = |what: &str| Error::new(ErrorKind::TooLarge, what).rule("B17");
        if index_len > options.limits.index_bytes {
            let most = options.limits.index_bytes;
            return Err(too_large("the table of offsets and the headers")
                .expected(format_args!("at most {most} bytes, the limit of readers"))
                .found(index_len));
        }
        if len.is_none_or(|len| len > LONGEST) {
            return Err(too_large("the file").expected("less than 2^63 bytes"));
        }
        let mut outstanding = Outstanding::default();
        for (number, record) in records.iter().enumerate() {
            // The sum of all lengths was checked above.
            let (len, indices) = (record.byte_len().unwrap_or(LONGEST), record.index_len());
            let indices = indices.filter(|_| record.nnz.is_some());
            if let Some(indices) = indices {
                outstanding.announce(part_of(number, true), indices);
            }
            outstanding.announce(part_of(number, false), len - indices.unwrap_or(0));
        }
        Ok(Self {
            sink: Sink::new(out, 0),
            records,
            coo_code: match options.coo_code {
                CooCode::Specification => COO,
                CooCode::Tfrt => COO_OF_TFRT,
            },
            has_table: false,
            outstanding,
            indices: IndexCheck::default(),
        })
    }

    /// Creates a writer for a plan.
    ///
    /// # Errors
    /// The errors of [`BtfWriter::new`]; [`ErrorKind::BadName`] for a name that is not the tensor's index,
    /// and [`ErrorKind::Unsupported`] for metadata, for attributes, and for layouts other than dense and COO
    /// (B14).
    pub fn planned(out: W, plan: &Plan, options: WriteOptions) -> Result<Self, Error> {
        plan.check(&CAPABILITIES, &options.limits)?;
        let records = plan.entries.iter().map(|entry| match entry.layout {
            Layout::Coo { nnz } => RecordSpec::coo(entry.spec.clone(), nnz),
            _ => RecordSpec::dense(entry.spec.clone()),
        });
        let records = records.collect();
        Self::new(out, records, options)
    }

    /// Writes the next bytes of the declared tensors, row-major and little-endian, in pieces of any size. A
    /// piece may span several tensors. For a sparse tensor the indices come first, then the values.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] for bytes beyond the last tensor; no byte is written then.
    /// [`ErrorKind::OutOfBounds`] for an index out of bounds, [`ErrorKind::Malformed`] for indices that are
    /// not in ascending row-major order, [`ErrorKind::Duplicate`] for duplicate coordinates (B10, B11).
    /// [`ErrorKind::Io`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.sink.check()?;
        self.outstanding.admit(bytes)?;
        if !self.has_table {
            self.has_table = true;
            self.write_table()?;
        }
        while let Some(piece) = self.outstanding.take(&mut bytes) {
            let (number, is_indices) = (piece.number / 2, piece.number % 2 == 0);
            let record = &self.records[number];
            if piece.begins && (is_indices || record.nnz.is_none()) {
                let head = self.head(record);
                self.sink.write(&head)?;
                self.indices = IndexCheck::default();
            } else if piece.begins {
                let nnz = record.nnz.unwrap_or_default();
                self.sink.write(&nnz.to_le_bytes())?;
            }
            if is_indices && let Err(error) = self.indices.take(piece.bytes, record.spec().shape().dims()) {
                self.sink.fail();
                return Err(error.of_tensor(&number.to_string()));
            }
            self.sink.write(piece.bytes)?;
            if piece.ends && !is_indices {
                let padding = padding(self.sink.position());
                self.sink.pad_to(self.sink.position() + padding)?;
            }
        }
        Ok(())
    }

    /// Writes the next tensor, which must be dense and match its declaration.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the next declared tensor has another dtype, shape or layout;
    /// otherwise the errors of [`BtfWriter::write`].
    pub fn tensor(&mut self, tensor: &Tensor) -> Result<(), Error> {
        self.expect_next(&tensor.into())?;
        self.write(tensor.bytes())
    }

    /// Writes the next tensor, which must be sparse and match its declaration. The method sorts the entries
    /// first (B11).
    ///
    /// # Errors
    /// The errors of [`BtfWriter::tensor`]; [`ErrorKind::Duplicate`] for duplicate coordinates, in which case
    /// nothing is written.
    pub fn sparse(&mut self, sparse: &SparseCoo) -> Result<(), Error> {
        let number = self.expect_next(&sparse.into())?;
        let sorted = sparse.sorted().map_err(|error| {
            let error = Error::new(ErrorKind::Duplicate, error.to_string());
            error.of_tensor(&number.to_string()).rule("B11")
        })?;
        self.write(sorted.indices().bytes())?;
        self.write(sorted.values().bytes())
    }

    /// Completes the file and returns the sink without flushing it.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when bytes of a tensor are missing; [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        self.complete()?;
        Ok(self.sink.into_inner())
    }

    fn complete(&mut self) -> Result<(), Error> {
        // Writes the table, and skips tensors without bytes.
        self.write(&[])?;
        self.outstanding.complete(|part| Some((part / 2).to_string()))
    }

    /// Returns the index of the next tensor, or 0 for an empty tensor. Fails unless the tensor is declared as
    /// `wanted`.
    fn expect_next(&mut self, wanted: &RecordSpec) -> Result<usize, Error> {
        // Completes all empty tensors that are next; `wanted` may be any of them.
        self.write(&[])?;
        if wanted.byte_len() == Some(0) {
            return Ok(0);
        }
        let (part, has_begun) = self
            .outstanding
            .upcoming()
            .unwrap_or((2 * self.records.len(), false));
        let (next, is_indices) = (part / 2, part % 2 == 0);
        let spec = self.records.get(next);
        let has_indices = spec.is_some_and(|spec| spec.index_len().is_some_and(|len| len > 0));
        let is_begun = has_begun || (has_indices && !is_indices);
        if spec == Some(wanted) && !is_begun {
            return Ok(next);
        }
        let error = Error::new(
            ErrorKind::SizeMismatch,
            "the tensor is not the next one that was declared",
        );
        let expected = match spec {
            None => "no more tensors".to_owned(),
            Some(_) if is_begun => format!("more bytes of tensor {next}"),
            Some(spec) => spec.to_string(),
        };
        Err(error.expected(expected).found(wanted))
    }

    fn write_table(&mut self) -> Result<(), Error> {
        let count = self.records.len() as u64;
        let mut offset = WORD + WORD * count;
        self.sink.write(&count.to_le_bytes())?;
        // The table is written in pieces, because it may be long and the sink may be unbuffered.
        let mut piece = Vec::with_capacity(4096);
        for number in 0..self.records.len() {
            piece.extend(offset.to_le_bytes());
            // The sum of all records was checked when the writer was created.
            offset = offset.saturating_add(self.records[number].record_len().unwrap_or(LONGEST));
            if piece.len() == piece.capacity() {
                self.sink.write(&piece)?;
                piece.clear();
            }
        }
        self.sink.write(&piece)
    }

    /// Encodes a record up to its data.
    fn head(&self, record: &RecordSpec) -> Vec<u8> {
        let dims = record.spec().shape().dims();
        let mut head = Vec::with_capacity(record.head_len() as usize);
        head.extend((dims.len() as u64).to_le_bytes());
        head.push(code_of(record.spec().dtype()).unwrap_or(u8::MAX));
        head.push(if record.nnz.is_some() {
            self.coo_code
        } else {
            DENSE
        });
        head.extend([0; 6]);
        head.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        if let Some(nnz) = record.nnz {
            head.extend(nnz.to_le_bytes());
            head.extend((dims.len() as u64).to_le_bytes());
        }
        head
    }
}

impl<W: Write + Send> TensorWriter for BtfWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Self::write(self, bytes)
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.complete()?;
        self.sink.flush()?;
        Ok(self.sink.position())
    }
}

impl<W> fmt::Debug for BtfWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BtfWriter")
            .field("tensors", &self.records.len())
            .field("position", &self.sink.position())
            .finish()
    }
}
