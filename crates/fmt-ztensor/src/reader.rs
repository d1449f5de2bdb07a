//! Opens a file by its footer and index, and reads, decompresses and verifies its tensors.

use std::{fmt, ops::Range, sync::Arc};

use fmt_core::{
    ByteSource, Encoding, Entry, Error, ErrorKind, Limits, Lint, Metadata, ReadOptions, TensorReader,
    TensorStream, Verification, check_buffer, read_range, row_range, tensor_of,
};
use fmt_zstd::{Blob, ChecksumOf, Decoding, ProvenTables, default_threads};
use tensor_core::{Tensor, TensorSpec};

use crate::{
    CustomField,
    footer::locate_index,
    index::{Details, Index},
    layout::{FORMAT, RULES, TAIL},
    lints,
};

/// An open zTensor file.
///
/// Opening reads and validates both ends of the file and the index, in time and memory proportional to the
/// index. After that, a raw little-endian tensor is one range of the source: a slice without a copy if the
/// source is in memory, or one read of a file. Compressed and big-endian tensors are decoded or byte-swapped
/// into new memory.
///
/// ```
/// use fmt_core::TensorReader;
/// use fmt_ztensor::{WriteOptions, ZtensorReader, ZtensorWriter};
/// use tensor_core::{Shape, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let weights = Tensor::from_vec(Shape::new(&[3, 2])?, vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// # let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default())?;
/// # writer.tensor("weights", &weights)?;
/// # let file = writer.finish()?;
/// let reader = ZtensorReader::from_bytes(file)?;
/// let index = reader.find("weights").ok_or("no such tensor")?;
/// assert_eq!(reader.tensor(index)?, weights);
///
/// // Reads only the requested rows.
/// let row = reader.rows(index, 1..2)?;
/// assert_eq!(row.view().as_slice::<f32>()?, [3.0, 4.0]);
///
/// // Reading into an existing buffer costs least.
/// let mut buffer = [0; 24];
/// reader.read_into(index, &mut buffer)?;
/// # Ok(())
/// # }
/// ```
///
/// # Checksums
/// Copied data is checked against the checksum: always by [`TensorReader::read_into`], and by
/// [`TensorReader::tensor`] unless the tensor is a slice of memory. [`TensorReader::rows`] does not check raw
/// tensors, because a checksum covers a whole tensor; [`TensorReader::verify`] checks the whole tensor (Z6).
///
/// # Unsupported tensors
/// Tensors of unknown dtype, encoding or layout are listed with [`Entry::unsupported`], and reading them
/// fails (Z1, Z14). The same applies to compressed tensors that are declared big-endian (Z7).
///
/// With [`ReadOptions::lenient`], names may occur twice ([`TensorReader::find`] returns the first), be empty
/// or contain zero bytes, tensors may share parts of their data, and an empty index means no tensors (Z9,
/// Z10, Z11, Z24).
///
/// [`Entry::attributes`] contains the custom fields as strings: text unchanged, all other values in
/// diagnostic notation. [`ZtensorReader::fields`] returns the original values.
pub struct ZtensorReader {
    source: Arc<dyn ByteSource>,
    /// The start of the index.
    index_start: u64,
    index: Index,
    /// Always empty: the format has no metadata.
    metadata: Metadata,
    limits: Limits,
    threads: usize,
    proven_tables: ProvenTables,
}

fmt_core::open_by_path_and_bytes!(ZtensorReader);

impl ZtensorReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// An invalid file gives an error with the position; [`Error::broken_rule`] names the broken rule in
    /// docs/formats/ztensor.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let range = locate_index(&*source, options)?;
        let index_start = range.start;
        let bytes = read_range(&*source, range, "the index")?;
        let index = Index::parse(&bytes, index_start, options)?;
        Ok(Self {
            source,
            index_start,
            index,
            metadata: Metadata::new(),
            limits: options.limits.clone(),
            threads: default_threads(),
            proven_tables: ProvenTables::default(),
        })
    }

    /// Sets the number of threads that decode one compressed tensor, or read and hash one large tensor
    /// (default: one per CPU). With 1, only the calling thread is used.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Decodes the custom fields of a tensor, in the file's order.
    ///
    /// # Panics
    /// If there is no tensor with this index.
    #[must_use]
    pub fn fields(&self, index: usize) -> Vec<CustomField> {
        let fields = self.index.details[index].fields.iter();
        fields.map(CustomField::of_file).collect()
    }

    /// Returns the range of the index in the file. All data is before it.
    #[must_use]
    pub fn index_range(&self) -> Range<u64> {
        self.index_start..self.source.len() - TAIL
    }

    pub(crate) fn details(&self) -> &[Details] {
        &self.index.details
    }

    /// Returns the entry of a dense tensor with its dtype and shape; fails if the tensor is unsupported.
    fn readable(&self, index: usize) -> Result<(&Entry, TensorSpec), Error> {
        let entry = &self.index.entries[index];
        let spec = entry.spec().filter(|_| entry.unsupported.is_none());
        let spec = spec.ok_or_else(|| {
            let reason = entry.unsupported.as_deref().unwrap_or("the tensor");
            let error = Error::new(ErrorKind::Unsupported, format!("{reason} cannot be read"));
            error
                .expected("dense, raw or zstd, and a dtype of the specification")
                .of_tensor(&entry.name)
                .rule("Z14")
        })?;
        Ok((entry, spec))
    }

    /// Returns the blob of a tensor; `entry` must come from [`Self::readable`].
    fn blob<'a>(&'a self, entry: &'a Entry, spec: &TensorSpec) -> Blob<'a> {
        Blob {
            decoding: Decoding {
                source: &*self.source,
                limits: &self.limits,
                threads: self.threads,
            },
            tensor: &entry.name,
            range: entry.range.clone(),
            len: spec.byte_len(),
            is_zstd: entry.encoding == Encoding::Zstd,
            swapped: match entry.is_big_endian {
                true => spec.dtype().size(),
                false => 1,
            },
            checksum: entry.checksum.as_deref(),
            checksum_is_of: ChecksumOf::Stored,
            is_zero_or_one: false,
            rules: RULES,
        }
    }
}

impl TensorReader for ZtensorReader {
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

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let (entry, spec) = self.readable(index)?;
        let bytes = self.blob(entry, &spec).bytes()?;
        tensor_of(spec, bytes).map_err(|error| error.rule("Z10").of_tensor(&entry.name))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let (entry, spec) = self.readable(index)?;
        let part = row_range(&spec, rows).map_err(|error| error.rule("Z18").of_tensor(&entry.name));
        let (part, range) = part?;
        let bytes = self.blob(entry, &spec).part(&self.proven_tables, index, range)?;
        tensor_of(part, bytes).map_err(|error| error.rule("Z10").of_tensor(&entry.name))
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let (entry, spec) = self.readable(index)?;
        self.blob(entry, &spec).stream()
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let (entry, spec) = self.readable(index)?;
        check_buffer(&spec, out.len()).map_err(|error| error.of_tensor(&entry.name))?;
        self.blob(entry, &spec).fill(out).map(drop)
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        let (entry, spec) = self.readable(index)?;
        self.blob(entry, &spec).verify()
    }

    fn shared(&self) -> Vec<(usize, usize)> {
        fmt_core::shared_ranges(self.entries())
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        lints::of(&self.index, self.index_start, &*self.source)
    }
}

impl fmt::Debug for ZtensorReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZtensorReader")
            .field("tensors", &self.index.entries.len())
            .field("bytes", &self.source.len())
            .finish_non_exhaustive()
    }
}
