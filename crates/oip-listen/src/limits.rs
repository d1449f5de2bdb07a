//! What clients may do: times, numbers and sizes.

use std::time::Duration;

#[cfg(unix)]
use crate::Descriptors;
use crate::{ConnectionCap, Lanes, Lasting, StreamCap, Windows};

/// How long clients may take for each thing they do, and how many there may be.
///
/// ```
/// use oip_listen::{ConnectionCap, ConnectionLimits};
///
/// let limits = ConnectionLimits::default().with(|limits| limits.connections = ConnectionCap::new(100));
/// assert_eq!(limits.max_streams, 100);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// From a connection's start, or a request's first byte, to the end of the request's head (20 s).
    pub head_timeout: Duration,
    /// How long a connection may be open without a request (75 s).
    pub idle_timeout: Duration,
    /// How long a body may pause (20 s).
    pub body_gap_timeout: Duration,
    /// Bytes per second that a body must come with on average, once [`ConnectionLimits::body_rate_grace`] is over (1 KiB/s).
    pub min_body_rate: u64,
    /// Paths of requests whose body and answer are a conversation, as in gRPC's streams (none). Their bodies may pause
    /// for as long as the connection lasts; it is for the service to end those that stop in the middle of something.
    pub conversations: &'static [&'static str],
    /// Requests over HTTP/2 that last while nothing is done for them, whose services are told of their place (none).
    pub lasting: Option<Lasting>,
    /// For how long a body's rate does not count (5 s).
    pub body_rate_grace: Duration,
    /// How long a client may take to read before the next bytes of an answer can be sent (30 s).
    pub write_timeout: Duration,
    /// Bytes per second that a client must take of an answer on average, once [`ConnectionLimits::send_rate_grace`] is used up
    /// (16 KiB/s). What it takes faster does not count for later.
    pub min_send_rate: u64,
    /// For how long a client may be slower than that (30 s).
    pub send_rate_grace: Duration,
    /// How often an HTTP/2 client is asked whether it is still there, and how long it may take to say so (20 s).
    pub ping_interval: Duration,
    /// Connections at once; share one cap between listeners to bound them together (10,240).
    pub connections: ConnectionCap,
    /// Streams at once on one HTTP/2 connection (100).
    pub max_streams: u32,
    /// Streams of an HTTP/2 connection that need no room in [`ConnectionLimits::streams`] (2).
    pub assured_streams: usize,
    /// All other streams at once, over all connections that share this (1024).
    pub streams: StreamCap,
    /// Memory for bytes that are received over HTTP/2 and not read yet (64 MiB), beside 16 KiB for each stream.
    pub windows: Windows,
    /// The threads for connections that are busy (`None`: all stay where they are accepted).
    pub lanes: Option<Lanes>,
    /// Receives a descriptor that a client passes over a Unix socket (`None`: it is closed, as all others are).
    #[cfg(unix)]
    pub descriptors: Option<Descriptors>,
    /// Bytes of an HTTP/2 request's headers once decoded, with 32 more for each (64 KiB). A request beyond is answered 431 without a
    /// body: services that say more have smaller limits of their own.
    pub max_header_list_bytes: u32,
    /// Bytes of an HTTP/1 request's head, and of the buffer that a connection is read with (64 KiB).
    pub max_head_bytes: usize,
}

impl ConnectionLimits {
    /// The same after some changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(75),
            body_gap_timeout: Duration::from_secs(20),
            min_body_rate: 1024,
            conversations: &[],
            lasting: None,
            body_rate_grace: Duration::from_secs(5),
            write_timeout: Duration::from_secs(30),
            min_send_rate: 16 << 10,
            send_rate_grace: Duration::from_secs(30),
            ping_interval: Duration::from_secs(20),
            connections: ConnectionCap::new(10_240),
            max_streams: 100,
            assured_streams: 2,
            streams: StreamCap::new(1024),
            windows: Windows::new(64 << 20),
            lanes: None,
            #[cfg(unix)]
            descriptors: None,
            max_header_list_bytes: 64 << 10,
            max_head_bytes: 64 << 10,
        }
    }
}
