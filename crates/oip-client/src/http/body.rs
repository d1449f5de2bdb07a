//! Request and response bodies.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header::CONTENT_LENGTH};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use oip_types::rest::EncodedBody;
use tensor_core::SpareBuffers;

use crate::{ClientError, Result, connect};

/// A body of known length, sent as separate chunks without concatenating them.
#[derive(Debug)]
pub(super) struct Parts(VecDeque<Bytes>);

impl Parts {
    pub(super) fn new(body: EncodedBody) -> Self {
        Self(body.into_parts().collect())
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}

/// Reads a response body of at most `limit` bytes. A body of one frame is not copied; a body of several
/// frames is assembled in a spare buffer, if available.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Incoming,
    limit: usize,
    spare: &Arc<SpareBuffers>,
) -> Result<Bytes> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|announced| announced > limit as u64) {
        return Err(ClientError::too_large(limit));
    }
    let mut first = Bytes::new();
    let mut joined = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let found = first.len().max(joined.len());
            let of = announced.map_or(String::new(), |announced| format!(" of {announced}"));
            connect::broken_off(error, &format!(" after {found}{of} bytes"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len().max(joined.len()) + data.len() > limit {
            return Err(ClientError::too_large(limit));
        }
        if first.is_empty() && joined.is_empty() {
            first = data;
            continue;
        }
        if joined.is_empty() {
            // Reserving the announced length is safe: it is within the limit, and the system commits memory
            // only when it is written.
            let announced = announced.unwrap_or_default() as usize;
            joined = spare.take(announced).unwrap_or_default();
            joined.clear();
            joined.reserve(announced);
            joined.extend_from_slice(&first);
        }
        joined.extend_from_slice(&data);
    }
    let len = joined.len();
    Ok(match len {
        0 => first,
        SpareBuffers::LEAST_KEPT.. => spare.lend(joined, len),
        _ => joined.into(),
    })
}

/// Reads at most `most` bytes of a body and discards the rest, closing the connection if necessary.
pub(super) async fn read_beginning(mut body: Incoming, most: usize) -> Result<Bytes> {
    let mut beginning = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| connect::broken_off(error, &format!(" after {} bytes", beginning.len())))?;
        let Ok(data) = frame.into_data() else { continue };
        beginning.extend_from_slice(&data[..data.len().min(most - beginning.len())]);
        if beginning.len() == most {
            break;
        }
    }
    Ok(beginning.freeze())
}
