//! The accept loop: hands each connection to its lane, and waits for all of them at the end.
//!
//! Every generic function here and in `connection_lifecycle.rs` repeats the bounds of services and bodies,
//! since stable Rust has no aliases of traits.

use std::{convert::Infallible, error::Error, io, sync::Arc, time::Duration};

use bytes::Buf;
use http::{Request, Response};
use http_body::Body;
use tokio::{runtime::Handle, task::JoinSet, time::sleep};
use tower_service::Service;

use crate::{
    ConnectionLimits, Listener, Peer, Protocol, RequestBody, Shutdown, Tls,
    connection_lifecycle::{Connection, Encryption},
    connections::Room,
    lanes::Lane,
    stream::Stream,
    tasks::Tasks,
};

/// Serves a listener's connections until a shutdown, and returns the number of connections that had to be
/// cut.
///
/// On shutdown, connections in the backlog are still accepted, and then the listener is closed. HTTP/2
/// clients get GOAWAY; HTTP/1 responses get `Connection: close`. Idle HTTP/1 connections are closed after a
/// second, so that a request already under way gets its response.
pub async fn serve<S, B>(
    listener: impl Into<Listener>,
    protocol: Protocol,
    service: S,
    limits: ConnectionLimits,
    shutdown: Shutdown,
) -> usize
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    serve_each(
        listener,
        protocol,
        None,
        move |_| service.clone(),
        limits,
        shutdown,
    )
    .await
}

/// Serves over TLS. Clients of [`Protocol::Http1`] that negotiate HTTP/2 are served over HTTP/2 on the work
/// threads, with the limits for HTTP/2. Unix socket connections are not encrypted.
pub async fn serve_tls<S, B>(
    listener: impl Into<Listener>,
    protocol: Protocol,
    tls: Tls,
    service: S,
    limits: ConnectionLimits,
    shutdown: Shutdown,
) -> usize
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    serve_each(
        listener,
        protocol,
        Some(tls),
        move |_| service.clone(),
        limits,
        shutdown,
    )
    .await
}

/// Serves with or without TLS, with a service for each connection that `make_service` creates from the
/// client's identity.
pub async fn serve_each<S, B>(
    listener: impl Into<Listener>,
    protocol: Protocol,
    tls: Option<Tls>,
    make_service: impl Fn(&Peer) -> S,
    limits: ConnectionLimits,
    shutdown: Shutdown,
) -> usize
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let listener = listener.into();
    let mut connections = Connections {
        protocol,
        encryption: tls.map(|tls| Encryption {
            tls,
            home: Handle::current(),
        }),
        make_service,
        limits: limits.clone(),
        shutdown: shutdown.clone(),
        running: JoinSet::new(),
    };
    // The server enforces the cap by not accepting: further clients wait in the backlog, except for the
    // client in `waiting`.
    let mut waiting = None;
    let accepting = async {
        loop {
            waiting = Some(accept(&listener).await);
            let room = limits.connections.room().await;
            if let Some(client) = waiting.take() {
                connections.start(client, room);
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = shutdown.draining() => {}
    }
    if let Some(client) = waiting
        && let Some(room) = limits.connections.try_room()
    {
        connections.start(client, room);
    }
    // Clients whose connection is established must not be dropped. These connections are accepted directly,
    // since the runtime may not have been notified of them.
    if let Some(queued) = listener.into_queued() {
        while let Some(room) = limits.connections.try_room()
            && let Ok(client) = queued.next()
        {
            connections.start(client, room);
        }
    }
    connections.finish().await
}

/// The connections of a listener.
struct Connections<F> {
    protocol: Protocol,
    encryption: Option<Encryption>,
    /// Creates the service of a connection from the client's identity.
    make_service: F,
    limits: ConnectionLimits,
    shutdown: Shutdown,
    /// Each task returns the result of [`Connection::serve`]; `None` if its lane ended.
    running: JoinSet<Option<bool>>,
}

impl<F> Connections<F> {
    /// Starts to serve an accepted connection, on the lane on which its first request is expected.
    fn start<S, B>(&mut self, (stream, peer): (Stream, Peer), room: Room)
    where
        F: Fn(&Peer) -> S,
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let encryption = self.encryption.clone().filter(|_| stream.is_tcp());
        let is_encrypted = encryption.is_some();
        let (limits, shutdown) = (self.limits.clone(), self.shutdown.clone());
        let connection = Connection::new(self.protocol, encryption, limits, shutdown);
        let occupant = Arc::new(connection.activity.clone());
        let place = self.limits.connections.enter(room, occupant);
        if !is_encrypted && self.protocol != Protocol::Http2 && begins_work(&stream) {
            connection.activity.go_to(Lane::Work);
        }
        let lane = connection.activity.lane();
        if is_encrypted {
            // The connection leaves this lane after the handshake.
            connection.activity.go_to(Lane::Busy);
        }
        let tasks = Tasks::new(&connection.activity);
        let serving = connection.serve(stream, (self.make_service)(&peer), place, tasks.clone());
        let served = tasks.drive(lane, serving);
        let lanes = self.limits.lanes.as_ref();
        match lanes.and_then(|lanes| lanes.runtime(lane)) {
            Some(runtime) => self.running.spawn_on(served, runtime),
            None => self.running.spawn(served),
        };
        // Reap finished connections, which would otherwise accumulate.
        while self.running.try_join_next().is_some() {}
    }

    /// Waits until all connections have ended. Returns how many of them were cut.
    async fn finish(mut self) -> usize {
        let mut cut = 0;
        while let Some(finished) = self.running.join_next().await {
            // A connection whose lane ended was also cut.
            cut += usize::from(matches!(finished, Ok(Some(false) | None)));
        }
        cut
    }
}

