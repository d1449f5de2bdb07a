//! Parses and validates the JSON headers of safetensors files.

use std::fmt;

use fmt_core::{
    Entry, Error, ErrorKind, Limits, Metadata, NameTable, OpaqueDType, ReadOptions, StoredDType, reserve,
};
use serde::{
    Deserialize,
    de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor},
};
use smallvec::SmallVec;
use tensor_core::{DType, Naming, Shape};

use crate::layout::{LENGTH, METADATA, bits_of};

/// A parsed and validated header.
#[derive(Debug, Default)]
pub(crate) struct Header {
    /// The tensors in data order.
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: Metadata,
    names: NameTable,
}

impl Header {
    /// Parses a header that is followed by `data_len` bytes of data.
    pub(crate) fn parse(json: &[u8], data_len: u64, options: &ReadOptions) -> Result<Self, Error> {
        let mut raw = parse_json(json, options.lenient)?;
        check_count(raw.tensors.len(), &options.limits)?;
        // Most headers are already in data order, and sorting takes memory.
        if !raw.tensors.is_sorted_by_key(|(_, tensor)| tensor.data_offsets) {
            raw.tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
        }
        let data_start = LENGTH + json.len() as u64;
        let mut header = Self {
            metadata: raw.metadata.unwrap_or_default(),
            ..Self::default()
        };
        if let Some(end) = end_of_data(&raw.tensors).filter(|end| *end > data_len)
            && let Some(expected) = data_start.checked_add(end)
        {
            return Err(Error::cut_off(expected, data_start + data_len).rule("S5"));
        }
        reserve(&mut header.entries, raw.tensors.len() as u64)?;
        let mut last_end = 0;
        for (name, tensor) in raw.tensors {
            let [start, end] = tensor.data_offsets;
            if start != last_end || end < start || end > data_len {
                let error = Error::new(ErrorKind::OutOfBounds, "the offsets of the data");
                return Err(error
                    .of_tensor(&name)
                    .rule("S5")
                    .expected(format_args!(
                        "{last_end}, where the data before ends, and at most {data_len}"
                    ))
                    .found(format_args!("{start} and {end}")));
            }
            last_end = end;
            header
                .entries
                .push(tensor.entry(name, data_start, &options.limits)?);
        }
        if last_end != data_len {
            let error = Error::new(ErrorKind::SizeMismatch, "the length of the data");
            return Err(error
                .at(data_start)
                .rule("S5")
                .expected(format_args!("{last_end}, as in the header"))
                .found(data_len));
        }
        header.index_names()?;
        Ok(header)
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.names.find_entry(name, &self.entries)
    }

    fn index_names(&mut self) -> Result<(), Error> {
        // The limit on tensors keeps the number of entries below 2^32.
        let (names, twice) = NameTable::of_entries(&self.entries);
        if let Some((_, number)) = twice {
            let error = Error::new(ErrorKind::Duplicate, "the name is given twice");
            return Err(error.of_tensor(&self.entries[number as usize].name).rule("S3"));
        }
        self.names = names;
        Ok(())
    }
}

/// Parses the header's JSON. Unless `is_lenient`, it must begin with a brace.
fn parse_json(json: &[u8], is_lenient: bool) -> Result<RawHeader, Error> {
    if json.first() != Some(&b'{') && !is_lenient {
        let found = json
            .first()
            .map_or("nothing".to_owned(), |byte| format!("byte {byte:#04x}"));
        let error = Error::new(ErrorKind::Malformed, "the beginning of the header");
        return Err(error.at(LENGTH).rule("S2").expected("'{'").found(found));
    }
    serde_json::from_slice(json).map_err(|error| {
        // A header is usually one line, so columns are byte offsets.
        let column = if error.line() == 1 {
            error.column() as u64
        } else {
            0
        };
        Error::new(ErrorKind::Malformed, format!("the header: {error}"))
            .at(LENGTH + column.saturating_sub(1))
            .rule("S2")
    })
}

/// Returns the end of the data if sorted tensors are contiguous and match their dtypes and shapes.
fn end_of_data(tensors: &[(String, RawTensor)]) -> Option<u64> {
    tensors.iter().try_fold(0, |last_end, (_, tensor)| {
        let [start, end] = tensor.data_offsets;
        let is_next = start == last_end && end.checked_sub(start) == tensor.byte_len();
        is_next.then_some(end)
    })
}

fn check_count(count: usize, limits: &Limits) -> Result<(), Error> {
    let most = limits.tensors.min(u32::MAX.into());
    if count as u64 > most {
        let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("S8");
        return Err(error
            .expected(format_args!("at most {most}, the reader's limit"))
            .found(count));
    }
    Ok(())
}

/// The header as the file has it. Duplicate names are kept, to be rejected later.
#[derive(Default)]
struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: RawDType,
    shape: Dims,
    data_offsets: [u64; 2],
}

/// A dtype in the header. Known dtypes need no allocation, since files may have many tensors.
enum RawDType {
    Known(DType),
    Other(Box<str>),
}

