use std::{fmt, io::Write};

use fmt_core::{Error, ErrorKind, Layout, Plan, Sink, TensorWriter};
use tensor_core::{SparseCoo, Tensor};

use crate::{
    CooCode, RecordSpec, WriteOptions,
    layout::{COO, COO_OF_TFRT, DENSE, HEADER, LONGEST, WORD, code_of, padding},
    order::IndexCheck,
};

/// A BTF file that is being written, front to back, to anything that takes bytes.
///
/// The table of offsets comes first, so all tensors are announced when writing begins, and what the format cannot hold
/// is refused before the first byte. Their bytes then come in any pieces; memory holds the announcements only. The same
/// tensors in the same order give the same bytes.
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
/// // A tensor that is never in memory as a whole.
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
/// After an error of the sink or in the indices of a sparse tensor the file is of no use, and every further call fails.
pub struct BtfWriter<W> {
    sink: Sink<W>,
    records: Vec<RecordSpec>,
    coo_code: u8,
    state: State,
}

/// What comes next.
enum State {
    /// The table of offsets.
    Table,
    /// Bytes of a record's part; when there are none, what follows the part.
    Data { record: usize, part: Part, rest: u64 },
    /// Nothing.
    End,
}

enum Part {
    /// A dense tensor's elements or a sparse one's values, and the padding.
    Elements,
    /// A sparse tensor's indices.
    Indices(IndexCheck),
}

