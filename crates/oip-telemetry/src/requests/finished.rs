//! The data of a finished request for the access log and traces.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Instant, SystemTime},
};

use http::{Method, Request};
use oip_resources::RequestNotes;
use oip_service::route::{Action, Route};

use super::{request_headers::Ids, transport::Transport};

/// Facts that are recorded when a request begins.
pub(super) struct Facts {
    /// The start of the request; `start` is the same moment on the monotonic clock.
    pub(super) time: SystemTime,
    pub(super) start: Instant,
    pub(super) peer: Option<SocketAddr>,
    pub(super) method: Method,
    /// The truncated path, if the route is unknown.
    pub(super) path: Option<String>,
    pub(super) request_id: Option<String>,
    /// The trace id.
    pub(super) trace: Option<String>,
    pub(super) notes: Arc<RequestNotes>,
}

/// A finished request.
pub(super) struct FinishedExchange<'a> {
    pub(super) transport: Transport,
    pub(super) route: &'static str,
    /// The HTTP status or gRPC code of the response.
    pub(super) code: u16,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) facts: &'a Facts,
}

impl Facts {
    /// Copies the data of a request. `traced` is the id of its trace, if the request is traced.
    pub(super) fn of<B>(
        request: &Request<B>,
        peer: Option<SocketAddr>,
        ids: &Ids,
        traced: Option<String>,
    ) -> Self {
        let is_unknown = Route::of(request).action() == Action::Unknown;
        Self {
            time: SystemTime::now(),
            start: Instant::now(),
            peer,
            method: known(request.method()),
            path: is_unknown.then(|| request.uri().path().chars().take(MAX_PATH).collect()),
            request_id: ids.request().map(str::to_owned),
            notes: match traced {
                Some(_) => Arc::new(RequestNotes::traced()),
                None => Arc::default(),
            },
            trace: ids.trace().or(traced),
        }
    }
}

/// Maximum length of a logged path.
const MAX_PATH: usize = 200;

/// Maximum length of a logged method.
const MAX_METHOD: usize = 20;

/// Returns the method if it is short enough to be logged, or else a placeholder.
fn known(method: &Method) -> Method {
    match method.as_str().len() <= MAX_METHOD {
        true => method.clone(),
        false => Method::from_bytes(b"OTHER").unwrap_or_default(),
    }
}
