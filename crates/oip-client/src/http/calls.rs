//! Implements the calls of the client interface over HTTP.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use oip_types::{
    CudaMemoryRegion, InferRequest, InferResponse, LoadOptions, LogSettings, ModelConfig, ModelIndexEntry,
    ModelMetadata, ModelRef, ModelStatistics, ServerMetadata, SharedMemoryRegion, TraceSettings,
    UnloadOptions,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{HttpClient, encoded, json, message::Message, model_path, response};
use crate::{BoxFuture, BoxStream, ClientError, ErrorKind, InferenceClient, Result};

impl HttpClient {
    /// Makes a call with a JSON response.
    async fn fetch<T: DeserializeOwned>(&self, is_read: bool, message: Message) -> Result<T> {
        let answer = self.call(is_read, &message).await?;
        answer.json().map_err(|error| error.at(self.url()))
    }

    /// Makes a call whose response is only an acknowledgement. The body is ignored, because servers send
    /// different bodies.
    async fn command(&self, is_read: bool, path: String, body: serde_json::Value) -> Result<()> {
        let message = Message::post(path, &body);
        self.call(is_read, &message).await.map(drop)
    }

    async fn health(&self, path: String) -> Result<bool> {
        let answer = self.call(true, &Message::health(path)).await?;
        answer.health().map_err(|error| error.at(self.url()))
    }
}

impl InferenceClient for HttpClient {
    fn with_headers(&self, headers: &[(String, String)]) -> Result<Box<dyn InferenceClient>> {
        let headers = headers.iter().map(|(name, value)| (&**name, &**value));
        Ok(Box::new(self.with_headers(headers)?))
    }

    fn server_live(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(self.health("/v2/health/live".to_owned()))
    }

    fn server_ready(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(self.health("/v2/health/ready".to_owned()))
    }

