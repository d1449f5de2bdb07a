//! `Tokenizer`, which exporters of scikit-learn's vectorizers write: splits strings into tokens and pads the
//! rows to equal length.

use std::sync::Arc;

use onnx_tensor::prelude::*;
use regex::{Regex, RegexBuilder};

use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{BadInput, Limit, Unsupported, ensure_input},
    node::Node,
    operator::Compute,
    size,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// The maximum number of elements in the output. One long string makes all rows long, since they are padded
/// to equal length.
const MAX_TOKENS: usize = 1 << 24;

/// The maximum size of a compiled regular expression, in bytes.
const MAX_EXPRESSION: usize = 1 << 17;

/// The maximum number of regular expressions in a node.
const MAX_SEPARATORS: usize = 1 << 8;

/// Creates the operator `Tokenizer`.
pub fn tokenizer(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let separators = attributes.texts("separators")?;
    if separators.len() > MAX_SEPARATORS {
        bail!(Unsupported::Here(format!(
            "the attribute 'separators' has {} strings, expected at most {MAX_SEPARATORS}",
            separators.len()
        )));
    }
    let method = match (attributes.text("tokenexp", ""), &*separators) {
        ("", []) => bail!("neither of the attributes 'separators' and 'tokenexp' is given"),
        ("", [separator]) if separator.is_empty() => Method::Letters,
        ("", separators) => Method::Separators(
            separators
                .iter()
                .map(|text| expression(text))
                .collect::<Result<_>>()?,
        ),
        (text, _) => Method::Matches(expression(text)?),
    };
    Ok(kernel(Tokenizer {
        method,
        marks: attributes.int("mark", 0) != 0,
        padding: attributes.text("pad_value", "").to_owned(),
        shortest: usize::try_from(attributes.int("mincharnum", 1))?,
    }))
}

/// The maximum length of a pattern, in bytes. The intermediate representation of a pattern takes a hundred
/// times as much memory.
const MAX_PATTERN: usize = 1 << 14;

/// Compiles a regular expression in the syntax of RE2, whose character classes are ASCII only.
pub(crate) fn expression(text: &str) -> Result<Expression> {
    if text.len() > MAX_PATTERN {
        bail!(Unsupported::Here(format!(
            "an expression of {} bytes is not supported, expected at most {MAX_PATTERN}",
            text.len()
        )));
    }
    let ours = translated(text)?;
    let mut size = LEAST_EXPRESSION;
    loop {
        match RegexBuilder::new(&ours).size_limit(size).build() {
            Ok(regex) => return Ok(Expression { regex, size }),
            Err(regex::Error::CompiledTooBig(_)) if size < MAX_EXPRESSION => size *= 2,
            Err(error) => bail!(Unsupported::Here(format!(
                "the expression {} is not supported: {error}",
                tensor_core::QuotedName(text)
            ))),
        }
    }
}

/// Translates a regular expression from the syntax of RE2 into that of the crate `regex`.
fn translated(text: &str) -> Result<String> {
    let mut ours = String::new();
    let mut characters = text.chars().peekable();
    // Whether the position is within brackets, where the set of special characters is different.
    let mut is_class = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' => {}
            '[' if !is_class => {
                is_class = true;
                ours.push('[');
                if characters.next_if_eq(&'^').is_some() {
                    ours.push('^');
                }
                if characters.next_if_eq(&']').is_some() {
                    ours.push_str("\\]");
                }
                continue;
            }
            // Copies a named class such as `[:alpha:]`.
            '[' if characters.peek() == Some(&':') => {
                ours.push('[');
                for character in characters.by_ref() {
                    ours.push(character);
                    if character == ']' {
                        break;
                    }
                }
                continue;
            }
            '[' | '&' | '~' if is_class => {
                ours.extend(['\\', character]);
                continue;
            }
            '-' if is_class && characters.next_if_eq(&'-').is_some() => {
                ours.push_str("-\\-");
                continue;
            }
            other => {
                is_class &= other != ']';
                ours.push(other);
                continue;
            }
        }
        push_escaped(characters.next(), &mut ours)?;
    }
    Ok(ours)
}

