use std::{collections::VecDeque, fmt, io::Write};

use fmt_cbor::CborValue;
use fmt_core::{Error, ErrorKind, Layout, Plan, TensorWriter};
use fmt_zstd::{ChecksumKind, Compression, Compressor, Hasher, HashingSink};
use tensor_core::{Quoted, Tensor, TensorSpec};

use crate::{
    CustomField, TensorOptions, WriteOptions,
    layout::{MAGIC, named},
    ledger::Ledger,
};

/// A zTensor file that is being written, front to back, to anything that takes bytes.
///
/// The index comes last, so tensors need not be known when writing begins, and memory holds the index and, of a
/// compressed tensor, one frame. A tensor that the format cannot hold is refused before anything of it is written. The
/// same tensors in the same order give the same bytes.
///
/// ```
/// use fmt_core::{AtomicFile, TensorReader};
/// use fmt_ztensor::{Compression, TensorOptions, WriteOptions, ZtensorReader, ZtensorWriter};
/// use tensor_core::{DType, Shape, Tensor, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.zt");
/// // The file appears under its name only when it is complete.
/// let mut writer = ZtensorWriter::new(AtomicFile::create(&path)?, WriteOptions::default())?;
/// writer.tensor("bias", &Tensor::from_vec(Shape::vector(2), vec![0.5f32, -0.5])?)?;
///
/// // A tensor that is never in memory as a whole, compressed.
/// let compressed = TensorOptions { compression: Some(Compression::default()), ..TensorOptions::default() };
/// writer.begin_with("counts", &TensorSpec::new(DType::U16, Shape::new(&[1000, 8])?)?, &compressed)?;
/// for row in 0..1000u16 {
///     writer.write(&[row.to_le_bytes(); 8].concat())?;
/// }
///
/// // Tied weights: another name for the same bytes.
/// writer.alias("decoder.bias", &TensorSpec::new(DType::F32, Shape::vector(2))?, "bias")?;
/// writer.finish()?.persist()?;
///
/// let reader = ZtensorReader::from_path(&path)?;
/// assert_eq!(reader.entries().len(), 3);
/// assert!(reader.entries()[1].stored_size() < 8000);
/// # Ok(())
/// # }
/// ```
///
/// After an error of the sink the file is of no use, and every further call fails.
pub struct ZtensorWriter<W> {
    sink: HashingSink<W>,
    ledger: Ledger,
    options: WriteOptions,
    /// Tensors whose bytes are still to come.
    pending: VecDeque<Pending>,
    /// Bytes that are still to come.
    outstanding: u64,
    /// Made when it is first needed.
    compressor: Option<Compressor>,
    /// The first bytes of an element that is to be turned around and is not complete.
    partial: Vec<u8>,
}

/// A tensor whose bytes are still to come.
struct Pending {
    number: usize,
    rest: u64,
    /// Where the bytes began to go, if they did.
    offset: Option<u64>,
    compression: Option<Compression>,
    checksum: Option<ChecksumKind>,
    /// Bytes of elements that are to be turned around.
    turn: Option<usize>,
}

impl<W: Write> ZtensorWriter<W> {
    /// Begins a file. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an alignment that cannot be.
    pub fn new(out: W, options: WriteOptions) -> Result<Self, Error> {
        options.check()?;
        let ledger = Ledger::new(&options);
        Ok(Self::resume(out, options, ledger, 0))
    }

    /// Begins a file that is known in full: what the format cannot hold is refused before anything is written.
    /// Attributes become custom fields.
    ///
    /// # Errors
    /// As [`ZtensorWriter::new`] and [`ZtensorWriter::begin`]; [`ErrorKind::Unsupported`] for tensors that are not
    /// dense (Z20), and for metadata of the file, for which the format has no place (Z27).
    pub fn planned(out: W, plan: &Plan, options: WriteOptions) -> Result<Self, Error> {
        let mut writer = Self::new(out, options)?;
        if let Some(key) = plan.metadata.keys().next() {
            let what = format!("the format has no place for the metadata {}", Quoted(key));
            return Err(Error::new(ErrorKind::Unsupported, what)
                .expected("none; attributes of single tensors fit")
                .rule("Z27"));
        }
        for (number, entry) in plan.entries.iter().enumerate() {
            entry.check_dtype()?;
            if entry.layout != Layout::Dense {
                let error = Error::new(ErrorKind::Unsupported, "the layout")
                    .of_tensor(&entry.name)
                    .rule("Z20");
                let expected = "dense; indices and values fit as two tensors of their own";
                return Err(error.expected(expected).found(&entry.layout));
            }
            let mut options = writer.options.tensors.clone();
            for (key, value) in &entry.attributes {
                let field = CustomField::new(key, CborValue::from(&**value));
                options
                    .fields
                    .push(field.map_err(|error| error.of_tensor(&entry.name))?);
            }
            match entry.sharer(plan, number)? {
                Some(of) => {
                    let ledger = &mut writer.ledger;
                    ledger.admit_alias(&entry.name, &entry.spec, of, &options.fields)?;
                }
                None => writer.admit(&entry.name, &entry.spec, &options)?,
            }
        }
        Ok(writer)
    }

