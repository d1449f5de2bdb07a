//! Tests the call `ModelStreamInfer`.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use oip_grpc::{
    GrpcConfig, GrpcService, MODEL_STREAM_INFER,
    proto::{
        ModelInferRequest, ModelStreamInferResponse,
        grpc_inference_service_client::GrpcInferenceServiceClient, infer_parameter::ParameterChoice,
    },
    service,
};
use oip_resources::{ByteBudget, TimeLimits};
use oip_service::testing::TestService;
use prost::Message;
use tokio::{sync::mpsc, time::timeout};
use tonic::{
    Code, Request, Status, Streaming,
    codegen::{Service, tokio_stream::Stream},
};

use crate::support::{client, client_with, floats, parameter, raw_x};

/// The sending and receiving ends of a stream.
struct Conversation {
    requests: mpsc::Sender<ModelInferRequest>,
    answers: Streaming<ModelStreamInferResponse>,
    /// Number of requests that the server has read.
    taken: Arc<AtomicUsize>,
}

/// A request body that counts the requests read.
struct Requests {
    receiver: mpsc::Receiver<ModelInferRequest>,
    taken: Arc<AtomicUsize>,
}

impl Stream for Requests {
    type Item = ModelInferRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ModelInferRequest>> {
        let next = self.receiver.poll_recv(cx);
        if let Poll::Ready(Some(_)) = next {
            self.taken.fetch_add(1, Ordering::SeqCst);
        }
        next
    }
}

impl Conversation {
    async fn open(service: GrpcService, metadata: &[(&'static str, &str)]) -> Self {
        let (requests, receiver) = mpsc::channel(64);
        let taken = Arc::new(AtomicUsize::new(0));
        let mut request = Request::new(Requests {
            receiver,
            taken: taken.clone(),
        });
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, value.parse().unwrap());
        }
        let mut client = GrpcInferenceServiceClient::new(service);
        let answers = client.model_stream_infer(request).await.unwrap().into_inner();
        Self {
            requests,
            answers,
            taken,
        }
    }

    async fn send(&self, id: &str, request: ModelInferRequest) {
        let request = ModelInferRequest {
            id: id.into(),
            ..request
        };
        self.requests.send(request).await.unwrap();
    }

    /// Returns the next response's id and error, or the stream's final status.
    async fn next(&mut self) -> Result<(String, String), Status> {
        let answer = timeout(Duration::from_secs(10), self.answers.message());
        let answer = answer.await.expect("no response comes")?;
        let answer = answer.ok_or_else(|| Status::ok("the end"))?;
        let response = answer.infer_response.unwrap();
        let is_final = &response.parameters["triton_final_response"];
        assert_eq!(is_final, &parameter(ParameterChoice::BoolParam(true)));
        Ok((response.id, answer.error_message))
    }

    async fn end(&mut self) -> (Code, String) {
        let status = self.next().await.unwrap_err();
        (status.code(), status.message().to_owned())
    }
}

fn service_with(config: GrpcConfig) -> (GrpcService, Arc<TestService>) {
    let test = Arc::new(TestService::default());
    (service(test.clone(), config), test)
}

fn good() -> ModelInferRequest {
    floats("identity_fp32", &[1.5])
}

fn to(model: &str) -> ModelInferRequest {
    floats(model, &[1.0])
}

fn named(id: &str, error: &str) -> (String, String) {
    (id.to_owned(), error.to_owned())
}

fn said(code: Code, message: &str) -> (Code, String) {
    (code, message.to_owned())
}

const END: &str = "the end";

/// Waits until `holds` returns true.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn answers_come_in_the_order_of_requests() {
    let (service, _) = service_with(GrpcConfig::default());
    let mut stream = Conversation::open(service, &[]).await;
    // Sends more requests than run concurrently.
    for id in 0..50 {
        stream.send(&id.to_string(), good()).await;
    }
    for id in 0..50 {
        assert_eq!(stream.next().await.unwrap(), named(&id.to_string(), ""));
    }
    // Sends more requests, with pauses in between.
    stream.send("later", good()).await;
    assert_eq!(stream.next().await.unwrap(), named("later", ""));
    drop(stream.requests.clone());
    let Conversation {
        requests,
        answers,
        taken,
    } = stream;
    drop(requests);
    let mut rest = Conversation {
        requests: mpsc::channel(1).0,
        answers,
        taken,
    };
    assert_eq!(rest.end().await, said(Code::Ok, END));
}

