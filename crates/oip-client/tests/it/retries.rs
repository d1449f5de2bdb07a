//! Tests which calls are retried.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use oip_client::{ErrorKind, GrpcClient, HttpClient, InferenceClient, RetryOn, RetryPolicy};
use oip_grpc::proto::ModelInferResponse;
use oip_types::{ErrorCode, ModelRef};

use crate::support::{
    ScriptedServer, Step, answer, data, grpc_answer, grpc_status, ok, scripted_grpc, to_model, trailers,
};

const GOOD: &str = r#"{"model_name":"m","outputs":[]}"#;

fn quick(on: RetryOn) -> RetryPolicy {
    RetryPolicy::default().with(|policy| {
        policy.on = on;
        policy.first_delay = Duration::from_millis(5);
    })
}

fn client(server: &ScriptedServer, on: RetryOn) -> HttpClient {
    HttpClient::builder(&server.url).retry(quick(on)).build().unwrap()
}

fn refused(status: &str, headers: &[(&str, &str)]) -> Step {
    Step::Send(answer(status, headers, r#"{"error":"no"}"#))
}

#[tokio::test]
async fn refusals_for_now_are_tried_again() {
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        let server = ScriptedServer::new(vec![refused(status, &[]), refused(status, &[]), ok(GOOD)]);
        client(&server, RetryOn::Refused)
            .infer(&to_model("m"))
            .await
            .unwrap();
        let requests = server.requests();
        assert_eq!(requests.len(), 3);
        assert_eq!(requests[0], requests[2], "the very same request");

        let server = ScriptedServer::new(vec![refused(status, &[])]);
        let error = client(&server, RetryOn::Refused)
            .infer(&to_model("m"))
            .await
            .unwrap_err();
        assert_eq!((error.kind(), server.requests().len()), (ErrorKind::Refused, 3));

        let server = ScriptedServer::new(vec![refused(status, &[]), ok(GOOD)]);
        assert!(
            client(&server, RetryOn::NotSent)
                .infer(&to_model("m"))
                .await
                .is_err()
        );
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn other_refusals_are_final() {
    for status in [
        "400 Bad Request",
        "404 Not Found",
        "413 Content Too Large",
        "500 Internal Server Error",
        "502 Bad Gateway",
        "504 Gateway Timeout",
    ] {
        let server = ScriptedServer::new(vec![refused(status, &[("Retry-After", "0")]), ok(GOOD)]);
        assert!(
            client(&server, RetryOn::Broken)
                .infer(&to_model("m"))
                .await
                .is_err()
        );
        assert_eq!(server.requests().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn the_server_says_when() {
    let after = |seconds: &str| refused("503 Service Unavailable", &[("Retry-After", seconds)]);
    let server = ScriptedServer::new(vec![after("1"), ok(GOOD)]);
    let start = Instant::now();
    client(&server, RetryOn::Refused)
        .infer(&to_model("m"))
        .await
        .unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));

    // The server asks for a retry after an hour. The client does not wait that long, nor past its own
    // deadline.
    let server = ScriptedServer::new(vec![after("3600"), ok(GOOD)]);
    let start = Instant::now();
    let error = client(&server, RetryOn::Refused)
        .infer(&to_model("m"))
        .await
        .unwrap_err();
    assert_eq!(error.retry_delay(), Some(Duration::from_secs(3600)));
    let server = ScriptedServer::new(vec![after("20"), ok(GOOD)]);
    let hurried = HttpClient::builder(&server.url)
        .request_timeout(Duration::from_secs(10))
        .build()
        .unwrap();
    let error = hurried.infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unavailable));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn broken_answers_are_asked_for_again_only_when_that_is_safe() {
    let broken = || Step::Cut(answer("200 OK", &[], GOOD)[..30].to_vec());
    for (on, attempts) in [(RetryOn::Refused, 1), (RetryOn::Broken, 2)] {
        let server = ScriptedServer::new(vec![broken(), ok(GOOD)]);
        let result = client(&server, on).infer(&to_model("m")).await;
        assert_eq!(
            (server.requests().len(), result.is_ok()),
            (attempts, attempts == 2)
        );
    }
    // Reads are idempotent.
    let metadata = r#"{"name":"m","inputs":[],"outputs":[]}"#;
    let server = ScriptedServer::new(vec![broken(), ok(metadata)]);
    let model = ModelRef::new("m", None).unwrap();
    client(&server, RetryOn::Refused)
        .model_metadata(model)
        .await
        .unwrap();
    assert_eq!(server.requests().len(), 2);
}

/// Health calls report the state at once and are not retried.
#[tokio::test]
async fn not_ready_is_an_answer() {
    let server = ScriptedServer::new(vec![refused("503 Service Unavailable", &[("Retry-After", "5")])]);
    let start = Instant::now();
    assert!(!server.client().server_ready().await.unwrap());
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(server.requests().len(), 1);
}

/// A refused connection is retried after the pauses of the policy.
#[tokio::test]
async fn refused_connections_are_tried_again() {
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for scheme in ["http", "grpc"] {
        let client = oip_client::builder(format!("{scheme}://{address}"))
            .retry(quick(RetryOn::NotSent).with(|policy| policy.attempts = 4))
            .build()
            .unwrap();
        let start = Instant::now();
        let error = client.infer(&to_model("m")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect);
        // The pauses are 5, 10 and 20 ms, each reduced by at most half.
        assert!(
            start.elapsed() >= Duration::from_millis(17),
            "{:?}",
            start.elapsed()
        );
    }
}

/// Calls a gRPC server that first responds with the status `code`. Returns the number of attempts, and
/// whether the call finally succeeded.
async fn grpc_attempts(
    on: RetryOn,
    code: i32,
    more: &'static [(&'static str, &'static str)],
) -> (usize, bool) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let url = scripted_grpc(move |_, _, _| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => grpc_status(code, "no", more),
        _ => {
            let good = ModelInferResponse {
                model_name: "m".into(),
                ..Default::default()
            };
            grpc_answer(vec![data(&good), trailers(&[("grpc-status", "0")])])
        }
    });
    let client = GrpcClient::builder(url).retry(quick(on)).build().unwrap();
    let result = client.infer(&to_model("m")).await;
    (count.load(Ordering::SeqCst), result.is_ok())
}

#[tokio::test]
async fn grpc_refusals_for_now_are_tried_again() {
    let (unavailable, exhausted, internal) = (14, 8, 13);
    assert_eq!(grpc_attempts(RetryOn::Refused, unavailable, &[]).await, (2, true));
    assert_eq!(grpc_attempts(RetryOn::Refused, exhausted, &[]).await, (2, true));
    assert_eq!(
        grpc_attempts(RetryOn::NotSent, unavailable, &[]).await,
        (1, false)
    );
    assert_eq!(grpc_attempts(RetryOn::Broken, internal, &[]).await, (1, false));
    // The server can ask for a pause, or for no more attempts.
    let start = Instant::now();
    assert_eq!(
        grpc_attempts(
            RetryOn::Refused,
            unavailable,
            &[("grpc-retry-pushback-ms", "300")]
        )
        .await,
        (2, true)
    );
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        grpc_attempts(RetryOn::Refused, unavailable, &[("grpc-retry-pushback-ms", "-1")]).await,
        (1, false)
    );
}
