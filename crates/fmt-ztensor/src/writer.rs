//! Writes a file: the tensors' bytes as they arrive, raw or compressed, followed by the index.

use std::{collections::VecDeque, fmt, io::Write};

use fmt_cbor::CborValue;
use fmt_core::{Error, Outstanding, Plan, TensorWriter};
use fmt_zstd::{ChecksumKind, Compression, Compressor, Hasher, HashingSink};
use tensor_core::{Tensor, TensorSpec};

use crate::{
    CustomField, TensorOptions, WriteOptions,
    capabilities::CAPABILITIES,
    layout::{MAGIC, named},
    ledger::Ledger,
};

/// Writes a zTensor file sequentially to any [`Write`].
///
/// The index comes last, so tensors need not be known in advance, and memory holds only the index and one
/// frame of a compressed tensor. A tensor that the format cannot store is refused before any of its bytes are
/// written. The same tensors in the same order give the same bytes.
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
/// // Tied weights: a second name for the same bytes.
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
/// After an I/O error the file is unusable, and every further call fails.
pub struct ZtensorWriter<W> {
    sink: HashingSink<W>,
    ledger: Ledger,
    options: WriteOptions,
    outstanding: Outstanding,
    /// Storage of the tensors whose bytes are still expected.
    pending: VecDeque<Pending>,
    /// Created when the first compressed tensor begins.
    compressor: Option<Compressor>,
    /// The first bytes of an incomplete element that must be byte-swapped.
    partial: Vec<u8>,
}

/// Storage of a tensor whose bytes are still expected.
struct Pending {
    len: u64,
    /// The offset of the tensor's bytes, once the first byte has been written.
    offset: u64,
    compression: Option<Compression>,
    checksum: Option<ChecksumKind>,
    /// Width in bytes of elements that must be byte-swapped; `None` if no swapping is needed.
    turn: Option<usize>,
}

impl<W: Write> ZtensorWriter<W> {
    /// Creates a writer. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported) for an invalid alignment.
    pub fn new(out: W, options: WriteOptions) -> Result<Self, Error> {
        options.check()?;
        let ledger = Ledger::new(&options);
        Ok(Self::resume(out, options, ledger, 0))
    }

