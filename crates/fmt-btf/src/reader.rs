//! Reads the tensors of a file, after the index has been validated.

use std::{borrow::Cow, fmt, ops::Range, sync::Arc, sync::OnceLock};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, Layout, Lint, Metadata, NameTable, RawTensor, ReadOptions,
    StoredDType, TensorReader, TensorStream, Verification, read_range,
};
use tensor_core::{DType, Shape, SparseCoo, SparseError, Tensor, TensorSpec};

use crate::{
    Names,
    index::{Index, StoredRecord},
    layout::{DENSE, FORMAT, WORD, is_coo},
    lints,
};

/// An open BTF file.
///
/// Opening reads and validates the offset table and the header of every record, in time and memory
/// proportional to the number of tensors. After that, each dense tensor is one range of the source: a slice
/// without a copy if the source is in memory, or one read of a file.
///
/// Indices of sparse tensors are data: they are validated whenever the tensor is read, not when the file is
/// opened (rules B10 and B11).
///
/// ```
/// use fmt_btf::{BtfReader, BtfWriter, WriteOptions};
/// use fmt_core::TensorReader;
/// use tensor_core::{Shape, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let weights = Tensor::from_vec(Shape::new(&[3, 2])?, vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// # let mut writer = BtfWriter::new(Vec::new(), vec![(&weights).into()], WriteOptions::default())?;
/// # writer.tensor(&weights)?;
/// # let file = writer.finish()?;
/// let reader = BtfReader::from_bytes(file)?;
/// assert_eq!(reader.tensor(0)?, weights);
///
/// // Only the requested rows are read.
/// let row = reader.rows(0, 1..2)?;
/// assert_eq!(row.view().as_slice::<f32>()?, [3.0, 4.0]);
///
/// // Reading into existing memory costs least.
/// let mut buffer = [0; 24];
/// reader.read_into(0, &mut buffer)?;
/// # Ok(())
/// # }
/// ```
///
/// Tensors have names only after [`BtfReader::with_names`]; otherwise [`TensorReader::find`] finds them by
/// decimal index (B14). Tensors of unknown dtype or layout are listed with [`Entry::unsupported`], and
/// reading them fails.
///
/// With [`ReadOptions::lenient`], records may be at any offset (B4), reserved bytes may be nonzero (B6), and
/// a sparse tensor may repeat coordinates; the last value wins (B11, B13).
pub struct BtfReader {
    source: Arc<dyn ByteSource>,
    index: Index,
    options: ReadOptions,
    metadata: Metadata,
    /// The names given to [`BtfReader::with_names`], and their lookup table.
    names: Option<(Names, NameTable)>,
    /// Entries are created on demand: an entry takes many times the memory of a small tensor's record.
    entries: OnceLock<Box<[Entry]>>,
}

/// The raw description of a tensor in the file.
///
/// ```
/// use fmt_btf::{BtfReader, BtfWriter, WriteOptions};
/// use tensor_core::Tensor;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scalar = Tensor::scalar(1.5f64);
/// let mut writer = BtfWriter::new(Vec::new(), vec![(&scalar).into()], WriteOptions::default())?;
/// writer.tensor(&scalar)?;
/// let reader = BtfReader::from_bytes(writer.finish()?)?;
/// let record = reader.record(0).ok_or("no such tensor")?;
/// assert_eq!((record.offset, record.dtype, record.layout, record.dims), (16, 5, 0, &[][..]));
/// assert_eq!(record.data, 32..40);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// The offset of the record in the file in bytes.
    pub offset: u64,
    /// The code of the tensor's dtype (B2).
    pub dtype: u8,
    /// The code of the tensor's layout: 0 for dense, 2 for COO, 1 for COO as TFRT writes it (B1).
    pub layout: u8,
    /// The dimensions; for a sparse tensor, the dimensions of the dense tensor.
    pub dims: &'a [u64],
    /// The number of entries of a sparse tensor; `None` for a dense tensor, or if the record cannot be read.
    pub nnz: Option<u64>,
    /// The range of the tensor's elements in the file: for a sparse tensor the indices, the eight bytes of
    /// the values' length, and the values. Empty if dtype or layout is unknown.
    pub data: Range<u64>,
}

fmt_core::open_by_path_and_bytes!(BtfReader);

