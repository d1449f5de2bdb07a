//! Implements the calls of the client interface over gRPC.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;
use oip_grpc::{
    client::{self as convert, decode_metadata, decode_response, encode_request},
    proto::{
        CudaSharedMemoryStatusRequest, CudaSharedMemoryUnregisterRequest, ModelConfigRequest,
        ModelInferRequest, ModelMetadataRequest, ModelReadyRequest, ModelStatisticsRequest,
        ModelStreamInferResponse, RepositoryIndexRequest, ServerLiveRequest, ServerMetadataRequest,
        ServerReadyRequest, SystemSharedMemoryStatusRequest, SystemSharedMemoryUnregisterRequest,
    },
};
use oip_types::{
    CudaMemoryRegion, InferRequest, InferResponse, LoadOptions, LogSettings, ModelConfig, ModelIndexEntry,
    ModelMetadata, ModelRef, ModelStatistics, ServerMetadata, SharedMemoryRegion, TraceSettings,
    UnloadOptions,
};
use tonic::codegen::tokio_stream::StreamExt;

use super::{Client, GrpcClient, status, transport::Record};
use crate::{BoxFuture, BoxStream, ClientError, ErrorKind, InferenceClient, Result, TensorForm};

/// Returns a model's name and version for a message; a missing version is the empty string.
fn named(model: ModelRef<'_>) -> (String, String) {
    (
        model.name().to_owned(),
        model.version().unwrap_or_default().to_owned(),
    )
}

impl GrpcClient {
    /// Converts one item of a response stream.
    fn streamed(
        &self,
        item: std::result::Result<ModelStreamInferResponse, tonic::Status>,
        record: &Record,
    ) -> Result<InferResponse> {
        let item = item.map_err(|status| {
            status::error(&status, record, self.settings().max_answer_bytes).at(self.url())
        })?;
        if !item.error_message.is_empty() {
            return Err(ClientError::new(ErrorKind::Refused, item.error_message).at(self.url()));
        }
        let response = item.infer_response.ok_or_else(|| {
            let message = "expected a response or an error in the stream, found neither";
            self.broken(oip_types::ServiceError::invalid(message))
        })?;
        decode_response(response, &self.settings().limits).map_err(|error| self.broken(error))
    }

    fn is_raw(&self) -> bool {
        self.settings().form == TensorForm::Raw
    }
}

/// A stream that encodes requests as messages. A closure with a stream adapter would be shorter, but the
/// compiler cannot prove that it is `Send`.
struct Messages {
    requests: BoxStream<InferRequest>,
    is_raw: bool,
}

impl Stream for Messages {
    type Item = ModelInferRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let is_raw = self.is_raw;
        let request = self.requests.as_mut().poll_next(cx);
        request.map(|request| request.map(|request| encode_request(&request, is_raw)))
    }
}

impl InferenceClient for GrpcClient {
    fn with_headers(&self, headers: &[(String, String)]) -> Result<Box<dyn InferenceClient>> {
        let headers = headers.iter().map(|(name, value)| (&**name, &**value));
        Ok(Box::new(self.with_headers(headers)?))
    }

