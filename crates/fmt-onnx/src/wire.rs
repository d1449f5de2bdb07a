//! Scans protobuf's wire format in a source, without reading the skipped parts.

use std::ops::Range;

use fmt_core::{ByteSource, Error, ErrorKind, Limits, read_range};
use tensor_core::Bytes;

/// A cursor that reads a file forward, through a buffer.
pub(crate) struct Walk<'a> {
    source: &'a dyn ByteSource,
    /// Buffered bytes; `piece_at` is their offset.
    piece: Bytes,
    piece_at: u64,
    limits: &'a Limits,
    /// Bytes of memory left for data that the reader keeps.
    budget: u64,
}

/// The value of a protobuf field, or its range in the file.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Number(u64),
    /// The range of four or eight bytes.
    Fixed(Range<u64>),
    /// The range of a string, a message, or packed numbers.
    Bytes(Range<u64>),
}

/// Number of bytes to read ahead after skipping a part of the file.
const LEAST: u64 = 4 << 10;
/// Maximum number of bytes to read ahead in a sequential scan.
const MOST: u64 = 64 << 10;

impl<'a> Walk<'a> {
    pub(crate) fn new(source: &'a dyn ByteSource, limits: &'a Limits) -> Self {
        Self {
            source,
            piece: Bytes::new(),
            piece_at: 0,
            limits,
            budget: limits.index_bytes,
        }
    }

    pub(crate) fn limits(&self) -> &'a Limits {
        self.limits
    }

    /// Subtracts `bytes` from the memory budget, before the memory is allocated.
    pub(crate) fn charge(&mut self, bytes: u64) -> Result<(), Error> {
        let left = self.budget.checked_sub(bytes);
        self.budget = left.ok_or_else(|| {
            let error = Error::new(ErrorKind::TooLarge, "the model's structure, without its data");
            error.expected(format_args!(
                "at most {} bytes, the reader's limit",
                self.limits.index_bytes
            ))
        })?;
        Ok(())
    }

    /// Reads the next field of a message, and removes it from the front of `rest`.
    pub(crate) fn field(&mut self, rest: &mut Range<u64>) -> Result<Option<(u64, Value)>, Error> {
        if rest.is_empty() {
            return Ok(None);
        }
        let start = rest.start;
        let key = self.varint(rest)?;
        let (number, wire) = (key >> 3, key & 7);
        let value = match wire {
            0 => Value::Number(self.varint(rest)?),
            1 => Value::Fixed(split(rest, 8)?),
            2 => {
                let len = self.varint(rest)?;
                Value::Bytes(split(rest, len)?)
            }
            5 => Value::Fixed(split(rest, 4)?),
            wire => {
                let error = malformed("a field of the model has an unknown wire type").at(start);
                return Err(error.expected("wire type 0, 1, 2 or 5").found(wire));
            }
        };
        if number == 0 {
            return Err(malformed("a field of the model has the number 0").at(start));
        }
        Ok(Some((number, value)))
    }

    /// Reads a varint of one to ten bytes, and removes it from the front of `rest`.
    pub(crate) fn varint(&mut self, rest: &mut Range<u64>) -> Result<u64, Error> {
        let (start, mut number) = (rest.start, 0_u64);
        for shift in (0..64).step_by(7) {
            if rest.is_empty() {
                return Err(Error::new(ErrorKind::Truncated, "a number of the model is truncated").at(start));
            }
            let byte = self.byte(rest.start)?;
            rest.start += 1;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(malformed("a number of the model has more than ten bytes").at(start))
    }

    fn byte(&mut self, at: u64) -> Result<u8, Error> {
        let end = self.piece_at + self.piece.len() as u64;
        if at < self.piece_at || at >= end {
            let len = if at == end {
                (2 * self.piece.len() as u64).clamp(LEAST, MOST)
            } else {
                LEAST
            };
            let until = self.source.len().min(at.saturating_add(len));
            self.piece = read_range(self.source, at..until, "the model")?;
            self.piece_at = at;
        }
        let byte = self.piece.get((at - self.piece_at) as usize).copied();
        byte.ok_or_else(|| Error::new(ErrorKind::Truncated, "the model is truncated").at(at))
    }

    /// Reads a little-endian number of `width` bytes, at most eight.
    pub(crate) fn fixed(&mut self, at: u64, width: usize) -> Result<u64, Error> {
        let mut word = [0; 8];
        for (at, byte) in (at..).zip(&mut word[..width]) {
            *byte = self.byte(at)?;
        }
        Ok(u64::from_le_bytes(word))
    }

    /// Reads a short string, such as a name. `what` describes the string in errors.
    pub(crate) fn text(&mut self, value: &Value, what: &str) -> Result<String, Error> {
        let Value::Bytes(range) = value else {
            return Err(malformed(&format!("{what} is a number")));
        };
        let len = range.end - range.start;
        if len > self.limits.name_bytes {
            let error = Error::new(ErrorKind::TooLarge, format!("the length of {what}")).at(range.start);
            return Err(error
                .expected(format_args!("at most {} bytes", self.limits.name_bytes))
                .found(len));
        }
        self.charge(len)?;
        let bytes = (range.start..range.end)
            .map(|at| self.byte(at))
            .collect::<Result<Vec<_>, _>>()?;
        String::from_utf8(bytes).map_err(|_| malformed(&format!("{what} is not UTF-8")).at(range.start))
    }

    /// Appends the numbers of a field, which may be packed or not. `most` is the maximum length of `numbers`.
    pub(crate) fn numbers(&mut self, value: &Value, numbers: &mut Vec<u64>, most: u64) -> Result<(), Error> {
        let mut push = |number, at| {
            if numbers.len() as u64 >= most {
                let error = Error::new(ErrorKind::TooLarge, "the count of numbers").at(at);
                return Err(error.expected(format_args!("at most {most}")));
            }
            numbers.push(number);
            Ok(())
        };
        match value {
            Value::Number(number) => push(*number, 0),
            Value::Bytes(range) => {
                let mut rest = range.clone();
                while !rest.is_empty() {
                    let at = rest.start;
                    push(self.varint(&mut rest)?, at)?;
                }
                Ok(())
            }
            Value::Fixed(range) => Err(malformed("a number of the model has a fixed width").at(range.start)),
        }
    }
}