#[tokio::test]
async fn tensors_and_forms_are_those_of_single_requests() {
    let (service, _) = service_with(GrpcConfig::default());
    let mut stream = Conversation::open(service, &[]).await;
    let mut request = good();
    let typed = parameter(ParameterChoice::BoolParam(false));
    request.parameters.insert("binary_data_output".into(), typed);
    stream.send("typed", request).await;
    let answer = stream
        .answers
        .message()
        .await
        .unwrap()
        .unwrap()
        .infer_response
        .unwrap();
    let contents = answer.outputs[0].contents.as_ref().unwrap();
    assert_eq!(contents.fp32_contents, [1.5]);
    stream.send("raw", good()).await;
    let answer = stream
        .answers
        .message()
        .await
        .unwrap()
        .unwrap()
        .infer_response
        .unwrap();
    assert_eq!(answer.raw_output_contents, [&1.5f32.to_le_bytes()[..]]);
}

/// A request's error is sent as the response to this request, and the stream continues.
#[tokio::test]
async fn errors_of_single_requests() {
    let (service, _) = service_with(GrpcConfig::default());
    let mut stream = Conversation::open(service, &[]).await;
    let mut soon = to("slow");
    let micros = parameter(ParameterChoice::Int64Param(1000));
    soon.parameters.insert("timeout".into(), micros);
    let long_id = "x".repeat(2000);
    for (id, request, error) in [
        ("1", good(), ""),
        ("2", to("zz"), "model 'zz' does not exist"),
        ("3", to("failing"), "model 'failing': it failed"),
        (
            "4",
            to("busy"),
            "model 'busy': its queue is full; try again later",
        ),
        (
            "5",
            to("../x"),
            "model name '../x' must not contain a path separator",
        ),
        ("6", soon, "model 'slow': the deadline passed"),
        (
            "7",
            raw_x("identity_fp32", "FP32", &[2], &[0; 4]),
            "model 'identity_fp32': input 'x': expected 8 bytes for FP32[2], found 4",
        ),
        ("8", good(), ""),
    ] {
        stream.send(id, request).await;
        assert_eq!(stream.next().await.unwrap(), named(id, error));
    }
    // An id that is too long is not repeated.
    stream.send(&long_id, good()).await;
    let (id, error) = stream.next().await.unwrap();
    assert!(
        id.is_empty() && error.contains("the limit is 1024"),
        "{id} {error}"
    );

    stream.send("name", to("zz")).await;
    let answer = stream
        .answers
        .message()
        .await
        .unwrap()
        .unwrap()
        .infer_response
        .unwrap();
    assert_eq!(
        (&*answer.id, &*answer.model_name, answer.outputs.len()),
        ("name", "zz", 0)
    );
}

/// Errors close the stream for clients that request statuses through Triton's extension.
#[tokio::test]
async fn errors_close_the_stream_of_those_who_ask_for_it() {
    let (service, test) = service_with(GrpcConfig::default());
    let mut stream = Conversation::open(service.clone(), &[("triton_grpc_error", "true")]).await;
    stream.send("1", good()).await;
    stream.send("2", to("zz")).await;
    stream.send("3", to("slow")).await;
    assert_eq!(stream.next().await.unwrap(), named("1", ""));
    assert_eq!(
        stream.end().await,
        said(Code::NotFound, "model 'zz' does not exist")
    );
    eventually("work behind the error ends", || test.waiting() == 0).await;

    let mut stream = Conversation::open(service, &[("triton_grpc_error", "false")]).await;
    stream.send("1", to("zz")).await;
    assert_eq!(
        stream.next().await.unwrap(),
        named("1", "model 'zz' does not exist")
    );
}

/// The models of this test respond once, so no empty final response follows, whether requested or not.
#[tokio::test]
async fn final_responses() {
    let (service, _) = service_with(GrpcConfig::default());
    let mut stream = Conversation::open(service, &[]).await;
    for value in [true, false] {
        let mut request = good();
        let value = parameter(ParameterChoice::BoolParam(value));
        request
            .parameters
            .insert("triton_enable_empty_final_response".into(), value);
        stream.send("1", request).await;
        stream.send("2", good()).await;
        for id in ["1", "2"] {
            assert_eq!(stream.next().await.unwrap(), named(id, ""));
        }
    }
    let mut request = good();
    let value = parameter(ParameterChoice::StringParam("yes".into()));
    request
        .parameters
        .insert("triton_enable_empty_final_response".into(), value);
    stream.send("3", request).await;
    let message = "model 'identity_fp32': parameter 'triton_enable_empty_final_response': expected true or false, \
                   found 'yes'";
    assert_eq!(stream.next().await.unwrap(), named("3", message));
}

