//! A schema-less parser of the protobuf text format, in which Triton's `config.pbtxt` is written.
//!
//! The grammar is <https://protobuf.dev/reference/protobuf/textformat-spec/>. Names of extensions and of
//! `Any` (`[package.name]`) are not supported, because model configurations have none.

use crate::{
    ConfigError,
    tree::{Node, Value, place},
};

/// Maximum nesting depth of messages and lists. Triton's schema needs 6.
const MAX_DEPTH: usize = 32;

/// Parses a file, which contains the fields of one message.
///
/// # Errors
/// Returns the problem with its line and column.
pub(crate) fn read(text: &str) -> Result<Node, ConfigError> {
    let mut reader = Reader {
        text,
        at: 0,
        depth: 0,
    };
    let fields = reader.fields(None)?;
    Ok(Node {
        value: Value::Message(fields),
        at: Some(0),
    })
}

struct Reader<'t> {
    text: &'t str,
    /// Offset of the next byte.
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    /// Reads fields up to and including `end`, or to the end of the file.
    fn fields(&mut self, end: Option<char>) -> Result<Vec<(String, Node)>, ConfigError> {
        let mut fields = Vec::new();
        loop {
            self.skip_blanks();
            match (self.peek(), end) {
                (None, None) => return Ok(fields),
                (None, Some(end)) => return self.fail(format_args!("the file ends before '{end}'")),
                (Some(found), Some(end)) if found == end => {
                    self.take();
                    return Ok(fields);
                }
                _ => {}
            }
            let name = self.word();
            if name.is_empty() || name.starts_with(|first: char| !first.is_ascii_alphabetic() && first != '_')
            {
                self.at -= name.len();
                return self.expected("the name of a field");
            }
            let name = name.to_owned();
            self.skip_blanks();
            let value = if self.take_if(':') {
                self.skip_blanks();
                self.value()?
            } else if matches!(self.peek(), Some('{' | '<')) {
                self.message()?
            } else if self.peek() == Some('[') {
                // Lists of messages need no colon, and most files omit it.
                self.list()?
            } else {
                return self.expected(&format!("':' or '{{' after '{name}'"));
            };
            fields.push((name, value));
            self.skip_blanks();
            let _ = self.take_if(',') || self.take_if(';');
        }
    }

    fn value(&mut self) -> Result<Node, ConfigError> {
        match self.peek() {
            Some('{' | '<') => self.message(),
            Some('[') => self.list(),
            _ => self.scalar(),
        }
    }

    fn message(&mut self) -> Result<Node, ConfigError> {
        self.nested(|reader| {
            let end = if reader.take() == Some('{') { '}' } else { '>' };
            reader.fields(Some(end)).map(Value::Message)
        })
    }

    fn list(&mut self) -> Result<Node, ConfigError> {
        self.nested(|reader| {
            reader.take();
            let mut items = Vec::new();
            reader.skip_blanks();
            if reader.take_if(']') {
                return Ok(Value::List(items));
            }
            loop {
                if reader.peek() == Some('[') {
                    return reader.fail("a list cannot hold a list");
                }
                items.push(reader.value()?);
                reader.skip_blanks();
                if reader.take_if(']') {
                    return Ok(Value::List(items));
                }
                if !reader.take_if(',') {
                    return reader.expected("',' or ']'");
                }
                reader.skip_blanks();
            }
        })
    }

    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Value, ConfigError>,
    ) -> Result<Node, ConfigError> {
        let at = Some(self.at);
        if self.depth == MAX_DEPTH {
            return self.fail(format_args!("nested deeper than {MAX_DEPTH}"));
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(Node { value, at })
    }

    /// Reads a scalar value: a string, or a number or word exactly as written.
    fn scalar(&mut self) -> Result<Node, ConfigError> {
        let at = Some(self.at);
        if matches!(self.peek(), Some('"' | '\'')) {
            let mut bytes = Vec::new();
            // Adjacent strings are concatenated.
            while let Some(quote @ ('"' | '\'')) = self.peek() {
                self.take();
                self.string(quote, &mut bytes)?;
                self.skip_blanks();
            }
            let text = String::from_utf8(bytes);
            let text = text.or_else(|_| self.fail("the string before this is not UTF-8"))?;
            return Ok(Node {
                value: Value::Text(text),
                at,
            });
        }
        let start = self.at;
        let is_negative = self.take_if('-');
        self.word();
        if self.at == start + usize::from(is_negative) {
            self.at = start;
            return self.expected("a value");
        }
        let value = Value::Word(self.text[start..self.at].to_owned());
        Ok(Node { value, at })
    }

    /// Reads a string from after its opening quote up to the closing quote.
    fn string(&mut self, quote: char, bytes: &mut Vec<u8>) -> Result<(), ConfigError> {
        loop {
            match self.take() {
                Some(found) if found == quote => return Ok(()),
                Some('\\') => self.escape(bytes)?,
                None | Some('\n') => {
                    return self.fail(format_args!("a string is not closed with {quote}"));
                }
                Some(other) => bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), ConfigError> {
        let place = self.at - 1;
        let byte = match self.take() {
            Some('a') => 7,
            Some('b') => 8,
            Some('f') => 12,
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('v') => 11,
            Some(same @ ('\\' | '\'' | '"' | '?')) => same as u8,
            Some('x' | 'X') => {
                let digits = self.digits(16, 2);
                return self.byte(place, digits, bytes);
            }
            Some('0'..='7') => {
                self.at -= 1;
                let digits = self.digits(8, 3);
                return self.byte(place, digits, bytes);
            }
            Some(kind @ ('u' | 'U')) => {
                let wanted = if kind == 'u' { 4 } else { 8 };
                let start = self.at;
                let code = self.digits(16, wanted).filter(|_| self.at == start + wanted);
                let Some(character) = code.and_then(char::from_u32) else {
                    self.at = place;
                    return self.fail("this is not a Unicode character");
                };
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => {
                self.at = place;
                return self.fail("an unknown escape in a string");
            }
        };
        bytes.push(byte);
        Ok(())
    }

    fn byte(&mut self, place: usize, digits: Option<u32>, bytes: &mut Vec<u8>) -> Result<(), ConfigError> {
        match digits.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => bytes.push(byte),
            None => {
                self.at = place;
                return self.fail("not a byte");
            }
        }
        Ok(())
    }

    /// Reads up to `most` digits as a number. Returns `None` if there are no digits.
    fn digits(&mut self, radix: u32, most: usize) -> Option<u32> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let count = rest
            .iter()
            .take(most)
            .take_while(|byte| char::from(**byte).is_digit(radix))
            .count();
        let digits = &self.text[self.at..self.at + count];
        self.at += count;
        u32::from_str_radix(digits, radix).ok()
    }

    /// Reads the characters of a name, word or number.
    fn word(&mut self) -> &str {
        let rest = &self.text[self.at..];
        let mut after_exponent = false;
        let end = rest.find(|found: char| {
            let is_sign_of_exponent = after_exponent && matches!(found, '+' | '-');
            after_exponent =
                matches!(found, 'e' | 'E') && rest.starts_with(|first: char| first.is_ascii_digit());
            !(found.is_ascii_alphanumeric() || matches!(found, '_' | '.') || is_sign_of_exponent)
        });
        let word = &rest[..end.unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let blank = rest.len()
                - rest
                    .trim_start_matches(|found: char| found.is_ascii_whitespace())
                    .len();
            self.at += blank;
            if self.peek() != Some('#') {
                return;
            }
            let comment = &self.text[self.at..];
            self.at += comment.find('\n').unwrap_or(comment.len());
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let taken = self.peek()?;
        self.at += taken.len_utf8();
        Some(taken)
    }

    fn take_if(&mut self, wanted: char) -> bool {
        let is_next = self.peek() == Some(wanted);
        if is_next {
            self.take();
        }
        is_next
    }

    fn expected<T>(&self, what: &str) -> Result<T, ConfigError> {
        match self.peek() {
            Some(found) => self.fail(format_args!("expected {what}, found {found:?}")),
            None => self.fail(format_args!("expected {what}, found the end of the file")),
        }
    }

    fn fail<T>(&self, message: impl std::fmt::Display) -> Result<T, ConfigError> {
        Err(ConfigError::Syntax {
            place: Some(place(self.text, self.at)),
            problem: message.to_string(),
            source: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats the tree compactly: `name=value`, messages in braces, lists in brackets.
    fn show(node: &Node) -> String {
        match &node.value {
            Value::Word(word) => word.clone(),
            Value::Text(text) => format!("{text:?}"),
            Value::Message(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| format!("{name}={}", show(value)))
                    .collect();
                format!("{{{}}}", fields.join(" "))
            }
            Value::List(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" ")),
        }
    }

    #[test]
    fn the_forms_that_people_write() {
        for (text, expected) in [
            ("", "{}"),
            ("# nothing", "{}"),
            ("name: \"m\" max_batch_size: 8", "{name=\"m\" max_batch_size=8}"),
            ("a: 1, b: 2; c: -3\n", "{a=1 b=2 c=-3}"),
            ("x { y: TYPE_FP32 }", "{x={y=TYPE_FP32}}"),
            ("x: < y: true > # so", "{x={y=true}}"),
            ("dims: [ -1, 64 ]", "{dims=[-1 64]}"),
            ("dims: 1 dims: 2", "{dims=1 dims=2}"),
            ("x [\n { a: 1 },\n { a: 2 }\n]", "{x=[{a=1} {a=2}]}"),
            ("x: [{ a: 1 }, { a: 2 }] y: []", "{x=[{a=1} {a=2}] y=[]}"),
            ("s: \"a\" 'b'\n  \"c\"", "{s=\"abc\"}"),
            (r#"s: "\x41\102\n\u00e4\\\"" "#, r#"{s="AB\nä\\\""}"#),
            ("f: 1.5e-3 g: 1e+2f h: -inf", "{f=1.5e-3 g=1e+2f h=-inf}"),
            ("s: \"größe\"", "{s=\"größe\"}"),
        ] {
            match read(text) {
                Ok(node) => assert_eq!(show(&node), expected, "{text}"),
                Err(error) => assert!(error.to_string().contains(expected), "{text}: {error}"),
            }
        }
    }

    #[test]
    fn errors_say_where() {
        for (text, expected) in [
            (
                "name \"m\"",
                "line 1, column 6: expected ':' or '{' after 'name', found '\"'",
            ),
            (
                "a: 1\n  }",
                "line 2, column 3: expected the name of a field, found '}'",
            ),
            ("a {\n b: 1", "line 2, column 6: the file ends before '}'"),
            (
                "a: ",
                "line 1, column 4: expected a value, found the end of the file",
            ),
            ("a: [1 2]", "line 1, column 7: expected ',' or ']', found '2'"),
            ("a: [[1]]", "line 1, column 5: a list cannot hold a list"),
            ("a: \"x\n\"", "line 2, column 1: a string is not closed with \""),
            (
                "ä: 1",
                "line 1, column 1: expected the name of a field, found 'ä'",
            ),
            ("a: \"\\q\"", "line 1, column 5: an unknown escape in a string"),
            (
                "a: \"\\xff\"",
                "line 1, column 10: the string before this is not UTF-8",
            ),
            ("a: \"\\777\"", "line 1, column 5: not a byte"),
            (
                "a: \"\\ud800\"",
                "line 1, column 5: this is not a Unicode character",
            ),
            (
                "1: 2",
                "line 1, column 1: expected the name of a field, found '1'",
            ),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    /// Checks the nesting limit for each notation of messages and lists.
    #[test]
    fn nesting_is_bounded() {
        for open in ["a {", "a: {", "a: [{", "a <"] {
            let error = read(&open.repeat(10_000)).unwrap_err();
            assert!(error.to_string().ends_with("nested deeper than 32"), "{error}");
        }
        assert!(read(&("a {".repeat(32) + &"}".repeat(32))).is_ok());
        assert!(read(&("a {".repeat(33) + &"}".repeat(33))).is_err());
    }
}