impl BtfReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// The error describes what is invalid and where; [`Error::broken_rule`] names the broken rule in
    /// docs/formats/btf.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let index = Index::read(&*source, options)?;
        Ok(Self {
            source,
            index,
            options: options.clone(),
            metadata: Metadata::new(),
            names: None,
            entries: OnceLock::new(),
        })
    }

    /// Returns the reader with names for the tensors, in place of their indices, and with the metadata of
    /// `names`.
    ///
    /// ```
    /// use fmt_btf::{BtfReader, BtfWriter, Names, WriteOptions};
    /// use fmt_core::TensorReader;
    /// use tensor_core::Tensor;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scalar = Tensor::scalar(1.5f64);
    /// let mut writer = BtfWriter::new(Vec::new(), vec![(&scalar).into()], WriteOptions::default())?;
    /// writer.tensor(&scalar)?;
    /// let reader = BtfReader::from_bytes(writer.finish()?)?;
    /// let reader = reader.with_names(Names::new(vec!["bias".into()], Default::default())?)?;
    /// assert_eq!((reader.find("bias"), reader.find("0")), (Some(0), None));
    /// assert_eq!(reader.entries()[0].name, "bias");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when the number of names differs from the number of tensors.
    pub fn with_names(mut self, mut names: Names) -> Result<Self, Error> {
        names.check_count(self.len())?;
        self.metadata = names.take_metadata();
        let (table, _) = NameTable::of(self.len(), |number| &names.names()[number as usize]);
        self.names = Some((names, table));
        self.entries = OnceLock::new();
        Ok(self)
    }

    /// Returns a tensor's name; without names, its index in decimal digits.
    fn name(&self, number: usize) -> Cow<'_, str> {
        match &self.names {
            Some((names, _)) => (&*names.names()[number]).into(),
            None => number.to_string().into(),
        }
    }

    /// Returns the number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns whether there are no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the raw description of a tensor; `None` if the index is out of bounds. Unlike
    /// [`TensorReader::entries`], this method allocates nothing.
    #[must_use]
    pub fn record(&self, index: usize) -> Option<Record<'_>> {
        let stored = (index < self.len()).then(|| self.index.get(index))?;
        Some(Record {
            offset: stored.offset,
            dtype: stored.dtype,
            layout: stored.layout,
            dims: self.index.dims(stored),
            nnz: stored.readable_dtype().and(stored.nnz()),
            data: self.index.data(stored),
        })
    }

    fn entry(&self, number: usize) -> Entry {
        let stored = self.index.get(number);
        let dtype = crate::layout::dtype_of(stored.dtype);
        let dtype = dtype.map_or_else(
            || StoredDType::Unknown(stored.dtype.to_string()),
            StoredDType::Known,
        );
        // `Shape::new` cannot fail: opening the file has already created a shape with these dimensions.
        let shape = Shape::new(self.index.dims(stored)).unwrap_or_default();
        let mut entry = Entry::new(
            self.name(number).into_owned(),
            dtype,
            shape,
            self.index.data(stored),
        );
        entry.layout = match stored.nnz() {
            Some(nnz) => Layout::Coo { nnz },
            None if stored.layout == DENSE => Layout::Dense,
            None => Layout::Unknown(stored.layout.to_string()),
        };
        entry.unsupported = unsupported(stored);
        entry
    }

    /// Returns the record of a tensor with its dtype and shape. Fails if the tensor cannot be read, or if
    /// `wants_sparse` differs from whether the tensor is sparse.
    fn readable(&self, number: usize, wants_sparse: bool) -> Result<(&StoredRecord, TensorSpec), Error> {
        let stored = self.index.get(number);
        let Some(spec) = self.index.spec(stored) else {
            let reason = unsupported(stored).unwrap_or_default();
            let is_layout = stored.layout != DENSE && !is_coo(stored.layout);
            return Err(Error::new(ErrorKind::Unsupported, reason)
                .of_tensor(&self.name(number))
                .at(stored.offset + if is_layout { 9 } else { 8 })
                .rule(if is_layout { "B1" } else { "B2" }));
        };
        if is_coo(stored.layout) != wants_sparse {
            let what = if wants_sparse {
                "the tensor is not sparse"
            } else {
                "the tensor is sparse: read it as sparse, or make it dense within a budget"
            };
            let error = Error::new(ErrorKind::Unsupported, what);
            return Err(error.of_tensor(&self.name(number)).rule("B16"));
        }
        Ok((stored, spec))
    }

    fn raw(&self, number: usize) -> Result<RawTensor<'_>, Error> {
        let (stored, spec) = self.readable(number, false)?;
        Ok(RawTensor::at(&*self.source, spec, stored.body()))
    }

    fn read_sparse(&self, stored: &StoredRecord, spec: TensorSpec) -> Result<SparseCoo, Error> {
        let range = self.index.data(stored);
        let indices_range = stored.indices();
        let bytes = read_range(&*self.source, range, "the indices and values")?;
        let indices_len = (indices_range.end - indices_range.start) as usize;
        let values_start = indices_len + WORD as usize;
        let nnz = stored.nnz().unwrap_or_default();
        if bytes[indices_len..values_start] != nnz.to_le_bytes() {
            let error = Error::new(
                ErrorKind::Changed,
                "the length of the values has changed since the file was opened",
            );
            return Err(error.at(indices_range.end));
        }
        let rank = spec.shape().rank() as u64;
        let (dtype, shape) = spec.into_parts();
        let part =
            |dtype, dims: &[u64], bytes| Tensor::new(TensorSpec::new(dtype, Shape::new(dims)?)?, bytes);
        let indices = part(DType::U64, &[nnz, rank], bytes.slice(..indices_len));
        let values = part(dtype, &[nnz], bytes.slice(values_start..));
        let sparse = indices
            .and_then(|indices| Ok((indices, values?)))
            .map_err(SparseError::Spec)
            .and_then(|(indices, values)| SparseCoo::new(shape, indices, values));
        let sparse = sparse.map_err(|error| bad_entry(&error, indices_range.start, rank))?;
        if !self.options.lenient {
            // The entries may be in any order (B11). Sorting only checks for invalid and duplicate
            // coordinates.
            let sorted = sparse.sorted();
            sorted.map_err(|error| bad_entry(&error, indices_range.start, rank))?;
        }
        Ok(sparse)
    }
}

