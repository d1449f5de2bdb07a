//! The index: a CBOR array with one map per tensor.

use std::borrow::Cow;

use fmt_cbor::{CborValue, DuplicateKey, Fields, FieldsBuilder, Header, Items, wrong_type};
use fmt_core::{
    Encoding, Entry, Error, ErrorKind, Layout, Limits, NameTable, ReadOptions, StoredDType, check_name,
    check_overlaps, reserve,
};
use tensor_core::{QuotedName, Shape};

use crate::{
    checks::{check_end, check_offset, check_size, unsupported},
    layout::{BIG, DENSE, Key, LITTLE, RAW, ZSTD, dtype_of, named},
};

/// The validated contents of an index.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) entries: Vec<Entry>,
    /// The details of each entry, in the order of `entries`.
    pub(crate) details: Vec<Details>,
    names: NameTable,
}

/// The values of an entry for which [`Entry`] has no field.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub(crate) fields: Fields,
    pub(crate) layout: StoredLayout,
    /// The declared byte order, if any: true for big-endian.
    pub(crate) says_big: Option<bool>,
}

/// The key `layout`, which the reference implementation requires but the specification does not define (Z1).
#[derive(Clone, Debug, Default)]
pub(crate) enum StoredLayout {
    #[default]
    Absent,
    Dense,
    Other(CborValue),
}

/// Minimum size of an entry in bytes: the keys alone take 37.
const SMALLEST_ENTRY: usize = 46;

impl Index {
    /// Parses and validates the index at byte `start` of a file.
    pub(crate) fn parse(bytes: &[u8], start: u64, options: &ReadOptions) -> Result<Self, Error> {
        Self::proven(bytes, start, options).map_err(named)
    }

    fn proven(bytes: &[u8], start: u64, options: &ReadOptions) -> Result<Self, Error> {
        let mut index = Self::default();
        // Only a lenient reader parses an empty index (Z11).
        if bytes.is_empty() {
            return Ok(index);
        }
        let mut items = Items::new(bytes, start);
        let count = match items.header("the index")? {
            Header::Array(count) => count,
            other => return Err(wrong_type("the index", start, "an array", &other).rule("Z23")),
        };
        items.check_count(count.unwrap_or(0), 1, "the index")?;
        let bound = count.unwrap_or(usize::MAX).min(bytes.len() / SMALLEST_ENTRY);
        let bound = bound.min(usize::try_from(options.limits.tensors).unwrap_or(bound));
        make_room(&mut index.entries, bound)?;
        make_room(&mut index.details, bound)?;
        index.names = NameTable::with_capacity(bound);
        let mut rest = count;
        let mut draft = Draft::default();
        while rest != Some(0) {
            let at = items.position();
            let header = items.header("an entry of the index")?;
            if rest.is_none() && header == Header::Break {
                break;
            }
            let Header::Map(keys) = header else {
                return Err(wrong_type("an entry of the index", at, "a map", &header).rule("Z23"));
            };
            if index.entries.len() as u64 >= options.limits.tensors {
                let error = Error::new(ErrorKind::TooLarge, "the number of tensors").at(at);
                return Err(error
                    .expected(format_args!("at most {}, the limit", options.limits.tensors))
                    .rule("Z12"));
            }
            draft.read(&mut items, keys, at, &options.limits)?;
            index.add(&mut draft, start, options)?;
            rest = rest.map(|rest| rest - 1);
        }
        if !items.is_empty() {
            let error = Error::new(ErrorKind::Malformed, "the index").at(items.position());
            return Err(error
                .expected("its end")
                .found("bytes after the array")
                .rule("Z13"));
        }
        if !options.lenient {
            index.check_overlaps()?;
        }
        Ok(index)
    }

    /// Validates a parsed entry and adds it to the index; moves its values out of `draft`.
    fn add(&mut self, draft: &mut Draft<'_>, index_start: u64, options: &ReadOptions) -> Result<(), Error> {
        let at = draft.at;
        let finished = draft.finish(self, index_start, options);
        finished.map_err(|error| draft.about_this(error))?;
        // The limit on tensors is below 2^32, unless the caller raised it beyond any available memory.
        let last = self.entries.len() - 1;
        let number = u32::try_from(last)
            .map_err(|_| Error::new(ErrorKind::TooLarge, "the number of tensors").rule("Z12"))?;
        let name_of = |number: u32| &*self.entries[number as usize].name;
        let name = &*self.entries[last].name;
        let inserted = self.names.insert(number, name, name_of);
        if let Err(first) = inserted
            && !options.lenient
        {
            let error = Error::new(ErrorKind::Duplicate, "the name").of_tensor(name);
            return Err(error
                .at(at)
                .expected("a unique name")
                .found(format_args!("that of tensor {first} too"))
                .rule("Z9"));
        }
        Ok(())
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.names.find_entry(name, &self.entries)
    }

