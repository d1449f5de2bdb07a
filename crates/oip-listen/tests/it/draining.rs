//! Tests shutdowns: every accepted request gets its response, and no client can block a shutdown.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use oip_listen::Protocol;

use crate::support::{PATIENCE, Server, limits, read_answer, read_to_end};

/// Under load, every request that a client managed to send gets a response.
#[test]
fn nothing_accepted_is_lost() {
    for _ in 0..5 {
        let server = Server::start(Protocol::Http1, limits());
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let address = server.address;
                thread::spawn(move || client(address))
            })
            .collect();
        thread::sleep(Duration::from_millis(100));
        server.shutdown.drain();
        assert_eq!(server.join(), 0, "connections were cut");
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    }
}

/// Sends requests over successive connections until the server has exited. Returns the number of responses.
fn client(address: SocketAddr) -> usize {
    let mut answered = 0;
    while let Ok(mut stream) = TcpStream::connect(address) {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answered_here = 0;
        loop {
            let sent = stream.write_all(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
            let mut first = [0];
            // The kernel may complete a connection just before the listener closes. Such a connection counts
            // as refused.
            if answered_here == 0 && (sent.is_err() || stream.peek(&mut first).is_err()) {
                break;
            }
            let answer = read_answer(&mut stream, "hello");
            assert!(answer.starts_with("HTTP/1.1 200"));
            answered_here += 1;
            if answer.contains("connection: close") {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        answered += answered_here;
    }
    answered
}

/// Stalled clients do not delay a shutdown once the server cuts connections.
#[test]
fn stalled_clients_cannot_hold_up_a_shutdown() {
    let patient = || {
        limits().with(|limits| {
            limits.head_timeout = Duration::from_secs(1000);
            limits.body_gap_timeout = Duration::from_secs(1000);
            limits.body_rate_grace = Duration::from_secs(1000);
            limits.write_timeout = Duration::from_secs(1000);
            limits.ping_interval = Duration::from_secs(1000);
        })
    };
    for (protocol, openings) in [
        (
            Protocol::Http1,
            &[
                "",
                "GET / HT",
                "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
                "GET /big HTTP/1.1\r\nHost: x\r\n\r\n",
            ][..],
        ),
        (Protocol::Http2, &["", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]),
    ] {
        let server = Server::start(protocol, patient());
        let stalled: Vec<TcpStream> = openings.iter().map(|opening| server.send(opening)).collect();
        thread::sleep(PATIENCE);
        server.shutdown.drain();
        thread::sleep(PATIENCE);
        let start = Instant::now();
        server.shutdown.cut();
        let cut = server.join();
        assert!(start.elapsed() < Duration::from_secs(2));
        assert!(cut >= 1 && cut <= stalled.len(), "{cut}");
    }
}

/// A client with an idle connection is asked to close it, and gets a response if it has just sent a request.
#[test]
fn idle_connections_are_told_to_close() {
    let server = Server::start(Protocol::Http1, limits());
    let mut late = server.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut idle = server.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(!read_answer(&mut late, "hello").contains("connection: close"));
    read_answer(&mut idle, "hello");
    server.shutdown.drain();
    late.write_all(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let answer = read_to_end(&mut late);
    assert!(
        answer.contains("connection: close") && answer.ends_with("hello"),
        "{answer}"
    );
    assert_eq!(read_to_end(&mut idle), "");
    assert_eq!(server.join(), 0);
}

/// A server in the phase `leave` serves all requests, and its HTTP/1 responses ask clients to reconnect.
#[test]
fn leaving_clients_are_answered_and_sent_away() {
    for protocol in [Protocol::Http1, Protocol::Either] {
        let server = Server::start(protocol, limits());
        let mut kept = server.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(!read_answer(&mut kept, "hello").contains("connection: close"));
        server.shutdown.leave();
        for mut stream in [kept, server.connect()] {
            stream
                .write_all(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
            let answer = read_to_end(&mut stream);
            assert!(
                answer.contains("connection: close") && answer.ends_with("hello"),
                "{answer}"
            );
        }
        server.shutdown.drain();
        assert_eq!(server.join(), 0);
    }
}

/// Requests in progress finish, and a client in the listen backlog is served.
#[test]
fn work_under_way_is_finished() {
    let server = Server::start(Protocol::Http1, limits());
    let mut slow = server.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    thread::sleep(PATIENCE / 3);
    let mut queued = server.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    server.shutdown.drain();
    assert!(read_to_end(&mut queued).ends_with("hello"));
    assert!(read_to_end(&mut slow).ends_with("slow"));
    assert_eq!(server.join(), 0);
}