    fn server_live(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async {
            let message = || ServerLiveRequest {};
            let send = async |mut client: Client, request| client.server_live(request).await;
            Ok(self.unary(&self.client, true, message, send).await?.live)
        })
    }

    fn server_ready(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async {
            let message = || ServerReadyRequest {};
            let send = async |mut client: Client, request| client.server_ready(request).await;
            Ok(self.unary(&self.client, true, message, send).await?.ready)
        })
    }

    fn server_metadata(&self) -> BoxFuture<'_, Result<ServerMetadata>> {
        Box::pin(async {
            let message = || ServerMetadataRequest {};
            let send = async |mut client: Client, request| client.server_metadata(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            let mut metadata = ServerMetadata::new(answer.name, answer.version);
            metadata.extensions = answer.extensions;
            Ok(metadata)
        })
    }

    fn model_ready<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let message = || {
                let (name, version) = named(model);
                ModelReadyRequest { name, version }
            };
            let send = async |mut client: Client, request| client.model_ready(request).await;
            Ok(self.unary(&self.client, true, message, send).await?.ready)
        })
    }

    fn model_metadata<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelMetadata>> {
        Box::pin(async move {
            let message = || {
                let (name, version) = named(model);
                ModelMetadataRequest { name, version }
            };
            let send = async |mut client: Client, request| client.model_metadata(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            decode_metadata(answer).map_err(|error| self.broken(error))
        })
    }

    fn infer<'a>(&'a self, request: &'a InferRequest) -> BoxFuture<'a, Result<InferResponse>> {
        Box::pin(async {
            #[cfg(target_os = "linux")]
            if let Some(response) = self.infer_shared(request).await? {
                return Ok(response);
            }
            let message = || encode_request(request, self.is_raw());
            let send = async |mut client: Client, request| client.model_infer(request).await;
            let answer = self.unary(&self.inference_client(), false, message, send).await?;
            let response =
                decode_response(answer, &self.settings().limits).map_err(|error| self.broken(error))?;
            #[cfg(target_os = "linux")]
            self.note_outputs(request, &response);
            Ok(response)
        })
    }

    fn infer_stream(
        &self,
        requests: BoxStream<InferRequest>,
    ) -> BoxFuture<'_, Result<BoxStream<Result<InferResponse>>>> {
        let is_raw = self.is_raw();
        let (request, record) = self.request(Messages { requests, is_raw }, None);
        Box::pin(async move {
            let answer = self.inference_client().model_stream_infer(request).await;
            let answers = answer.map_err(|status| {
                status::error(&status, &record, self.settings().max_answer_bytes).at(self.url())
            })?;
            let client = self.clone();
            let mut is_over = false;
            let answers = answers.into_inner().map_while(move |item| {
                if is_over {
                    return None;
                }
                is_over = item.is_err();
                Some(client.streamed(item, &record))
            });
            Ok(Box::pin(answers) as BoxStream<_>)
        })
    }

    fn repository_index(&self, is_ready: bool) -> BoxFuture<'_, Result<Vec<ModelIndexEntry>>> {
        Box::pin(async move {
            let message = || RepositoryIndexRequest {
                repository_name: String::new(),
                ready: is_ready,
            };
            let send = async |mut client: Client, request| client.repository_index(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            Ok(convert::decode_index(answer))
        })
    }

    fn load_model<'a>(&'a self, name: &'a str, options: &'a LoadOptions) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let message = || convert::encode_load(name, options);
            let send = async |mut client: Client, request| client.repository_model_load(request).await;
            self.unary(&self.client, false, message, send).await.map(drop)
        })
    }

    fn unload_model<'a>(&'a self, name: &'a str, options: UnloadOptions) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let message = || convert::encode_unload(name, options);
            let send = async |mut client: Client, request| client.repository_model_unload(request).await;
            self.unary(&self.client, false, message, send).await.map(drop)
        })
    }

    fn model_config<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelConfig>> {
        Box::pin(async move {
            let message = || {
                let (name, version) = named(model);
                ModelConfigRequest { name, version }
            };
            let send = async |mut client: Client, request| client.model_config(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            let config = answer.config.ok_or_else(|| {
                self.broken(oip_types::ServiceError::invalid(
                    "expected a configuration, found none",
                ))
            })?;
            convert::decode_config(config).map_err(|error| self.broken(error))
        })
    }

    fn statistics<'a>(&'a self, model: Option<ModelRef<'a>>) -> BoxFuture<'a, Result<Vec<ModelStatistics>>> {
        Box::pin(async move {
            let message = || {
                let (name, version) = model.map(named).unwrap_or_default();
                ModelStatisticsRequest { name, version }
            };
            let send = async |mut client: Client, request| client.model_statistics(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            Ok(convert::decode_statistics(answer))
        })
    }

    fn log_settings<'a>(&'a self, changes: &'a LogSettings) -> BoxFuture<'a, Result<LogSettings>> {
        Box::pin(async move {
            let message = || convert::encode_log_settings(changes);
            let send = async |mut client: Client, request| client.log_settings(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            Ok(convert::decode_log_settings(answer))
        })
    }

    fn shared_memory_status<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<SharedMemoryRegion>>> {
        Box::pin(async move {
            let message = || SystemSharedMemoryStatusRequest {
                name: name.unwrap_or_default().to_owned(),
            };
            let send = async |mut client: Client, request| client.system_shared_memory_status(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            Ok(convert::decode_regions(answer))
        })
    }

    fn register_shared_memory<'a>(&'a self, region: &'a SharedMemoryRegion) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let message = || convert::encode_region(region);
            let send =
                async |mut client: Client, request| client.system_shared_memory_register(request).await;
            self.unary(&self.client, false, message, send).await.map(drop)
        })
    }

    fn trace_settings<'a>(
        &'a self,
        model: Option<&'a str>,
        changes: &'a TraceSettings,
    ) -> BoxFuture<'a, Result<TraceSettings>> {
        Box::pin(async move {
            let message = || convert::encode_trace_settings(model, changes);
            let send = async |mut client: Client, request| client.trace_setting(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            Ok(convert::decode_trace_settings(answer))
        })
    }

    fn cuda_memory_status<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<CudaMemoryRegion>>> {
        Box::pin(async move {
            let message = || CudaSharedMemoryStatusRequest {
                name: name.unwrap_or_default().to_owned(),
            };
            let send = async |mut client: Client, request| client.cuda_shared_memory_status(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            Ok(convert::decode_cuda_regions(answer))
        })
    }

    fn register_cuda_memory<'a>(
        &'a self,
        region: &'a CudaMemoryRegion,
        handle: &'a Bytes,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let message = || convert::encode_cuda_region(region, handle);
            let send = async |mut client: Client, request| client.cuda_shared_memory_register(request).await;
            self.unary(&self.client, false, message, send).await.map(drop)
        })
    }

    fn unregister_cuda_memory<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let message = || CudaSharedMemoryUnregisterRequest {
                name: name.unwrap_or_default().to_owned(),
            };
            let send =
                async |mut client: Client, request| client.cuda_shared_memory_unregister(request).await;
            self.unary(&self.client, true, message, send).await.map(drop)
        })
    }

    fn unregister_shared_memory<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let message = || SystemSharedMemoryUnregisterRequest {
                name: name.unwrap_or_default().to_owned(),
            };
            let send =
                async |mut client: Client, request| client.system_shared_memory_unregister(request).await;
            self.unary(&self.client, true, message, send).await.map(drop)
        })
    }
}
