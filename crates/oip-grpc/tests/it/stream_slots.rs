//! Tests that long-lived calls report when they are idle, and end when their slot is needed.

use std::{
    mem,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use oip_grpc::{GrpcConfig, proto::grpc_inference_service_client::GrpcInferenceServiceClient, service};
use oip_resources::{CallSlot, RevocableSlot};
use oip_service::testing::TestService;
use tokio::{sync::mpsc, time::sleep};
use tonic::{Code, Request, codegen::tokio_stream::wrappers::ReceiverStream};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::support::floats;

/// A slot like those that a listener manages.
#[derive(Default)]
struct TestSlot(Mutex<State>);

#[derive(Default)]
struct State {
    /// The events reported so far.
    said: Vec<&'static str>,
    is_revoked: bool,
    waker: Option<Waker>,
}

impl RevocableSlot for TestSlot {
    fn rest(&self) {
        self.0.lock().unwrap().said.push("rests");
    }

    fn work(&self) -> bool {
        let mut state = self.0.lock().unwrap();
        state.said.push("works");
        !state.is_revoked
    }

    fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if state.is_revoked {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl TestSlot {
    fn revoke(&self) {
        let mut state = self.0.lock().unwrap();
        state.is_revoked = true;
        mem::take(&mut state.waker).into_iter().for_each(Waker::wake);
    }

    async fn said(&self, expected: &[&str]) {
        for _ in 0..2000 {
            if self.0.lock().unwrap().said == expected {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?}, not {expected:?}", self.0.lock().unwrap().said);
    }
}

fn with_place<T>(message: T, kept: &Arc<TestSlot>) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(CallSlot::new(kept.clone()));
    request
}

#[tokio::test]
async fn a_stream_rests_between_its_requests_and_ends_when_its_place_is_needed() {
    let kept = Arc::<TestSlot>::default();
    let test = Arc::new(TestService::default());
    let mut client = GrpcInferenceServiceClient::new(service(test, GrpcConfig::default()));
    let (requests, receiver) = mpsc::channel(1);
    let request = with_place(ReceiverStream::new(receiver), &kept);
    let mut answers = client.model_stream_infer(request).await.unwrap().into_inner();
    kept.said(&["rests"]).await;
    requests.send(floats("identity_fp32", &[1.0])).await.unwrap();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!(answer.error_message, "");
    kept.said(&["rests", "works", "rests"]).await;
    kept.revoke();
    let status = answers.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("closed to make room"), "{status}");
}

#[tokio::test]
async fn a_watch_rests_from_its_start_and_ends_when_its_place_is_needed() {
    let kept = Arc::<TestSlot>::default();
    let test = Arc::new(TestService::default());
    let mut health = HealthClient::new(service(test, GrpcConfig::default()));
    let request = with_place(HealthCheckRequest::default(), &kept);
    let mut watched = health.watch(request).await.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    kept.said(&["rests"]).await;
    kept.revoke();
    let status = watched.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}
