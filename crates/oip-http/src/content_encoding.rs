use std::io::{self, Read, Write};

use axum::http::{HeaderMap, header::CONTENT_ENCODING};
use bytes::Bytes;
use flate2::{
    Compression,
    bufread::{MultiGzDecoder, ZlibDecoder},
    write::{GzEncoder, ZlibEncoder},
};
use oip_types::{ErrorCode, ServiceError};
use tensor_core::Quoted;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentEncoding {
    Gzip,
    /// The zlib format, which is what HTTP calls "deflate".
    Deflate,
}

impl ContentEncoding {
    /// Reads the header; `None` for a body that is not compressed.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, ServiceError> {
        let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
        let (first, more) = (encodings.next(), encodings.next());
        let Some(encoding) = first else { return Ok(None) };
        let name = encoding.to_str().unwrap_or("?").trim();
        match name.to_ascii_lowercase().as_str() {
            _ if more.is_some() => {}
            "" | "identity" => return Ok(None),
            "gzip" | "x-gzip" => return Ok(Some(Self::Gzip)),
            "deflate" => return Ok(Some(Self::Deflate)),
            _ => {}
        }
        let message = format!(
            "Content-Encoding: expected one of gzip and deflate, found {}",
            Quoted(name)
        );
        Err(ServiceError::new(ErrorCode::UnsupportedEncoding, message))
    }

    /// The name in headers.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// Compresses the parts of a body into one. Fast rather than small: clients wait.
    pub(crate) fn encode(self, parts: impl Iterator<Item = Bytes>) -> io::Result<Bytes> {
        fn write_all<W: Write>(mut writer: W, parts: impl Iterator<Item = Bytes>) -> io::Result<W> {
            for part in parts {
                writer.write_all(&part)?;
            }
            Ok(writer)
        }
        let level = Compression::fast();
        let encoded = match self {
            Self::Gzip => write_all(GzEncoder::new(Vec::new(), level), parts)?.finish(),
            Self::Deflate => write_all(ZlibEncoder::new(Vec::new(), level), parts)?.finish(),
        };
        encoded.map(Bytes::from)
    }

    /// Decompresses a body, as long as it does not become larger than `limit`.
    pub(crate) fn decode(self, body: &Bytes, limit: usize) -> Result<Bytes, ServiceError> {
        let mut rest = &body[..];
        let decoded = match self {
            Self::Gzip => read_up_to(MultiGzDecoder::new(&mut rest), limit),
            Self::Deflate => read_up_to(ZlibDecoder::new(&mut rest), limit),
        };
        let malformed =
            |what: &str| ServiceError::invalid(format!("the compressed body is malformed: {what}"));
        match decoded {
            Ok(Some(_)) if !rest.is_empty() => Err(malformed("more bytes follow its end")),
            Ok(Some(decoded)) => Ok(decoded.into()),
            Ok(None) => {
                let message = format!("the body is larger than {limit} bytes once it is decompressed");
                Err(ServiceError::new(ErrorCode::TooLarge, message))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(malformed("it is cut off")),
            Err(error) => Err(malformed("it does not decode").caused_by(error)),
        }
    }
}

/// Reads to the end; `None` when that is further than `limit`.
fn read_up_to(reader: impl Read, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut out = Vec::new();
    reader.take(limit as u64 + 1).read_to_end(&mut out)?;
    Ok(Some(out).filter(|out| out.len() <= limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(data: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    /// HT-38: bombs, cut and foreign bodies.
    #[test]
    fn ht_38_hostile_compressed_bodies() {
        let zeros = vec![0; 1 << 20];
        for (encoding, compressed) in [
            (ContentEncoding::Gzip, gzip(&zeros)),
            (ContentEncoding::Deflate, zlib(&zeros)),
        ] {
            let body = Bytes::from(compressed);
            assert_eq!(encoding.decode(&body, 1 << 20).unwrap().len(), 1 << 20);
            assert_eq!(
                encoding.decode(&body, (1 << 20) - 1).unwrap_err().code(),
                ErrorCode::TooLarge
            );
            for cut in [0, 1, body.len() / 2, body.len() - 1] {
                let error = encoding.decode(&body.slice(..cut), 1 << 20).unwrap_err();
                assert_eq!(error.code(), ErrorCode::InvalidArgument, "{cut}");
            }
            let trailing = Bytes::from([&body[..], b"x"].concat());
            assert_eq!(
                encoding.decode(&trailing, 1 << 20).unwrap_err().code(),
                ErrorCode::InvalidArgument
            );
            let foreign = Bytes::from_static(b"{\"inputs\":[]}");
            assert_eq!(
                encoding.decode(&foreign, 1 << 20).unwrap_err().code(),
                ErrorCode::InvalidArgument
            );
        }
    }

    #[test]
    fn only_single_known_encodings_are_taken() {
        let parse = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| {
                assert!(headers.append(CONTENT_ENCODING, value.parse().unwrap()) || headers.len() == 1);
            });
            ContentEncoding::from_headers(&headers).map_err(|error| error.code())
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
