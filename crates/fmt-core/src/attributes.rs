//! Attributes of tensors, decoded on demand.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;

/// Format-specific attributes of a tensor, as strings by key.
///
/// Attributes stay encoded until they are requested, so a hostile index with many small attributes takes no
/// more memory than its bytes.
///
/// ```
/// use bytes::Bytes;
/// use fmt_core::Attributes;
///
/// let attributes = Attributes::encoded(Bytes::from_static(b"unit=m"), |bytes| {
///     let text = String::from_utf8_lossy(bytes);
///     let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
///     pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
/// });
/// assert_eq!(attributes.to_map()["unit"], "m");
/// assert!(Attributes::default().is_empty());
/// ```
#[derive(Clone, Default)]
pub struct Attributes(Option<Box<Inner>>);

#[derive(Clone)]
enum Inner {
    Map(BTreeMap<String, String>),
    Encoded {
        bytes: Bytes,
        decode: fn(&[u8]) -> BTreeMap<String, String>,
    },
}

impl Attributes {
    /// Creates attributes from their encoded bytes and a function that decodes them. Empty bytes mean no
    /// attributes.
    #[must_use]
    pub fn encoded(bytes: Bytes, decode: fn(&[u8]) -> BTreeMap<String, String>) -> Self {
        Self((!bytes.is_empty()).then(|| Box::new(Inner::Encoded { bytes, decode })))
    }

    /// Returns whether there are no attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Decodes all attributes.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        match self.0.as_deref() {
            None => BTreeMap::new(),
            Some(Inner::Map(map)) => map.clone(),
            Some(Inner::Encoded { bytes, decode }) => decode(bytes),
        }
    }
}

/// Wraps a map of decoded attributes, for readers whose tensors have few attributes.
impl From<BTreeMap<String, String>> for Attributes {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self((!map.is_empty()).then(|| Box::new(Inner::Map(map))))
    }
}

impl PartialEq for Attributes {
    fn eq(&self, other: &Self) -> bool {
        self.to_map() == other.to_map()
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_map().fmt(f)
    }
}
