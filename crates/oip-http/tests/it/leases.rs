//! Tests that request memory is charged to the budget before it is allocated, and released with the last
//! byte, however the request ends.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    io::Write,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, HttpBody},
    http::{Request, StatusCode},
    response::Response,
    routing::get,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http_body::Frame;
use http_body_util::BodyExt;
use oip_http::{HttpConfig, HttpService, service_with};
use oip_resources::{ByteBudget, TimeLimits};
use oip_service::testing::TestService;
use tower::ServiceExt;

use crate::support::{app_with, infer, infer_binary, infer_with, x};

fn app_within(limit: u64, config: HttpConfig) -> (HttpService, ByteBudget) {
    let budget = ByteBudget::new(limit);
    let (app, _) = app_with(config.with(|config| config.budget = budget.clone()));
    (app, budget)
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Sends a body to an identity model, and does not read the response.
async fn echo_unread(app: &HttpService, bytes: usize, accept_json: bool) -> Response {
    let json = format!(
        r#"{{"parameters":{{"binary_data_output":{}}},"inputs":[{{"name":"x","datatype":"BOOL","shape":[{bytes}],"parameters":{{"binary_data_size":{bytes}}}}}]}}"#,
        !accept_json
    );
    let request = Request::post("/v2/models/identity_bool/infer")
        .header("host", "x")
        .header("inference-header-content-length", json.len())
        .body(Body::from([json.as_bytes(), &vec![1; bytes]].concat()))
        .unwrap();
    app.clone().oneshot(request).await.unwrap()
}

/// An unread response counts toward the budget until it is dropped.
#[tokio::test]
async fn answers_that_are_not_read_count() {
    const BYTES: usize = 3 << 20;
    let (app, budget) = app_within(8 << 20, HttpConfig::default());
    let first = echo_unread(&app, BYTES, false).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert!(budget.used() >= BYTES as u64);
    let second = echo_unread(&app, BYTES, false).await;
    assert_eq!(second.status(), StatusCode::OK);
    let third = echo_unread(&app, BYTES, false).await;
    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(third.headers()["retry-after"], "1");
    drop(third);

    // A frame that was read from the body counts toward the budget until it is dropped.
    let mut body = first.into_body();
    let mut frames = VecDeque::new();
    while let Some(frame) = body.frame().await {
        frames.extend(frame.unwrap().into_data());
    }
    drop(body);
    assert!(budget.used() >= 2 * BYTES as u64);
    let tail = frames.pop_back().unwrap();
    let last_byte = tail.slice(tail.len() - 1..);
    drop((frames, tail));
    assert!(budget.used() >= 2 * BYTES as u64, "a slice keeps all of it");
    drop(last_byte);
    assert!(budget.used() < 2 * BYTES as u64);
    drop(second);
    assert_eq!(budget.used(), 0);
}

/// Responses of every kind count toward the budget while a client does not read them. A response that exceeds
/// the budget is refused.
#[tokio::test]
async fn responses_without_tensors_count_until_they_are_gone() {
    const BYTES: usize = 300 << 10;
    let app_of = |budget: &ByteBudget| {
        let config = HttpConfig::default().with(|config| config.budget = budget.clone());
        let more = Router::new().route("/more", get(async || "x".repeat(BYTES)));
        service_with(Arc::new(TestService::default()), config, more)
    };
    let ask = |app: &HttpService, path: &'static str| {
        let request = Request::get(path)
            .header("host", "x")
            .body(Body::empty())
            .unwrap();
        app.clone().oneshot(request)
    };
    let budget = ByteBudget::new(16 << 20);
    let app = app_of(&budget);
    // The first response is built on the connection's thread, the second on the pool, and the third by
    // another router.
    for path in ["/docs", "/openapi.json", "/more"] {
        let response = ask(&app, path).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let length = response.body().size_hint().exact().unwrap();
        assert_eq!(budget.used(), length, "{path}");
        drop(response);
        assert_eq!(budget.used(), 0, "{path}");
    }
    let budget = ByteBudget::new(1 << 20);
    let app = app_of(&budget);
    let first = ask(&app, "/more").await.unwrap();
    let mut unread = vec![
        ask(&app, "/more").await.unwrap(),
        ask(&app, "/more").await.unwrap(),
    ];
    let refused = ask(&app, "/more").await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    let error = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(error.starts_with(b"{\"error\":\"other requests use the server's 1048576 bytes"));
    // Liveness responds even with an exhausted budget.
    while let Ok(charge) = budget.take(1 << 10) {
        unread.push(Response::new(Body::from(charge.own(vec![0; 1 << 10]))));
    }
    for path in ["/livez", "/readyz", "/v2/health/ready"] {
        assert_eq!(ask(&app, path).await.unwrap().status(), StatusCode::OK, "{path}");
    }
    drop(unread);
    // While a slice of a frame exists, the whole frame counts toward the budget.
    let body = first.into_body().collect().await.unwrap().to_bytes();
    let last = body.slice(BYTES - 1..);
    drop(body);
    assert_eq!(budget.used(), BYTES as u64);
    drop(last);
    assert_eq!(budget.used(), 0);
}

