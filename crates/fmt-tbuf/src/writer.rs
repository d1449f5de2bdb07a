//! Writes a file: the tensors' bytes as they arrive, followed by the index.

use std::{fmt, io::Write};

use fmt_core::{Error, Outstanding, Plan, Sink, TensorWriter};
use tensor_core::{Tensor, TensorSpec};

use crate::{
    WriteOptions,
    capabilities::CAPABILITIES,
    layout::{MAGIC, MODEL},
    ledger::Ledger,
};

/// Writes a TensorBuffers file sequentially to any [`Write`].
///
/// The index comes last, so tensors need not be known in advance, and memory holds only the index. A tensor
/// that the format cannot store is refused before any of its bytes are written. The same tensors in the same
/// order give the same bytes.
///
/// ```
/// use fmt_core::AtomicFile;
/// use fmt_tbuf::{TbufReader, TbufWriter, WriteOptions};
/// use tensor_core::{DType, Shape, Tensor, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.tbuf");
/// // The file appears under its name only when it is complete.
/// let mut writer = TbufWriter::new(AtomicFile::create(&path)?, WriteOptions::default())?;
/// writer.tensor("bias", &Tensor::from_vec(Shape::vector(2), vec![0.5f32, -0.5])?)?;
///
/// // This tensor is written in pieces and never in memory as a whole.
/// writer.begin("counts", &TensorSpec::new(DType::U16, Shape::new(&[1000, 8])?)?)?;
/// for row in 0..1000u16 {
///     writer.write(&[row.to_le_bytes(); 8].concat())?;
/// }
///
/// // Tied weights are another name for the same bytes.
/// writer.alias("decoder.bias", &TensorSpec::new(DType::F32, Shape::vector(2))?, "bias")?;
/// writer.finish()?.persist()?;
///
/// let reader = TbufReader::from_path(&path)?;
/// # use fmt_core::TensorReader;
/// assert_eq!(reader.entries().len(), 3);
/// # Ok(())
/// # }
/// ```
///
/// After an I/O error the file is unusable, and every further call fails.
pub struct TbufWriter<W> {
    sink: Sink<W>,
    ledger: Ledger,
    outstanding: Outstanding,
}

impl<W: Write> TbufWriter<W> {
    /// Creates a writer. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported) for an invalid alignment.
    pub fn new(out: W, options: WriteOptions) -> Result<Self, Error> {
        Ok(Self::resume(out, Ledger::new(options)?, 0))
    }

    /// Creates a writer for a complete plan. A plan that the format cannot store is refused before any byte
    /// is written.
    ///
    /// # Errors
    /// The errors of [`TbufWriter::new`] and [`TbufWriter::begin`];
    /// [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported) for sparse tensors, attributes, and
    /// metadata other than `model`.
    pub fn planned(out: W, plan: &Plan, options: WriteOptions) -> Result<Self, Error> {
        let mut writer = Self::new(out, options)?;
        plan.check(&CAPABILITIES, writer.ledger.limits())?;
        if let Some(model) = plan.metadata.get(MODEL) {
            writer.ledger.set_model(Some(model))?;
        }
        for (number, entry) in plan.entries.iter().enumerate() {
            match entry.sharer(plan, number)? {
                Some(of) => writer.alias(&entry.name, &entry.spec, of)?,
                None => writer.admit(&entry.name, &entry.spec)?,
            }
        }
        Ok(writer)
    }

    /// Creates a writer for a sink that already has `position` bytes of the file.
    pub(crate) fn resume(out: W, ledger: Ledger, position: u64) -> Self {
        Self {
            sink: Sink::new(out, position),
            ledger,
            outstanding: Outstanding::default(),
        }
    }

    /// Sets the name of the model.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`](fmt_core::ErrorKind::TooLarge) when the index would become too large.
    pub fn set_model(&mut self, model: &str) -> Result<(), Error> {
        self.ledger.set_model(Some(model))
    }