    fn server_metadata(&self) -> BoxFuture<'_, Result<ServerMetadata>> {
        Box::pin(async {
            let server: json::Server = self.fetch(true, Message::get("/v2")).await?;
            Ok(server.into())
        })
    }

    fn model_ready<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.health(format!("{}/ready", model_path(model))))
    }

    fn model_metadata<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelMetadata>> {
        Box::pin(async move {
            let model: json::Model = self.fetch(true, Message::get(model_path(model))).await?;
            let broken = |error| response::broken(error).at(self.url());
            model.into_metadata().map_err(broken)
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

    fn repository_index(&self, is_ready: bool) -> BoxFuture<'_, Result<Vec<ModelIndexEntry>>> {
        Box::pin(async move {
            let body = match is_ready {
                true => json!({ "ready": true }),
                false => json!({}),
            };
            let entries: Vec<json::IndexEntry> = self
                .fetch(true, Message::post("/v2/repository/index", &body))
                .await?;
            Ok(entries.into_iter().map(Into::into).collect())
        })
    }

    fn load_model<'a>(&'a self, name: &'a str, options: &'a LoadOptions) -> BoxFuture<'a, Result<()>> {
        let config = options.config.iter();
        let config = config.map(|config| ("config".to_owned(), json!(config)));
        let files = options.files.iter();
        let files = files.map(|(path, content)| (format!("file:{path}"), json!(STANDARD.encode(content))));
        let parameters: serde_json::Map<_, _> = config.chain(files).collect();
        let body = match parameters.is_empty() {
            false => json!({ "parameters": parameters }),
            true => json!({}),
        };
        let path = format!("/v2/repository/models/{}/load", encoded(name));
        Box::pin(self.command(false, path, body))
    }

    fn unload_model<'a>(&'a self, name: &'a str, options: UnloadOptions) -> BoxFuture<'a, Result<()>> {
        let body = match options.unload_dependents {
            true => json!({ "parameters": { "unload_dependents": true } }),
            false => json!({}),
        };
        let path = format!("/v2/repository/models/{}/unload", encoded(name));
        Box::pin(self.command(false, path, body))
    }

    fn model_config<'a>(&'a self, model: ModelRef<'a>) -> BoxFuture<'a, Result<ModelConfig>> {
        Box::pin(self.fetch(true, Message::get(format!("{}/config", model_path(model)))))
    }

    fn statistics<'a>(&'a self, model: Option<ModelRef<'a>>) -> BoxFuture<'a, Result<Vec<ModelStatistics>>> {
        Box::pin(async move {
            let path = model.map_or_else(|| "/v2/models".to_owned(), model_path);
            let answer: json::Statistics = self.fetch(true, Message::get(format!("{path}/stats"))).await?;
            Ok(answer.model_stats)
        })
    }

    fn log_settings<'a>(&'a self, changes: &'a LogSettings) -> BoxFuture<'a, Result<LogSettings>> {
        let path = "/v2/logging";
        let message = match changes.is_empty() {
            true => Message::get(path),
            false => Message::post(path, &json!(changes)),
        };
        Box::pin(self.fetch(true, message))
    }

    fn shared_memory_status<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<SharedMemoryRegion>>> {
        let path = format!("{}/status", regions(SYSTEM_MEMORY, name));
        Box::pin(self.fetch(true, Message::get(path)))
    }

    fn register_shared_memory<'a>(&'a self, region: &'a SharedMemoryRegion) -> BoxFuture<'a, Result<()>> {
        let path = format!("{}/register", regions(SYSTEM_MEMORY, Some(&region.name)));
        let body = json!({ "key": region.key, "offset": region.offset, "byte_size": region.byte_size });
        Box::pin(self.command(false, path, body))
    }

    fn unregister_shared_memory<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        let path = format!("{}/unregister", regions(SYSTEM_MEMORY, name));
        Box::pin(self.command(true, path, json!({})))
    }

    fn trace_settings<'a>(
        &'a self,
        model: Option<&'a str>,
        changes: &'a TraceSettings,
    ) -> BoxFuture<'a, Result<TraceSettings>> {
        Box::pin(async move {
            let path = match model {
                None => "/v2/trace/setting".to_owned(),
                Some(name) => format!("/v2/models/{}/trace/setting", encoded(name)),
            };
            let message = match changes.is_empty() {
                true => Message::get(path),
                false => Message::post(path, &json::trace_changes(changes)),
            };
            let settings: BTreeMap<String, json::TraceSetting> = self.fetch(true, message).await?;
            let settings = settings.into_iter();
            Ok(settings.map(|(name, value)| (name, value.into())).collect())
        })
    }

    fn cuda_memory_status<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<CudaMemoryRegion>>> {
        let path = format!("{}/status", regions(CUDA_MEMORY, name));
        Box::pin(self.fetch(true, Message::get(path)))
    }

    fn register_cuda_memory<'a>(
        &'a self,
        region: &'a CudaMemoryRegion,
        handle: &'a Bytes,
    ) -> BoxFuture<'a, Result<()>> {
        let path = format!("{}/register", regions(CUDA_MEMORY, Some(&region.name)));
        let handle = STANDARD.encode(handle);
        let body = json!({
            "raw_handle": { "b64": handle },
            "device_id": region.device_id,
            "byte_size": region.byte_size,
        });
        Box::pin(self.command(false, path, body))
    }

    fn unregister_cuda_memory<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        let path = format!("{}/unregister", regions(CUDA_MEMORY, name));
        Box::pin(self.command(true, path, json!({})))
    }
}

/// Path segments of the two kinds of shared memory.
const SYSTEM_MEMORY: &str = "systemsharedmemory";
const CUDA_MEMORY: &str = "cudasharedmemory";

/// Returns the path of a shared memory region, or of all regions.
fn regions(kind: &str, name: Option<&str>) -> String {
    match name {
        None => format!("/v2/{kind}"),
        Some(name) => format!("/v2/{kind}/region/{}", encoded(name)),
    }
}
