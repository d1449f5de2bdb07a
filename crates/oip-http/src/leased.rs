//! Charges responses to the memory of requests until their last byte has left: a client that does not read holds what it has asked for.
//!
//! Bodies of inference own their charges already and are marked. All others are charged here as a whole, those of other crates too.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use oip_service::{Charge, Lease};
use oip_types::ServiceError;

use crate::{HttpConfig, answer};

/// Marks responses whose bytes own their charge.
#[derive(Clone, Copy)]
struct Leased;

/// Bytes of a body that is not charged, like the head before it. So responses about health need no room.
const SMALL: u64 = 1 << 10;

/// Charges the body of a response to a lease, as long as any byte of it is in memory. To be called where the body is made: on a
/// thread of the pool, not when the response reaches its connection.
///
/// Bodies of unknown length pass: they charge what they send.
///
/// # Errors
/// As [`Lease::charge`].
pub fn leased(response: Response, lease: &Lease) -> Result<Response, ServiceError> {
    let bytes = match response.body().size_hint().exact() {
        Some(bytes) if bytes > SMALL && response.extensions().get::<Leased>().is_none() => bytes,
        _ => return Ok(response),
    };
    let charge = lease.charge(bytes)?;
    Ok(mark(response.map(|body| Body::new(LeasedBody { body, charge }))))
}

/// Says that the bytes of a response own their charge.
pub(crate) fn mark(mut response: Response) -> Response {
    response.extensions_mut().insert(Leased);
    response
}

/// The response with its body charged, or the error that there is no room for it.
pub(crate) fn leased_or_refused(response: Response, config: &HttpConfig) -> Response {
    let lease = Lease::new(&config.budget, &config.time);
    leased(response, &lease).unwrap_or_else(|failure| answer::error(&failure))
}

/// A body of known length whose frames take their part of its charge along.
struct LeasedBody {
    body: Body,
    charge: Charge,
}

impl http_body::Body for LeasedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        frame.map_ok(|frame| frame.map_data(|bytes| self.charge.split(bytes.len() as u64).own(bytes)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
