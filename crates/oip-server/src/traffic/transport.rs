//! The transports by which requests are counted and logged.

/// The transport of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Http,
    Grpc,
}

impl Transport {
    /// Returns the transport's name for labels and log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}
