//! Reads and writes `.npy` files.

use std::{io::Write, ops::Range, slice, sync::Arc};

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Entry, Error, ErrorKind, Format, Limits, Lint, Metadata,
    Output, Outstanding, Plan, PlannedEntry, ReadOptions, Sniff, TensorReader, TensorStream, TensorWriter,
    Verification, read_range,
};
use tensor_core::Tensor;

use crate::{
    array::{Array, Form, StorageKind},
    capabilities::NPY,
    header::{Header, MAGIC, descr_of, descr_of_opaque},
    sink::Sink,
};

/// An open `.npy` file: one array, called `0`.
///
/// Little-endian row-major elements are a slice of the source. Other arrays are converted when read, within
/// [`fmt_core::Limits::decoded_bytes`].
///
/// ```
/// use fmt_core::TensorReader;
/// use fmt_npy::NpyReader;
///
/// // This is `numpy.save` of [[1, 2], [3, 4]] as '>i2' in Fortran order.
/// let mut file = b"\x93NUMPY\x01\0\x76\0".to_vec();
/// file.extend(format!("{:<117}\n", "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 2), }").bytes());
/// file.extend([0, 1, 0, 3, 0, 2, 0, 4]);
/// let reader = NpyReader::from_bytes(file)?;
/// assert_eq!(reader.tensor(0)?.to_vec::<i16>().unwrap(), [1, 2, 3, 4]);
/// # Ok::<(), fmt_core::Error>(())
/// ```
pub struct NpyReader {
    source: Arc<dyn ByteSource>,
    options: ReadOptions,
    metadata: Metadata,
    entry: Entry,
    form: Form,
    end: u64,
}

fmt_core::open_by_path_and_bytes!(NpyReader);

impl NpyReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// If the file is invalid. The error contains the position, and [`Error::broken_rule`] names the broken
    /// rule in docs/formats/npy.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let header = read_header(&*source, 0..source.len(), options)?;
        let start = header.len;
        let byte_len = header.byte_len().unwrap_or(source.len() - start);
        let end = start + byte_len;
        if end > source.len() {
            return Err(Error::cut_off(end, source.len()).rule("N6"));
        }
        let (entry, form) = Form::new("0", &header, start..end, StorageKind::Plain);
        Ok(Self {
            entry,
            form,
            source,
            options: options.clone(),
            metadata: Metadata::new(),
            end,
        })
    }

    fn array(&self, index: usize) -> Array<'_> {
        Array {
            entry: &self.entries()[index],
            form: &self.form,
        }
    }
}

/// Reads the header of an array within a source.
pub(crate) fn read_header(
    source: &dyn ByteSource,
    within: Range<u64>,
    options: &ReadOptions,
) -> Result<Header, Error> {
    let room = within.end - within.start;
    // Most headers are 128 bytes long.
    let first = read_range(source, within.start..within.start + room.min(128), "the header")?;
    let len = Header::length(&first, within.start)?;
    if len > room {
        let error = Error::new(ErrorKind::Truncated, "the header is truncated");
        return Err(error
            .at(within.start)
            .rule("N2")
            .expected(format_args!("{len} bytes"))
            .found(room));
    }
    let head = read_range(source, within.start..within.start + len, "the header")?;
    let header = Header::parse(&head, within.start)?;
    check_rank(&header, within.start, options)?;
    Ok(header)
}

pub(crate) fn check_rank(header: &Header, at: u64, options: &ReadOptions) -> Result<(), Error> {
    let (rank, most) = (header.shape.rank() as u64, options.limits.rank);
    if rank > most {
        let error = Error::new(ErrorKind::TooLarge, "the rank").at(at).rule("N5");
        return Err(error
            .expected(format_args!("at most {most}, the reader's limit"))
            .found(rank));
    }
    Ok(())
}

pub(crate) fn cut_off(at: u64, expected: u64, found: u64) -> Error {
    let error = Error::new(ErrorKind::Truncated, "the data is truncated").at(at);
    error
        .rule("N6")
        .expected(format_args!("{expected} bytes"))
        .found(found)
}

