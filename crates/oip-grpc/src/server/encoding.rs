//! Negotiates message compression.

use http::{HeaderMap, HeaderValue, header::HeaderName};
use oip_resources::compression::Compression;
use tonic::Status;

/// The compression of the messages in a request or response.
pub(crate) const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// The compressions that the sender can decode.
pub(crate) const ACCEPT: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The encodings that this server can decode.
const ACCEPTED: &str = "gzip,deflate,identity";

/// Returns the compression of a call's messages, if any.
pub(crate) fn of_request(headers: &HeaderMap) -> Result<Option<Compression>, Status> {
    let Some(value) = headers.get(ENCODING) else {
        return Ok(None);
    };
    match value.as_bytes() {
        b"identity" => Ok(None),
        b"gzip" => Ok(Some(Compression::Gzip)),
        b"deflate" => Ok(Some(Compression::Deflate)),
        other => {
            let other = String::from_utf8_lossy(other);
            let message = format!("Content is compressed with `{other}` which isn't supported");
            let mut status = Status::unimplemented(message);
            let accepted = tonic::metadata::MetadataValue::from_static(ACCEPTED);
            status.metadata_mut().insert("grpc-accept-encoding", accepted);
            Err(status)
        }
    }
}

/// Chooses the compression of the response: the request's compression, if the client accepts it.
///
/// Most clients declare gzip and deflate as accepted by default, and tensors rarely compress. Therefore only
/// clients that compress requests get compressed responses.
pub(crate) fn of_answer(headers: &HeaderMap, own: Option<Compression>) -> Option<Compression> {
    let accepted = headers.get(ACCEPT)?.to_str().ok()?;
    own.filter(|own| accepted.split(',').any(|encoding| encoding.trim() == name(*own)))
}

/// Returns a compression's name as a header value.
pub(crate) fn header_value(compression: Compression) -> HeaderValue {
    HeaderValue::from_static(name(compression))
}

fn name(compression: Compression) -> &'static str {
    match compression {
        Compression::Gzip => "gzip",
        Compression::Deflate => "deflate",
    }
}
