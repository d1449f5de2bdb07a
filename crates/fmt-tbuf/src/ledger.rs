//! Records the tensors of a file being written: each is validated before any of its bytes are written.

use std::{
    collections::{HashMap, hash_map},
    hash::{BuildHasher, Hasher, RandomState},
    ops::Range,
};

use flatbuffers::FlatBufferBuilder;
use fmt_core::{Entry, Error, ErrorKind, Limits};
use tensor_core::{QuotedName, Shape, TensorSpec};

use crate::{
    WriteOptions,
    capabilities::CAPABILITIES,
    generated::tensor_buffers::{
        DataType, TensorBuffersMetadata, TensorBuffersMetadataArgs, TensorMetadata, TensorMetadataArgs,
    },
    index::StoredTensor,
    layout::{DATA_START, VERSION, number_of, tensor_id},
};

/// The tensors of a file, with their current or planned positions.
#[derive(Debug)]
pub(crate) struct Ledger {
    options: WriteOptions,
    model: Option<String>,
    records: Vec<Record>,
    /// The names of all records, concatenated.
    names: String,
    /// The dimensions of all records, concatenated.
    dims: Vec<u32>,
    /// Record indices by tensor id.
    ids: HashMap<u64, u32, IdHashing>,
    /// Offset in the file where the data ends so far.
    end: u64,
    /// Maximum size of the index in bytes.
    index_bound: u64,
}

/// One tensor. A file may have millions of tensors, so a record owns no allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) offset: u32,
    pub(crate) size: u32,
    id: u64,
    /// Start and end of the tensor's name in [`Ledger::names`].
    name: (u32, u32),
    /// Start of the tensor's dimensions in [`Ledger::dims`].
    dims: u32,
    rank: u8,
    dtype: DataType,
}

impl Ledger {
    /// Maximum size of an empty index: root, vtables, version, alignment.
    const BASE_BOUND: u64 = 128;
    /// Maximum size of a tensor apart from name and dimensions: slot in the vector (4), table (40), vtable
    /// (16), length, terminator and padding of the name (8) and of the shape (8), alignment (8).
    const TENSOR_BOUND: u64 = 84;
    /// Maximum size of an index that FlatBuffers can address, in bytes.
    const MAX_INDEX: u64 = (1 << 31) - 1;

    pub(crate) fn new(options: WriteOptions) -> Result<Self, Error> {
        let alignment = options.alignment;
        if !alignment.is_power_of_two() || alignment > WriteOptions::MAX_ALIGNMENT {
            let error = Error::new(ErrorKind::Unsupported, "the alignment of data").rule("T3");
            let expected = format!("a power of two up to {}", WriteOptions::MAX_ALIGNMENT);
            return Err(error.expected(expected).found(alignment));
        }
        Ok(Self {
            options,
            model: None,
            records: Vec::new(),
            names: String::new(),
            dims: Vec::new(),
            ids: HashMap::default(),
            end: DATA_START,
            index_bound: Self::BASE_BOUND,
        })
    }