    /// Begins a tensor; its bytes follow.
    ///
    /// # Errors
    /// After an error, none of the tensor's bytes have been written, and other tensors can follow:
    /// [`ErrorKind::TooLarge`](fmt_core::ErrorKind::TooLarge) beyond the format's 32 bits or the limits,
    /// [`ErrorKind::Unsupported`](fmt_core::ErrorKind::Unsupported) for a dtype that the format does not
    /// have, [`ErrorKind::BadName`](fmt_core::ErrorKind::BadName),
    /// [`ErrorKind::Duplicate`](fmt_core::ErrorKind::Duplicate),
    /// [`ErrorKind::SizeMismatch`](fmt_core::ErrorKind::SizeMismatch) when the previous tensor is incomplete.
    pub fn begin(&mut self, name: &str, spec: &TensorSpec) -> Result<(), Error> {
        self.expect_complete()?;
        self.admit(name, spec)
    }

    fn admit(&mut self, name: &str, spec: &TensorSpec) -> Result<(), Error> {
        let record = self.ledger.admit(name, spec)?;
        let number = self.ledger.records().len() - 1;
        self.outstanding.announce(number, record.size.into());
        Ok(())
    }

    /// Writes the next bytes of the current tensor, row-major and little-endian, in pieces of any size.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`](fmt_core::ErrorKind::SizeMismatch) for bytes beyond the tensor; no byte is
    /// written then. [`ErrorKind::Io`](fmt_core::ErrorKind::Io).
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.sink.check()?;
        self.outstanding.admit(bytes)?;
        while let Some(piece) = self.outstanding.take(&mut bytes) {
            if piece.begins && !piece.bytes.is_empty() {
                self.begin_file()?;
                let place = self.ledger.records()[piece.number].offset;
                self.sink.pad_to(place.into())?;
            }
            self.sink.write(piece.bytes)?;
        }
        Ok(())
    }

    fn begin_file(&mut self) -> Result<(), Error> {
        match self.sink.position() {
            0 => self.sink.write(&MAGIC),
            _ => Ok(()),
        }
    }

    /// Writes a whole tensor.
    ///
    /// # Errors
    /// The errors of [`TbufWriter::begin`] and [`TbufWriter::write`].
    pub fn tensor(&mut self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        self.begin(name, tensor.spec())?;
        self.write(tensor.bytes())
    }

    /// Adds another name for the bytes of an earlier tensor, optionally with another dtype or shape.
    ///
    /// # Errors
    /// The errors of [`TbufWriter::begin`]; [`ErrorKind::OutOfBounds`](fmt_core::ErrorKind::OutOfBounds) when
    /// there is no such tensor, [`ErrorKind::SizeMismatch`](fmt_core::ErrorKind::SizeMismatch) when that
    /// tensor has a different number of bytes.
    pub fn alias(&mut self, name: &str, spec: &TensorSpec, of: &str) -> Result<(), Error> {
        self.ledger.admit_alias(name, spec, of)
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

    /// Writes everything except the index length and the final magic, which make the file valid.
    pub(crate) fn write_all_but_tail(&mut self) -> Result<[u8; 8], Error> {
        self.expect_complete()?;
        self.begin_file()?;
        self.sink.pad_to(self.ledger.index_start())?;
        let index = self.ledger.encode();
        self.sink.write(index.bytes())?;
        // The ledger keeps indices below 2 GiB.
        let len = u32::try_from(index.bytes().len()).unwrap_or(u32::MAX);
        let mut tail = [0; 8];
        tail[..4].copy_from_slice(&len.to_le_bytes());
        tail[4..].copy_from_slice(&MAGIC);
        Ok(tail)
    }

    pub(crate) fn into_sink(self) -> W {
        self.sink.into_inner()
    }

    fn expect_complete(&self) -> Result<(), Error> {
        let name = |number| Some(self.ledger.name(number).to_owned());
        self.outstanding.complete(name)
    }
}

impl<W: Write + Send> TensorWriter for TbufWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Self::write(self, bytes)
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        let len = self.write_index()?;
        self.sink.flush()?;
        Ok(len)
    }
}

impl<W> fmt::Debug for TbufWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TbufWriter")
            .field("tensors", &self.ledger.records().len())
            .field("position", &self.sink.position())
            .field("outstanding", &self.outstanding.bytes())
            .finish()
    }
}
