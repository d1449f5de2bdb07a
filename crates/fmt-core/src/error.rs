//! The error type of all readers and writers.

use std::{error, fmt, io};

use tensor_core::{QuotedName, SpecError};

/// An error in reading or writing a file: a kind for programs, a message for people, and the position.
///
/// ```
/// use fmt_core::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::SizeMismatch, "the size of the tensor's data")
///     .of_tensor("layer.0.weight")
///     .at(1024)
///     .expected("24 bytes for f32[2, 3]")
///     .found(23);
/// assert_eq!(
///     error.to_string(),
///     "tensor 'layer.0.weight': the size of the tensor's data, at byte 1024: expected 24 bytes for f32[2, 3], found 23"
/// );
/// // A program whose `main` returns the error prints the same message.
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    what: String,
    tensor: Option<String>,
    at: Option<u64>,
    expected: Option<String>,
    found: Option<String>,
    rule: Option<&'static str>,
    source: Option<io::Error>,
}

/// The kinds of errors, shared by all formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system failed to read or write.
    Io,
    /// The path is not a regular file.
    NotAFile,
    /// The file ends too early.
    Truncated,
    /// The file is of another format.
    BadMagic,
    /// The file has an unknown version.
    BadVersion,
    /// The bytes violate the format's grammar.
    Malformed,
    /// A size or count exceeds a limit of the caller or the format.
    TooLarge,
    /// A product or sum overflows its integer type.
    Overflow,
    /// An offset or index is out of bounds.
    OutOfBounds,
    /// Two byte ranges overlap partially.
    Overlap,
    /// An offset does not have the required alignment, or bytes cannot be viewed in place.
    Misaligned,
    /// A size or length differs from the expected one.
    SizeMismatch,
    /// The contents are well-formed but not supported.
    Unsupported,
    /// A name or key occurs twice.
    Duplicate,
    /// A name is empty, too long or contains invalid characters.
    BadName,
    /// A checksum does not match, or a compressed frame is damaged.
    Corrupt,
    /// The file has changed since it was opened.
    Changed,
    /// The target exists and must not be replaced.
    Exists,
}

impl Error {
    /// Creates an error about `what`, such as "the dtype".
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        let (what, rule) = (what.into(), None);
        Self(Box::new(Inner {
            kind,
            what,
            tensor: None,
            at: None,
            expected: None,
            found: None,
            rule,
            source: None,
        }))
    }

    /// Creates an error from an I/O error; `what` is the attempted operation.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        let mut error = Self::new(ErrorKind::Io, what);
        error.0.source = Some(source);
        error
    }

    /// Creates an error for a dtype and a shape that do not fit together.
    #[must_use]
    pub fn of_spec(error: &SpecError) -> Self {
        let kind = match error {
            SpecError::RankTooLarge { .. } => ErrorKind::TooLarge,
            _ => ErrorKind::Overflow,
        };
        Self::new(kind, error.to_string())
    }

    /// Creates an error for a truncated file, with the expected and the actual length.
    ///
    /// ```
    /// let error = fmt_core::Error::cut_off(90_868_416, 100_000);
    /// assert_eq!(error.to_string(), "the file is truncated; copy or download it again: expected 90868416 bytes, found 100000");
    /// ```
    #[must_use]
    pub fn cut_off(expected: u64, found: u64) -> Self {
        let error = Self::new(
            ErrorKind::Truncated,
            "the file is truncated; copy or download it again",
        );
        error.expected(format_args!("{expected} bytes")).found(found)
    }

    /// Adds the tensor's name, unless the error already has one.
    #[must_use]
    pub fn of_tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Adds the byte position in the file, unless the error already has one.
    #[must_use]
    pub fn at(mut self, byte: u64) -> Self {
        self.0.at.get_or_insert(byte);
        self
    }

    /// Prepends the context `place` to the description of what failed.
    #[must_use]
    pub fn within(mut self, place: &str) -> Self {
        self.0.what = format!("{place}: {}", self.0.what);
        self
    }

    /// Adds the expected value.
    #[must_use]
    pub fn expected(mut self, expected: impl fmt::Display) -> Self {
        self.0.expected = Some(expected.to_string());
        self
    }

    /// Adds the value found.
    #[must_use]
    pub fn found(mut self, found: impl fmt::Display) -> Self {
        self.0.found = Some(found.to_string());
        self
    }

    /// Adds the name of the violated rule, from the format's page in docs/formats.
    #[must_use]
    pub fn rule(mut self, rule: &'static str) -> Self {
        self.0.rule = Some(rule);
        self
    }

    /// Replaces a lower layer's name of the violated rule, such as `cbor`, with the name in the format's
    /// description. `names` are pairs of old and new names.
    ///
    /// ```
    /// use fmt_core::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::Malformed, "the index").rule("cbor");
    /// assert_eq!(error.rename_rule(&[("cbor", "Z25")]).broken_rule(), Some("Z25"));
    /// ```
    #[must_use]
    pub fn rename_rule(mut self, names: &[(&str, &'static str)]) -> Self {
        let known = names.iter().find(|(name, _)| self.0.rule == Some(*name));
        if let Some((_, name)) = known {
            self.0.rule = Some(name);
        }
        self
    }

    /// Returns the kind, for programs that handle kinds of errors differently.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the name of the tensor concerned, if any.
    #[must_use]
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// Returns the byte position in the file, if it is known.
    #[must_use]
    pub fn byte(&self) -> Option<u64> {
        self.0.at
    }

    /// Returns the violated rule of the format's description, such as `T13`; see docs/formats.
    #[must_use]
    pub fn broken_rule(&self) -> Option<&'static str> {
        self.0.rule
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            what,
            tensor,
            at,
            expected,
            found,
            source,
            ..
        } = &*self.0;
        if let Some(tensor) = tensor {
            write!(f, "tensor {}: ", QuotedName(tensor))?;
        }
        f.write_str(what)?;
        if let Some(at) = at {
            write!(f, ", at byte {at}")?;
        }
        match (expected, found) {
            (Some(expected), Some(found)) => write!(f, ": expected {expected}, found {found}")?,
            (Some(expected), None) => write!(f, ": expected {expected}")?,
            (None, Some(found)) => write!(f, ": found {found}")?,
            (None, None) => {}
        }
        match source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

/// Prints the message, like [`fmt::Display`]; with `{:#?}` prints all parts with their names.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return self.0.fmt(f);
        }
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0
            .source
            .as_ref()
            .map(|source| source as &(dyn error::Error + 'static))
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
