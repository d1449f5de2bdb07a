//! Sends arbitrary bytes as the message of a gRPC inference request through the whole service. Exactly the
//! messages that `prost` rejects must count as malformed, and no memory may remain reserved in the budget at
//! the end.
#![no_main]

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use libfuzzer_sys::fuzz_target;
use oip_grpc::{GrpcConfig, GrpcService, proto::ModelInferRequest, service};
use oip_resources::ByteBudget;
use oip_service::testing::TestService;
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tonic::codegen::Service;

struct Server {
    runtime: Runtime,
    service: GrpcService,
    budget: ByteBudget,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let budget = ByteBudget::new(64 << 20);
    let config = GrpcConfig::default().with(|config| config.budget = budget.clone());
    Server {
        runtime: Builder::new_current_thread().enable_all().build().unwrap(),
        service: service(Arc::new(TestService::default()), config),
        budget,
    }
});

fuzz_target!(|message: &[u8]| {
    let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
    let request = Request::post("/inference.GRPCInferenceService/ModelInfer")
        .header("content-type", "application/grpc")
        // The test service never answers requests to some models, so the request has a timeout.
        .header("grpc-timeout", "5m")
        .body(Full::new(Bytes::from(framed)))
        .unwrap();
    let response = SERVER.runtime.block_on(SERVER.service.clone().call(request)).unwrap();
    let said = response.headers().get("grpc-message").map(|text| text.to_str().unwrap().replace("%20", " "));
    let said = said.unwrap_or_default();
    let is_malformed = said.starts_with("failed to decode Protobuf message");
    match ModelInferRequest::decode(message) {
        // prost does not check the wire type in a map's entry, and reads a number there as the entry's
        // length.
        Ok(_) if is_malformed => assert!(said.contains(".parameters: ") && said.contains("(expected"), "{said}"),
        Ok(_) => {}
        // A message that exceeds a limit may be refused before it is known to be malformed.
        Err(error) => assert!(is_malformed || said.contains("too many"), "{error} {said}"),
    }
    drop(response);
    assert_eq!(SERVER.budget.used(), 0);
});