/// Requests whose paths need decoding go through the router, which charges responses to the budget. Inference
/// responses have already been charged, and are not charged twice.
#[tokio::test]
async fn responses_of_inference_count_once() {
    const BYTES: usize = 100_000;
    let (app, budget) = app_within(8 << 20, HttpConfig::default());
    let plain = echo_unread(&app, BYTES, false).await;
    let used = budget.used();
    assert!(used >= BYTES as u64);
    drop(plain);
    let json = format!(
        r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{{"name":"x","datatype":"BOOL","shape":[{BYTES}],"parameters":{{"binary_data_size":{BYTES}}}}}]}}"#
    );
    let request = Request::post("/v2/models/identity%5Fbool/infer")
        .header("host", "x")
        .header("inference-header-content-length", json.len())
        .body(Body::from([json.as_bytes(), &vec![1; BYTES]].concat()))
        .unwrap();
    let decoded = app.clone().oneshot(request).await.unwrap();
    assert_eq!(decoded.status(), StatusCode::OK);
    assert!(
        budget.used().abs_diff(used) < 1000,
        "{} and {used}",
        budget.used()
    );
    drop(decoded);
    assert_eq!(budget.used(), 0);
}

/// A head over 8 KiB counts toward the budget while its request runs.
#[tokio::test]
async fn large_heads_count() {
    let (app, budget) = app_within(60 << 10, HttpConfig::default());
    for path in ["/v2/models/identity_fp32/infer", "/v2/repository/index"] {
        let mut waiting = Vec::new();
        for (bytes, expected) in [(4 << 10, 1000), (30 << 10, (30 << 10) + 2000)] {
            let request = Request::post(path)
                .header("host", "x")
                .header("large", "a".repeat(bytes))
                .body(Body::new(StallingBody(Some(vec![b' '; 1000].into()))))
                .unwrap();
            let mut answer = Box::pin(app.clone().oneshot(request));
            let polled = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            waiting.push(answer);
            assert!(
                budget.used().abs_diff(expected) < 100,
                "{path}: {}",
                budget.used()
            );
        }
        let request = Request::get("/v2").header("host", "x");
        let request = request.header("large", "a".repeat(32_000)).body(Body::empty());
        let refused = app.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        drop((waiting, refused));
        assert_eq!(budget.used(), 0, "{path}");
    }
}

/// The JSON is six times the tensor's size: it is encoded within the budget, or the request fails.
#[tokio::test]
async fn large_json_is_printed_within_the_budget() {
    const BYTES: usize = 2 << 20;
    let (app, budget) = app_within(20 << 20, HttpConfig::default());
    let first = echo_unread(&app, BYTES, true).await;
    assert_eq!(first.status(), StatusCode::OK);
    let used = budget.used();
    assert!(used >= 5 * BYTES as u64 && used <= 20 << 20, "{used}");
    let second = echo_unread(&app, BYTES, true).await;
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(second);
    let text = first.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"true]}]}"));
    assert_eq!(budget.used(), 0);

    // The response can never fit the budget, however long the client waits.
    let (app, budget) = app_within(8 << 20, HttpConfig::default());
    let answer = echo_unread(&app, BYTES, true).await;
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(!answer.headers().contains_key("retry-after"));
    drop(answer);
    assert_eq!(budget.used(), 0);
}

