//! Reads CBOR items from untrusted bytes.
//!
//! `ciborium-ll` decodes item headers. This file adds what reading hostile input requires: borrowed text,
//! counts that are checked against the bytes left, errors for headers that RFC 8949 forbids, and skipping
//! items without recursion.

use std::borrow::Cow;

use ciborium_ll::{Decoder, Header};
use fmt_core::{Error, ErrorKind, Limits};
use tensor_core::Shape;

use crate::rules::{LIMITS, SHAPES, TYPES, WELL_FORMED};

/// A pull reader over the remaining items of an encoded sequence.
///
/// Every method takes `what`, the name of the item in errors, which also contain its position in the file.
///
/// ```
/// use fmt_cbor::{Header, Items};
///
/// // {"a": [1, 2], "b": 7}, at byte 100 of a file.
/// let mut items = Items::new(b"\xa2\x61a\x82\x01\x02\x61b\x07", 100);
/// assert_eq!(items.header("the map")?, Header::Map(Some(2)));
/// assert_eq!(items.text("a key")?, "a");
/// assert_eq!(items.skip(32, "the value")?, b"\x82\x01\x02");
/// assert_eq!(items.text("a key")?, "b");
/// let error = items.text("b").unwrap_err();
/// assert_eq!(error.to_string(), "b, at byte 108: expected a text, found an unsigned integer");
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Items<'a> {
    rest: &'a [u8],
    /// The position in the file where the bytes end.
    end: u64,
}

impl<'a> Items<'a> {
    /// Creates a reader of `bytes`, which start at byte `position` of the file.
    #[must_use]
    pub fn new(bytes: &'a [u8], position: u64) -> Self {
        Self {
            rest: bytes,
            end: position + bytes.len() as u64,
        }
    }

