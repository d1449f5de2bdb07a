use std::{fmt, ops::Range, path::Path, sync::Arc};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, FileSource, Lint, Metadata, ReadOptions, SourceStream, TensorReader,
    TensorStream, Verification,
};
use tensor_core::{Bytes, Tensor, TensorSpec};

use crate::{
    footer::{io_error, locate_index, read},
    index::{Index, Stored},
    layout::{FORMAT, MODEL},
    lints,
};

/// An open TensorBuffers file.
///
/// Opening reads both ends and the index and proves all of it, in time and memory that grow with the index only. Then
/// each tensor is one slice of the source: without a copy where the source is memory, one read where it is a file.
///
/// ```
/// use fmt_core::TensorReader;
/// use fmt_tbuf::{TbufReader, TbufWriter, WriteOptions};
/// use tensor_core::{Shape, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let weights = Tensor::from_vec(Shape::new(&[3, 2])?, vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// # let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default())?;
/// # writer.set_model("tiny")?;
/// # writer.tensor("weights", &weights)?;
/// # let file = writer.finish()?;
/// let reader = TbufReader::from_bytes(file)?;
/// assert_eq!((reader.version(), reader.model()), ("1.0.0", Some("tiny")));
/// let index = reader.find("weights").ok_or("no such tensor")?;
/// assert_eq!(reader.tensor(index)?, weights);
///
/// // Only the rows that are asked for are read.
/// let row = reader.rows(index, 1..2)?;
/// assert_eq!(row.view().as_slice::<f32>()?, [3.0, 4.0]);
///
/// // Or into memory that is there already, which costs least.
/// let mut buffer = [0; 24];
/// reader.read_into(index, &mut buffer)?;
/// # Ok(())
/// # }
/// ```
///
/// Tensors with a dtype that the format does not have are listed, say so in [`Entry::unsupported`], and are refused
/// when they are read (rule T14).
///
/// With [`ReadOptions::lenient`], names and ids may occur twice ([`TensorReader::find`] gives the first), names may be
/// empty or have zero bytes, and tensors may share parts of their data (T5, T7, T12, T19).
pub struct TbufReader {
    source: Arc<dyn ByteSource>,
    /// Where the index begins.
    index_start: u64,
    index: Index,
    metadata: Metadata,
}

impl TbufReader {
    /// Opens a file of any source.
    ///
    /// # Errors
    /// What is wrong with it and where: [`Error::broken_rule`] has the rule of docs/formats/tensorbuffers.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let range = locate_index(&*source, &options.limits)?;
        let index_start = range.start;
        let bytes = read(&*source, range, "the index")?;
        let index = Index::parse(&bytes, index_start, options)?;
        let mut metadata = Metadata::new();
        if let Some(model) = &index.model {
            metadata.insert(MODEL.to_owned(), model.clone());
        }
        Ok(Self {
            source,
            index_start,
            index,
            metadata,
        })
    }

    /// Opens a file on disk, whose tensors are read when they are asked for.
    ///
    /// # Errors
    /// As [`FileSource::open`] and [`TbufReader::open`].
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open(
            Arc::new(FileSource::open(path.as_ref())?),
            &ReadOptions::default(),
        )
    }

    /// Opens a file in memory, which a mapping of `tensor-mmap` is too. Tensors are slices of it.
    ///
    /// # Errors
    /// As [`TbufReader::open`].
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        Self::open(Arc::new(bytes.into()), &ReadOptions::default())
    }

    /// The version of the format that the file claims; usually `1.0.0`, and nothing depends on it (T8).
    #[must_use]
    pub fn version(&self) -> &str {
        &self.index.version
    }

    /// The name of the model that the tensors belong to (T9).
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.index.model.as_deref()
    }

    /// The id that the file has for a tensor; that of its name would be [`tensor_id`](crate::tensor_id) (T6).
    ///
    /// # Panics
    /// When there is no such index.
    #[must_use]
    pub fn id(&self, index: usize) -> u64 {
        self.index.stored[index].id
    }

    /// Where in the file the index stands. All data lies before it.
    #[must_use]
    pub fn index_range(&self) -> Range<u64> {
        self.index_start..self.source.len() - crate::layout::TAIL
    }

    /// Whether the index has fields that this crate passes over, such as the operations of files that were written by
    /// later versions of the format's first implementation (T17). Rewriting such a file loses them.
    #[must_use]
    pub fn has_unknown_fields(&self) -> bool {
        self.index.has_unknown_fields || self.index.stored.iter().any(|stored| stored.has_unknown_fields)
    }

    pub(crate) fn stored(&self) -> &[Stored] {
        &self.index.stored
    }

    pub(crate) fn source(&self) -> &dyn ByteSource {
        &*self.source
    }

    /// Dtype and shape of a tensor that can be read.
    fn readable(&self, index: usize) -> Result<(&Entry, TensorSpec), Error> {
        let entry = &self.index.entries[index];
        let spec = entry.spec().filter(|_| entry.unsupported.is_none());
        let spec = spec.ok_or_else(|| {
            let reason = entry.unsupported.as_deref().unwrap_or("the tensor");
            let error = Error::new(ErrorKind::Unsupported, reason)
                .of_tensor(&entry.name)
                .rule("T14");
            error.expected("a dtype from 1 to 10").found(&entry.dtype)
        })?;
        Ok((entry, spec))
    }

    fn read(&self, entry: &Entry, spec: TensorSpec, range: Range<u64>) -> Result<Tensor, Error> {
        let bytes = read(&*self.source, range, "the data").map_err(|error| error.of_tensor(&entry.name))?;
        // The range has been made from the spec, and `read` returns what was asked for.
        Tensor::new(spec, bytes).map_err(|error| {
            Error::new(ErrorKind::SizeMismatch, error.to_string())
                .of_tensor(&entry.name)
                .rule("T18")
        })
    }
}

