//! Model and version names that are safe as file names and path segments.

use std::fmt;

use tensor_core::QuotedName;

use crate::ServiceError;

/// A reference to a model: a name and an optional version. Both are safe as a file name, in a log line and as
/// a path segment.
///
/// A name is 1 to 255 bytes of UTF-8 without control characters, `/` or `\`. It is not `.`, `..` or `~`, even
/// with surrounding blanks, and not a hidden file's name (`.x`).
///
/// ```
/// use oip_types::ModelRef;
///
/// let model = ModelRef::new("digits", Some("2")).unwrap();
/// assert_eq!((model.name(), model.version()), ("digits", Some("2")));
/// assert_eq!(model.to_string(), "model 'digits' version '2'");
/// // Clients may send an empty version to let the server choose.
/// assert_eq!(ModelRef::new("digits", Some("")).unwrap().version(), None);
/// assert!(ModelRef::new("../etc", None).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelRef<'a> {
    name: &'a str,
    version: Option<&'a str>,
}

impl<'a> ModelRef<'a> {
    /// Creates a reference after checking name and version.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when either is not a safe name.
    pub fn new(name: &'a str, version: Option<&'a str>) -> Result<Self, ServiceError> {
        let version = version.filter(|version| !version.is_empty());
        check_name("model name", name)?;
        version.map_or(Ok(()), |version| check_name("model version", version))?;
        Ok(Self { name, version })
    }

    /// Returns the model's name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the requested version; `None` lets the server choose.
    #[must_use]
    pub fn version(&self) -> Option<&'a str> {
        self.version
    }
}

impl fmt::Display for ModelRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model {}", QuotedName(self.name))?;
        match self.version {
            Some(version) => write!(f, " version {}", QuotedName(version)),
            None => Ok(()),
        }
    }
}

/// Checks a model or version name; `what` is the kind of name, for the error message.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) that states the violated rule.
pub fn check_name(what: &str, name: &str) -> Result<(), ServiceError> {
    const MAX_BYTES: usize = 255;
    // Fast path: nearly all names consist of these bytes.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let starts_plainly = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if starts_plainly && name.len() <= MAX_BYTES && name.bytes().all(is_plain) {
        return Ok(());
    }
    let bare = name.trim();
    let rule = if bare.is_empty() {
        "must not be empty"
    } else if name.len() > MAX_BYTES {
        "must not be longer than 255 bytes"
    } else if name.contains(['/', '\\']) {
        "must not contain a path separator"
    } else if name.chars().any(char::is_control) {
        "must not contain control characters"
    } else if matches!(bare, "." | ".." | "~") || (name.starts_with('.') && !name.starts_with("..")) {
        "must not be a path or a hidden file's name"
    } else {
        return Ok(());
    };
    Err(ServiceError::invalid(format!(
        "{what} {} {rule}",
        QuotedName(name)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rejects names that could escape the repository's directory.
    #[test]
    fn unsafe_names_are_refused() {
        let long = "a".repeat(256);
        for name in [
            "../etc",
            "a/../b",
            "..",
            "/etc/passwd",
            "m/",
            " ..",
            ".. ",
            "",
            "\t",
            "a\0",
            &long,
            ".hidden",
            "~",
            ".",
            "a\\b",
            "x\nERROR forged",
        ] {
            let error = ModelRef::new(name, None).unwrap_err();
            assert_eq!(error.code(), crate::ErrorCode::InvalidArgument);
            assert!(!error.message().contains('\n'));
            assert!(
                name.is_empty() || ModelRef::new("m", Some(name)).is_err(),
                "{name:?}"
            );
        }
    }

    /// Accepts odd but harmless names.
    #[test]
    fn odd_names_are_allowed() {
        for name in [
            "...", "..m", "m..1", "m.v1", "größe", "模型", "a b", "-1", "01", "v10",
        ] {
            assert!(ModelRef::new(name, Some(name)).is_ok(), "{name:?}");
        }
    }
}
