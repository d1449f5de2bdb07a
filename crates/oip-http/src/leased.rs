//! Charges responses to the request budget until their last byte is sent: responses to a client that does not
//! read occupy memory.
//!
//! Bodies of inference responses own their charges and are marked as such. All other bodies, including those
//! from other crates, are charged here.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use oip_resources::{Charge, Lease};
use oip_types::ServiceError;

use crate::{HttpConfig, response};

/// Marks responses whose bytes own their charge.
#[derive(Clone, Copy)]
struct OwnsCharge;

/// Bodies up to this size in bytes do not count toward the budget, so health responses need none.
const SMALL: u64 = 1 << 10;

/// Charges a response's body to a lease, for as long as any byte of the body is in memory. Call this function
/// on the pool thread that creates the body, not only when the response reaches its connection.
///
/// Bodies of unknown length pass through unchanged, since they charge their own data to the budget.
///
/// # Errors
/// See [`Lease::charge`].
pub fn leased(response: Response, lease: &Lease) -> Result<Response, ServiceError> {
    let bytes = match response.body().size_hint().exact() {
        Some(bytes) if bytes > SMALL && response.extensions().get::<OwnsCharge>().is_none() => bytes,
        _ => return Ok(response),
    };
    let charge = lease.charge(bytes)?;
    Ok(mark(response.map(|body| Body::new(LeasedBody { body, charge }))))
}

/// Marks a response whose bytes own their charge.
pub(crate) fn mark(mut response: Response) -> Response {
    response.extensions_mut().insert(OwnsCharge);
    response
}

/// Charges the response's body to the budget in `config`. Returns an error response if the budget is
/// exhausted.
pub(crate) fn leased_or_refused(response: Response, config: &HttpConfig) -> Response {
    let lease = Lease::new(&config.budget, &config.time);
    leased(response, &lease).unwrap_or_else(|failure| response::error(&failure))
}

/// A body of known length whose frames carry their part of the charge.
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
