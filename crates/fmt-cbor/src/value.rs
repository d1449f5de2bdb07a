//! CBOR values that stay in their encoded form.

use std::fmt::{self, Write};

use ciborium_ll::{Encoder, Header};
use fmt_core::{Error, ErrorKind};

use crate::{
    items::{Event, Items, Nesting, walk},
    rules::WELL_FORMED,
};

/// One CBOR item, kept in its exact encoding.
///
/// Copying between files loses nothing: widths of integers and floats, tags and the order of keys are kept.
/// Accessors cover the common types; for other types, pass [`CborValue::as_bytes`] to a CBOR crate.
/// [`fmt::Display`] prints the diagnostic notation of RFC 8949, section 8.
///
/// ```
/// use fmt_cbor::CborValue;
///
/// assert_eq!(CborValue::from("int4").as_text().as_deref(), Some("int4"));
/// assert_eq!(CborValue::from(128).as_u64(), Some(128));
/// // {"scale": 0.5, "zero points": [1, -2]}
/// let value = CborValue::from_cbor(b"\xa2\x65scale\xf9\x38\x00\x6bzero points\x82\x01\x21")?;
/// assert_eq!(value.to_string(), r#"{"scale": 0.5, "zero points": [1, -2]}"#);
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CborValue(Box<[u8]>);

impl CborValue {
    /// Maximum nesting depth of items.
    pub const MAX_DEPTH: u64 = 32;

    /// Creates a value from an encoded item.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] for anything but exactly one well-formed item that nests at most
    /// [`CborValue::MAX_DEPTH`] levels deep.
    pub fn from_cbor(bytes: impl AsRef<[u8]>) -> Result<Self, Error> {
        let bytes = bytes.as_ref();
        let mut items = Items::new(bytes, 0);
        items.skip(Self::MAX_DEPTH, "the value")?;
        if !items.is_empty() {
            let error = Error::new(ErrorKind::Malformed, "the value").at(items.position());
            return Err(error
                .expected("one item")
                .found("bytes after it")
                .rule(WELL_FORMED));
        }
        Ok(Self(bytes.into()))
    }

    /// Creates a value from the bytes returned by [`Items::skip`](crate::Items::skip), without validating
    /// them again.
    #[must_use]
    pub fn from_skipped(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    fn of(header: Header, body: &[u8]) -> Self {
        let mut bytes = Vec::new();
        push_head(&mut bytes, header);
        bytes.extend_from_slice(body);
        Self(bytes.into())
    }

    /// Returns the encoded item.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the value as a string, if it is a text string.
    #[must_use]
    pub fn as_text(&self) -> Option<String> {
        let mut items = Items::new(&self.0, 0);
        match items.header("the value") {
            Ok(Header::Text(len)) => items.text_of(len, "the value").ok().map(String::from),
            _ => None,
        }
    }

    /// Returns the value, if it is an unsigned integer.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match Items::new(&self.0, 0).header("the value") {
            Ok(Header::Positive(number)) => Some(number),
            _ => None,
        }
    }

    /// Returns the value as `f64`, if it is a float or an integer.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match Items::new(&self.0, 0).header("the value") {
            Ok(Header::Positive(number)) => Some(number as f64),
            Ok(Header::Negative(number)) => Some(-1.0 - number as f64),
            Ok(Header::Float(number)) => Some(number),
            _ => None,
        }
    }

    /// Returns the value, if it is a boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match *self.0 {
            [0xf4] => Some(false),
            [0xf5] => Some(true),
            _ => None,
        }
    }
}

impl From<&str> for CborValue {
    fn from(text: &str) -> Self {
        Self::of(Header::Text(Some(text.len())), text.as_bytes())
    }
}

impl From<u64> for CborValue {
    fn from(number: u64) -> Self {
        Self::of(Header::Positive(number), &[])
    }
}

impl From<f64> for CborValue {
    fn from(number: f64) -> Self {
        Self::of(Header::Float(number), &[])
    }
}

impl From<bool> for CborValue {
    fn from(truth: bool) -> Self {
        Self::of(Header::Simple(20 + u8::from(truth)), &[])
    }
}

impl From<&[u8]> for CborValue {
    fn from(bytes: &[u8]) -> Self {
        Self::of(Header::Bytes(Some(bytes.len())), bytes)
    }
}

/// Encodes a value of the crate `ciborium`, in the shortest form of each number.
///
/// ```
/// use ciborium::Value;
/// use fmt_cbor::CborValue;
///
/// let scales = Value::Array(vec![Value::Float(0.5), Value::Integer(2.into())]);
/// let field = CborValue::try_from(&scales)?;
/// assert_eq!(field.to_string(), "[0.5, 2]");
/// assert_eq!(Value::try_from(&field)?, scales);
/// # Ok::<(), fmt_core::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Malformed`] for a value that nests deeper than [`CborValue::MAX_DEPTH`].
impl TryFrom<&ciborium::Value> for CborValue {
    type Error = Error;

