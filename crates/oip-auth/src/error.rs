//! Errors of a file of identities, or of keys.

use std::{fmt, path::Path};

/// Why a file or the keys at a URL cannot be used: which, where, and what is wrong. Secrets are not in it.
#[derive(Debug)]
pub struct AuthError {
    text: String,
    /// Whether it is a server's doing, not that of the files here.
    is_of_server: bool,
}

impl AuthError {
    pub(crate) fn new(path: &Path, problem: impl fmt::Display) -> Self {
        Self {
            text: format!("{}: {problem}", path.display()),
            is_of_server: false,
        }
    }

    /// Of what is fetched.
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
