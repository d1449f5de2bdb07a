//! Reads Universal Binary JSON, as XGBoost writes it, for `serde`: with bounds checks, and without allocating
//! memory for elements that a count claims but the data does not contain.

use std::fmt;

use serde::{
    Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
    forward_to_deserialize_any,
};

/// Reads a value, which must span all bytes.
///
/// # Errors
/// Returns what is wrong with the bytes, and the byte offset.
pub(crate) fn from_slice<T: de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let mut reader = Reader {
        bytes,
        at: 0,
        depth: 0,
        marker: None,
    };
    let value = T::deserialize(&mut reader).map_err(|error| error.at(reader.at))?;
    match reader.bytes.len() - reader.at {
        0 => Ok(value),
        left => Err(Error::new(format!("{left} bytes follow the model")).at(reader.at)),
    }
}

/// An error with its byte offset.
#[derive(Debug)]
pub(crate) struct Error {
    message: String,
    at: Option<usize>,
}

impl Error {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            at: None,
        }
    }

    fn at(self, at: usize) -> Self {
        Self {
            at: self.at.or(Some(at)),
            ..self
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.at {
            Some(at) => write!(f, " at byte {at}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    /// The type of the next value, if its container declares it.
    marker: Option<u8>,
}

/// Maximum nesting of lists and objects. XGBoost's models nest 8 levels deep.
const MAX_DEPTH: u32 = 32;

impl<'a> Reader<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], Error> {
        let left = &self.bytes[self.at..];
        let taken = usize::try_from(count).ok().and_then(|count| left.get(..count));
        let taken = taken.ok_or_else(|| {
            Error::new(format!("{count} bytes are declared, but {} remain", left.len())).at(self.at)
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.array::<1>()?[0])
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Reads the type of the next value.
    fn marker(&mut self) -> Result<u8, Error> {
        loop {
            match self.marker.take() {
                Some(marker) => return Ok(marker),
                // Skips a no-op marker.
                None if self.peek() == Some(b'N') => self.at += 1,
                None => return self.byte(),
            }
        }
    }

    fn integer(&mut self, marker: u8) -> Result<Option<i64>, Error> {
        Ok(Some(match marker {
            b'i' => i64::from(i8::from_be_bytes(self.array()?)),
            b'U' => i64::from(self.byte()?),
            b'I' => i64::from(i16::from_be_bytes(self.array()?)),
            b'l' => i64::from(i32::from_be_bytes(self.array()?)),
            b'L' => i64::from_be_bytes(self.array()?),
            _ => return Ok(None),
        }))
    }

    fn length(&mut self) -> Result<u64, Error> {
        let (start, marker) = (self.at, self.byte()?);
        let length = self
            .integer(marker)?
            .and_then(|length| u64::try_from(length).ok());
        length.ok_or_else(|| Error::new("expected a length").at(start))
    }

    fn text(&mut self) -> Result<&'a str, Error> {
        let length = self.length()?;
        let start = self.at;
        let text = std::str::from_utf8(self.take(length)?);
        text.map_err(|_| Error::new("a string is not UTF-8").at(start))
    }

    /// Reads the header of a container, before its first element.
    fn container(&mut self, end: u8) -> Result<Container<'a, '_>, Error> {
        if self.depth == MAX_DEPTH {
            return Err(Error::new(format!("more than {MAX_DEPTH} levels of lists and objects")).at(self.at));
        }
        let start = self.at;
        let marker = match self.peek() {
            Some(b'$') => {
                self.at += 1;
                Some(self.byte()?)
            }
            _ => None,
        };
        let left = match self.peek() {
            Some(b'#') => {
                self.at += 1;
                Some(self.length()?)
            }
            _ => None,
        };
        let size = match marker {
            None | Some(b'i' | b'U') => 1,
            Some(b'I') => 2,
            Some(b'l' | b'd') => 4,
            Some(b'L' | b'D') => 8,
            Some(_) => return Err(Error::new("a list of an unsupported type").at(start)),
        };
        // Every element takes at least `size` bytes, which bounds the count by the remaining bytes.
        let room = (self.bytes.len() - self.at) as u64;
        match left {
            None if marker.is_some() => return Err(Error::new("a typed list without a count").at(start)),
            Some(count) if count.checked_mul(size).is_none_or(|bytes| bytes > room) => {
                return Err(
                    Error::new(format!("{count} elements are declared, but {room} bytes remain")).at(start),
                );
            }
            _ => {}
        }
        self.depth += 1;
        Ok(Container {
            reader: self,
            marker,
            left,
            end,
        })
    }
}

/// A list or an object that is being read.
struct Container<'a, 'r> {
    reader: &'r mut Reader<'a>,
    marker: Option<u8>,
    /// The remaining number of elements, if the container declares it.
    left: Option<u64>,
    end: u8,
}

impl Container<'_, '_> {
    /// Returns whether there is another element.
    fn advance(&mut self) -> Result<bool, Error> {
        match &mut self.left {
            Some(0) => Ok(false),
            Some(left) => {
                *left -= 1;
                Ok(true)
            }
            None => {
                while self.reader.peek() == Some(b'N') {
                    self.reader.at += 1;
                }
                if self.reader.peek() == Some(self.end) {
                    self.reader.at += 1;
                    self.left = Some(0);
                    return Ok(false);
                }
                Ok(true)
            }
        }
    }

    /// Leaves the container, which must be at its end.
    fn finish(mut self) -> Result<(), Error> {
        let at = self.reader.at;
        if self.advance()? {
            return Err(Error::new("expected the end of a list").at(at));
        }
        self.reader.depth -= 1;
        Ok(())
    }
}

impl<'de> SeqAccess<'de> for Container<'de, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if !self.advance()? {
            return Ok(None);
        }
        self.reader.marker = self.marker;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        self.left.and_then(|left| usize::try_from(left).ok())
    }
}

