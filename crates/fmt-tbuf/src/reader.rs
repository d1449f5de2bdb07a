//! Opens a file by its footer and index, and reads its tensors.

use std::{fmt, ops::Range, sync::Arc};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, Lint, Metadata, RawTensor, ReadOptions, TensorReader, read_range,
};
use tensor_core::Tensor;

use crate::{
    footer::locate_index,
    index::{Index, StoredTensor},
    layout::{FORMAT, MODEL},
    lints,
};

/// An open TensorBuffers file.
///
/// Opening reads and validates both ends of the file and the index, in time and memory proportional to the
/// index. After that, each tensor is one range of the source: a slice without a copy if the source is in
/// memory, or one read of a file.
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
/// // Only the requested rows are read.
/// let row = reader.rows(index, 1..2)?;
/// assert_eq!(row.view().as_slice::<f32>()?, [3.0, 4.0]);
///
/// // Reading into existing memory costs least.
/// let mut buffer = [0; 24];
/// reader.read_into(index, &mut buffer)?;
/// # Ok(())
/// # }
/// ```
///
/// Tensors of unknown dtypes are listed with [`Entry::unsupported`], and reading them fails.
///
/// With [`ReadOptions::lenient`], names may occur twice ([`TensorReader::find`] returns the first) or contain
/// zero bytes, and tensors may share parts of their data.
pub struct TbufReader {
    source: Arc<dyn ByteSource>,
    /// The start of the index.
    index_start: u64,
    index: Index,
    metadata: Metadata,
}

fmt_core::open_by_path_and_bytes!(TbufReader);

impl TbufReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// The error describes what is invalid and where; [`Error::broken_rule`] names the broken rule in
    /// docs/formats/tensorbuffers.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let range = locate_index(&*source, &options.limits)?;
        let index_start = range.start;
        let bytes = read_range(&*source, range, "the index")?;
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

    /// Returns the version of the format that the file declares, usually `1.0.0`. The reader ignores it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.index.version
    }

    /// Returns the name of the model, if the file has one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.index.model.as_deref()
    }

    /// Returns a tensor's id in the file, which may differ from the [`tensor_id`](crate::tensor_id) of its
    /// name.
    ///
    /// # Panics
    /// When there is no tensor with this index.
    #[must_use]
    pub fn id(&self, index: usize) -> u64 {
        self.index.stored[index].id
    }

    /// Returns the range of the index in the file. All data is before it.
    #[must_use]
    pub fn index_range(&self) -> Range<u64> {
        self.index_start..self.source.len() - crate::layout::TAIL
    }

    /// Returns whether the index has unknown fields, such as the operations in files of later versions of the
    /// reference implementation. Rewriting such a file loses them.
    #[must_use]
    pub fn has_unknown_fields(&self) -> bool {
        self.index.has_unknown_fields()
    }

    pub(crate) fn stored(&self) -> &[StoredTensor] {
        &self.index.stored
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
        self.index.find(name)
    }

    fn raw(&self, index: usize) -> Result<RawTensor<'_>, Error> {
        let entry = &self.index.entries[index];
        let raw = RawTensor::new(&*self.source, entry);
        raw.map_err(|error| {
            error
                .rule("T14")
                .expected("a dtype from 1 to 10")
                .found(&entry.dtype)
        })
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        // Only the rows of an empty tensor, such as `[0, 2^32 - 1, ...]`, can have a size that overflows.
        self.raw(index)?.rows(rows).map_err(|error| match error.kind() {
            ErrorKind::Overflow => error.rule("T21"),
            _ => error,
        })
    }

    fn shared(&self) -> Vec<(usize, usize)> {
        fmt_core::shared_ranges(self.entries())
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        lints::of(&self.index, &self.index_range(), &*self.source)
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
