//! Answers that come before their request was read, and clients that take theirs too slowly.

use std::{
    io::{Read, Write},
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use bytes::Bytes;
use oip_listen::Protocol;
use tokio::net::TcpStream;

use crate::support::{PATIENCE, Server, eventually, limits, read_answer, read_to_end};

/// Python's `http.client` sends a head and its body in two writes, and then the next request.
#[test]
fn an_early_answer_leaves_the_connection_to_the_next_request() {
    let server = Server::start(Protocol::Http1, limits());
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    for _ in 0..10 {
        stream
            .write_all(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
            .unwrap();
        thread::sleep(Duration::from_millis(5));
        stream.write_all(b"0123456789").unwrap();
        let answer = read_answer(&mut stream, "refused").to_ascii_lowercase();
        assert!(
            answer.starts_with("http/1.1 404") && !answer.contains("connection: close"),
            "{answer}"
        );
        stream
            .write_all(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        read_answer(&mut stream, "hello");
    }
}

#[test]
fn an_early_answer_to_a_large_request_says_that_the_connection_ends_and_arrives() {
    let server = Server::start(Protocol::Http1, limits());
    for head in [
        "Content-Length: 4000000",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue\r\nContent-Length: 9",
    ] {
        let mut stream = server.send(&format!("POST /refused HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n"));
        if head.starts_with("Content-Length") {
            // A client that sends everything before it reads must not lose the answer to a reset.
            stream.write_all(&vec![b'x'; 4_000_000]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let answer = answer.to_ascii_lowercase();
        assert!(
            answer.starts_with("http/1.1 404") && answer.ends_with("refused"),
            "{answer}"
        );
        assert!(answer.contains("connection: close"), "{answer}");
    }
    server.canary();
}

/// A client that reads, but slower than the least rate: its answer is freed.
#[test]
fn slow_readers_are_cut() {
    let server = Server::start(
        Protocol::Http1,
        limits().with(|limits| {
            limits.write_timeout = 100 * PATIENCE;
            limits.min_send_rate = 4 << 20;
            limits.send_rate_grace = 2 * PATIENCE;
        }),
    );
    let mut slow = server.send("GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut part = [0; 4096];
    eventually("the slow client is served on", || {
        let _ = (&slow).read(&mut part.clone());
        thread::sleep(Duration::from_millis(20));
        server.abandoned.load(Ordering::SeqCst) == 1
    });
    let _ = slow.read(&mut part);
    // Others, who read what they get, are not.
    let mut fast = server.send("GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(read_to_end(&mut fast).len() > 32 << 20);
}

/// One connection with many streams and almost no window: neither what waits for it nor what was all given out stays.
#[test]
fn streams_without_a_window_are_cut() {
    const STREAMS: usize = 5;
    for path in ["/big", "/small"] {
        let limits = limits().with(|limits| limits.write_timeout = 10 * PATIENCE);
        let server = Server::start(Protocol::Http2, limits);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let stream = TcpStream::connect(server.address).await.unwrap();
            let mut client = h2::client::Builder::new();
            client.initial_window_size(1);
            let (mut requests, connection) = client.handshake::<_, Bytes>(stream).await.unwrap();
            let connection = tokio::spawn(connection);
            let mut answers = Vec::new();
            for _ in 0..STREAMS {
                let request = http::Request::get(format!("http://x{path}")).body(()).unwrap();
                requests = requests.ready().await.unwrap();
                let (answer, _) = requests.send_request(request, true).unwrap();
                answers.push(answer.await.unwrap());
            }
            assert_eq!(server.abandoned.load(Ordering::SeqCst), 0, "{path}");
            // The client answers pings, and reads nothing.
            let _ = connection.await;
        });
        eventually("the answers are kept", || {
            server.abandoned.load(Ordering::SeqCst) == STREAMS
        });
    }
}
