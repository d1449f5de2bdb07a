//! Records the tensors of a file being written: each is validated before any of its bytes are written.

use fmt_cbor::{CborValue, Fields, Header, push_head};
use fmt_core::{Entry, Error, ErrorKind, Limits, NameTable};
use fmt_zstd::{ChecksumKind, Claim};
use tensor_core::{QuotedName, Shape, TensorSpec};

use crate::{
    CustomField, TensorOptions, WriteOptions,
    capabilities::CAPABILITIES,
    index::Details,
    kind::{Kind, OtherKind},
    layout::{BIG, Key, LITTLE, ZSTD, named},
};

/// The tensors of a file, with their positions once they are written.
#[derive(Debug)]
pub(crate) struct Ledger {
    limits: Limits,
    omits_layout: bool,
    records: Vec<Record>,
    names: NameTable,
    /// Maximum size of the index in bytes.
    index_bound: u64,
    /// Minimum size of all data in bytes.
    data_bound: u64,
}

/// A tensor of the file: its name, its location, and the other values of its entry in the index.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) location: Location,
    pub(crate) checksum: Checksum,
    shape: Shape,
    kind: Kind,
    fields: Fields,
}

/// The checksum of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Checksum {
    Absent,
    /// The checksum as a string, as written in the edited file.
    Text(String),
    /// A checksum that the writer computes once all bytes have been written; a placeholder until then.
    Computed(Claim),
}

/// The location of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Not written yet.
    Open,
    Written {
        offset: u64,
        size: u64,
    },
    /// Shares the bytes of the tensor with this index, whose record has the location and checksum.
    Of(usize),
}

impl Record {
    /// Returns the maximum size of the record in the index: the size of its encoding, with the longest offset
    /// and size if the tensor is not written yet.
    fn index_bound(&self) -> u64 {
        let (offset, size) = match self.location {
            Location::Written { offset, size } => (offset, size),
            _ => (u64::MAX, u64::MAX),
        };
        let mut encoded = Vec::with_capacity(256);
        encode_record(&mut encoded, self, offset, size, &self.checksum);
        encoded.len() as u64
    }
}

impl Ledger {
    /// Maximum size to reserve for an index at once.
    const MOST_ROOM: u64 = 64 << 20;

    pub(crate) fn new(options: &WriteOptions) -> Self {
        Self {
            limits: options.limits.clone(),
            omits_layout: options.strict_spec,
            records: Vec::new(),
            names: NameTable::default(),
            index_bound: 9,
            data_bound: 0,
        }
    }

