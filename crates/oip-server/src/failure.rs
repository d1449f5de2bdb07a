/// Why the server failed, in one line, and its exit code.
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) exit_code: u8,
}

impl Failure {
    /// Creates a failure of the command line, the environment or the configuration file.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_code: 2,
        }
    }

    /// Creates any other failure.
    pub(crate) fn run(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_code: 1,
        }
    }
}
