//! Each call of the protocol over HTTP.

use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata};

use super::{HttpClient, Message, json, model_path};
use crate::{BoxFuture, BoxStream, ClientError, ErrorKind, InferenceClient, Result};

impl HttpClient {
    async fn health(&self, path: String) -> Result<bool> {
        let answer = self.read(Message::get(path)).await?;
        answer.health().map_err(|error| error.at(self.url()))
    }
}

impl InferenceClient for HttpClient {
    fn server_live(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(self.health("/v2/health/live".to_owned()))
    }

    fn server_ready(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(self.health("/v2/health/ready".to_owned()))
    }

    fn server_metadata(&self) -> BoxFuture<'_, Result<ServerMetadata>> {
        Box::pin(async {
            let answer = self.read(Message::get("/v2")).await?;
            let server: Result<json::Server> = answer.json();
            server.map(Into::into).map_err(|error| error.at(self.url()))
        })
    }

    fn model_ready<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.health(format!("{}/ready", model_path(model))))
    }

    fn model_metadata<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelMetadata>> {
        Box::pin(async move {
            let answer = self.read(Message::get(model_path(model))).await?;
            let read = || {
                let model: json::Model = answer.json()?;
                model.into_metadata().map_err(|error| answer.broken(error))
            };
            read().map_err(|error| error.at(self.url()))
        })
    }

    fn infer<'a>(&'a self, request: &'a InferRequest) -> BoxFuture<'a, Result<InferResponse>> {
        Box::pin(self.run(request))
    }

    fn infer_stream(
        &self,
        _: BoxStream<InferRequest>,
    ) -> BoxFuture<'_, Result<BoxStream<Result<InferResponse>>>> {
        Box::pin(async {
            let message = "the protocol has no streams over HTTP; expected grpc://";
            Err(ClientError::new(ErrorKind::Usage, message).at(self.url()))
        })
    }
}
