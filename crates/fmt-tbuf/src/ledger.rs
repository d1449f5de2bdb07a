//! What a file that is being written holds so far: each tensor is admitted before any of its bytes are written.

use std::collections::{HashMap, hash_map};

use flatbuffers::FlatBufferBuilder;
use fmt_core::{Entry, Error, ErrorKind};
use tensor_core::{Quoted, Shape, TensorSpec};

use crate::{
    WriteOptions,
    generated::tensor_buffers::{
        DataType, TensorBuffersMetadata, TensorBuffersMetadataArgs, TensorMetadata, TensorMetadataArgs,
    },
    index::Stored,
    layout::{DATA_START, VERSION, number_of, tensor_id},
};

/// The tensors of a file, with the places that they have or are going to have.
#[derive(Debug)]
pub(crate) struct Ledger {
    options: WriteOptions,
    model: Option<String>,
    records: Vec<Record>,
    /// Numbers of records by id.
    ids: HashMap<u64, u32>,
    /// Where the data ends so far.
    end: u64,
    /// What the index takes at most.
    index_bound: u64,
}

/// One tensor.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) offset: u32,
    pub(crate) size: u32,
    id: u64,
    shape: Shape,
    dtype: DataType,
}

impl Ledger {
    /// What an index with nothing in it takes at most: root, vtables, version, alignment.
    const BASE_BOUND: u64 = 128;
    /// What a tensor takes at most beside its name and dimensions: place in the vector (4), table (40), vtable (16),
    /// length, end and padding of the name (8) and of the shape (8), alignment (8).
    const TENSOR_BOUND: u64 = 84;
    /// What FlatBuffers can address.
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
            ids: HashMap::new(),
            end: DATA_START,
            index_bound: Self::BASE_BOUND,
        })
    }

    /// Takes over the tensors of a file whose data ends at byte `end`.
    pub(crate) fn resume<'a>(
        options: WriteOptions,
        entries: impl Iterator<Item = (&'a Entry, &'a Stored)>,
        end: u64,
    ) -> Result<Self, Error> {
        let mut ledger = Self::new(options)?;
        for (entry, stored) in entries {
            let record = |offset, size| Record {
                name: entry.name.clone(),
                id: tensor_id(&entry.name),
                shape: entry.shape.clone(),
                dtype: stored.dtype,
                offset,
                size,
            };
            // The reader has proven both; they were read from 32 bits.
            let (offset, size) = (
                u32::try_from(entry.range.start),
                u32::try_from(entry.stored_size()),
            );
            let (Ok(offset), Ok(size)) = (offset, size) else {
                return Err(Error::new(ErrorKind::TooLarge, "the place of the data")
                    .of_tensor(&entry.name)
                    .rule("T4"));
            };
            ledger.push(record(offset, size))?;
        }
        ledger.end = end;
        Ok(ledger)
    }

    /// Puts further tensors, and the index, behind byte `end`.
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

    /// Gives a tensor its place behind the data so far, or says why the format cannot hold it.
    pub(crate) fn admit(&mut self, name: &str, spec: &TensorSpec) -> Result<&Record, Error> {
        self.check(name, spec).map_err(|error| error.of_tensor(name))?;
        let record = self.place(name, spec).map_err(|error| error.of_tensor(name))?;
        let end = u64::from(record.offset) + u64::from(record.size);
        self.push(record)?;
        self.end = end;
        // It has just been pushed.
        Ok(&self.records[self.records.len() - 1])
    }

    /// Gives a tensor the place of another one, whose bytes it shares.
    pub(crate) fn admit_alias(&mut self, name: &str, spec: &TensorSpec, of: &str) -> Result<(), Error> {
        self.check(name, spec).map_err(|error| error.of_tensor(name))?;
        let original = self.find(of).ok_or_else(|| {
            Error::new(
                ErrorKind::OutOfBounds,
                format!("there is no tensor {} to share with", Quoted(of)),
            )
            .of_tensor(name)
        })?;
        let original = &self.records[original];
        if u64::from(original.size) != spec.byte_len() {
            let error = Error::new(ErrorKind::SizeMismatch, "what shares its bytes must have as many")
                .of_tensor(name);
            return Err(error.expected(original.size).found(spec.byte_len()).rule("T12"));
        }
        let record = Record {
            offset: original.offset,
            size: original.size,
            ..self.record(name, spec, 0, 0)?
        };
        self.push(record)
    }

    /// What holds wherever the tensor is going to stand.
    fn check(&self, name: &str, spec: &TensorSpec) -> Result<(), Error> {
        check_name(name, &self.options)?;
        let limits = &self.options.limits;
        let (dims, rank) = (spec.shape().dims(), spec.shape().rank() as u64);
        if rank > limits.rank {
            let error = Error::new(ErrorKind::TooLarge, "the rank").rule("T20");
            return Err(error
                .expected(format_args!("at most {}, which readers take", limits.rank))
                .found(rank));
        }
        let word = u64::from(u32::MAX);
        if let Some(dim) = dims.iter().find(|dim| **dim > word) {
            let error = Error::new(ErrorKind::TooLarge, "a dimension").rule("T4");
            return Err(error
                .expected(format_args!("at most {word}: the format has 32 bits for it"))
                .found(dim));
        }
        if spec.byte_len() > word {
            let error = Error::new(ErrorKind::TooLarge, "the size of the data").rule("T4");
            let expected =
                format!("at most {word} bytes: the format has 32 bits for it; the tensor can be split");
            return Err(error.expected(expected).found(spec.byte_len()));
        }
        if self.records.len() as u64 >= limits.tensors {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("T20");
            return Err(error.expected(format_args!("at most {}, which readers take", limits.tensors)));
        }
        Ok(())
    }

    fn place(&self, name: &str, spec: &TensorSpec) -> Result<Record, Error> {
        let offset = self.end.next_multiple_of(u64::from(self.options.alignment));
        let offset = u32::try_from(offset).map_err(|_| {
            let error = Error::new(ErrorKind::TooLarge, "where the data would begin").rule("T4");
            let expected = format!(
                "at most byte {}: the format has 32 bits for it; the largest tensor can come last, or the tensors can \
                 be spread over several files",
                u32::MAX
            );
            error.expected(expected).found(format_args!("byte {offset}"))
        })?;
        // `check` has been here.
        self.record(
            name,
            spec,
            offset,
            u32::try_from(spec.byte_len()).unwrap_or(u32::MAX),
        )
    }

    fn record(&self, name: &str, spec: &TensorSpec, offset: u32, size: u32) -> Result<Record, Error> {
        let dtype = number_of(spec.dtype()).ok_or_else(|| {
            let expected = "one of i8, i16, i32, i64, u8, u16, u32, u64, f32, f64 (whose bits an unsigned integer could carry)";
            let error = Error::new(ErrorKind::Unsupported, "the format does not have the dtype").of_tensor(name);
            error.expected(expected).found(spec.dtype()).rule("T14")
        })?;
        Ok(Record {
            name: name.to_owned(),
            id: tensor_id(name),
            shape: spec.shape().clone(),
            dtype,
            offset,
            size,
        })
    }

    fn push(&mut self, record: Record) -> Result<(), Error> {
        let bound = self.index_bound + bound_of(&record);
        self.check_bound(bound)
            .map_err(|error| error.of_tensor(&record.name))?;
        let number = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
        match self.ids.entry(record.id) {
            hash_map::Entry::Vacant(vacant) => vacant.insert(number),
            hash_map::Entry::Occupied(occupied) => {
                return Err(duplicate(
                    &record.name,
                    &self.records[*occupied.get() as usize].name,
                ));
            }
        };
        self.index_bound = bound;
        self.records.push(record);
        Ok(())
    }

    /// Gives a tensor another name.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let number = self.find(from).ok_or_else(|| {
            Error::new(ErrorKind::OutOfBounds, "there is no tensor of this name").of_tensor(from)
        })?;
        if from == to {
            return Ok(());
        }
        check_name(to, &self.options).map_err(|error| error.of_tensor(to))?;
        let bound = self.index_bound - from.len() as u64 + to.len() as u64;
        self.check_bound(bound)?;
        let id = tensor_id(to);
        if let Some(other) = self.ids.get(&id) {
            return Err(duplicate(to, &self.records[*other as usize].name));
        }
        let record = &mut self.records[number];
        self.ids.remove(&record.id);
        // Numbers of records fit: each was in the map already.
        self.ids.insert(id, u32::try_from(number).unwrap_or(u32::MAX));
        (record.id, record.name) = (id, to.to_owned());
        self.index_bound = bound;
        Ok(())
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let number = *self.ids.get(&tensor_id(name))? as usize;
        (self.records[number].name == name).then_some(number)
    }

    fn check_bound(&self, bound: u64) -> Result<(), Error> {
        let limit = self.options.limits.index_bytes.min(Self::MAX_INDEX);
        if bound > limit {
            let error = Error::new(ErrorKind::TooLarge, "the index").rule("T20");
            let expected = format!(
                "at most {limit} bytes, which readers take; the tensors can be spread over several files"
            );
            return Err(error
                .expected(expected)
                .found(format_args!("up to {bound} bytes")));
        }
        Ok(())
    }

    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Where the index begins.
    pub(crate) fn index_start(&self) -> u64 {
        self.end
            .next_multiple_of(u64::from(self.options.alignment.min(8)))
    }

    /// The index, ready to be written: tensors by ascending id (T5).
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut order: Vec<&Record> = self.records.iter().collect();
        order.sort_unstable_by_key(|record| record.id);
        // Half of the bound is what an index usually takes; the builder grows when it is more.
        let mut builder =
            FlatBufferBuilder::with_capacity(usize::try_from(self.index_bound / 2).unwrap_or(0));
        let mut dims = [0; Shape::MAX_RANK];
        let tables: Vec<_> = order
            .into_iter()
            .map(|record| {
                let rank = record.shape.rank();
                for (dim, wide) in dims.iter_mut().zip(record.shape.dims()) {
                    // Admitted dimensions fit.
                    *dim = u32::try_from(*wide).unwrap_or(u32::MAX);
                }
                let args = TensorMetadataArgs {
                    id: record.id,
                    name: Some(builder.create_string(&record.name)),
                    shape: Some(builder.create_vector(&dims[..rank])),
                    data_type: record.dtype,
                    data_offset: record.offset,
                    data_size: record.size,
                };
                TensorMetadata::create(&mut builder, &args)
            })
            .collect();
        let args = TensorBuffersMetadataArgs {
            tensors: Some(builder.create_vector(&tables)),
            model: self.model.as_deref().map(|model| builder.create_string(model)),
            version: Some(builder.create_string(VERSION)),
        };
        let root = TensorBuffersMetadata::create(&mut builder, &args);
        builder.finish(root, None);
        let (mut buffer, start) = builder.collapse();
        buffer.drain(..start);
        buffer
    }
}

fn bound_of(record: &Record) -> u64 {
    Ledger::TENSOR_BOUND + record.name.len() as u64 + 4 * record.shape.rank() as u64
}

fn check_name(name: &str, options: &WriteOptions) -> Result<(), Error> {
    let limit = options.limits.name_bytes;
    let bad = |what: &str| Error::new(ErrorKind::BadName, what).rule("T19");
    if name.is_empty() {
        return Err(bad("the name is empty"));
    }
    if name.contains('\0') {
        return Err(bad("the name has a zero byte"));
    }
    if name.len() as u64 > limit {
        let error = bad("the name is too long");
        return Err(error
            .expected(format_args!("at most {limit} bytes, which readers take"))
            .found(name.len()));
    }
    Ok(())
}

fn duplicate(name: &str, other: &str) -> Error {
    if name == other {
        return Error::new(ErrorKind::Duplicate, "there is a tensor of this name already")
            .of_tensor(name)
            .rule("T7");
    }
    let what = format!(
        "the name's hash is that of {}: one of the two needs another name",
        Quoted(other)
    );
    Error::new(ErrorKind::Duplicate, what).of_tensor(name).rule("T5")
}
