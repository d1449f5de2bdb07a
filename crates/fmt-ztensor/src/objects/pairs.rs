//! Maps of CBOR with keys of text, and what may be wrong with them (O3, O4).

use std::borrow::Cow;

use ciborium_ll::Header;
use fmt_core::{Error, ErrorKind};
use tensor_core::Quoted;

use crate::cbor::{Items, describe};

/// The pairs of a map with keys of text.
pub(super) struct Pairs {
    rest: Option<usize>,
    what: &'static str,
    /// Where the last key stands.
    pub(super) at: u64,
}

impl Pairs {
    pub(super) fn begin(items: &mut Items<'_>, what: &'static str) -> Result<Self, Error> {
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

    /// The next key, after whose value the one behind may be asked for.
    pub(super) fn next<'a>(&mut self, items: &mut Items<'a>) -> Result<Option<Cow<'a, str>>, Error> {
        if self.rest == Some(0) {
            return Ok(None);
        }
        self.at = items.position();
        let key = match items.header("a key")? {
            Header::Break if self.rest.is_none() => {
                self.rest = Some(0);
                return Ok(None);
            }
            Header::Text(len) => items.text(len, "a key")?,
            other => {
                let what = format!("a key of {}", self.what);
                return Err(wrong_type(&what, self.at, "a text", &other));
            }
        };
        self.rest = self.rest.map(|rest| rest - 1);
        Ok(Some(key))
    }
}

pub(super) fn text<'a>(items: &mut Items<'a>, what: &str) -> Result<Cow<'a, str>, Error> {
    let at = items.position();
    match items.header(what)? {
        Header::Text(len) => items.text(len, what),
        other => Err(wrong_type(what, at, "a text", &other)),
    }
}

pub(super) fn unsigned(items: &mut Items<'_>, what: &str) -> Result<u64, Error> {
    let at = items.position();
    match items.header(what)? {
        Header::Positive(number) => Ok(number),
        other => Err(wrong_type(what, at, "an unsigned integer", &other)),
    }
}

#[cold]
pub(super) fn twice(key: &str) -> Error {
    let what = format!("the key {} stands twice in one map", Quoted(key));
    Error::new(ErrorKind::Malformed, what).rule("O3")
}

#[cold]
pub(super) fn missing(key: &str, of: &str) -> Error {
    Error::new(ErrorKind::Malformed, format!("{of} has no '{key}'")).rule("O4")
}

#[cold]
pub(super) fn wrong_type(what: &str, at: u64, expected: &str, found: &Header) -> Error {
    let error = Error::new(ErrorKind::Malformed, what).at(at).rule("O4");
    error.expected(expected).found(describe(found))
}

#[cold]
pub(super) fn bad_digest(text: &str, expected: &str) -> Error {
    let error = Error::new(ErrorKind::Malformed, "the digest").rule("O13");
    error.expected(expected).found(Quoted(text))
}
