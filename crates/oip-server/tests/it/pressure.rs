//! Tests resource exhaustion and malformed HTTP requests.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::support::{Server, connect, send, try_receive};

/// With all file descriptors used up, the server neither spins nor dies, and recovers.
#[test]
fn no_file_descriptors_left() {
    let (server, _folder) = Server::with_descriptors(64, 64, &[]);
    let crowd: Vec<_> = (0..200).map(|_| connect(server.http)).collect();
    thread::sleep(Duration::from_millis(300));
    let before = server.cpu_time();
    thread::sleep(Duration::from_secs(2));
    let used = server.cpu_time() - before;
    assert!(
        used <= Duration::from_millis(200),
        "{used:?} of CPU time in two seconds of nothing to do"
    );

    drop(crowd);
    let start = Instant::now();
    loop {
        let mut stream = connect(server.http);
        send(&mut stream, "GET", "/v2/health/live", &[], b"");
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        if try_receive(&mut stream).is_ok_and(|answer| answer.status == 200) {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the server did not recover"
        );
    }
}

/// Shared memory regions hold a descriptor each, but leave most descriptors to connections; a region beyond
/// the limit is rejected.
#[test]
#[cfg(target_os = "linux")]
fn regions_of_shared_memory_do_not_use_up_the_descriptors() {
    let (server, _folder) = Server::with_descriptors(64, 128, &["--system-shared-memory"]);
    let key = format!("oip-server-pressure-{}", std::process::id());
    let path = format!("/dev/shm/{key}");
    std::fs::write(&path, [0; 8]).unwrap();
    let mut refusals = Vec::new();
    for index in 0..100 {
        let register = format!("/v2/systemsharedmemory/region/r{index}/register");
        let body = format!(r#"{{"key":"/{key}","byte_size":8}}"#);
        let answer = server.request("POST", &register, &[], body.as_bytes());
        if answer.status != 200 {
            refusals.push((answer.status, answer.json()["error"].as_str().unwrap().to_owned()));
        }
    }
    std::fs::remove_file(&path).unwrap();
    // The server raised its descriptor limit to 128, and a quarter of that is for regions.
    assert_eq!(refusals.len(), 100 - 32);
    let expected =
        "shared memory region 'r32': 32 regions are registered, the server's limit; unregister one first";
    assert_eq!(refusals[0], (429, expected.to_owned()));
    let crowd: Vec<_> = (0..20).map(|_| connect(server.http)).collect();
    assert_eq!(server.get("/v2/health/live").status, 200);
    drop(crowd);
}

const POST: &str = "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n";

/// Sends invalid HTTP requests, each on its own connection: they are rejected and the server continues.
fn assert_refused(requests: &[String], statuses: &[u16]) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for request in requests {
        let mut stream = connect(server.http);
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let answer = try_receive(&mut stream);
        let status = answer.as_ref().map(|answer| answer.status);
        assert!(
            status.as_ref().is_ok_and(|status| statuses.contains(status)),
            "{request:?}: {status:?}"
        );
    }
    assert_eq!(server.get("/v2/health/live").status, 200);
}

/// Rejects malformed chunk sizes. The model `m` does not exist: a request whose body is not needed gets
/// status 404, and then the connection is closed.
#[test]
fn chunks_that_are_none() {
    let chunked = |rest: &str| format!("{POST}Transfer-Encoding: chunked\r\n\r\n{rest}");
    let extension = format!("1;{}\r\nA\r\n0\r\n\r\n", "x".repeat(64 << 10));
    assert_refused(
        &[
            chunked("FFFFFFFFFFFFFFFF1\r\n"),
            chunked("-1\r\n"),
            chunked(&extension),
            chunked("1\nA\n0\n\n"),
        ],
        &[400, 404],
    );
}

/// Rejects two lengths, malformed lengths and unknown codings.
#[test]
fn lengths_that_contradict() {
    let with = |headers: &str| format!("{POST}{headers}\r\n\r\nabcd");
    assert_refused(
        &[
            with("Content-Length: 4\r\nContent-Length: 5"),
            with("Content-Length: +4"),
            with("Content-Length: 4, 5"),
            with("Content-Length: 18446744073709551616"),
            with("Transfer-Encoding: xchunked"),
            with("Transfer-Encoding: chunked, identity"),
        ],
        &[400],
    );
    // With both headers, the coding takes precedence, and a repeated length is unambiguous: such requests may
    // succeed.
    assert_refused(
        &[
            with("Content-Length: 4\r\nTransfer-Encoding: chunked"),
            with("Content-Length: 4, 4"),
        ],
        &[400, 404],
    );
}

/// Rejects invalid HTTP heads, and heads without a host.
#[test]
fn ht_13_heads_that_are_no_http() {
    assert_refused(
        &[
            "GET /v2 HTTP/1.1\r\n\r\n".to_owned(),
            "GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(),
            "GET /v2 HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n".to_owned(),
            "GET /v2 HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n".to_owned(),
            "GET /v2 HTTP/1.1\r\nHost : x\r\n\r\n".to_owned(),
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}".to_owned(),
            "\u{7f}".repeat(64),
            "GET /v2 HTTP/2.1\r\nHost: x\r\n\r\n".to_owned(),
        ],
        &[400],
    );
}

/// Rejects too many headers, and an endless line.
#[test]
fn heads_that_are_too_large() {
    let headers: String = (0..101).map(|index| format!("h{index}: x\r\n")).collect();
    assert_refused(
        &[
            format!("GET /v2 HTTP/1.1\r\nHost: x\r\n{headers}\r\n"),
            format!(
                "GET /v2 HTTP/1.1\r\nHost: x\r\na: {}\r\n\r\n",
                "x".repeat(500_000)
            ),
        ],
        &[431],
    );
    assert_refused(
        &[format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(70_000))],
        &[414, 431],
    );
}
