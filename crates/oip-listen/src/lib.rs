//! An accept loop for hyper services with limits on slow and hostile clients.
//!
//! `axum::serve` and tonic's server accept connections and trust them: a client that connects and says nothing, sends
//! half a header, stalls in the middle of a body or never reads its answer is waited for until the process ends, and
//! holds up a graceful shutdown for ever. This crate serves the same services (an axum `Router`, tonic's `Routes`, any
//! tower service) and bounds each of these:
//!
//! | what a client does | what ends it |
//! |---|---|
//! | connects and says nothing, or sends half a request's head or half an HTTP/2 preface | [`ConnectionLimits::head_timeout`] |
//! | keeps a connection open without requests | [`ConnectionLimits::idle_timeout`] |
//! | stops sending in the middle of a body | [`ConnectionLimits::body_gap_timeout`] |
//! | trickles a body | [`ConnectionLimits::min_body_rate`], unless it is one of [`ConnectionLimits::conversations`] |
//! | does not read its answer | [`ConnectionLimits::write_timeout`]; over HTTP/2 that stream is reset, and the connection ends where no stream is read |
//! | reads its answer slowly | [`ConnectionLimits::min_send_rate`], [`ConnectionLimits::send_rate_grace`] |
//! | sends a body that the service does not read (HTTP/1) | a small rest is read, else the answer has `Connection: close` |
//! | vanishes without a word (HTTP/2) | [`ConnectionLimits::ping_interval`] |
//! | opens more connections than there should be | [`ConnectionLimits::connections`]: the idlest is closed for a new one, else that waits |
//! | opens more streams than there should be | [`ConnectionLimits::max_streams`], [`ConnectionLimits::streams`]: those that wait for their client give way to new ones, else new ones are refused |
//! | sends and does not wait for what it sent to be read | [`ConnectionLimits::windows`] |
//! | floods a connection with frames of HTTP/2 that carry nothing | the connection is closed with `ENHANCE_YOUR_CALM` |
//! | keeps the server busy with what it sends | its connection lets others go first after each 32 KiB or 128 frames, and moves to threads where it cannot hold up others ([`ConnectionLimits::lanes`]) |
//! | begins a TLS handshake and does not end it, or only makes handshakes | [`ConnectionLimits::head_timeout`]; handshakes have the threads of busy connections |
//! | uses up all file descriptors | the loop pauses between attempts instead of spinning |
//!
//! Connections come over TCP ([`listen`]) or Unix sockets ([`listen_unix`]), with HTTP/1, HTTP/2 or either of them
//! ([`Protocol::Either`]). [`serve_each`] makes a service of its own for each connection, which knows its client.
//!
//! Over a Unix socket a client may pass a descriptor with its connection's first byte, where [`ConnectionLimits::descriptors`] says what it is
//! for; all others are closed.
//!
//! A [`Shutdown`] first drains (no new connections; open ones finish their requests) and then, when the caller says so, cuts the
//! remaining connections.
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
//! [`serve_tls`] does the same over TLS 1.2 and 1.3 ([`Tls`]), with certificates of clients where they are wanted
//! ([`ClientCertificate`] is an extension of their requests then), and with HTTP/2 for clients that ask for it.
//!
//! A request body that is ended for being slow fails with an [`std::io::Error`] of kind `TimedOut`, for the service to
//! answer with 408 or a similar code.

mod activity;
mod body;
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
mod listener;
mod places;
mod protocol;
mod self_wakes;
mod send_pace;
mod serve;
mod shares;
mod shutdown;
mod spare;
mod stream;
mod streams;
mod tasks;
mod tls;

pub use body::{RequestBody, ResponseBody};
pub use connections::{ConnectionCap, ConnectionCounts};
#[cfg(unix)]
pub use descriptors::Descriptors;
pub use lanes::Lanes;
pub use limits::ConnectionLimits;
#[cfg(unix)]
pub use listener::listen_unix;
pub use listener::{Address, Listener, Peer, listen};
pub use places::{Lasting, StreamCap, StreamCounts, StreamPlace};
pub use protocol::Protocol;
pub use self_wakes::let_others_go;
pub use serve::{serve, serve_each, serve_tls};
pub use shares::Windows;
pub use shutdown::Shutdown;
pub use tls::{CertificateName, ClientCertificate, ServerCertificate, Tls, TlsError, TlsFile, TlsFiles};
