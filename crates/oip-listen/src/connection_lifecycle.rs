//! The lifecycle of a connection: handshake, protocol detection, timeouts and the end.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    time::Duration,
};

use bytes::Buf;
use http::{Request, Response};
use http_body::Body;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, sleep, sleep_until, timeout},
};
use tower_service::Service;

use crate::{
    ClientCertificate, ConnectionLimits, Protocol, RequestBody, Shutdown, Tls,
    activity::{Activity, Verdict},
    connections::ConnectionSlot,
    front::{FirstRequest, Front},
    http2::Http2,
    io::WatchedStream,
    lanes::Lane,
    self_wakes::SelfWakes,
    stream::Stream,
    tasks::Tasks,
    tls::{HandshakeError, SecureConnection, Transport, secure},
};

/// TLS settings, and the runtime that accepts connections.
#[derive(Clone)]
pub(crate) struct Encryption {
    pub(crate) tls: Tls,
    pub(crate) home: Handle,
}

/// A connection and its limits.
pub(crate) struct Connection {
    protocol: Protocol,
    encryption: Option<Encryption>,
    limits: ConnectionLimits,
    shutdown: Shutdown,
    pub(crate) activity: Activity,
}

impl Connection {
    pub(crate) fn new(
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
    pub(crate) async fn serve<S, B>(
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
        let mut closing = Closing::new(close);
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
                () = &mut draining, if !closing.has_begun => closing.begin(connection.as_mut()),
                () = self.activity.asked_to_close(), if !closing.has_begun => {
                    if self.activity.may_close() {
                        tracing::debug!("an idle connection is closed to make room for another");
                        closing.begin_and_cut_soon(connection.as_mut());
                    }
                }
                () = self.activity.all_stuck() => {
                    tracing::debug!("the client reads none of its streams");
                    closing.begin_and_cut_soon(connection.as_mut());
                }
                () = self.shutdown.cutting() => return false,
                () = sleep_until(closing.wake), if closing.is_cut_soon => {
                    if !self.activity.is_working() {
                        return true;
                    }
                    closing.is_cut_soon = false;
                }
                () = sleep_until(closing.wake), if !closing.is_cut_soon => {
                    match self.activity.verdict(Instant::now()) {
                        Verdict::WaitUntil(deadline) => closing.wake = deadline,
                        Verdict::Close if !closing.has_begun => {
                            closing.begin(connection.as_mut());
                            closing.wake = Instant::now() + self.limits.head_timeout;
                        }
                        Verdict::Close => return true,
                        Verdict::Cut(reason) => {
                            tracing::debug!(reason, "cut a connection");
                            return true;
                        }
                    }
                }
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

/// The state of closing a connection.
struct Closing<C> {
    /// Asks the connection to close after its requests.
    close: fn(Pin<&mut C>),
    has_begun: bool,
    /// Whether the connection is cut at `wake` unless it is then working on a request.
    is_cut_soon: bool,
    /// When to look at the connection next.
    wake: Instant,
}

impl<C> Closing<C> {
    fn new(close: fn(Pin<&mut C>)) -> Self {
        Self {
            close,
            has_begun: false,
            is_cut_soon: false,
            wake: Instant::now(),
        }
    }

    /// Asks the connection to close.
    fn begin(&mut self, connection: Pin<&mut C>) {
        self.has_begun = true;
        (self.close)(connection);
    }

    /// Asks the connection to close, if it was not asked yet, and plans to cut it.
    fn begin_and_cut_soon(&mut self, connection: Pin<&mut C>) {
        /// Time that a well-behaved client has to notice that its connection is being closed.
        const GRACE: Duration = Duration::from_millis(500);
        if !self.has_begun {
            self.begin(connection);
        }
        self.is_cut_soon = true;
        self.wake = Instant::now() + GRACE;
    }
}
