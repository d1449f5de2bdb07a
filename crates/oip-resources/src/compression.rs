//! Compressed bodies and messages, for all transports (feature `compression`).
//!
//! Compression and decompression work in pieces: each piece is charged to the request's lease before it is
//! allocated, and between pieces the lease is checked for cancellation. Both operations can take a long time,
//! so run them on a [`CpuPool`](crate::CpuPool).

use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::{
    bufread::{MultiGzDecoder, ZlibDecoder},
    write::{GzEncoder, ZlibEncoder},
};
use oip_types::{ErrorCode, ServiceError};

use crate::{Buffer, Charge, Lease};

/// A compression format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// The gzip format.
    Gzip,
    /// The zlib format, which is what HTTP and gRPC call "deflate".
    Deflate,
}

/// Number of bytes after which the lease is checked.
const PIECE: usize = 1 << 20;

/// Size of each piece of compressed output except the last.
const COMPRESSED_PIECE: usize = 256 << 10;

/// Decompresses `compressed` into at most `limit` bytes.
///
/// ```
/// use oip_resources::{Lease, compression::{Compression, deflate, inflate}};
///
/// let lease = Lease::unlimited();
/// let compressed = deflate(&lease, Compression::Gzip, ["hello".into()])?.concat();
/// assert_eq!(inflate(&lease, Compression::Gzip, &compressed, 5)?, "hello");
/// assert!(inflate(&lease, Compression::Gzip, &compressed, 4).is_err());
/// # Ok::<(), oip_resources::oip_types::ServiceError>(())
/// ```
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] when the data is malformed, [`ErrorCode::TooLarge`] when the output would
/// exceed `limit`; otherwise the errors of [`Lease::charge`] and [`Lease::check`].
pub fn inflate(
    lease: &Lease,
    compression: Compression,
    compressed: &[u8],
    limit: usize,
) -> Result<Bytes, ServiceError> {
    let mut rest = compressed;
    let inflated = match compression {
        Compression::Gzip => read_all(lease, MultiGzDecoder::new(&mut rest), limit),
        Compression::Deflate => read_all(lease, ZlibDecoder::new(&mut rest), limit),
    }?;
    if !rest.is_empty() {
        return Err(malformed("more bytes follow its end"));
    }
    Ok(inflated)
}

/// Reads `reader` to its end into a buffer that is charged to `lease` as it grows.
fn read_all(lease: &Lease, mut reader: impl Read, limit: usize) -> Result<Bytes, ServiceError> {
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes once it is decompressed");
        ServiceError::new(ErrorCode::TooLarge, message)
    };
    let mut out = Buffer::new(lease)?;
    loop {
        lease.check()?;
        if out.is_full() {
            out.make_room(1, None)?;
        }
        // Reading one byte beyond the limit shows that the output is too large.
        let most = (limit - out.len()).saturating_add(1).min(PIECE);
        let read = out.fill_from(&mut reader, most).map_err(not_inflated)?;
        if out.len() > limit {
            return Err(too_large());
        }
        if read < most && !out.is_full() {
            return Ok(out.finish());
        }
    }
}

fn malformed(what: &str) -> ServiceError {
    ServiceError::invalid(format!("the compressed body is malformed: {what}"))
}

fn not_inflated(error: io::Error) -> ServiceError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => malformed("it is truncated"),
        _ => malformed("it does not decode").caused_by(error),
    }
}

/// Compresses the concatenation of `parts`. The level favors speed over size, because clients are waiting for
/// the response.
///
/// # Errors
/// Returns the errors of [`Lease::charge`] and [`Lease::check`].
pub fn deflate(
    lease: &Lease,
    compression: Compression,
    parts: impl IntoIterator<Item = Bytes>,
) -> Result<Vec<Bytes>, ServiceError> {
    let mut pieces = Pieces {
        lease,
        current: None,
        done: Vec::new(),
        refused: None,
    };
    let level = flate2::Compression::fast();
    let written = match compression {
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(&mut pieces, level);
            write_all(lease, &mut encoder, parts).and_then(|()| encoder.finish().map(drop))
        }
        Compression::Deflate => {
            let mut encoder = ZlibEncoder::new(&mut pieces, level);
            write_all(lease, &mut encoder, parts).and_then(|()| encoder.finish().map(drop))
        }
    };
    match (written, pieces.refused.take()) {
        (Ok(()), None) => Ok(pieces.finish()),
        (_, Some(refused)) => Err(refused),
        (Err(error), None) => {
            lease.check()?;
            Err(ServiceError::internal("the response could not be compressed").caused_by(error))
        }
    }
}

fn write_all(
    lease: &Lease,
    writer: &mut impl Write,
    parts: impl IntoIterator<Item = Bytes>,
) -> io::Result<()> {
    for part in parts {
        for piece in part.chunks(PIECE) {
            lease.check().map_err(io::Error::other)?;
            writer.write_all(piece)?;
        }
    }
    Ok(())
}

/// Compressed bytes in buffers of equal size, each charged to the lease before it is allocated.
struct Pieces<'l> {
    lease: &'l Lease,
    current: Option<(Vec<u8>, Charge)>,
    done: Vec<Bytes>,
    refused: Option<ServiceError>,
}