/// The minimum number of bytes that an object counts toward the memory budget.
pub(crate) const COST: u64 = 256;

/// Reads an entry whose key and value are strings.
pub(crate) fn entry(walk: &mut Walk<'_>, mut rest: Range<u64>) -> Result<(String, String), Error> {
    walk.charge(COST)?;
    let mut pair = (String::new(), String::new());
    while let Some((number, value)) = walk.field(&mut rest)? {
        match number {
            1 => pair.0 = walk.text(&value, "the key of a property")?,
            2 => pair.1 = walk.text(&value, "the value of a property")?,
            _ => {}
        }
    }
    Ok(pair)
}

/// Returns the range of a message. `what` describes the message in errors.
pub(crate) fn message(value: &Value, what: &str) -> Result<Range<u64>, Error> {
    match value {
        Value::Bytes(range) => Ok(range.clone()),
        _ => Err(malformed(&format!("{what} is a number"))),
    }
}

pub(crate) fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Malformed, what)
}

fn split(rest: &mut Range<u64>, len: u64) -> Result<Range<u64>, Error> {
    let start = rest.start;
    let end = start.checked_add(len).filter(|end| *end <= rest.end);
    let end = end.ok_or_else(|| {
        let error = Error::new(ErrorKind::Truncated, "a field of the model is truncated").at(start);
        error
            .expected(format_args!("{len} bytes"))
            .found(rest.end - start)
    })?;
    rest.start = end;
    Ok(start..end)
}
