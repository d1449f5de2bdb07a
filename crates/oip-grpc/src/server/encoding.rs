//! How messages are compressed: what a call's headers say of its own messages, and what its answers may have.

use http::{HeaderMap, HeaderValue, header::HeaderName};
use oip_service::compression::Compression;
use tonic::Status;

/// Says how the messages of the request or of the answer are compressed.
pub(crate) const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// Says which compressions the sender can undo.
pub(crate) const ACCEPT: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The encodings that this server can decode.
const ACCEPTED: &str = "gzip,deflate,identity";

/// How a call's messages are compressed, if they are.
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

/// How the answer is compressed: as the request is, if the client says that it can undo that.
///
/// Most clients say in each request that they accept gzip and deflate, whether they want that or not. Tensors rarely get
/// smaller, so only clients that compress what they send have their answers compressed, each in its own way.
pub(crate) fn of_answer(headers: &HeaderMap, own: Option<Compression>) -> Option<Compression> {
    let accepted = headers.get(ACCEPT)?.to_str().ok()?;
    own.filter(|own| accepted.split(',').any(|encoding| encoding.trim() == name(*own)))
}

/// The name of a compression, as a header's value.
pub(crate) fn header_value(compression: Compression) -> HeaderValue {
    HeaderValue::from_static(name(compression))
}

fn name(compression: Compression) -> &'static str {
    match compression {
        Compression::Gzip => "gzip",
        Compression::Deflate => "deflate",
    }
}
