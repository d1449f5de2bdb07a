//! Reads and validates untrusted headers, and writes headers.

use fmt_core::{
    ByteSource, Cursor, Entry, Error, ErrorKind, Limits, Metadata, NameTable, ReadOptions, StoredDType,
    check_overlaps, read_range,
};
use tensor_core::{Bytes, Shape};

use crate::{
    types::GgmlType,
    value::{self, Kind, ValueError, put_string},
};

/// The format's short name.
pub(crate) const FORMAT: &str = "gguf";
/// The magic number.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The version that this crate writes.
const VERSION: u32 = 3;
/// The key of the data alignment, and its default.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Maximum rank of a tensor.
pub(crate) const MOST_DIMS: usize = 4;
/// Maximum length of a metadata key in bytes.
pub(crate) const LONGEST_KEY: u64 = u16::MAX as u64;
/// A virtual metadata key with the types of values that are not strings, as a JSON object. The key is not in
/// the file.
pub(crate) const TYPES_KEY: &str = "gguf.types";

/// A parsed and validated header.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: Metadata,
    names: NameTable,
    /// Offset in the file where the tensors' data starts.
    pub(crate) data: u64,
}

impl Header {
    pub(crate) fn read(source: &dyn ByteSource, options: &ReadOptions) -> Result<Self, Error> {
        /// Size of the first read; most headers without a vocabulary fit.
        const FIRST: u64 = 1 << 20;
        let most = source.len().min(options.limits.index_bytes);
        let mut len = if source.is_in_memory() {
            most
        } else {
            most.min(FIRST)
        };
        loop {
            let head = read_range(source, 0..len, "the header")?;
            match Self::parse(&head, source.len(), &options.limits) {
                // The header is longer than the part read.
                Err(error) if error.kind() == ErrorKind::Truncated && len < source.len() => {
                    if len == most {
                        let error = Error::new(ErrorKind::TooLarge, "the length of the header").rule("G2");
                        return Err(error.expected(format_args!("at most {most} bytes, the reader's limit")));
                    }
                    len = most.min(len.saturating_mul(8));
                }
                parsed => return parsed.map_err(|error| ruled(error, "G2")),
            }
        }
    }

