//! Converts metadata values between the file's encoding and strings.
//!
//! Tools see metadata as strings. A string value is unchanged; every other type is JSON with its type
//! recorded ([`Kind`]), so that the same value can be written back.

use std::{
    fmt::{self, Write},
    str::FromStr,
};

use fmt_core::{Cursor, Error, ErrorKind};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use tensor_core::QuotedName;

/// The type of a value: a base type, or nested arrays of a base type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    base: Base,
    arrays: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    U64,
    I64,
    F64,
    /// A string that is not UTF-8, in hexadecimal digits.
    Hex,
    /// An empty array, or an array with elements of several types.
    Mixed,
}

/// The format's type numbers and names.
const BASES: [(u32, &str, Base); 13] = [
    (0, "u8", Base::U8),
    (1, "i8", Base::I8),
    (2, "u16", Base::U16),
    (3, "i16", Base::I16),
    (4, "u32", Base::U32),
    (5, "i32", Base::I32),
    (6, "f32", Base::F32),
    (7, "bool", Base::Bool),
    (STRING, "string", Base::String),
    (10, "u64", Base::U64),
    (11, "i64", Base::I64),
    (12, "f64", Base::F64),
    // This row must come after the usual type with the same number, `string`.
    (STRING, "hex", Base::Hex),
];
const STRING: u32 = 8;
const ARRAY: u32 = 9;
/// Maximum nesting of arrays.
const DEEPEST: u8 = 4;

impl Kind {
    pub(crate) const STRING: Self = Self {
        base: Base::String,
        arrays: 0,
    };
    const HEX: Self = Self {
        base: Base::Hex,
        arrays: 0,
    };
    pub(crate) const U32: Self = Self {
        base: Base::U32,
        arrays: 0,
    };

    /// Returns the type for a name such as `u32` or `[string]`.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let inner = name.trim_start_matches('[');
        let arrays = name.len() - inner.len();
        let base = inner.strip_suffix(&"]".repeat(arrays))?;
        let known = BASES.iter().find(|(_, known, _)| *known == base)?;
        if known.2 == Base::Hex && arrays > 0 {
            return None;
        }
        let arrays = u8::try_from(arrays).ok().filter(|arrays| *arrays <= DEEPEST)?;
        Some(Self {
            base: known.2,
            arrays,
        })
    }

    fn number(self) -> Option<u32> {
        if self.arrays > 0 {
            return Some(ARRAY);
        }
        BASES
            .iter()
            .find(|(_, _, base)| *base == self.base)
            .map(|known| known.0)
    }

    fn element(self) -> Self {
        Self {
            arrays: self.arrays.saturating_sub(1),
            ..self
        }
    }

    /// Encodes the type number and a value given as a string.
    pub(crate) fn encode(self, text: &str, out: &mut Vec<u8>) -> Result<(), ValueError> {
        let number = self
            .number()
            .filter(|_| self.base != Base::Mixed)
            .ok_or(ValueError::NotWritten)?;
        out.extend(number.to_le_bytes());
        if self == Self::STRING {
            put_string(text, out);
            return Ok(());
        }
        if self == Self::HEX {
            let bytes = bytes_of_hex(text).ok_or(ValueError::Digits)?;
            put_bytes(&bytes, out);
            return Ok(());
        }
        let quoted = matches!(self.base, Base::F32 | Base::F64).then(|| quoted_numbers(text));
        let mut json = serde_json::Deserializer::from_str(quoted.as_deref().unwrap_or(text));
        ValueEncoder { kind: self, out }
            .deserialize(&mut json)
            .and_then(|()| json.end())
            .map_err(|error| ValueError::Text(self, error))
    }
}

/// The reason why a value cannot be encoded.
#[derive(Debug)]
pub(crate) enum ValueError {
    /// The type is unknown.
    NoType(String),
    /// This crate cannot write values of this type.
    NotWritten,
    /// The string is not pairs of hexadecimal digits.
    Digits,
    /// The string cannot be parsed as this type.
    Text(Kind, serde_json::Error),
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoType(name) => write!(f, "its type is {}", QuotedName(name)),
            Self::NotWritten => f.write_str("its type cannot be written"),
            Self::Digits => f.write_str("its value is not pairs of hexadecimal digits"),
            Self::Text(kind, error) => write!(f, "its value is not a {kind}: {error}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = BASES
            .iter()
            .find(|(_, _, base)| *base == self.base)
            .map_or("mixed", |known| known.1);
        let arrays = usize::from(self.arrays);
        write!(f, "{}{name}{}", "[".repeat(arrays), "]".repeat(arrays))
    }
}

