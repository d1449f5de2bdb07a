//! Calls a service through its generated client without a network, as tests of your own service would.
//!
//! ```sh
//! cargo run --package oip-grpc --example in_process
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;

use oip_grpc::{
    GrpcConfig,
    proto::{ModelMetadataRequest, grpc_inference_service_client::GrpcInferenceServiceClient},
    service,
};
use oip_service::testing::TestService;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tonic::Status> {
    let service = service(Arc::new(TestService::default()), GrpcConfig::default());
    let mut client = GrpcInferenceServiceClient::new(service);
    let request = ModelMetadataRequest {
        name: "matrix".into(),
        ..Default::default()
    };
    let metadata = client.model_metadata(request).await?.into_inner();
    for input in metadata.inputs {
        println!("{} {}{:?}", input.name, input.datatype, input.shape);
    }
    Ok(())
}
