//! An accept loop for hyper services with limits on slow and hostile clients.
//!
//! `axum::serve` and tonic's server trust their connections: a client that sends nothing, sends half a
//! header, stalls in the middle of a body or never reads its response holds its connection open until the
//! process ends, and blocks a graceful shutdown forever. This crate serves the same services (an axum
//! `Router`, tonic's `Routes`, any tower service) and bounds each of these:
//!
//! | client behaviour | limit |
//! |---|---|
//! | sends nothing, half a request head or half an HTTP/2 preface | [`ConnectionLimits::head_timeout`] |
//! | keeps a connection open without requests | [`ConnectionLimits::idle_timeout`] |
//! | stalls in the middle of a body | [`ConnectionLimits::body_gap_timeout`] |
//! | trickles a body | [`ConnectionLimits::min_body_rate`], except for [`ConnectionLimits::conversations`] |
//! | does not read its response | [`ConnectionLimits::write_timeout`]; over HTTP/2 the stream is reset, and the connection ends if no stream is read |
//! | reads its response slowly | [`ConnectionLimits::min_send_rate`], [`ConnectionLimits::send_rate_grace`] |
//! | sends a body that the service does not read (HTTP/1) | a short remainder is consumed, otherwise the response has `Connection: close` |
//! | disappears without closing (HTTP/2) | [`ConnectionLimits::ping_interval`] |
//! | opens too many connections | [`ConnectionLimits::connections`]: the one that has been idle longest is closed in favour of a new one; if none is idle, the new one waits |
//! | opens too many streams | [`ConnectionLimits::max_streams`], [`ConnectionLimits::streams`]: streams that wait for their client are evicted in favour of new ones, otherwise new ones are refused |
//! | sends faster than the service reads | [`ConnectionLimits::windows`] |
//! | floods a connection with empty HTTP/2 frames | the connection is closed with `ENHANCE_YOUR_CALM` |
//! | keeps the server busy with data | its connection yields after each 32 KiB or 128 frames (64 KiB or 256 frames if it is busy), and moves to threads where it cannot delay others ([`ConnectionLimits::lanes`]) |
//! | does not finish a TLS handshake, or only makes handshakes | [`ConnectionLimits::head_timeout`]; handshakes run on the threads of busy connections |
//! | exhausts the file descriptors | the accept loop backs off instead of spinning |
//!
//! Connections use TCP ([`listen`]) or Unix sockets ([`listen_unix`]), at addresses as operators write them
//! ([`ListenAddress`]), and HTTP/1, HTTP/2 or either ([`Protocol::Either`]). [`serve_each`] creates a service
//! for each connection from the client's identity.
//!
//! Over a Unix socket a client may pass a file descriptor with the first byte of its connection, if
//! [`ConnectionLimits::descriptors`] is set; all other descriptors are closed.
//!
//! A [`Shutdown`] first drains (no new connections; open ones finish their requests) and then, on request,
//! cuts the remaining connections.
//!
//! ```
//! use std::convert::Infallible;
//! use http_body_util::Full;
//! use oip_listen::{ConnectionLimits, Protocol, Shutdown, listen, serve};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let listener = listen("127.0.0.1:0".parse().unwrap())?;
//! let service = tower::service_fn(|_request| async {
//!     Ok::<_, Infallible>(http::Response::new(Full::new(bytes::Bytes::from("hello"))))
//! });
//! let shutdown = Shutdown::new();
//! let server = tokio::spawn(serve(listener, Protocol::Http1, service, ConnectionLimits::default(), shutdown.clone()));
//! shutdown.drain();
//! assert_eq!(server.await?, 0); // no connection had to be cut
//! # Ok(())
//! # }
//! ```
//!
//! [`serve_tls`] does the same over TLS 1.2 and 1.3 ([`Tls`]), with optional client certificates
//! ([`ClientCertificate`] is then an extension of their requests), and with HTTP/2 for clients that negotiate
//! it.
//!
//! A request body that is too slow fails with an [`std::io::Error`] of kind `TimedOut`, which the service can
//! map to 408 or a similar status.

mod activity;
mod body;
mod connection_lifecycle;
mod connections;
mod date;
#[cfg(unix)]
mod descriptors;
mod frames;
mod front;
mod http2;
mod io;
mod lanes;
mod leftover;
mod limits;
mod listen_address;
mod listener;
mod protocol;
mod self_wakes;
mod send_pace;
mod serve;
mod shares;
mod shutdown;
mod spare;
mod stream;
mod stream_slots;
mod streams;
mod tasks;
mod tls;

pub use body::{RequestBody, ResponseBody};
pub use connections::{ConnectionCap, ConnectionCounts};
#[cfg(unix)]
pub use descriptors::Descriptors;
pub use lanes::Lanes;
pub use limits::ConnectionLimits;
pub use listen_address::{ListenAddress, ListenAddressError, SocketMode, SocketModeError};
#[cfg(unix)]
pub use listener::listen_unix;
pub use listener::{Address, Listener, Peer, listen};
pub use protocol::Protocol;
pub use serve::{serve, serve_each, serve_tls};
pub use shares::Windows;
pub use shutdown::Shutdown;
pub use stream_slots::{Lasting, StreamCap, StreamCounts, StreamSlot};
pub use tls::{CertificateName, ClientCertificate, ServerCertificate, Tls, TlsError, TlsFile, TlsFiles};
