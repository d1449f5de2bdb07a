//! Timeouts, rates and sizes that bound clients.

use std::time::Duration;

#[cfg(unix)]
use crate::Descriptors;
use crate::{ConnectionCap, Lanes, Lasting, StreamCap, Windows};

/// Timeouts and limits for clients.
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
    /// Maximum time from the start of a connection, or from the first byte of a request, to the end of the
    /// request's head (default 20 s).
    pub head_timeout: Duration,
    /// Maximum time that a connection may stay open without a request (default 75 s).
    pub idle_timeout: Duration,
    /// Maximum pause within a body (default 20 s).
    pub body_gap_timeout: Duration,
    /// Minimum average rate of a body in bytes per second, after [`ConnectionLimits::body_rate_grace`]
    /// (default 1 KiB/s).
    pub min_body_rate: u64,
    /// Paths of requests whose body and response form a conversation, such as gRPC streams (default none).
    /// Bodies of these requests may pause for the lifetime of the connection. The service has to end
    /// conversations that stall within a message.
    pub conversations: &'static [&'static str],
    /// Long-lived, mostly idle HTTP/2 requests, whose services can observe eviction (default none).
    pub lasting: Option<Lasting>,
    /// Time at the start of a body during which its rate is not checked (default 5 s).
    pub body_rate_grace: Duration,
    /// Maximum time that sending a response may be blocked by the client (default 30 s).
    pub write_timeout: Duration,
    /// Minimum average rate at which a client must read a response in bytes per second, once
    /// [`ConnectionLimits::send_rate_grace`] is used up (default 16 KiB/s). Faster reading earns no credit
    /// for slower reading afterwards.
    pub min_send_rate: u64,
    /// How long a client may be slower than [`ConnectionLimits::min_send_rate`] (default 30 s).
    pub send_rate_grace: Duration,
    /// Interval of pings to a silent HTTP/2 client, and the time that the client has to reply (default 20 s).
    pub ping_interval: Duration,
    /// Maximum number of connections (default 10,240). All listeners that share a cap share this maximum.
    pub connections: ConnectionCap,
    /// Maximum number of concurrent streams on one HTTP/2 connection (default 100).
    pub max_streams: u32,
    /// Streams of each HTTP/2 connection that do not count towards [`ConnectionLimits::streams`] (default 2).
    pub assured_streams: usize,
    /// Maximum number of all other concurrent streams, over all connections that share this cap (default
    /// 1024).
    pub streams: StreamCap,
    /// Memory for data that was received over HTTP/2 but not yet read (default 64 MiB), in addition to 16 KiB
    /// per stream.
    pub windows: Windows,
    /// Threads for busy connections (default `None`: connections stay on the runtime that accepted them).
    pub lanes: Option<Lanes>,
    /// Receives a descriptor that a client passes over a Unix socket (default `None`: all descriptors are
    /// closed).
    #[cfg(unix)]
    pub descriptors: Option<Descriptors>,
    /// Maximum size of an HTTP/2 request's decoded headers in bytes, plus 32 bytes per header (default 64
    /// KiB). A larger request gets 431 without a body. A service that wants to explain the error in the
    /// response must check a smaller limit itself.
    pub max_header_list_bytes: u32,
    /// Maximum size of an HTTP/1 request head and of a connection's read buffer in bytes (default 64 KiB).
    pub max_head_bytes: usize,
}

impl ConnectionLimits {
    /// Returns the limits with `change` applied.
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