    fn parse(head: &Bytes, file_len: u64, limits: &Limits) -> Result<Self, Error> {
        let mut cursor = Cursor::new(head, 0);
        check_start(&mut cursor)?;
        let tensors = count(&mut cursor, "tensors", 24, file_len)?;
        if tensors > limits.tensors {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("G2");
            return Err(error
                .expected(format_args!("at most {}, the reader's limit", limits.tensors))
                .found(tensors));
        }
        let values = count(&mut cursor, "metadata values", 13, file_len)?;
        let (metadata, alignment) = read_metadata(&mut cursor, values)?;
        let mut infos = Vec::new();
        let mut names = NameTable::default();
        for number in 0..tensors {
            let info = Info::read(&mut cursor, limits)?;
            // The size limit of the header allows fewer than 2^32 tensors, so the index fits.
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let name_of = |number: u32| infos.get(number as usize).map_or("", |info: &Info<'_>| info.name);
            if names.insert(number, info.name, name_of).is_err() {
                let error = Error::new(ErrorKind::Duplicate, "the name is given twice").rule("G2");
                return Err(error.of_tensor(info.name));
            }
            infos.push(info);
        }
        let data = cursor.position().next_multiple_of(alignment);
        let mut starts: Vec<u64> = infos.iter().map(|info| info.offset).collect();
        starts.sort_unstable();
        if let Some(end) = Info::end_of_all(&infos, data, alignment).filter(|end| *end > file_len) {
            return Err(Error::cut_off(end, file_len).rule("G3"));
        }
        let entries = infos.into_iter().map(|info| {
            let name = info.name;
            let entry = info.entry(data, alignment, &starts, file_len);
            entry.map_err(|error| ruled(error.of_tensor(name), "G3"))
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let ranges: Vec<_> = entries.iter().map(|entry| entry.range.clone()).collect();
        check_overlaps(&ranges).map_err(|error| error.rule("G2"))?;
        Ok(Self {
            entries,
            metadata,
            names,
            data,
        })
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.names.find_entry(name, &self.entries)
    }
}

/// Adds the broken rule to the error, unless the error already names one.
fn ruled(error: Error, rule: &'static str) -> Error {
    match error.broken_rule() {
        None => error.rule(rule),
        Some(_) => error,
    }
}

/// Checks magic and version.
fn check_start(cursor: &mut Cursor<'_>) -> Result<(), Error> {
    if cursor.array::<4>("the first bytes")? != MAGIC {
        let error = Error::new(ErrorKind::BadMagic, "the first bytes").at(0);
        return Err(error.rule("G1").expected("'GGUF'"));
    }
    let version = cursor.u32("the version")?;
    let error = match version {
        2 | 3 => return Ok(()),
        swapped if (1..=3).contains(&swapped.swap_bytes()) => {
            let error = Error::new(ErrorKind::BadVersion, "the file is big-endian");
            error.expected(
                "little-endian; the program gguf-convert-endian of the Python package gguf converts it: \
                 gguf-convert-endian FILE little",
            )
        }
        other => Error::new(ErrorKind::BadVersion, "the version")
            .expected("2 or 3")
            .found(other),
    };
    Err(error.at(4).rule("G1"))
}

/// Reads a count of items that take at least `least` bytes each, and checks that the file can hold them.
fn count(cursor: &mut Cursor<'_>, what: &str, least: u64, file_len: u64) -> Result<u64, Error> {
    let at = cursor.position();
    let count = cursor.u64("the beginning of the header")?;
    let most = file_len.saturating_sub(at) / least;
    if count <= most {
        return Ok(count);
    }
    // The error must not be `Truncated`, after which the caller would read more of the file.
    let error = Error::new(ErrorKind::OutOfBounds, format!("the number of {what}"));
    Err(error
        .at(at)
        .rule("G2")
        .expected(format_args!("at most {most}, given the file's length"))
        .found(count))
}

/// Reads the metadata as strings, and the data alignment.
fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<(Metadata, u64), Error> {
    let (mut metadata, mut types) = (Metadata::new(), serde_json::Map::new());
    let mut alignment = DEFAULT_ALIGNMENT;
    for _ in 0..count {
        let at = cursor.position();
        let key = value::string(cursor, "a key", LONGEST_KEY)?;
        let (kind, text) = value::read(cursor)?;
        if key == ALIGNMENT_KEY {
            alignment = checked_alignment(kind, &text).map_err(|error| error.at(at))?;
        }
        if kind != Kind::STRING {
            types.insert(key.to_owned(), kind.to_string().into());
        }
        if key == TYPES_KEY || metadata.insert(key.to_owned(), text).is_some() {
            let error = Error::new(
                ErrorKind::Duplicate,
                "a key is given twice, or has a special meaning",
            );
            return Err(error.at(at).rule("G2").found(tensor_core::QuotedName(key)));
        }
    }
    if !types.is_empty() {
        metadata.insert(TYPES_KEY.to_owned(), serde_json::Value::Object(types).to_string());
    }
    Ok((metadata, alignment))
}

/// Validates the alignment in the metadata.
pub(crate) fn checked_alignment(kind: Kind, text: &str) -> Result<u64, Error> {
    /// Larger alignments would only add padding.
    const LARGEST: u64 = 1 << 20;
    let number = text.parse::<u64>().ok().filter(|_| kind == Kind::U32);
    let number = number.filter(|number| number.is_power_of_two() && (8..=LARGEST).contains(number));
    number.ok_or_else(|| {
        let error = Error::new(ErrorKind::Malformed, "the value of general.alignment").rule("G2");
        error
            .expected(format_args!("a power of two from 8 to {LARGEST}, as u32"))
            .found(format_args!("{text} as {kind}"))
    })
}

/// A tensor's header entry.
struct Info<'a> {
    name: &'a str,
    /// The dimensions in file order: the fastest-changing dimension first.
    dims: Vec<u64>,
    number: u32,
    offset: u64,
}

impl<'a> Info<'a> {
    fn read(cursor: &mut Cursor<'a>, limits: &Limits) -> Result<Self, Error> {
        let name = value::string(cursor, "the name of a tensor", limits.name_bytes)?;
        let rank = cursor.u32("the rank")?;
        if rank as usize > MOST_DIMS {
            let error = Error::new(ErrorKind::Malformed, "the rank").at(cursor.position());
            let error = error.expected(format_args!("at most {MOST_DIMS}"));
            return Err(error.found(rank).of_tensor(name).rule("G2"));
        }
        let mut dims = Vec::with_capacity(rank as usize);
        for _ in 0..rank {
            dims.push(cursor.u64("the dimensions")?);
        }
        Ok(Self {
            name,
            dims,
            number: cursor.u32("the type of a tensor")?,
            offset: cursor.u64("the offset of a tensor")?,
        })
    }

    /// Returns the end of the data if tensors are contiguous; `None` if not, or if a length is unknown.
    fn end_of_all(infos: &[Self], data: u64, alignment: u64) -> Option<u64> {
        let mut lens = Vec::with_capacity(infos.len());
        for info in infos {
            let shape = Shape::new(&info.dims).ok()?;
            let ggml = GgmlType::of_number(info.number)?;
            let blocks = shape.element_count() / u64::from(ggml.elements);
            lens.push((info.offset, blocks.checked_mul(ggml.bytes.into())?));
        }
        lens.sort_unstable();
        let mut end = 0u64;
        for (offset, len) in lens {
            if offset != end.checked_next_multiple_of(alignment)? {
                return None;
            }
            end = offset.checked_add(len)?;
        }
        data.checked_add(end)
    }

    /// Converts the description to an entry, and checks that its data lies within the file. `starts` are the
    /// sorted offsets of all tensors.
    fn entry(mut self, data: u64, alignment: u64, starts: &[u64], file_len: u64) -> Result<Entry, Error> {
        let malformed = |kind, what: &str| Error::new(kind, what);
        if !self.offset.is_multiple_of(alignment) {
            let error = malformed(ErrorKind::Misaligned, "the offset of the data");
            return Err(error
                .expected(format_args!("a multiple of {alignment}"))
                .found(self.offset));
        }
        let row = self.dims.first().copied().unwrap_or(1);
        self.dims.reverse();
        let shape =
            Shape::new(&self.dims).map_err(|error| malformed(ErrorKind::Overflow, &error.to_string()))?;
        let ggml = GgmlType::of_number(self.number);
        let len = match ggml {
            Some(ggml) if !row.is_multiple_of(ggml.elements.into()) => {
                let error = malformed(ErrorKind::SizeMismatch, "the last dimension");
                return Err(error
                    .expected(format_args!(
                        "whole blocks of {} elements of {}",
                        ggml.elements, ggml.name
                    ))
                    .found(row));
            }
            Some(ggml) => {
                let blocks = shape.element_count() / u64::from(ggml.elements);
                blocks.checked_mul(ggml.bytes.into())
            }
            // The length is unknown, so the data extends to the next tensor.
            None => {
                let next = starts.partition_point(|start| *start <= self.offset);
                let end = starts.get(next).copied();
                let end = end.unwrap_or_else(|| file_len.saturating_sub(data));
                Some(end.saturating_sub(self.offset))
            }
        };
        let start = data.checked_add(self.offset);
        let range = start
            .zip(len)
            .and_then(|(start, len)| Some(start..start.checked_add(len)?));
        let range = range.filter(|range| range.end <= file_len).ok_or_else(|| {
            let error = malformed(ErrorKind::OutOfBounds, "the data is beyond the file's end");
            error.expected(format_args!("an end at {file_len} or before"))
        })?;
        let stored = match ggml {
            Some(ggml) => ggml.stored(),
            None => StoredDType::Unknown(format!("type {}", self.number)),
        };
        let mut entry = Entry::new(self.name.to_owned(), stored, shape, range);
        entry.unsupported = match ggml {
            None => Some(format!("GGML's type {} is unknown", self.number)),
            Some(ggml) if ggml.dtype.is_none() => Some(format!("it is quantised, as GGML's {}", ggml.name)),
            Some(_) => None,
        };
        Ok(entry)
    }
}

/// A tensor to be written.
pub(crate) struct PlannedTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) dims: &'a [u64],
    pub(crate) ggml: GgmlType,
    /// Offset of the tensor's bytes, relative to the start of the data.
    pub(crate) offset: u64,
}