/// Returns the reason why a record cannot be read, if any.
fn unsupported(stored: &StoredRecord) -> Option<String> {
    if stored.readable_dtype().is_some() {
        return None;
    }
    if stored.layout != DENSE && !is_coo(stored.layout) {
        return Some(format!(
            "the layout is {}: 0 (dense), 1 and 2 (COO) are supported",
            stored.layout
        ));
    }
    Some(format!(
        "the dtype is {}: those from 0 (int8) to 9 (uint64) are supported",
        stored.dtype
    ))
}

/// Creates the error for an invalid entry of a sparse tensor, with its position.
fn bad_entry(error: &SparseError, indices_start: u64, rank: u64) -> Error {
    let place = |entry: u64, axis: usize| indices_start + (entry * rank + axis as u64) * WORD;
    match error {
        SparseError::IndexOutOfRange {
            entry,
            axis,
            index,
            dim,
        } => Error::new(
            ErrorKind::OutOfBounds,
            format!("the index of entry {entry} on axis {axis}"),
        )
        .at(place(*entry, *axis))
        .rule("B10")
        .expected(format_args!("less than {dim}"))
        .found(index),
        SparseError::Duplicate { entry } => {
            let what = format!("entry {entry} repeats the coordinates of another");
            Error::new(ErrorKind::Duplicate, what)
                .at(place(*entry, 0))
                .rule("B11")
        }
        other => Error::new(ErrorKind::SizeMismatch, other.to_string())
            .at(indices_start)
            .rule("B13"),
    }
}

impl TensorReader for BtfReader {
    fn format(&self) -> &'static str {
        FORMAT
    }

    fn entries(&self) -> &[Entry] {
        self.entries
            .get_or_init(|| (0..self.len()).map(|number| self.entry(number)).collect())
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn find(&self, name: &str) -> Option<usize> {
        if let Some((names, table)) = &self.names {
            let found = table.find(name, |number| &names.names()[number as usize])?;
            return Some(found as usize);
        }
        let number: usize = name.parse().ok()?;
        // Only the canonical form is a name: `+1` and `01` also parse as numbers.
        (number < self.len() && number.to_string() == name).then_some(number)
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let tensor = self.raw(index)?.tensor();
        tensor.map_err(|error| error.of_tensor(&self.name(index)))
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        let (stored, spec) = self.readable(index, true)?;
        self.read_sparse(stored, spec)
            .map_err(|error| error.of_tensor(&self.name(index)))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let rows = self.raw(index)?.rows(rows);
        rows.map_err(|error| error.of_tensor(&self.name(index)))
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        Ok(self.raw(index)?.stream())
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let read = self.raw(index)?.read_into(out);
        read.map_err(|error| error.of_tensor(&self.name(index)))
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        // The format has no checksums; only the indices of sparse tensors remain to be validated.
        if is_coo(self.index.get(index).layout) {
            self.sparse(index)?;
        } else {
            self.readable(index, false)?;
        }
        Ok(Verification::Unchecked)
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        lints::of(&self.index, &*self.source)
    }
}

impl fmt::Debug for BtfReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BtfReader")
            .field("tensors", &self.len())
            .field("bytes", &self.source.len())
            .finish()
    }
}
