//! Implements the reader traits of `fmt-core` for checkpoints: slices of the source, and gathered views.

use std::{
    collections::HashSet,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fmt_core::{
    ByteSource, BytesStream, Entry, Error, ErrorKind, Limits, Lint, Metadata, NameTable, RawTensor,
    ReadOptions, SourceStream, TensorReader, TensorStream, Verification, read_range, row_range, tensor_of,
};
use tensor_core::{QuotedName, Tensor, TensorSpec};

use crate::{
    checkpoint::Checkpoint,
    tensors::{CheckpointContents, TensorLocation},
};

/// An open PyTorch checkpoint.
///
/// Opening interprets the pickle within limits and checks that every tensor lies in its storage. Row-major
/// tensors are slices of the source; transposed, sliced and expanded tensors are gathered into a new buffer,
/// within [`Limits::decoded_bytes`].
///
/// See the crate documentation for an example.
pub struct TorchReader {
    source: Arc<dyn ByteSource>,
    limits: Limits,
    entries: Vec<Entry>,
    stored: Vec<TensorLocation>,
    metadata: Metadata,
    foreign: Vec<String>,
    lints: Vec<Lint>,
    names: NameTable,
    /// The start offsets of storages whose checksums have been verified.
    sound: Mutex<HashSet<u64>>,
}

fmt_core::open_by_path_and_bytes!(TorchReader);

impl TorchReader {
    /// Opens a file from any source.
    ///
    /// # Errors
    /// If the file is invalid. [`Error::broken_rule`] names the broken rule in docs/formats/torch.md.
    /// [`ErrorKind::Unsupported`] names an unsupported global.
    pub fn open(source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(&*source, options)?;
        let found = CheckpointContents::of(&checkpoint, &options.limits)?;
        let mut foreign = checkpoint.foreign;
        let lint = |message| Lint {
            message,
            tensor: None,
            range: None,
        };
        let mut lints = Vec::new();
        if checkpoint.is_script {
            let told = "it is a TorchScript program: its tensors are listed, and its code is not read (P1)";
            lints.push(lint(told.to_owned()));
        }
        for name in checkpoint.value.unknown {
            foreign.push(format!("objects of {name}"));
            lints.push(lint(format!(
                "objects of {} are not known, and their attributes only are listed (P3)",
                QuotedName(&name)
            )));
        }
        for name in checkpoint.value.tensor_classes {
            foreign.push(format!("the class {name} of tensors"));
            lints.push(lint(format!(
                "tensors of the class {} are listed as those of PyTorch, without what the class adds (P3)",
                QuotedName(&name)
            )));
        }
        let names = by_name(&found.entries, options.lenient)?;
        Ok(Self {
            lints,
            names,
            source,
            limits: options.limits.clone(),
            entries: found.entries,
            stored: found.stored,
            metadata: found.metadata,
            foreign,
            sound: Mutex::default(),
        })
    }

    fn readable(&self, index: usize) -> Result<(&Entry, TensorSpec), Error> {
        let entry = &self.entries[index];
        let spec = entry.spec().filter(|_| entry.unsupported.is_none());
        let spec = spec.ok_or_else(|| {
            let reason = entry.unsupported.as_deref().unwrap_or("the tensor");
            Error::new(ErrorKind::Unsupported, reason)
                .of_tensor(&entry.name)
                .rule("P6")
        })?;
        Ok((entry, spec))
    }

    fn sound(&self) -> MutexGuard<'_, HashSet<u64>> {
        // Every critical section leaves the state consistent, so a poisoned lock is usable.
        self.sound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_plain(&self, index: usize) -> bool {
        self.stored[index].is_contiguous && !self.entries[index].is_big_endian
    }

    /// Gathers and byte-swaps the elements of a tensor that is not contiguous.
    fn gathered(&self, index: usize) -> Result<Vec<u8>, Error> {
        let (entry, stored) = (&self.entries[index], &self.stored[index]);
        let wrong = |kind, what: &str| Error::new(kind, what).of_tensor(&entry.name);
        let byte_len = entry.byte_len().unwrap_or(u64::MAX);
        // Gathering also holds the whole stored range in memory, including the gaps between elements.
        let span = entry.range.end - entry.range.start;
        if byte_len.max(span) > self.limits.decoded_bytes {
            let error = wrong(ErrorKind::TooLarge, "the tensor is too large to be gathered");
            return Err(error
                .rule("P6")
                .expected(format_args!(
                    "at most {} bytes, the limit",
                    self.limits.decoded_bytes
                ))
                .found(byte_len.max(span)));
        }
        let bytes = read_range(&*self.source, entry.range.clone(), "the storage");
        let bytes = bytes.map_err(|error| error.of_tensor(&entry.name))?;
        let no_memory = || wrong(ErrorKind::TooLarge, "not enough memory").rule("P6");
        let len = usize::try_from(byte_len).map_err(|_| no_memory())?;
        let mut out = Vec::new();
        out.try_reserve_exact(len).map_err(|_| no_memory())?;
        if stored.is_contiguous {
            out.extend_from_slice(&bytes);
        } else if len > 0 {
            gather(&bytes, stored, entry.shape.dims(), &mut out);
        }
        if entry.is_big_endian {
            out.chunks_exact_mut(stored.word as usize)
                .for_each(<[u8]>::reverse);
        }
        Ok(out)
    }
}

/// Maps names to tensors. A lenient reader keeps the first of several tensors with the same name; otherwise
/// duplicates are rejected, because only running the pickle would show which tensor is meant.
fn by_name(entries: &[Entry], is_lenient: bool) -> Result<NameTable, Error> {
    match NameTable::of_entries(entries) {
        (_, Some((_, twice))) if !is_lenient => {
            let error = Error::new(ErrorKind::Duplicate, "the name of the tensor");
            let error = error.of_tensor(&entries[twice as usize].name);
            Err(error.rule("P5").expected("a unique name"))
        }
        (names, _) => Ok(names),
    }
}

/// Copies elements in row-major order. `storage` starts at the first element; bounds were checked at open.
fn gather(storage: &[u8], stored: &TensorLocation, dims: &[u64], out: &mut Vec<u8>) {
    let width = stored.width as usize;
    let mut place = vec![0u64; dims.len()];
    let mut at = 0;
    loop {
        let start = at as usize * width;
        out.extend_from_slice(&storage[start..start + width]);
        let mut axis = dims.len();
        loop {
            let Some(before) = axis.checked_sub(1) else { return };
            axis = before;
            place[axis] += 1;
            if place[axis] < dims[axis] {
                at += stored.strides[axis];
                break;
            }
            at -= stored.strides[axis] * (dims[axis] - 1);
            place[axis] = 0;
        }
    }
}

impl TensorReader for TorchReader {
    fn format(&self) -> &'static str {
        "torch"
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.names.find_entry(name, &self.entries)
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let (entry, spec) = self.readable(index)?;
        if self.is_plain(index) {
            return RawTensor::new(&*self.source, entry)?.tensor();
        }
        let gathered = self.gathered(index)?;
        tensor_of(spec, gathered).map_err(|error| error.of_tensor(&entry.name))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let (entry, spec) = self.readable(index)?;
        if self.is_plain(index) {
            return RawTensor::new(&*self.source, entry)?.rows(rows);
        }
        row_range(&spec, rows.clone()).map_err(|error| error.of_tensor(&entry.name))?;
        let part = self.tensor(index)?.rows(rows);
        part.map_err(|error| Error::new(ErrorKind::OutOfBounds, error.to_string()).of_tensor(&entry.name))
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let entry = &self.entries[index];
        if !entry.is_copied_only() || self.stored[index].place.unsupported.is_some() {
            self.readable(index)?;
        }
        Ok(if self.is_plain(index) {
            Box::new(SourceStream::new(&*self.source, entry.range.clone()))
        } else {
            Box::new(BytesStream::new(self.gathered(index)?.into()))
        })
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let (entry, spec) = self.readable(index)?;
        if self.is_plain(index) {
            return RawTensor::new(&*self.source, entry)?.read_into(out);
        }
        if out.len() as u64 != spec.byte_len() {
            let error =
                Error::new(ErrorKind::SizeMismatch, "the length of the buffer").of_tensor(&entry.name);
            return Err(error
                .expected(format_args!("{} bytes for {spec}", spec.byte_len()))
                .found(out.len()));
        }
        out.copy_from_slice(&self.gathered(index)?);
        Ok(())
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        let (entry, place) = (&self.entries[index], &self.stored[index].place);
        if place.unsupported.is_some() {
            self.readable(index)?;
        }
        let Some(crc) = place.crc else {
            return Ok(Verification::Unchecked);
        };
        // Many tensors may share a storage, which is verified once.
        let is_known = self.sound().contains(&place.start);
        if is_known {
            return Ok(Verification::Ok);
        }
        let (mut hasher, mut at) = (crc32fast::Hasher::new(), place.start);
        let end = place.start + place.len;
        while at < end {
            let next = end.min(at + (256 << 10));
            let bytes = read_range(&*self.source, at..next, "the storage");
            hasher.update(&bytes.map_err(|error| error.of_tensor(&entry.name))?);
            at = next;
        }
        let found = hasher.finalize();
        if found == crc {
            self.sound().insert(place.start);
            return Ok(Verification::Ok);
        }
        let error = Error::new(ErrorKind::Corrupt, "the checksum of the storage").of_tensor(&entry.name);
        Err(error
            .at(place.start)
            .rule("P7")
            .expected(format_args!("crc32 {crc:08x}"))
            .found(format_args!("{found:08x}")))
    }

    fn shared(&self) -> Vec<(usize, usize)> {
        fmt_core::shared_ranges(self.entries())
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        Ok(self.lints.clone())
    }

    fn foreign_parts(&self) -> &[String] {
        &self.foreign
    }
}

impl fmt::Debug for TorchReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TorchReader")
            .field("tensors", &self.entries.len())
            .field("bytes", &self.source.len())
            .finish_non_exhaustive()
    }
}
