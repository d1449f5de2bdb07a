//! Errors of identity tables and key sets.

use std::{fmt, path::Path};

/// An error in a file, or in a key set at a URL. The message gives the position and the reason, and contains
/// no secrets.
#[derive(Debug)]
pub struct AuthError {
    text: String,
    /// Whether a remote server caused the error, rather than a local file.
    is_of_server: bool,
}

impl AuthError {
    pub(crate) fn new(path: &Path, problem: impl fmt::Display) -> Self {
        Self {
            text: format!("{}: {problem}", path.display()),
            is_of_server: false,
        }
    }

    /// Creates an error about the key set at `url`.
    pub(crate) fn at_url(url: &str, problem: impl fmt::Display) -> Self {
        Self {
            text: format!("{url}: {problem}"),
            is_of_server: true,
        }
    }

    pub(crate) fn at(path: &Path, line: usize, problem: impl fmt::Display) -> Self {
        Self {
            text: format!("{}, line {line}: {problem}", path.display()),
            is_of_server: false,
        }
    }

    pub(crate) fn is_of_server(&self) -> bool {
        self.is_of_server
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for AuthError {}