/// Encodes a complete header, padded to the alignment of the data.
///
/// # Errors
/// When the string of a metadata value does not match the value's type. The error names the key.
pub(crate) fn encode(tensors: &[PlannedTensor<'_>], metadata: &Metadata) -> Result<Vec<u8>, Error> {
    let types = types_of(metadata)?;
    let values = metadata.iter().filter(|(key, _)| *key != TYPES_KEY);
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.clone().count() as u64).to_le_bytes());
    for (key, text) in values {
        let wrong = |kind, what: String| {
            let what = format!("the metadata {}: {what}", tensor_core::QuotedName(key));
            Error::new(kind, what).rule("G5")
        };
        if key.is_empty() || key.len() as u64 > LONGEST_KEY {
            let error = wrong(ErrorKind::BadName, "the length of the key".to_owned());
            return Err(error.expected(format_args!("1 to {LONGEST_KEY} bytes")));
        }
        put_string(key, &mut out);
        let encoded = kind_of(&types, key).and_then(|kind| kind.encode(text, &mut out));
        encoded.map_err(|error| wrong(ErrorKind::Unsupported, error.to_string()))?;
    }
    for tensor in tensors {
        put_string(tensor.name, &mut out);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        for dim in tensor.dims.iter().rev() {
            out.extend(dim.to_le_bytes());
        }
        out.extend(tensor.ggml.number.to_le_bytes());
        out.extend(tensor.offset.to_le_bytes());
    }
    let alignment = alignment_of(metadata)?;
    out.resize(out.len().next_multiple_of(alignment as usize), 0);
    Ok(out)
}

