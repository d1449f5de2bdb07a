//! Failures of commands, and their exit codes.

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
    /// An error about a file or an operation on it.
    File { path: String, error: Error },
    /// A call to a server failed, or was not made because the input is invalid. `kind` is for programs.
    #[cfg(feature = "client")]
    Call {
        kind: String,
        message: String,
        /// Whether the server responded with the error code `NotFound`.
        is_not_found: bool,
    },
    /// I/O error on standard output or similar.
    Io(io::Error),
    /// The command found differences or damage, and has printed them.
    Found,
    /// Two files could not be compared completely; the command has printed why.
    NotCompared,
    /// The user interrupted the command.
    Interrupted,
}

impl Failure {
    /// Prints the error on standard error.
    #[allow(clippy::print_stderr, reason = "this is where errors go")]
    pub(crate) fn report(&self) {
        match self {
            // The reader of the output closed the pipe.
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

    /// Prints the error as a JSON line. For `Found` and `NotCompared`, prints nothing, because the command
    /// has already printed the details.
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

    /// Returns the exit code. For `tensor diff`, 1 means that the files differ and 2 an error, as for
    /// diff(1).
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

/// Adds the file to an error.
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
