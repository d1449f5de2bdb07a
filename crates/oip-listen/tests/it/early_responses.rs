//! Tests early responses, and clients that read too slowly.

use std::{
    io::{Read, Write},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::{RecvStream, client::SendRequest};
use oip_listen::Protocol;
use tokio::{net::TcpStream, runtime::Builder, task::JoinHandle};

use crate::support::{PATIENCE, Server, eventually, limits, read_answer, read_to_end};

/// After an early response, the connection serves the next request. Like Python's `http.client`, the test
/// sends the head and the body in two writes.
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
            // A client that sends everything before it reads must not lose the response to a reset.
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

/// A client that reads below the minimum rate is cut, and the memory of its response is freed.
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
    // Clients that read steadily are not cut.
    let mut fast = server.send("GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(read_to_end(&mut fast).len() > 32 << 20);
}

fn block_on(client: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(client);
}

/// Connects an HTTP/2 client with a receive window of one byte per stream.
async fn narrow_client(server: &Server) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let mut client = h2::client::Builder::new();
    client
        .initial_window_size(1)
        .initial_connection_window_size(1 << 20);
    let (requests, connection) = client.handshake(stream).await.unwrap();
    (requests, tokio::spawn(connection))
}

async fn get(requests: &mut SendRequest<Bytes>, path: &str) -> RecvStream {
    let request = http::Request::get(format!("http://x{path}")).body(()).unwrap();
    *requests = requests.clone().ready().await.unwrap();
    let (answer, _) = requests.send_request(request, true).unwrap();
    answer.await.unwrap().into_body()
}

async fn read_whole(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut read = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len()).unwrap();
        read.extend_from_slice(&piece);
    }
    Ok(read)
}

/// A stream that is not read ends without affecting other streams. The test uses a large response and one
/// that is short enough to be passed to h2 at once.
#[test]
fn a_stream_that_is_not_read_is_reset_and_its_connection_goes_on() {
    for path in ["/big", "/small"] {
        let limits = limits().with(|limits| limits.write_timeout = 3 * PATIENCE);
        let server = Server::start(Protocol::Http2, limits);
        block_on(async {
            let (mut requests, connection) = narrow_client(&server).await;
            let stuck = get(&mut requests, path).await;
            let start = Instant::now();
            let mut answered = 0;
            while server.abandoned.load(Ordering::SeqCst) == 0 {
                assert!(start.elapsed() < Duration::from_secs(20), "{path}: kept");
                let body = get(&mut requests, "/hello").await;
                assert_eq!(read_whole(body).await.unwrap(), b"hello");
                answered += 1;
            }
            assert!(start.elapsed() > 2 * PATIENCE, "{path}: reset too early");
            assert!(answered > 10, "{path}: {answered}");
            let error = read_whole(stuck).await.unwrap_err();
            assert_eq!(error.reason(), Some(h2::Reason::CANCEL), "{path}: {error}");
            let body = get(&mut requests, "/hello").await;
            assert_eq!(read_whole(body).await.unwrap(), b"hello");
            assert!(!connection.is_finished(), "{path}");
        });
    }
}

/// The client opens the window of one stream a byte at a time. This stream is reset as too slow, even if the
/// client reads its other streams.
#[test]
fn a_stream_that_is_read_too_slowly_is_reset() {
    let limits = limits().with(|limits| {
        limits.write_timeout = 100 * PATIENCE;
        limits.min_send_rate = 4 << 20;
        limits.send_rate_grace = 2 * PATIENCE;
    });
    let server = Server::start(Protocol::Http2, limits);
    block_on(async {
        let (mut requests, _connection) = narrow_client(&server).await;
        let mut slow = get(&mut requests, "/small").await;
        let error = loop {
            match slow.data().await.unwrap() {
                Ok(piece) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    slow.flow_control().release_capacity(piece.len()).unwrap();
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL), "{error}");
    });
}

