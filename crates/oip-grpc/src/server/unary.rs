//! `ModelInfer`: one request message, one response message.

use std::{
    collections::VecDeque,
    convert::Infallible,
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body::{Body, Frame};
use oip_resources::{Lease, Phase, RequestNotes, compression::Compression};
use oip_service::Grant;
use oip_types::{ErrorCode, ServiceError};
use tokio::time::timeout;
use tonic::Status;

use super::{
    encoding,
    inference::{EncodedResponses, Inference, ResponseOptions},
    messages::Messages,
    response::Envelope,
    status,
};

/// Handles a `ModelInfer` call.
pub(crate) async fn call<B>(inference: Arc<Inference>, request: Request<B>) -> Response<tonic::body::Body>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    answer(&inference, request)
        .await
        .unwrap_or_else(Status::into_http)
}

async fn answer<B>(
    inference: &Arc<Inference>,
    request: Request<B>,
) -> Result<Response<tonic::body::Body>, Status>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let config = &inference.config;
    let (head, body) = request.into_parts();
    let own = encoding::of_request(&head.headers)?;
    let wanted = ResponseOptions {
        timeout: status::timeout(&head.headers).map_err(|error| status::from_error(&error))?,
        envelope: Envelope::Call,
        compression: encoding::of_answer(&head.headers, own),
    };
    let grant = head.extensions.get::<Grant>().cloned();
    let notes = head.extensions.get::<Arc<RequestNotes>>().cloned();
    let lease = Lease::new(&config.budget, &config.time);
    #[cfg(unix)]
    if let Some(region) = head.extensions.get::<oip_resources::ConnectionRegion>() {
        lease.use_memory_of(region);
    }
    // The headers are freed now: the message may take long to arrive, and small headers are not charged to
    // the budget.
    drop(head);
    if let Some(notes) = notes {
        lease.set_notes(notes);
    }
    let mut laps = lease.laps();
    // If the client disconnects, this future is dropped, which cancels the work.
    let guard = lease.guard();
    let patience = wanted
        .timeout
        .map_or(config.time.max, |timeout| timeout.min(config.time.max));
    let mut messages = Messages::new(body, own, config);
    let message = timeout(patience, messages.only(&lease))
        .await
        .unwrap_or_else(|_| {
            let message = "the deadline passed before the request was read";
            Err(status::from_error(&ServiceError::new(
                ErrorCode::DeadlineExceeded,
                message,
            )))
        })?;
    laps.end(Phase::Read);
    let pieces = match inference.infer(message, wanted, grant.as_ref()).await? {
        EncodedResponses::Once(pieces) => pieces,
        // Only streams request several responses.
        EncodedResponses::Several(_) => {
            let error = ServiceError::internal("several responses to a unary call");
            return Err(status::from_error(&error));
        }
    };
    guard.disarm();
    Ok(success(pieces, wanted.compression))
}

/// Creates the response of a successful call from the pieces of its message.
fn success(pieces: Vec<Bytes>, compression: Option<Compression>) -> Response<tonic::body::Body> {
    let mut response = Response::new(tonic::body::Body::new(Outgoing {
        pieces: pieces.into(),
        trailers: Some(status::trailers(&Status::ok(""))),
    }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, status::CONTENT_TYPE);
    if let Some(compression) = compression {
        headers.insert(encoding::ENCODING, encoding::header_value(compression));
    }
    response
}

/// A response body. Each buffer holds its charge until it is sent.
struct Outgoing {
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.pop_front().map(Frame::data);
        let frame = piece.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;
    use oip_service::testing::TestService;

    use super::*;
    use crate::GrpcConfig;

    /// The future is moved into a box for each request, so a large future costs time.
    #[test]
    fn the_future_of_a_call_is_small() {
        let inference = Arc::new(Inference::new(
            Arc::new(TestService::default()),
            GrpcConfig::default(),
        ));
        let size = size_of_val(&call(inference, Request::new(Empty::<Bytes>::new())));
        assert!(size <= 4096, "{size} bytes");
    }
}