    /// Creates a ledger from the tensors of a file being edited.
    pub(crate) fn resume<'a>(
        options: &WriteOptions,
        entries: impl Iterator<Item = (&'a Entry, &'a Details)>,
        file_len: u64,
    ) -> Result<Self, Error> {
        let mut ledger = Self::new(options);
        ledger.data_bound = file_len;
        for (entry, details) in entries {
            ledger.push(Record {
                name: entry.name.clone(),
                location: Location::Written {
                    offset: entry.range.start,
                    size: entry.stored_size(),
                },
                checksum: entry.checksum.clone().map_or(Checksum::Absent, Checksum::Text),
                shape: entry.shape.clone(),
                kind: Kind::Other(Box::new(OtherKind {
                    dtype: entry.dtype.clone(),
                    encoding: entry.encoding.clone(),
                    layout: details.layout.clone(),
                    says_big: details.says_big,
                })),
                fields: details.fields.clone(),
            })?;
        }
        Ok(ledger)
    }

    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Validates a tensor to be written. Returns its index.
    pub(crate) fn admit(
        &mut self,
        name: &str,
        spec: &TensorSpec,
        options: &TensorOptions,
    ) -> Result<usize, Error> {
        self.check(name, spec).map_err(|error| error.of_tensor(name))?;
        check_options(spec, options, self.limits.fields).map_err(|error| error.of_tensor(name))?;
        let is_multi_byte = spec.dtype().size() > 1;
        let data_bound = self.data_bound.checked_add(spec.byte_len());
        let data_bound = data_bound.filter(|bound| *bound <= i64::MAX as u64);
        let data_bound = data_bound.ok_or_else(|| {
            let error = Error::new(ErrorKind::TooLarge, "the bytes of all tensors together").of_tensor(name);
            error
                .expected("at most 2^63 - 1, the length of files")
                .rule("Z10")
        })?;
        let record = Record {
            name: name.to_owned(),
            location: Location::Open,
            checksum: match options.checksum {
                Some(kind) => Checksum::Computed(Claim::blank(kind)),
                None => Checksum::Absent,
            },
            shape: spec.shape().clone(),
            kind: Kind::Known {
                dtype: spec.dtype(),
                is_zstd: options.compression.is_some(),
                says_layout: !self.omits_layout,
                says_big: (options.big_endian && is_multi_byte).then_some(true),
            },
            fields: encoded(&options.fields),
        };
        self.push(record)?;
        self.data_bound = data_bound;
        Ok(self.records.len() - 1)
    }

    /// Validates a tensor that shares the bytes of the tensor `of`.
    pub(crate) fn admit_alias(
        &mut self,
        name: &str,
        spec: &TensorSpec,
        of: &str,
        fields: &[CustomField],
    ) -> Result<(), Error> {
        self.check(name, spec).map_err(|error| error.of_tensor(name))?;
        let number = self.number(of)?;
        let number = match self.records[number].location {
            Location::Of(number) => number,
            _ => number,
        };
        let target = &self.records[number];
        let of_target = target
            .kind
            .dtype_of_elements()
            .and_then(|dtype| TensorSpec::new(dtype, target.shape.clone()).ok());
        let fits = of_target.as_ref().is_some_and(|target_spec| {
            let is_big = target.kind.says_big() == Some(true);
            let is_same_width = target_spec.dtype().size() == spec.dtype().size();
            target_spec.byte_len() == spec.byte_len() && (is_same_width || !is_big)
        });
        if !fits {
            let error =
                Error::new(ErrorKind::SizeMismatch, "the other name's dtype and shape").of_tensor(name);
            let found = of_target.map_or("something that is not supported".to_owned(), |spec| {
                spec.to_string()
            });
            return Err(error
                .expected(format_args!("as many bytes as {spec}"))
                .found(found)
                .rule("Z10"));
        }
        let record = Record {
            name: name.to_owned(),
            location: Location::Of(number),
            checksum: target.checksum.clone(),
            shape: spec.shape().clone(),
            kind: Kind::Known {
                dtype: spec.dtype(),
                is_zstd: target.kind.encoding_name() == ZSTD,
                says_layout: !self.omits_layout,
                says_big: target.kind.says_big(),
            },
            fields: encoded(fields),
        };
        self.push(record)
    }

    fn check(&self, name: &str, spec: &TensorSpec) -> Result<(), Error> {
        CAPABILITIES.check_name(name, &self.limits)?;
        CAPABILITIES.check_tensor(spec, &self.limits)
    }

    fn push(&mut self, record: Record) -> Result<(), Error> {
        let bound = self.index_bound + record.index_bound();
        let count = self.records.len() as u64 + 1;
        self.check_bounds(bound, count)
            .map_err(|error| error.of_tensor(&record.name))?;
        let name_of = |number: u32| &*self.records[number as usize].name;
        // The limit on tensors is below 2^32, unless the caller raised it beyond any available memory.
        let number = u32::try_from(self.records.len())
            .map_err(|_| Error::new(ErrorKind::TooLarge, "the number of tensors").rule("Z12"))?;
        if self.names.insert(number, &record.name, name_of).is_err() {
            return Err(taken(&record.name));
        }
        self.index_bound = bound;
        self.records.push(record);
        Ok(())
    }

    fn check_bounds(&self, index: u64, tensors: u64) -> Result<(), Error> {
        let limits = &self.limits;
        let too_large = |what: &str, limit: u64| {
            let error = Error::new(ErrorKind::TooLarge, what).rule("Z12");
            error.expected(format_args!(
                "at most {limit}, the limit of readers; use several files"
            ))
        };
        if tensors > limits.tensors {
            return Err(too_large("the number of tensors", limits.tensors));
        }
        if index > limits.index_bytes {
            return Err(too_large("the bytes of the index", limits.index_bytes));
        }
        Ok(())
    }

    /// Returns the maximum size of the index with `record` in place of the record `number`.
    fn bound_with(&self, number: usize, record: &Record) -> u64 {
        // The subtraction cannot underflow: the bound of a record does not grow after the record has been
        // added.
        self.index_bound - self.records[number].index_bound() + record.index_bound()
    }

    fn number(&self, name: &str) -> Result<usize, Error> {
        let name_of = |number: u32| &*self.records[number as usize].name;
        let found = self.names.find(name, name_of);
        found
            .map(|number| number as usize)
            .ok_or_else(|| Error::new(ErrorKind::OutOfBounds, "there is no such tensor").of_tensor(name))
    }

    /// Sets the location and checksum of a tensor whose bytes have been written.
    pub(crate) fn settle(&mut self, number: usize, offset: u64, size: u64, checksum: Option<Claim>) {
        let record = &mut self.records[number];
        record.location = Location::Written { offset, size };
        record.checksum = checksum.map_or(Checksum::Absent, Checksum::Computed);
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let number = self.number(from)?;
        if from == to {
            return Ok(());
        }
        CAPABILITIES
            .check_name(to, &self.limits)
            .map_err(|error| error.of_tensor(to))?;
        let mut renamed = self.records[number].clone();
        renamed.name = to.to_owned();
        let bound = self.bound_with(number, &renamed);
        self.check_bounds(bound, self.records.len() as u64)
            .map_err(|error| error.of_tensor(to))?;
        if self.number(to).is_ok() {
            return Err(taken(to));
        }
        self.names
            .remove(from, |number| &self.records[number as usize].name);
        self.records[number] = renamed;
        // The record's index is below 2^32, as checked in `push`, and the new name is unused.
        let _ = self
            .names
            .insert(number as u32, to, |number| &self.records[number as usize].name);
        self.index_bound = bound;
        Ok(())
    }

    /// Sets a custom field in place, or appends it.
    pub(crate) fn set_field(&mut self, name: &str, field: &CustomField) -> Result<(), Error> {
        let number = self.number(name)?;
        let fields = &self.records[number].fields;
        let (fields, old) = fields.with(field.key(), Some(field.value()));
        let limit = self.limits.fields;
        if fields.len() as u64 > limit && old.is_none() {
            let error = Error::new(ErrorKind::TooLarge, "the number of custom fields").rule("Z12");
            return Err(error
                .of_tensor(name)
                .expected(format_args!("at most {limit}, the limit of readers")));
        }
        self.set_fields(number, fields)
            .map_err(|error| error.of_tensor(name))
    }

    fn set_fields(&mut self, number: usize, fields: Fields) -> Result<(), Error> {
        let changed = Record {
            fields,
            ..self.records[number].clone()
        };
        let bound = self.bound_with(number, &changed);
        self.check_bounds(bound, self.records.len() as u64)?;
        self.index_bound = bound;
        self.records[number] = changed;
        Ok(())
    }

    pub(crate) fn remove_field(&mut self, name: &str, key: &str) -> Result<Option<CborValue>, Error> {
        let number = self.number(name)?;
        let (fields, old) = self.records[number].fields.with(key, None);
        self.set_fields(number, fields)?;
        Ok(old)
    }

    /// Encodes the index: definite lengths, shortest integers, keys in a fixed order (Z2).
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Reserving too much costs little, because the system allocates pages only when they are first
        // written.
        let room = usize::try_from(self.index_bound.min(Self::MOST_ROOM)).unwrap_or(0);
        let mut out = Vec::with_capacity(room);
        push_head(&mut out, Header::Array(Some(self.records.len())));
        for record in &self.records {
            let root = match record.location {
                Location::Of(number) => &self.records[number],
                _ => record,
            };
            let (offset, size) = match root.location {
                Location::Written { offset, size } => (offset, size),
                // Unreachable: the index is encoded only after all bytes have been written.
                _ => (0, 0),
            };
            encode_record(&mut out, record, offset, size, &root.checksum);
        }
        out
    }
}