/// Quotes the numbers in `json`, so that they are parsed as strings: the JSON parser's floats may differ in
/// the last bit.
fn quoted_numbers(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 2);
    let (mut is_in_text, mut is_escaped, mut is_in_number) = (false, false, false);
    for letter in json.chars() {
        let is_of_number = !is_in_text && (letter.is_ascii_digit() || "+-.eE".contains(letter));
        if is_of_number != is_in_number {
            out.push('"');
            is_in_number = is_of_number;
        }
        out.push(letter);
        is_in_text ^= letter == '"' && !is_escaped;
        is_escaped = is_in_text && letter == '\\' && !is_escaped;
    }
    if is_in_number {
        out.push('"');
    }
    out
}

pub(crate) fn put_string(text: &str, out: &mut Vec<u8>) {
    put_bytes(text.as_bytes(), out);
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn hex_of_bytes(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

fn bytes_of_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |letter: u8| char::from(letter).to_digit(16);
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some((digit(*high)? * 16 + digit(*low)?) as u8));
    rest.is_empty().then(|| bytes.collect())?
}

/// Reads a string of at most `most` bytes.
pub(crate) fn string<'a>(cursor: &mut Cursor<'a>, what: &str, most: u64) -> Result<&'a str, Error> {
    let at = cursor.position();
    std::str::from_utf8(bytes(cursor, what, most)?).map_err(|_| {
        let what = format!("{what} is not UTF-8");
        Error::new(ErrorKind::Malformed, what).at(at)
    })
}

/// Reads the bytes of a string. Values need not be UTF-8: tokens may be parts of characters.
fn bytes<'a>(cursor: &mut Cursor<'a>, what: &str, most: u64) -> Result<&'a [u8], Error> {
    let at = cursor.position();
    let len = cursor.u64(what)?;
    if len > most {
        let error = Error::new(ErrorKind::TooLarge, format!("the length of {what}")).at(at);
        return Err(error.expected(format_args!("at most {most} bytes")).found(len));
    }
    cursor.take(len, what)
}

/// Reads a value with its type, as a string.
pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<(Kind, String), Error> {
    let number = cursor.u32("the type of a value")?;
    if number == STRING {
        let bytes = bytes(cursor, "a value", u64::MAX)?;
        return Ok(match std::str::from_utf8(bytes) {
            Ok(text) => (Kind::STRING, text.to_owned()),
            Err(_) => (Kind::HEX, hex_of_bytes(bytes)),
        });
    }
    let mut text = String::new();
    let kind = json(cursor, number, 0, &mut text)?;
    Ok((kind, text))
}