impl TensorReader for NpyReader {
    fn format(&self) -> &'static str {
        "npy"
    }

    fn entries(&self) -> &[Entry] {
        slice::from_ref(&self.entry)
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let read = self.array(index).tensor(&*self.source, &self.options.limits);
        read.map_err(|error| error.of_tensor("0"))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let read = self.array(index).rows(&*self.source, rows, &self.options.limits);
        read.map_err(|error| error.of_tensor("0"))
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let stream = self.array(index).stream(&*self.source, &self.options.limits);
        stream.map_err(|error| error.of_tensor("0"))
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let read = self
            .array(index)
            .read_into(&*self.source, out, &self.options.limits);
        read.map_err(|error| error.of_tensor("0"))
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        let read = self.array(index).verify(&*self.source);
        read.map_err(|error| error.of_tensor("0"))
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        let behind = self.end..self.source.len();
        Ok((!behind.is_empty())
            .then(|| Lint {
                message: "unused bytes after the array (N6)".to_owned(),
                tensor: None,
                range: Some(behind),
            })
            .into_iter()
            .collect())
    }
}

/// The format `.npy` for tools that handle all formats.
///
/// ```
/// use fmt_core::{Format, Plan, PlannedEntry};
/// use fmt_npy::Npy;
/// use tensor_core::{DType, Shape, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let spec = TensorSpec::new(DType::U8, Shape::vector(3))?;
/// let plan = Plan { entries: vec![PlannedEntry::dense("0", spec)], ..Plan::default() };
/// let mut file = Vec::new();
/// let mut writer = Npy.create(Box::new(&mut file), plan)?;
/// writer.write(&[1, 2])?;
/// writer.write(&[3])?;
/// assert_eq!(writer.finish()?, 128 + 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Npy;

impl Format for Npy {
    fn id(&self) -> &'static str {
        "npy"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["npy"]
    }

    fn sniff(&self, head: &[u8], _len: u64) -> Sniff {
        if head.starts_with(&MAGIC) {
            Sniff::Certain
        } else {
            Sniff::No
        }
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        Ok(Box::new(NpyReader::open(source, options)?))
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        Some(&NPY)
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        plan.check(&NPY, &Limits::default())?;
        let [entry] = &plan.entries[..] else {
            return Err(Error::new(ErrorKind::Unsupported, "the number of tensors").rule("N13"));
        };
        let head = encode_header(entry)?;
        Ok(Box::new(NpyWriter {
            sink: Sink::new(out),
            head: Some(head),
            outstanding: {
                let mut outstanding = Outstanding::default();
                outstanding.announce(0, entry.spec.byte_len());
                outstanding
            },
        }))
    }
}

pub(crate) fn encode_header(entry: &PlannedEntry) -> Result<Vec<u8>, Error> {
    let (descr, shape) = match &entry.opaque {
        Some((dtype, shape)) => (descr_of_opaque(dtype), shape),
        None => (descr_of(entry.spec.dtype()), entry.spec.shape()),
    };
    let header = descr.and_then(|descr| Header::encode(&descr, shape));
    header.ok_or_else(|| {
        let error = Error::new(ErrorKind::TooLarge, "the header").of_tensor(&entry.name);
        error.rule("N13")
    })
}

struct NpyWriter<W> {
    sink: Sink<W>,
    /// The encoded header; `None` once it is written.
    head: Option<Vec<u8>>,
    outstanding: Outstanding,
}

impl<W: Write + Send> TensorWriter for NpyWriter<W> {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.sink.valve().check()?;
        self.outstanding.admit(bytes)?;
        if let Some(head) = self.head.take() {
            self.sink.put(&head)?;
        }
        while let Some(piece) = self.outstanding.take(&mut bytes) {
            self.sink.put(piece.bytes)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.write(&[])?;
        self.outstanding.complete(|number| Some(number.to_string()))?;
        self.sink.flush()
    }
}
