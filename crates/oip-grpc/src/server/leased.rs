//! Charges the messages of all responses except inference responses to the call's lease until their last byte
//! is sent, because a client that does not read responses occupies memory.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame};
use oip_resources::{Charge, Lease};
use oip_types::ServiceError;
use tonic::Status;

use super::status;

/// Frames up to this size are not charged to the lease, so health responses need no budget.
const SMALL: usize = 1 << 10;

/// The charge for a response that is not encoded yet, stored in the response's extensions.
#[derive(Clone)]
pub(crate) struct ListCharge(
    #[expect(dead_code, reason = "it is given back when it is dropped")] Arc<Charge>,
);

impl ListCharge {
    pub(crate) fn new(charge: Charge) -> Self {
        Self(Arc::new(charge))
    }
}

/// A body whose frames are charged to the lease when they are encoded.
struct LeasedBody {
    body: tonic::body::Body,
    lease: Lease,
    /// The first frame, which was encoded before the response started.
    first: Option<Frame<Bytes>>,
    has_ended: bool,
}

/// Charges the messages of a response to `lease`. The first message is encoded immediately, so that a
/// response that exceeds the budget becomes a plain error status. Most responses have a single message.
///
/// # Errors
/// See [`Lease::charge`].
pub(crate) async fn leased(
    response: Response<tonic::body::Body>,
    lease: Lease,
) -> Result<Response<tonic::body::Body>, ServiceError> {
    let (mut head, mut body) = response.into_parts();
    let listed = head.extensions.remove::<ListCharge>();
    let encoded = poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await;
    drop(listed);
    let (first, has_ended) = match encoded {
        Poll::Ready(Some(Ok(frame))) => (Some(charged(frame, &lease)?), false),
        Poll::Ready(Some(Err(status))) => return Ok(status.into_http()),
        Poll::Ready(None) => (None, true),
        // The first message of the stream is not ready yet.
        Poll::Pending => (None, false),
    };
    let body = tonic::body::Body::new(LeasedBody {
        body,
        lease,
        first,
        has_ended,
    });
    Ok(Response::from_parts(head, body))
}

fn charged(frame: Frame<Bytes>, lease: &Lease) -> Result<Frame<Bytes>, ServiceError> {
    match frame.into_data() {
        Ok(bytes) if bytes.len() > SMALL => {
            let charge = lease.charge(bytes.len() as u64)?;
            Ok(Frame::data(charge.own(bytes)))
        }
        Ok(bytes) => Ok(Frame::data(bytes)),
        Err(trailers) => Ok(trailers),
    }
}

impl Body for LeasedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
            self.has_ended = true;
            return Poll::Ready(None);
        };
        Poll::Ready(Some(frame.map(|frame| {
            charged(frame, &self.lease).unwrap_or_else(|failure| {
                self.has_ended = true;
                Frame::trailers(status::trailers(&status::from_error(&failure)))
            })
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && (self.has_ended || self.body.is_end_stream())
    }
}
