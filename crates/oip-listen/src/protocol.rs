/// The protocol of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// HTTP/1.0 and 1.1.
    Http1,
    /// HTTP/2 from the first byte ("prior knowledge"), as gRPC clients speak it.
    Http2,
    /// Either: each connection's first bytes tell which. HTTP/1's `Upgrade: h2c` is not offered (RFC 9113 has dropped it).
    Either,
}

/// The first bytes of every connection of HTTP/2, and of no other.
pub(crate) const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