impl Pieces<'_> {
    fn finish(mut self) -> Vec<Bytes> {
        if let Some((mut buffer, mut charge)) = self.current.take() {
            buffer.shrink_to_fit();
            charge.shrink_to(buffer.capacity() as u64);
            self.done.push(charge.own(buffer));
        }
        self.done
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (mut buffer, charge) = match self.current.take() {
            Some(current) => current,
            None => match self.lease.charge(COMPRESSED_PIECE as u64) {
                Ok(charge) => (Vec::with_capacity(COMPRESSED_PIECE), charge),
                Err(refused) => {
                    self.refused = Some(refused);
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
            },
        };
        let written = bytes.len().min(COMPRESSED_PIECE - buffer.len());
        buffer.extend_from_slice(&bytes[..written]);
        if buffer.len() == COMPRESSED_PIECE {
            self.done.push(charge.own(buffer));
        } else {
            self.current = Some((buffer, charge));
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteBudget, TimeLimits};

    const BOTH: [Compression; 2] = [Compression::Gzip, Compression::Deflate];

    fn compress(compression: Compression, data: &[u8]) -> Vec<u8> {
        let data = Bytes::copy_from_slice(data);
        deflate(&Lease::unlimited(), compression, [data])
            .unwrap()
            .concat()
    }

    /// Decompression bombs, truncated bodies, and bodies that are not in the declared format are refused.
    #[test]
    fn hostile_compressed_bodies() {
        let lease = Lease::unlimited();
        let code = |compression, body: &[u8], limit| {
            inflate(&lease, compression, body, limit).map_err(|error| error.code())
        };
        for compression in BOTH {
            let body = compress(compression, &vec![0; 1 << 20]);
            assert_eq!(code(compression, &body, 1 << 20).unwrap().len(), 1 << 20);
            assert_eq!(code(compression, &body, (1 << 20) - 1), Err(ErrorCode::TooLarge));
            for cut in [0, 1, body.len() / 2, body.len() - 1] {
                assert_eq!(
                    code(compression, &body[..cut], 1 << 20),
                    Err(ErrorCode::InvalidArgument),
                    "{cut}"
                );
            }
            let trailing = [&body[..], b"x"].concat();
            assert_eq!(
                code(compression, &trailing, 1 << 20),
                Err(ErrorCode::InvalidArgument)
            );
            assert_eq!(
                code(compression, b"{\"inputs\":[]}", 1 << 20),
                Err(ErrorCode::InvalidArgument)
            );
        }
    }

    #[test]
    fn what_is_inflated_is_charged_before_it_is_there() {
        for compression in BOTH {
            let body = compress(compression, &vec![0; 4 << 20]);
            let budget = ByteBudget::new(2 << 20);
            let lease = Lease::new(&budget, &TimeLimits::default());
            let error = inflate(&lease, compression, &body, 64 << 20).unwrap_err();
            assert_eq!(error.code(), ErrorCode::TooLarge);
            let other = budget.take(1 << 20).unwrap();
            let error = inflate(&lease, compression, &body, 64 << 20).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Overloaded);
            drop(other);
            assert_eq!(budget.used(), 0);

            let budget = ByteBudget::new(16 << 20);
            let lease = Lease::new(&budget, &TimeLimits::default());
            let inflated = inflate(&lease, compression, &body, 64 << 20).unwrap();
            assert_eq!((inflated.len(), budget.used()), (4 << 20, 4 << 20));
            drop(inflated);
            assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn both_directions_stop_when_the_client_has_left() {
        let lease = Lease::unlimited();
        let body = compress(Compression::Gzip, &vec![0; 4 << 20]);
        drop(lease.guard());
        let inflated = inflate(&lease, Compression::Gzip, &body, 64 << 20);
        assert_eq!(inflated.unwrap_err().code(), ErrorCode::Cancelled);
        let deflated = deflate(&lease, Compression::Gzip, [Bytes::from(body)]);
        assert_eq!(deflated.unwrap_err().code(), ErrorCode::Cancelled);
    }

    #[test]
    fn compressed_pieces_are_charged_each() {
        // Pseudorandom bytes, which do not compress.
        let mut state = 1u32;
        let data: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(1 << 20)
        .collect();
        for compression in BOTH {
            let budget = ByteBudget::new(2 << 20);
            let lease = Lease::new(&budget, &TimeLimits::default());
            let pieces = deflate(&lease, compression, [data.clone().into()]).unwrap();
            assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.len() <= COMPRESSED_PIECE));
            let len: usize = pieces.iter().map(Bytes::len).sum();
            assert_eq!(budget.used(), len as u64);
            assert_eq!(
                inflate(&Lease::unlimited(), compression, &pieces.concat(), 1 << 20).unwrap(),
                data
            );
            drop(pieces);
            let taken = budget.take(1 << 20).unwrap();
            let taken = (taken, budget.take(1 << 19).unwrap());
            let refused = deflate(&lease, compression, [data.clone().into()]).unwrap_err();
            assert_eq!(refused.code(), ErrorCode::Overloaded);
            drop(taken);
            assert_eq!(budget.used(), 0);
        }
    }
}
