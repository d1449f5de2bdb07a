//! Opens a file by its manifest, and reads, decompresses and verifies its tensors.

use std::{fmt, ops::Range, sync::Arc, sync::OnceLock};

use fmt_core::{
    ByteSource, Encoding, Entry, Error, ErrorKind, Limits, Lint, Metadata, ReadOptions, TensorReader,
    TensorStream, Verification, check_buffer, lint_holes, read_range, row_range, tensor_of,
};
use fmt_zstd::{Blob, ChecksumOf, Decoding, ProvenTables, default_threads};
use tensor_core::{SparseCoo, Tensor, TensorSpec};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    container::{Container, RULES, Version, locate},
    entries::{Content, Sparse},
    manifest::Manifest,
    parts::Part,
    sparse,
};

/// An open file of zTensor 1.x or 2.x, whose tensors are objects of one or more parts.
///
/// Opening reads and validates both ends of the file and the manifest, in time and memory proportional to the
/// manifest. Dense objects are tensors; [`TensorReader::sparse`] reads sparse objects (coordinates or
/// compressed rows) as coordinates. Objects with other layouts, with unknown logical types or encodings, or
/// with parts in other files are listed with the reason why they cannot be read ([`Entry::unsupported`]).
///
/// ```
/// use fmt_core::TensorReader;
/// use fmt_ztensor2::ObjectsReader;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let manifest = b"\xa2gversione1.2.0gobjects\xa1aw\xa3eshape\x81\x02fformatedensejcomponents\xa1ddata\xa3edtypebu8foffset\x18\x40flength\x02";
/// # let mut file = b"ZTEN1000".to_vec();
/// # file.resize(64, 0);
/// # file.extend([7, 8]);
/// # file.extend(manifest);
/// # file.extend((manifest.len() as u64).to_le_bytes());
/// # file.extend(b"ZTEN1000");
/// let reader = ObjectsReader::from_bytes(file)?;
/// let index = reader.find("w").ok_or("no such tensor")?;
/// assert_eq!(reader.tensor(index)?.to_vec::<u8>()?, [7, 8]);
/// # Ok(())
/// # }
/// ```
pub struct ObjectsReader {
    source: Arc<dyn ByteSource>,
    container: Container,
    manifest: Manifest,
    metadata: OnceLock<Metadata>,
    limits: Limits,
    threads: usize,
    proven_tables: ProvenTables,
}

fmt_core::open_by_path_and_bytes!(ObjectsReader);

impl ObjectsReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// An invalid file gives an error with the position; [`Error::broken_rule`] names the broken rule in
    /// docs/formats/ztensor2.md.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let container = locate(&*source, options)?;
        let bytes = read_range(&*source, container.manifest.clone(), "the manifest")?;
        if let Some(hash) = container.hash
            && xxh3_64(&bytes) != hash
        {
            let error = Error::new(ErrorKind::Corrupt, "the hash of the manifest");
            return Err(error
                .at(container.manifest.start)
                .rule("O2")
                .expected(format_args!("{hash:#018x}"))
                .found(format_args!("{:#018x}", xxh3_64(&bytes))));
        }
        let manifest = Manifest::parse(&bytes, &container, options)?;
        Ok(Self {
            source,
            container,
            manifest,
            metadata: OnceLock::new(),
            limits: options.limits.clone(),
            threads: default_threads(),
            proven_tables: ProvenTables::default(),
        })
    }

    /// Returns the range of the manifest in the file.
    #[must_use]
    pub fn manifest_range(&self) -> Range<u64> {
        self.container.manifest.clone()
    }

    fn decoding(&self) -> Decoding<'_> {
        Decoding {
            source: &*self.source,
            limits: &self.limits,
            threads: self.threads,
        }
    }

    fn checksum_is_of(&self) -> ChecksumOf {
        match self.container.version {
            Version::V1 => ChecksumOf::Stored,
            Version::V2 => ChecksumOf::Decoded,
        }
    }

    /// Returns the blob of a dense tensor, numeric or opaque.
    fn dense(&self, index: usize) -> Result<(&Entry, Blob<'_>), Error> {
        let entry = &self.manifest.entries[index];
        let Content::Dense { is_zero_or_one } = self.manifest.contents[index] else {
            return Err(self.not_dense(entry));
        };
        let len = entry.byte_len().ok_or_else(|| self.not_dense(entry))?;
        let blob = Blob {
            decoding: self.decoding(),
            tensor: &entry.name,
            range: entry.range.clone(),
            len,
            is_zstd: entry.encoding == Encoding::Zstd,
            swapped: 1,
            checksum: entry.checksum.as_deref(),
            checksum_is_of: self.checksum_is_of(),
            is_zero_or_one,
            rules: RULES,
        };
        Ok((entry, blob))
    }

    /// Returns dtype, shape and blob of a numeric tensor.
    fn numbers(&self, index: usize) -> Result<(&Entry, TensorSpec, Blob<'_>), Error> {
        let (entry, blob) = self.dense(index)?;
        match entry.spec() {
            Some(spec) => Ok((entry, spec, blob)),
            None => Err(self.not_dense(entry)),
        }
    }

    fn not_dense(&self, entry: &Entry) -> Error {
        let reason = entry.unsupported.as_deref().unwrap_or("the tensor is sparse");
        Error::new(
            ErrorKind::Unsupported,
            format!("{reason}: it cannot be read as a dense tensor"),
        )
        .of_tensor(&entry.name)
        .rule("O14")
    }

    fn part_blob<'a>(&'a self, entry: &'a Entry, part: &'a Part) -> Result<Blob<'a>, Error> {
        let is_zero_or_one = part.types.as_ref().is_ok_and(|types| types.is_zero_or_one);
        // Opening the file has checked that the part has a length.
        let len = part
            .decoded
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "a part without a length").rule("O12"))?;
        Ok(Blob {
            decoding: self.decoding(),
            tensor: &entry.name,
            range: part.range.clone(),
            len,
            is_zstd: part.encoding == Encoding::Zstd,
            swapped: 1,
            checksum: part.digest.as_deref(),
            checksum_is_of: self.checksum_is_of(),
            is_zero_or_one,
            rules: RULES,
        })
    }

    fn read_sparse(&self, entry: &Entry, parts: &Sparse) -> Result<SparseCoo, Error> {
        let read = sparse::DecodedParts {
            values: self.part_blob(entry, &parts.values)?.bytes()?,
            indices: self.part_blob(entry, &parts.indices)?.bytes()?,
            indptr: match &parts.indptr {
                Some(indptr) => Some(self.part_blob(entry, indptr)?.bytes()?),
                None => None,
            },
        };
        let joined = sparse::joined(entry, parts, read, self.container.version, &self.limits);
        joined.map_err(|error| error.rename_rule(RULES).of_tensor(&entry.name))
    }

    fn verify_sparse(&self, entry: &Entry, parts: &Sparse) -> Result<Verification, Error> {
        let all = [Some(&parts.values), Some(&parts.indices), parts.indptr.as_ref()];
        let mut verdict = Verification::Ok;
        for part in all.into_iter().flatten() {
            // A tensor counts as verified only if all of its parts are verified.
            match (self.part_blob(entry, part)?.verify()?, &verdict) {
                (Verification::Ok, _) | (_, Verification::Unchecked) => {}
                (other, _) => verdict = other,
            }
        }
        self.read_sparse(entry, parts)?;
        Ok(verdict)
    }
}

