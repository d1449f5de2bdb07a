//! REST bodies ready to send, and the header that separates JSON from binary data.

use bytes::Bytes;

use crate::ServiceError;

/// The header with the length of a body's JSON part in bytes, before compression. The binary tensors follow
/// the JSON part.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// How NaN and the infinities are written in JSON.
///
/// Decoding accepts all forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NonFinite {
    /// As `null`: valid JSON that NumPy-based clients read as NaN. Infinities become NaN.
    #[default]
    Null,
    /// As `NaN`, `Infinity` and `-Infinity`: not valid JSON, but many parsers accept it.
    Literal,
    /// As `"NaN"`, `"Infinity"` and `"-Infinity"`: valid JSON without loss, but clients must be prepared for
    /// it.
    String,
    /// Fails the request with the advice to request binary data.
    Error,
}

/// A body ready to send: JSON, then the binary tensors, which are not copied.
///
/// ```
/// use oip_types::rest::EncodedBody;
///
/// let body = EncodedBody { json: "{}".into(), binary: vec![vec![1, 2].into()] };
/// assert_eq!(body.header_length(), Some(2));
/// assert_eq!(body.len(), 4);
/// ```
#[derive(Clone, Debug)]
pub struct EncodedBody {
    /// The JSON part of the body.
    pub json: Bytes,
    /// The binary part, tensor by tensor; empty for JSON-only bodies.
    pub binary: Vec<Bytes>,
}

impl EncodedBody {
    /// Returns the value of [`HEADER_LENGTH`]; `None` if the response has no binary part, so that the header
    /// is omitted.
    #[must_use]
    pub fn header_length(&self) -> Option<usize> {
        self.binary
            .iter()
            .any(|tensor| !tensor.is_empty())
            .then_some(self.json.len())
    }

    /// Returns the length of the whole body in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.json.len() + self.binary.iter().map(Bytes::len).sum::<usize>()
    }

    /// Returns whether the body is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the parts in order: JSON, then each non-empty tensor.
    pub fn into_parts(self) -> impl Iterator<Item = Bytes> {
        std::iter::once(self.json)
            .chain(self.binary)
            .filter(|part| !part.is_empty())
    }

    /// Returns the whole body as one buffer; copies if there are binary tensors.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.binary.is_empty() {
            return self.json;
        }
        let mut whole = Vec::with_capacity(self.len());
        self.into_parts().for_each(|part| whole.extend_from_slice(&part));
        whole.into()
    }
}

/// A body whose JSON was printed into chunks; see [`encode_response_within`](super::encode_response_within).
#[derive(Clone, Debug)]
pub struct EncodedPieces {
    /// The JSON part of the body, in chunks.
    pub json: Vec<Bytes>,
    /// The binary part, tensor by tensor; empty for JSON-only bodies.
    pub binary: Vec<Bytes>,
}

impl EncodedPieces {
    /// Returns the value of [`HEADER_LENGTH`]; `None` when there is no binary part and the header is omitted.
    #[must_use]
    pub fn header_length(&self) -> Option<usize> {
        let has_binary = self.binary.iter().any(|tensor| !tensor.is_empty());
        has_binary.then(|| self.json.iter().map(Bytes::len).sum())
    }

    /// Returns the length of the whole body in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.json.iter().chain(&self.binary).map(Bytes::len).sum()
    }

    /// Returns whether the body is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the parts in order: the chunks of JSON, then each non-empty tensor.
    pub fn into_parts(self) -> impl Iterator<Item = Bytes> {
        let parts = self.json.into_iter().chain(self.binary);
        parts.filter(|part| !part.is_empty())
    }
}

/// Parses [`HEADER_LENGTH`] for a body of `body_len` bytes. A value of 0 means a raw binary request: see
/// [`decode_raw_request`](super::decode_raw_request).
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when `value` is not a number, or exceeds
/// `body_len`.
pub fn parse_header_length(value: &[u8], body_len: usize) -> Result<usize, ServiceError> {
    let digits = std::str::from_utf8(value).map(str::trim).ok();
    let digits =
        digits.filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse::<usize>().ok());
    match length {
        Some(length) if length <= body_len => Ok(length),
        _ => {
            let found = tensor_core::QuotedName(&String::from_utf8_lossy(value)).to_string();
            Err(ServiceError::invalid(format!(
                "Inference-Header-Content-Length: expected a number of bytes from 0 to the body's {body_len}, \
                 found {found}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rejects malformed lengths.
    #[test]
    fn header_lengths() {
        for value in [
            "99999999999",
            "-1",
            "abc",
            "11",
            "",
            "1e1",
            "+5",
            "18446744073709551616",
            "\u{ff}",
        ] {
            assert!(parse_header_length(value.as_bytes(), 10).is_err(), "{value}");
        }
        assert_eq!(parse_header_length(b"10", 10).unwrap(), 10);
        assert_eq!(parse_header_length(b" 7 ", 10).unwrap(), 7);
        assert_eq!(parse_header_length(b"0", 10).unwrap(), 0);
    }
}
