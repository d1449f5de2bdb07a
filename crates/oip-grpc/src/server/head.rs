//! Checks the metadata of a call before its messages are read.

use std::sync::Arc;

use http::Request;
use oip_resources::Charge;
use oip_types::{ErrorCode, ServiceError};

use super::GrpcConfig;

/// The charge for large metadata, stored in the request's extensions.
#[derive(Clone)]
struct HeadCharge(#[expect(dead_code, reason = "it is given back when it is dropped")] Arc<Charge>);

/// Maximum number of metadata entries: each takes many times its size in memory.
const MAX_ENTRIES: usize = 128;

/// Maximum size in bytes of metadata that the connection's own budget covers.
const SMALL: usize = 8 << 10;

/// Rejects oversized metadata, and charges large metadata to the request budget while the request holds it.
pub(crate) fn admit<B>(request: &mut Request<B>, config: &GrpcConfig) -> Result<(), ServiceError> {
    // The size is measured in HTTP/1 form, so that both transports have the same limit.
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