    fn check_overlaps(&self) -> Result<(), Error> {
        let mut ranges = Vec::new();
        make_room(&mut ranges, self.entries.len())?;
        ranges.extend(self.entries.iter().map(|entry| entry.range.clone()));
        check_overlaps(&ranges).map_err(|error| error.rule("Z10"))
    }
}

/// Reserves memory for `count` more items. Fails if memory is exhausted.
fn make_room<T>(list: &mut Vec<T>, count: usize) -> Result<(), Error> {
    reserve(list, count as u64).map_err(|error| error.rule("Z12"))
}

/// Stores `value` in `slot`; returns whether `slot` was empty.
fn set<T>(slot: &mut Option<T>, value: T) -> bool {
    slot.replace(value).is_none()
}

/// A partially parsed entry: values with their positions in the file.
#[derive(Default)]
struct Draft<'a> {
    /// Position of the entry in the file.
    at: u64,
    name: Option<(u64, Cow<'a, str>)>,
    offset: Option<(u64, u64)>,
    size: Option<(u64, u64)>,
    dtype: Option<(u64, Cow<'a, str>)>,
    shape: Option<(u64, Shape)>,
    encoding: Option<(u64, Cow<'a, str>)>,
    layout: Option<&'a [u8]>,
    endianness: Option<(u64, Cow<'a, str>)>,
    checksum: Option<Cow<'a, str>>,
    custom: FieldsBuilder,
}

impl<'a> Draft<'a> {
    /// Parses an entry of `keys` pairs, or up to a break.
    fn read(
        &mut self,
        items: &mut Items<'a>,
        keys: Option<usize>,
        at: u64,
        limits: &Limits,
    ) -> Result<(), Error> {
        items.check_count(keys.unwrap_or(0), 2, "an entry")?;
        *self = Self {
            at,
            ..Self::default()
        };
        let mut rest = keys;
        while rest != Some(0) {
            let at = items.position();
            if let Some(key) = items.short_text(Key::of) {
                let read = self.value(items, key, at, limits);
                read.map_err(|error| self.about_this(error))?;
            } else {
                let key = match items.header("a key")? {
                    Header::Break if rest.is_none() => break,
                    Header::Text(len) => items.text_of(len, "a key")?,
                    other => return Err(wrong_type("a key of an entry", at, "a text", &other).rule("Z23")),
                };
                let read = match Key::of(key.as_bytes()) {
                    Some(key) => self.value(items, key, at, limits),
                    None => self.custom(items, &key, limits),
                };
                read.map_err(|error| self.about_this(error))?;
            }
            rest = rest.map(|rest| rest - 1);
        }
        Ok(())
    }

    /// Adds the tensor's name to an error, if the name has been parsed.
    #[cold]
    fn about_this(&self, error: Error) -> Error {
        match &self.name {
            Some((_, name)) => error.of_tensor(name),
            None => error,
        }
    }

    fn value(&mut self, items: &mut Items<'a>, key: Key, key_at: u64, limits: &Limits) -> Result<(), Error> {
        let at = items.position();
        let what = key.name();
        let is_new = match key {
            Key::Name => set(&mut self.name, (at, items.text(what)?)),
            Key::Offset => set(&mut self.offset, (at, items.unsigned(what)?)),
            Key::Size => set(&mut self.size, (at, items.unsigned(what)?)),
            Key::Dtype => set(&mut self.dtype, (at, items.text(what)?)),
            Key::Layout => set(&mut self.layout, items.skip(limits.depth, what)?),
            Key::Shape => set(&mut self.shape, (at, items.shape(limits)?)),
            Key::Encoding => set(&mut self.encoding, (at, items.text(what)?)),
            Key::Endianness => set(&mut self.endianness, (at, items.text(what)?)),
            Key::Checksum => set(&mut self.checksum, items.text(what)?),
        };
        if is_new {
            return Ok(());
        }
        Err(twice(what).at(key_at))
    }

    fn custom(&mut self, items: &mut Items<'a>, key: &str, limits: &Limits) -> Result<(), Error> {
        let at = items.position();
        let value = items.skip(limits.depth, "the value of a custom field")?;
        if self.custom.len() as u64 >= limits.fields {
            let error = Error::new(ErrorKind::TooLarge, "the number of custom fields").at(at);
            return Err(error
                .expected(format_args!("at most {}, the limit", limits.fields))
                .rule("Z12"));
        }
        self.custom.push(key, value);
        Ok(())
    }

    /// Validates the entry and appends it to the index.
    fn finish(&mut self, index: &mut Index, index_start: u64, options: &ReadOptions) -> Result<(), Error> {
        let missing = |at: u64, key: Key| {
            let error = Error::new(
                ErrorKind::Malformed,
                format!("the key '{}' is missing", key.name()),
            );
            error.at(at).rule("Z23")
        };
        let at = self.at;
        let (name_at, name) = self.name.as_ref().ok_or_else(|| missing(at, Key::Name))?;
        let (offset_at, offset) = self.offset.ok_or_else(|| missing(at, Key::Offset))?;
        let (size_at, size) = self.size.ok_or_else(|| missing(at, Key::Size))?;
        let (_, dtype_name) = self.dtype.take().ok_or_else(|| missing(at, Key::Dtype))?;
        let (shape_at, shape) = self.shape.take().ok_or_else(|| missing(at, Key::Shape))?;
        let (_, encoding_name) = self.encoding.take().ok_or_else(|| missing(at, Key::Encoding))?;

        check_name(name, options).map_err(|error| error.at(*name_at).rule("Z24"))?;
        check_offset(offset, size).map_err(|error| error.at(offset_at))?;
        let end = check_end(offset, size, index_start).map_err(|error| error.at(size_at))?;
        let dtype = dtype_of(&dtype_name);
        let encoding = match &*encoding_name {
            RAW => Encoding::Raw,
            ZSTD => Encoding::Zstd,
            _ => Encoding::Unknown(encoding_name.into_owned()),
        };
        let layout = StoredLayout::read(self.layout);
        let says_big = self.says_big()?;
        if let Some(dtype) = dtype
            && !matches!(layout, StoredLayout::Other(_))
        {
            check_size(dtype, &shape, &encoding, size)
                .map_err(|(error, is_about_size)| error.at(if is_about_size { size_at } else { shape_at }))?;
        }

        let is_big = dtype.is_some_and(|dtype| dtype.size() > 1) && says_big == Some(true);
        let fields = std::mem::take(&mut self.custom).finish();
        let fields = fields.map_err(|DuplicateKey(key)| twice(&key).at(at))?;
        let dtype = match dtype {
            Some(dtype) => StoredDType::Known(dtype),
            None => StoredDType::Unknown(dtype_name.into_owned()),
        };
        let name = self.name.take().map(|(_, name)| name.into_owned());
        let mut entry = Entry::new(name.unwrap_or_default(), dtype, shape, offset..end);
        if let StoredLayout::Other(value) = &layout {
            let name = value.as_text().unwrap_or_else(|| value.to_string());
            entry.layout = Layout::Unknown(name);
        }
        entry.is_big_endian = encoding == Encoding::Raw && is_big;
        entry.encoding = encoding;
        entry.checksum = self.checksum.take().map(Cow::into_owned);
        entry.attributes = fields.attributes();
        entry.unsupported = unsupported(&entry, is_big);
        index.entries.push(entry);
        index.details.push(Details {
            fields,
            layout,
            says_big,
        });
        Ok(())
    }

    fn says_big(&self) -> Result<Option<bool>, Error> {
        match &self.endianness {
            None => Ok(None),
            Some((_, text)) if text == LITTLE => Ok(Some(false)),
            Some((_, text)) if text == BIG => Ok(Some(true)),
            Some((at, text)) => {
                let error = Error::new(ErrorKind::Malformed, "data_endianness").at(*at);
                Err(error
                    .expected("'little' or 'big'")
                    .found(QuotedName(text))
                    .rule("Z8"))
            }
        }
    }
}

impl StoredLayout {
    fn read(value: Option<&[u8]>) -> Self {
        let Some(bytes) = value else {
            return Self::Absent;
        };
        if bytes == b"\x65dense" {
            return Self::Dense;
        }
        let value = CborValue::from_skipped(bytes);
        match value.as_text() {
            Some(text) if text == DENSE => Self::Dense,
            _ => Self::Other(value),
        }
    }
}

#[cold]
fn twice(key: &str) -> Error {
    let what = format!("the key {} occurs twice in one entry", QuotedName(key));
    Error::new(ErrorKind::Malformed, what).rule("Z9")
}
