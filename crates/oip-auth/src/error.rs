//! What is wrong with a file of identities or keys.

use std::{fmt, path::Path};

/// Why a file cannot be used: which, where, and what is wrong. Secrets are not in it.
#[derive(Debug)]
pub struct AuthError(String);

impl AuthError {
    pub(crate) fn new(path: &Path, problem: impl fmt::Display) -> Self {
        Self(format!("{}: {problem}", path.display()))
    }

    pub(crate) fn at(path: &Path, line: usize, problem: impl fmt::Display) -> Self {
        Self(format!("{}, line {line}: {problem}", path.display()))
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AuthError {}
