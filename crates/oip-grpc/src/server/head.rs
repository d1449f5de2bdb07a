//! Checks the metadata of a call before its messages are read.

use std::sync::Arc;

use http::Request;
use oip_service::Charge;
use oip_types::{ErrorCode, ServiceError};

use super::GrpcConfig;

/// The memory of large metadata, in the extensions of its request.
#[derive(Clone)]
struct HeadCharge(#[expect(dead_code, reason = "it is given back when it is dropped")] Arc<Charge>);

/// Entries of a call's metadata: each takes many times its bytes in memory.
const MAX_ENTRIES: usize = 128;

/// Bytes of metadata that a connection's share of memory covers.
const SMALL: usize = 8 << 10;

/// Refuses metadata beyond the limit, and charges large metadata to the memory of requests for as long as the request has it.
pub(crate) fn admit<B>(request: &mut Request<B>, config: &GrpcConfig) -> Result<(), ServiceError> {
    // As HTTP/1 writes it, so that the limit is the same there.
    let lines = request.headers().iter();
    let bytes: usize = lines
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if bytes > config.max_header_bytes {
        let limit = config.max_header_bytes;
        let message = format!("the call's metadata has {bytes} bytes, the limit is {limit}");
        return Err(ServiceError::new(ErrorCode::TooLarge, message));
    }
    let count = request.headers().len();
    if count > MAX_ENTRIES {
        let message = format!("the call's metadata has {count} entries, the limit is {MAX_ENTRIES}");
        return Err(ServiceError::new(ErrorCode::TooLarge, message));
    }
    if bytes > SMALL {
        let charge = config.budget.take(bytes as u64)?;
        request.extensions_mut().insert(HeadCharge(Arc::new(charge)));
    }
    Ok(())
}
