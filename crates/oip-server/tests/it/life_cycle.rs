//! Tests startup, draining and exit.

use std::{
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{Server, connect, receive, send, try_receive};

fn empty_server(arguments: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), arguments);
    server.wait_until_loaded();
    (server, folder)
}

/// Under load, each request gets its response or is refused before it is accepted, and the process exits with
/// the code 0.
#[test]
fn draining_under_load_loses_nothing() {
    for _ in 0..3 {
        let (mut server, _folder) = empty_server(&[]);
        let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (address, is_over, answered) = (server.http, is_over.clone(), answered.clone());
                thread::spawn(move || {
                    let mut stream = connect(address);
                    while !is_over.load(Ordering::SeqCst) {
                        send(&mut stream, "GET", "/v2/health/live", &[], b"");
                        let answer = receive(&mut stream);
                        assert_eq!(answer.status, 200);
                        answered.fetch_add(1, Ordering::SeqCst);
                        if answer.header("connection") == Some("close") {
                            return;
                        }
                        thread::sleep(Duration::from_millis(2));
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(100));
        server.signal("TERM");
        assert_eq!(server.wait(Duration::from_secs(10)).code(), Some(0));
        is_over.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert!(answered.load(Ordering::SeqCst) > 0);
    }
}

/// After the signal the server is not ready, but live.
#[test]
fn a_draining_server_says_so() {
    let (mut server, _folder) = empty_server(&[]);
    let mut stream = server.connect();
    send(&mut stream, "GET", "/v2/health/ready", &[], b"");
    assert_eq!(receive(&mut stream).status, 200);
    let mut live = server.connect();
    send(&mut live, "GET", "/v2/health/live", &[], b"");
    receive(&mut live);
    server.signal("TERM");
    thread::sleep(Duration::from_millis(200));
    send(&mut stream, "GET", "/v2/health/ready", &[], b"");
    let answer = receive(&mut stream);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"], "the server is shutting down");
    send(&mut live, "GET", "/v2/health/live", &[], b"");
    assert_eq!(receive(&mut live).status, 200);
    assert_eq!(server.wait(Duration::from_secs(10)).code(), Some(0));
}

/// With a shutdown delay, clients that check readiness, like load balancers, see neither errors nor refused
/// or closed connections.
#[test]
fn with_a_delay_nothing_is_even_refused() {
    for _ in 0..3 {
        let (mut server, _folder) = empty_server(&["--shutdown-delay", "2s"]);
        let address = server.http;
        let is_out = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let is_out = is_out.clone();
                thread::spawn(move || {
                    let (mut stream, mut after_signal) = (connect(address), 0_usize);
                    while !is_out.load(Ordering::SeqCst) {
                        send(&mut stream, "GET", "/v2/health/live", &[], b"");
                        let answer = receive(&mut stream);
                        assert_eq!(answer.status, 200);
                        if answer.header("connection") == Some("close") {
                            after_signal += 1;
                            stream = connect(address);
                        }
                        thread::sleep(Duration::from_millis(1));
                    }
                    after_signal
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(50));
        server.signal("TERM");
        // The load balancer polls readiness, and then needs a moment to react.
        while server.get("/readyz").status == 200 {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(
            server.get("/v2/health/ready").json()["error"],
            "the server is shutting down"
        );
        thread::sleep(Duration::from_millis(200));
        is_out.store(true, Ordering::SeqCst);
        let after_signal: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
        assert!(after_signal > 0, "no client was asked to open another connection");
        assert_eq!(server.wait(Duration::from_secs(20)).code(), Some(0));
    }
}

/// Stalled clients delay the shutdown up to the drain timeout; the exit code reports that connections were
/// cut.
#[test]
fn stalled_clients_end_with_the_drain_timeout() {
    let (mut server, _folder) = empty_server(&["--drain-timeout", "2s"]);
    let body = "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc";
    let mut stalled = Vec::new();
    for (address, opening) in [
        (server.http, ""),
        (server.http, "GET / HT"),
        (server.http, body),
        (server.grpc, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ] {
        let mut stream = connect(address);
        stream.write_all(opening.as_bytes()).unwrap();
        stalled.push(stream);
    }
    thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    server.signal("TERM");
    let status = server.wait(Duration::from_secs(10));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(status.code(), Some(1));
}

/// The second signal ends the process immediately.
#[test]
fn a_second_signal_ends_at_once() {
    for second in ["TERM", "INT"] {
        let (mut server, _folder) = empty_server(&["--drain-timeout", "60s"]);
        // A half-open HTTP/2 connection keeps the drain waiting.
        let mut stalled = connect(server.grpc);
        stalled.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        thread::sleep(Duration::from_millis(100));
        server.signal("TERM");
        thread::sleep(Duration::from_millis(200));
        assert!(
            server.child.try_wait().unwrap().is_none(),
            "the drain did not wait"
        );
        let start = Instant::now();
        server.signal(second);
        assert_eq!(server.wait(Duration::from_secs(5)).code(), Some(130));
        assert!(start.elapsed() < Duration::from_secs(1));
    }
    // A second signal also ends the process during the shutdown delay, while a reload signal does not.
    let (mut server, _folder) = empty_server(&["--shutdown-delay", "60s"]);
    for signal in ["TERM", "HUP"] {
        server.signal(signal);
        thread::sleep(Duration::from_millis(200));
        assert!(server.child.try_wait().unwrap().is_none(), "{signal} ended it");
    }
    server.signal("INT");
    assert_eq!(server.wait(Duration::from_secs(5)).code(), Some(130));
}

/// The server survives signals that must not end the process.
#[test]
fn other_signals_are_survived() {
    let (server, _folder) = empty_server(&[]);
    for signal in ["PIPE", "HUP", "XFSZ", "USR1", "USR2", "ALRM", "STOP", "CONT"] {
        server.signal(signal);
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.get("/v2/health/live").status, 200);
}

/// An unread log does not block the server.
#[test]
fn a_log_that_nobody_reads() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = crate::support::command(folder.path(), &["--log", "trace"]);
    let mut server = Server::spawn(command.stderr(std::process::Stdio::piped()));
    let dropped = || {
        let metrics = String::from_utf8(server.get("/metrics").body).unwrap();
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("oip_log_lines_dropped_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    // Makes the server log more than a pipe and the queue can hold: each change of log settings logs a line.
    let mut requests = 0;
    while dropped() == 0 {
        for level in 0..500 {
            let body = format!("{{\"log_verbose_level\": {}}}", level % 2);
            assert_eq!(
                server.request("POST", "/v2/logging", &[], body.as_bytes()).status,
                200
            );
        }
        requests += 500;
        assert!(requests < 50_000, "no line is dropped");
    }
    let mut stderr = server.child.stderr.take().unwrap();
    let mut some = [0; 1000];
    assert!(stderr.read(&mut some).unwrap() > 0);
    drop(stderr);
    for _ in 0..10 {
        assert_eq!(server.get("/v2/health/live").status, 200);
    }
}

/// The last log lines are written before the process exits, however it exits.
#[test]
fn the_last_lines_are_written() {
    for (signals, code, last) in [
        (&["TERM"][..], 0, "oip_server::app: ended "),
        (&["TERM", "TERM"], 130, "oip_server::app: exiting at once "),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = crate::support::command(folder.path(), &[]);
        let mut server = Server::spawn(command.stderr(std::process::Stdio::piped()));
        server.wait_until_loaded();
        let mut stderr = server.child.stderr.take().unwrap();
        // A half-open HTTP/2 connection keeps the drain waiting for the second signal.
        let mut stalled = connect(server.grpc);
        if signals.len() > 1 {
            stalled.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        } else {
            drop(stalled);
        }
        for signal in signals {
            thread::sleep(Duration::from_millis(200));
            server.signal(signal);
        }
        assert_eq!(server.wait(Duration::from_secs(20)).code(), Some(code));
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        assert!(text.lines().last().unwrap().contains(last), "{text}");
    }
}

/// A killed server can be restarted on the same port.
#[test]
fn the_port_is_free_again_after_a_kill() {
    let (mut server, folder) = empty_server(&[]);
    let address = server.http.to_string();
    let mut open = server.connect();
    send(&mut open, "GET", "/v2", &[], b"");
    receive(&mut open);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(try_receive(&mut open).is_err());
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command.arg("--model-repository").arg(folder.path());
    let again = Server::spawn(command.args(["--http-address", &address, "--grpc-address", "127.0.0.1:0"]));
    assert_eq!(again.http.to_string(), address);
}
