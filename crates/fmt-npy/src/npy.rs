//! Reads and writes `.npy` files.

use std::{io::Write, ops::Range, slice, sync::Arc};

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Entry, Error, ErrorKind, Format, Layout, Lint, Metadata, Output, Plan,
    ReadOptions, Sniff, TensorReader, TensorStream, TensorWriter, Verification, read_range,
};
use tensor_core::Tensor;

use crate::{
    array::{Array, Form, StorageKind},
    header::{Header, MAGIC, descr_of, descr_of_opaque},
    sink::Sink,
};

/// An open `.npy` file: one array, called `0`.
///
/// Little-endian row-major elements are a slice of the source. Others are converted when read, within
/// [`fmt_core::Limits::decoded_bytes`].
///
/// ```
/// use fmt_core::TensorReader;
/// use fmt_npy::NpyReader;
///
/// // numpy.save of [[1, 2], [3, 4]] as '>i2' in Fortran order.
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
    /// When the file is invalid, with the position: [`Error::broken_rule`] is the rule of
    /// docs/formats/npy.md.
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
    // Most headers have 128 bytes.
    let first = read_range(source, within.start..within.start + room.min(128), "the header")?;
    let len = Header::length(&first, within.start)?;
    if len > room {
        let error = Error::new(ErrorKind::Truncated, "the header is cut off");
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
    let error = Error::new(ErrorKind::Truncated, "the data is cut off").at(at);
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
                message: "bytes behind the array belong to nothing (N6)".to_owned(),
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

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        let [entry] = &plan.entries[..] else {
            let error = Error::new(ErrorKind::Unsupported, "the number of tensors").rule("N13");
            return Err(error
                .expected("1: the format holds no more; .npz does")
                .found(plan.entries.len()));
        };
        if entry.name != "0" {
            let error = Error::new(ErrorKind::BadName, "the format has no names").of_tensor(&entry.name);
            return Err(error.rule("N13").expected("'0'; .npz has names"));
        }
        check_plan(&plan)?;
        let head = encode_header(entry)?;
        Ok(Box::new(NpyWriter {
            sink: Sink::new(out),
            head: Some(head),
            outstanding: entry.spec.byte_len(),
        }))
    }
}

/// Rejects what neither format supports.
pub(crate) fn check_plan(plan: &Plan) -> Result<(), Error> {
    let no_place = |what: &str, key: &str| {
        let key = tensor_core::Quoted(key);
        let what = format!("the format has no place for the {what} {key}");
        Error::new(ErrorKind::Unsupported, what).rule("N13")
    };
    if let Some(key) = plan.metadata.keys().next() {
        return Err(no_place("metadata", key));
    }
    for entry in &plan.entries {
        if let Some(key) = entry.attributes.keys().next() {
            return Err(no_place("attribute", key).of_tensor(&entry.name));
        }
        if entry.layout != Layout::Dense {
            let error = Error::new(ErrorKind::Unsupported, "the layout").of_tensor(&entry.name);
            return Err(error
                .rule("N13")
                .expected("dense: the format has no other")
                .found(&entry.layout));
        }
    }
    Ok(())
}

pub(crate) fn encode_header(entry: &fmt_core::PlannedEntry) -> Result<Vec<u8>, Error> {
    let refuse = |kind, what: &str| Error::new(kind, what).of_tensor(&entry.name).rule("N13");
    let most = fmt_core::Limits::default().rank;
    let rank = match &entry.opaque {
        Some((_, shape)) => shape.rank() as u64,
        None => entry.spec.shape().rank() as u64,
    };
    if rank > most {
        return Err(refuse(ErrorKind::TooLarge, "the rank")
            .expected(format_args!("at most {most}, which readers take"))
            .found(rank));
    }
    if entry.spec.byte_len() >= 1 << 63 {
        return Err(refuse(ErrorKind::TooLarge, "the length of the tensor").expected("less than 2^63 bytes"));
    }
    let (descr, shape) = match &entry.opaque {
        Some((dtype, shape)) => (descr_of_opaque(dtype), shape),
        None => (descr_of(entry.spec.dtype()), entry.spec.shape()),
    };
    let Some(descr) = descr else {
        entry.check_dtype()?;
        return Err(refuse(ErrorKind::Unsupported, "the dtype").found(entry.spec.dtype()));
    };
    Header::encode(&descr, shape).ok_or_else(|| refuse(ErrorKind::TooLarge, "the header"))
}

struct NpyWriter<W> {
    sink: Sink<W>,
    /// The header, until it is written.
    head: Option<Vec<u8>>,
    outstanding: u64,
}

impl<W: Write + Send> TensorWriter for NpyWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 > self.outstanding {
            return Err(too_many(self.outstanding, bytes.len()));
        }
        if let Some(head) = self.head.take() {
            self.sink.put(&head)?;
        }
        self.sink.put(bytes)?;
        self.outstanding -= bytes.len() as u64;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.write(&[])?;
        if self.outstanding > 0 {
            return Err(too_few("0", self.outstanding));
        }
        self.sink.flush()
    }
}

pub(crate) fn too_many(most: u64, found: usize) -> Error {
    let error = Error::new(ErrorKind::SizeMismatch, "more bytes than the tensors have");
    error.expected(format_args!("at most {most}")).found(found)
}

pub(crate) fn too_few(name: &str, missing: u64) -> Error {
    let error = Error::new(ErrorKind::SizeMismatch, "bytes of the tensor are missing").of_tensor(name);
    error.found(format_args!("{missing} bytes less"))
}
