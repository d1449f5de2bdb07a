//! More than there is room for.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::support::{Server, connect, send, try_receive};

/// HT-42: with all file descriptors used up the server neither spins nor dies, and recovers.
#[test]
fn ht_42_no_file_descriptors_left() {
    let (server, _folder) = Server::with_few_descriptors();
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

/// HT-13, HT-10, HT-11, HT-12: heads that no HTTP client may send are refused and the connection is closed.
#[test]
fn ht_12_requests_that_are_no_http() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let post = "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n";
    for request in [
        "GET /v2 HTTP/1.1\r\n\r\n".to_owned(),
        "GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(),
        "GET /v2 HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n".to_owned(),
        "GET /v2 HTTP/1.1\r\nHost : x\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}".to_owned(),
        "GET /v2 HTTP/2.1\r\nHost: x\r\n\r\n".to_owned(),
        format!("{post}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"),
        format!("{post}Content-Length: +4\r\n\r\nabcd"),
        format!("{post}Content-Length: 18446744073709551616\r\n\r\n"),
        format!("{post}Transfer-Encoding: xchunked\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF1\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n-1\r\n"),
        format!(
            "GET /v2 HTTP/1.1\r\nHost: x\r\n{}\r\n",
            (0..101)
                .map(|index| format!("h{index}: x\r\n"))
                .collect::<String>()
        ),
    ] {
        let mut stream = connect(server.http);
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let answer = try_receive(&mut stream);
        // Without a model `m` a body that is never read is not judged: then its model is not found.
        let is_refused = answer
            .as_ref()
            .is_ok_and(|answer| matches!(answer.status, 400 | 404 | 431));
        assert!(
            is_refused,
            "{request:?}: {:?}",
            answer.map(|answer| answer.status)
        );
    }
    assert_eq!(server.get("/v2/health/live").status, 200);
}
