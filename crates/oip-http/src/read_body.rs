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
use oip_service::{Buffer, Charge, Lease};
use oip_types::{ErrorCode, ServiceError, causes};

use crate::head::HEADER_LENGTH;

/// Reads a body of at most `limit` bytes.
///
/// A body whose declared length exceeds the limit or the total budget is rejected before it is read. The
/// bytes of other bodies are charged as they arrive, so that clients that declare a large length and send
/// little do not occupy memory. A body in a single frame is not copied. Several frames are copied into one
/// buffer, which grows up to the declared length and is padded so that binary tensors after the JSON are
/// aligned.
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
        let message = format!("the body may have {limit} bytes, found {found}");
        ServiceError::new(ErrorCode::TooLarge, message)
    };
    if announced.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large());
    }
    // Checks that the declared length fits the budget, without keeping the charge.
    drop(lease.charge(announced.unwrap_or(0))?);
    let mut first: Option<(Bytes, Charge)> = None;
    let mut joined: Option<Buffer> = None;
    // Number of padding bytes before the body in `joined`.
    let mut gap = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken(&*error.into()))?.into_data() else {
            continue;
        };
        let len = first.as_ref().map_or(0, |(first, _)| first.len());
        let len = joined.as_ref().map_or(len, |joined| joined.len() - gap);
        if len + data.len() > limit {
            return Err(too_large());
        }
        if let Some(joined) = &mut joined {
            joined.push(&data, announced.map(|bytes| bytes as usize + gap))?;
        } else if data.is_empty() {
            continue;
        } else if let Some((start, charge)) = first.take() {
            let mut buffer = Buffer::new(lease)?;
            gap = gap_before(headers);
            let whole = announced.map(|bytes| bytes as usize + gap);
            buffer.push(&[0; ALIGNMENT][..gap], whole)?;
            buffer.push(&start, whole)?;
            drop((start, charge));
            buffer.push(&data, whole)?;
            joined = Some(buffer);
        } else {
            let charge = lease.charge(data.len() as u64)?;
            first = Some((data, charge));
        }
        lease.check()?;
    }
    Ok(match (joined, first) {
        (Some(joined), _) => joined.finish().slice(gap..),
        (None, Some((whole, charge))) => charge.own(whole),
        (None, None) => Bytes::new(),
    })
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
        return ServiceError::new(ErrorCode::SlowRequest, "the body came too slowly");
    }
    ServiceError::invalid("the body could not be read to its end")
}
