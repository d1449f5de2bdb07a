//! A pull parser for JSON that reports byte offsets.

use std::borrow::Cow;

use tensor_core::QuotedName;

use super::Number;
use crate::ServiceError;

/// Strings of up to this many bytes are scanned eight bytes at a time, and longer ones with memchr.
const SHORT: usize = 24;

/// A JSON (RFC 8259) parser that reads front to back. Errors give the byte offset.
///
/// Offsets are relative to the start of the body.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the first byte of `body`, after a byte order mark if there is one.
    pub(crate) fn new(body: &'a [u8]) -> Result<Self, ServiceError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            ServiceError::invalid(format!("invalid JSON at byte {}: not UTF-8", error.valid_up_to()))
        })?;
        let at = if text.starts_with('\u{feff}') {
            '\u{feff}'.len_utf8()
        } else {
            0
        };
        Ok(Self { text, at })
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Returns a cursor at `position` of the same body. This cursor must have visited `position`.
    pub(crate) fn at(&self, position: usize) -> Self {
        Self {
            text: self.text,
            at: position,
        }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.text.len() - self.at
    }

    /// Returns the next byte, including white space.
    pub(crate) fn peek_raw(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Returns the byte after the next one.
    pub(crate) fn second_raw(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at + 1).copied()
    }

    /// Skips white space and returns the next byte.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        loop {
            let byte = *bytes.get(self.at)?;
            if byte > b' ' || !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Moves to the position that `reader` returns, which must be a character boundary. `reader` gets the
    /// body and the current position.
    pub(crate) fn advance(&mut self, reader: impl FnOnce(&[u8], usize) -> usize) {
        self.at = reader(self.text.as_bytes(), self.at);
    }

    /// Consumes `byte` if it comes next.
    #[inline]
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), ServiceError> {
        if self.eat(byte) {
            return Ok(());
        }
        Err(self.unexpected(&format!("'{}'", char::from(byte))))
    }

    /// Consumes `word` if it comes next.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += if found { word.len() } else { 0 };
        found
    }

    /// Creates an error about the token at this position.
    pub(crate) fn unexpected(&self, expected: &str) -> ServiceError {
        let found = match self.text[self.at..].chars().next() {
            None => "the end".to_owned(),
            Some(char) => QuotedName(char.encode_utf8(&mut [0; 4])).to_string(),
        };
        ServiceError::invalid(format!(
            "invalid JSON at byte {}: expected {expected}, found {found}",
            self.at
        ))
    }

    /// Checks that only white space follows.
    pub(crate) fn finish(mut self) -> Result<(), ServiceError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("the end")),
        }
    }

    /// Reads an object and calls `member` with each name; the cursor is then at the value.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        if self.peek() != Some(b'{') {
            return Err(self.unexpected("an object"));
        }
        self.at += 1;
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a member's name"));
            }
            let name = self.string()?;
            self.expect(b':')?;
            self.peek();
            member(self, name)?;
            if self.eat(b'}') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(self.unexpected("',' or '}'"));
            }
        }
    }

    /// Reads an array, calling `element` with the cursor at each value.
    pub(crate) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        if self.peek() != Some(b'[') {
            return Err(self.unexpected("an array"));
        }
        self.at += 1;
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            self.peek();
            element(self)?;
            if self.eat(b']') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(self.unexpected("',' or ']'"));
            }
        }
    }

    /// Reads a string; borrowed when it has no escapes.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>, ServiceError> {
        if self.peek_raw() != Some(b'"') {
            return Err(self.unexpected("a string"));
        }
        self.at += 1;
        let mut unescaped: Option<String> = None;
        loop {
            let run = self.plain_run()?;
            match self.peek_raw() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(match unescaped {
                        None => Cow::Borrowed(run),
                        Some(start) => Cow::Owned(start + run),
                    });
                }
                // A backslash: plain_run stops only at quotes and backslashes.
                _ => {
                    let so_far = unescaped.get_or_insert_default();
                    so_far.push_str(run);
                    so_far.push(self.escape()?);
                }
            }
        }
    }

    /// Reads characters up to the next quote or backslash.
    fn plain_run(&mut self) -> Result<&'a str, ServiceError> {
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        // Names are short; memchr pays off only on long strings.
        let short = end_of_run(&rest[..rest.len().min(SHORT)]);
        let len = short.or_else(|| {
            let more = rest.get(SHORT..)?;
            let len = memchr::memchr2(b'"', b'\\', more).unwrap_or(more.len());
            let control = more[..len].iter().position(|byte| *byte < b' ');
            Some(SHORT + control.unwrap_or(len))
        });
        self.at += len.unwrap_or(rest.len());
        match self.peek_raw() {
            Some(b'"' | b'\\') => Ok(&self.text[start..self.at]),
            Some(_) => Err(self.unexpected("an escaped control character")),
            None => Err(self.unexpected("'\"'")),
        }
    }

    /// Reads one escape sequence, starting at its backslash.
    fn escape(&mut self) -> Result<char, ServiceError> {
        let start = self.at;
        self.at += 1;
        let letter = self.peek_raw();
        self.at += usize::from(letter.is_some());
        Ok(match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let unit = self.hex4(start)?;
                let low = match unit {
                    0xd800..0xdc00 if self.eat_word("\\u") => Some(self.hex4(start)?),
                    _ => None,
                };
                let units = [Some(unit), low];
                let mut decoded = char::decode_utf16(units.into_iter().flatten());
                match (decoded.next(), decoded.next()) {
                    (Some(Ok(char)), None) => char,
                    _ => return Err(self.at(start).unexpected("no lone surrogate")),
                }
            }
            _ => return Err(self.at(start).unexpected("an escape sequence")),
        })
    }

    fn hex4(&mut self, escape_start: usize) -> Result<u16, ServiceError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.ok_or_else(|| self.at(escape_start).unexpected("four hexadecimal digits"))?;
        self.at += 4;
        Ok(digits.iter().fold(0, |unit, &digit| {
            unit << 4 | char::from(digit).to_digit(16).unwrap_or(0) as u16
        }))
    }

    /// Reads a number, without converting it.
    #[inline]
    pub(crate) fn number(&mut self) -> Result<Number<'a>, ServiceError> {
        match Number::scan(&self.text[self.at..]) {
            Ok(number) => {
                self.at += number.text().len();
                Ok(number)
            }
            Err(valid) => {
                self.at += valid;
                Err(self.unexpected("a digit"))
            }
        }
    }

    /// Skips and validates a value of any kind, nested at most `depth` deep.
    pub(crate) fn skip(&mut self, depth: usize) -> Result<(), ServiceError> {
        let too_deep = |cursor: &Self| {
            let at = cursor.at;
            ServiceError::invalid(format!("invalid JSON at byte {at}: nested too deep"))
        };
        match self.peek() {
            Some(b'{' | b'[') if depth == 0 => Err(too_deep(self)),
            Some(b'{') => self.object(|cursor, _| cursor.skip(depth - 1)),
            Some(b'[') => self.array(|cursor| cursor.skip(depth - 1)),
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            _ if self.eat_word("true") || self.eat_word("false") || self.eat_word("null") => Ok(()),
            _ => Err(self.unexpected("a value")),
        }
    }

    /// Skips tensor data that is parsed and validated later. Looks only at brackets and strings.
    pub(crate) fn skip_data(&mut self) -> Result<(), ServiceError> {
        if self.peek() != Some(b'[') {
            return self.skip(0);
        }
        let bytes = self.text.as_bytes();
        let mut open = 0usize;
        while let Some(next) = memchr::memchr3(b'"', b'[', b']', &bytes[self.at..]) {
            self.at += next;
            match bytes[self.at] {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'[' => open += 1,
                _ => open -= 1,
            }
            self.at += 1;
            if open == 0 {
                return Ok(());
            }
        }
        self.at = bytes.len();
        Err(self.unexpected("']'"))
    }
}

