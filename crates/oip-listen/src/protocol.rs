//! The HTTP versions of a listener.

/// The protocol of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// HTTP/1.0 and 1.1.
    Http1,
    /// HTTP/2 with prior knowledge, as gRPC clients use it.
    Http2,
    /// HTTP/1 or HTTP/2, detected from the first bytes. HTTP/1's `Upgrade: h2c` is not supported (RFC 9113
    /// removed it).
    Either,
}

/// The connection preface of HTTP/2; no HTTP/1 request starts like this.
pub(crate) const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
