//! Tests clients that open too many connections or streams, or send too many frames.

use std::{
    io::{Read, Write},
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::{
    SendStream,
    client::{self, ResponseFuture, SendRequest},
};
use http::Request;
use oip_listen::{ConnectionCap, Protocol, StreamCap, Windows};
use tokio::time::{sleep, timeout};

use crate::support::{PATIENCE, Server, limits, read_answer, read_to_end};

/// The connection that has been idle longest is evicted. Connections with requests in progress stay open.
#[test]
fn the_idlest_connection_makes_room() {
    let limits = limits().with(|limits| {
        limits.idle_timeout = Duration::from_secs(60);
        limits.head_timeout = Duration::from_secs(60);
        limits.connections = ConnectionCap::new(3);
    });
    let server = Server::start(Protocol::Http1, limits);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut idlest = server.send(&get("/hello"));
    read_answer(&mut idlest, "hello");
    thread::sleep(Duration::from_millis(50));
    let mut later = server.send(&get("/hello"));
    read_answer(&mut later, "hello");
    thread::sleep(Duration::from_millis(300));
    let mut busy = server.send(&get("/slow"));
    let start = Instant::now();
    server.canary();
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert_eq!(read_to_end(&mut idlest), "");
    later.write_all(get("/hello").as_bytes()).unwrap();
    read_answer(&mut later, "hello");
    read_answer(&mut busy, "slow");
}

/// An incomplete request head does not keep a slot for long when slots are scarce.
#[test]
fn half_a_head_makes_room() {
    let limits = limits().with(|limits| {
        limits.idle_timeout = Duration::from_secs(60);
        limits.head_timeout = Duration::from_secs(60);
        limits.connections = ConnectionCap::new(2);
    });
    let server = Server::start(Protocol::Http1, limits);
    let halves: Vec<_> = (0..4).map(|_| server.send("GET /hello HT")).collect();
    server.canary();
    drop(halves);
}

/// Sends a preface, settings, and then `frame` repeatedly. Returns the number of frames that the server
/// accepted.
fn flood(server: &Server, frame: &[u8]) -> usize {
    let mut stream = server.connect();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut reader = stream.try_clone().unwrap();
    let reading = thread::spawn(move || {
        let mut room = vec![0; 1 << 16];
        while let Ok(1..) = reader.read(&mut room) {}
    });
    let piece = frame.repeat(100);
    let mut sent = 0;
    while sent < 1_000_000 && stream.write_all(&piece).is_ok() {
        sent += 100;
    }
    let _ = stream.shutdown(Shutdown::Both);
    reading.join().unwrap();
    sent
}

#[test]
fn floods_of_frames_are_ended() {
    let limits = limits().with(|limits| {
        limits.idle_timeout = Duration::from_secs(60);
    });
    let server = Server::start(Protocol::Http2, limits);
    for (name, frame) in [
        ("SETTINGS", &b"\0\0\0\x04\0\0\0\0\0"[..]),
        ("PING", b"\0\0\x08\x06\0\0\0\0\0abcdefgh"),
        ("WINDOW_UPDATE", b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0"),
        ("PRIORITY", b"\0\0\x05\x02\0\0\0\0\x01\0\0\0\x03\x07"),
        ("of an unknown type", b"\0\0\0\xfa\0\0\0\0\0"),
    ] {
        let sent = flood(&server, frame);
        assert!(sent < 1_000_000, "{name}: not closed after {sent} frames");
    }
}

pub(crate) async fn connect(server: &Server) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (send, connection) = client::handshake(stream).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    send
}

fn block_on(clients: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(clients);
}

async fn begin(send: &SendRequest<Bytes>, path: &str, is_whole: bool) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::post(format!("http://x{path}")).body(()).unwrap();
    let mut send = send.clone().ready().await.unwrap();
    send.send_request(request, is_whole).unwrap()
}

/// Returns the body of a response.
async fn body_of(response: ResponseFuture) -> Result<String, h2::Error> {
    let mut body = response.await?.into_body();
    let mut read = Vec::new();
    while let Some(piece) = body.data().await {
        read.extend_from_slice(&piece?);
    }
    Ok(String::from_utf8(read).unwrap())
}

/// Each connection has its own first streams. Further streams share the cap, and are refused beyond it so
/// that clients can retry.
#[test]
fn streams_beyond_the_shared_room_are_refused() {
    let streams = StreamCap::new(3);
    let limits = limits().with(|limits| {
        limits.assured_streams = 2;
        limits.streams = streams.clone();
        limits.windows = Windows::new(0);
    });
    let server = Server::start(Protocol::Http2, limits);
    block_on(async {
        let (crowd, other) = (connect(&server).await, connect(&server).await);
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(begin(&crowd, "/never", true).await);
        }
        let (refused, _body) = begin(&crowd, "/hello", true).await;
        let error = refused.await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM), "{error}");
        assert_eq!((streams.counts().open, streams.counts().refused), (5, 1));
        // The other connection has its own slots.
        for _ in 0..2 {
            let (response, _) = begin(&other, "/hello", true).await;
            assert_eq!(body_of(response).await.unwrap(), "hello");
        }
        // A stream that ends frees its slot.
        open.pop();
        while streams.counts().open > 4 {
            sleep(Duration::from_millis(1)).await;
        }
        let (response, _) = begin(&crowd, "/hello", true).await;
        assert_eq!(body_of(response).await.unwrap(), "hello");
    });
}