/// Translates a backslash that is followed by `character`, or by the end of the expression.
fn push_escaped(character: Option<char>, ours: &mut String) -> Result<()> {
    match character {
        Some('w') => ours.push_str("[0-9A-Za-z_]"),
        Some('W') => ours.push_str("[^0-9A-Za-z_]"),
        Some('d') => ours.push_str("[0-9]"),
        Some('D') => ours.push_str("[^0-9]"),
        Some('s') => ours.push_str("[\\t\\n\\f\\r ]"),
        Some('S') => ours.push_str("[^\\t\\n\\f\\r ]"),
        Some('b') => ours.push_str("(?-u:\\b)"),
        // RE2 only counts ASCII characters, so `\B` may match within a UTF-8 character.
        Some('B') => bail!(Unsupported::Here(
            "\\B in an expression is not supported".to_owned()
        )),
        Some(plain @ ('<' | '>')) => ours.push(plain),
        Some(other) => ours.extend(['\\', other]),
        None => ours.push('\\'),
    }
    Ok(())
}

/// The assumed minimum size of a compiled regular expression, in bytes.
const LEAST_EXPRESSION: usize = 1 << 10;

/// The maximum product of text length and compiled size, in bytes. A search may take time proportional to the
/// product and cannot be cancelled; at the maximum, a search takes up to half a second.
const MAX_SEARCH: usize = 1 << 30;

/// A compiled regular expression.
#[derive(Debug)]
pub(crate) struct Expression {
    regex: Regex,
    /// The maximum size of the compiled expression, in bytes.
    size: usize,
}

impl Expression {
    /// Checks the length of `text`, and returns the regular expression for a search in it.
    ///
    /// # Errors
    /// Returns [`BadInput`] if `text` is so long that the search could take long.
    pub(crate) fn within(&self, text: &str) -> Result<&Regex> {
        let most = MAX_SEARCH / self.size;
        ensure_input!(
            text.len() <= most,
            "a string has {} bytes, expected at most {most} for an expression of {} bytes, compiled; send \
             it in parts",
            text.len(),
            self.size
        );
        Ok(&self.regex)
    }
}

#[derive(Debug)]
enum Method {
    /// Each character is a token.
    Letters,
    /// Tokens are the parts of a string between separators. Each expression splits the parts that the
    /// previous expressions left.
    Separators(Vec<Expression>),
    Matches(Expression),
}

#[derive(Debug)]
struct Tokenizer {
    method: Method,
    /// Whether each row begins with STX and ends with ETX.
    marks: bool,
    padding: String,
    /// The minimum number of characters in a token.
    shortest: usize,
}

impl Tokenizer {
    /// Returns the tokens of `text`. For each match, counts a scan of the remaining text in `pace`.
    fn tokens<'t>(&self, text: &'t str, pace: &mut Pace) -> Result<Vec<&'t str>> {
        let mut tokens: Vec<&str> = Vec::new();
        match &self.method {
            Method::Letters => {
                pace.spend(text.len() as u64)?;
                admit(text.chars().count())?;
                let letters = text.char_indices();
                tokens.extend(letters.map(|(at, letter)| &text[at..at + letter.len_utf8()]));
            }
            Method::Separators(separators) => {
                tokens.push(text);
                for separator in separators {
                    for part in std::mem::take(&mut tokens) {
                        let mut rest = part.len();
                        for piece in separator.within(part)?.split(part) {
                            pace.spend(8 * rest as u64 + 64)?;
                            rest = rest.saturating_sub(piece.len());
                            tokens.push(piece);
                            admit(tokens.len())?;
                        }
                    }
                }
            }
            Method::Matches(expression) => {
                for found in expression.within(text)?.find_iter(text) {
                    pace.spend(8 * (text.len() - found.start()) as u64 + 64)?;
                    tokens.push(found.as_str());
                    admit(tokens.len())?;
                }
            }
        }
        let mut kept = Vec::with_capacity(tokens.len());
        for tokens in tokens.chunks(PART) {
            let bytes: usize = tokens.iter().map(|token| token.len()).sum();
            pace.spend((tokens.len() + bytes) as u64)?;
            let is_kept = |token: &str| !token.is_empty() && token.chars().count() >= self.shortest;
            kept.extend(tokens.iter().filter(|token| is_kept(token)));
        }
        Ok(kept)
    }
}

fn admit(tokens: usize) -> Result<()> {
    if tokens > MAX_TOKENS {
        bail!(BadInput(format!("more than the limit of {MAX_TOKENS} tokens")));
    }
    Ok(())
}

