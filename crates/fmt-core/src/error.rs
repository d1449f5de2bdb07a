use std::{error, fmt, io};

use tensor_core::{Quoted, SpecError};

/// Why a file cannot be read or written: a kind for programs, a sentence for people, and the place.
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
/// // What a program shows whose `main` returns it, too.
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

/// The kinds of errors, one list for all formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system could not read or write.
    Io,
    /// The path does not lead to a regular file.
    NotAFile,
    /// The file ends too early.
    Truncated,
    /// It is a file of another kind.
    BadMagic,
    /// It is a file of a version that is not known.
    BadVersion,
    /// The bytes do not follow the format's grammar.
    Malformed,
    /// Something is larger than the caller's limits or the format allow.
    TooLarge,
    /// A product or a sum does not fit its integer.
    Overflow,
    /// An offset or an index leads outside.
    OutOfBounds,
    /// Two things share some of their bytes.
    Overlap,
    /// An offset is not a multiple of what it must be, or bytes cannot be viewed in place.
    Misaligned,
    /// Two statements about the same size differ.
    SizeMismatch,
    /// It is well-formed but not supported.
    Unsupported,
    /// A name or a key occurs twice.
    Duplicate,
    /// A name is empty, too long or has characters that names may not have.
    BadName,
    /// A checksum or a compressed frame does not hold.
    Corrupt,
    /// The file is not what it was when it was opened.
    Changed,
    /// The target exists, and is not to be replaced.
    Exists,
}

impl Error {
    /// An error about something.
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

    /// An error of the system, with what was being done.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        let mut error = Self::new(ErrorKind::Io, what);
        error.0.source = Some(source);
        error
    }

    /// An error about a dtype and a shape that do not go together.
    #[must_use]
    pub fn of_spec(error: &SpecError) -> Self {
        let kind = match error {
            SpecError::RankTooLarge { .. } => ErrorKind::TooLarge,
            _ => ErrorKind::Overflow,
        };
        Self::new(kind, error.to_string())
    }

    /// A file that ends before what it says it has, with the length that this takes and its own.
    ///
    /// ```
    /// let error = fmt_core::Error::cut_off(90_868_416, 100_000);
    /// assert_eq!(error.to_string(), "the file is cut off, copy or download it again: expected 90868416 bytes, found 100000");
    /// ```
    #[must_use]
    pub fn cut_off(expected: u64, found: u64) -> Self {
        let error = Self::new(
            ErrorKind::Truncated,
            "the file is cut off, copy or download it again",
        );
        error.expected(format_args!("{expected} bytes")).found(found)
    }

    /// Says which tensor it is about; an earlier answer stays.
    #[must_use]
    pub fn of_tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Says at which byte of the file; an earlier answer stays.
    #[must_use]
    pub fn at(mut self, byte: u64) -> Self {
        self.0.at.get_or_insert(byte);
        self
    }

    /// Says within what it is, in front of what it is about.
    #[must_use]
    pub fn within(mut self, place: &str) -> Self {
        self.0.what = format!("{place}: {}", self.0.what);
        self
    }

    /// Says what should have been there.
    #[must_use]
    pub fn expected(mut self, expected: impl fmt::Display) -> Self {
        self.0.expected = Some(expected.to_string());
        self
    }

    /// Says what was there instead.
    #[must_use]
    pub fn found(mut self, found: impl fmt::Display) -> Self {
        self.0.found = Some(found.to_string());
        self
    }

    /// Says which rule of the format's description is broken.
    #[must_use]
    pub fn rule(mut self, rule: &'static str) -> Self {
        self.0.rule = Some(rule);
        self
    }

    /// Gives a rule of a lower layer, such as CBOR's, the name that the format's description has for it. `names` are pairs
    /// of the two.
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

    /// The kind, for programs.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The tensor it is about, if it is about one.
    #[must_use]
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// The byte of the file it is about, if there is one.
    #[must_use]
    pub fn byte(&self) -> Option<u64> {
        self.0.at
    }

    /// The rule of the format's description that is broken, such as `T13`; docs/formats has them.
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
            write!(f, "tensor {}: ", Quoted(tensor))?;
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

/// The message, as [`fmt::Display`]; with `{:#?}` all parts by name.
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
