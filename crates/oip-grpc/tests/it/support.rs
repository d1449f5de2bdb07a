//! Clients and requests for the tests.

use std::sync::{Arc, Mutex};

use oip_grpc::{
    GrpcConfig, GrpcService,
    proto::{
        InferParameter, InferTensorContents, ModelInferRequest,
        grpc_inference_service_client::GrpcInferenceServiceClient, infer_parameter::ParameterChoice,
        model_infer_request::InferInputTensor,
    },
    service,
};
use oip_model::BoxFuture;
use oip_service::{InferenceService, Readiness, RequestContext, testing::TestService};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};

pub(crate) type Client = GrpcInferenceServiceClient<GrpcService>;

pub(crate) fn client() -> Client {
    client_with(GrpcConfig::default()).0
}

pub(crate) fn client_with(config: GrpcConfig) -> (Client, Arc<TestService>) {
    let test = Arc::new(TestService::default());
    (
        GrpcInferenceServiceClient::new(service(test.clone(), config)),
        test,
    )
}

/// Returns a client of a service without any extension.
pub(crate) fn plain_client() -> Client {
    GrpcInferenceServiceClient::new(service(Arc::new(TestService::plain()), GrpcConfig::default()))
}

pub(crate) fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.into(),
        ..Default::default()
    }
}

/// Returns a request to an identity model with raw contents.
pub(crate) fn raw_x(model: &str, datatype: &str, shape: &[i64], raw: &[u8]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.into(),
        inputs: vec![input("x", datatype, shape)],
        raw_input_contents: vec![raw.to_vec().into()],
        ..Default::default()
    }
}

/// Returns a request to an identity model with typed contents.
pub(crate) fn typed_x(
    model: &str,
    datatype: &str,
    shape: &[i64],
    contents: InferTensorContents,
) -> ModelInferRequest {
    let x = InferInputTensor {
        contents: Some(contents),
        ..input("x", datatype, shape)
    };
    ModelInferRequest {
        model_name: model.into(),
        inputs: vec![x],
        ..Default::default()
    }
}

pub(crate) fn good() -> ModelInferRequest {
    raw_x("identity_fp32", "FP32", &[1], &1.5f32.to_le_bytes())
}

/// Returns an FP32 request to any model with an input `x`.
pub(crate) fn floats(model: &str, values: &[f32]) -> ModelInferRequest {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    raw_x(model, "FP32", &[values.len() as i64], &raw)
}

pub(crate) fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter {
        parameter_choice: Some(choice),
    }
}

/// Records what reaches the service.
#[derive(Default)]
pub(crate) struct Recorder {
    inner: TestService,
    pub(crate) seen: Mutex<Vec<RecordedRequest>>,
}

#[derive(Debug)]
pub(crate) struct RecordedRequest {
    /// Memory addresses of the inputs' bytes.
    pub(crate) addresses: Vec<usize>,
    pub(crate) priority: u64,
}

impl InferenceService for Recorder {
    fn server_metadata(&self) -> ServerMetadata {
        self.inner.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        self.inner.readiness()
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.inner.model_metadata(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        let inputs = request.inputs.iter();
        self.seen.lock().unwrap().push(RecordedRequest {
            addresses: inputs.map(|input| input.value.raw().as_ptr() as usize).collect(),
            priority: cx.priority(),
        });
        self.inner.infer(request, cx)
    }
}
