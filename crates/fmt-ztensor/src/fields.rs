//! Custom fields as they stand in an index: keys and values one behind the other, taken apart when they are asked for.

use std::{borrow::Cow, collections::BTreeMap};

use ciborium_ll::Header;
use fmt_core::Attributes;
use tensor_core::Bytes;

use crate::{
    cbor::Items,
    value::{CborValue, CustomField, push},
};

/// The custom fields of one tensor, or of a file. Most have none, which takes no more than a pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Option<Box<Encoded>>);

#[derive(Clone, Debug)]
struct Encoded {
    /// Keys and values as CBOR, one behind the other.
    pairs: Bytes,
    count: usize,
}

impl Fields {
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |encoded| encoded.count)
    }

    /// As they are written: pairs of a map without its head.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |encoded| &encoded.pairs)
    }

    pub(crate) fn to_vec(&self) -> Vec<CustomField> {
        let field = |(key, value): (Cow<'_, str>, &[u8])| {
            CustomField::new_unchecked(key.into_owned(), CborValue::new_unchecked(value))
        };
        pairs(self.as_bytes()).map(field).collect()
    }

    pub(crate) fn attributes(&self) -> Attributes {
        let pairs = self.0.as_ref().map(|encoded| encoded.pairs.clone());
        Attributes::encoded(pairs.unwrap_or_default(), to_map)
    }

    pub(crate) fn to_map(&self) -> BTreeMap<String, String> {
        to_map(self.as_bytes())
    }

    /// With a field in its place, or behind the others; without it where there is no value. Also what was there before.
    pub(crate) fn with(&self, wanted: &str, value: Option<&CborValue>) -> (Self, Option<CborValue>) {
        let mut fields = FieldsBuilder::default();
        let mut old = None;
        for (key, found) in pairs(self.as_bytes()) {
            if key != wanted {
                fields.push(&key, found);
                continue;
            }
            old = Some(CborValue::new_unchecked(found));
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

impl FromIterator<CustomField> for Fields {
    fn from_iter<I: IntoIterator<Item = CustomField>>(list: I) -> Self {
        let mut fields = FieldsBuilder::default();
        for field in list {
            fields.push(field.key(), field.value().as_bytes());
        }
        fields.unchecked()
    }
}

/// Fields that are being gathered.
#[derive(Debug, Default)]
pub(crate) struct FieldsBuilder {
    pairs: Vec<u8>,
    /// Where each pair begins.
    starts: Vec<usize>,
}

impl FieldsBuilder {
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Takes over a key and a value that is one item of CBOR.
    pub(crate) fn push(&mut self, key: &str, value: &[u8]) {
        self.starts.push(self.pairs.len());
        push(&mut self.pairs, Header::Text(Some(key.len())));
        self.pairs.extend_from_slice(key.as_bytes());
        self.pairs.extend_from_slice(value);
    }

    /// Fails with a key that stands twice.
    pub(crate) fn finish(mut self) -> Result<Fields, DuplicateKey> {
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
        Fields(Some(Box::new(Encoded {
            count: self.starts.len(),
            // No more room than is taken: there may be many.
            pairs: self.pairs.into_boxed_slice().into(),
        })))
    }
}

/// A key that stands twice.
#[derive(Debug)]
pub(crate) struct DuplicateKey(pub(crate) String);

/// What has been walked over before, so that nothing is wrong with it.
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
        Ok(Header::Text(len)) => items.text(len, "a key").unwrap_or_default(),
        _ => Cow::default(),
    }
}

/// Texts as they are, anything else in diagnostic notation.
fn to_map(bytes: &[u8]) -> BTreeMap<String, String> {
    let show = |value: CborValue| value.as_text().unwrap_or_else(|| value.to_string());
    pairs(bytes)
        .map(|(key, value)| (key.into_owned(), show(CborValue::new_unchecked(value))))
        .collect()
}