/// Returns whether a new connection has already sent a method other than GET or HEAD. Consumes no bytes.
///
/// Most clients send their first request right after connecting; the accepting thread can then hand over the
/// connection immediately.
#[cfg(unix)]
fn begins_work(stream: &Stream) -> bool {
    use rustix::net::{RecvFlags, recv};
    let mut start = [0; 4];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(stream, &mut start, flags) {
        Ok((_, 4)) => !matches!(&start, b"GET " | b"HEAD"),
        // An incomplete request line is checked again when its remaining bytes have arrived.
        _ => false,
    }
}

#[cfg(not(unix))]
fn begins_work(_: &Stream) -> bool {
    false
}

/// Accepts the next connection; retries on errors.
async fn accept(listener: &Listener) -> (Stream, Peer) {
    /// Delay after which a descriptor may be available again.
    const PAUSE: Duration = Duration::from_millis(100);
    loop {
        match listener.accept().await {
            Ok(client) => return client,
            // The client disconnected while it waited in the backlog.
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections, trying again");
                sleep(PAUSE).await;
            }
        }
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        runtime::Builder,
    };

    use super::*;

    #[test]
    fn work_is_seen_by_its_first_bytes_which_stay() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            for (sent, is_work) in [
                ("POST / HTTP/1.1\r\n", true),
                ("PUT ", true),
                ("GET / HTTP/1.1\r\n", false),
                ("HEAD", false),
                ("POS", false),
            ] {
                let mut client = TcpStream::connect(address).await.unwrap();
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = Stream::Tcp(stream);
                assert!(!begins_work(&stream), "nothing was sent yet");
                client.write_all(sent.as_bytes()).await.unwrap();
                let Stream::Tcp(readable) = &stream else {
                    unreachable!()
                };
                readable.readable().await.unwrap();
                assert_eq!(begins_work(&stream), is_work, "{sent}");
                let mut read = vec![0; sent.len()];
                stream.read_exact(&mut read).await.unwrap();
                assert_eq!(read, sent.as_bytes());
            }
        });
    }
}