    /// Goes on behind `position` bytes that are in the sink already.
    pub(crate) fn resume(out: W, options: WriteOptions, ledger: Ledger, position: u64) -> Self {
        Self {
            sink: HashingSink::new(out, position),
            ledger,
            options,
            pending: VecDeque::new(),
            outstanding: 0,
            compressor: None,
            partial: Vec::new(),
        }
    }

    /// Begins a tensor, whose bytes come next.
    ///
    /// # Errors
    /// As [`ZtensorWriter::begin_with`].
    pub fn begin(&mut self, name: &str, spec: &TensorSpec) -> Result<(), Error> {
        let options = std::mem::take(&mut self.options.tensors);
        let begun = self.begin_with(name, spec, &options);
        self.options.tensors = options;
        begun
    }

    /// Begins a tensor that is stored as the options say, and whose bytes come next.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when bytes of the tensor before are missing; [`ErrorKind::BadName`],
    /// [`ErrorKind::Duplicate`] and [`ErrorKind::TooLarge`] for what readers would refuse; [`ErrorKind::Unsupported`]
    /// for options that cannot be.
    pub fn begin_with(
        &mut self,
        name: &str,
        spec: &TensorSpec,
        options: &TensorOptions,
    ) -> Result<(), Error> {
        self.expect_nothing_outstanding()?;
        self.admit(name, spec, options)?;
        self.settle()
    }

    fn admit(&mut self, name: &str, spec: &TensorSpec, options: &TensorOptions) -> Result<(), Error> {
        let number = self.ledger.admit(name, spec, options)?;
        let rest = spec.byte_len();
        let width = spec.dtype().size();
        // The ledger has added up more.
        self.outstanding += rest;
        self.pending.push_back(Pending {
            number,
            rest,
            offset: None,
            compression: options.compression,
            checksum: options.checksum,
            turn: (options.big_endian && width > 1).then_some(width),
        });
        Ok(())
    }

