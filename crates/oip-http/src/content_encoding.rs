//! Parses and names HTTP content encodings.

use axum::http::{HeaderMap, header::CONTENT_ENCODING};
pub(crate) use oip_resources::compression::Compression as ContentEncoding;
use oip_types::{ErrorCode, ServiceError};
use tensor_core::QuotedName;

/// Parses a request's content encoding; `None` for an uncompressed body.
pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Option<ContentEncoding>, ServiceError> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    let (first, more) = (encodings.next(), encodings.next());
    let Some(encoding) = first else { return Ok(None) };
    let name = encoding.to_str().unwrap_or("?").trim();
    match name.to_ascii_lowercase().as_str() {
        _ if more.is_some() => {}
        "" | "identity" => return Ok(None),
        "gzip" | "x-gzip" => return Ok(Some(ContentEncoding::Gzip)),
        "deflate" => return Ok(Some(ContentEncoding::Deflate)),
        _ => {}
    }
    let message = format!(
        "Content-Encoding: expected one of gzip and deflate, found {}",
        QuotedName(name)
    );
    Err(ServiceError::new(ErrorCode::UnsupportedEncoding, message))
}

/// Returns the encoding's name in headers.
pub(crate) const fn name(encoding: ContentEncoding) -> &'static str {
    match encoding {
        ContentEncoding::Gzip => "gzip",
        ContentEncoding::Deflate => "deflate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_known_encodings_are_taken() {
        let parse = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| {
                assert!(headers.append(CONTENT_ENCODING, value.parse().unwrap()) || headers.len() == 1);
            });
            from_headers(&headers).map_err(|error| error.code())
        };
        assert_eq!(parse(&[]), Ok(None));
        assert_eq!(parse(&["identity"]), Ok(None));
        assert_eq!(parse(&["GZIP"]), Ok(Some(ContentEncoding::Gzip)));
        assert_eq!(parse(&["deflate"]), Ok(Some(ContentEncoding::Deflate)));
        for unsupported in [
            &["br"][..],
            &["zstd"],
            &["gzip, gzip"],
            &["gzip", "gzip"],
            &["compress"],
        ] {
            assert_eq!(
                parse(unsupported),
                Err(ErrorCode::UnsupportedEncoding),
                "{unsupported:?}"
            );
        }
    }
}
