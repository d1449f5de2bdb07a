//! Tests that blocking calls have the same responses, limits and failures as asynchronous calls.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use oip_client::{
    BlockingClient, Builder, ClientError, ErrorKind, HttpClient, InferenceClient, Patience, RetryOn,
    RetryPolicy, TensorForm,
};
use oip_service::testing::datatypes;
use oip_types::{DataType, ErrorCode, InferRequest, InferResponse, ModelRef, TensorValue};
use tensor_core::{Shape, SpareBuffers, Tensor};

use crate::support::{
    ScriptedServer, Step, TestServers, answer, identity_request, ok, some_values, to_model,
};

type Result<T> = oip_client::Result<T>;

/// Runs blocking code while the servers of this test continue to run.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn made(builder: Builder<HttpClient>) -> BlockingClient {
    builder.build_blocking().unwrap()
}

fn infer(client: &BlockingClient, request: &InferRequest) -> Result<InferResponse> {
    client.call(Patience::default(), |client| async move {
        client.infer(request).await
    })
}

/// Makes one inference call, without retries and with a response limit of 10,000 bytes, to a server that runs
/// the script `steps`. Returns the outcome and the number of requests.
async fn scripted(steps: Vec<Step>) -> (Result<InferResponse>, usize) {
    let server = ScriptedServer::new(steps);
    let url = server.url.clone();
    let outcome = beside(move || {
        let builder = HttpClient::builder(url).max_answer_bytes(10_000);
        infer(&made(builder.retry(RetryPolicy::never())), &to_model("m"))
    });
    (outcome.await, server.requests().len())
}

async fn failure(steps: Vec<Step>) -> ClientError {
    scripted(steps).await.0.unwrap_err()
}

/// Starts a plain TCP server that runs `serve` for each connection and counts them.
fn bare(serve: impl Fn(std::net::TcpStream) + Clone + Send + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            let serve = serve.clone();
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    (url, connections)
}

const BODY: &str = r#"{"model_name":"m","outputs":[]}"#;

fn good() -> Vec<u8> {
    answer("200 OK", &[("Content-Type", "application/json")], BODY)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_datatype_survives_in_every_form() {
    let served = TestServers::new();
    beside(move || {
        for form in [TensorForm::Raw, TensorForm::Typed] {
            let client = made(HttpClient::builder(&served.http).tensor_form(form));
            for datatype in datatypes() {
                for count in [0, 1, 3, 100_000] {
                    let request = identity_request(some_values(datatype, count));
                    let response = infer(&client, &request).unwrap();
                    assert_eq!(
                        response.output("y"),
                        request.input("x"),
                        "{datatype} {count} {form:?}"
                    );
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_calls_and_refusals() {
    let served = TestServers::new();
    beside(move || {
        let client = made(HttpClient::builder(&served.http));
        let call = |call: fn(HttpClient) -> oip_client::BoxFuture<'static, Result<bool>>| {
            client.call(Patience::default(), call).unwrap()
        };
        assert!(call(|client| Box::pin(async move { client.server_live().await })));
        assert!(call(|client| Box::pin(
            async move { client.server_ready().await }
        )));
        let metadata = client.call(Patience::default(), |client| async move {
            client
                .model_metadata(ModelRef::new("identity_fp32", None).unwrap())
                .await
        });
        assert_eq!(metadata.unwrap().inputs[0].to_string(), "'x' (FP32[-1])");
        let refused = infer(&client, &to_model("zz")).unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::NotFound));
        assert_eq!(
            refused.message(),
            "model 'zz' does not exist; there are 'loading', 'matrix', 'never'"
        );
    })
    .await;
}

#[test]
fn only_plain_http_blocks() {
    for url in ["https://localhost", "grpc://localhost", "grpcs://localhost"] {
        let error = oip_client::builder(url).build_blocking().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    }
    let client = oip_client::builder("http://localhost:1")
        .build_blocking()
        .unwrap();
    let error = client.call(Patience::default(), |_| std::future::pending::<Result<()>>());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Usage);
}

/// Reads a request with a Content-Length.
fn read_request(stream: &mut std::net::TcpStream) -> bool {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&received).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return true;
            }
        }
        match stream.read(&mut chunk) {
            Ok(count @ 1..) => received.extend_from_slice(&chunk[..count]),
            _ => return false,
        }
    }
}