/// A disconnecting client cancels its requests, but not those of other clients.
#[tokio::test]
async fn a_dropped_stream_cancels_its_requests() {
    let (service, test) = service_with(GrpcConfig::default());
    let gone = Conversation::open(service.clone(), &[]).await;
    let mut stays = Conversation::open(service, &[]).await;
    for id in ["1", "2", "3"] {
        gone.send(id, to("slow")).await;
    }
    stays.send("4", to("slow")).await;
    eventually("all are waiting", || test.waiting() == 4).await;
    drop(gone);
    eventually("those of the client that is gone end", || test.waiting() == 1).await;
    assert!(
        timeout(Duration::from_millis(50), stays.answers.message())
            .await
            .is_err()
    );
    assert_eq!(test.waiting(), 1);
}

/// The memory that a client can occupy without reading is bounded, and is released.
#[tokio::test]
async fn a_client_that_never_reads() {
    let budget = ByteBudget::new(64 << 20);
    let time = TimeLimits::default().with(|time| time.default = Duration::from_millis(300));
    let (service, _) = service_with(GrpcConfig::default().with(|config| {
        config.time = time;
        config.budget = budget.clone();
    }));
    let mut stream = Conversation::open(service, &[]).await;
    let (requests, taken) = (stream.requests.clone(), stream.taken.clone());
    let large = floats("identity_fp32", &[0.0; 1000]);
    let sending = tokio::spawn(async move { while requests.send(large.clone()).await.is_ok() {} });
    tokio::time::sleep(Duration::from_millis(150)).await;
    // Of the hundreds of possible requests, only a few are running, waiting to be taken, or in transit.
    let held = taken.load(Ordering::SeqCst);
    assert!((2..30).contains(&held), "{held} requests were taken");
    assert!(budget.used() < 30 * 4200, "{} bytes", budget.used());
    // After the timeout nothing more is read, and everything is released except responses produced in time.
    eventually("little is held", || budget.used() < 3 * 4200).await;
    timeout(Duration::from_secs(5), sending)
        .await
        .expect("requests are still read")
        .unwrap();
    // Responses that were ready in time still arrive, followed by the reason why the stream ends.
    let status = loop {
        match stream.next().await {
            Ok((_, error)) => assert_eq!(error, ""),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (status.code(), status.message()),
        (Code::Cancelled, "the client did not read its responses")
    );
    eventually("nothing is held", || budget.used() == 0).await;
}

/// The call's deadline covers the whole stream.
#[tokio::test]
async fn the_deadline_of_a_stream() {
    let (service, test) = service_with(GrpcConfig::default());
    let mut stream = Conversation::open(service.clone(), &[("grpc-timeout", "200m")]).await;
    stream.send("1", good()).await;
    assert_eq!(stream.next().await.unwrap(), named("1", ""));
    stream.send("2", to("slow")).await;
    // The request and the call have the same deadline, so either may fail first.
    let status = match stream.next().await {
        Ok((id, error)) => {
            assert_eq!((id, error), named("2", "model 'slow': the deadline passed"));
            stream.next().await.unwrap_err()
        }
        Err(status) => status,
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
    eventually("the work ends", || test.waiting() == 0).await;
    let idle = Conversation::open(service.clone(), &[("grpc-timeout", "20m")])
        .await
        .end()
        .await;
    assert_eq!(idle, said(Code::DeadlineExceeded, "the deadline passed"));

    let mut request = Request::new(tonic::codegen::tokio_stream::empty());
    request
        .metadata_mut()
        .insert("grpc-timeout", "soon".parse().unwrap());
    let status = GrpcInferenceServiceClient::new(service)
        .model_stream_infer(request)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// A message that is too large ends the stream after the pending responses.
#[tokio::test]
async fn message_limit_of_streams() {
    let (service, _) = service_with(GrpcConfig::default().with(|config| config.max_message_bytes = 1000));
    let mut stream = Conversation::open(service, &[]).await;
    stream.send("1", good()).await;
    stream.send("2", floats("identity_fp32", &[0.0; 1000])).await;
    assert_eq!(stream.next().await.unwrap(), named("1", ""));
    assert_eq!(stream.end().await.0, Code::ResourceExhausted);
}

/// Messages of a stream count toward the budget individually, not all together.
#[tokio::test]
async fn messages_of_a_stream_share_the_budget() {
    let budget = ByteBudget::new(20_000);
    let (service, _) = service_with(GrpcConfig::default().with(|config| config.budget = budget.clone()));
    let mut stream = Conversation::open(service.clone(), &[]).await;
    for _ in 0..20 {
        stream.send("1", floats("identity_fp32", &[0.0; 1000])).await;
        assert_eq!(stream.next().await.unwrap(), named("1", ""));
    }
    eventually("all bytes are given back", || budget.used() == 0).await;
    let taken = budget.take(19_000).unwrap();
    stream.send("2", floats("identity_fp32", &[0.0; 1000])).await;
    assert_eq!(stream.end().await.0, Code::ResourceExhausted);
    drop((taken, stream));
    eventually("all bytes are given back", || budget.used() == 0).await;
}

/// Streams end gracefully when the server stops.
#[tokio::test]
async fn streams_are_drained() {
    let (service, _) = service_with(GrpcConfig::default());
    let mut idle = Conversation::open(service.clone(), &[]).await;
    let mut busy = Conversation::open(service.clone(), &[]).await;
    let mut soon = to("slow");
    let micros = parameter(ParameterChoice::Int64Param(100_000));
    soon.parameters.insert("timeout".into(), micros);
    busy.send("1", soon).await;
    busy.send("2", good()).await;
    eventually("both are read", || busy.taken.load(Ordering::SeqCst) == 2).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    service.drain_streams();
    let stopping = said(Code::Unavailable, "the server is shutting down");
    assert_eq!(idle.end().await, stopping);
    assert_eq!(
        busy.next().await.unwrap(),
        named("1", "model 'slow': the deadline passed")
    );
    assert_eq!(busy.next().await.unwrap(), named("2", ""));
    assert_eq!(busy.end().await, stopping);
    // Streams that are opened later also end.
    assert_eq!(Conversation::open(service, &[]).await.end().await, stopping);
}

/// A body whose parts come from a channel.
struct Parts(mpsc::Receiver<Bytes>);

impl Body for Parts {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0
            .poll_recv(cx)
            .map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

/// Half a message does not occupy memory forever, while a stream may be silent between messages.
#[tokio::test(start_paused = true)]
async fn half_a_message_in_a_stream() {
    let budget = ByteBudget::new(1 << 20);
    let (mut service, _) = service_with(GrpcConfig::default().with(|config| config.budget = budget.clone()));
    let (parts, receiver) = mpsc::channel(4);
    let request = http::Request::post(MODEL_STREAM_INFER)
        .header("content-type", "application/grpc")
        .body(Parts(receiver))
        .unwrap();
    let mut body = service.call(request).await.unwrap().into_body();
    let message = good().encode_to_vec();
    let frame: Bytes = [&[0][..], &(message.len() as u32).to_be_bytes(), &message]
        .concat()
        .into();
    // The stream is silent for an hour, then sends a message and half of another one.
    assert!(timeout(Duration::from_secs(3600), body.frame()).await.is_err());
    parts.send(frame.clone()).await.unwrap();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert!(timeout(Duration::from_secs(3600), body.frame()).await.is_err());
    parts.send(frame.slice(..20)).await.unwrap();
    assert!(timeout(Duration::from_secs(290), body.frame()).await.is_err());
    // The whole message counts toward the budget, because its length is at most four times the bytes that
    // have arrived.
    assert_eq!(budget.used(), message.len() as u64);
    let trailers = timeout(Duration::from_secs(20), body.frame())
        .await
        .expect("it is waited for")
        .unwrap();
    let trailers = trailers.unwrap().into_trailers().unwrap();
    assert_eq!(
        (&trailers["grpc-status"], &trailers["grpc-message"]),
        (
            &http::HeaderValue::from_static("4"),
            &http::HeaderValue::from_static("the%20message%20arrived%20too%20slowly"),
        )
    );
    drop(body);
    eventually("its bytes are given back", || budget.used() == 0).await;
}

/// Cancelling a unary call cancels its work.
#[tokio::test]
async fn a_dropped_call_cancels_its_request() {
    let (mut client, test) = client_with(GrpcConfig::default());
    let call = timeout(Duration::from_millis(50), client.model_infer(to("slow")));
    assert!(call.await.is_err());
    assert_eq!(test.waiting(), 0);
    client.model_infer(good()).await.unwrap();
}

#[tokio::test]
async fn a_stream_without_requests_ends_well() {
    let mut answers = client()
        .model_stream_infer(tonic::codegen::tokio_stream::empty())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answers.message().await.unwrap(), None);
}
