//! Clients that open, send or hold more than a server has.

use std::{
    io::{Read, Write},
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::Request;
use oip_listen::{ConnectionCap, Protocol, StreamCap, Windows};

use crate::support::{PATIENCE, Server, limits, read_answer, read_to_end};

/// A connection that has sent nothing for the longest time makes room for a new one; those with requests in work stay.
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

/// Half a head does not keep a place for long, where places are rare.
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

/// A preface, settings, and then the same frame again and again; returns how many the server took.
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

/// Each connection has its first streams; all that are more share what there is, and are refused beyond it so that their
/// clients may try again.
#[test]
fn streams_beyond_the_shared_room_are_refused() {
    let limits = limits().with(|limits| {
        limits.assured_streams = 2;
        limits.streams = StreamCap::new(3);
        limits.windows = Windows::new(0);
        limits.body_gap_timeout = Duration::from_secs(60);
        limits.body_rate_grace = Duration::from_secs(60);
    });
    let server = Server::start(Protocol::Http2, limits);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let begin = |send: &SendRequest<Bytes>| {
            let send = send.clone();
            async move {
                let request = Request::post("http://x/echo").body(()).unwrap();
                send.ready().await.unwrap().send_request(request, false).unwrap()
            }
        };
        let (crowd, other) = (connect(&server).await, connect(&server).await);
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(begin(&crowd).await);
        }
        let (refused, _body) = begin(&crowd).await;
        let error = refused.await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM), "{error}");
        // The other connection has its own.
        for _ in 0..2 {
            let (response, mut body) = begin(&other).await;
            body.send_data(Bytes::from_static(b"x"), true).unwrap();
            assert_eq!(response.await.unwrap().status(), 200);
        }
        // One that ends makes room.
        let (response, mut body) = open.pop().unwrap();
        body.send_data(Bytes::new(), true).unwrap();
        let (head, mut body) = response.await.unwrap().into_parts();
        while body.data().await.is_some() {}
        assert_eq!(head.status, 200);
        let (response, mut body) = begin(&crowd).await;
        body.send_data(Bytes::new(), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
    });
}
