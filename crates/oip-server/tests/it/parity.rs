//! Calls that both transports support are described once and sent over both, with the same outcome.

mod calls;
mod failures;
mod neutral;
mod transport_messages;

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use http_body_util::BodyExt;
use oip_grpc::{GrpcConfig, GrpcService, proto::grpc_inference_service_client::GrpcInferenceServiceClient};
use oip_http::HttpConfig;
use oip_resources::{ByteBudget, TimeLimits};
use oip_service::testing::TestService;
use oip_types::ErrorCode::{self, *};
use serde_json::Value;
use tower::ServiceExt;

use self::{
    calls::{calls, calls_of_extensions},
    failures::failures,
    neutral::{Neutral, good, input, with_input},
    transport_messages::failures_in_own_words,
};

/// Both transports in front of one service.
struct BothTransports {
    http: Router,
    grpc: GrpcInferenceServiceClient<GrpcService>,
}

impl BothTransports {
    /// Creates both transports for a service, with a deadline of 20 seconds; the deadline is tested
    /// separately.
    fn of(service: Arc<TestService>) -> Self {
        let time = TimeLimits::default().with(|time| {
            time.default = Duration::from_secs(20);
            time.max = Duration::from_secs(20);
        });
        let http = HttpConfig::default().with(|config| config.time = time);
        let grpc = GrpcConfig::default().with(|config| config.time = time);
        Self::with(service, http, grpc)
    }

    fn with(service: Arc<TestService>, http: HttpConfig, grpc: GrpcConfig) -> Self {
        Self {
            http: oip_http::router(service.clone(), http),
            grpc: GrpcInferenceServiceClient::new(oip_grpc::service(service, grpc)),
        }
    }

    /// Sends a request over both transports and returns status and message of each: HTTP's and gRPC's code,
    /// 200 and 0 for success.
    async fn send(&mut self, request: &Neutral) -> [(i32, String); 2] {
        let grpc = match self.grpc.model_infer(request.grpc()).await {
            Ok(_) => (0, String::new()),
            Err(status) => (status.code() as i32, status.message().to_owned()),
        };
        [answered(&self.http, request.http()).await, grpc]
    }
}

/// Returns status and error of an HTTP response.
async fn answered(http: &Router, request: Request<Body>) -> (i32, String) {
    let response = http.clone().oneshot(request).await.unwrap();
    let status = i32::from(response.status().as_u16());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let message = serde_json::from_slice::<Value>(&body)
        .ok()
        .and_then(|json| Some(json.get("error")?.as_str()?.to_owned()));
    (status, message.unwrap_or_default())
}

/// Returns the HTTP and gRPC status of an outcome.
fn pair(code: Option<ErrorCode>) -> [i32; 2] {
    code.map_or([200, 0], |code| [i32::from(code.http_status()), code.grpc_code()])
}

/// Adds the differences between the expected and the actual responses to `wrong`.
fn compare(
    wrong: &mut Vec<String>,
    name: &str,
    code: Option<ErrorCode>,
    messages: [&str; 2],
    found: &[(i32, String); 2],
) {
    let expected = pair(code).into_iter().zip(messages);
    // HTTP appends the existing models to the message about an unknown one.
    let common = |message: &'_ str| match code {
        Some(NotFound) => message
            .split("; there are ")
            .next()
            .unwrap_or_default()
            .to_owned(),
        _ => message.to_owned(),
    };
    let is_right = expected
        .zip(found)
        .all(|(expected, found)| (expected.0, expected.1) == (found.0, common(&found.1).as_str()));
    if !is_right {
        wrong.push(format!(
            "{name}: expected {:?} {messages:?}, found {found:#?}",
            pair(code)
        ));
    }
}

