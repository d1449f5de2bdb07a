use fmt_core::{Error, ErrorKind};
use tensor_core::{DType, DTypeKind, Shape, TensorSpec};

/// What every `.npy` file begins with.
pub(crate) const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Bytes up to the header's length, and that length in version 1.
pub(crate) const SHORTEST: u64 = 10;

/// The longest header that is read. NumPy itself reads no more than 10,000 bytes unless told to.
pub(crate) const LONGEST_HEADER: u64 = 64 << 10;

/// What a `.npy` header says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Header {
    /// The dtype as NumPy writes it.
    pub(crate) descr: String,
    pub(crate) dtype: Option<DType>,
    pub(crate) is_big_endian: bool,
    /// Whether the first axis is the one that changes fastest.
    pub(crate) is_column_major: bool,
    pub(crate) shape: Shape,
    /// Bytes of the array before its elements.
    pub(crate) len: u64,
}

impl Header {
    /// How long the part before the elements is, as its first bytes say: at least [`SHORTEST`], or as many as there are.
    /// `at` is where they stand in the file.
    pub(crate) fn length(head: &[u8], at: u64) -> Result<u64, Error> {
        if !head.starts_with(&MAGIC[..head.len().min(MAGIC.len())]) {
            let error = Error::new(ErrorKind::BadMagic, "the first bytes")
                .at(at)
                .rule("N1");
            return Err(error.expected("'\\x93NUMPY'"));
        }
        let truncated = || {
            let error = Error::new(ErrorKind::Truncated, "the header is cut off").at(at);
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

    /// Reads all before the elements, which is as long as [`Header::length`] says.
    pub(crate) fn parse(head: &[u8], at: u64) -> Result<Self, Error> {
        let text = if head.get(6) == Some(&1) { 10 } else { 12 };
        let mut literal = Literal {
            bytes: head,
            position: text.min(head.len()),
            at,
        };
        let (mut descr, mut order, mut dims) = (None, None, None);
        literal.expect(b'{')?;
        while !literal.takes(b'}') {
            let key = literal.string()?;
            literal.expect(b':')?;
            let is_new = match key.as_str() {
                "descr" => descr.replace(literal.descr()?).is_none(),
                "fortran_order" => order.replace(literal.boolean()?).is_none(),
                "shape" => dims.replace(literal.tuple()?).is_none(),
                _ => {
                    return Err(literal
                        .error("the keys")
                        .expected("descr, fortran_order and shape"));
                }
            };
            if !is_new {
                return Err(literal.error("a key is given twice"));
            }
            if !literal.takes(b',') {
                literal.expect(b'}')?;
                break;
            }
        }
        literal.end()?;
        let (Some(descr), Some(is_column_major), Some(dims)) = (descr, order, dims) else {
            return Err(literal
                .error("the keys")
                .expected("descr, fortran_order and shape"));
        };
        let overflow = || {
            let error = Error::new(
                ErrorKind::Overflow,
                "the length of the array does not fit 63 bits",
            );
            error.at(at).rule("N5").found(format_args!("{descr} {dims:?}"))
        };
        let shape = Shape::new(&dims).map_err(|_| overflow())?;
        let (dtype, is_big_endian) =
            dtype_of(&descr).map_or((None, false), |(dtype, big)| (Some(dtype), big));
        let bytes = shape
            .element_count()
            .checked_mul(dtype.map_or(1, |dtype| dtype.size() as u64));
        bytes.filter(|bytes| *bytes < 1 << 63).ok_or_else(overflow)?;
        Ok(Self {
            dtype,
            is_big_endian,
            is_column_major,
            shape,
            len: head.len() as u64,
            descr,
        })
    }

    pub(crate) fn spec(&self) -> Option<TensorSpec> {
        TensorSpec::new(self.dtype?, self.shape.clone()).ok()
    }

    /// What NumPy writes for a tensor: version 1, padded so that the elements begin on a multiple of 64.
    pub(crate) fn encode(spec: &TensorSpec) -> Option<Vec<u8>> {
        let descr = descr_of(spec.dtype())?;
        let dims = spec.shape().dims().iter().map(u64::to_string);
        let mut shape = dims.collect::<Vec<_>>().join(", ");
        if spec.shape().rank() == 1 {
            shape.push(',');
        }
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
        let len = (SHORTEST as usize + text.len() + 1).next_multiple_of(64);
        text.extend(std::iter::repeat_n(' ', len - SHORTEST as usize - text.len() - 1));
        text.push('\n');
        // At most 64 dimensions of 20 digits.
        let text_len = u16::try_from(text.len()).ok()?;
        let mut head = MAGIC.to_vec();
        head.extend([1, 0]);
        head.extend(text_len.to_le_bytes());
        head.extend(text.as_bytes());
        Some(head)
    }
}

/// The dtype of a description, and whether it is big-endian. Descriptions that leave the order to the machine have none.
fn dtype_of(descr: &str) -> Option<(DType, bool)> {
    let (order, name) = match descr.as_bytes().first()? {
        b'<' | b'>' | b'|' | b'=' => descr.split_at(1),
        _ => ("", descr),
    };
    let dtype = DType::ALL
        .into_iter()
        .find(|dtype| code_of(*dtype).as_deref() == Some(name));
    let dtype = dtype.or((name == "?").then_some(DType::Bool))?;
    match order {
        "<" => Some((dtype, false)),
        ">" => Some((dtype, true)),
        _ => (dtype.size() == 1).then_some((dtype, false)),
    }
}

/// What NumPy calls a dtype without its order; it has no bfloat16, nor kinds beyond these.
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

/// What NumPy calls a little-endian dtype, if it has it.
pub(crate) fn descr_of(dtype: DType) -> Option<String> {
    let order = if dtype.size() == 1 { '|' } else { '<' };
    Some(format!("{order}{}", code_of(dtype)?))
}

/// The little of Python's literals that headers are made of.
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

    /// The next byte that is not white space.
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
            Some(_) => Err(self.error("something follows the dictionary")),
        }
    }

    /// Bytes up to one that is not wanted.
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
        // Nothing that headers are made of takes escapes.
        self.expect(quote)?;
        Ok(text)
    }

    /// A string, or whatever a list of fields is made of, which is kept as it stands.
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
                None => return Err(self.error("the description of the dtype does not end")),
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

    /// A tuple of whole numbers, of which there are not more than any shape has.
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
            numbers.push(number.ok_or_else(|| self.error("the shape").expected("whole numbers of 64 bits"))?);
            // As Python 2 wrote long numbers.
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
        for dtype in DType::ALL {
            let descr = descr_of(dtype);
            assert_eq!(descr.is_some(), dtype != DType::BF16);
            if let Some(descr) = descr {
                assert_eq!(dtype_of(&descr), Some((dtype, false)));
            }
        }
        assert_eq!(dtype_of(">f4"), Some((DType::F32, true)));
        assert_eq!(dtype_of("?"), Some((DType::Bool, false)));
        for descr in [
            "", "<", "f4", "=f4", "|f4", "<f3", "<c8", "|S3", "|O", "<V2", "<f4 ", "f",
        ] {
            assert_eq!(dtype_of(descr), None, "{descr}");
        }
    }

    #[test]
    fn headers_are_those_that_numpy_writes() {
        let spec = |dims: &[u64]| TensorSpec::new(DType::F32, Shape::new(dims).unwrap()).unwrap();
        let text = |dims: &[u64]| {
            let head = Header::encode(&spec(dims)).unwrap();
            assert_eq!(head.len() % 64, 0);
            assert_eq!(Header::length(&head, 0).unwrap(), head.len() as u64);
            assert_eq!(Header::parse(&head, 0).unwrap().spec(), Some(spec(dims)));
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