impl Kernel for Tokenizer {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        if input.element_type != ElementType::String || !matches!(input.rank(), 1 | 2) {
            bail!(Limit("takes strings of one or two dimensions".to_owned()));
        }
        let mut fact = input.with(ElementType::String);
        let count = Dim::unknown();
        fact.shape.push(count.to_dim());
        Ok(vec![fact])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let mut pace = Pace::default();
        let texts = elements::<String>(&inputs[0])?;
        let mut rows: Vec<Vec<&str>> = Vec::with_capacity(texts.len());
        let mut count = 0;
        for text in texts {
            let tokens = self.tokens(text, &mut pace)?;
            count += tokens.len();
            admit(count)?;
            rows.push(tokens);
        }
        let most = rows.iter().map(Vec::len).max().unwrap_or(0);
        // As in ONNX Runtime, STX and ETX are left out if no row has a token.
        let marks = self.marks && most > 0;
        let width = if marks { most + 2 } else { most };
        if rows.len().saturating_mul(width) > MAX_TOKENS {
            bail!(BadInput(format!(
                "{} texts of up to {most} tokens are beyond the limit of {MAX_TOKENS} tokens together",
                rows.len()
            )));
        }
        let padding = rows.iter().map(|row| width - row.len()).sum::<usize>() as u64;
        let contents = rows.iter().flatten().map(|token| token.len() as u64).sum::<u64>();
        let padding = padding.saturating_mul(self.padding.len() as u64);
        let places = size::TEXT * (rows.len() * width) as u64;
        size::admit_texts(places.saturating_add(contents).saturating_add(padding))?;
        let mut tokens: Vec<String> = Vec::with_capacity(rows.len() * width);
        for row in rows {
            let end = tokens.len() + width;
            if marks {
                tokens.push("\u{2}".to_owned());
            }
            pace.spend(64 + width as u64)?;
            for token in row {
                pace.spend(16 + token.len() as u64)?;
                tokens.push(token.to_owned());
            }
            if marks {
                tokens.push("\u{3}".to_owned());
            }
            tokens.resize(end, self.padding.clone());
        }
        let mut shape = inputs[0].shape().to_vec();
        shape.push(width);
        Ok(smallvec![tensor(&shape, tokens)?])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn tokens_are_counted_on_the_way() {
        let letters = Tokenizer {
            method: Method::Letters,
            marks: false,
            padding: String::new(),
            shortest: 1,
        };
        let texts = |count: usize| Arc::new(Tensor::vector(&vec!["ab".repeat(1 << 10); count]));
        assert_eq!(letters.run(&[texts(2)]).unwrap()[0].shape(), [2, 2048]);
        let error = letters.run(&[texts((MAX_TOKENS >> 11) + 1)]).unwrap_err();
        assert!(error.is::<BadInput>(), "{error}");
    }

    #[test]
    fn expressions_have_a_limit() {
        assert!(expression("[ab]*a[ab]{60}c").is_ok());
        assert!(expression("[ab]*a[ab]{6000}c").is_err());
    }

    #[test]
    fn texts_are_as_long_as_their_expression_allows() {
        let text = "a".repeat(MAX_SEARCH / LEAST_EXPRESSION);
        let short = expression("[a-z]+").unwrap();
        assert!(short.within(&text).is_ok());
        let long = expression("[ab]*a[ab]{900}c").unwrap();
        assert!(long.within(&text[..text.len() / 64]).is_ok());
        for (expression, text) in [(&long, &text), (&short, &format!("{text}a"))] {
            assert!(expression.within(text).unwrap_err().is::<BadInput>());
        }
    }

    #[test]
    fn brackets_mean_what_they_do_in_re2() {
        for (pattern, matching, other) in [
            ("[a&&b]", "&", "c"),
            ("[[a]", "[", "b"),
            ("[]a]", "]", "b"),
            ("[^]a]", "b", "]"),
            ("[+--]", ",", "/"),
            ("[[:digit:]~~x]", "~", "y"),
            ("[\\w.]", ".", "\u{e9}"),
            ("\\[a\\]", "[a]", "a"),
        ] {
            let whole = expression(&format!(r"\A(?:{pattern})\z")).unwrap();
            let is_match = |text: &str| whole.within(text).unwrap().is_match(text);
            assert!(is_match(matching) && !is_match(other), "{pattern}");
        }
    }
}
