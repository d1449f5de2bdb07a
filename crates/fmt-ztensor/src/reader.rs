use std::{fmt, ops::Range, path::Path, sync::Arc};

use fmt_core::{
    ByteSource, Encoding, Entry, Error, ErrorKind, FileSource, Limits, Lint, Metadata, ReadOptions,
    TensorReader, TensorStream, Verification, check_buffer, read_range, row_range,
};
use tensor_core::{Bytes, Tensor, TensorSpec};

use crate::{
    checksum::claim_of,
    decode::{Decoding, check_ratio, decode, memory, zeroed},
    footer::{locate_index, read_into},
    hashed::{CHUNK, read_and_hash},
    index::{Details, Index},
    layout::{FORMAT, TAIL},
    lints,
    parallel::default_threads,
    rows::ProvenTables,
    stream::{Compressed, Stored, swap},
    value::CustomField,
};

/// An open zTensor file.
///
/// Opening reads both ends and the index and proves all of it, in time and memory that grow with the index only. Then
/// a raw little-endian tensor is one slice of the source: without a copy where the source is memory, one read where it
/// is a file. Others are decoded or swapped into memory of their own.
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
/// # Checksums
/// What is copied is held against its checksum: [`TensorReader::read_into`] always, [`TensorReader::tensor`] unless the
/// tensor is a slice of memory. [`TensorReader::rows`] of raw tensors is not, since checksums are over whole tensors;
/// [`TensorReader::verify`] is there for that (Z6).
///
/// # What cannot be read
/// Tensors with a dtype, an encoding or a layout that the specification does not have are listed, say so in
/// [`Entry::unsupported`], and are refused when they are read (Z1, Z14); so are compressed tensors that say to be
/// big-endian (Z7).
///
/// With [`ReadOptions::lenient`], names may occur twice ([`TensorReader::find`] gives the first), be empty or have zero
/// bytes, tensors may share parts of their data, and an index of no bytes is one of no tensors (Z9, Z10, Z11, Z24).
///
/// [`Entry::attributes`] has the custom fields as text: texts as they are, all else in diagnostic notation.
/// [`ZtensorReader::fields`] has them as they are.
pub struct ZtensorReader {
    source: Arc<dyn ByteSource>,
    /// Where the index begins.
    index_start: u64,
    index: Index,
    /// The format has none.
    metadata: Metadata,
    limits: Limits,
    threads: usize,
    proven_tables: ProvenTables,
}

impl ZtensorReader {
    /// Opens a file of any source.
    ///
    /// # Errors
    /// What is wrong with it and where: [`Error::broken_rule`] has the rule of docs/formats/ztensor.md.
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

