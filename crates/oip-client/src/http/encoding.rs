//! Compression of bodies.

use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::{
    bufread::{MultiGzDecoder, ZlibDecoder},
    write::{GzEncoder, ZlibEncoder},
};
use oip_types::rest::EncodedBody;

use crate::{ClientError, Compression, ErrorKind, Result};

/// Returns the name of an encoding in headers.
pub(super) fn name(compression: Compression) -> &'static str {
    match compression {
        Compression::Gzip => "gzip",
        Compression::Deflate => "deflate",
    }
}

/// Compresses a whole body.
pub(super) fn compress(compression: Compression, body: &EncodedBody) -> Bytes {
    // Servers are usually nearby: stronger compression takes longer than the transfer time that it saves.
    let level = flate2::Compression::fast();
    let parts = || body.clone().into_parts();
    // Writing to memory does not fail.
    let compressed = match compression {
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), level);
            parts()
                .try_for_each(|part| encoder.write_all(&part))
                .and_then(|()| encoder.finish())
        }
        Compression::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            parts()
                .try_for_each(|part| encoder.write_all(&part))
                .and_then(|()| encoder.finish())
        }
    };
    compressed.unwrap_or_default().into()
}

/// Decompresses a body to at most `limit` bytes.
pub(super) fn decompress(compression: Compression, body: &Bytes, limit: usize) -> Result<Bytes> {
    let mut rest = &body[..];
    let decoded = match compression {
        Compression::Gzip => read_up_to(MultiGzDecoder::new(&mut rest), limit),
        Compression::Deflate => read_up_to(ZlibDecoder::new(&mut rest), limit),
    };
    match decoded {
        Ok(Some(decoded)) if rest.is_empty() => Ok(decoded.into()),
        Ok(Some(_)) => Err(malformed("bytes follow the end of the compressed body")),
        Ok(None) => Err(ClientError::too_large(limit)),
        Err(error) => Err(malformed("the compressed body does not decode").caused_by(error)),
    }
}

fn malformed(what: &str) -> ClientError {
    ClientError::new(
        ErrorKind::Protocol,
        format!("the response violates the protocol: {what}"),
    )
}

/// Reads `reader` to its end. Returns `None` if it has more than `limit` bytes.
fn read_up_to(reader: impl Read, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut out = Vec::new();
    reader.take(limit as u64 + 1).read_to_end(&mut out)?;
    Ok(Some(out).filter(|out| out.len() <= limit))
}
