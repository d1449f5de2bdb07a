//! Tests bodies that cost the server more than their sender: the responses, and the memory use.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};

use crate::support::{Server, try_receive};

const INFER: &str = "/v2/models/digit_means/infer";
/// The default limit on bodies.
const LIMIT: usize = 64 << 20;

/// Starts a server with one model, whose inputs do not matter here.
fn server() -> Server {
    server_with(&[])
}

fn server_with(arguments: &[&str]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("digit_means/1");
    std::fs::create_dir_all(&copy).unwrap();
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digit_means/1/model.safetensors");
    std::fs::copy(example, copy.join("model.safetensors")).unwrap();
    let mut server = Server::start(
        folder.path(),
        &["--log", "off"]
            .iter()
            .chain(arguments)
            .copied()
            .collect::<Vec<_>>(),
    );
    server.wait_until_loaded();
    server
}

/// Returns a value of `/proc/PID/status` in bytes.
fn memory(server: &Server, line: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|found| found.strip_prefix(line)).unwrap();
    let kib = line.trim_start_matches(':').trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() << 10
}

fn resident(server: &Server) -> usize {
    memory(server, "VmRSS")
}

/// Returns the peak resident memory since the process started.
fn peak(server: &Server) -> usize {
    memory(server, "VmHWM")
}

/// Returns the head of an inference request with `line` as an additional line.
fn head(line: &str) -> Vec<u8> {
    format!("POST {INFER} HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n").into_bytes()
}

/// Returns whether the connection is closed, be it cleanly or with an error.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).is_ok() && rest.is_empty()
        || matches!(stream.read(&mut [0]), Err(error) if error.kind() != std::io::ErrorKind::WouldBlock)
}

/// A body announced as too large is rejected immediately, and a client that waits for the status 100 gets an
/// error instead.
#[test]
fn announced_bodies_are_refused_before_they_come() {
    let server = server();
    let before = resident(&server);
    for expect in ["", "\r\nExpect: 100-continue"] {
        let mut stream = server.connect();
        let start = Instant::now();
        stream
            .write_all(&head(&format!("Content-Length: {}{expect}", LIMIT + 1)))
            .unwrap();
        let answer = try_receive(&mut stream).unwrap();
        assert_eq!(answer.status, 413, "{}", answer.head);
        assert_eq!(
            answer.json()["error"],
            "expected a body of at most 67108864 bytes, found 67108865"
        );
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(is_closed(&mut stream), "the connection waits for the body");
    }
    // Nothing was allocated for the announced length.
    assert!(peak(&server) < before + (8 << 20));
    // For a body within the limit, the server sends the status 100.
    let mut stream = server.connect();
    stream
        .write_all(&head("Content-Length: 2\r\nExpect: 100-continue"))
        .unwrap();
    let mut line = [0; 25];
    stream.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").unwrap();
    assert_eq!(try_receive(&mut stream).unwrap().status, 400);
}

/// An endless body is rejected at the limit, and the connection is closed.
#[test]
fn endless_bodies_end_at_the_limit() {
    let server = server();
    let before = resident(&server);
    let mut stream = server.connect();
    stream.write_all(&head("Transfer-Encoding: chunked")).unwrap();
    let chunk = [&b"10000\r\n"[..], &vec![b' '; 0x10000], b"\r\n"].concat();
    let mut sent = 0;
    // The server closes the connection while the client is sending. Then a write fails, and the response may
    // be lost with the connection.
    while sent < 4 * LIMIT && stream.write_all(&chunk).is_ok() {
        sent += 0x10000;
    }
    assert!((LIMIT..2 * LIMIT).contains(&sent), "{sent} bytes were taken");
    if let Ok(answer) = try_receive(&mut stream) {
        assert_eq!(answer.status, 413);
        assert_eq!(
            answer.json()["error"],
            "expected a body of at most 67108864 bytes, found more"
        );
    }
    // The server collects the body in a buffer that doubles when it is full. While its content is copied to
    // the larger buffer, both buffers exist.
    assert!(
        peak(&server) < before + 3 * LIMIT + (8 << 20),
        "{}",
        peak(&server)
    );
    assert_eq!(server.get("/v2/health/live").status, 200);
}

/// A body that arrives byte by byte takes the memory of its bytes rather than of its chunks, and nothing is
/// retained.
#[test]
fn many_chunks() {
    let server = server();
    let send = |chunks: usize| {
        let body = [&b"1\r\nA\r\n".repeat(chunks)[..], b"0\r\n\r\n"].concat();
        let mut stream = server.connect();
        stream.write_all(&head("Transfer-Encoding: chunked")).unwrap();
        stream.write_all(&body).unwrap();
        let answer = try_receive(&mut stream).unwrap();
        assert_eq!(answer.status, 400);
        assert_eq!(
            answer.json()["error"],
            "model 'digit_means': invalid JSON at byte 0: expected an object, found 'A'; a body that is not JSON, such as an image, \
             is sent as the model's only input with the header Inference-Header-Content-Length: 0"
        );
    };
    const CHUNKS: usize = 400_000;
    let before = resident(&server);
    send(CHUNKS);
    // The limit is twice the body, plus 4 MiB for memory that first requests always retain. A list of chunks
    // would take 16 MiB.
    let taken = peak(&server) - before;
    assert!(taken < 2 * CHUNKS + (4 << 20), "{taken}");
    // The allocator caches memory per thread, so memory use grows until each thread has run.
    for _ in 0..10 {
        send(CHUNKS / 10);
    }
    let warm = resident(&server);
    for _ in 0..10 {
        send(CHUNKS / 10);
    }
    assert!(
        resident(&server) < warm + (1 << 20),
        "{warm} {}",
        resident(&server)
    );
}

/// Checks memory use for a body of one-digit numbers, whose elements take more memory than their text.
#[test]
fn numbers_that_grow_when_they_are_read() {
    const LIMIT: usize = 8 << 20;
    for datatype in ["FP32", "INT64", "FP64"] {
        let server = server_with(&["--max-request-size", "8MiB"]);
        let before = resident(&server);
        let numbers = LIMIT / 2 - 100;
        let start =
            format!(r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[{numbers}],"data":["#);
        let mut body = start.into_bytes();
        body.extend(b"1,".repeat(numbers - 1));
        body.extend_from_slice(b"1]}]}");
        assert!((LIMIT - 200..=LIMIT).contains(&body.len()));
        let answer = server.request("POST", INFER, &[], &body);
        assert_eq!(answer.status, 413, "{}", String::from_utf8_lossy(&answer.body));
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        let expected = format!("the data of {datatype}[{numbers}] is larger than the server accepts");
        assert!(error.ends_with(&expected), "{error}");
        let taken = peak(&server) - before;
        assert!(
            taken < 4 * LIMIT,
            "{datatype}: {taken} bytes for a body of {LIMIT}"
        );
    }
}
