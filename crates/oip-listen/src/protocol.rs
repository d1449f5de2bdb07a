/// What is spoken on a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// HTTP/1.0 and 1.1.
    Http1,
    /// HTTP/2 from the first byte ("prior knowledge"), as gRPC clients speak it.
    Http2,
}