#[test]
fn connections_are_kept_and_those_that_the_server_closed_are_not_used() {
    for (requests_each, connections) in [(usize::MAX, 1), (1, 20), (3, 7)] {
        let (url, count) = bare(move |mut stream| {
            for _ in 0..requests_each {
                if !read_request(&mut stream) {
                    return;
                }
                stream.write_all(&good()).unwrap();
            }
        });
        let client = made(HttpClient::builder(url).retry(RetryPolicy::never()));
        for _ in 0..20 {
            infer(&client, &to_model("m")).unwrap();
            // Gives the server time to close the connection.
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(count.load(Ordering::SeqCst), connections);
    }
}

#[test]
fn a_server_that_says_that_it_closes_is_believed() {
    for head in ["HTTP/1.1 200 OK\r\nconnection: Close", "HTTP/1.0 200 OK"] {
        let (url, count) = bare(move |mut stream| {
            while read_request(&mut stream) {
                let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len());
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let client = made(HttpClient::builder(url));
        for _ in 0..3 {
            infer(&client, &to_model("m")).unwrap();
        }
        assert_eq!(count.load(Ordering::SeqCst), 3, "{head}");
    }
}

/// The client decodes a response to the same tensors however the server frames it and splits it into packets.
#[test]
fn answers_come_in_pieces_of_any_size() {
    let chunked = |sizes: &[usize]| {
        let mut framed =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let mut rest = BODY.as_bytes();
        for size in sizes.iter().cycle() {
            let (chunk, after) = rest.split_at((*size).min(rest.len()));
            write!(framed, "{:x};ext=1\r\n", chunk.len()).unwrap();
            framed.extend_from_slice(chunk);
            framed.extend_from_slice(b"\r\n");
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        framed.extend_from_slice(b"0\r\ntrailer: x\r\n\r\n");
        framed
    };
    let open = format!("HTTP/1.1 200 OK\r\n\r\n{BODY}").into_bytes();
    for (framed, is_open) in [
        (good(), false),
        (chunked(&[100]), false),
        (chunked(&[1, 2, 3]), false),
        (open, true),
    ] {
        for piece in [1, 2, 7, 1000] {
            let framed = framed.clone();
            let (url, count) = bare(move |mut stream| {
                stream.set_nodelay(true).unwrap();
                while read_request(&mut stream) {
                    for piece in framed.chunks(piece) {
                        stream.write_all(piece).unwrap();
                        thread::sleep(Duration::from_micros(if piece.len() < 100 { 200 } else { 0 }));
                    }
                    if is_open {
                        return;
                    }
                }
            });
            let client = made(HttpClient::builder(url));
            for _ in 0..2 {
                assert_eq!(infer(&client, &to_model("m")).unwrap().model_name, "m");
            }
            assert_eq!(count.load(Ordering::SeqCst), if is_open { 2 } else { 1 });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_have_a_largest_size() {
    let json = |bytes: usize| {
        let mut body = BODY.as_bytes().to_vec();
        body.resize(bytes, b' ');
        body
    };
    scripted(vec![Step::Send(answer("200 OK", &[], json(10_000)))])
        .await
        .0
        .unwrap();
    let chunk = [&b"1000\r\n"[..], &[b' '; 0x1000], b"\r\n"].concat().repeat(4);
    let endless = [
        &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
        &chunk,
    ]
    .concat();
    let open = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &json(20_000)].concat();
    let lines = [
        &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"[..],
        "x".repeat(300 << 10).as_bytes(),
    ]
    .concat();
    for (bytes, kind) in [
        (answer("200 OK", &[], json(10_001)), ErrorKind::TooLarge),
        (endless, ErrorKind::TooLarge),
        (open, ErrorKind::TooLarge),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n{".to_vec(),
            ErrorKind::TooLarge,
        ),
        (lines, ErrorKind::Protocol),
        (
            [&b"HTTP/1.1 200 OK\r\nx: "[..], "x".repeat(300 << 10).as_bytes()].concat(),
            ErrorKind::Protocol,
        ),
    ] {
        let error = failure(vec![Step::Send(bytes)]).await;
        assert_eq!(error.kind(), kind, "{error}");
    }
    // Only the beginning of an error response is read, whether or not the body ends.
    let page = "no entry ".repeat(8 << 10);
    for head in ["Content-Length: 100000000", "x: y"] {
        let refusal = format!("HTTP/1.1 403 Forbidden\r\n{head}\r\n\r\n{page}");
        let error = failure(vec![Step::Send(refusal.into_bytes())]).await;
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.message().starts_with("no entry no entry"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_told() {
    let many = (0..200)
        .map(|index| format!("h{index}: x\r\n"))
        .collect::<String>();
    for head in [
        "\0\0\0\0\0\0\0\0\0",
        "HTTP/1.1 abc\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n[]",
        "HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\n[]",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        &format!("HTTP/1.1 200 OK\r\n{many}\r\n"),
    ] {
        let error = failure(vec![Step::Cut(head.as_bytes().to_vec())]).await;
        assert_eq!(error.kind(), ErrorKind::Protocol, "{head:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_is_told_and_not_asked_for_again() {
    let whole = good();
    for (cut, message) in [
        (0, "the connection broke ("),
        (10, "the connection broke ("),
        (whole.len() - 40, "the connection broke ("),
        (
            whole.len() - 10,
            "the response is incomplete: it ended early after 21 of 31 bytes",
        ),
    ] {
        let (outcome, requests) = scripted(vec![Step::Cut(whole[..cut].to_vec())]).await;
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{cut}: {error}");
        assert!(error.message().starts_with(message), "{cut}: {error}");
        assert_eq!(requests, 1);
    }
}

fn address(response: &InferResponse) -> *const u8 {
    response.output("y").unwrap().raw().as_ptr()
}

fn numbers(count: u64, value: f32) -> InferRequest {
    let tensor = Tensor::from_vec(Shape::vector(count), vec![value; count as usize]).unwrap();
    identity_request(TensorValue::from(tensor))
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_take_the_memory_of_earlier_ones() {
    let served = TestServers::new();
    beside(move || {
        let spare = Arc::new(SpareBuffers::new(8 << 20));
        let client = made(HttpClient::builder(&served.http).spare_buffers(spare.clone()));
        let ask = |count, value| {
            let request = numbers(count, value);
            let response = infer(&client, &request).unwrap();
            assert_eq!(response.output("y"), request.input("x"), "{count}");
            response
        };
        let first = ask(100_000, 1.0);
        let place = address(&first);
        // The tensor's elements are aligned, whatever the length of the JSON before them.
        assert_eq!(place.addr() % 16, 0);
        // The buffer is not reused while a tensor refers to it.
        let second = ask(100_000, 2.0);
        assert_ne!(address(&second), place);
        assert_eq!(first.output("y"), numbers(100_000, 1.0).input("x"));
        assert_eq!(spare.bytes(), 0);
        drop(first);
        assert!(spare.bytes() >= 400_000);
        // Slightly smaller responses use the same buffer.
        for (count, value) in [(100_000, 3.0), (99_000, 4.0), (90_000, 5.0), (100_000, 6.0)] {
            // In these responses, the JSON before the tensor varies in length.
            assert!(
                address(&ask(count, value)).addr().abs_diff(place.addr()) < 16,
                "{count}"
            );
        }
        assert_ne!(address(&ask(10_000, 7.0)), place);
        drop(second);
        // A buffer that outlives the client is freed.
        let last = ask(100_000, 8.0);
        drop((client, spare));
        assert_eq!(last.output("y"), numbers(100_000, 8.0).input("x"));
    })
    .await;
}

/// Large responses may arrive slowly or be truncated, whether the client reads them into a fresh or a reused
/// buffer.
#[test]
fn large_answers_in_used_memory_may_come_slowly_and_break_off() {
    let mut body = BODY.as_bytes().to_vec();
    body.resize(200 << 10, b' ');
    let (url, count) = bare(move |mut stream| {
        for requests in 0.. {
            if !read_request(&mut stream) {
                return;
            }
            let whole = answer("200 OK", &[("Content-Type", "application/json")], &body);
            let cut = if requests == 2 {
                whole.len() - 1000
            } else {
                whole.len()
            };
            for piece in whole[..cut].chunks(70_000) {
                stream.write_all(piece).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
            if requests == 2 {
                return;
            }
        }
    });
    let client = made(HttpClient::builder(url).retry(RetryPolicy::never()));
    for _ in 0..2 {
        assert_eq!(infer(&client, &to_model("m")).unwrap().model_name, "m");
    }
    let error = infer(&client, &to_model("m")).unwrap_err();
    let message = "the response is incomplete: it ended early after 203800 of 204800 bytes";
    assert!(error.message().starts_with(message), "{error}");
    assert_eq!(count.load(Ordering::SeqCst), 1);
    infer(&client, &to_model("m")).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_for_now_are_tried_again() {
    let server = ScriptedServer::new(vec![
        Step::Send(answer("503 Service Unavailable", &[], "")),
        Step::Send(answer("429 Too Many Requests", &[], "")),
        ok(BODY),
    ]);
    let policy = RetryPolicy::default().with(|policy| {
        policy.on = RetryOn::Refused;
        policy.first_delay = Duration::from_millis(1);
    });
    let client = made(HttpClient::builder(&server.url).retry(policy));
    beside(move || infer(&client, &to_model("m")).unwrap()).await;
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn time_is_over_and_callers_give_up() {
    let (url, _) = bare(|mut stream| {
        read_request(&mut stream);
        thread::sleep(Duration::from_secs(30));
    });
    let hanging = |patience: Patience, builder: Builder<HttpClient>| {
        let start = Instant::now();
        let request = to_model("m");
        let outcome = made(builder).call(patience, |client| async move { client.infer(&request).await });
        (outcome.unwrap_err(), start.elapsed())
    };
    let builder = || HttpClient::builder(&url);
    for (patience, builder) in [
        (
            Patience::default(),
            builder().request_timeout(Duration::from_millis(150)),
        ),
        (Patience::default().within(Duration::from_millis(150)), builder()),
    ] {
        let (error, took) = hanging(patience, builder);
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Timeout, "no response within 150ms")
        );
        assert!((150..1000).contains(&took.as_millis()), "{took:?}");
    }
    let asked = AtomicUsize::new(0);
    let patience = Patience::default().unless(move || match asked.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Ok(()),
        _ => Err("enough".into()),
    });
    let (error, took) = hanging(patience, builder());
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Interrupted, "the call was interrupted: enough")
    );
    assert!((250..2000).contains(&took.as_millis()), "{took:?}");
}

/// The interrupt check also runs while data keeps arriving.
#[test]
fn callers_may_give_up_while_an_answer_trickles_in() {
    let (url, _) = bare(|mut stream| {
        read_request(&mut stream);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n";
        let mut sent = stream.write_all(head.as_bytes());
        while sent.is_ok() {
            thread::sleep(Duration::from_millis(20));
            sent = stream.write_all(b" ");
        }
    });
    let request = to_model("m");
    let patience = Patience::default().unless(|| Err("enough".into()));
    let outcome =
        made(HttpClient::builder(&url)).call(patience, |client| async move { client.infer(&request).await });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Interrupted);
}

/// Timeouts and interrupts end a call even while data trickles: while the client is sending a large request,
/// or receiving a large response into a fresh or reused buffer.
#[test]
fn calls_end_in_time_while_large_bodies_trickle() {
    let mut body = BODY.as_bytes().to_vec();
    body.resize(200 << 10, b' ');
    let whole = answer("200 OK", &[("Content-Type", "application/json")], &body);
    // Each connection sends `quick_answers` responses at once; the next one takes ten seconds unless the
    // client ends it.
    let trickling = |quick_answers: usize| {
        let whole = whole.clone();
        let (url, _) = bare(move |mut stream| {
            for _ in 0..quick_answers {
                assert!(read_request(&mut stream));
                stream.write_all(&whole).unwrap();
            }
            let mut sent = read_request(&mut stream);
            let mut pieces = whole.chunks(whole.len() / 1000);
            while let (true, Some(piece)) = (sent, pieces.next()) {
                thread::sleep(Duration::from_millis(10));
                sent = stream.write_all(piece).is_ok();
            }
        });
        url
    };
    let (warm, cold) = (trickling(1), trickling(0));
    let (slow_reader, _) = bare(|mut stream| {
        let mut some = vec![0; 256 << 10];
        while stream.read(&mut some).is_ok_and(|count| count > 0) {
            thread::sleep(Duration::from_millis(40));
        }
    });
    let large = Tensor::from_vec(Shape::vector(16 << 20), vec![0.0f32; 16 << 20]).unwrap();
    let large = identity_request(TensorValue::from(large));
    let asked = Arc::new(AtomicUsize::new(0));
    let in_time = Patience::default().within(Duration::from_millis(300));
    let until_told = Patience::default().unless(move || match asked.fetch_add(1, Ordering::SeqCst) {
        0..3 => Ok(()),
        _ => Err("enough".into()),
    });
    for (patience, kind) in [
        (in_time, ErrorKind::Timeout),
        (until_told, ErrorKind::Interrupted),
    ] {
        for (url, request, quick_calls) in [
            (&warm, to_model("m"), 1),
            (&cold, to_model("m"), 0),
            (&slow_reader, large.clone(), 0),
        ] {
            let client = made(HttpClient::builder(url).retry(RetryPolicy::never()));
            for _ in 0..quick_calls {
                infer(&client, &request).unwrap();
            }
            let start = Instant::now();
            let call = |client: HttpClient| async move { client.infer(&request).await };
            let error = client.call(patience.clone(), call).unwrap_err();
            let took = start.elapsed();
            assert_eq!(error.kind(), kind, "{quick_calls} {error}");
            assert!(took < Duration::from_secs(3), "{quick_calls} {kind:?} {took:?}");
        }
    }
}

/// The server rejects a large request after reading its head, and stops reading. The client returns this
/// rejection, which can be lost only if the server also closes the connection.
#[test]
fn an_answer_that_comes_before_the_request_is_sent() {
    for keeps_open in [true, false] {
        let (url, _) = bare(move |mut stream| {
            let mut some = [0; 1000];
            stream.read_exact(&mut some).unwrap();
            stream
                .write_all(&answer("413 Content Too Large", &[], "too large"))
                .unwrap();
            if keeps_open {
                thread::sleep(Duration::from_secs(30));
            }
        });
        let client = made(HttpClient::builder(url).retry(RetryPolicy::never()));
        let large = Tensor::from_vec(Shape::vector(8 << 20), vec![0.0f32; 8 << 20]).unwrap();
        let error = infer(&client, &identity_request(TensorValue::from(large))).unwrap_err();
        if keeps_open {
            assert_eq!(error.message(), "too large");
        } else {
            // The system may discard the response together with the unread request.
            assert!(
                matches!(error.kind(), ErrorKind::Refused | ErrorKind::Broken),
                "{error}"
            );
        }
    }
}

#[test]
fn nobody_listens() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    for (url, message) in [
        (
            format!("http://127.0.0.1:{port}"),
            "connection refused: nothing listens there",
        ),
        (
            "http+unix:///no/such/socket".to_owned(),
            "no connection: No such file",
        ),
        ("http://no-such-host.invalid".to_owned(), "no connection"),
    ] {
        let client = made(HttpClient::builder(&url).retry(RetryPolicy::never()));
        let error = infer(&client, &to_model("m")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert!(error.message().starts_with(message), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_threads_share_a_client() {
    let served = TestServers::new();
    beside(move || {
        let client = made(HttpClient::builder(&served.http));
        thread::scope(|scope| {
            for each in 0..8u64 {
                let client = &client;
                scope.spawn(move || {
                    for round in 0..50 {
                        let value = some_values(DataType::INT32, each * 1000 + round);
                        let response = infer(client, &identity_request(value.clone())).unwrap();
                        assert_eq!(response.output("y"), Some(&value));
                    }
                });
            }
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_one_call_go_with_that_call() {
    let server = ScriptedServer::new(vec![Step::Send(good())]);
    let blocking = made(HttpClient::builder(&server.url).header("x-always", "1"));
    beside(move || {
        for headers in [
            &[("x-own", "one")][..],
            &[("X-Own", "two"), ("x-other", "3")],
            &[],
        ] {
            infer(
                &blocking.with_headers(headers.iter().copied()).unwrap(),
                &to_model("m"),
            )
            .unwrap();
        }
        let error = blocking.with_headers([("host", "elsewhere")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    })
    .await;
    let own = |request: &String| -> Vec<String> {
        let lines = request.lines().filter(|line| line.starts_with("x-"));
        lines.map(str::to_owned).collect()
    };
    let heads: Vec<_> = server.requests().iter().map(own).collect();
    assert_eq!(heads[0], ["x-always: 1", "x-own: one"]);
    assert_eq!(heads[1], ["x-always: 1", "x-own: two", "x-other: 3"]);
    assert_eq!(heads[2], ["x-always: 1"]);
}