    fn try_from(value: &ciborium::Value) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        ciborium::into_writer(value, &mut bytes).map_err(|error| {
            let what = format!("the value cannot be encoded as CBOR: {error}");
            Error::new(ErrorKind::Malformed, what).rule(WELL_FORMED)
        })?;
        Self::from_cbor(bytes)
    }
}

/// Decodes to a value of the crate `ciborium`, which does not keep the widths of numbers, and whose only
/// simple values are booleans and null.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for items that `ciborium` cannot represent.
impl TryFrom<&CborValue> for ciborium::Value {
    type Error = Error;

    fn try_from(value: &CborValue) -> Result<Self, Error> {
        ciborium::from_reader(value.as_bytes()).map_err(|error| {
            let what = format!("the value {value} has no counterpart in ciborium: {error}");
            Error::new(ErrorKind::Unsupported, what).rule(WELL_FORMED)
        })
    }
}

/// Appends the header of an item, in its shortest form.
///
/// ```
/// let mut out = Vec::new();
/// fmt_cbor::push_head(&mut out, fmt_cbor::Header::Positive(500));
/// assert_eq!(out, [0x19, 0x01, 0xf4]);
/// ```
#[inline]
pub fn push_head(out: &mut Vec<u8>, header: Header) {
    // Fast path: nearly all headers of an index have one byte.
    let (major, number) = match header {
        Header::Positive(number) => (0, number),
        Header::Text(Some(len)) => (3, len as u64),
        Header::Array(Some(len)) => (4, len as u64),
        Header::Map(Some(len)) => (5, len as u64),
        _ => (0, u64::MAX),
    };
    if number < 24 {
        out.push(major << 5 | number as u8);
        return;
    }
    push_long(out, header);
}

#[inline(never)]
fn push_long(out: &mut Vec<u8>, header: Header) {
    // Headers take at most nine bytes, so writing cannot fail.
    let mut head = [0; 9];
    let mut rest = &mut head[..];
    let _ = Encoder::from(&mut rest).push(header);
    let len = 9 - rest.len();
    out.extend_from_slice(&head[..len]);
}

impl fmt::Display for CborValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = Ok(());
        let mut see = |event: Event<'_>| {
            if printed.is_ok() {
                printed = print(f, &event);
            }
        };
        // The constructor has validated the content, possibly with another limit on depth.
        if walk(&mut Items::new(&self.0, 0), u64::MAX, "the value", &mut see).is_err() {
            return Err(fmt::Error);
        }
        printed
    }
}

fn print(f: &mut fmt::Formatter<'_>, event: &Event<'_>) -> fmt::Result {
    match event {
        Event::Head(Header::Positive(number)) => write!(f, "{number}"),
        Event::Head(Header::Negative(number)) => write!(f, "{}", -1 - i128::from(*number)),
        Event::Head(Header::Float(number)) if number.is_nan() => f.write_str("NaN"),
        Event::Head(Header::Float(number)) if number.is_infinite() => {
            f.write_str(if *number > 0.0 { "Infinity" } else { "-Infinity" })
        }
        Event::Head(Header::Float(number)) => write!(f, "{number:?}"),
        Event::Head(Header::Simple(20)) => f.write_str("false"),
        Event::Head(Header::Simple(21)) => f.write_str("true"),
        Event::Head(Header::Simple(22)) => f.write_str("null"),
        Event::Head(Header::Simple(23)) => f.write_str("undefined"),
        Event::Head(Header::Simple(value)) => write!(f, "simple({value})"),
        Event::Head(Header::Tag(tag)) => write!(f, "{tag}("),
        Event::Head(Header::Array(_)) => f.write_char('['),
        Event::Head(Header::Map(_)) => f.write_char('{'),
        Event::Text(text) => write!(f, "{text:?}"),
        Event::Bytes(bytes) => {
            f.write_str("h'")?;
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
            f.write_char('\'')
        }
        Event::Next { was_key: true, .. } => f.write_str(": "),
        Event::Next { more: true, .. } => f.write_str(", "),
        Event::Next { .. } | Event::Head(_) => Ok(()),
        Event::End(Nesting::Array) => f.write_char(']'),
        Event::End(Nesting::Map) => f.write_char('}'),
        Event::End(Nesting::Tag) => f.write_char(')'),
    }
}

impl fmt::Debug for CborValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CborValue({self})")
    }
}
