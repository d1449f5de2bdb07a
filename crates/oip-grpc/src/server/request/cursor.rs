//! Parses the protobuf wire format in place; every key, integer and length is checked against the remaining
//! bytes.

use std::fmt;

use oip_types::ServiceError;

/// Maximum nesting of groups and messages, as in `prost`.
pub(super) const MAX_DEPTH: u32 = 100;

/// Why decoding a message failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The bytes are not a valid message.
    Malformed(WireError),
    /// The message is valid, but the request is not.
    Refused(ServiceError),
    /// Decoding would take too long for this thread.
    TooMuchWork,
}

impl Failure {
    /// Adds context to a refusal.
    pub(super) fn within(self, context: impl fmt::Display) -> Self {
        match self {
            Self::Refused(error) => Self::Refused(error.within(context)),
            other => other,
        }
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Self::Refused(error)
    }
}

/// An error in the encoding of a message.
#[derive(Debug)]
pub(crate) struct WireError {
    reason: Reason,
    /// Message and field names, innermost first.
    path: Vec<(&'static str, &'static str)>,
}

#[derive(Debug)]
enum Reason {
    Varint,
    Key(u64),
    WireTypeValue(u64),
    Tag,
    WireType { found: WireType, expected: WireType },
    Underflow,
    EndGroup,
    Depth,
    Utf8,
}

impl From<Reason> for Failure {
    #[cold]
    fn from(reason: Reason) -> Self {
        Self::Malformed(WireError {
            reason,
            path: Vec::new(),
        })
    }
}

/// Uses the error messages of `prost`, which decodes the messages of all other calls.
impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed to decode Protobuf message: ")?;
        for (message, field) in &self.path {
            write!(f, "{message}.{field}: ")?;
        }
        match &self.reason {
            Reason::Varint => f.write_str("invalid varint"),
            Reason::Key(key) => write!(f, "invalid key value: {key}"),
            Reason::WireTypeValue(value) => write!(f, "invalid wire type value: {value}"),
            Reason::Tag => f.write_str("invalid tag value: 0"),
            Reason::WireType { found, expected } => {
                write!(f, "invalid wire type: {found:?} (expected {expected:?})")
            }
            Reason::Underflow => f.write_str("buffer underflow"),
            Reason::EndGroup => f.write_str("unexpected end group tag"),
            Reason::Depth => f.write_str("recursion limit reached"),
            Reason::Utf8 => f.write_str("invalid string value: data is not UTF-8 encoded"),
        }
    }
}

/// Adds the message and field to an encoding error.
pub(super) trait At {
    fn at(self, message: &'static str, field: &'static str) -> Self;
}

impl<T> At for Result<T, Failure> {
    fn at(self, message: &'static str, field: &'static str) -> Self {
        self.map_err(|mut failure| {
            if let Failure::Malformed(malformed) = &mut failure {
                malformed.path.push((message, field));
            }
            failure
        })
    }
}

/// The wire type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    SixtyFourBit,
    LengthDelimited,
    StartGroup,
    EndGroup,
    ThirtyTwoBit,
}

impl WireType {
    /// Checks that the wire type is `expected`.
    pub(super) fn expect(self, expected: Self) -> Result<(), Failure> {
        match self == expected {
            true => Ok(()),
            false => Err(Reason::WireType {
                found: self,
                expected,
            }
            .into()),
        }
    }
}

/// The unread remainder of a message.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'m>(&'m [u8]);

impl<'m> Cursor<'m> {
    pub(super) fn new(message: &'m [u8]) -> Self {
        Self(message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the remaining bytes.
    pub(super) fn rest(&self) -> &'m [u8] {
        self.0
    }

    /// Returns the number of remaining bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Reads a field's number and wire type.
    pub(super) fn key(&mut self) -> Result<(u32, WireType), Failure> {
        let value = self.varint()?;
        let key = u32::try_from(value).map_err(|_| Reason::Key(value))?;
        let wire_type = match key & 7 {
            0 => WireType::Varint,
            1 => WireType::SixtyFourBit,
            2 => WireType::LengthDelimited,
            3 => WireType::StartGroup,
            4 => WireType::EndGroup,
            5 => WireType::ThirtyTwoBit,
            other => return Err(Reason::WireTypeValue(other.into()).into()),
        };
        match key >> 3 {
            0 => Err(Reason::Tag.into()),
            tag => Ok((tag, wire_type)),
        }
    }

    /// Reads a varint: seven bits per byte, lowest first, at most ten bytes.
    pub(super) fn varint(&mut self) -> Result<u64, Failure> {
        let mut value = 0;
        for (index, &byte) in self.0.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                // The tenth byte holds only the highest bit.
                if index == 9 && byte > 1 {
                    break;
                }
                self.0 = &self.0[index + 1..];
                return Ok(value);
            }
        }
        Err(Reason::Varint.into())
    }

    pub(super) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let (value, rest) = self.0.split_first_chunk().ok_or(Reason::Underflow)?;
        self.0 = rest;
        Ok(*value)
    }

    /// Reads a length and that many bytes.
    pub(super) fn delimited(&mut self) -> Result<&'m [u8], Failure> {
        let len = self.varint()?;
        self.take(len)
    }

    /// Reads a value that must be length-delimited.
    pub(super) fn bytes(&mut self, wire_type: WireType) -> Result<&'m [u8], Failure> {
        wire_type.expect(WireType::LengthDelimited)?;
        self.delimited()
    }

    /// Skips the value of an unknown field. Groups may be nested `depth` deep.
    pub(super) fn skip(&mut self, wire_type: WireType, tag: u32, depth: u32) -> Result<(), Failure> {
        if depth == 0 {
            return Err(Reason::Depth.into());
        }
        match wire_type {
            WireType::Varint => self.varint().map(drop),
            WireType::SixtyFourBit => self.take(8).map(drop),
            WireType::LengthDelimited => self.delimited().map(drop),
            WireType::ThirtyTwoBit => self.take(4).map(drop),
            WireType::StartGroup => loop {
                match self.key()? {
                    (end, WireType::EndGroup) if end == tag => return Ok(()),
                    (_, WireType::EndGroup) => return Err(Reason::EndGroup.into()),
                    (inner, wire_type) => self.skip(wire_type, inner, depth - 1)?,
                }
            },
            WireType::EndGroup => Err(Reason::EndGroup.into()),
        }
    }

    fn take(&mut self, len: u64) -> Result<&'m [u8], Failure> {
        let taken = usize::try_from(len)
            .ok()
            .and_then(|len| self.0.split_at_checked(len));
        let (taken, rest) = taken.ok_or(Reason::Underflow)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Checks that bytes are UTF-8.
pub(super) fn text(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes).map_err(|_| Reason::Utf8.into())
}

/// Counts the varints in a packed field.
pub(super) fn count_varints(packed: &[u8]) -> Result<u64, Failure> {
    let (mut count, mut len) = (0, 0);
    for &byte in packed {
        len += 1;
        if len == 10 && byte > 1 {
            return Err(Reason::Varint.into());
        }
        if byte < 0x80 {
            count += 1;
            len = 0;
        }
    }
    match len {
        0 => Ok(count),
        _ => Err(Reason::Varint.into()),
    }
}

/// Counts the fixed-width values in a packed field.
pub(super) fn count_fixed(packed: &[u8], width: usize) -> Result<u64, Failure> {
    match packed.len() % width {
        0 => Ok((packed.len() / width) as u64),
        _ => Err(Reason::Underflow.into()),
    }
}
