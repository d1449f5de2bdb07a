//! Custom fields of tensors.

use std::borrow::Cow;

use fmt_cbor::CborValue;
use fmt_core::{Error, ErrorKind};

use crate::layout::Key;

/// A field of a tensor's entry that the specification does not define: a key and any CBOR value.
///
/// ```
/// use fmt_ztensor::{CborValue, CustomField};
///
/// let field = CustomField::new("quantised", CborValue::from(true))?;
/// assert_eq!((field.key(), field.value().to_string()), ("quantised", "true".to_owned()));
/// // Keys of the specification are not custom.
/// assert!(CustomField::new("offset", CborValue::from(64)).is_err());
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomField {
    key: String,
    value: CborValue,
}

impl CustomField {
    /// Creates a custom field with this key and value.
    ///
    /// # Errors
    /// [`ErrorKind::Duplicate`] for the keys of the format itself, including `layout` (Z1).
    pub fn new(key: impl Into<String>, value: CborValue) -> Result<Self, Error> {
        let key = key.into();
        if Key::of(key.as_bytes()).is_some() {
            let what = format!("the key of the custom field {}", tensor_core::QuotedName(&key));
            return Err(Error::new(ErrorKind::Duplicate, what)
                .expected("a key that the format does not use itself")
                .rule("Z9"));
        }
        Ok(Self { key, value })
    }

    /// Creates a field from an index whose keys the reader has checked.
    pub(crate) fn of_file((key, value): (Cow<'_, str>, CborValue)) -> Self {
        let key = key.into_owned();
        Self { key, value }
    }

    /// Returns the key, which the specification does not define.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the value, any CBOR item.
    #[must_use]
    pub fn value(&self) -> &CborValue {
        &self.value
    }
}