    /// Creates a writer for a complete plan. A plan that the format cannot store is refused before any byte
    /// is written. Attributes become custom fields.
    ///
    /// # Errors
    /// The errors of [`ZtensorWriter::new`] and [`ZtensorWriter::begin`];
    /// [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported) for tensors that are not dense (Z20), and
    /// for file metadata, which the format cannot store (Z27).
    pub fn planned(out: W, plan: &Plan, options: WriteOptions) -> Result<Self, Error> {
        let mut writer = Self::new(out, options)?;
        plan.check(&CAPABILITIES, &writer.options.limits)?;
        for (number, entry) in plan.entries.iter().enumerate() {
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

    /// Creates a writer that continues after `position` bytes that are already in the sink.
    pub(crate) fn resume(out: W, options: WriteOptions, ledger: Ledger, position: u64) -> Self {
        Self {
            sink: HashingSink::new(out, position),
            ledger,
            options,
            outstanding: Outstanding::default(),
            pending: VecDeque::new(),
            compressor: None,
            partial: Vec::new(),
        }
    }

    /// Begins a tensor; its bytes follow.
    ///
    /// # Errors
    /// The errors of [`ZtensorWriter::begin_with`].
    pub fn begin(&mut self, name: &str, spec: &TensorSpec) -> Result<(), Error> {
        let options = std::mem::take(&mut self.options.tensors);
        let begun = self.begin_with(name, spec, &options);
        self.options.tensors = options;
        begun
    }

    /// Begins a tensor with storage options; its bytes follow.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`](fmt_core::ErrorKind::SizeMismatch) when the previous tensor is incomplete;
    /// [`ErrorKind::BadName`](fmt_core::ErrorKind::BadName),
    /// [`ErrorKind::Duplicate`](fmt_core::ErrorKind::Duplicate) and
    /// [`ErrorKind::TooLarge`](fmt_core::ErrorKind::TooLarge) for a tensor that readers would reject;
    /// [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported) for invalid options.
    pub fn begin_with(
        &mut self,
        name: &str,
        spec: &TensorSpec,
        options: &TensorOptions,
    ) -> Result<(), Error> {
        self.expect_complete()?;
        self.admit(name, spec, options)?;
        self.put(&[])
    }

    fn admit(&mut self, name: &str, spec: &TensorSpec, options: &TensorOptions) -> Result<(), Error> {
        let number = self.ledger.admit(name, spec, options)?;
        let (len, width) = (spec.byte_len(), spec.dtype().size());
        self.outstanding.announce(number, len);
        self.pending.push_back(Pending {
            len,
            offset: 0,
            compression: options.compression,
            checksum: options.checksum,
            turn: (options.big_endian && width > 1).then_some(width),
        });
        Ok(())
    }

    /// Writes the next bytes, row-major and little-endian, in pieces of any size.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`](fmt_core::ErrorKind::SizeMismatch) when there are more bytes than the
    /// current tensor has, in which case none are written; [`ErrorKind::Io`](fmt_core::ErrorKind::Io).
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.sink.check()?;
        self.outstanding.admit(bytes)?;
        self.put(bytes)
    }

    /// Writes `bytes` to the pending tensors, and completes the empty tensors that follow.
    fn put(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while let Some(piece) = self.outstanding.take(&mut bytes) {
            if piece.begins {
                self.begin_front()?;
            }
            let Some(front) = self.pending.front() else {
                break;
            };
            match (front.turn, &mut self.compressor) {
                (Some(width), _) => turn_around(piece.bytes, width, &mut self.partial, &mut self.sink)?,
                (None, Some(compressor)) if front.compression.is_some() => {
                    compressor.write(piece.bytes, &mut self.sink).map_err(named)?;
                }
                _ => self.sink.write(piece.bytes)?,
            }
            if piece.ends {
                self.end_front(piece.number)?;
            }
        }
        Ok(())
    }

    /// Begins the first pending tensor: sets its offset, and starts its compressor.
    fn begin_front(&mut self) -> Result<(), Error> {
        let Some(front) = self.pending.front_mut() else {
            return Ok(());
        };
        if let Some(compression) = &front.compression {
            let compressor = match &mut self.compressor {
                Some(compressor) => compressor,
                none => none.insert(Compressor::new().map_err(named)?),
            };
            compressor.begin(compression, front.len).map_err(named)?;
        }
        begin(&mut self.sink)?;
        front.offset = self.sink.position().next_multiple_of(self.options.alignment);
        self.sink.pad_to(front.offset)?;
        self.sink.hash(front.checksum.map(Hasher::new));
        Ok(())
    }

    /// Completes the first pending tensor, after its last byte: records location and checksum.
    fn end_front(&mut self, number: usize) -> Result<(), Error> {
        let Some(front) = self.pending.pop_front() else {
            return Ok(());
        };
        if let (Some(_), Some(compressor)) = (front.compression, &mut self.compressor) {
            compressor.finish(&mut self.sink).map_err(named)?;
        }
        let checksum = self.sink.take_claim();
        let size = self.sink.position() - front.offset;
        self.ledger.settle(number, front.offset, size, checksum);
        Ok(())
    }

    /// Writes a whole tensor.
    ///
    /// # Errors
    /// The errors of [`ZtensorWriter::begin`] and [`ZtensorWriter::write`].
    pub fn tensor(&mut self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        self.begin(name, tensor.spec())?;
        self.write(tensor.bytes())
    }

    /// Writes a whole tensor with storage options.
    ///
    /// # Errors
    /// The errors of [`ZtensorWriter::begin_with`] and [`ZtensorWriter::write`].
    pub fn tensor_with(&mut self, name: &str, tensor: &Tensor, options: &TensorOptions) -> Result<(), Error> {
        self.begin_with(name, tensor.spec(), options)?;
        self.write(tensor.bytes())
    }

    /// Adds a second name for the bytes of an earlier tensor, optionally with another dtype or shape (Z10).
    ///
    /// # Errors
    /// The errors of [`ZtensorWriter::begin`]; [`ErrorKind::OutOfBounds`](fmt_core::ErrorKind::OutOfBounds)
    /// when there is no tensor `of`, [`ErrorKind::SizeMismatch`](fmt_core::ErrorKind::SizeMismatch) when that
    /// tensor has a different number of bytes, or big-endian elements of a different size.
    pub fn alias(&mut self, name: &str, spec: &TensorSpec, of: &str) -> Result<(), Error> {
        self.ledger.admit_alias(name, spec, of, &[])
    }

    /// Writes the index and returns the sink without flushing it.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`](fmt_core::ErrorKind::SizeMismatch) when bytes of a tensor are missing;
    /// [`ErrorKind::Io`](fmt_core::ErrorKind::Io).
    pub fn finish(mut self) -> Result<W, Error> {
        self.write_index()?;
        Ok(self.sink.into_inner())
    }

    fn write_index(&mut self) -> Result<u64, Error> {
        let tail = self.write_all_but_tail()?;
        self.sink.write(&tail)?;
        Ok(self.sink.position())
    }

    /// Writes everything except the index length, which makes the file valid.
    pub(crate) fn write_all_but_tail(&mut self) -> Result<[u8; 8], Error> {
        self.put(&[])?;
        self.expect_complete()?;
        begin(&mut self.sink)?;
        let index = self.ledger.encode();
        self.sink.write(&index)?;
        Ok((index.len() as u64).to_le_bytes())
    }

    pub(crate) fn into_sink(self) -> W {
        self.sink.into_inner()
    }

    fn expect_complete(&self) -> Result<(), Error> {
        let name = |number: usize| Some(self.ledger.records()[number].name.clone());
        self.outstanding.complete(name)
    }
}

/// Writes the magic if nothing has been written.
fn begin<W: Write>(sink: &mut HashingSink<W>) -> Result<(), Error> {
    match sink.position() {
        0 => sink.write(&MAGIC),
        _ => Ok(()),
    }
}

/// Writes elements of `width` bytes byte-swapped; keeps an incomplete element in `partial` until its
/// remaining bytes arrive.
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
    // Elements are 2, 4 or 8 bytes wide, so no piece splits an element.
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
            .field("outstanding", &self.outstanding.bytes())
            .finish_non_exhaustive()
    }
}