/// Idle streams lose their slots when other streams need them, however many there are. The service of an
/// evicted stream ends the stream.
#[test]
fn streams_that_wait_for_something_to_happen_give_way() {
    let streams = StreamCap::new(16);
    let limits = limits().with(|limits| {
        limits.idle_timeout = Duration::from_secs(60);
        limits.streams = streams.clone();
    });
    let server = Server::start(Protocol::Http2, limits);
    block_on(async {
        let mut watching = Vec::new();
        for _ in 0..3 {
            let crowd = connect(&server).await;
            for _ in 0..6 {
                watching.push(begin(&crowd, "/watch", true).await.0);
            }
        }
        // After this pause, the streams count as idle.
        sleep(Duration::from_millis(400)).await;
        let before = streams.counts();
        let other = connect(&server).await;
        let mut answers = Vec::new();
        for _ in 0..10 {
            answers.push(begin(&other, "/slow", true).await.0);
        }
        for answer in answers {
            assert_eq!(body_of(answer).await.unwrap(), "slow");
        }
        let after = streams.counts();
        assert_eq!(after.refused, before.refused);
        assert!(after.evicted >= before.evicted + 4, "{after:?}");
        // Evicted streams are notified; streams in their connection's own slots are not affected.
        let (mut moved, mut left) = (0, 0);
        for stream in watching {
            match timeout(Duration::from_millis(10), body_of(stream)).await {
                Ok(Ok(word)) if word == "moved" => moved += 1,
                Ok(other) => panic!("{other:?}"),
                Err(_) => left += 1,
            }
        }
        assert_eq!(moved as u64, after.evicted);
        assert!(left >= 6, "{left}");
    });
}

/// A request whose body does not arrive is not being processed: it is evicted and may be retried.
#[test]
fn requests_whose_bodies_do_not_come_give_way() {
    let streams = StreamCap::new(4);
    let limits = limits().with(|limits| {
        limits.streams = streams.clone();
        limits.idle_timeout = Duration::from_secs(60);
        limits.body_gap_timeout = Duration::from_secs(60);
        limits.body_rate_grace = Duration::from_secs(60);
    });
    let server = Server::start(Protocol::Http2, limits);
    block_on(async {
        let (crowd, other) = (connect(&server).await, connect(&server).await);
        let mut stalled = Vec::new();
        for _ in 0..6 {
            stalled.push(begin(&crowd, "/echo", false).await);
        }
        let refused_at_first = async {
            let (response, _body) = begin(&crowd, "/echo", false).await;
            response.await.unwrap_err().reason()
        };
        assert_eq!(refused_at_first.await, Some(h2::Reason::REFUSED_STREAM));
        sleep(Duration::from_millis(1200)).await;
        let mut answers = Vec::new();
        for _ in 0..6 {
            answers.push(begin(&other, "/slow", true).await.0);
        }
        for answer in answers {
            assert_eq!(body_of(answer).await.unwrap(), "slow");
        }
        let evicted = streams.counts().evicted;
        assert!(evicted >= 4, "{evicted}");
        let mut refused = 0;
        for (response, mut body) in stalled {
            // The other requests get responses once their bodies arrive.
            let _ = body.send_data(Bytes::from_static(b"late"), true);
            match body_of(response).await {
                Ok(answer) => assert_eq!(answer, "late"),
                Err(error) => {
                    assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM), "{error}");
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, evicted);
    });
}

/// A connection whose streams all wait is evicted like one without streams.
#[test]
fn connections_of_silent_streams_make_room() {
    let connections = ConnectionCap::new(2);
    let limits = limits().with(|limits| {
        limits.head_timeout = Duration::from_secs(60);
        limits.idle_timeout = Duration::from_secs(60);
        limits.connections = connections.clone();
    });
    let server = Server::start(Protocol::Either, limits);
    block_on(async {
        let mut watching = Vec::new();
        for _ in 0..2 {
            let crowd = connect(&server).await;
            for _ in 0..3 {
                watching.push(begin(&crowd, "/watch", true).await.0);
            }
        }
        let start = Instant::now();
        let server = &server;
        thread::scope(|scope| scope.spawn(|| server.canary()).join().unwrap());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert_eq!(connections.counts().evicted, 1);
        let mut moved = 0;
        for stream in watching {
            if let Ok(word) = timeout(Duration::from_millis(100), body_of(stream)).await {
                assert_eq!(word.unwrap(), "moved");
                moved += 1;
            }
        }
        assert_eq!(moved, 3);
    });
}

/// An HTTP/1 connection whose request body does not arrive is also evicted.
#[test]
fn connections_of_stalled_bodies_make_room() {
    let limits = limits().with(|limits| {
        limits.body_gap_timeout = Duration::from_secs(60);
        limits.body_rate_grace = Duration::from_secs(60);
        limits.connections = ConnectionCap::new(2);
    });
    let server = Server::start(Protocol::Http1, limits);
    let stalled = || server.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc");
    let mut first = stalled();
    thread::sleep(Duration::from_millis(100));
    let _second = stalled();
    server.canary();
    let answer = read_to_end(&mut first);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}