/// Returns the data alignment that `metadata` sets, or the default.
pub(crate) fn alignment_of(metadata: &Metadata) -> Result<u64, Error> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(text) => {
            let kind = kind_of(&types_of(metadata)?, ALIGNMENT_KEY);
            checked_alignment(kind.unwrap_or(Kind::STRING), text)
        }
    }
}

type Types = std::collections::BTreeMap<String, String>;

/// Returns the types of metadata values that are not strings, from the key `gguf.types`.
fn types_of(metadata: &Metadata) -> Result<Types, Error> {
    let Some(text) = metadata.get(TYPES_KEY) else {
        return Ok(Types::new());
    };
    serde_json::from_str(text).map_err(|error| {
        let what = format!("the metadata '{TYPES_KEY}': {error}");
        let error = Error::new(ErrorKind::Unsupported, what).rule("G5");
        error.expected(r#"types by key, such as {"general.file_type":"u32"}"#)
    })
}

fn kind_of(types: &Types, key: &str) -> Result<Kind, ValueError> {
    match types.get(key) {
        // llama.cpp expects the values of these keys to be numbers, whichever program wrote them.
        None if matches!(
            key,
            ALIGNMENT_KEY | "general.file_type" | "general.quantization_version"
        ) =>
        {
            Ok(Kind::U32)
        }
        None => Ok(Kind::STRING),
        Some(name) => Kind::of_name(name).ok_or_else(|| ValueError::NoType(name.clone())),
    }
}