/// Reports all failing rows at once, because they may have the same cause.
fn assert_none(wrong: &[String]) {
    assert!(
        wrong.is_empty(),
        "{} rows are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[tokio::test]
async fn every_failure_is_judged_alike() {
    let mut both = BothTransports::of(Arc::default());
    let mut wrong = Vec::new();
    compare(&mut wrong, "good", None, ["", ""], &both.send(&good()).await);
    for (name, request, code, message) in failures() {
        let found = both.send(&request).await;
        compare(&mut wrong, name, Some(code), [message, message], &found);
    }
    for (name, request, code, messages) in failures_in_own_words() {
        let found = both.send(&request).await;
        compare(&mut wrong, name, Some(code), messages, &found);
    }
    assert_none(&wrong);
}

#[tokio::test]
async fn every_call_is_judged_alike() {
    // Each transport has its own service, because calls change it.
    let new = || {
        let service = TestService::default();
        service.share("/k", vec![0; 8]);
        BothTransports::of(Arc::new(service))
    };
    let (http, mut grpc) = (new().http, new().grpc);
    let mut wrong = Vec::new();
    for (call, code, message) in calls() {
        let found = call.send(&http, &mut grpc).await;
        compare(&mut wrong, &call.name(), code, [message, message], &found);
    }
    assert_none(&wrong);
}

#[tokio::test]
async fn what_is_not_offered_is_said_alike() {
    let mut plain = BothTransports::of(Arc::new(TestService::plain()));
    let mut wrong = Vec::new();
    for (call, extension) in calls_of_extensions() {
        let message = format!("the extension '{extension}' is not offered by this server");
        let found = call.send(&plain.http, &mut plain.grpc).await;
        compare(
            &mut wrong,
            &call.name(),
            Some(Unimplemented),
            [&message, &message],
            &found,
        );
    }
    assert_none(&wrong);
}

/// Checks limits that each transport enforces in its own way: body sizes and the memory budget.
#[tokio::test]
async fn limits_are_judged_alike() {
    let verdicts = |http: HttpConfig, grpc: GrpcConfig| async move {
        let request = with_input("identity_uint8", input("x", "UINT8", &[5000], &[0; 5000]));
        BothTransports::with(Arc::default(), http, grpc)
            .send(&request)
            .await
            .map(|(code, _)| code)
    };

    let http = HttpConfig::default().with(|config| config.max_body_bytes = 4000);
    assert_eq!(
        verdicts(
            http,
            GrpcConfig::default().with(|config| config.max_message_bytes = 4000)
        )
        .await,
        pair(Some(TooLarge))
    );

    let with_budget = |budget: &ByteBudget| {
        let http = HttpConfig::default().with(|config| config.budget = budget.clone());
        let grpc = GrpcConfig::default().with(|config| config.budget = budget.clone());
        verdicts(http, grpc)
    };
    // The first request never fits, and the second does not fit now.
    assert_eq!(with_budget(&ByteBudget::new(4000)).await, pair(Some(TooLarge)));
    let budget = ByteBudget::new(20_000);
    let _taken = budget.take(18_000).unwrap();
    assert_eq!(with_budget(&budget).await, pair(Some(Overloaded)));
}

/// Checks the HTTP and gRPC status of every error code.
#[test]
fn every_code_has_its_status_in_both_transports() {
    let table: Vec<(ErrorCode, u16, tonic::Code)> = ErrorCode::ALL
        .into_iter()
        .map(|code| (code, code.http_status(), tonic::Code::from_i32(code.grpc_code())))
        .collect();
    assert_eq!(
        table,
        [
            (InvalidArgument, 400, tonic::Code::InvalidArgument),
            (Unauthenticated, 401, tonic::Code::Unauthenticated),
            (PermissionDenied, 403, tonic::Code::PermissionDenied),
            (NotFound, 404, tonic::Code::NotFound),
            (TooLarge, 413, tonic::Code::ResourceExhausted),
            (UnsupportedEncoding, 415, tonic::Code::Unimplemented),
            (Unimplemented, 501, tonic::Code::Unimplemented),
            (Overloaded, 429, tonic::Code::ResourceExhausted),
            (Unavailable, 503, tonic::Code::Unavailable),
            (SlowRequest, 408, tonic::Code::DeadlineExceeded),
            (DeadlineExceeded, 504, tonic::Code::DeadlineExceeded),
            (Cancelled, 499, tonic::Code::Cancelled),
            (Internal, 500, tonic::Code::Internal),
        ]
    );
}
