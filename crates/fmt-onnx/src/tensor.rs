//! Reads one weight: its metadata, and the location of its elements.

use std::{collections::BTreeMap, ops::Range};

use fmt_core::{ByteSource, Encoding, Entry, Error, ErrorKind, Limits, StoredDType};
use tensor_core::{DType, Shape};

use crate::{
    dtype::{STRING, dtype_of},
    wire::{COST, Value, Walk, entry, malformed, message},
};

/// The metadata of a weight, as the file states it.
pub(crate) struct Weight {
    pub(crate) name: String,
    dims: Vec<u64>,
    dtype: u64,
    /// The range of the tensor's whole message in the file.
    message: Range<u64>,
    raw: Option<Range<u64>>,
    /// The numbers of the fields that contain elements.
    fields: Vec<u64>,
    /// The range of all elements, if one field contains them packed with their own width.
    row: Option<Range<u64>>,
    external: Option<External>,
}

/// The location of elements in another file.
#[derive(Clone, Debug, Default)]
pub(crate) struct External {
    pub(crate) location: String,
    offset: u64,
    length: Option<u64>,
}

/// The location and form of a weight's elements.
pub(crate) enum ElementStorage {
    /// Raw bytes in the model's file.
    Here,
    /// Elements encoded as a repeated Protobuf field with this field number (such as `float_data`).
    Numbers(u64),
    /// Raw bytes in another file.
    Elsewhere(External),
}

impl Weight {
    pub(crate) fn read(walk: &mut Walk<'_>, range: Range<u64>) -> Result<Self, Error> {
        walk.charge(COST)?;
        let mut weight = Self {
            name: String::new(),
            dims: Vec::new(),
            dtype: 0,
            message: range.clone(),
            raw: None,
            fields: Vec::new(),
            row: None,
            external: None,
        };
        let (mut rest, mut external, mut is_external) = (range, External::default(), false);
        while let Some((number, value)) = walk.field(&mut rest)? {
            match (number, &value) {
                (1, value) => walk.numbers(value, &mut weight.dims, walk.limits().rank)?,
                (2, Value::Number(number)) => weight.dtype = *number,
                (4..=7 | 10 | 11, value) => {
                    let is_first = weight.fields.is_empty();
                    if !weight.fields.contains(&number) {
                        weight.fields.push(number);
                    }
                    weight.row = match value {
                        Value::Bytes(range) if is_first && matches!(number, 4 | 10) => Some(range.clone()),
                        _ => None,
                    };
                }
                (8, value) => weight.name = walk.text(value, "a weight's name")?,
                (9, value) => weight.raw = Some(message(value, "a weight's data")?),
                (13, value) => {
                    let (key, text) = entry(walk, message(value, "the location of a weight's data")?)?;
                    external.set(&key, text)?;
                }
                (14, Value::Number(number)) => is_external = *number == 1,
                _ => {}
            }
        }
        weight.external = is_external.then_some(external);
        Ok(weight)
    }

    /// Returns the entry and the location of its elements, checked for consistency without reading elements.
    pub(crate) fn entry(self) -> Result<(Entry, ElementStorage), Error> {
        let (name, at) = (self.name.clone(), self.message.start);
        self.entry_of().map_err(|error| error.of_tensor(&name).at(at))
    }

    fn entry_of(mut self) -> Result<(Entry, ElementStorage), Error> {
        let shape =
            Shape::new(&self.dims).map_err(|error| Error::new(ErrorKind::Overflow, error.to_string()))?;
        let mut entry = Entry::new(
            std::mem::take(&mut self.name),
            dtype_of(self.dtype),
            shape,
            self.message.clone(),
        );
        if let StoredDType::Opaque(dtype) = &entry.dtype {
            entry.unsupported = Some(dtype.reason());
        }
        // Elements narrower than a byte are packed, and the last byte is padded.
        let Some(len) = entry.byte_len() else {
            entry.unsupported = Some(match self.dtype {
                STRING => "strings are not read from models".to_owned(),
                _ => format!("elements of the {} are not known", entry.dtype),
            });
            return Ok((entry, ElementStorage::Here));
        };
        let elements = self.locate(&mut entry, len)?;
        Ok((entry, elements))
    }

