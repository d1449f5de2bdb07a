//! Tests clients that stall, trickle, disappear or overload the server, and the timeouts for them.

use std::{
    io::{Read, Write},
    net::Shutdown as Side,
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use oip_listen::{ConnectionCap, ConnectionLimits, Protocol};

use crate::support::{PATIENCE, Server, eventually, limits, read_answer, read_to_end, time_until_closed};

/// Checks that the connection ended neither at once nor much later than the timeout.
fn assert_timely(elapsed: Duration) {
    assert!(elapsed > PATIENCE / 2 && elapsed < 10 * PATIENCE, "{elapsed:?}");
}

/// A connection is cut when its client sends nothing, or only an HTTP/2 preface.
#[test]
fn silence_is_cut() {
    let server = Server::start(Protocol::Http1, limits());
    for opening in ["", "PRI * HT"] {
        let (elapsed, answer) = time_until_closed(server.send(opening));
        assert_timely(elapsed);
        assert_eq!(answer, "");
    }
    server.canary();
}

/// A connection is cut when its client sends only half a request head.
#[test]
fn half_a_head_is_cut() {
    let server = Server::start(Protocol::Http1, limits());
    for opening in ["GET /v2 HTTP/1.1\r\nHost: x\r\nX-a: ", "G"] {
        let (elapsed, answer) = time_until_closed(server.send(opening));
        assert_timely(elapsed);
        assert_eq!(answer, "");
    }
    // Sending a byte now and then does not extend the timeout.
    let mut trickle = server.send("GET /v2 HTTP/1.1\r\nX-a: ");
    let mut writer = trickle.try_clone().unwrap();
    let writing = thread::spawn(move || {
        while writer.write_all(b"b").is_ok() {
            thread::sleep(PATIENCE / 6);
        }
    });
    read_to_end(&mut trickle);
    trickle.shutdown(Side::Both).ok();
    writing.join().unwrap();
    server.canary();
}

/// A head that reaches the size limit is rejected. The server waits for the end of a shorter head.
#[test]
fn long_heads_are_refused() {
    const LIMIT: usize = 16 << 10;
    let limits = ConnectionLimits::default().with(|limits| limits.max_head_bytes = LIMIT);
    let server = Server::start(Protocol::Http1, limits);
    let start = "GET /hello HTTP/1.1\r\nHost: x\r\nX-a: ";
    let mut refused = server.send(&format!("{start}{}", "b".repeat(LIMIT - start.len())));
    let answer = read_to_end(&mut refused);
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let mut accepted = server.send(&format!("{start}{}", "b".repeat(LIMIT / 2)));
    accepted.write_all(b"\r\nConnection: close\r\n\r\n").unwrap();
    let answer = read_to_end(&mut accepted);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A connection is cut when its client sends half a head after an earlier request.
#[test]
fn half_a_second_head_is_cut() {
    let server = Server::start(
        Protocol::Http1,
        limits().with(|limits| limits.idle_timeout = 100 * PATIENCE),
    );
    let mut stream = server.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    read_answer(&mut stream, "hello");
    stream.write_all(b"GET /hello HT").unwrap();
    assert_timely(time_until_closed(stream).0);
}

/// A body fails when it stalls or arrives too slowly.
#[test]
fn slow_bodies_are_ended() {
    let server = Server::start(Protocol::Http1, limits());
    let head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    let (elapsed, answer) = time_until_closed(server.send(&format!("{head}abc")));
    assert_timely(elapsed);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");

    let mut trickle = server.send(head);
    let mut writer = trickle.try_clone().unwrap();
    let writing = thread::spawn(move || {
        while writer.write_all(b"b").is_ok() {
            thread::sleep(PATIENCE / 6);
        }
    });
    let answer = read_to_end(&mut trickle);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    trickle.shutdown(Side::Both).ok();
    writing.join().unwrap();

    // A steady rate above the minimum is accepted, however long the body takes.
    let mut steady =
        server.send("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3000\r\n\r\n");
    for _ in 0..20 {
        steady.write_all(&[b'y'; 150]).unwrap();
        thread::sleep(PATIENCE / 5);
    }
    assert!(read_to_end(&mut steady).ends_with(&"y".repeat(3000)));
}

/// The body of a conversation may pause; its connection has the usual timeouts.
#[test]
fn conversations_may_pause() {
    let server = Server::start(
        Protocol::Http1,
        limits().with(|limits| limits.conversations = &["/echo"]),
    );
    let head = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 6\r\n\r\nabc")
    };
    let mut conversation = server.send(&head("/echo"));
    let (elapsed, answer) = time_until_closed(server.send(&head("/hello")));
    assert_timely(elapsed);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    thread::sleep(3 * PATIENCE);
    conversation.write_all(b"def").unwrap();
    assert!(read_to_end(&mut conversation).ends_with("abcdef"));
}

/// A connection is cut when its client does not read a response.
#[test]
fn an_answer_that_is_not_read_is_cut() {
    let server = Server::start(Protocol::Http1, limits());
    let mut stream = server.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
    thread::sleep(6 * PATIENCE);
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    assert!(received.len() < 32 << 20, "all of it was sent");
    server.canary();
}

/// An idle connection is closed after its timeout, not earlier.
#[test]
fn idle_connections_are_closed() {
    let server = Server::start(Protocol::Http1, limits());
    let mut stream = server.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    read_answer(&mut stream, "hello");
    thread::sleep(PATIENCE + PATIENCE / 3);
    stream
        .write_all(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    read_answer(&mut stream, "hello");
    let (elapsed, answer) = time_until_closed(stream);
    assert!(
        elapsed > PATIENCE && elapsed < 20 * PATIENCE && answer.is_empty(),
        "{elapsed:?} {answer}"
    );
}

/// A slow service does not count against its client.
#[test]
fn slow_services_are_waited_for() {
    let server = Server::start(Protocol::Http1, limits());
    let mut stream = server.send("GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(read_to_end(&mut stream).ends_with("slow"));
    assert_eq!(server.abandoned.load(Ordering::SeqCst), 0);
}

/// The work for a request is cancelled when its client disconnects.
#[test]
fn work_for_nobody_is_given_up() {
    let server = Server::start(Protocol::Http1, limits());
    drop(server.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"));
    eventually("the request was not given up", || {
        server.abandoned.load(Ordering::SeqCst) == 1
    });
}

/// A half-closed client still gets a quick response.
#[test]
fn a_half_closed_client_is_answered() {
    let server = Server::start(Protocol::Http1, limits());
    for _ in 0..50 {
        let mut stream = server.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.shutdown(Side::Write).unwrap();
        assert!(read_to_end(&mut stream).ends_with("hello"));
    }
}

/// Pipelined requests get responses in order.
#[test]
fn pipelining() {
    let server = Server::start(Protocol::Http1, limits());
    let request =
        |body: usize| format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n{body:04}");
    let mut stream = server.send(&(0..1000).map(request).collect::<String>());
    for body in 0..1000 {
        assert!(read_answer(&mut stream, &format!("\r\n\r\n{body:04}")).starts_with("HTTP/1.1 200"));
    }
}

/// The server still works after many clients have connected and disconnected immediately.
#[test]
fn a_storm_of_resets() {
    let server = Server::start(Protocol::Http1, limits());
    for _ in 0..2000 {
        drop(server.send("GET /hello HTTP/1.1\r\n"));
    }
    server.canary();
}

/// Clients beyond the cap wait while all connections are busy.
#[test]
fn connections_beyond_the_cap_wait() {
    let server = Server::start(
        Protocol::Http1,
        limits().with(|limits| {
            limits.connections = ConnectionCap::new(3);
            limits.idle_timeout = 100 * PATIENCE;
        }),
    );
    let mut open: Vec<_> = (0..3)
        .map(|_| server.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
        .collect();
    thread::sleep(PATIENCE);
    let mut waiting = server.send("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(waiting.read(&mut [0]).is_err(), "served beyond the cap");
    drop(open.pop());
    waiting.set_read_timeout(Some(20 * PATIENCE)).unwrap();
    assert!(read_to_end(&mut waiting).ends_with("hello"));
    open.iter_mut()
        .for_each(|stream| drop(read_answer(stream, "slow")));
}

/// A connection is cut when its client sends data that is not HTTP/2 to an HTTP/2 port.
#[test]
fn junk_on_the_http2_port_is_cut() {
    let server = Server::start(Protocol::Http2, limits());
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for opening in [
        "",
        preface,
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}",
        "garbage garbage garbage garbage",
    ] {
        let (elapsed, _) = time_until_closed(server.send(opening));
        assert!(elapsed < 10 * PATIENCE, "{opening:?}: {elapsed:?}");
    }
}

/// A connection is cut when its HTTP/2 client does not reply to pings.
#[test]
fn a_dead_peer_is_cut() {
    let server = Server::start(
        Protocol::Http2,
        limits().with(|limits| limits.idle_timeout = 1000 * PATIENCE),
    );
    // The client sends a preface and an empty SETTINGS frame, and then nothing, not even an acknowledgement.
    let stream = server.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0");
    assert!(time_until_closed(stream).0 < 20 * PATIENCE);
}
