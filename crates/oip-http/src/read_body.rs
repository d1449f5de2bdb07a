//! Reads bodies, within a limit and within the lease of their request.

use std::io;

use axum::{
    body::Body,
    http::{HeaderMap, header::CONTENT_LENGTH},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use oip_service::{Charge, Lease};
use oip_types::{ErrorCode, ServiceError, causes};

/// The least that is allocated for a body in several frames.
const LEAST: usize = 16 << 10;

/// Reads a body, up to a limit.
///
/// A body that is announced as too large for the limit or for all memory is refused before anything of it is read.
/// Otherwise bytes are charged as they come, so that clients which announce much and send little take no room from
/// others. A body that comes in one frame is not copied; otherwise its frames are joined in one buffer, which grows up to
/// the announced length.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    lease: &Lease,
) -> Result<Bytes, ServiceError> {
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
    lease.expect(announced.unwrap_or(0));
    // Shows at once whether it fits, now or ever.
    drop(lease.charge(announced.unwrap_or(0))?);
    let most = announced.map_or(limit, |bytes| bytes as usize);
    let mut first: Option<(Bytes, Charge)> = None;
    let mut joined: Option<Joined> = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() else {
            continue;
        };
        let len = first.as_ref().map_or(0, |(first, _)| first.len());
        let len = joined.as_ref().map_or(len, |joined| joined.bytes.len());
        if len + data.len() > limit {
            return Err(too_large());
        }
        if let Some(joined) = &mut joined {
            joined.push(&data, most)?;
        } else if data.is_empty() {
            continue;
        } else if let Some((start, charge)) = first.take() {
            let mut whole = Joined::new(lease)?;
            whole.push(&start, most)?;
            drop((start, charge));
            whole.push(&data, most)?;
            joined = Some(whole);
        } else {
            let charge = lease.charge(data.len() as u64)?;
            first = Some((data, charge));
        }
        lease.check()?;
    }
    Ok(match (joined, first) {
        (Some(joined), _) => joined.finish(),
        (None, Some((whole, charge))) => charge.own(whole),
        (None, None) => Bytes::new(),
    })
}

/// Frames that are joined in a buffer, which is charged as it grows.
struct Joined {
    bytes: Vec<u8>,
    charge: Charge,
}

impl Joined {
    fn new(lease: &Lease) -> Result<Self, ServiceError> {
        Ok(Self {
            bytes: Vec::new(),
            charge: lease.charge(0)?,
        })
    }

    /// Appends a frame; the body has no more than `most` bytes.
    fn push(&mut self, data: &[u8], most: usize) -> Result<(), ServiceError> {
        let needed = self.bytes.len() + data.len();
        if needed > self.bytes.capacity() {
            let capacity = (2 * self.bytes.capacity())
                .clamp(LEAST.min(most), most)
                .max(needed);
            self.charge
                .grow((capacity as u64).saturating_sub(self.charge.bytes()))?;
            let reserved = self.bytes.try_reserve_exact(capacity - self.bytes.len());
            reserved.map_err(|error| {
                ServiceError::new(ErrorCode::Overloaded, "the system has no memory left").caused_by(error)
            })?;
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn finish(mut self) -> Bytes {
        // Where no length was announced, doubling may have left much of the buffer empty.
        if self.bytes.capacity() - self.bytes.len() > self.bytes.len() / 8 {
            self.bytes.shrink_to_fit();
            self.charge.shrink_to(self.bytes.capacity() as u64);
        }
        self.charge.own(self.bytes)
    }
}

/// A body that could not be read to its end: too slow, or cut off.
fn broken(error: &axum::Error) -> ServiceError {
    let mut io_errors = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    if io_errors.any(|error| error.kind() == io::ErrorKind::TimedOut) {
        return ServiceError::new(ErrorCode::SlowRequest, "the body came too slowly");
    }
    ServiceError::invalid("the body could not be read to its end")
}
