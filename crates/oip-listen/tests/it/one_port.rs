//! Tests HTTP/1 and HTTP/2 on one port, distinguished by the first bytes of a connection.

use std::{
    io::Write,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Request;
use oip_listen::Protocol;
use tokio::runtime::Builder;

use crate::support::{PATIENCE, Server, limits, read_answer, read_to_end, time_until_closed};

/// Returns the response to a request with a body over a new HTTP/2 connection.
fn echo_over_http2(address: SocketAddr, body: &'static [u8]) -> Vec<u8> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post("http://x/echo").body(()).unwrap();
        let mut client = client.ready().await.unwrap();
        let (answer, mut sending) = client.send_request(request, false).unwrap();
        sending.send_data(Bytes::from_static(body), true).unwrap();
        let mut answer = answer.await.unwrap().into_body();
        let mut read = Vec::new();
        while let Some(piece) = answer.data().await {
            let piece = piece.unwrap();
            answer.flow_control().release_capacity(piece.len()).unwrap();
            read.extend_from_slice(&piece);
        }
        read
    })
}

#[test]
fn each_client_gets_the_protocol_that_it_speaks() {
    let server = Server::start(Protocol::Either, limits());
    for _ in 0..3 {
        server.canary();
        assert_eq!(echo_over_http2(server.address, b"over two"), b"over two");
    }
    // One connection sends several requests, one of which starts with the same letter as the preface.
    let mut kept = server.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none");
    assert!(read_answer(&mut kept, "one").starts_with("HTTP/1.1 200"));
    kept.write_all(b"PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\ntwo")
        .unwrap();
    assert!(read_answer(&mut kept, "two").starts_with("HTTP/1.1 200"));
    drop(kept);
    server.shutdown.drain();
    assert_eq!(server.join(), 0);
}

/// No bytes are lost, however the first bytes of a connection are split.
#[test]
fn first_bytes_may_come_one_by_one() {
    let server = Server::start(Protocol::Either, limits());
    let drip = |bytes: &[u8]| {
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        for byte in bytes {
            stream.write_all(&[*byte]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        stream
    };
    let mut slow = drip(b"PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok");
    assert!(read_answer(&mut slow, "ok").starts_with("HTTP/1.1 200"));
    // The client sends the preface and empty SETTINGS; the server replies with its own SETTINGS.
    let mut http2 = drip(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let mut header = [0; 9];
    std::io::Read::read_exact(&mut http2, &mut header).unwrap();
    assert_eq!(header[3], 4, "a frame of SETTINGS comes first: {header:?}");
}

#[test]
fn who_says_nothing_or_too_little_is_cut() {
    let server = Server::start(Protocol::Either, limits());
    for opening in [
        "",
        "P",
        "PRI * HT",
        "GET / HTTP/1.1\r\nHost",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "PRI / HTTP/1.1\r\nHost",
    ] {
        let (elapsed, answer) = time_until_closed(server.send(opening));
        assert!(
            elapsed > PATIENCE / 2 && elapsed < 10 * PATIENCE,
            "{opening:?}: {elapsed:?}"
        );
        assert!(!answer.starts_with("HTTP/"), "{opening:?}: {answer}");
    }
    server.canary();
}

/// A connection whose protocol is still unknown can be evicted, and does not delay a shutdown.
#[test]
fn silent_connections_do_not_hold_up_a_shutdown_or_others() {
    let patient = limits().with(|limits| {
        limits.head_timeout = Duration::from_secs(1000);
        limits.idle_timeout = Duration::from_secs(1000);
        limits.connections = oip_listen::ConnectionCap::new(2);
    });
    let server = Server::start(Protocol::Either, patient);
    let _silent = [server.connect(), server.send("PRI")];
    thread::sleep(PATIENCE);
    server.canary();
    let mut late = server.connect();
    thread::sleep(PATIENCE / 3);
    server.shutdown.drain();
    // A request that is sent just after the drain began still gets a response.
    late.write_all(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(read_to_end(&mut late).ends_with("hello"));
    let start = Instant::now();
    assert_eq!(server.join(), 0);
    assert!(start.elapsed() < Duration::from_secs(10));
}