impl TensorReader for TbufReader {
    fn format(&self) -> &'static str {
        FORMAT
    }

    fn entries(&self) -> &[Entry] {
        &self.index.entries
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn find(&self, name: &str) -> Option<usize> {
        let found = self
            .index
            .names
            .find(name, |number| &self.index.entries[number as usize].name)?;
        Some(found as usize)
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let (entry, spec) = self.readable(index)?;
        self.read(entry, spec, entry.range.clone())
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let (entry, spec) = self.readable(index)?;
        let Some(&available) = spec.shape().dims().first() else {
            let error = Error::new(ErrorKind::OutOfBounds, "a scalar has no rows");
            return Err(error.of_tensor(&entry.name));
        };
        if rows.start > rows.end || rows.end > available {
            let error = Error::new(ErrorKind::OutOfBounds, "there are no such rows").of_tensor(&entry.name);
            return Err(error
                .expected(format_args!("rows within 0..{available}"))
                .found(format_args!("{}..{}", rows.start, rows.end)));
        }
        // A tensor with bytes has rows. Nothing overflows: the part is no larger than the whole.
        let row_bytes = spec.byte_len().checked_div(available).unwrap_or(0);
        let start = entry.range.start + rows.start * row_bytes;
        let end = entry.range.start + rows.end * row_bytes;
        let shape = spec.shape().with_leading_dim(rows.end - rows.start);
        let spec = shape.and_then(|shape| TensorSpec::new(spec.dtype(), shape));
        let spec = spec.map_err(|error| {
            // Only an empty tensor can have rows that are too large to be: `[0, 2^32 - 1, ...]`.
            Error::new(ErrorKind::Overflow, error.to_string())
                .of_tensor(&entry.name)
                .rule("T21")
        })?;
        self.read(entry, spec, start..end)
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let (entry, _) = self.readable(index)?;
        Ok(Box::new(SourceStream::new(&*self.source, entry.range.clone())))
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let (entry, spec) = self.readable(index)?;
        if out.len() as u64 != spec.byte_len() {
            let error =
                Error::new(ErrorKind::SizeMismatch, "the length of the buffer").of_tensor(&entry.name);
            return Err(error
                .expected(format_args!("{} bytes for {spec}", spec.byte_len()))
                .found(out.len()));
        }
        let read = self.source.read_into(entry.range.start, out);
        read.map_err(|error| io_error(error, entry.range.start, "the data").of_tensor(&entry.name))
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        // The format has no checksums; what there is to hold has been held when the file was opened.
        self.readable(index).map(|_| Verification::Unchecked)
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        lints::of(self)
    }
}

impl fmt::Debug for TbufReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TbufReader")
            .field("version", &self.index.version)
            .field("model", &self.index.model)
            .field("tensors", &self.index.entries.len())
            .field("bytes", &self.source.len())
            .finish()
    }
}