impl<W: Write> BtfWriter<W> {
    /// Begins a file with these tensors. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a dtype that the format does not have, [`ErrorKind::TooLarge`] for what readers
    /// would not take, [`ErrorKind::SizeMismatch`] for more entries than the tensor has elements.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "options are values, as for the writers of other formats"
    )]
    pub fn new(out: W, records: Vec<RecordSpec>, options: WriteOptions) -> Result<Self, Error> {
        let (count, most) = (records.len() as u64, options.limits.tensors);
        if count > most {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("B17");
            return Err(error
                .expected(format_args!("at most {most}, which readers take"))
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
                .expected(format_args!("at most {most} bytes, which readers take"))
                .found(index_len));
        }
        if len.is_none_or(|len| len > LONGEST) {
            return Err(too_large("the file").expected("less than 2^63 bytes"));
        }
        Ok(Self {
            sink: Sink::new(out, 0),
            records,
            coo_code: match options.coo_code {
                CooCode::Specification => COO,
                CooCode::Tfrt => COO_OF_TFRT,
            },
            state: State::Table,
        })
    }

    /// Begins a file that a tool has planned.
    ///
    /// # Errors
    /// As [`BtfWriter::new`]; [`ErrorKind::BadName`] for a name that is not the tensor's number, and
    /// [`ErrorKind::Unsupported`] for metadata, attributes and layouts that are neither dense nor COO (B14).
    pub fn planned(out: W, plan: &Plan, options: WriteOptions) -> Result<Self, Error> {
        if let Some(key) = plan.metadata.keys().next() {
            return Err(no_place_for(key, "metadata"));
        }
        let mut records = Vec::with_capacity(plan.entries.len());
        for (number, entry) in plan.entries.iter().enumerate() {
            if entry.name != number.to_string() {
                let error = Error::new(ErrorKind::BadName, "the format has no names").of_tensor(&entry.name);
                return Err(error
                    .rule("B14")
                    .expected(format_args!("'{number}', its number in the file")));
            }
            entry.check_dtype()?;
            if let Some(key) = entry.attributes.keys().next() {
                return Err(no_place_for(key, "attribute").of_tensor(&entry.name));
            }
            records.push(match &entry.layout {
                Layout::Dense => RecordSpec::dense(entry.spec.clone()),
                Layout::Coo { nnz } => RecordSpec::coo(entry.spec.clone(), *nnz),
                other => {
                    let error = Error::new(ErrorKind::Unsupported, "the layout").of_tensor(&entry.name);
                    return Err(error
                        .rule("B1")
                        .expected("dense or COO")
                        .found(format_args!("{other:?}")));
                }
            });
        }
        Self::new(out, records, options)
    }

    /// Writes the next bytes of the tensors that were announced, row-major and little-endian, as many or few as there
    /// are. They may end one tensor and begin the next. Of a sparse tensor they are first the indices and then the
    /// values.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when that is more than the tensors have; nothing behind the last tensor is written
    /// then. [`ErrorKind::OutOfBounds`] for an index outside its dimension, [`ErrorKind::Malformed`] for indices that
    /// are not in ascending row-major order, [`ErrorKind::Duplicate`] for coordinates that repeat (B10, B11).
    /// [`ErrorKind::Io`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.sink.check()?;
        if let State::Table = self.state {
            self.write_table()?;
        }
        while !bytes.is_empty() {
            let State::Data { record, part, rest } = &mut self.state else {
                let error = Error::new(ErrorKind::SizeMismatch, "more bytes than the tensors have");
                return Err(error.expected("none").found(bytes.len()));
            };
            let len = usize::try_from(*rest).map_or(bytes.len(), |rest| rest.min(bytes.len()));
            let (now, later) = bytes.split_at(len);
            if let Part::Indices(check) = part {
                let shape = self.records[*record].spec().shape();
                if let Err(error) = check.take(now, shape.dims()) {
                    self.sink.fail();
                    return Err(error.of_tensor(&record.to_string()));
                }
            }
            *rest -= len as u64;
            let is_complete = *rest == 0;
            self.sink.write(now)?;
            bytes = later;
            if is_complete {
                self.advance()?;
            }
        }
        Ok(())
    }

    /// Writes the next tensor, which is dense and was announced as it is.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when another one is next; else as [`BtfWriter::write`].
    pub fn tensor(&mut self, tensor: &Tensor) -> Result<(), Error> {
        self.expect_next(&tensor.into())?;
        self.write(tensor.bytes())
    }

    /// Writes the next tensor, which is sparse and was announced as it is. It is sorted first (B11).
    ///
    /// # Errors
    /// As [`BtfWriter::tensor`]; [`ErrorKind::Duplicate`] when coordinates repeat, and nothing is written then.
    pub fn sparse(&mut self, sparse: &SparseCoo) -> Result<(), Error> {
        let number = self.expect_next(&sparse.into())?;
        let sorted = sparse.sorted().map_err(|error| {
            let error = Error::new(ErrorKind::Duplicate, error.to_string());
            error.of_tensor(&number.to_string()).rule("B11")
        })?;
        self.write(sorted.indices().bytes())?;
        self.write(sorted.values().bytes())
    }

    /// Ends the file and gives the sink back, which has not been flushed.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when bytes of a tensor are missing; [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        self.complete()?;
        Ok(self.sink.into_inner())
    }

    fn complete(&mut self) -> Result<(), Error> {
        // The table, and tensors without bytes.
        self.write(&[])?;
        if let State::Data { record, rest, .. } = &self.state {
            let error = Error::new(ErrorKind::SizeMismatch, "bytes of the tensor are missing");
            return Err(error
                .of_tensor(&record.to_string())
                .found(format_args!("{rest} bytes less")));
        }
        Ok(())
    }

    /// The number of the tensor that is next, which is to be this one.
    fn expect_next(&mut self, wanted: &RecordSpec) -> Result<usize, Error> {
        self.sink.check()?;
        // Empty tensors are passed by when what is before them is complete, so any of them may be meant.
        if wanted.byte_len() == Some(0) {
            return Ok(0);
        }
        if let State::Table = self.state {
            self.write_table()?;
        }
        let next = match &self.state {
            State::Data { record, .. } => *record,
            _ => self.records.len(),
        };
        let spec = self.records.get(next);
        let is_begun = match &self.state {
            State::Data {
                part: Part::Elements,
                rest,
                ..
            } => Some(*rest) != spec.and_then(RecordSpec::byte_len),
            State::Data {
                part: Part::Indices(check),
                ..
            } => check.has_begun(),
            _ => false,
        };
        if spec == Some(wanted) && !is_begun {
            return Ok(next);
        }
        let error = Error::new(
            ErrorKind::SizeMismatch,
            "the tensor is not the next that was announced",
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
        // In pieces: sinks need not gather bytes, and the table may be long.
        let mut piece = Vec::with_capacity(4096);
        for number in 0..self.records.len() {
            piece.extend(offset.to_le_bytes());
            // The sum was found to fit when the file was begun.
            offset = offset.saturating_add(self.records[number].record_len().unwrap_or(LONGEST));
            if piece.len() == piece.capacity() {
                self.sink.write(&piece)?;
                piece.clear();
            }
        }
        self.sink.write(&piece)?;
        self.begin(0)
    }

    /// Writes heads and padding up to where bytes are expected.
    fn begin(&mut self, first: usize) -> Result<(), Error> {
        let mut next = first;
        while let Some(record) = self.records.get(next) {
            let head = self.head(record);
            let (nnz, rest) = (record.nnz, record.byte_len().unwrap_or(LONGEST));
            let index_len = record.index_len().unwrap_or(LONGEST);
            self.sink.write(&head)?;
            if rest > 0 {
                let has_indices = nnz.is_some() && index_len > 0;
                self.state = State::Data {
                    record: next,
                    rest: if has_indices { index_len } else { rest },
                    part: if has_indices {
                        Part::Indices(IndexCheck::default())
                    } else {
                        Part::Elements
                    },
                };
                // A sparse scalar has values but no indices.
                return match nnz.filter(|_| !has_indices) {
                    Some(nnz) => self.sink.write(&nnz.to_le_bytes()),
                    None => Ok(()),
                };
            }
            if nnz.is_some() {
                self.sink.write(&[0; WORD as usize])?;
            }
            next += 1;
        }
        self.state = State::End;
        Ok(())
    }

    /// Goes on behind a part that is complete.
    fn advance(&mut self) -> Result<(), Error> {
        let State::Data { record, part, rest } = &mut self.state else {
            return Ok(());
        };
        let number = *record;
        if let Part::Indices(_) = part {
            let spec = &self.records[number];
            let nnz = spec.nnz.unwrap_or_default();
            *rest = spec.values_len(nnz).unwrap_or(LONGEST);
            *part = Part::Elements;
            return self.sink.write(&nnz.to_le_bytes());
        }
        let padding = padding(self.sink.position()) as usize;
        self.sink.write(&[0; WORD as usize][..padding])?;
        self.begin(number + 1)
    }

    /// A record up to its first byte of data.
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

fn no_place_for(key: &str, what: &str) -> Error {
    let what = format!(
        "the format has no place for the {what} {}",
        tensor_core::Quoted(key)
    );
    Error::new(ErrorKind::Unsupported, what)
        .expected("none")
        .rule("B14")
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
