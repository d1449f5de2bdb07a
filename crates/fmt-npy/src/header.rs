//! Parses and writes `.npy` headers.

use fmt_core::{Error, ErrorKind, OpaqueDType, StoredDType};
use tensor_core::{DType, DTypeKind, Shape};

/// The magic number of `.npy`.
pub(crate) const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Size of the fixed part of a version 1 header.
pub(crate) const SHORTEST: u64 = 10;

/// Maximum header size in bytes. NumPy's default limit is 10,000.
pub(crate) const LONGEST_HEADER: u64 = 64 << 10;

/// A parsed `.npy` header.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Header {
    /// The dtype as NumPy writes it.
    pub(crate) descr: String,
    /// The dtype in `fmt_core`'s terms.
    pub(crate) dtype: StoredDType,
    /// The element layout; `None` when the dtype is unknown.
    pub(crate) element: Option<Element>,
    pub(crate) is_big_endian: bool,
    /// Whether the array is column-major (Fortran order).
    pub(crate) is_column_major: bool,
    pub(crate) shape: Shape,
    /// Number of bytes before the elements.
    pub(crate) len: u64,
}

/// The layout of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// Size of an element in bytes.
    pub(crate) size: u64,
    /// Size of the words that are byte-swapped for big-endian data.
    pub(crate) word: u64,
}

impl Header {
    /// Returns the header length from the array's first bytes, at least [`SHORTEST`] of them or as many as
    /// exist. `at` is the offset of `head` in the file.
    pub(crate) fn length(head: &[u8], at: u64) -> Result<u64, Error> {
        if !head.starts_with(&MAGIC[..head.len().min(MAGIC.len())]) {
            let error = Error::new(ErrorKind::BadMagic, "the first bytes")
                .at(at)
                .rule("N1");
            return Err(error.expected("'\\x93NUMPY'"));
        }
        let truncated = || {
            let error = Error::new(ErrorKind::Truncated, "the header is truncated").at(at);
            error.rule("N2").found(format_args!("{} bytes", head.len()))
        };
        let version = head.get(6..8).ok_or_else(truncated)?;
        let (width, header_len) = match version {
            [1, 0] => {
                let len = head.get(8..).and_then(|rest| rest.first_chunk());
                (2, u64::from(u16::from_le_bytes(*len.ok_or_else(truncated)?)))
            }
            [2 | 3, 0] => {
                let len = head.get(8..).and_then(|rest| rest.first_chunk());
                (4, u64::from(u32::from_le_bytes(*len.ok_or_else(truncated)?)))
            }
            _ => {
                let error = Error::new(ErrorKind::BadVersion, "the version")
                    .at(at + 6)
                    .rule("N1");
                let found = version.iter().map(u8::to_string).collect::<Vec<_>>().join(".");
                return Err(error.expected("1.0, 2.0 or 3.0").found(found));
            }
        };
        if header_len > LONGEST_HEADER {
            let error = Error::new(ErrorKind::TooLarge, "the length of the header").at(at + 8);
            return Err(error
                .rule("N2")
                .expected(format_args!("at most {LONGEST_HEADER}"))
                .found(header_len));
        }
        Ok(8 + width + header_len)
    }

    /// Parses a complete header of [`Header::length`] bytes.
    pub(crate) fn parse(head: &[u8], at: u64) -> Result<Self, Error> {
        let text = if head.get(6) == Some(&1) { 10 } else { 12 };
        let mut literal = Literal {
            bytes: head,
            position: text.min(head.len()),
            at,
        };
        let (descr, is_column_major, dims) = literal.fields()?;
        let overflow = || {
            let error = Error::new(
                ErrorKind::Overflow,
                "the length of the array does not fit 63 bits",
            );
            error.at(at).rule("N5").found(format_args!("{descr} {dims:?}"))
        };
        let shape = Shape::new(&dims).map_err(|_| overflow())?;
        let known = dtype_of(&descr);
        let element = known.as_ref().map(|(_, element, _)| *element);
        let bytes = shape
            .element_count()
            .checked_mul(element.map_or(1, |element| element.size));
        bytes.filter(|bytes| *bytes < 1 << 63).ok_or_else(overflow)?;
        let (dtype, is_big_endian) = match known {
            Some((dtype, _, is_big_endian)) => (dtype, is_big_endian),
            None => (StoredDType::Unknown(descr.clone()), false),
        };
        Ok(Self {
            dtype,
            element,
            is_big_endian,
            is_column_major,
            shape,
            len: head.len() as u64,
            descr,
        })
    }

    /// Returns the size of all elements; `None` when the dtype is unknown.
    pub(crate) fn byte_len(&self) -> Option<u64> {
        // Parsing has checked that the product fits 64 bits.
        Some(self.shape.element_count() * self.element?.size)
    }

