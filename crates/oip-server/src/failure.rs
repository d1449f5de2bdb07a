/// What went wrong before or while serving, in one line, and the code the process ends with.
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) exit_code: u8,
}

impl Failure {
    /// The command line, the environment or the configuration file cannot be used.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_code: 2,
        }
    }

    /// Everything else.
    pub(crate) fn run(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_code: 1,
        }
    }
}
