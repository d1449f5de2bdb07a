//! The accept loop, and the lifecycle of a connection.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Buf;
use http::{Request, Response};
use http_body::Body;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    runtime::Handle,
    task::{JoinSet, yield_now},
    time::{Instant, sleep, sleep_until, timeout},
};
use tower_service::Service;

use crate::{
    ClientCertificate, ConnectionLimits, Listener, Peer, Protocol, RequestBody, Shutdown, Tls,
    activity::{Activity, Verdict},
    connections::{ConnectionSlot, Room},
    front::{FirstRequest, Front},
    http2::Http2,
    io::WatchedStream,
    lanes::Lane,
    self_wakes::SelfWakes,
    stream::Stream,
    tasks::Tasks,
    tls::{HandshakeError, SecureConnection, Transport, secure},
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

/// TLS settings, and the runtime that accepts connections.
#[derive(Clone)]
struct Encryption {
    tls: Tls,
    home: Handle,
}

/// A connection and its limits.
struct Connection {
    protocol: Protocol,
    encryption: Option<Encryption>,
    limits: ConnectionLimits,
    shutdown: Shutdown,
    activity: Activity,
}

impl Connection {
    fn new(
        protocol: Protocol,
        encryption: Option<Encryption>,
        limits: ConnectionLimits,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            protocol,
            encryption,
            activity: Activity::new(protocol, &limits),
            limits,
            shutdown,
        }
    }

    /// Serves the connection to its end; returns false if it had to be cut by a shutdown.
    async fn serve<S, B>(
        mut self,
        mut stream: Stream,
        service: S,
        _slot: ConnectionSlot,
        tasks: Tasks,
    ) -> bool
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        // Responses are written at once; Nagle's algorithm would only delay them.
        stream.set_nodelay();
        let Some(encryption) = self.encryption.take() else {
            let first = FirstRequest::of(&mut stream, &self.limits);
            let mut stream = Box::pin(WatchedStream::new(stream, self.protocol, self.activity.clone()));
            if self.protocol == Protocol::Either {
                match self.detect(stream.as_mut()).await {
                    Ok(protocol) => self.protocol = protocol,
                    Err(is_served) => return is_served,
                }
                // The connection moves to the work lane, as if its listener were served there.
                if self.protocol == Protocol::Http2 {
                    self.activity.go_to(Lane::Work);
                }
            }
            return self
                .serve_on(Transport::Plain(stream), None, first, service, tasks)
                .await;
        };
        let SecureConnection {
            transport,
            protocol,
            certificate,
        } = match self.handshake(stream, encryption).await {
            Ok(secured) => secured,
            Err(is_served) => return is_served,
        };
        // The connection moves to the work lane, as if its listener were served there.
        let is_upgraded = protocol == Protocol::Http2 && self.protocol != protocol;
        self.protocol = protocol;
        self.activity.opened(protocol);
        self.activity
            .go_to(if is_upgraded { Lane::Work } else { Lane::Front });
        yield_now().await;
        let first = FirstRequest::default();
        self.serve_on(transport, certificate, first, service, tasks).await
    }

    /// Performs the TLS handshake. If there is no secure connection, returns whether the client was served:
    /// false if a shutdown cut the handshake.
    async fn handshake(&self, stream: Stream, encryption: Encryption) -> Result<SecureConnection, bool> {
        let Encryption { tls, home } = encryption;
        let stream = WatchedStream::below_tls(stream, home, self.activity.clone());
        let secured = {
            let activity = self.activity.clone();
            let securing = secure(&tls, Box::pin(stream), self.protocol, &activity);
            tokio::select! {
                secured = timeout(self.limits.head_timeout, securing) => secured,
                () = self.activity.asked_to_close() => return Err(true),
                () = self.shutdown.cutting() => return Err(false),
            }
        };
        match secured {
            Ok(Ok(secured)) => Ok(secured),
            Ok(Err(HandshakeError::Gone)) => Err(true),
            Ok(Err(refused)) => {
                tls.note_refused(&refused);
                Err(true)
            }
            Err(_) => {
                tls.note_refused(&"it arrived too slowly");
                Err(true)
            }
        }
    }

    /// Serves the given protocol until the connection ends.
    async fn serve_on<S, B>(
        self,
        transport: Transport,
        certificate: Option<ClientCertificate>,
        first: FirstRequest,
        service: S,
        tasks: Tasks,
    ) -> bool
    where
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let front = Front {
            service,
            first,
            certificate,
            activity: self.activity.clone(),
        };
        match self.protocol {
            Protocol::Http1 | Protocol::Either => {
                let shutdown = self.shutdown.clone();
                let service = service_fn(move |request| front.answer(request, shutdown.clone()));
                let connection = http1::Builder::new()
                    // The watchdog's timers cover request heads.
                    .header_read_timeout(None)
                    .max_buf_size(self.limits.max_head_bytes)
                    .serve_connection(TokioIo::new(transport), service);
                self.watch(connection, http1::Connection::graceful_shutdown).await
            }
            Protocol::Http2 => {
                let window = self.limits.windows.take();
                let activity = self.activity.clone();
                let accept = move |request, respond| front.answer_stream(request, respond, &tasks);
                let connection = Http2::new(transport, &window, &activity, accept);
                let is_served = self.watch(connection, Http2::close).await;
                drop(window);
                is_served
            }
        }
    }

    /// Detects the client's protocol. An error means that the connection ended first: false if a shutdown cut
    /// it, true otherwise.
    async fn detect(&self, mut stream: Pin<&mut WatchedStream>) -> Result<Protocol, bool> {
        let makes_room = async {
            loop {
                self.activity.asked_to_close().await;
                if self.activity.may_close() {
                    return;
                }
            }
        };
        tokio::select! {
            detected = poll_fn(|cx| stream.as_mut().poll_detect(cx)) => detected.ok().flatten().ok_or(true),
            () = sleep(self.limits.head_timeout) => {
                tracing::debug!(reason = "the client sent nothing", "cut a connection");
                Err(true)
            }
            () = self.close_for_shutdown() => Err(true),
            () = makes_room => Err(true),
            () = self.shutdown.cutting() => Err(false),
        }
    }

    /// Drives a connection, and ends it when a timeout expires. Returns false if a shutdown had to cut the
    /// connection.
    async fn watch<C, E>(self, connection: C, close: fn(Pin<&mut C>)) -> bool
    where
        C: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let mut connection = pin!(connection);
        // HTTP/2 requests run in their own tasks, so their connection does not wake itself.
        let self_wakes = (self.protocol != Protocol::Http2).then(SelfWakes::new);
        /// Time that a well-behaved client has to notice that its connection is being closed.
        const GRACE: Duration = Duration::from_millis(500);
        let (mut is_closing, mut is_cut_soon) = (false, false);
        let mut wake = Instant::now();
        let mut draining = pin!(self.close_for_shutdown());
        loop {
            let turn = poll_fn(|cx| match &self_wakes {
                Some(self_wakes) => {
                    let is_over = || self.activity.take_turn_over();
                    self_wakes.poll(cx, is_over, |cx| connection.as_mut().poll(cx))
                }
                None => connection.as_mut().poll(cx),
            });
            tokio::select! {
                ended = turn => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection broke");
                    }
                    return true;
                }
                () = &mut draining, if !is_closing => {
                    is_closing = true;
                    close(connection.as_mut());
                }
                () = self.activity.asked_to_close(), if !is_closing => {
                    if self.activity.may_close() {
                        tracing::debug!("an idle connection is closed to make room for another");
                        (is_closing, is_cut_soon) = (true, true);
                        close(connection.as_mut());
                        wake = Instant::now() + GRACE;
                    }
                }
                () = self.activity.all_stuck() => {
                    tracing::debug!("the client reads none of its streams");
                    if !is_closing {
                        close(connection.as_mut());
                    }
                    (is_closing, is_cut_soon) = (true, true);
                    wake = Instant::now() + GRACE;
                }
                () = self.shutdown.cutting() => return false,
                () = sleep_until(wake), if is_cut_soon => {
                    if !self.activity.is_working() {
                        return true;
                    }
                    is_cut_soon = false;
                }
                () = sleep_until(wake), if !is_cut_soon => match self.activity.verdict(Instant::now()) {
                    Verdict::WaitUntil(deadline) => wake = deadline,
                    Verdict::Close if !is_closing => {
                        is_closing = true;
                        close(connection.as_mut());
                        wake = Instant::now() + self.limits.head_timeout;
                    }
                    Verdict::Close => return true,
                    Verdict::Cut(reason) => {
                        tracing::debug!(reason, "cut a connection");
                        return true;
                    }
                },
            }
        }
    }

    /// Waits until a shutdown requires that this connection close.
    async fn close_for_shutdown(&self) {
        /// How long an idle HTTP/1 connection stays open for a request that is already under way.
        const LINGER: Duration = Duration::from_secs(1);
        self.shutdown.draining().await;
        if self.protocol != Protocol::Http2 {
            sleep(LINGER).await;
        }
    }
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