    /// Sets the range of the elements in `entry`, and checks that it has `len` bytes.
    fn locate(self, entry: &mut Entry, len: u64) -> Result<ElementStorage, Error> {
        let elements = entry.shape.element_count();
        let mismatch = |found: u64| {
            let error = Error::new(ErrorKind::SizeMismatch, "the size of the weight's data");
            error
                .expected(format_args!("{len} bytes for {elements} elements"))
                .found(found)
        };
        let check = |range: &Range<u64>| match range.end - range.start {
            size if size == len => Ok(()),
            size => Err(mismatch(size)),
        };
        if let Some(external) = self.external {
            entry.range = external.offset..external.offset.saturating_add(external.length.unwrap_or(len));
            check(&entry.range)?;
            let file = ("file".to_owned(), external.location.clone());
            entry.attributes = BTreeMap::from([file]).into();
            return Ok(ElementStorage::Elsewhere(external));
        }
        if let Some(raw) = self.raw {
            check(&raw)?;
            entry.range = raw;
            return Ok(ElementStorage::Here);
        }
        let field = match (&*self.fields, &entry.dtype) {
            ([], _) if len == 0 => {
                entry.range = self.message.start..self.message.start;
                return Ok(ElementStorage::Here);
            }
            ([field], StoredDType::Known(dtype)) if field_of(*dtype) == *field => *field,
            ([], _) => return Err(mismatch(0)),
            _ => {
                let error = malformed("the weight's data is in a field for another dtype");
                return Err(error.found(format_args!("field {:?}", self.fields)));
            }
        };
        if let Some(row) = self.row {
            check(&row)?;
            entry.range = row;
            return Ok(ElementStorage::Here);
        }
        entry.encoding = Encoding::Unknown("numbers of protobuf".to_owned());
        Ok(ElementStorage::Numbers(field))
    }
}

impl External {
    fn set(&mut self, key: &str, text: String) -> Result<(), Error> {
        let number = |text: &str| {
            let error = malformed("offset or length of a weight's data in another file");
            text.parse()
                .map_err(|_| error.expected("a number").found(text.escape_debug()))
        };
        match key {
            "location" => self.location = text,
            "offset" => self.offset = number(&text)?,
            "length" => self.length = Some(number(&text)?),
            // Other keys, such as `checksum`, are ignored: the format does not define what a checksum covers.
            _ => {}
        }
        Ok(())
    }
}

/// Returns the number of the field that contains elements of a dtype.
fn field_of(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 4,
        DType::F64 => 10,
        DType::I64 => 7,
        DType::U32 | DType::U64 => 11,
        _ => 5,
    }
}

/// Reads elements that are stored as protobuf numbers.
pub(crate) fn decode(
    source: &dyn ByteSource,
    entry: &Entry,
    field: u64,
    limits: &Limits,
) -> Result<Vec<u8>, Error> {
    let (Some(dtype), Some(len)) = (entry.dtype.known(), entry.byte_len()) else {
        return Err(malformed("the dtype of a weight"));
    };
    if len > limits.decoded_bytes {
        let error = Error::new(ErrorKind::TooLarge, "the weight's elements in memory");
        return Err(error
            .expected(format_args!("at most {} bytes", limits.decoded_bytes))
            .found(len));
    }
    let (width, mut walk) = (dtype.size(), Walk::new(source, limits));
    let mut elements = Elements {
        dtype,
        len,
        bytes: Vec::new(),
    };
    let mut rest = entry.range.clone();
    while let Some((number, value)) = walk.field(&mut rest)? {
        if number != field {
            continue;
        }
        let is_fixed = matches!(field, 4 | 10);
        match value {
            Value::Number(number) if !is_fixed => elements.push(number)?,
            Value::Bytes(mut row) if !is_fixed => {
                while !row.is_empty() {
                    elements.push(walk.varint(&mut row)?)?;
                }
            }
            Value::Fixed(range) | Value::Bytes(range) if is_fixed => {
                if !(range.end - range.start).is_multiple_of(width as u64) {
                    return Err(malformed("the weight's data ends within an element").at(range.end));
                }
                let mut at = range.start;
                while at < range.end {
                    elements.push(walk.fixed(at, width)?)?;
                    at += width as u64;
                }
            }
            _ => return Err(malformed("the weight's data has the form of another dtype")),
        }
    }
    let bytes = elements.bytes;
    if bytes.len() as u64 != len {
        let error = Error::new(ErrorKind::SizeMismatch, "fewer elements than the shape says");
        return Err(error.expected(format_args!("{len} bytes")).found(bytes.len()));
    }
    Ok(bytes)
}

/// The decoded elements of a weight, little-endian.
struct Elements {
    dtype: DType,
    /// Length of all elements in bytes.
    len: u64,
    bytes: Vec<u8>,
}

impl Elements {
    /// Adds an element that is stored as a protobuf number.
    fn push(&mut self, number: u64) -> Result<(), Error> {
        let (width, word) = (self.dtype.size(), number.to_le_bytes());
        // A number narrower than its field must fit: all bytes that are cut off must be sign extension.
        let (kept, cut) = word.split_at(width);
        let is_signed = matches!(self.dtype, DType::I8 | DType::I16 | DType::I32);
        let is_negative = is_signed && kept.last().is_some_and(|byte| *byte >= 0x80);
        let is_cut_well = cut.iter().all(|byte| *byte == if is_negative { 0xFF } else { 0 });
        if !is_cut_well {
            return Err(Error::new(ErrorKind::Overflow, "an element does not fit its dtype").found(number));
        }
        if self.bytes.len() as u64 + width as u64 > self.len {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                "more elements than the shape says",
            ));
        }
        self.bytes
            .try_reserve(width)
            .map_err(|_| Error::new(ErrorKind::TooLarge, "not enough memory"))?;
        self.bytes.extend_from_slice(kept);
        Ok(())
    }
}
