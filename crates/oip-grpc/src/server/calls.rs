//! Implements the generated service trait for all calls except inference, whose messages this crate parses
//! itself.

use std::sync::Arc;

use oip_service::{
    Grant, InferenceService,
    extensions::{self, offered},
};
use oip_types::{ErrorCode, ServerMetadata, ServiceError};
use tonic::{Request, Response, Status, Streaming, codegen::tokio_stream::Empty};

use super::{
    convert, inference::Inference, logging, model_config, repository, shared_memory, statistics, status,
};
use crate::proto::{
    ConnectionSharedMemoryRegisterRequest, ConnectionSharedMemoryRegisterResponse,
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryRegisterResponse, CudaSharedMemoryStatusRequest,
    CudaSharedMemoryStatusResponse, CudaSharedMemoryUnregisterRequest, CudaSharedMemoryUnregisterResponse,
    LogSettingsRequest, LogSettingsResponse, ModelConfigRequest, ModelConfigResponse, ModelInferRequest,
    ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse,
    ModelStatisticsRequest, ModelStatisticsResponse, ModelStreamInferResponse, RepositoryIndexRequest,
    RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest, RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse,
    ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest,
    SystemSharedMemoryUnregisterResponse, TraceSettingRequest, TraceSettingResponse,
    grpc_inference_service_server::GrpcInferenceService,
};

/// The protocol's calls, served by an [`InferenceService`].
pub(crate) struct Calls(pub(crate) Arc<Inference>);

type CallResult<T> = Result<Response<T>, Status>;

fn respond<T>(result: Result<T, ServiceError>) -> CallResult<T> {
    result
        .map(Response::new)
        .map_err(|error| status::from_error(&error))
}

/// Returns the client's grant, if its rights are limited.
fn grant<T>(request: &Request<T>) -> Option<Grant> {
    request.extensions().get::<Grant>().cloned()
}

/// Checks that the client may access a model.
fn allow<T>(request: &Request<T>, model: &str) -> Result<(), ServiceError> {
    grant(request).map_or(Ok(()), |grant| grant.check_model(model))
}

/// Creates the error for an inference call that reaches `tonic`: `GrpcService` handles such calls itself.
fn answered_elsewhere() -> ServiceError {
    ServiceError::internal("inference was called past the service that answers it")
}

/// Implements calls of extensions that are never supported.
macro_rules! not_offered {
    ($($call:ident($request:ty) -> $response:ty as $extension:literal;)*) => {$(
        // The method has the signature that `async_trait` generates, because that macro cannot expand inside
        // `not_offered`.
        fn $call<'life0, 'async_trait>(
            &'life0 self,
            _: Request<$request>,
        ) -> std::pin::Pin<Box<dyn Future<Output = CallResult<$response>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { respond(Err(extensions::not_offered($extension))) })
        }
    )*};
}

#[tonic::async_trait]
impl GrpcInferenceService for Calls {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> CallResult<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> CallResult<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse {
            ready: self.0.service.readiness().is_ready(),
        }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> CallResult<ModelReadyResponse> {
        let allowed = allow(&request, &request.get_ref().name);
        let ModelReadyRequest { name, version } = request.into_inner();
        respond(
            allowed
                .and_then(|()| convert::model(&name, &version))
                .and_then(|model| match self.0.service.model_ready(model) {
                    Ok(()) => Ok(ModelReadyResponse { ready: true }),
                    Err(error) if error.code() == ErrorCode::Unavailable => {
                        Ok(ModelReadyResponse { ready: false })
                    }
                    Err(error) => Err(error),
                }),
        )
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> CallResult<ServerMetadataResponse> {
        let ServerMetadata { name, version, .. } = self.0.service.server_metadata();
        let extensions = offered(&*self.0.service);
        Ok(Response::new(ServerMetadataResponse {
            name,
            version,
            extensions,
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> CallResult<ModelMetadataResponse> {
        let allowed = allow(&request, &request.get_ref().name);
        let ModelMetadataRequest { name, version } = request.into_inner();
        let model = allowed.and_then(|()| convert::model(&name, &version));
        let metadata = model.and_then(|model| self.0.service.model_metadata(model));
        respond(metadata.map(|metadata| convert::write_metadata(&metadata)))
    }

    async fn model_infer(&self, _: Request<ModelInferRequest>) -> CallResult<ModelInferResponse> {
        respond(Err(answered_elsewhere()))
    }

    type ModelStreamInferStream = Empty<Result<ModelStreamInferResponse, Status>>;

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<ModelInferRequest>>,
    ) -> CallResult<Self::ModelStreamInferStream> {
        respond(Err(answered_elsewhere()))
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> CallResult<ModelConfigResponse> {
        let allowed = allow(&request, &request.get_ref().name);
        respond(allowed.and_then(|()| model_config::config(&*self.0.service, request.get_ref())))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> CallResult<ModelStatisticsResponse> {
        let grant = grant(&request);
        let list = move |service: &dyn InferenceService| {
            statistics::statistics(service, request.get_ref(), grant.as_ref())
        };
        let listed = self.0.list(list).await;
        listed.map_err(|error| status::from_error(&error))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> CallResult<RepositoryIndexResponse> {
        let grant = grant(&request);
        let list = move |service: &dyn InferenceService| {
            repository::index(service, request.get_ref(), grant.as_ref())
        };
        let listed = self.0.list(list).await;
        listed.map_err(|error| status::from_error(&error))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> CallResult<RepositoryModelLoadResponse> {
        let grant = grant(&request);
        let loaded = repository::load(&*self.0.service, request.into_inner(), grant.as_ref()).await;
        respond(loaded.map(|()| RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> CallResult<RepositoryModelUnloadResponse> {
        let grant = grant(&request);
        let unloaded = repository::unload(&*self.0.service, request.into_inner(), grant.as_ref()).await;
        respond(unloaded.map(|()| RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> CallResult<SystemSharedMemoryStatusResponse> {
        respond(shared_memory::status(&*self.0.service, request.get_ref()))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> CallResult<SystemSharedMemoryRegisterResponse> {
        let registered = shared_memory::register(&*self.0.service, request.into_inner());
        respond(registered.map(|()| SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> CallResult<SystemSharedMemoryUnregisterResponse> {
        let unregistered = shared_memory::unregister(&*self.0.service, request.get_ref());
        respond(unregistered.map(|()| SystemSharedMemoryUnregisterResponse {}))
    }

    async fn connection_shared_memory_register(
        &self,
        request: Request<ConnectionSharedMemoryRegisterRequest>,
    ) -> CallResult<ConnectionSharedMemoryRegisterResponse> {
        respond(shared_memory::register_for_connection(
            &self.0.config,
            request.extensions(),
        ))
    }

    async fn log_settings(&self, request: Request<LogSettingsRequest>) -> CallResult<LogSettingsResponse> {
        respond(logging::log_settings(&*self.0.service, request.into_inner()))
    }

    not_offered! {
        cuda_shared_memory_status(CudaSharedMemoryStatusRequest) -> CudaSharedMemoryStatusResponse
            as "cuda_shared_memory";
        cuda_shared_memory_register(CudaSharedMemoryRegisterRequest) -> CudaSharedMemoryRegisterResponse
            as "cuda_shared_memory";
        cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest) -> CudaSharedMemoryUnregisterResponse
            as "cuda_shared_memory";
        trace_setting(TraceSettingRequest) -> TraceSettingResponse as "trace";
    }
}
