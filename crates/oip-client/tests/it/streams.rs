//! Tests of bidirectional gRPC streams.

use oip_client::{BoxStream, ErrorKind, InferenceClient};
use oip_grpc::proto::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use oip_types::ErrorCode;
use prost::Message;

use crate::support::{
    TestServers, data, grpc_answer, grpc_client, grpc_status, scripted_grpc, stream_of, to_model, trailers,
};

async fn next<T>(stream: &mut BoxStream<T>) -> Option<T> {
    std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await
}

fn answer_to(id: &str) -> ModelStreamInferResponse {
    ModelStreamInferResponse {
        infer_response: Some(ModelInferResponse {
            model_name: "m".into(),
            id: id.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn failure(message: &str) -> ModelStreamInferResponse {
    ModelStreamInferResponse {
        error_message: message.into(),
        ..Default::default()
    }
}

/// Returns the ids of the requests in a body of gRPC frames.
fn ids(mut body: &[u8]) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some((head, rest)) = body.split_at_checked(5) {
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        ids.push(ModelInferRequest::decode(&rest[..length]).unwrap().id);
        body = &rest[length..];
    }
    ids
}

#[tokio::test]
async fn one_failed_request_does_not_end_the_stream() {
    let url = scripted_grpc(|path, _, body| {
        assert_eq!(path, "/inference.GRPCInferenceService/ModelStreamInfer");
        let ids = ids(&body);
        let mut frames = vec![
            data(&answer_to(&ids[0])),
            data(&failure("input 'x' is missing")),
            data(&answer_to(&ids[2])),
        ];
        frames.push(trailers(&[("grpc-status", "0")]));
        grpc_answer(frames)
    });
    let requests = ["a", "b", "c"].map(|id| {
        let mut request = to_model("m");
        request.id = Some(id.into());
        request
    });
    let client = grpc_client(&url);
    let mut answers = client.infer_stream(stream_of(requests.into())).await.unwrap();
    drop(client);
    assert_eq!(
        next(&mut answers).await.unwrap().unwrap().id.as_deref(),
        Some("a")
    );
    let error = next(&mut answers).await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Refused, "input 'x' is missing")
    );
    assert_eq!(
        next(&mut answers).await.unwrap().unwrap().id.as_deref(),
        Some("c")
    );
    assert!(next(&mut answers).await.is_none());
}

#[tokio::test]
async fn a_stream_that_breaks_says_so_at_its_end() {
    let broken = scripted_grpc(|_, _, _| grpc_answer(vec![data(&answer_to("a"))]));
    let refused = scripted_grpc(|_, _, _| {
        grpc_answer(vec![
            data(&answer_to("a")),
            trailers(&[("grpc-status", "13"), ("grpc-message", "bad")]),
        ])
    });
    let lying = scripted_grpc(|_, _, _| {
        grpc_answer(vec![
            data(&answer_to("a")),
            data(&ModelStreamInferResponse::default()),
            trailers(&[("grpc-status", "0")]),
        ])
    });
    for (url, kind) in [
        (broken, ErrorKind::Broken),
        (refused, ErrorKind::Refused),
        (lying, ErrorKind::Protocol),
    ] {
        let client = grpc_client(&url);
        let mut answers = client.infer_stream(stream_of(vec![to_model("m")])).await.unwrap();
        assert!(next(&mut answers).await.unwrap().is_ok());
        let error = next(&mut answers).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(next(&mut answers).await.is_none());
    }
}

#[tokio::test]
async fn streams_that_are_not_offered() {
    let url = scripted_grpc(|_, _, _| grpc_status(12, "no streams", &[]));
    let error = grpc_client(&url)
        .infer_stream(stream_of(vec![]))
        .await
        .err()
        .unwrap();
    assert_eq!(error.code(), Some(ErrorCode::Unimplemented));
    let [http, _] = TestServers::new().clients(|builder| builder);
    let error = http.infer_stream(stream_of(vec![])).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(
        error.message().contains("no streams over HTTP; expected grpc://"),
        "{error}"
    );
}