/// Returns the index of the first byte that ends a run of plain characters: a quote, a backslash or a control
/// character. Tests eight bytes at a time; each byte's top bit flags a match. Only the lowest flag is
/// reliable, because the subtraction can borrow from higher bytes.
fn end_of_run(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    let are_below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & TOPS;
    let are = |word: u64, byte: u8| are_below(word ^ (ONES * u64::from(byte)), 1);
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let ends = are(word, b'"') | are(word, b'\\') | are_below(word, b' ');
        if ends != 0 {
            return Some(8 * index + ends.trailing_zeros() as usize / 8);
        }
    }
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\') || *byte < b' ';
    let end = rest.iter().position(is_end)?;
    Some(8 * words.len() + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_at_the_first_of_their_ends() {
        let is_end = |byte: &u8| matches!(byte, b'"' | b'\\') || *byte < b' ';
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        let mut found = 0;
        for len in (0..30).cycle().take(100_000) {
            let bytes: Vec<u8> = (0..len)
                .map(|_| match next() % 16 {
                    0 => next(),
                    // Bytes adjacent to the terminators, and bytes of multi-byte characters.
                    other => *b"!#[]aZ09 ~\x7f\x80\xa2\xdc\xff "
                        .get(usize::from(other))
                        .unwrap_or(&b'x'),
                })
                .collect();
            let expected = bytes.iter().position(is_end);
            assert_eq!(end_of_run(&bytes), expected, "{bytes:?}");
            found += usize::from(expected.is_some());
        }
        assert!((10_000..90_000).contains(&found));
    }

    fn string(text: &str) -> Result<String, String> {
        let mut cursor = Cursor::new(text.as_bytes()).map_err(|error| error.to_string())?;
        cursor
            .string()
            .map(Cow::into_owned)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn strings() {
        assert_eq!(string(r#""plain""#).unwrap(), "plain");
        assert_eq!(
            string(r#""a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00z""#).unwrap(),
            "a\"\\/\u{8}\u{c}\n\r\té😀z"
        );
        assert_eq!(string(r#""\u0000""#).unwrap(), "\0");
        for (text, message) in [
            (r#""abc"#, "invalid JSON at byte 4: expected '\"', found the end"),
            (
                r#""\x""#,
                "invalid JSON at byte 1: expected an escape sequence, found '\\\\'",
            ),
            (
                r#""\u12g4""#,
                "invalid JSON at byte 1: expected four hexadecimal digits, found '\\\\'",
            ),
            (
                "\"a\nb\"",
                "invalid JSON at byte 2: expected an escaped control character, found '\\n'",
            ),
            ("x", "invalid JSON at byte 0: expected a string, found 'x'"),
        ] {
            assert_eq!(string(text).unwrap_err(), message);
        }
    }

    /// Rejects lone surrogates.
    #[test]
    fn lone_surrogates_are_refused() {
        for text in [
            r#""\ud800""#,
            r#""\ud800x""#,
            r#""\ud800\u0041""#,
            r#""\udc00""#,
            r#""\ud800\ud800""#,
        ] {
            assert!(string(text).unwrap_err().contains("no lone surrogate"), "{text}");
        }
    }

    #[test]
    fn whatever_is_skipped_must_be_json() {
        let skip = |text: &str| {
            let mut cursor = Cursor::new(text.as_bytes()).unwrap();
            cursor
                .skip(3)
                .and_then(|()| cursor.finish())
                .map_err(|error| error.to_string())
        };
        for good in [
            "null",
            " true ",
            "-0.5e+3",
            "[1, [2, []]]",
            r#"{"a": {"b": [false]}}"#,
            "\"\"",
            "{}",
        ] {
            assert_eq!(skip(good), Ok(()), "{good}");
        }
        for bad in [
            "", "[1,]", "[1 2]", "{\"a\"}", "{\"a\":}", "{1:2}", "nul", "01", "1.", ".5", "+1", "[", "1 2",
            "[[[[]]]]",
        ] {
            assert!(skip(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn data_is_skipped_to_its_end() {
        for (text, rest) in [
            ("[1, [2], \"]\\\"[\"] , 3", " , 3"),
            ("5,", ","),
            ("\"x\"]", "]"),
            ("null}", "}"),
            ("[]", ""),
        ] {
            let mut cursor = Cursor::new(text.as_bytes()).unwrap();
            cursor.skip_data().unwrap();
            assert_eq!(&text[cursor.position()..], rest);
        }
        for bad in ["[1", "[\"", "[[]", "{"] {
            assert!(Cursor::new(bad.as_bytes()).unwrap().skip_data().is_err(), "{bad}");
        }
    }
}