    /// Creates a ledger from the tensors of a file whose data ends at byte `end`.
    pub(crate) fn resume<'a>(
        options: WriteOptions,
        entries: impl Iterator<Item = (&'a Entry, &'a StoredTensor)>,
        end: u64,
    ) -> Result<Self, Error> {
        let mut ledger = Self::new(options)?;
        for (entry, stored) in entries {
            // The reader has validated offset and length, which have 32 bits in the file.
            let place = u32::try_from(entry.range.start)
                .and_then(|offset| Ok((offset, u32::try_from(entry.stored_size())?)));
            let (offset, size) = place.map_err(|_| {
                let error = Error::new(ErrorKind::TooLarge, "the offset of the data");
                error.of_tensor(&entry.name).rule("T4")
            })?;
            ledger.push(&entry.name, &entry.shape, stored.dtype, offset, size)?;
        }
        ledger.end = end;
        Ok(ledger)
    }

    /// Places further tensors and the index at or after byte `end`.
    pub(crate) fn go_on_behind(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    pub(crate) fn set_model(&mut self, model: Option<&str>) -> Result<(), Error> {
        let len = |model: Option<&str>| model.map_or(0, |model| model.len() as u64 + 8);
        let bound = self.index_bound - len(self.model.as_deref()) + len(model);
        self.check_bound(bound)?;
        self.index_bound = bound;
        self.model = model.map(str::to_owned);
        Ok(())
    }

    /// Validates a tensor and assigns it a position after the data of earlier tensors.
    pub(crate) fn admit(&mut self, name: &str, spec: &TensorSpec) -> Result<Record, Error> {
        let dtype = self.check(name, spec).map_err(|error| error.of_tensor(name))?;
        let offset = self.next_offset().map_err(|error| error.of_tensor(name))?;
        // `check` guarantees that the size fits 32 bits.
        let size = u32::try_from(spec.byte_len()).unwrap_or(u32::MAX);
        let record = self.push(name, spec.shape(), dtype, offset, size)?;
        self.end = u64::from(offset) + u64::from(size);
        Ok(record)
    }

    /// Adds a tensor that shares the bytes of the tensor `of`.
    pub(crate) fn admit_alias(&mut self, name: &str, spec: &TensorSpec, of: &str) -> Result<(), Error> {
        let dtype = self.check(name, spec).map_err(|error| error.of_tensor(name))?;
        let original = self.find(of).ok_or_else(|| {
            let what = format!("there is no tensor {} to share with", QuotedName(of));
            Error::new(ErrorKind::OutOfBounds, what).of_tensor(name)
        })?;
        let Record { offset, size, .. } = self.records[original];
        if u64::from(size) != spec.byte_len() {
            let error = Error::new(
                ErrorKind::SizeMismatch,
                "tensors that share bytes must have the same length",
            )
            .of_tensor(name);
            return Err(error.expected(size).found(spec.byte_len()).rule("T12"));
        }
        self.push(name, spec.shape(), dtype, offset, size).map(drop)
    }

    /// Checks name, dtype and shape, and returns the dtype's number.
    fn check(&self, name: &str, spec: &TensorSpec) -> Result<DataType, Error> {
        let limits = &self.options.limits;
        CAPABILITIES.check_name(name, limits)?;
        CAPABILITIES.check_tensor(spec, limits)?;
        if self.records.len() as u64 >= limits.tensors {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("T20");
            return Err(error.expected(format_args!("at most {}, the limit of readers", limits.tensors)));
        }
        number_of(spec.dtype()).ok_or_else(|| Error::new(ErrorKind::Unsupported, "the dtype").rule("T14"))
    }

    fn next_offset(&self) -> Result<u32, Error> {
        let offset = self.end.next_multiple_of(u64::from(self.options.alignment));
        u32::try_from(offset).map_err(|_| {
            let error = Error::new(ErrorKind::TooLarge, "where the data would begin").rule("T4");
            let expected = format!(
                "at most byte {}: the format has 32 bits for it; the largest tensor can come last, or the tensors can \
                 be spread over several files",
                u32::MAX
            );
            error.expected(expected).found(format_args!("byte {offset}"))
        })
    }

    fn push(
        &mut self,
        name: &str,
        shape: &Shape,
        dtype: DataType,
        offset: u32,
        size: u32,
    ) -> Result<Record, Error> {
        let bound = self.index_bound + Self::TENSOR_BOUND + name.len() as u64 + 4 * shape.rank() as u64;
        self.check_bound(bound).map_err(|error| error.of_tensor(name))?;
        let id = tensor_id(name);
        // The bound on the index keeps both lengths below 32 bits.
        let word = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let vacant = match self.ids.entry(id) {
            hash_map::Entry::Vacant(vacant) => vacant,
            hash_map::Entry::Occupied(occupied) => {
                let other = self.records[*occupied.get() as usize].name;
                return Err(duplicate(name, &self.names[span(other)]));
            }
        };
        let (start, end) = name_span(&self.names, name)?;
        vacant.insert(word(self.records.len()));
        self.names.push_str(name);
        let record = Record {
            offset,
            size,
            id,
            name: (start, end),
            dims: word(self.dims.len()),
            rank: u8::try_from(shape.rank()).unwrap_or(u8::MAX),
            dtype,
        };
        // Dimensions fit 32 bits: `check` or the reader has verified them.
        self.dims.extend(
            shape
                .dims()
                .iter()
                .map(|dim| u32::try_from(*dim).unwrap_or(u32::MAX)),
        );
        self.index_bound = bound;
        self.records.push(record);
        Ok(record)
    }

    /// Renames a tensor.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let number = self.find(from).ok_or_else(|| {
            Error::new(ErrorKind::OutOfBounds, "there is no tensor of this name").of_tensor(from)
        })?;
        if from == to {
            return Ok(());
        }
        CAPABILITIES
            .check_name(to, &self.options.limits)
            .map_err(|error| error.of_tensor(to))?;
        let bound = self.index_bound - from.len() as u64 + to.len() as u64;
        self.check_bound(bound).map_err(|error| error.of_tensor(to))?;
        let id = tensor_id(to);
        if let Some(other) = self.ids.get(&id) {
            return Err(duplicate(to, self.name(*other as usize)));
        }
        // The old name stays in the buffer, unused.
        let place = name_span(&self.names, to)?;
        self.names.push_str(to);
        let record = &mut self.records[number];
        self.ids.remove(&record.id);
        // Record indices fit 32 bits: the map already contained them as `u32`.
        self.ids.insert(id, u32::try_from(number).unwrap_or(u32::MAX));
        (record.id, record.name) = (id, place);
        self.index_bound = bound;
        Ok(())
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let number = *self.ids.get(&tensor_id(name))? as usize;
        (self.name(number) == name).then_some(number)
    }

    /// Returns the name of the tensor at index `number`.
    pub(crate) fn name(&self, number: usize) -> &str {
        &self.names[span(self.records[number].name)]
    }

    fn check_bound(&self, bound: u64) -> Result<(), Error> {
        let limit = self.options.limits.index_bytes.min(Self::MAX_INDEX);
        if bound > limit {
            let error = Error::new(ErrorKind::TooLarge, "the index").rule("T20");
            let expected = format!(
                "at most {limit} bytes, the limit of readers; the tensors can be spread over several files"
            );
            return Err(error
                .expected(expected)
                .found(format_args!("up to {bound} bytes")));
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.options.limits
    }

    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns the offset at which the index starts, after alignment.
    pub(crate) fn index_start(&self) -> u64 {
        self.end
            .next_multiple_of(u64::from(self.options.alignment.min(8)))
    }

    /// Encodes the index, with tensors by ascending id, so that readers scan it sequentially.
    pub(crate) fn encode(&self) -> EncodedIndex {
        let mut order: Vec<(u64, u32)> = (0..)
            .zip(&self.records)
            .map(|(number, record)| (record.id, number))
            .collect();
        order.sort_unstable();
        let mut builder = FlatBufferBuilder::with_capacity(usize::try_from(self.index_bound).unwrap_or(0));
        let mut tables = Vec::with_capacity(order.len());
        // The builder works backwards. Records and names are scattered in memory, so they are prefetched in
        // batches: the cache misses then overlap, which nearly halves the time for very many tensors.
        const AT_A_TIME: usize = 32;
        let (mut records, mut names) = (Vec::with_capacity(AT_A_TIME), Vec::with_capacity(AT_A_TIME));
        for batch in order.rchunks(AT_A_TIME) {
            records.clear();
            records.extend(
                batch
                    .iter()
                    .rev()
                    .map(|(_, number)| self.records[*number as usize]),
            );
            names.clear();
            names.extend(records.iter().map(|record| &self.names[span(record.name)]));
            for (record, name) in records.iter().zip(&names) {
                let dims = record.dims as usize..record.dims as usize + usize::from(record.rank);
                let args = TensorMetadataArgs {
                    id: record.id,
                    name: Some(builder.create_string(name)),
                    shape: Some(builder.create_vector(&self.dims[dims])),
                    data_type: record.dtype,
                    data_offset: record.offset,
                    data_size: record.size,
                };
                tables.push(TensorMetadata::create(&mut builder, &args));
            }
        }
        tables.reverse();
        let args = TensorBuffersMetadataArgs {
            tensors: Some(builder.create_vector(&tables)),
            model: self.model.as_deref().map(|model| builder.create_string(model)),
            version: Some(builder.create_string(VERSION)),
        };
        let root = TensorBuffersMetadata::create(&mut builder, &args);
        builder.finish(root, None);
        let (buffer, start) = builder.collapse();
        EncodedIndex { buffer, start }
    }
}