    /// Opens a file on disk, whose tensors are read when they are asked for.
    ///
    /// # Errors
    /// As [`FileSource::open`] and [`ZtensorReader::open`].
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open(
            Arc::new(FileSource::open(path.as_ref())?),
            &ReadOptions::default(),
        )
    }

    /// Opens a file in memory, which a mapping of `tensor-mmap` is too. Tensors are slices of it.
    ///
    /// # Errors
    /// As [`ZtensorReader::open`].
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        Self::open(Arc::new(bytes.into()), &ReadOptions::default())
    }

    /// Says how many threads decode the frames of one compressed tensor, or read and hash one large tensor, at once: as many as the machine has processors
    /// unless this says otherwise, 1 for none but the caller's own.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// The custom fields of a tensor, in the file's order.
    ///
    /// # Panics
    /// When there is no such index.
    #[must_use]
    pub fn fields(&self, index: usize) -> &[CustomField] {
        &self.index.details[index].fields
    }

    /// Where in the file the index stands. All data lies before it.
    #[must_use]
    pub fn index_range(&self) -> Range<u64> {
        self.index_start..self.source.len() - TAIL
    }

    pub(crate) fn details(&self) -> &[Details] {
        &self.index.details
    }

    fn decoding(&self) -> Decoding<'_> {
        Decoding {
            source: &*self.source,
            limits: &self.limits,
            threads: self.threads,
        }
    }

    /// Dtype and shape of a tensor that can be read.
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

    /// Copies raw bytes as they stand in the file and holds them against their checksum.
    fn read_stored(&self, entry: &Entry, out: &mut [u8]) -> Result<(), Error> {
        let start = entry.range.start;
        let Some((claim, hasher)) = claim_of(entry) else {
            return read_into(&*self.source, start, out, "the data");
        };
        let found = read_and_hash(&*self.source, start, out, hasher, self.threads)?;
        claim.check(&found).map_err(|error| error.at(start))
    }

    /// The bytes of a tensor that is stored compressed, held against its checksum.
    fn blob(&self, entry: &Entry) -> Result<Bytes, Error> {
        let blob = read_range(&*self.source, entry.range.clone(), "the compressed data")?;
        if let Some((claim, mut hasher)) = claim_of(entry) {
            hasher.update(&blob);
            claim
                .check(&hasher.finish())
                .map_err(|error| error.at(entry.range.start))?;
        }
        Ok(blob)
    }

    /// Reads, decodes and swaps into memory of the right length; says whether frames had checksums of their own.
    fn fill(&self, entry: &Entry, spec: &TensorSpec, out: &mut [u8]) -> Result<bool, Error> {
        if entry.encoding == Encoding::Zstd {
            let start = entry.range.start;
            check_ratio(entry.stored_size(), out.len() as u64, start)?;
            let blob = self.blob(entry)?;
            return decode(&blob, start, out, &self.limits, self.threads);
        }
        self.read_stored(entry, out)?;
        if entry.is_big_endian {
            swap(out, spec.dtype().size());
        }
        Ok(false)
    }

    /// Whether the tensor's elements stand in the file as they are in memory.
    fn is_plain(entry: &Entry) -> bool {
        entry.encoding == Encoding::Raw && !entry.is_big_endian
    }

    fn tensor_of(&self, entry: &Entry, spec: TensorSpec) -> Result<Tensor, Error> {
        let is_copied = !self.source.is_in_memory();
        if Self::is_plain(entry) && !(is_copied && claim_of(entry).is_some()) {
            return joined(spec, read_range(&*self.source, entry.range.clone(), "the data")?);
        }
        let mut memory = if Self::is_plain(entry) {
            // The file has as many bytes as it says; that is limit enough.
            zeroed(spec.byte_len())?
        } else {
            memory(spec.byte_len(), &self.limits)?
        };
        self.fill(entry, &spec, &mut memory)?;
        joined(spec, memory.into())
    }

    /// Rows `rows` of all that there are, of a tensor that is not plain.
    fn converted_rows(
        &self,
        index: usize,
        spec: &TensorSpec,
        part: TensorSpec,
        range: Range<u64>,
    ) -> Result<Tensor, Error> {
        let entry = &self.index.entries[index];
        if entry.encoding == Encoding::Raw {
            let mut memory = memory(part.byte_len(), &self.limits)?;
            let at = entry.range.start + range.start;
            read_into(&*self.source, at, &mut memory, "the data")?;
            swap(&mut memory, part.dtype().size());
            return joined(part, memory.into());
        }
        let by_table = self
            .proven_tables
            .read(self.decoding(), index, entry, spec.byte_len(), range.clone());
        if let Some(bytes) = by_table? {
            return joined(part, bytes);
        }
        let whole = self.tensor_of(entry, spec.clone())?.into_bytes();
        // As large as the tensor in memory, whose bytes these are.
        joined(part, whole.slice(range.start as usize..range.end as usize))
    }

    fn verify_raw(&self, entry: &Entry) -> Result<Verification, Error> {
        let Some((claim, mut hasher)) = claim_of(entry) else {
            return Ok(match &entry.checksum {
                Some(text) => Verification::UnknownChecksum(text.clone()),
                None => Verification::Unchecked,
            });
        };
        let range = entry.range.clone();
        if self.source.is_in_memory() {
            hasher.update(&read_range(&*self.source, range.clone(), "the data")?);
        } else {
            let mut buffer = vec![0; CHUNK];
            let mut at = range.start;
            while at < range.end {
                let len = usize::try_from(range.end - at).map_or(CHUNK, |rest| rest.min(CHUNK));
                read_into(&*self.source, at, &mut buffer[..len], "the data")?;
                hasher.update(&buffer[..len]);
                at += len as u64;
            }
        }
        claim
            .check(&hasher.finish())
            .map_err(|error| error.at(range.start))?;
        Ok(Verification::Ok)
    }

    fn verify_zstd(&self, entry: &Entry, spec: &TensorSpec) -> Result<Verification, Error> {
        let mut stream = Compressed::new(self.decoding(), entry, spec)?;
        let len = usize::try_from(spec.byte_len()).map_or(CHUNK, |len| len.clamp(1, CHUNK));
        let mut buffer = vec![0; len.next_multiple_of(fmt_core::TENSOR_STREAM_UNIT)];
        while stream.read(&mut buffer)? > 0 {}
        let have_checksums = stream.have_checksums();
        Ok(match &entry.checksum {
            _ if have_checksums || claim_of(entry).is_some() => Verification::Ok,
            Some(text) => Verification::UnknownChecksum(text.clone()),
            None => Verification::Unchecked,
        })
    }
}

/// Joins a spec and the bytes that were made to its measure.
fn joined(spec: TensorSpec, bytes: Bytes) -> Result<Tensor, Error> {
    Tensor::new(spec, bytes)
        .map_err(|error| Error::new(ErrorKind::SizeMismatch, error.to_string()).rule("Z10"))
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
        self.tensor_of(entry, spec)
            .map_err(|error| error.of_tensor(&entry.name))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let (entry, spec) = self.readable(index)?;
        let (part, range) =
            row_range(&spec, rows).map_err(|error| error.of_tensor(&entry.name).rule("Z18"))?;
        let read = if Self::is_plain(entry) {
            let range = entry.range.start + range.start..entry.range.start + range.end;
            read_range(&*self.source, range, "the data").and_then(|bytes| joined(part, bytes))
        } else {
            self.converted_rows(index, &spec, part, range)
        };
        read.map_err(|error| error.of_tensor(&entry.name))
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let (entry, spec) = self.readable(index)?;
        let stream: Result<Box<dyn TensorStream + '_>, Error> = match entry.encoding {
            Encoding::Zstd => {
                Compressed::new(self.decoding(), entry, &spec).map(|stream| Box::new(stream) as _)
            }
            _ => Ok(Box::new(Stored::new(&*self.source, entry, &spec))),
        };
        stream.map_err(|error| error.of_tensor(&entry.name))
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let (entry, spec) = self.readable(index)?;
        check_buffer(&spec, out.len())
            .and_then(|()| self.fill(entry, &spec, out).map(drop))
            .map_err(|error| error.of_tensor(&entry.name))
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        let (entry, spec) = self.readable(index)?;
        let verified = match entry.encoding {
            Encoding::Zstd => self.verify_zstd(entry, &spec),
            _ => self.verify_raw(entry),
        };
        verified.map_err(|error| error.of_tensor(&entry.name))
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
