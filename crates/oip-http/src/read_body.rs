//! Reads request bodies within the size limit and the request's lease.

use std::{error::Error, io, pin::pin};

use axum::{
    body::HttpBody,
    http::{
        HeaderMap,
        header::{CONTENT_ENCODING, CONTENT_LENGTH},
    },
};
use bytes::Bytes;
use http_body_util::BodyExt;
use oip_resources::{Buffer, Charge, Lease};
use oip_types::{ErrorCode, ServiceError, causes};

use crate::head::HEADER_LENGTH;

/// Reads a body of at most `limit` bytes.
///
/// A body whose declared length exceeds the limit or the total budget is rejected before it is read. The
/// bytes of other bodies are charged to the request's lease as they arrive, so that clients that declare a
/// large length and send little do not occupy memory. A body in a single frame is not copied. Several frames
/// are copied into one buffer, which grows up to the declared length and is padded so that binary tensors
/// after the JSON are aligned.
pub(crate) async fn read_body<B>(
    headers: &HeaderMap,
    body: B,
    limit: usize,
    lease: &Lease,
) -> Result<Bytes, ServiceError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut body = pin!(body);
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let too_large = || {
        let found = announced.map_or("more".to_owned(), |bytes| bytes.to_string());
        let message = format!("expected a body of at most {limit} bytes, found {found}");
        ServiceError::new(ErrorCode::TooLarge, message)
    };
    if announced.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large());
    }
    // Checks that the declared length fits the budget, without keeping the charge.
    drop(lease.charge(announced.unwrap_or(0))?);
    let mut received = BodyBuffer::default();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken(&*error.into()))?.into_data() else {
            continue;
        };
        if received.len() + data.len() > limit {
            return Err(too_large());
        }
        received.push(data, announced, headers, lease)?;
        lease.check()?;
    }
    Ok(received.finish())
}

/// The part of a body that has arrived. A single frame is kept, and several are copied into one buffer.
#[derive(Default)]
struct BodyBuffer {
    first: Option<(Bytes, Charge)>,
    joined: Option<Buffer>,
    /// Number of padding bytes before the body in `joined`.
    gap: usize,
}

impl BodyBuffer {
    fn len(&self) -> usize {
        let len = self.first.as_ref().map_or(0, |(first, _)| first.len());
        self.joined.as_ref().map_or(len, |joined| joined.len() - self.gap)
    }

    /// Adds a frame. `announced` is the declared length of the whole body.
    fn push(
        &mut self,
        data: Bytes,
        announced: Option<u64>,
        headers: &HeaderMap,
        lease: &Lease,
    ) -> Result<(), ServiceError> {
        if let Some(joined) = &mut self.joined {
            joined.push(&data, announced.map(|bytes| bytes as usize + self.gap))?;
        } else if let Some((start, charge)) = self.first.take_if(|_| !data.is_empty()) {
            let mut buffer = Buffer::new(lease)?;
            self.gap = gap_before(headers);
            let whole = announced.map(|bytes| bytes as usize + self.gap);
            buffer.push(&[0; ALIGNMENT][..self.gap], whole)?;
            buffer.push(&start, whole)?;
            drop((start, charge));
            buffer.push(&data, whole)?;
            self.joined = Some(buffer);
        } else if !data.is_empty() {
            let charge = lease.charge(data.len() as u64)?;
            self.first = Some((data, charge));
        }
        Ok(())
    }

    fn finish(self) -> Bytes {
        match (self.joined, self.first) {
            (Some(joined), _) => joined.finish().slice(self.gap..),
            (None, Some((whole, charge))) => charge.own(whole),
            (None, None) => Bytes::new(),
        }
    }
}

/// Alignment of the first binary tensor, relative to the buffer.
const ALIGNMENT: usize = 64;

/// Returns the padding before a body that aligns its first binary tensor. The runtime would otherwise copy
/// the tensor into a zeroed buffer.
fn gap_before(headers: &HeaderMap) -> usize {
    let length = headers
        .get(HEADER_LENGTH)
        .filter(|_| !headers.contains_key(CONTENT_ENCODING));
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    length.map_or(0, |length| length.wrapping_neg() % ALIGNMENT)
}

/// Creates the error for a body that arrived too slowly or was truncated.
fn broken(error: &(dyn Error + 'static)) -> ServiceError {
    let mut io_errors = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    if io_errors.any(|error| error.kind() == io::ErrorKind::TimedOut) {
        return ServiceError::new(ErrorCode::SlowRequest, "the body arrived too slowly");
    }
    ServiceError::invalid("the body could not be read completely")
}
