//! Quotes untrusted names for messages.

use std::fmt::{self, Write};

/// Displays an untrusted name: quoted, escaped, and truncated to [`QuotedName::MAX_CHARS`] characters.
///
/// Control characters, line breaks and invisible formatting (such as right-to-left overrides) are escaped, so
/// a hostile name can neither forge nor flood lines of a log.
///
/// ```
/// use tensor_core::QuotedName;
/// assert_eq!(QuotedName("conv1").to_string(), "'conv1'");
/// assert_eq!(QuotedName("x\nERROR forged").to_string(), r"'x\nERROR forged'");
/// assert_eq!(QuotedName(&"a".repeat(1000)).to_string().chars().count(), QuotedName::MAX_CHARS + 3);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QuotedName<'a>(
    /// The untrusted name, unescaped.
    pub &'a str,
);

impl QuotedName<'_> {
    /// Maximum number of characters shown; an ellipsis replaces further characters.
    pub const MAX_CHARS: usize = 64;
}

/// Returns whether a character is invisible or changes how other characters are displayed: control
/// characters, line and paragraph separators, bidirectional overrides, zero-width joiners, tags.
///
/// ```
/// assert!(tensor_core::is_invisible('\u{202e}') && !tensor_core::is_invisible(' '));
/// ```
#[must_use]
pub fn is_invisible(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

impl fmt::Display for QuotedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('\'')?;
        let mut chars = self.0.chars();
        for char in chars.by_ref().take(Self::MAX_CHARS) {
            match char {
                '"' => f.write_char('"')?,
                char if is_invisible(char) && !char.is_control() => write!(f, "{}", char.escape_default())?,
                _ => write!(f, "{}", char.escape_debug())?,
            }
        }
        if chars.next().is_some() {
            f.write_char('…')?;
        }
        f.write_char('\'')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_on_one_line() {
        for name in [
            "a\r\nb",
            "\u{1b}[2J",
            "a\0b",
            "\u{202e}gnp.exe",
            "a\u{200b}b",
            "it's",
        ] {
            let shown = QuotedName(name).to_string();
            assert!(!shown.chars().any(is_invisible), "{shown}");
        }
        assert_eq!(QuotedName("it's").to_string(), r"'it\'s'");
        assert_eq!(QuotedName("Grüße 日本").to_string(), "'Grüße 日本'");
    }
}