    /// Encodes the header that NumPy writes for a tensor: version 1, padded so that the elements are aligned
    /// to 64.
    pub(crate) fn encode(descr: &str, shape_of: &Shape) -> Option<Vec<u8>> {
        let dims = shape_of.dims().iter().map(u64::to_string);
        let mut shape = dims.collect::<Vec<_>>().join(", ");
        if shape_of.rank() == 1 {
            shape.push(',');
        }
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
        let len = (SHORTEST as usize + text.len() + 1).next_multiple_of(64);
        text.extend(std::iter::repeat_n(' ', len - SHORTEST as usize - text.len() - 1));
        text.push('\n');
        // The shape has at most 64 dimensions of 20 digits, so the length fits 16 bits.
        let text_len = u16::try_from(text.len()).ok()?;
        let mut head = MAGIC.to_vec();
        head.extend([1, 0]);
        head.extend(text_len.to_le_bytes());
        head.extend(text.as_bytes());
        Some(head)
    }
}

/// Parses a dtype description into a dtype, an element layout and a byte order. Rejects native byte order for
/// multi-byte types.
fn dtype_of(descr: &str) -> Option<(StoredDType, Element, bool)> {
    let (order, name) = match descr.as_bytes().first()? {
        b'<' | b'>' | b'|' | b'=' => descr.split_at(1),
        _ => ("", descr),
    };
    let (dtype, element) = element_of(order, name)?;
    match order {
        "<" => Some((dtype, element, false)),
        ">" => Some((dtype, element, true)),
        _ => (element.word == 1).then_some((dtype, element, false)),
    }
}

fn element_of(order: &str, name: &str) -> Option<(StoredDType, Element)> {
    let known = |dtype: DType| {
        let size = dtype.size() as u64;
        Some((StoredDType::Known(dtype), Element { size, word: size }))
    };
    let opaque = |name: &str, size: u32, word: u64| {
        let size = Some(size).filter(|size| *size > 0)?;
        let element = Element {
            size: size.into(),
            word,
        };
        Some((StoredDType::Opaque(OpaqueDType::new(name, 1, size)), element))
    };
    let plain = DType::ALL
        .into_iter()
        .find(|dtype| code_of(*dtype).as_deref() == Some(name));
    if let Some(dtype) = plain.or((name == "?").then_some(DType::Bool)) {
        return known(dtype);
    }
    let (kind, rest) = name.split_at_checked(1)?;
    let digits = || {
        let is_number = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        rest.parse::<u32>().ok().filter(|_| is_number)
    };
    match (kind, rest) {
        // `ml_dtypes` writes its types as raw bytes with a byte order, which genuine raw bytes lack. Of these
        // types, only bfloat16 has two bytes.
        ("V", "2") if order == "<" => known(DType::BF16),
        ("f", "1") => opaque("F8_E5M2", 1, 1),
        ("c", "8") => opaque("C64", 8, 4),
        ("c", "16") => opaque("C128", 16, 8),
        ("S" | "a", _) => opaque(&format!("S{rest}"), digits()?, 1),
        ("V", _) => opaque(name, digits()?, 1),
        // Strings of UTF-32 code points.
        ("U", _) => opaque(name, digits()?.checked_mul(4)?, 4),
        // Times with a unit.
        ("M" | "m", _) if is_time(rest) => opaque(name, 8, 8),
        _ => None,
    }
}

/// Returns whether `rest` is `8`, optionally with a unit such as `8[25us]`.
fn is_time(rest: &str) -> bool {
    let unit = rest.strip_prefix('8').map(|unit| {
        let inner = unit.strip_prefix('[').and_then(|unit| unit.strip_suffix(']'));
        (unit.is_empty(), inner)
    });
    match unit {
        Some((true, _)) => true,
        Some((_, Some(inner))) => {
            !inner.is_empty() && inner.len() < 16 && inner.bytes().all(|byte| byte.is_ascii_alphanumeric())
        }
        _ => false,
    }
}

/// Returns NumPy's name of a dtype without byte order; `None` for bfloat16, which NumPy lacks.
fn code_of(dtype: DType) -> Option<String> {
    let kind = match dtype.kind() {
        _ if dtype == DType::BF16 => return None,
        DTypeKind::Bool => 'b',
        DTypeKind::Unsigned => 'u',
        DTypeKind::Signed => 'i',
        DTypeKind::Float => 'f',
        _ => return None,
    };
    Some(format!("{kind}{}", dtype.size()))
}