impl RawTensor {
    fn entry(self, name: String, data_start: u64, limits: &Limits) -> Result<Entry, Error> {
        let proven = self.prove(&name, data_start, limits);
        let shape = proven.map_err(|error| error.of_tensor(&name))?;
        let stored = match self.dtype {
            RawDType::Known(dtype) => StoredDType::Known(dtype),
            // The reference crate knows these dtypes, but this crate only copies their elements.
            RawDType::Other(name) => match bits_of(&name).and_then(|bits| u32::try_from(bits).ok()) {
                Some(bits) => StoredDType::Opaque(OpaqueDType::of_bits(name, bits)),
                None => StoredDType::Unknown(name.into()),
            },
        };
        let unsupported = match &stored {
            StoredDType::Known(_) => None,
            StoredDType::Opaque(dtype) => Some(dtype.reason()),
            StoredDType::Unknown(name) => Some(format!(
                "the dtype {} is not supported",
                tensor_core::QuotedName(name)
            )),
        };
        let [start, end] = self.data_offsets;
        // `Header::parse` has checked that the data range is inside the file, so the sums do not overflow.
        let mut entry = Entry::new(name, stored, shape, data_start + start..data_start + end);
        entry.unsupported = unsupported;
        Ok(entry)
    }

    fn dtype_name(&self) -> &str {
        match &self.dtype {
            RawDType::Known(dtype) => dtype.name_in(Naming::Safetensors),
            RawDType::Other(name) => name,
        }
    }

    /// Returns the length that follows from dtype and shape, if the dtype is known and the length fits in 64
    /// bits.
    fn byte_len(&self) -> Option<u64> {
        let elements = Shape::new(&self.shape.0).ok()?.element_count();
        let bits = elements.checked_mul(bits_of(self.dtype_name())?)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Validates name, shape and length of the tensor, without comparing it with other tensors.
    fn prove(&self, name: &str, data_start: u64, limits: &Limits) -> Result<Shape, Error> {
        if name.len() as u64 > limits.name_bytes {
            let error = Error::new(ErrorKind::BadName, "the length of the name").rule("S8");
            return Err(error
                .expected(format_args!("at most {} bytes", limits.name_bytes))
                .found(name.len()));
        }
        let rank = self.shape.0.len() as u64;
        if rank > limits.rank {
            let error = Error::new(ErrorKind::TooLarge, "the rank").rule("S8");
            return Err(error
                .expected(format_args!("at most {}, the reader's limit", limits.rank))
                .found(rank));
        }
        let dims = &*self.shape.0;
        let dtype_name = self.dtype_name();
        let overflow = || {
            let error = Error::new(
                ErrorKind::Overflow,
                "the length of the tensor does not fit 64 bits",
            );
            error.rule("S6").found(format_args!("{dtype_name}{dims:?}"))
        };
        let shape = Shape::new(dims).map_err(|_| overflow())?;
        let [start, end] = self.data_offsets;
        if let Some(width) = bits_of(dtype_name) {
            let bits = shape.element_count().checked_mul(width).ok_or_else(overflow)?;
            if !bits.is_multiple_of(8) || bits / 8 != end - start {
                let error = Error::new(ErrorKind::SizeMismatch, "the length of the data").rule("S6");
                return Err(error
                    .at(data_start + start)
                    .expected(format_args!("{bits} bits for {dtype_name}{shape}"))
                    .found(format_args!("{} bytes", end - start)));
            }
        }
        Ok(shape)
    }
}

/// Dimensions, limited to the maximum rank while parsing.
struct Dims(SmallVec<[u64; 4]>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DimsVisitor;
        impl<'de> Visitor<'de> for DimsVisitor {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {} dimensions", Shape::MAX_RANK)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = SmallVec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == Shape::MAX_RANK {
                        return Err(A::Error::invalid_length(dims.len() + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Dims(dims))
            }
        }
        deserializer.deserialize_seq(DimsVisitor)
    }
}

impl<'de> Deserialize<'de> for RawDType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl Visitor<'_> for NameVisitor {
            type Value = RawDType;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<RawDType, E> {
                let known = DType::from_name(Naming::Safetensors, name);
                Ok(known.map_or_else(|_| RawDType::Other(name.into()), RawDType::Known))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader::default();
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name != METADATA {
                        header.tensors.push((name, map.next_value()?));
                        continue;
                    }
                    if has_metadata {
                        return Err(A::Error::duplicate_field(METADATA));
                    }
                    has_metadata = true;
                    header.metadata = map.next_value::<Option<UniqueKeys>>()?.map(|keys| keys.0);
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// A map of strings that rejects duplicate keys while parsing.
struct UniqueKeys(Metadata);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor;
        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = UniqueKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("strings by key")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueKeys, A::Error> {
                let mut keys = Metadata::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    let what = tensor_core::QuotedName(&key).to_string();
                    if keys.insert(key, value).is_some() {
                        return Err(A::Error::custom(format_args!("the key {what} is given twice")));
                    }
                }
                Ok(UniqueKeys(keys))
            }
        }
        deserializer.deserialize_map(KeysVisitor)
    }
}
