use std::io;

use axum::{
    body::Body,
    http::{HeaderMap, header::CONTENT_LENGTH},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use oip_service::{ByteBudget, Charge};
use oip_types::{ErrorCode, ServiceError, causes};

/// Reads a body, within a limit and a budget.
///
/// A body that is too large, or for which there is no memory now, is refused before anything of it is read, if its
/// length is announced. A body that comes in one frame is not copied; otherwise its frames are joined in one buffer of
/// the announced length.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    budget: &ByteBudget,
) -> Result<(Bytes, Charge), ServiceError> {
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
    let mut permit = budget.take(announced.unwrap_or(0))?;
    let (mut first, mut joined): (Option<Bytes>, Option<BytesMut>) = (None, None);
    let mut len = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() else {
            continue;
        };
        len += data.len();
        if len > limit {
            return Err(too_large());
        }
        if announced.is_none() {
            permit.grow(data.len() as u64)?;
        }
        match (&mut first, &mut joined) {
            (_, Some(joined)) => joined.extend_from_slice(&data),
            (None, None) => first = Some(data),
            (Some(start), None) => {
                let mut whole = BytesMut::with_capacity(announced.map_or(2 * len, |bytes| bytes as usize));
                whole.extend_from_slice(start);
                whole.extend_from_slice(&data);
                joined = Some(whole);
            }
        }
    }
    let body = joined.map(BytesMut::freeze).or(first).unwrap_or_default();
    Ok((body, permit))
}

/// A body that could not be read to its end: too slow, or cut off.
fn broken(error: &axum::Error) -> ServiceError {
    let mut io_errors = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    if io_errors.any(|error| error.kind() == io::ErrorKind::TimedOut) {
        return ServiceError::new(ErrorCode::SlowRequest, "the body came too slowly");
    }
    ServiceError::invalid("the body could not be read to its end")
}