/// Returns NumPy's description of a little-endian dtype, if any; for bfloat16, the description that
/// `ml_dtypes` saves.
pub(crate) fn descr_of(dtype: DType) -> Option<String> {
    if dtype == DType::BF16 {
        return Some("<V2".to_owned());
    }
    let order = if dtype.size() == 1 { '|' } else { '<' };
    Some(format!("{order}{}", code_of(dtype)?))
}

/// Returns NumPy's description of an opaque dtype, if it is one of NumPy's.
pub(crate) fn descr_of_opaque(dtype: &OpaqueDType) -> Option<String> {
    let name = match dtype.name() {
        "C64" => "c8",
        "C128" => "c16",
        // NumPy cannot read back the description that `ml_dtypes` makes it write.
        "F8_E5M2" => return None,
        other => other,
    };
    ["|", "<"].into_iter().find_map(|order| {
        let descr = format!("{order}{name}");
        let (found, element, _) = dtype_of(&descr)?;
        let is_same = found == StoredDType::Opaque(dtype.clone()) && element.size > 0;
        is_same.then_some(descr)
    })
}

/// A parser for the subset of Python literals in headers.
struct Literal<'a> {
    bytes: &'a [u8],
    position: usize,
    at: u64,
}

impl Literal<'_> {
    fn error(&self, what: &str) -> Error {
        let error = Error::new(ErrorKind::Malformed, format!("the header: {what}"));
        error.at(self.at + self.position as u64).rule("N3")
    }

    /// Parses the header's dictionary up to the end of the header: `descr`, `fortran_order` and `shape`.
    fn fields(&mut self) -> Result<(String, bool, Vec<u64>), Error> {
        const KEYS: &str = "descr, fortran_order and shape";
        let (mut descr, mut order, mut dims) = (None, None, None);
        self.expect(b'{')?;
        while !self.takes(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let is_new = match key.as_str() {
                "descr" => descr.replace(self.descr()?).is_none(),
                "fortran_order" => order.replace(self.boolean()?).is_none(),
                "shape" => dims.replace(self.tuple()?).is_none(),
                _ => return Err(self.error("the keys").expected(KEYS)),
            };
            if !is_new {
                return Err(self.error("a key is given twice"));
            }
            if !self.takes(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.end()?;
        match (descr, order, dims) {
            (Some(descr), Some(order), Some(dims)) => Ok((descr, order, dims)),
            _ => Err(self.error("the keys").expected(KEYS)),
        }
    }

    /// Skips white space and returns the next byte; `None` at the end.
    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.position).is_some_and(u8::is_ascii_whitespace) {
            self.position += 1;
        }
        self.bytes.get(self.position).copied()
    }

    fn takes(&mut self, wanted: u8) -> bool {
        let is_next = self.peek() == Some(wanted);
        self.position += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Error> {
        if self.takes(wanted) {
            return Ok(());
        }
        let found = self
            .peek()
            .map_or("its end".to_owned(), |byte| format!("{:?}", char::from(byte)));
        let expected = char::from(wanted);
        Err(self
            .error("its text")
            .expected(format_args!("{expected:?}"))
            .found(found))
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.error("unexpected data after the dictionary")),
        }
    }

    /// Reads bytes while they satisfy `is_wanted`.
    fn while_is(&mut self, is_wanted: impl Fn(&u8) -> bool) -> &[u8] {
        let start = self.position;
        while self.bytes.get(self.position).is_some_and(&is_wanted) {
            self.position += 1;
        }
        &self.bytes[start..self.position]
    }

    fn string(&mut self) -> Result<String, Error> {
        let quote = self.peek().filter(|byte| matches!(byte, b'\'' | b'"'));
        let quote = quote.ok_or_else(|| self.error("a string is missing"))?;
        self.position += 1;
        let text = self.while_is(|byte| *byte != quote && *byte != b'\\' && *byte != b'\n');
        let text = String::from_utf8_lossy(text).into_owned();
        // Strings in headers never need escapes.
        self.expect(quote)?;
        Ok(text)
    }

    /// Reads a string; a structured dtype (a list) is kept as text.
    fn descr(&mut self) -> Result<String, Error> {
        if self.peek() != Some(b'[') {
            return self.string();
        }
        let start = self.position;
        let mut depth = 0u32;
        loop {
            match self.peek() {
                Some(b'[' | b'(') => depth += 1,
                Some(b']' | b')') => depth = depth.saturating_sub(1),
                Some(b'\'' | b'"') => {
                    self.string()?;
                    continue;
                }
                Some(_) => {}
                None => return Err(self.error("the description of the dtype is not closed")),
            }
            self.position += 1;
            if depth == 0 {
                let text = &self.bytes[start..self.position];
                return Ok(String::from_utf8_lossy(text).into_owned());
            }
        }
    }

    fn boolean(&mut self) -> Result<bool, Error> {
        self.peek();
        match self.while_is(u8::is_ascii_alphabetic) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => Err(self.error("fortran_order").expected("True or False")),
        }
    }

    /// Reads a tuple of integers, limited to the maximum rank.
    fn tuple(&mut self) -> Result<Vec<u64>, Error> {
        self.expect(b'(')?;
        let mut numbers = Vec::new();
        let mut has_comma = true;
        while !self.takes(b')') {
            if !has_comma {
                return Err(self.error("the shape").expected("a comma"));
            }
            if numbers.len() == Shape::MAX_RANK {
                let error = Error::new(ErrorKind::TooLarge, "the rank").at(self.at);
                return Err(error
                    .rule("N5")
                    .expected(format_args!("at most {}", Shape::MAX_RANK)));
            }
            self.peek();
            let digits = self.while_is(u8::is_ascii_digit);
            let number = std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse().ok());
            numbers.push(number.ok_or_else(|| self.error("the shape").expected("64-bit integers"))?);
            // Python 2 appended `L` to long integers.
            if self.bytes.get(self.position) == Some(&b'L') {
                self.position += 1;
            }
            has_comma = self.takes(b',');
        }
        if numbers.len() == 1 && !has_comma {
            return Err(self
                .error("the shape")
                .expected("a comma, which makes one number a tuple"));
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_dtypes() {
        let stored = |descr: &str| dtype_of(descr).map(|(dtype, _, is_big)| (dtype, is_big));
        for dtype in DType::ALL {
            let descr = descr_of(dtype).unwrap();
            assert_eq!(stored(&descr), Some((StoredDType::Known(dtype), false)));
        }
        assert_eq!(stored(">f4"), Some((StoredDType::Known(DType::F32), true)));
        assert_eq!(stored("?"), Some((StoredDType::Known(DType::Bool), false)));
        for (descr, name, size, word) in [
            ("<c8", "C64", 8, 4),
            ("<c16", "C128", 16, 8),
            ("|S3", "S3", 3, 1),
            ("<U5", "U5", 20, 4),
            (">U5", "U5", 20, 4),
            ("|V2", "V2", 2, 1),
            ("<V1", "V1", 1, 1),
            ("<f1", "F8_E5M2", 1, 1),
            ("<M8[25us]", "M8[25us]", 8, 8),
            ("<m8", "m8", 8, 8),
        ] {
            let (dtype, element, is_big) = dtype_of(descr).unwrap();
            let opaque = OpaqueDType::new(name, 1, size);
            assert_eq!(
                element,
                Element {
                    size: size.into(),
                    word
                }
            );
            assert_eq!(is_big, descr.starts_with('>'));
            match descr_of_opaque(&opaque) {
                Some(again) => assert_eq!(again[1..], descr[1..], "{descr}"),
                None => assert_eq!(name, "F8_E5M2"),
            }
            assert_eq!(dtype, StoredDType::Opaque(opaque));
        }
        for descr in [
            "",
            "<",
            "f4",
            "=f4",
            "|f4",
            "<f3",
            "<f16",
            "|O",
            "|S0",
            "<U",
            "<U+1",
            "<U1073741824",
            "=U2",
            "<f4 ",
            "f",
            "<M8[",
            "<M8[]",
            "<M4",
            "<W4",
            "ä",
        ] {
            assert_eq!(dtype_of(descr), None, "{descr}");
        }
        assert_eq!(descr_of_opaque(&OpaqueDType::new("F8_E4M3", 1, 1)), None);
        assert_eq!(descr_of_opaque(&OpaqueDType::new("Q8_0", 32, 34)), None);
        assert_eq!(descr_of_opaque(&OpaqueDType::new("S3", 1, 4)), None);
    }

    #[test]
    fn headers_are_those_that_numpy_writes() {
        let text = |dims: &[u64]| {
            let shape = Shape::new(dims).unwrap();
            let head = Header::encode("<f4", &shape).unwrap();
            assert_eq!(head.len() % 64, 0);
            assert_eq!(Header::length(&head, 0).unwrap(), head.len() as u64);
            let header = Header::parse(&head, 0).unwrap();
            assert_eq!(
                (header.dtype, header.shape),
                (StoredDType::Known(DType::F32), shape)
            );
            String::from_utf8_lossy(&head[10..]).trim_end().to_owned()
        };
        assert_eq!(
            text(&[]),
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), }"
        );
        assert_eq!(
            text(&[3]),
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
        );
        assert_eq!(
            text(&[3, 4]),
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"
        );
        text(&[1 << 61, 1, 1, 1, 1, 0]);
        text(&[1; 64]);
    }
}