    /// Returns the position of the next item in the file.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.end - self.rest.len() as u64
    }

    /// Returns whether all items were read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the header of the next item.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] for a header that is truncated, or that RFC 8949 forbids.
    #[inline]
    pub fn header(&mut self, what: &str) -> Result<Header, Error> {
        // Fast path: nearly all headers of an index have one or two bytes.
        let (number, rest) = match *self.rest {
            [first, ref rest @ ..] if first & 0x1f < 24 => (first & 0x1f, rest),
            [first, number, ref rest @ ..] if first & 0x1f == 24 => (number, rest),
            _ => return self.long_header(what),
        };
        let len = Some(usize::from(number));
        let header = match self.rest[0] >> 5 {
            0 => Header::Positive(number.into()),
            1 => Header::Negative(number.into()),
            2 => Header::Bytes(len),
            3 => Header::Text(len),
            4 => Header::Array(len),
            5 => Header::Map(len),
            _ => return self.long_header(what),
        };
        self.rest = rest;
        Ok(header)
    }

    #[inline(never)]
    fn long_header(&mut self, what: &str) -> Result<Header, Error> {
        let before = self.rest;
        match Decoder::from(&mut self.rest).pull() {
            Ok(Header::Simple(value)) if value < 32 && before[0] == 0xf8 => {
                Err(self.ill_formed(before, what, "a simple value below 32 in two bytes"))
            }
            Ok(header) => Ok(header),
            Err(ciborium_ll::Error::Io(_)) => Err(self.cut_off(before, what)),
            Err(ciborium_ll::Error::Syntax(_)) => {
                Err(self.ill_formed(before, what, format_args!("the head {:#04x}", before[0])))
            }
        }
    }

    #[cold]
    fn ill_formed(&self, before: &[u8], what: &str, found: impl std::fmt::Display) -> Error {
        malformed(what, self.end - before.len() as u64)
            .expected("a head that RFC 8949 allows here")
            .found(found)
    }

    #[cold]
    fn cut_off(&self, before: &[u8], what: &str) -> Error {
        let error = Error::new(ErrorKind::Malformed, format!("{what} is truncated")).rule(WELL_FORMED);
        error
            .at(self.end - before.len() as u64)
            .found(format_args!("{} bytes left of the index", before.len()))
    }

    /// Reads the next item if it is a text string of at most 23 bytes for which `meaning` returns a value;
    /// returns that value.
    #[inline]
    pub fn short_text<T>(&mut self, meaning: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let (first, rest) = self.rest.split_first()?;
        let len = usize::from(first.checked_sub(0x60).filter(|len| *len < 24)?);
        let (text, rest) = rest.split_at_checked(len)?;
        let found = meaning(text)?;
        self.rest = rest;
        Some(found)
    }

    /// Skips the next item if it is null; returns whether it was null.
    pub fn null(&mut self) -> bool {
        match self.rest {
            [0xf6, rest @ ..] => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], Error> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            let error = Error::new(ErrorKind::Malformed, format!("{what} is truncated")).rule(WELL_FORMED);
            return Err(error
                .at(self.position())
                .expected(format_args!("{len} bytes"))
                .found(self.rest.len()));
        };
        self.rest = rest;
        Ok(taken)
    }

    /// Checks that at least `count * per` bytes are left, since each of the `count` items takes at least
    /// `per` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`].
    pub fn check_count(&self, count: usize, per: usize, what: &str) -> Result<(), Error> {
        if count
            .checked_mul(per)
            .is_some_and(|least| least <= self.rest.len())
        {
            return Ok(());
        }
        let error =
            Error::new(ErrorKind::Malformed, format!("the number of items of {what}")).rule(WELL_FORMED);
        Err(error
            .at(self.position())
            .expected(format_args!(
                "as many as fit into the {} bytes left of the index",
                self.rest.len()
            ))
            .found(count))
    }

    /// Reads a text string.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] if the item is not a text string, or its UTF-8 is invalid.
    pub fn text(&mut self, what: &str) -> Result<Cow<'a, str>, Error> {
        let at = self.position();
        match self.header(what)? {
            Header::Text(len) => self.text_of(len, what),
            other => Err(wrong_type(what, at, "a text", &other)),
        }
    }

    /// Reads an unsigned integer.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] if the item is not an unsigned integer.
    pub fn unsigned(&mut self, what: &str) -> Result<u64, Error> {
        let at = self.position();
        match self.header(what)? {
            Header::Positive(number) => Ok(number),
            other => Err(wrong_type(what, at, "an unsigned integer", &other)),
        }
    }

    /// Reads an array of dimensions.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] if the item is not an array of integers, [`ErrorKind::TooLarge`] for more
    /// dimensions than the limit, and [`ErrorKind::Overflow`] when the number of elements overflows 64 bits.
    pub fn shape(&mut self, limits: &Limits) -> Result<Shape, Error> {
        const WHAT: &str = "shape";
        let at = self.position();
        let count = match self.header(WHAT)? {
            Header::Array(count) => count,
            other => return Err(wrong_type(WHAT, at, "an array", &other)),
        };
        self.check_count(count.unwrap_or(0), 1, WHAT)?;
        let limit = usize::try_from(limits.rank).map_or(Shape::MAX_RANK, |limit| limit.min(Shape::MAX_RANK));
        let mut dims = [0; Shape::MAX_RANK];
        let mut rank = 0;
        while count != Some(rank) {
            let dim_at = self.position();
            let dim = match self.header("a dimension")? {
                Header::Positive(dim) => dim,
                Header::Break if count.is_none() => break,
                other => return Err(wrong_type("a dimension", dim_at, "an unsigned integer", &other)),
            };
            if rank >= limit {
                let error = Error::new(ErrorKind::TooLarge, "the number of dimensions").at(at);
                return Err(error
                    .expected(format_args!("at most {limit}, the limit"))
                    .rule(LIMITS));
            }
            dims[rank] = dim;
            rank += 1;
        }
        Shape::new(&dims[..rank]).map_err(|error| Error::of_spec(&error).rule(SHAPES).at(at))
    }

    /// Reads the bytes of a text string after its header; `len` is the declared length, if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] for truncated text or invalid UTF-8.
    pub fn text_of(&mut self, len: Option<usize>, what: &str) -> Result<Cow<'a, str>, Error> {
        if let Some(len) = len {
            return self.chunk(len, what).map(Cow::Borrowed);
        }
        let mut text = String::new();
        loop {
            let at = self.position();
            match self.header(what)? {
                Header::Text(Some(len)) => text.push_str(self.chunk(len, what)?),
                Header::Break => return Ok(Cow::Owned(text)),
                other => return Err(wrong_chunk(what, at, "text", &other)),
            }
        }
    }

    fn chunk(&mut self, len: usize, what: &str) -> Result<&'a str, Error> {
        let at = self.position();
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|error| {
            malformed(what, at + error.valid_up_to() as u64)
                .expected("UTF-8")
                .found("other bytes")
        })
    }

    /// Skips the next item, nested at most `depth` levels deep, and returns its bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`].
    pub fn skip(&mut self, depth: u64, what: &str) -> Result<&'a [u8], Error> {
        let start = self.rest;
        walk(self, depth, what, &mut |_| {})?;
        Ok(&start[..start.len() - self.rest.len()])
    }
}

