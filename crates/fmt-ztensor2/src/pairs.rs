//! Reads CBOR maps with text keys, and checks their rules (O3, O4).

use std::borrow::Cow;

use fmt_cbor::{Header, Items, wrong_type};
use fmt_core::{Error, ErrorKind};
use tensor_core::QuotedName;

/// The pairs of a map with text keys, read one by one.
pub(crate) struct Pairs {
    rest: Option<usize>,
    what: &'static str,
    /// The position in the file of the last key that was read.
    pub(crate) at: u64,
}

impl Pairs {
    pub(crate) fn begin(items: &mut Items<'_>, what: &'static str) -> Result<Self, Error> {
        let at = items.position();
        match items.header(what)? {
            Header::Map(count) => {
                items.check_count(count.unwrap_or(0), 2, what)?;
                Ok(Self {
                    rest: count,
                    what,
                    at,
                })
            }
            other => Err(wrong_type(what, at, "a map", &other)),
        }
    }

    /// Returns the next key. Its value must be read before the following key.
    pub(crate) fn next<'a>(&mut self, items: &mut Items<'a>) -> Result<Option<Cow<'a, str>>, Error> {
        if self.rest == Some(0) {
            return Ok(None);
        }
        self.at = items.position();
        let key = match items.header("a key")? {
            Header::Break if self.rest.is_none() => {
                self.rest = Some(0);
                return Ok(None);
            }
            Header::Text(len) => items.text_of(len, "a key")?,
            other => {
                let what = format!("a key of {}", self.what);
                return Err(wrong_type(&what, self.at, "a text", &other));
            }
        };
        self.rest = self.rest.map(|rest| rest - 1);
        Ok(Some(key))
    }
}

#[cold]
pub(crate) fn twice(key: &str) -> Error {
    let what = format!("the key {} occurs twice in one map", QuotedName(key));
    Error::new(ErrorKind::Malformed, what).rule("O3")
}

#[cold]
pub(crate) fn missing(key: &str, of: &str) -> Error {
    Error::new(ErrorKind::Malformed, format!("{of} has no '{key}'")).rule("O4")
}

#[cold]
pub(crate) fn bad_digest(text: &str, expected: &str) -> Error {
    let error = Error::new(ErrorKind::Malformed, "the digest").rule("O13");
    error.expected(expected).found(QuotedName(text))
}