/// An encoded index, at the end of the buffer that it was built in.
pub(crate) struct EncodedIndex {
    buffer: Vec<u8>,
    start: usize,
}

impl EncodedIndex {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// Returns the span that `name` will have once it is appended to `names`.
fn name_span(names: &str, name: &str) -> Result<(u32, u32), Error> {
    // This limit is reached only if tensors are renamed so often that the names take gigabytes.
    let word = |len| {
        u32::try_from(len).map_err(|_| {
            Error::new(ErrorKind::TooLarge, "all names together")
                .of_tensor(name)
                .rule("T20")
        })
    };
    Ok((word(names.len())?, word(names.len() + name.len())?))
}

fn span((start, end): (u32, u32)) -> Range<usize> {
    start as usize..end as usize
}

/// Hashes tensor ids by mixing them with a random key. The ids are hashes themselves, but an attacker can
/// choose names whose ids collide in a table.
#[derive(Clone, Debug)]
struct IdHashing(u64);

impl Default for IdHashing {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for IdHashing {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.0)
    }
}

#[derive(Debug)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, id: u64) {
        // Both halves of the product are used, so that every bit of the id affects every bit of the hash.
        let product = u128::from(self.0 ^ id) * u128::from(self.0 | 0x9e37_79b9_7f4a_7c15);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

fn duplicate(name: &str, other: &str) -> Error {
    if name == other {
        return Error::new(ErrorKind::Duplicate, "a tensor with this name exists")
            .of_tensor(name)
            .rule("T7");
    }
    let what = format!(
        "the name has the same hash as {}: rename one of the two",
        QuotedName(other)
    );
    Error::new(ErrorKind::Duplicate, what).of_tensor(name).rule("T5")
}