/// Memory for decompression is charged to the budget before it is used.
#[tokio::test]
async fn bombs_are_stopped_by_the_budget() {
    let bomb = gzip(&vec![b' '; 32 << 20]);
    let gzip = [("content-encoding", "gzip")];
    let (app, budget) = app_within(16 << 20, HttpConfig::default());
    let answer = infer_with(&app, "identity_fp32", &gzip, bomb.clone().into()).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    let taken = budget.take(12 << 20).unwrap();
    let answer = infer_with(&app, "identity_fp32", &gzip, bomb.into()).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    // Small requests still fit.
    let answer = infer(&app, "identity_fp32", &x("FP32", "[1]", "[1]")).await;
    assert_eq!(answer.status, StatusCode::OK);
    drop((answer, taken));
    assert_eq!(budget.used(), 0);
}

/// A body that stalls after its first frame.
struct StallingBody(Option<Bytes>);

impl http_body::Body for StallingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(part) => Poll::Ready(Some(Ok(Frame::data(part)))),
            None => Poll::Pending,
        }
    }
}

/// Clients that declare a large length and send little occupy no memory.
#[tokio::test]
async fn an_announced_length_takes_no_room() {
    let (app, budget) = app_within(64 << 20, HttpConfig::default());
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let request = Request::post("/v2/models/identity_fp32/infer")
            .header("host", "x")
            .header("content-length", 40 << 20)
            .body(Body::new(StallingBody(Some(vec![b' '; 1000].into()))))
            .unwrap();
        let mut answer = Box::pin(app.clone().oneshot(request));
        assert!(
            answer
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        waiting.push(answer);
    }
    assert_eq!(budget.used(), 8 * 1000);
    let answer = echo_unread(&app, 30 << 20, false).await;
    assert_eq!(answer.status(), StatusCode::OK);
    drop((answer, waiting));
    assert_eq!(budget.used(), 0);
}

/// The deadline counts from the first byte, even while the body arrives.
#[tokio::test]
async fn a_body_that_never_ends_is_answered_at_the_deadline() {
    let time = TimeLimits::default().with(|time| {
        time.default = Duration::from_millis(20);
        time.max = Duration::from_millis(50);
    });
    let (app, budget) = app_within(1 << 20, HttpConfig::default().with(|config| config.time = time));
    let stalled = Body::new(StallingBody(Some(vec![b' '; 1000].into())));
    let answer = infer_with(&app, "identity_fp32", &[], stalled).await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(budget.used(), 0);
}

/// A request releases all its memory, however it ends.
#[tokio::test]
async fn every_end_gives_everything_back() {
    let (app, budget) = app_within(
        4 << 20,
        HttpConfig::default().with(|config| {
            config.time = TimeLimits::default().with(|time| time.default = Duration::from_secs(2));
        }),
    );
    let json = x("FP32", "[1]", "[1]");
    let large = format!("[{}]", vec!["1"; 100_000].join(","));
    let large = x("FP32", "[100000]", &large);
    let cases = [
        ("identity_fp32", json.as_str(), 200),
        ("identity_fp32", large.as_str(), 200),
        ("identity_fp32", "{", 400),
        ("identity_int8", json.as_str(), 400),
        ("not_there", json.as_str(), 404),
        ("failing", json.as_str(), 500),
        ("failing", large.as_str(), 500),
        ("busy", json.as_str(), 429),
        ("slow", large.as_str(), 504),
    ];
    for (model, body, status) in cases {
        let answer = infer(&app, model, body).await;
        assert_eq!(answer.status.as_u16(), status, "{model}: {}", answer.text());
        drop(answer);
        assert_eq!(budget.used(), 0, "{model}");
    }
    for encoding in ["gzip", "deflate"] {
        let headers = [("accept-encoding", encoding)];
        let answer = infer_with(&app, "identity_fp32", &headers, large.clone().into()).await;
        assert_eq!(
            (answer.status, answer.header("content-encoding")),
            (StatusCode::OK, Some(encoding))
        );
        assert!(budget.used() > 0);
        drop(answer);
        assert_eq!(budget.used(), 0);
    }
    let answer = infer_binary(&app, "identity_bytes", r#"{"inputs":[]}"#, b"left over").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(budget.used(), 0);

    // The first client disconnects while its request runs, the second while its body arrives.
    for body in [
        Body::from(large),
        Body::new(StallingBody(Some(vec![b' '; 1000].into()))),
    ] {
        let request = Request::post("/v2/models/slow/infer")
            .header("host", "x")
            .body(body)
            .unwrap();
        let answering = tokio::spawn(app.clone().oneshot(request));
        while budget.used() == 0 {
            tokio::task::yield_now().await;
        }
        answering.abort();
        assert!(answering.await.is_err());
        // Work in progress ends on its own.
        while budget.used() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
