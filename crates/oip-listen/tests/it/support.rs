//! A test server, and misbehaving clients.

use std::{
    convert::Infallible,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use oip_listen::{
    Address, ClientCertificate, ConnectionCap, ConnectionLimits, Lasting, Listener, Protocol, RequestBody,
    Shutdown, StreamSlot, Tls, listen, serve, serve_tls,
};
use tokio::runtime::Runtime;

/// Length of most timeouts in the tests.
pub(crate) const PATIENCE: Duration = Duration::from_millis(300);

pub(crate) fn limits() -> ConnectionLimits {
    ConnectionLimits::default().with(|limits| {
        limits.head_timeout = PATIENCE;
        limits.idle_timeout = 2 * PATIENCE;
        limits.body_gap_timeout = PATIENCE;
        limits.min_body_rate = 1000;
        limits.body_rate_grace = 2 * PATIENCE;
        limits.write_timeout = PATIENCE;
        limits.min_send_rate = 0;
        limits.ping_interval = PATIENCE;
        limits.connections = ConnectionCap::new(100);
        limits.lasting = Some(Lasting::new(&["/watch"], |place| {
            let mut extensions = http::Extensions::new();
            extensions.insert(place);
            extensions
        }));
    })
}

/// A server on a free port.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: Shutdown,
    /// Number of cancelled requests, and of large responses whose memory was freed.
    pub(crate) abandoned: Arc<AtomicUsize>,
    runtime: Runtime,
    task: tokio::task::JoinHandle<usize>,
}

impl Server {
    pub(crate) fn start(protocol: Protocol, limits: ConnectionLimits) -> Self {
        Self::start_with(protocol, limits, None)
    }

    /// Starts a server, over TLS if `tls` is given.
    pub(crate) fn start_with(protocol: Protocol, limits: ConnectionLimits, tls: Option<Tls>) -> Self {
        Self::start_at(protocol, limits, tls, || {
            let anywhere = "127.0.0.1:0".parse().unwrap();
            listen(anywhere).unwrap().into()
        })
    }

    /// Starts a server on a listener that is created within the server's runtime.
    pub(crate) fn start_on(
        protocol: Protocol,
        limits: ConnectionLimits,
        listener: impl FnOnce() -> Listener,
    ) -> Self {
        Self::start_at(protocol, limits, None, listener)
    }

    fn start_at(
        protocol: Protocol,
        limits: ConnectionLimits,
        tls: Option<Tls>,
        listener: impl FnOnce() -> Listener,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(async { listener() });
        let address = match listener.address().unwrap() {
            Address::Tcp(address) => address,
            // Tests of Unix sockets do not use the address.
            _ => "127.0.0.1:0".parse().unwrap(),
        };
        let (shutdown, abandoned) = (Shutdown::new(), Arc::new(AtomicUsize::new(0)));
        let service = tower::service_fn({
            let abandoned = abandoned.clone();
            move |request| answer(request, abandoned.clone())
        });
        let task = match tls {
            None => runtime.spawn(serve(listener, protocol, service, limits, shutdown.clone())),
            Some(tls) => runtime.spawn(serve_tls(
                listener,
                protocol,
                tls,
                service,
                limits,
                shutdown.clone(),
            )),
        };
        Self {
            address,
            shutdown,
            abandoned,
            runtime,
            task,
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Connects and sends `text`.
    pub(crate) fn send(&self, text: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    /// Checks with a well-behaved client that the server works.
    pub(crate) fn canary(&self) {
        let mut stream = self.send("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = read_to_end(&mut stream);
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
            "{answer}"
        );
    }

    /// Waits for the server to end after a shutdown, and returns how many connections were cut.
    pub(crate) fn join(self) -> usize {
        self.runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(20), self.task).await })
            .unwrap()
            .unwrap()
    }
}

/// Responds depending on the path: `/hello` at once, `/echo` with the body, `/who` with the client
/// certificate's names in brackets, `/thread` with the name of the thread that read the body and an
/// exclamation mark, `/big` with 32 MiB and `/small` with 50 KiB whose freed memory is counted, `/slow` after
/// five times the timeout, `/never` not at all, `/watch` with a body that says `moved` when its slot is
/// revoked, `/refused` without reading the body.
async fn answer(
    request: Request<RequestBody>,
    abandoned: Arc<AtomicUsize>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let full = |body| Full::new(body).boxed_unsync();
    if head.uri.path() == "/refused" {
        let response = Response::builder().status(404);
        return Ok(response.body(full(Bytes::from("refused"))).unwrap());
    }
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            let is_slow = error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::TimedOut);
            let status = if is_slow { 408 } else { 400 };
            let response = Response::builder().status(status);
            return Ok(response.body(full(Bytes::new())).unwrap());
        }
    };
    if let Some(place) = head.extensions.get::<StreamSlot>() {
        place.rest();
        return Ok(Response::new(Watch(Some(place.clone())).boxed_unsync()));
    }
    let body = match head.uri.path() {
        "/echo" => body,
        "/who" => {
            let certificate = head.extensions.get::<ClientCertificate>();
            let names = certificate.map_or(&[][..], ClientCertificate::names);
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            Bytes::from(format!("[{}]", names.join(" ")))
        }
        "/thread" => Bytes::from(thread::current().name().unwrap_or("?").to_owned() + "!"),
        "/big" => Bytes::from_owner(CountedBytes(vec![b'x'; 32 << 20], CountDrop(abandoned))),
        "/small" => Bytes::from_owner(CountedBytes(vec![b'x'; 50 << 10], CountDrop(abandoned))),
        "/slow" => {
            let guard = CountDrop(abandoned);
            tokio::time::sleep(5 * PATIENCE).await;
            std::mem::forget(guard);
            Bytes::from("slow")
        }
        "/never" => std::future::pending().await,
        _ => Bytes::from("hello"),
    };
    Ok(Response::new(full(body)))
}

/// The body of an idle subscription.
struct Watch(Option<StreamSlot>);

impl Body for Watch {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(place) = &self.0 else {
            return Poll::Ready(None);
        };
        ready!(place.poll_revoked(cx));
        self.0 = None;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from("moved")))))
    }
}

/// A buffer whose drop is counted.
struct CountedBytes(
    Vec<u8>,
    #[expect(dead_code, reason = "dropped with the memory")] CountDrop,
);

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

struct CountDrop(Arc<AtomicUsize>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection stays open: {error}"),
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads one response with a known body from a connection that stays open.
pub(crate) fn read_answer(stream: &mut TcpStream, body: &str) -> String {
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(body.as_bytes()) {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    String::from_utf8(answer).unwrap()
}

/// Returns the time until the server closes the connection, and the bytes that it sends until then.
pub(crate) fn time_until_closed(mut stream: TcpStream) -> (Duration, String) {
    let start = Instant::now();
    let answer = read_to_end(&mut stream);
    (start.elapsed(), answer)
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
