//! Checks a request's head before the body is read.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, Request, StatusCode, Version, header::HOST};
use oip_resources::Charge;
use oip_types::{ServiceError, rest};

use crate::HttpConfig;

/// The name of the header with the JSON length, created once.
pub(crate) const HEADER_LENGTH: HeaderName = HeaderName::from_static(rest::HEADER_LENGTH);

/// Returns the error for a head that is too large, or does not have exactly one `Host`.
pub(crate) fn find_fault<B>(request: &Request<B>, config: &HttpConfig) -> Option<(StatusCode, String)> {
    let uri_bytes = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if uri_bytes > config.max_uri_bytes {
        let message = format!(
            "the request's target has {uri_bytes} bytes, the limit is {}",
            config.max_uri_bytes
        );
        return Some((StatusCode::URI_TOO_LONG, message));
    }
    let headers = request.headers();
    let header_bytes = bytes(headers);
    if header_bytes > config.max_header_bytes {
        let message = format!(
            "the request's headers have {header_bytes} bytes, the limit is {}",
            config.max_header_bytes
        );
        return Some((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    }
    if headers.len() > MAX_HEADERS {
        let message = format!(
            "the request has {} headers, the limit is {MAX_HEADERS}",
            headers.len()
        );
        return Some((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    }
    let hosts = headers.get_all(HOST).iter().count();
    if request.version() == Version::HTTP_11 && hosts != 1 {
        return Some((
            StatusCode::BAD_REQUEST,
            format!("expected one Host header, found {hosts}"),
        ));
    }
    None
}

/// Maximum number of headers, for HTTP/2 as for HTTP/1: each takes many times its size in memory.
const MAX_HEADERS: usize = 100;

/// Returns the size of headers in HTTP/1 form.
fn bytes(headers: &HeaderMap) -> usize {
    let lines = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4);
    lines.sum()
}

/// The charge for a large head, stored in the request's extensions.
#[derive(Clone)]
struct HeadCharge(#[expect(dead_code, reason = "it is given back when it is dropped")] Arc<Charge>);

/// Maximum size in bytes of a head that the connection's own budget covers.
const SMALL: usize = 8 << 10;

/// Charges a large head to the request budget for as long as the request holds it.
pub(crate) fn charge<B>(request: &mut Request<B>, config: &HttpConfig) -> Result<(), ServiceError> {
    let bytes = bytes(request.headers());
    if bytes > SMALL {
        let charge = config.budget.take(bytes as u64)?;
        request.extensions_mut().insert(HeadCharge(Arc::new(charge)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_headers_are_too_many() {
        let fault = |count: usize| {
            let mut request = Request::new(());
            *request.version_mut() = Version::HTTP_2;
            for _ in 0..count {
                request.headers_mut().append("a", "b".parse().unwrap());
            }
            find_fault(&request, &HttpConfig::default()).map(|(status, _)| status)
        };
        assert_eq!(fault(MAX_HEADERS), None);
        assert_eq!(
            fault(MAX_HEADERS + 1),
            Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
        );
    }
}