fn json(cursor: &mut Cursor<'_>, number: u32, depth: u8, out: &mut String) -> Result<Kind, Error> {
    let at = cursor.position();
    let malformed = |what: &str| Error::new(ErrorKind::Malformed, what).at(at);
    if number == ARRAY {
        if depth == DEEPEST {
            let error = malformed("arrays in arrays");
            return Err(error.expected(format_args!("at most {DEEPEST} deep")));
        }
        return array(cursor, depth, out);
    }
    let known = BASES.iter().find(|(known, _, _)| *known == number);
    let &(_, name, base) = known.ok_or_else(|| malformed("the type of a value").found(number))?;
    // Writing to a string does not fail.
    let _ = match base {
        Base::U8 => write!(out, "{}", cursor.u8(name)?),
        Base::I8 => write!(out, "{}", i8::from_le_bytes(cursor.array(name)?)),
        Base::U16 => write!(out, "{}", u16::from_le_bytes(cursor.array(name)?)),
        Base::I16 => write!(out, "{}", i16::from_le_bytes(cursor.array(name)?)),
        Base::U32 => write!(out, "{}", cursor.u32(name)?),
        Base::I32 => write!(out, "{}", i32::from_le_bytes(cursor.array(name)?)),
        Base::U64 => write!(out, "{}", cursor.u64(name)?),
        Base::I64 => write!(out, "{}", i64::from_le_bytes(cursor.array(name)?)),
        Base::F32 => {
            let value = f32::from_le_bytes(cursor.array(name)?);
            // Prints the shortest decimal that parses to this `f32`, rather than all digits of the value as
            // an `f64`.
            match value.to_string().parse::<Number>() {
                Ok(number) => write!(out, "{number}"),
                Err(_) => write!(out, "\"{value}\""),
            }
        }
        Base::F64 => {
            let value = f64::from_le_bytes(cursor.array(name)?);
            match Number::from_f64(value) {
                Some(number) => write!(out, "{number}"),
                None => write!(out, "\"{value}\""),
            }
        }
        Base::Bool => match cursor.u8(name)? {
            truth @ (0 | 1) => write!(out, "{}", truth == 1),
            other => return Err(malformed("a truth value").expected("0 or 1").found(other)),
        },
        Base::String | Base::Hex | Base::Mixed => {
            let bytes = bytes(cursor, "a value", u64::MAX)?;
            match std::str::from_utf8(bytes) {
                Ok(text) => out.write_str(&serde_json::to_string(text).unwrap_or_default()),
                Err(_) => write!(out, r#"{{"hex":"{}"}}"#, hex_of_bytes(bytes)),
            }
        }
    };
    Ok(Kind { base, arrays: 0 })
}

fn array(cursor: &mut Cursor<'_>, depth: u8, out: &mut String) -> Result<Kind, Error> {
    let (number, at) = (cursor.u32("the type of an array")?, cursor.position());
    let count = cursor.u64("the length of an array")?;
    if count > cursor.remaining() {
        // Every element takes at least a byte.
        let error = Error::new(ErrorKind::Truncated, "an array is truncated").at(at);
        return Err(error
            .expected(format_args!("{count} elements"))
            .found(format_args!("{} bytes", cursor.remaining())));
    }
    let mut elements = None;
    out.push('[');
    for index in 0..count {
        if index > 0 {
            out.push(',');
        }
        let kind = json(cursor, number, depth + 1, out)?;
        let mixed = Kind {
            base: Base::Mixed,
            ..kind
        };
        match elements {
            None => elements = Some(kind),
            Some(other) if other != kind => elements = Some(mixed),
            Some(_) => {}
        }
    }
    out.push(']');
    let empty = BASES.iter().find(|(known, _, _)| *known == number);
    let base = empty.map_or(Base::Mixed, |known| known.2);
    let elements = elements.unwrap_or(Kind {
        base,
        arrays: u8::from(number == ARRAY),
    });
    Ok(Kind {
        arrays: elements.arrays + 1,
        ..elements
    })
}

/// Encodes a value from JSON, without its type number.
struct ValueEncoder<'o> {
    kind: Kind,
    out: &'o mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for ValueEncoder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl ValueEncoder<'_> {
    fn whole<E: de::Error>(self, number: i128) -> Result<(), E> {
        let out_of_range = |_| E::custom(format_args!("{number} does not fit"));
        match (self.kind.arrays, self.kind.base) {
            (0, Base::U8) => self.out.push(number.try_into().map_err(out_of_range)?),
            (0, Base::I8) => self
                .out
                .extend(i8::try_from(number).map_err(out_of_range)?.to_le_bytes()),
            (0, Base::U16) => self
                .out
                .extend(u16::try_from(number).map_err(out_of_range)?.to_le_bytes()),
            (0, Base::I16) => self
                .out
                .extend(i16::try_from(number).map_err(out_of_range)?.to_le_bytes()),
            (0, Base::U32) => self
                .out
                .extend(u32::try_from(number).map_err(out_of_range)?.to_le_bytes()),
            (0, Base::I32) => self
                .out
                .extend(i32::try_from(number).map_err(out_of_range)?.to_le_bytes()),
            (0, Base::U64) => self
                .out
                .extend(u64::try_from(number).map_err(out_of_range)?.to_le_bytes()),
            (0, Base::I64) => self
                .out
                .extend(i64::try_from(number).map_err(out_of_range)?.to_le_bytes()),
            _ => return Err(E::custom(format_args!("found {number}"))),
        }
        Ok(())
    }

    fn parsed<T: FromStr + Copy, const N: usize, E: de::Error>(
        self,
        text: &str,
        is_infinite: impl Fn(T) -> bool,
        bytes: impl Fn(T) -> [u8; N],
    ) -> Result<(), E> {
        let number = text.parse();
        let number = number.map_err(|_| E::custom(format_args!("found {}", QuotedName(text))))?;
        // An infinity is spelled with letters. Digits that parse to infinity are an overflow.
        if is_infinite(number) && text.contains(|letter: char| letter.is_ascii_digit()) {
            return Err(E::custom(format_args!("{text} does not fit")));
        }
        self.out.extend(bytes(number));
        Ok(())
    }
}

impl<'de> Visitor<'de> for ValueEncoder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<(), E> {
        if (self.kind.arrays, self.kind.base) != (0, Base::Bool) {
            return Err(E::invalid_type(de::Unexpected::Bool(truth), &self));
        }
        self.out.push(truth.into());
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<(), E> {
        self.whole(number.into())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<(), E> {
        self.whole(number.into())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<(), E> {
        Err(E::custom(format_args!("found {number}")))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        match (self.kind.arrays, self.kind.base) {
            (0, Base::String) => {
                put_string(text, self.out);
                Ok(())
            }
            // Numbers were quoted, because JSON lacks NaN and the infinities.
            (0, Base::F32) => self.parsed(text, f32::is_infinite, f32::to_le_bytes),
            (0, Base::F64) => self.parsed(text, f64::is_infinite, f64::to_le_bytes),
            _ => Err(E::invalid_type(de::Unexpected::Str(text), &self)),
        }
    }

    /// Decodes a string that is not UTF-8, inside an array.
    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let item = items.next_entry::<String, String>()?;
        let bytes = item
            .filter(|(key, _)| key == "hex")
            .and_then(|(_, hex)| bytes_of_hex(&hex));
        match (self.kind, bytes, items.next_key::<String>()?) {
            (Kind::STRING, Some(bytes), None) => {
                put_bytes(&bytes, self.out);
                Ok(())
            }
            _ => Err(de::Error::invalid_type(de::Unexpected::Map, &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if self.kind.arrays == 0 {
            return Err(de::Error::invalid_type(de::Unexpected::Seq, &self));
        }
        let element = self.kind.element();
        let number = element.number().unwrap_or(ARRAY);
        self.out.extend(number.to_le_bytes());
        let len_at = self.out.len();
        self.out.extend([0; 8]);
        let mut count = 0u64;
        while items
            .next_element_seed(ValueEncoder {
                kind: element,
                out: self.out,
            })?
            .is_some()
        {
            count += 1;
        }
        self.out[len_at..len_at + 8].copy_from_slice(&count.to_le_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Reading a value and writing it back preserves its bytes. Regression test: fuzzing found that the first
    /// of these doubles changed.
    #[test]
    fn floats_keep_every_bit() {
        let mut bits: Vec<u64> = vec![
            0x0101_0101_0101_0100,
            1,
            1 << 63,
            f64::MAX.to_bits(),
            f64::INFINITY.to_bits(),
        ];
        let random = std::iter::successors(Some(0x9E37_79B9_7F4A_7C15_u64), |state| {
            Some(
                state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407),
            )
        });
        bits.extend(random.filter(|bits| !f64::from_bits(*bits).is_nan()).take(20_000));
        let doubles: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let is_number = |bits: &u64| !f32::from_bits(*bits as u32).is_nan();
        let singles: Vec<u8> = bits
            .iter()
            .filter(|bits| is_number(bits))
            .flat_map(|bits| (*bits as u32).to_le_bytes())
            .collect();
        for (number, width, values) in [(12, 8, doubles), (6, 4, singles)] {
            let of_one = |value: &[u8]| [&[number, 0, 0, 0], value].concat();
            for value in values.chunks(width) {
                check(&of_one(value));
            }
            let count = (values.len() / width) as u64;
            let array = [&[9, 0, 0, 0, number, 0, 0, 0][..], &count.to_le_bytes(), &values].concat();
            check(&array);
        }
    }

    fn check(value: &[u8]) {
        let (kind, text) = read(&mut Cursor::new(value, 0)).unwrap();
        let mut out = Vec::new();
        kind.encode(&text, &mut out).unwrap();
        assert!(out == value, "{kind} {}", &text[..text.len().min(100)]);
    }

    #[test]
    fn texts_that_are_no_floats() {
        let encode = |kind: &str, text: &str| {
            let mut out = Vec::new();
            Kind::of_name(kind)
                .unwrap()
                .encode(text, &mut out)
                .map(|()| out.len())
        };
        assert_eq!(encode("f32", " 1 ").ok(), Some(8));
        assert_eq!(encode("[f64]", "[1,-2.5E-3 , \"nan\",[]]").ok(), None);
        assert_eq!(
            encode("[f64]", "[1,-2.5E-3 , \"nan\"]").ok(),
            Some(4 + 4 + 8 + 24)
        );
        for (kind, wrong) in [
            ("f32", "1e39"),
            ("f64", "1e400"),
            ("f64", "one"),
            ("f64", "1 2"),
            ("f64", "1.2.3"),
            ("f64", ""),
            ("f32", "true"),
            ("[f32]", "[1"),
            ("[f32]", "1"),
            ("u8", "1.0"),
        ] {
            assert!(encode(kind, wrong).is_err(), "{kind} {wrong}");
        }
    }
}
