//! Maps with text keys that stay encoded as concatenated keys and values, and are decoded on request.

use std::{borrow::Cow, collections::BTreeMap};

use ciborium_ll::Header;
use fmt_core::Attributes;
use tensor_core::Bytes;

use crate::{
    items::Items,
    value::{CborValue, push_head},
};

/// A map with text keys, such as the custom fields of one tensor. An empty map takes only the memory of a
/// pointer.
///
/// ```
/// use fmt_cbor::{CborValue, Fields};
///
/// let fields: Fields = [("unit", CborValue::from("m/s")), ("scale", CborValue::from(2))].into_iter().collect();
/// let (fields, old) = fields.with("scale", Some(&CborValue::from(3)));
/// assert_eq!(old, Some(CborValue::from(2)));
/// assert_eq!(fields.to_map()["scale"], "3");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fields(Option<Box<EncodedPairs>>);

#[derive(Clone, Debug)]
struct EncodedPairs {
    /// Keys and values as concatenated CBOR.
    pairs: Bytes,
    count: usize,
}

impl Fields {
    /// Returns the number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |encoded| encoded.count)
    }

    /// Returns whether there are no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the encoded pairs, without the header of the map.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |encoded| &encoded.pairs)
    }

    /// Decodes the fields, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'_, str>, CborValue)> {
        pairs(self.as_bytes()).map(|(key, value)| (key, CborValue::from_skipped(value)))
    }

    /// Returns the fields as attributes, which are decoded on request.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        let pairs = self.0.as_ref().map(|encoded| encoded.pairs.clone());
        Attributes::encoded(pairs.unwrap_or_default(), to_map)
    }

    /// Returns the fields as strings: text unchanged, all other values in diagnostic notation.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        to_map(self.as_bytes())
    }

    /// Returns the fields with the value of the field `wanted` set, or with the field removed if `value` is
    /// `None`; also returns the old value. A changed field keeps its position, and a new field is appended.
    #[must_use]
    pub fn with(&self, wanted: &str, value: Option<&CborValue>) -> (Self, Option<CborValue>) {
        let mut fields = FieldsBuilder::default();
        let mut old = None;
        for (key, found) in pairs(self.as_bytes()) {
            if key != wanted {
                fields.push(&key, found);
                continue;
            }
            old = Some(CborValue::from_skipped(found));
            if let Some(value) = value {
                fields.push(&key, value.as_bytes());
            }
        }
        if let (Some(value), None) = (value, &old) {
            fields.push(wanted, value.as_bytes());
        }
        (fields.unchecked(), old)
    }
}

/// Collects fields, whose keys must be distinct.
impl<K: AsRef<str>> FromIterator<(K, CborValue)> for Fields {
    fn from_iter<I: IntoIterator<Item = (K, CborValue)>>(list: I) -> Self {
        let mut fields = FieldsBuilder::default();
        for (key, value) in list {
            fields.push(key.as_ref(), value.as_bytes());
        }
        fields.unchecked()
    }
}

/// Collects fields while they are read.
///
/// ```
/// use fmt_cbor::FieldsBuilder;
///
/// let mut fields = FieldsBuilder::default();
/// fields.push("a", b"\x01");
/// fields.push("a", b"\x02");
/// assert_eq!(fields.finish().unwrap_err().0, "a");
/// ```
#[derive(Debug, Default)]
pub struct FieldsBuilder {
    pairs: Vec<u8>,
    /// The position in `pairs` where each pair starts.
    starts: Vec<usize>,
}

impl FieldsBuilder {
    /// Returns the number of fields so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns whether there are no fields yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Adds a key and its value, which must be one well-formed CBOR item ([`Items::skip`]).
    pub fn push(&mut self, key: &str, value: &[u8]) {
        self.starts.push(self.pairs.len());
        push_head(&mut self.pairs, Header::Text(Some(key.len())));
        self.pairs.extend_from_slice(key.as_bytes());
        self.pairs.extend_from_slice(value);
    }

    /// Returns the collected fields.
    ///
    /// # Errors
    /// If a key occurs twice.
    pub fn finish(mut self) -> Result<Fields, DuplicateKey> {
        let pairs = &self.pairs;
        let key = |start: usize| key(&mut Items::new(&pairs[start..], 0));
        self.starts.sort_unstable_by(|a, b| key(*a).cmp(&key(*b)));
        let same = self.starts.windows(2).find(|pair| key(pair[0]) == key(pair[1]));
        match same {
            Some(pair) => Err(DuplicateKey(key(pair[0]).into_owned())),
            None => Ok(self.unchecked()),
        }
    }

    fn unchecked(self) -> Fields {
        if self.starts.is_empty() {
            return Fields::default();
        }
        Fields(Some(Box::new(EncodedPairs {
            count: self.starts.len(),
            // The box has no spare capacity, because a file may have many maps.
            pairs: self.pairs.into_boxed_slice().into(),
        })))
    }
}

/// A key that occurs twice.
#[derive(Debug)]
pub struct DuplicateKey(pub String);

/// Iterates over keys and values; the caller has validated `bytes`.
fn pairs(bytes: &[u8]) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
    let mut items = Items::new(bytes, 0);
    std::iter::from_fn(move || {
        if items.is_empty() {
            return None;
        }
        let key = key(&mut items);
        let value = items.skip(u64::MAX, "a value").ok()?;
        Some((key, value))
    })
}

fn key<'a>(items: &mut Items<'a>) -> Cow<'a, str> {
    match items.header("a key") {
        Ok(Header::Text(len)) => items.text_of(len, "a key").unwrap_or_default(),
        _ => Cow::default(),
    }
}

/// Returns fields as strings: text unchanged, all other values in diagnostic notation.
fn to_map(bytes: &[u8]) -> BTreeMap<String, String> {
    let show = |value: CborValue| value.as_text().unwrap_or_else(|| value.to_string());
    pairs(bytes)
        .map(|(key, value)| (key.into_owned(), show(CborValue::from_skipped(value))))
        .collect()
}
