//! A fatal error of the program and its exit code.

/// A fatal error as one line, with the exit code.
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) exit_code: u8,
}

impl Failure {
    /// Creates an error about the command line, the environment or the configuration file.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_code: 2,
        }
    }

    /// Creates an error about anything other than the command line, the environment or the configuration
    /// file.
    pub(crate) fn run(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_code: 1,
        }
    }
}