fn encode_record(out: &mut Vec<u8>, record: &Record, offset: u64, size: u64, checksum: &Checksum) {
    let (layout, says_big) = (record.kind.layout(), record.kind.says_big());
    let optional = usize::from(layout.is_some())
        + usize::from(says_big.is_some())
        + usize::from(!matches!(checksum, Checksum::Absent));
    push_head(out, Header::Map(Some(6 + optional + record.fields.len())));
    text(out, Key::Name.name());
    text(out, &record.name);
    text(out, Key::Offset.name());
    push_head(out, Header::Positive(offset));
    text(out, Key::Size.name());
    push_head(out, Header::Positive(size));
    text(out, Key::Dtype.name());
    text(out, record.kind.dtype_name());
    if let Some(layout) = layout {
        text(out, Key::Layout.name());
        out.extend_from_slice(layout);
    }
    text(out, Key::Shape.name());
    push_head(out, Header::Array(Some(record.shape.rank())));
    for dim in record.shape.dims() {
        push_head(out, Header::Positive(*dim));
    }
    text(out, Key::Encoding.name());
    text(out, record.kind.encoding_name());
    if let Some(is_big) = says_big {
        text(out, Key::Endianness.name());
        text(out, if is_big { BIG } else { LITTLE });
    }
    match checksum {
        Checksum::Absent => {}
        Checksum::Text(claim) => {
            text(out, Key::Checksum.name());
            text(out, claim);
        }
        Checksum::Computed(claim) => {
            text(out, Key::Checksum.name());
            push_head(out, Header::Text(Some(claim.text_len())));
            claim.push_to(out);
        }
    }
    out.extend_from_slice(record.fields.as_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    push_head(out, Header::Text(Some(text.len())));
    out.extend_from_slice(text.as_bytes());
}

fn encoded(fields: &[CustomField]) -> Fields {
    let pairs = fields.iter().map(|field| (field.key(), field.value().clone()));
    pairs.collect()
}

fn check_options(spec: &TensorSpec, options: &TensorOptions, most: u64) -> Result<(), Error> {
    if let Some(compression) = &options.compression {
        compression.check().map_err(named)?;
        if options.big_endian && spec.dtype().size() > 1 {
            let error = Error::new(
                ErrorKind::Unsupported,
                "compressed data most significant byte first",
            );
            return Err(error
                .expected("either raw or least significant byte first")
                .rule("Z7"));
        }
    }
    if !matches!(
        options.checksum,
        None | Some(ChecksumKind::Crc32c | ChecksumKind::Sha256)
    ) {
        let error = Error::new(ErrorKind::Unsupported, "the kind of checksum").rule("Z5");
        return Err(error.expected("CRC-32C or SHA-256, which readers of the format know"));
    }
    if options.fields.len() as u64 > most {
        let error = Error::new(ErrorKind::TooLarge, "the number of custom fields").rule("Z12");
        return Err(error
            .expected(format_args!("at most {most}, the limit of readers"))
            .found(options.fields.len()));
    }
    let mut keys: Vec<&str> = options.fields.iter().map(CustomField::key).collect();
    keys.sort_unstable();
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        let what = format!("the custom field {} occurs twice", QuotedName(pair[0]));
        return Err(Error::new(ErrorKind::Duplicate, what).rule("Z9"));
    }
    Ok(())
}

fn taken(name: &str) -> Error {
    Error::new(ErrorKind::Duplicate, "a tensor with this name exists")
        .of_tensor(name)
        .rule("Z9")
}