impl<'de> MapAccess<'de> for Container<'de, '_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if !self.advance()? {
            return Ok(None);
        }
        let key = self.reader.text()?;
        seed.deserialize(de::value::BorrowedStrDeserializer::new(key))
            .map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        self.reader.marker = self.marker;
        seed.deserialize(&mut *self.reader)
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let start = self.at;
        let marker = self.marker()?;
        if let Some(integer) = self.integer(marker)? {
            return visitor.visit_i64(integer);
        }
        match marker {
            b'd' => visitor.visit_f32(f32::from_be_bytes(self.array()?)),
            b'D' => visitor.visit_f64(f64::from_be_bytes(self.array()?)),
            b'T' => visitor.visit_bool(true),
            b'F' => visitor.visit_bool(false),
            b'Z' => visitor.visit_unit(),
            b'C' => visitor.visit_char(self.byte()?.into()),
            b'S' | b'H' => visitor.visit_borrowed_str(self.text()?),
            b'[' => {
                let mut list = self.container(b']')?;
                let value = visitor.visit_seq(&mut list)?;
                list.finish()?;
                Ok(value)
            }
            b'{' => {
                let mut object = self.container(b'}')?;
                let value = visitor.visit_map(&mut object)?;
                object.finish()?;
                Ok(value)
            }
            other => Err(Error::new(format!("unknown type {:?}", char::from(other))).at(start)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.marker()? {
            b'Z' => visitor.visit_none(),
            marker => {
                self.marker = Some(marker);
                visitor.visit_some(self)
            }
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn values_of_all_types_are_read() {
        let list: Vec<f32> = from_slice(b"[$d#U\x02\x3f\x80\0\0\xbf\0\0\0").expect("typed");
        assert_eq!(list, [1.0, -0.5]);
        let list: Vec<i64> =
            from_slice(b"[i\xffU\xffNI\x01\0l\0\x01\0\0L\0\0\0\0\0\0\0\x07]").expect("mixed");
        assert_eq!(list, [-1, 255, 256, 65536, 7]);
        let object: BTreeMap<String, Option<bool>> =
            from_slice(b"{i\x01aTL\0\0\0\0\0\0\0\x01bFi\x01cZ}").expect("object");
        assert_eq!(object["a"], Some(true));
        assert_eq!(object["b"], Some(false));
        assert_eq!(object["c"], None);
        let texts: Vec<String> = from_slice(b"[#i\x02Si\x02hiSi\0").expect("texts");
        assert_eq!(texts, ["hi", ""]);
        assert_eq!(from_slice::<f64>(b"D\x3f\xf0\0\0\0\0\0\0").expect("double"), 1.0);
    }

    #[test]
    fn what_is_damaged_is_refused_with_its_place() {
        let refuse = |bytes: &[u8]| {
            let error = from_slice::<de::IgnoredAny>(bytes).expect_err("it is damaged");
            error.to_string()
        };
        assert_eq!(refuse(b""), "1 bytes are declared, but 0 remain at byte 0");
        assert_eq!(
            refuse(b"[$d#L\x7f\xff\xff\xff\xff\xff\xff\xff"),
            "9223372036854775807 elements are declared, but 0 bytes remain at byte 1"
        );
        assert_eq!(refuse(b"[$Z#i\x05"), "a list of an unsupported type at byte 1");
        assert_eq!(refuse(b"[#i\xff"), "expected a length at byte 2");
        assert_eq!(refuse(b"Si\x02\xff\xff"), "a string is not UTF-8 at byte 3");
        assert_eq!(refuse(b"TT"), "1 bytes follow the model at byte 1");
        assert_eq!(refuse(b"x"), "unknown type 'x' at byte 0");
        assert_eq!(
            refuse(&b"[".repeat(100_000)),
            "more than 32 levels of lists and objects at byte 33"
        );
    }
}