/// Returns the preface and settings of a client with this stream window and the maximum connection window.
fn opening(window: u32) -> Vec<u8> {
    let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    opening.extend_from_slice(&settings(window));
    opening.extend_from_slice(b"\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0");
    opening
}

fn settings(window: u32) -> Vec<u8> {
    let mut frame = b"\0\0\x06\x04\0\0\0\0\0\0\x04".to_vec();
    frame.extend_from_slice(&window.to_be_bytes());
    frame
}

/// Returns a GET encoded with HPACK's static table.
fn get_frame(path: &str, stream: u8) -> Vec<u8> {
    let mut head = vec![0x82, 0x86, 4, path.len() as u8];
    head.extend_from_slice(path.as_bytes());
    head.extend_from_slice(b"\x01\x01x");
    let mut frame = vec![0, 0, head.len() as u8, 1, 5, 0, 0, 0, stream];
    frame.extend_from_slice(&head);
    frame
}

/// When the client shrinks its window again, data that was already passed to h2 cannot be sent; the stream
/// must still time out.
#[test]
fn a_client_that_takes_its_windows_back_does_not_keep_what_was_given_out() {
    let limits = limits().with(|limits| {
        limits.write_timeout = 3 * PATIENCE;
        limits.ping_interval = 100 * PATIENCE;
    });
    let server = Server::start(Protocol::Http2, limits);
    let mut stream = server.connect();
    let mut opening = opening(i32::MAX as u32);
    opening.extend_from_slice(&get_frame("/big", 1));
    stream.write_all(&opening).unwrap();
    // After this time the socket buffers are full, so data that is sent later stays in h2.
    thread::sleep(PATIENCE);
    stream.write_all(&get_frame("/small", 3)).unwrap();
    thread::sleep(PATIENCE / 3);
    stream.write_all(&settings(0)).unwrap();
    let mut reading = stream.try_clone().unwrap();
    thread::spawn(move || std::io::copy(&mut reading, &mut std::io::sink()));
    eventually("the responses are kept", || {
        server.abandoned.load(Ordering::SeqCst) == 2
    });
}

/// A client that reads none of its streams gets GOAWAY before its connection ends.
#[test]
fn a_connection_whose_streams_are_all_stuck_ends_with_go_away() {
    let limits = limits().with(|limits| limits.ping_interval = 100 * PATIENCE);
    let server = Server::start(Protocol::Http2, limits);
    let mut stream = server.connect();
    stream.write_all(&opening(0)).unwrap();
    for number in [1, 3] {
        stream.write_all(&get_frame("/small", number)).unwrap();
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let mut frames = Vec::new();
    let mut rest = &answer[..];
    while let [a, b, c, kind, _, _, _, _, number, after @ ..] = rest {
        let (payload, after) = after.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        frames.push((*kind, *number, payload.to_vec()));
        rest = after;
    }
    const RST_STREAM: u8 = 3;
    const GOAWAY: u8 = 7;
    let cancel = vec![0, 0, 0, 8];
    for number in [1, 3] {
        assert!(
            frames.contains(&(RST_STREAM, number, cancel.clone())),
            "{frames:?}"
        );
    }
    assert!(frames.iter().any(|(kind, ..)| *kind == GOAWAY), "{frames:?}");
    assert_eq!(server.abandoned.load(Ordering::SeqCst), 2);
}

/// One connection has many streams and almost no window. Its responses do not stay in memory, whether they
/// are waiting for window or were fully passed to h2.
#[test]
fn streams_without_a_window_are_cut() {
    const STREAMS: usize = 5;
    for path in ["/big", "/small"] {
        let limits = limits().with(|limits| limits.write_timeout = 10 * PATIENCE);
        let server = Server::start(Protocol::Http2, limits);
        block_on(async {
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
            // The client replies to pings, and reads nothing.
            let _ = connection.await;
        });
        eventually("the responses are kept", || {
            server.abandoned.load(Ordering::SeqCst) == STREAMS
        });
    }
}
