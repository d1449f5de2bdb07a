//! The transports by which requests are counted and logged.

use http::Request;
use oip_service::route::is_grpc;

/// The transport of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// HTTP/1.1, or HTTP/2 that is not gRPC.
    Http,
    /// gRPC.
    Grpc,
}

impl Transport {
    pub(super) const ALL: [Self; 2] = [Self::Http, Self::Grpc];

    /// Returns the transport of a request at an address that serves both.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        match is_grpc(request) {
            true => Self::Grpc,
            false => Self::Http,
        }
    }

    /// Returns the transport's name for labels and log lines.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}
