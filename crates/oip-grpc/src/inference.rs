use std::sync::Arc;

use oip_service::{InferenceService, RequestContext, extensions::offered};
use oip_types::{ErrorCode, ServerMetadata, ServiceError};
use tokio::time::timeout_at;
use tonic::{Request, Response, Status, Streaming, codegen::tokio_stream::Empty};

use crate::{
    GrpcConfig, convert,
    proto::{
        CudaSharedMemoryRegisterRequest, CudaSharedMemoryRegisterResponse, CudaSharedMemoryStatusRequest,
        CudaSharedMemoryStatusResponse, CudaSharedMemoryUnregisterRequest,
        CudaSharedMemoryUnregisterResponse, LogSettingsRequest, LogSettingsResponse, ModelConfigRequest,
        ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
        ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse, ModelStatisticsRequest,
        ModelStatisticsResponse, ModelStreamInferResponse, RepositoryIndexRequest, RepositoryIndexResponse,
        RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
        RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
        ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse, SystemSharedMemoryRegisterRequest,
        SystemSharedMemoryRegisterResponse, SystemSharedMemoryStatusRequest,
        SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest,
        SystemSharedMemoryUnregisterResponse, TraceSettingRequest, TraceSettingResponse,
        grpc_inference_service_server::GrpcInferenceService,
    },
    status,
};

/// The protocol's calls, answered by an [`InferenceService`].
pub(crate) struct Inference {
    service: Arc<dyn InferenceService>,
    config: GrpcConfig,
}

type Answer<T> = Result<Response<T>, Status>;

impl Inference {
    pub(crate) fn new(service: Arc<dyn InferenceService>, config: GrpcConfig) -> Self {
        Self { service, config }
    }

    async fn infer(&self, request: Request<ModelInferRequest>) -> Result<ModelInferResponse, ServiceError> {
        // The bytes of the message count against the budget until this returns: the extensions hold them.
        let (metadata, _extensions, message) = request.into_parts();
        let timeout = status::timeout(metadata.as_ref())?;
        let (request, wants_raw) = convert::read_request(message, &self.config.limits, self.config.output)?;
        let cx = RequestContext::for_request(&request, timeout, &self.config.time)?;
        let response = match cx.deadline() {
            None => oip_service::answer(&*self.service, request, cx).await,
            Some(deadline) => {
                let model = request.model().to_string();
                let passed = |_| {
                    Err(ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed").within(model))
                };
                let inference = oip_service::answer(&*self.service, request, cx);
                timeout_at(deadline.into(), inference)
                    .await
                    .unwrap_or_else(passed)
            }
        }?;
        Ok(convert::write_response(response, wants_raw))
    }
}

fn answer<T>(result: Result<T, ServiceError>) -> Answer<T> {
    result
        .map(Response::new)
        .map_err(|error| status::from_error(&error))
}

fn not_offered<T>(call: &str) -> Answer<T> {
    Err(Status::unimplemented(format!(
        "this server does not offer {call}"
    )))
}

/// Calls of the protocol's extensions that are not offered.
macro_rules! not_offered {
    ($($call:ident($request:ty) -> $response:ty as $name:literal;)*) => {$(
        // What `async_trait` makes of an async method; it cannot look into this macro.
        fn $call<'life0, 'async_trait>(
            &'life0 self,
            _: Request<$request>,
        ) -> std::pin::Pin<Box<dyn Future<Output = Answer<$response>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { not_offered($name) })
        }
    )*};
}

#[tonic::async_trait]
impl GrpcInferenceService for Inference {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse {
            ready: self.service.readiness().is_ready(),
        }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = request.into_inner();
        answer(
            convert::model(&name, &version).and_then(|model| match self.service.model_ready(model) {
                Ok(()) => Ok(ModelReadyResponse { ready: true }),
                Err(error) if error.code() == ErrorCode::Unavailable => {
                    Ok(ModelReadyResponse { ready: false })
                }
                Err(error) => Err(error),
            }),
        )
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Answer<ServerMetadataResponse> {
        let ServerMetadata { name, version, .. } = self.service.server_metadata();
        let extensions = offered(&*self.service);
        Ok(Response::new(ServerMetadataResponse {
            name,
            version,
            extensions,
        }))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Answer<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let metadata = convert::model(&name, &version).and_then(|model| self.service.model_metadata(model));
        answer(metadata.map(|metadata| convert::write_metadata(&metadata)))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        answer(self.infer(request).await)
    }

    type ModelStreamInferStream = Empty<Result<ModelStreamInferResponse, Status>>;

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<ModelInferRequest>>,
    ) -> Answer<Self::ModelStreamInferStream> {
        not_offered("ModelStreamInfer")
    }

    not_offered! {
        model_config(ModelConfigRequest) -> ModelConfigResponse as "ModelConfig";
        model_statistics(ModelStatisticsRequest) -> ModelStatisticsResponse as "ModelStatistics";
        repository_index(RepositoryIndexRequest) -> RepositoryIndexResponse as "RepositoryIndex";
        repository_model_load(RepositoryModelLoadRequest) -> RepositoryModelLoadResponse as "RepositoryModelLoad";
        repository_model_unload(RepositoryModelUnloadRequest) -> RepositoryModelUnloadResponse as "RepositoryModelUnload";
        system_shared_memory_status(SystemSharedMemoryStatusRequest) -> SystemSharedMemoryStatusResponse as "SystemSharedMemoryStatus";
        system_shared_memory_register(SystemSharedMemoryRegisterRequest) -> SystemSharedMemoryRegisterResponse as "SystemSharedMemoryRegister";
        system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest) -> SystemSharedMemoryUnregisterResponse as "SystemSharedMemoryUnregister";
        cuda_shared_memory_status(CudaSharedMemoryStatusRequest) -> CudaSharedMemoryStatusResponse as "CudaSharedMemoryStatus";
        cuda_shared_memory_register(CudaSharedMemoryRegisterRequest) -> CudaSharedMemoryRegisterResponse as "CudaSharedMemoryRegister";
        cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest) -> CudaSharedMemoryUnregisterResponse as "CudaSharedMemoryUnregister";
        trace_setting(TraceSettingRequest) -> TraceSettingResponse as "TraceSetting";
        log_settings(LogSettingsRequest) -> LogSettingsResponse as "LogSettings";
    }
}