impl TensorReader for ObjectsReader {
    fn format(&self) -> &'static str {
        self.container.version.id()
    }

    fn entries(&self) -> &[Entry] {
        &self.manifest.entries
    }

    fn metadata(&self) -> &Metadata {
        self.metadata.get_or_init(|| self.manifest.attributes.to_map())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.manifest.find(name)
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let (entry, spec, blob) = self.numbers(index)?;
        tensor_of(spec, blob.bytes()?).map_err(|error| error.rule("O10").of_tensor(&entry.name))
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        let entry = &self.manifest.entries[index];
        let Content::Sparse(parts) = &self.manifest.contents[index] else {
            let what = entry.unsupported.as_deref().unwrap_or("the tensor is not sparse");
            let error = Error::new(ErrorKind::Unsupported, what);
            return Err(error.of_tensor(&entry.name).rule("O14"));
        };
        self.read_sparse(entry, parts)
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let (entry, spec, blob) = self.numbers(index)?;
        let part = row_range(&spec, rows).map_err(|error| error.rule("O5").of_tensor(&entry.name));
        let (spec, range) = part?;
        tensor_of(spec, blob.part(&self.proven_tables, index, range)?)
            .map_err(|error| error.rule("O10").of_tensor(&entry.name))
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        self.dense(index)?.1.stream()
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let (entry, spec, blob) = self.numbers(index)?;
        check_buffer(&spec, out.len()).map_err(|error| error.of_tensor(&entry.name))?;
        blob.fill(out).map(drop)
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        match &self.manifest.contents[index] {
            Content::Sparse(parts) => self.verify_sparse(&self.manifest.entries[index], parts),
            _ => self.dense(index)?.1.verify(),
        }
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        let mut lints = Vec::new();
        for entry in &self.manifest.entries {
            if let Some(reason) = entry.unsupported.as_ref().filter(|_| !entry.is_copied_only()) {
                lints.push(Lint {
                    message: format!("{reason} is not read (O14)"),
                    tensor: Some(entry.name.clone()),
                    range: Some(entry.range.clone()),
                });
            }
        }
        let mut ranges = self.manifest.blobs.clone();
        ranges.push(self.container.manifest.clone());
        let within = 8..self.source.len() - self.container.version.footer();
        // The maximum padding for alignment. The canonical form of version 2 aligns blobs to 64 KiB.
        let padding = match self.container.version {
            Version::V1 => 4096,
            Version::V2 => 64 << 10,
        };
        lints.extend(lint_holes(&*self.source, &ranges, within, padding, "O16")?);
        Ok(lints)
    }
}

impl fmt::Debug for ObjectsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectsReader")
            .field("version", &self.container.version)
            .field("tensors", &self.manifest.entries.len())
            .field("bytes", &self.source.len())
            .finish_non_exhaustive()
    }
}