    /// Writes the next bytes, row-major and little-endian, in pieces of any size.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] for bytes beyond the tensor that was begun, of which nothing is written;
    /// [`ErrorKind::Io`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 > self.outstanding {
            let error = Error::new(ErrorKind::SizeMismatch, "bytes beyond the last tensor");
            return Err(error
                .expected(format_args!("at most {}", self.outstanding))
                .found(bytes.len()));
        }
        self.settle()?;
        while !bytes.is_empty() {
            self.open_front()?;
            let Some(front) = self.pending.front_mut() else {
                break;
            };
            let len = usize::try_from(front.rest).map_or(bytes.len(), |rest| rest.min(bytes.len()));
            let (taken, rest) = bytes.split_at(len);
            bytes = rest;
            match (&front.turn, &mut self.compressor) {
                (Some(width), _) => turn_around(taken, *width, &mut self.partial, &mut self.sink)?,
                (None, Some(compressor)) if front.compression.is_some() => {
                    compressor.write(taken, &mut self.sink).map_err(named)?;
                }
                _ => self.sink.write(taken)?,
            }
            front.rest -= len as u64;
            self.outstanding -= len as u64;
            self.settle()?;
        }
        Ok(())
    }

    /// Makes everything ready for the bytes of the first tensor of those to come.
    fn open_front(&mut self) -> Result<(), Error> {
        let Some(front) = self.pending.front_mut() else {
            return Ok(());
        };
        if front.offset.is_some() {
            return Ok(());
        }
        if let Some(compression) = &front.compression {
            let compressor = match &mut self.compressor {
                Some(compressor) => compressor,
                none => none.insert(Compressor::new().map_err(named)?),
            };
            compressor.begin(compression, front.rest).map_err(named)?;
        }
        begin(&mut self.sink)?;
        let offset = self.sink.position().next_multiple_of(self.options.alignment);
        self.sink.pad_to(offset)?;
        self.sink.hash(front.checksum.map(Hasher::new));
        front.offset = Some(self.sink.position());
        Ok(())
    }

    /// Ends the tensors whose bytes are all there.
    fn settle(&mut self) -> Result<(), Error> {
        while self.pending.front().is_some_and(|front| front.rest == 0) {
            self.open_front()?;
            let Some(front) = self.pending.pop_front() else {
                break;
            };
            if let (Some(_), Some(compressor)) = (front.compression, &mut self.compressor) {
                compressor.finish(&mut self.sink).map_err(named)?;
            }
            let offset = front.offset.unwrap_or(self.sink.position());
            let checksum = self.sink.take_claim();
            let size = self.sink.position() - offset;
            self.ledger.settle(front.number, offset, size, checksum);
        }
        Ok(())
    }

    /// Writes a tensor.
    ///
    /// # Errors
    /// As [`ZtensorWriter::begin`] and [`ZtensorWriter::write`].
    pub fn tensor(&mut self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        self.begin(name, tensor.spec())?;
        self.write(tensor.bytes())
    }

    /// Writes a tensor that is stored as the options say.
    ///
    /// # Errors
    /// As [`ZtensorWriter::begin_with`] and [`ZtensorWriter::write`].
    pub fn tensor_with(&mut self, name: &str, tensor: &Tensor, options: &TensorOptions) -> Result<(), Error> {
        self.begin_with(name, tensor.spec(), options)?;
        self.write(tensor.bytes())
    }

    /// Gives the bytes of a tensor that was begun before another name, and perhaps another dtype or shape (Z10).
    ///
    /// # Errors
    /// As [`ZtensorWriter::begin`]; [`ErrorKind::OutOfBounds`] when there is no such tensor, [`ErrorKind::SizeMismatch`]
    /// when it has another number of bytes, or has elements of another size that are stored most significant byte first.
    pub fn alias(&mut self, name: &str, spec: &TensorSpec, of: &str) -> Result<(), Error> {
        self.ledger.admit_alias(name, spec, of, &[])
    }

    /// Writes the index and gives the sink back, which has not been flushed.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when bytes of a tensor are missing; [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        self.write_index()?;
        Ok(self.sink.into_inner())
    }

    fn write_index(&mut self) -> Result<u64, Error> {
        let tail = self.write_all_but_tail()?;
        self.sink.write(&tail)?;
        Ok(self.sink.position())
    }

    /// Writes everything but the length of the index, which makes it a file.
    pub(crate) fn write_all_but_tail(&mut self) -> Result<[u8; 8], Error> {
        self.settle()?;
        self.expect_nothing_outstanding()?;
        begin(&mut self.sink)?;
        let index = self.ledger.encode();
        self.sink.write(&index)?;
        Ok((index.len() as u64).to_le_bytes())
    }

    pub(crate) fn into_sink(self) -> W {
        self.sink.into_inner()
    }

    fn expect_nothing_outstanding(&self) -> Result<(), Error> {
        let Some(front) = self.pending.iter().find(|pending| pending.rest > 0) else {
            return Ok(());
        };
        let record = &self.ledger.records()[front.number];
        let error =
            Error::new(ErrorKind::SizeMismatch, "bytes of the tensor are missing").of_tensor(&record.name);
        Err(error.expected(format_args!("{} more", front.rest)).found("none"))
    }
}

/// Writes the magic if nothing has been written.
fn begin<W: Write>(sink: &mut HashingSink<W>) -> Result<(), Error> {
    match sink.position() {
        0 => sink.write(&MAGIC),
        _ => Ok(()),
    }
}

/// Writes elements with their bytes turned around; keeps what is not a whole element until the rest comes.
fn turn_around<W: Write>(
    mut bytes: &[u8],
    width: usize,
    partial: &mut Vec<u8>,
    sink: &mut HashingSink<W>,
) -> Result<(), Error> {
    const PIECE: usize = 64 << 10;
    if !partial.is_empty() {
        let (taken, rest) = bytes.split_at(bytes.len().min(width - partial.len()));
        partial.extend_from_slice(taken);
        bytes = rest;
        if partial.len() < width {
            return Ok(());
        }
        partial.reverse();
        sink.write(partial)?;
        partial.clear();
    }
    let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % width);
    let mut turned = Vec::with_capacity(whole.len().min(PIECE));
    // Elements have 2, 4 or 8 bytes, so no piece ends amid one.
    for piece in whole.chunks(PIECE) {
        turned.clear();
        turned.extend_from_slice(piece);
        turned.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        sink.write(&turned)?;
    }
    partial.extend_from_slice(rest);
    Ok(())
}

impl<W: Write + Send> TensorWriter for ZtensorWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Self::write(self, bytes)
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        let len = self.write_index()?;
        self.sink.flush()?;
        Ok(len)
    }
}

impl<W> fmt::Debug for ZtensorWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZtensorWriter")
            .field("tensors", &self.ledger.records().len())
            .field("position", &self.sink.position())
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}
