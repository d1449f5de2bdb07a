//! How commands end when they do not end well.

use std::{
    fmt,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anstream::{AutoStream, ColorChoice};
use fmt_core::{Error, ErrorKind};

use crate::{report, table};

/// The result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something is wrong with a file, or with what was asked of it.
    File { path: String, error: Error },
    /// A call to a server failed, or was not made because it would have; the kind is for programs.
    #[cfg(feature = "client")]
    Call {
        kind: String,
        message: String,
        /// Whether the server says that it does not have what was asked for.
        is_not_found: bool,
    },
    /// Standard output or the like failed.
    Io(io::Error),
    /// What the command looked for is there: differences, damage. It has been printed.
    Found,
    /// Two files could not be compared in full; it has been printed.
    NotCompared,
    /// The user ended it.
    Interrupted,
}

impl Failure {
    /// Tells the user, on standard error.
    #[allow(clippy::print_stderr, reason = "this is where errors go")]
    pub(crate) fn report(&self) {
        match self {
            // The reader of the output has seen enough.
            Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Self::Found | Self::NotCompared => {}
            failure if AutoStream::choice(&io::stderr()) == ColorChoice::Never => eprintln!("{failure}"),
            failure => {
                let text = failure.to_string();
                let (kind, rest) = text.split_once(": ").unwrap_or(("", &text));
                let separator = if kind.is_empty() { "" } else { ": " };
                eprintln!("\x1b[1;31m{kind}\x1b[0m{separator}{rest}");
            }
        }
    }

    /// Tells a program, on a line of its own. What was found has been told.
    pub(crate) fn to_json(&self, out: &mut impl Write) -> io::Result<()> {
        let (file, kind, message) = match self {
            Self::Found | Self::NotCompared => return Ok(()),
            Self::File { path, error } => (Some(path.as_str()), error.kind().to_string(), error.to_string()),
            #[cfg(feature = "client")]
            Self::Call { kind, message, .. } => (None, kind.clone(), message.clone()),
            Self::Io(error) => (None, ErrorKind::Io.to_string(), error.to_string()),
            Self::Interrupted => (None, "Interrupted".to_owned(), self.to_string()),
        };
        let error = serde_json::json!({ "file": file, "kind": kind, "message": message });
        report::print(&serde_json::json!({ "error": error }), out)
    }

    /// The program's exit code. Users of `diff` know 1 for a difference and 2 for trouble.
    pub(crate) fn code(&self, is_diff: bool) -> ExitCode {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(130),
            Self::Found => ExitCode::FAILURE,
            _ if is_diff => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => {
                write!(f, "error[{}]: {}: {error}", error.kind(), table::text(path))
            }
            #[cfg(feature = "client")]
            Self::Call { kind, message, .. } => write!(f, "error[{kind}]: {message}"),
            Self::Io(error) => write!(f, "error[{}]: {error}", ErrorKind::Io),
            Self::Found | Self::NotCompared => f.write_str("not as it should be"),
            Self::Interrupted => f.write_str("interrupted; nothing was changed"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Says which file an error is about.
pub(crate) trait About<T> {
    fn about(self, path: &Path) -> Outcome<T>;
}

impl<T> About<T> for Result<T, Error> {
    fn about(self, path: &Path) -> Outcome<T> {
        self.map_err(|error| Failure::File {
            path: path.display().to_string(),
            error,
        })
    }
}