/// A part of an item that [`walk`] reports.
pub(crate) enum Event<'e> {
    /// A number, a simple value, a tag, or the header of an array or map.
    Head(&'e Header),
    /// A whole text string.
    Text(&'e str),
    /// A whole byte string.
    Bytes(&'e [u8]),
    /// An item ends inside an array, a map or a tag. `more` is true if more items follow, and `was_key` is
    /// true if the ended item was a key.
    Next { more: bool, was_key: bool },
    /// An array, a map or a tag ends.
    End(Nesting),
}

/// A container of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nesting {
    Array,
    Map,
    Tag,
}

/// An array, a map or a tag that has not ended yet.
struct Level {
    nesting: Nesting,
    /// Remaining items; `None` if a break marks the end.
    rest: Option<u64>,
    /// Number of items read so far.
    count: u64,
}

/// Reads one item with all nested items, without recursion, and reports them to `see`.
pub(crate) fn walk(
    items: &mut Items<'_>,
    depth: u64,
    what: &str,
    see: &mut dyn FnMut(Event<'_>),
) -> Result<(), Error> {
    let mut levels: Vec<Level> = Vec::new();
    loop {
        let at = items.position();
        let header = items.header(what)?;
        let opened = read_content(items, &header, &mut levels, (what, at), see)?;
        if let Some((nesting, rest)) = opened {
            if levels.len() as u64 >= depth {
                return Err(too_deep(what, at, depth));
            }
            see(Event::Head(&header));
            levels.push(Level {
                nesting,
                rest,
                count: 0,
            });
            if rest != Some(0) {
                continue;
            }
            levels.pop();
            see(Event::End(nesting));
        }
        if end_item(items, &mut levels, see) {
            return Ok(());
        }
    }
}

/// Reads the string after a header, or ends an array or map at a break, and reports it to `see`. For the
/// header of an array, map or tag, returns the number of its items instead.
#[inline]
fn read_content(
    items: &mut Items<'_>,
    header: &Header,
    levels: &mut Vec<Level>,
    (what, at): (&str, u64),
    see: &mut dyn FnMut(Event<'_>),
) -> Result<Option<(Nesting, Option<u64>)>, Error> {
    Ok(match header {
        Header::Positive(_) | Header::Negative(_) | Header::Float(_) | Header::Simple(_) => {
            see(Event::Head(header));
            None
        }
        Header::Text(len) => {
            see(Event::Text(&items.text_of(*len, what)?));
            None
        }
        Header::Bytes(Some(len)) => {
            see(Event::Bytes(items.take(*len, what)?));
            None
        }
        Header::Bytes(None) => {
            see(Event::Bytes(&chunks(items, what)?));
            None
        }
        Header::Tag(_) => Some((Nesting::Tag, Some(1))),
        Header::Array(count) => {
            items.check_count(count.unwrap_or(0), 1, what)?;
            Some((Nesting::Array, count.map(|count| count as u64)))
        }
        Header::Map(count) => {
            items.check_count(count.unwrap_or(0), 2, what)?;
            Some((Nesting::Map, count.map(|count| 2 * count as u64)))
        }
        Header::Break => {
            let Some(nesting) = end_by_break(levels) else {
                return Err(malformed(what, at).expected("an item").found("a break"));
            };
            see(Event::End(nesting));
            None
        }
    })
}

/// Ends the innermost array or map at a break. Returns `None` if a break cannot end it: its header has a
/// count, or it is a map whose last key lacks a value.
fn end_by_break(levels: &mut Vec<Level>) -> Option<Nesting> {
    let level = levels.pop().filter(|level| level.rest.is_none())?;
    let is_whole = level.nesting != Nesting::Map || level.count.is_multiple_of(2);
    is_whole.then_some(level.nesting)
}

#[cold]
fn too_deep(what: &str, at: u64, depth: u64) -> Error {
    let error = Error::new(ErrorKind::Malformed, format!("the nesting of {what}")).rule(LIMITS);
    error.at(at).expected(format_args!("at most {depth} levels"))
}

/// Completes an item, and the arrays, maps and tags that end with it. Returns whether the outermost item is
/// complete.
fn end_item(items: &Items<'_>, levels: &mut Vec<Level>, see: &mut dyn FnMut(Event<'_>)) -> bool {
    while let Some(level) = levels.last_mut() {
        level.count += 1;
        level.rest = level.rest.map(|rest| rest - 1);
        let nesting = level.nesting;
        if level.rest != Some(0) {
            let was_key = nesting == Nesting::Map && level.count % 2 == 1;
            let more = level.rest.is_some() || items.rest.first() != Some(&0xff);
            see(Event::Next { more, was_key });
            return false;
        }
        levels.pop();
        see(Event::End(nesting));
    }
    true
}

/// Reads the chunks of a byte string of indefinite length.
fn chunks(items: &mut Items<'_>, what: &str) -> Result<Vec<u8>, Error> {
    let mut joined = Vec::new();
    loop {
        let at = items.position();
        match items.header(what)? {
            Header::Bytes(Some(len)) => joined.extend_from_slice(items.take(len, what)?),
            Header::Break => return Ok(joined),
            other => return Err(wrong_chunk(what, at, "bytes", &other)),
        }
    }
}

#[cold]
fn wrong_chunk(what: &str, at: u64, expected: &str, found: &Header) -> Error {
    malformed(what, at)
        .expected(format_args!("a chunk of {expected} or a break"))
        .found(describe(found))
}

/// Creates the error for bytes that are not CBOR.
#[cold]
fn malformed(what: &str, at: u64) -> Error {
    Error::new(ErrorKind::Malformed, what).at(at).rule(WELL_FORMED)
}

/// Creates the error for an item of an unexpected type.
#[cold]
#[must_use]
pub fn wrong_type(what: &str, at: u64, expected: &str, found: &Header) -> Error {
    let error = Error::new(ErrorKind::Malformed, what).at(at).rule(TYPES);
    error.expected(expected).found(describe(found))
}

/// Returns the type of an item, for messages.
fn describe(header: &Header) -> &'static str {
    match header {
        Header::Positive(_) => "an unsigned integer",
        Header::Negative(_) => "a negative integer",
        Header::Float(_) => "a float",
        Header::Simple(20 | 21) => "a boolean",
        Header::Simple(22) => "null",
        Header::Simple(_) => "a simple value",
        Header::Tag(_) => "a tag",
        Header::Break => "a break",
        Header::Bytes(_) => "bytes",
        Header::Text(_) => "a text",
        Header::Array(_) => "an array",
        Header::Map(_) => "a map",
    }
}
