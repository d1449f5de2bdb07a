//! Tests protocol calls, health and reflection.

use std::sync::{Arc, atomic::Ordering};

use oip_grpc::{
    GrpcConfig,
    proto::{
        ModelMetadataRequest, ModelReadyRequest, ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest,
    },
    service,
};
use oip_service::testing::TestService;
use tonic::{Code, Request};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::support::{client, client_with, good};

/// Through tonic's routes, the service handles the protocol's calls but not health checks.
#[tokio::test]
async fn tonic_adds_the_service_to_its_routes() {
    let service = service(Arc::new(TestService::default()), GrpcConfig::default());
    let routes = tonic::service::Routes::new(service);
    let mut client =
        oip_grpc::proto::grpc_inference_service_client::GrpcInferenceServiceClient::new(routes.clone());
    let live = client.server_live(ServerLiveRequest {}).await.unwrap();
    assert!(live.get_ref().live);
    let mut health = HealthClient::new(routes);
    let status = health.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test]
async fn server_calls() {
    let (mut client, test) = client_with(GrpcConfig::default());
    assert!(
        client
            .server_live(ServerLiveRequest {})
            .await
            .unwrap()
            .get_ref()
            .live
    );
    assert!(
        client
            .server_ready(ServerReadyRequest {})
            .await
            .unwrap()
            .get_ref()
            .ready
    );
    test.is_not_ready.store(true, Ordering::SeqCst);
    assert!(
        !client
            .server_ready(ServerReadyRequest {})
            .await
            .unwrap()
            .get_ref()
            .ready
    );
    let metadata = client
        .server_metadata(ServerMetadataRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((&*metadata.name, &*metadata.version), ("test", "1.2.3"));
    let offered = oip_service::extensions::offered(&oip_service::testing::TestService::default());
    assert_eq!(metadata.extensions, offered);
}

#[tokio::test]
async fn model_calls() {
    let mut client = client();
    let name = |name: &str, version: &str| (name.to_owned(), version.to_owned());
    for (model, version) in [("matrix", ""), ("matrix", "1"), ("nan", "")] {
        let (name, version) = name(model, version);
        let ready = ModelReadyRequest {
            name: name.clone(),
            version: version.clone(),
        };
        assert!(client.model_ready(ready).await.unwrap().get_ref().ready);
        let metadata = client
            .model_metadata(ModelMetadataRequest { name, version })
            .await
            .unwrap()
            .into_inner();
        assert_eq!((&*metadata.name, &*metadata.platform), (model, "test_test"));
        // Other versions of the protocol use this field number differently.
        assert!(metadata.properties.is_empty());
    }
    let (name, version) = name("matrix", "");
    let metadata = client
        .model_metadata(ModelMetadataRequest { name, version })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(metadata.versions, ["1", "2"]);
    let inputs: Vec<_> = metadata
        .inputs
        .iter()
        .map(|input| (&*input.name, &*input.datatype, &input.shape[..]))
        .collect();
    assert_eq!(inputs, [("a", "FP32", &[-1, 2][..]), ("b", "INT64", &[1])]);

    // A model that is not ready gives a normal response; a missing model is an error.
    let ready = ModelReadyRequest {
        name: "loading".into(),
        version: String::new(),
    };
    assert!(!client.model_ready(ready).await.unwrap().get_ref().ready);
    let ready = ModelReadyRequest {
        name: "zz".into(),
        version: String::new(),
    };
    assert_eq!(
        client.model_ready(ready).await.unwrap_err().code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn inference_echoes_what_identifies_it() {
    let mut client = client();
    let mut request = good();
    request.id = "42".into();
    let response = client.model_infer(request.clone()).await.unwrap().into_inner();
    assert_eq!(
        (&*response.id, &*response.model_name, &*response.model_version),
        ("42", "identity_fp32", "")
    );
    request.id.clear();
    assert_eq!(client.model_infer(request).await.unwrap().get_ref().id, "");
}

#[tokio::test]
async fn health_follows_readiness() {
    let test = Arc::new(TestService::default());
    let mut health = HealthClient::new(service(test.clone(), GrpcConfig::default()));
    let check = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    for service in ["", "inference.GRPCInferenceService"] {
        assert_eq!(
            health.check(check(service)).await.unwrap().get_ref().status(),
            ServingStatus::Serving
        );
    }
    assert_eq!(
        health.check(check("nobody")).await.unwrap_err().code(),
        Code::NotFound
    );
    let mut watched = health.watch(check("")).await.unwrap().into_inner();
    assert_eq!(
        watched.message().await.unwrap().unwrap().status(),
        ServingStatus::Serving
    );
    test.is_not_ready.store(true, Ordering::SeqCst);
    assert_eq!(
        health.check(check("")).await.unwrap().get_ref().status(),
        ServingStatus::NotServing
    );
    assert_eq!(
        watched.message().await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let mut reflection =
        ServerReflectionClient::new(service(Arc::new(TestService::default()), GrpcConfig::default()));
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let requests = tonic::codegen::tokio_stream::once(list);
    let mut answers = reflection
        .server_reflection_info(Request::new(requests))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
        panic!()
    };
    let mut names: Vec<String> = services.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "inference.GRPCInferenceService"
        ]
    );
}
