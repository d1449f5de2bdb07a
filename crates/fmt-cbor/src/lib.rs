//! CBOR (RFC 8949) from untrusted bytes: a pull reader, values that stay encoded, and maps of them.
//!
//! | | |
//! |---|---|
//! | [`Items`] | a pull reader over bytes: it borrows text, checks counts against the bytes left, does not recurse, and skips items without allocating |
//! | [`CborValue`] | one item, kept byte for byte: integer widths, tags and key order are preserved; it prints diagnostic notation and converts to and from `ciborium::Value` |
//! | [`Fields`], [`FieldsBuilder`] | maps with text keys, kept encoded |
//! | [`Header`], [`push_head`] | item headers, for writing |
//!
//! Errors have the type of `fmt-core`, and contain the item, its position in the file, and the expected and
//! found values. A length or a count never leads to an allocation larger than the input.
//!
//! ```
//! use fmt_cbor::{CborValue, Header, Items};
//!
//! # fn main() -> Result<(), fmt_core::Error> {
//! let encoded = b"\xa1\x65scale\xf9\x38\x00"; // {"scale": 0.5}
//! let mut items = Items::new(encoded, 0);
//! assert_eq!(items.header("the map")?, Header::Map(Some(1)));
//! let key = items.text("a key")?;
//! let value = CborValue::from_cbor(items.skip(32, "the value")?)?;
//! assert_eq!((&*key, value.as_f64()), ("scale", Some(0.5)));
//!
//! let cut_off = Items::new(&encoded[..4], 0).skip(32, "the map").unwrap_err();
//! assert_eq!(cut_off.to_string(), "the map is truncated, at byte 2: expected 5 bytes, found 2");
//! # Ok(())
//! # }
//! ```
//!
//! [`Error::broken_rule`](fmt_core::Error::broken_rule) is [`WELL_FORMED`], [`TYPES`], [`LIMITS`] or
//! [`SHAPES`]; a format renames these to its own rules with
//! [`Error::rename_rule`](fmt_core::Error::rename_rule).
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

mod fields;
mod items;
mod rules;
#[cfg(feature = "testing")]
pub mod testing;
mod value;

pub use ciborium_ll::Header;

pub use fields::{DuplicateKey, Fields, FieldsBuilder};
pub use items::{Items, wrong_type};
pub use rules::{LIMITS, SHAPES, TYPES, WELL_FORMED};
pub use value::{CborValue, push_head};
