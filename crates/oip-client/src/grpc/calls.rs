//! Each call of the protocol over gRPC.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use oip_grpc::{
    client::{decode_metadata, decode_response, encode_request},
    proto::{
        ModelInferRequest, ModelMetadataRequest, ModelReadyRequest, ModelStreamInferResponse,
        ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest,
    },
};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata};
use tonic::codegen::tokio_stream::StreamExt;

use super::{GrpcClient, status, transport::Record};
use crate::{BoxFuture, BoxStream, ClientError, ErrorKind, InferenceClient, Result, TensorForm};

/// A model's name, and its version or none, as messages have them.
fn named(model: ModelRef<'_>) -> (String, String) {
    (
        model.name().to_owned(),
        model.version().unwrap_or_default().to_owned(),
    )
}

impl GrpcClient {
    /// One item of a stream of answers.
    fn streamed(
        &self,
        item: std::result::Result<ModelStreamInferResponse, tonic::Status>,
        record: &Record,
    ) -> Result<InferResponse> {
        let item = item.map_err(|status| {
            status::error(status, record, self.settings().max_answer_bytes).at(self.url())
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

/// Requests as messages. A type of its own, since the compiler cannot prove of a closure in its place that the call may
/// change threads.
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
    fn server_live(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async {
            let message = || ServerLiveRequest {};
            let send = async |mut client: super::Client, request| client.server_live(request).await;
            Ok(self.unary(&self.client, true, message, send).await?.live)
        })
    }

    fn server_ready(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async {
            let message = || ServerReadyRequest {};
            let send = async |mut client: super::Client, request| client.server_ready(request).await;
            Ok(self.unary(&self.client, true, message, send).await?.ready)
        })
    }

    fn server_metadata(&self) -> BoxFuture<'_, Result<ServerMetadata>> {
        Box::pin(async {
            let message = || ServerMetadataRequest {};
            let send = async |mut client: super::Client, request| client.server_metadata(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            Ok(ServerMetadata {
                name: answer.name,
                version: answer.version,
                extensions: answer.extensions,
            })
        })
    }

    fn model_ready<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let message = || {
                let (name, version) = named(model);
                ModelReadyRequest { name, version }
            };
            let send = async |mut client: super::Client, request| client.model_ready(request).await;
            Ok(self.unary(&self.client, true, message, send).await?.ready)
        })
    }

    fn model_metadata<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelMetadata>> {
        Box::pin(async move {
            let message = || {
                let (name, version) = named(model);
                ModelMetadataRequest { name, version }
            };
            let send = async |mut client: super::Client, request| client.model_metadata(request).await;
            let answer = self.unary(&self.client, true, message, send).await?;
            decode_metadata(answer).map_err(|error| self.broken(error))
        })
    }

    fn infer<'a>(&'a self, request: &'a InferRequest) -> BoxFuture<'a, Result<InferResponse>> {
        Box::pin(async {
            let message = || encode_request(request, self.is_raw());
            let send = async |mut client: super::Client, request| client.model_infer(request).await;
            let answer = self.unary(&self.inference_client(), false, message, send).await?;
            decode_response(answer, &self.settings().limits).map_err(|error| self.broken(error))
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
                status::error(status, &record, self.settings().max_answer_bytes).at(self.url())
            })?;
            let client = self.clone();
            let answers = answers
                .into_inner()
                .map(move |item| client.streamed(item, &record));
            Ok(Box::pin(answers) as BoxStream<_>)
        })
    }
}
