//! Classifies a request by its head: the API, the model, and whether it changes state.

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;

/// A group of protocol calls that access rights refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Api {
    /// Liveness and readiness of the server and its models.
    Health,
    /// Metadata of the server and its models.
    Metadata,
    /// Model configurations.
    ModelConfig,
    /// Running models.
    Inference,
    /// The model list; loading and unloading.
    Repository,
    /// Statistics of models.
    Statistics,
    /// Log settings and recent log lines.
    Logging,
    /// The trace extension, which is not supported.
    Trace,
    /// Shared memory regions.
    SharedMemory,
    /// Prometheus metrics.
    Metrics,
    /// Static files of the console and the API description. They are public and reveal nothing about the
    /// server: browsers send no token when they open a page.
    Page,
    /// An unknown path.
    Unknown,
}

impl Api {
    /// Every API that can be granted or restricted.
    pub const ALL: [Self; 10] = [
        Self::Health,
        Self::Metadata,
        Self::ModelConfig,
        Self::Inference,
        Self::Repository,
        Self::Statistics,
        Self::Logging,
        Self::Trace,
        Self::SharedMemory,
        Self::Metrics,
    ];

    /// Returns its name, spelled as in Triton where Triton has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metadata => "metadata",
            Self::ModelConfig => "model-config",
            Self::Inference => "inference",
            Self::Repository => "model-repository",
            Self::Statistics => "statistics",
            Self::Logging => "logging",
            Self::Trace => "trace",
            Self::SharedMemory => "shared-memory",
            Self::Metrics => "metrics",
            Self::Page => "page",
            Self::Unknown => "unknown",
        }
    }
}

/// A call as far as a request's head shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call<'a> {
    /// The API.
    pub api: Api,
    /// The model, if the head names it. gRPC messages name it in the body.
    pub model: Option<Cow<'a, str>>,
    /// The state that it changes, if it has lasting effects.
    pub change: Option<&'static str>,
}

impl<'a> Call<'a> {
    fn new(api: Api) -> Self {
        Self {
            api,
            model: None,
            change: None,
        }
    }

    fn changing(self, change: &'static str) -> Self {
        Self {
            change: Some(change),
            ..self
        }
    }

    fn of_model(self, segment: &'a str) -> Self {
        self.of_decoded(percent_decode_str(segment).decode_utf8_lossy())
    }

    fn of_decoded(self, model: Cow<'a, str>) -> Self {
        Self {
            model: Some(model),
            ..self
        }
    }

    /// Classifies an HTTP request. Paths are parsed as the router does: split into segments, then names are
    /// percent-decoded.
    #[must_use]
    pub fn of_http(method: &Method, path: &'a str) -> Self {
        let path = path
            .strip_suffix('/')
            .filter(|rest| !rest.is_empty())
            .unwrap_or(path);
        // Fast path for nearly all requests.
        let inferred = path
            .strip_prefix("/v2/models/")
            .and_then(|rest| rest.strip_suffix("/infer"));
        if let Some(model) = inferred.filter(|model| !model.contains('/')) {
            return Self::new(Api::Inference).of_model(model);
        }
        let mut segments = path.strip_prefix('/').unwrap_or(path).split('/');
        let mut parts = [""; 8];
        for (part, segment) in parts.iter_mut().zip(&mut segments) {
            *part = segment;
        }
        let len = parts
            .iter()
            .rposition(|part| !part.is_empty())
            .map_or(0, |last| last + 1);
        let parts = &parts[..len];
        if segments.next().is_some() {
            return Self::new(Api::Unknown);
        }
        let posts = *method == Method::POST;
        let changing = |api, change| match posts {
            true => Self::new(api).changing(change),
            false => Self::new(api),
        };
        match parts {
            [] | ["docs"] => Self::new(Api::Page),
            ["console", file] if file.contains('.') => Self::new(Api::Page),
            ["openapi.json" | "v2"] | ["v1" | "v2", "models"] => Self::new(Api::Metadata),
            ["console", "log"] => Self::new(Api::Logging),
            ["metrics"] => Self::new(Api::Metrics),
            ["livez" | "readyz" | "healthz" | "ping"] | ["v2", "health", "live" | "ready"] => {
                Self::new(Api::Health)
            }
            // The bodies of text routes name the model. Registering memory for the caller's own connection
            // has no lasting effect and is only used for inference.
            ["invocations" | "embed" | "rerank" | "predict"]
            | ["v1", "embeddings" | "rerank"]
            | ["v2", "connectionsharedmemory", "register"] => Self::new(Api::Inference),
            ["v1", "models", model] => {
                let (model, api) = of_v1(model);
                Self::new(api).of_decoded(model)
            }
            ["v1", "models", model, "versions", version] => {
                let (_, api) = of_v1(version);
                Self::new(api).of_model(model)
            }
            ["v2", "models", "stats"] => Self::new(Api::Statistics),
            ["v2", "models", model] | ["v2", "models", model, "versions", _] => {
                Self::new(Api::Metadata).of_model(model)
            }
            ["v2", "models", model, "trace", "setting"] => {
                changing(Api::Trace, "trace settings").of_model(model)
            }
            ["v2", "models", model, action] | ["v2", "models", model, "versions", _, action] => {
                let api = match *action {
                    "ready" => Api::Health,
                    "example" => Api::Metadata,
                    "infer" | "generate" | "generate_stream" => Api::Inference,
                    "config" => Api::ModelConfig,
                    "stats" => Api::Statistics,
                    _ => Api::Unknown,
                };
                Self::new(api).of_model(model)
            }
            ["v2", "repository", "index"] | ["v2", "repository", _, "index"] => Self::new(Api::Repository),
            ["v2", "repository", "models", model, action]
            | ["v2", "repository", _, "models", model, action] => match *action {
                "load" => Self::new(Api::Repository).changing("load").of_model(model),
                "unload" => Self::new(Api::Repository).changing("unload").of_model(model),
                _ => Self::new(Api::Unknown),
            },
            ["v2", "logging"] => changing(Api::Logging, "log settings"),
            ["v2", "trace", "setting"] => changing(Api::Trace, "trace settings"),
            ["v2", "systemsharedmemory" | "cudasharedmemory", rest @ ..] => match rest.last() {
                Some(&"register") => Self::new(Api::SharedMemory).changing("register shared memory"),
                Some(&"unregister") => Self::new(Api::SharedMemory).changing("unregister shared memory"),
                _ => Self::new(Api::SharedMemory),
            },
            _ => Self::new(Api::Unknown),
        }
    }

    /// Classifies a gRPC request.
    #[must_use]
    pub fn of_grpc(path: &'a str) -> Self {
        let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
            return Self::new(Api::Unknown);
        };
        match (service, method) {
            ("inference.GRPCInferenceService", method) => match method {
                "ServerLive" | "ServerReady" | "ModelReady" => Self::new(Api::Health),
                "ServerMetadata" | "ModelMetadata" => Self::new(Api::Metadata),
                "ModelConfig" => Self::new(Api::ModelConfig),
                // As over HTTP: registering memory for the caller's own connection has no lasting effect and
                // is only used for inference.
                "ModelInfer" | "ModelStreamInfer" | "ConnectionSharedMemoryRegister" => {
                    Self::new(Api::Inference)
                }
                "ModelStatistics" => Self::new(Api::Statistics),
                "RepositoryIndex" => Self::new(Api::Repository),
                "RepositoryModelLoad" => Self::new(Api::Repository).changing("load"),
                "RepositoryModelUnload" => Self::new(Api::Repository).changing("unload"),
                "SystemSharedMemoryStatus" | "CudaSharedMemoryStatus" => Self::new(Api::SharedMemory),
                "SystemSharedMemoryRegister" | "CudaSharedMemoryRegister" => {
                    Self::new(Api::SharedMemory).changing("register shared memory")
                }
                "SystemSharedMemoryUnregister" | "CudaSharedMemoryUnregister" => {
                    Self::new(Api::SharedMemory).changing("unregister shared memory")
                }
                // Only the message shows whether these change anything.
                "TraceSetting" => Self::new(Api::Trace).changing("trace settings"),
                "LogSettings" => Self::new(Api::Logging).changing("log settings"),
                _ => Self::new(Api::Unknown),
            },
            ("grpc.health.v1.Health", _) => Self::new(Api::Health),
            ("grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection", _) => {
                Self::new(Api::Metadata)
            }
            _ => Self::new(Api::Unknown),
        }
    }
}

/// Splits the last segment of a V1 path into the model and the API of its verb. Like the server, it decodes
/// first and then splits at the last colon.
fn of_v1(segment: &str) -> (Cow<'_, str>, Api) {
    let segment = percent_decode_str(segment).decode_utf8_lossy();
    match segment.rsplit_once(':') {
        Some((name, "predict" | "explain")) => (name.to_owned().into(), Api::Inference),
        _ => (segment, Api::Health),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_http() {
        for (method, path, api, model, change) in [
            ("GET", "/", Api::Page, None, None),
            ("GET", "/docs", Api::Page, None, None),
            ("GET", "/openapi.json", Api::Metadata, None, None),
            ("GET", "/v2", Api::Metadata, None, None),
            ("GET", "/v2/", Api::Metadata, None, None),
            ("GET", "/console/page.js", Api::Page, None, None),
            ("GET", "/console/other", Api::Unknown, None, None),
            ("GET", "/console/log", Api::Logging, None, None),
            ("GET", "/metrics", Api::Metrics, None, None),
            ("GET", "/v2/health/ready", Api::Health, None, None),
            ("GET", "/readyz", Api::Health, None, None),
            ("GET", "/v2/models/m", Api::Metadata, Some("m"), None),
            ("GET", "/v2/models/stats", Api::Statistics, None, None),
            (
                "GET",
                "/v2/models/versions/infer",
                Api::Inference,
                Some("versions"),
                None,
            ),
            (
                "POST",
                "/v2/models/%6d%20x/infer",
                Api::Inference,
                Some("m x"),
                None,
            ),
            (
                "POST",
                "/v2/models/m/versions/1/infer/",
                Api::Inference,
                Some("m"),
                None,
            ),
            ("POST", "/v1/models/m:predict", Api::Inference, Some("m"), None),
            (
                "POST",
                "/v1/models/m/versions/3:predict",
                Api::Inference,
                Some("m"),
                None,
            ),
            ("GET", "/v1/models/m/versions/3", Api::Health, Some("m"), None),
            // The router decodes before it looks for the colon.
            ("POST", "/v1/models/m%3Apredict", Api::Inference, Some("m"), None),
            ("POST", "/v1/models/m:p%72edict", Api::Inference, Some("m"), None),
            (
                "POST",
                "/v1/models/m/versions/3%3Apredict",
                Api::Inference,
                Some("m"),
                None,
            ),
            ("GET", "/v2/models/m/config", Api::ModelConfig, Some("m"), None),
            ("GET", "/v2/models/m/ready", Api::Health, Some("m"), None),
            (
                "POST",
                "/v2/models/m/trace/setting",
                Api::Trace,
                Some("m"),
                Some("trace settings"),
            ),
            ("POST", "/v2/repository/index", Api::Repository, None, None),
            (
                "POST",
                "/v2/repository/models/m/load",
                Api::Repository,
                Some("m"),
                Some("load"),
            ),
            (
                "POST",
                "/v2/repository/r/models/m/unload",
                Api::Repository,
                Some("m"),
                Some("unload"),
            ),
            ("GET", "/v2/logging", Api::Logging, None, None),
            ("POST", "/v2/logging", Api::Logging, None, Some("log settings")),
            (
                "GET",
                "/v2/systemsharedmemory/status",
                Api::SharedMemory,
                None,
                None,
            ),
            (
                "POST",
                "/v2/systemsharedmemory/region/r/register",
                Api::SharedMemory,
                None,
                Some("register shared memory"),
            ),
            (
                "POST",
                "/v2/cudasharedmemory/unregister",
                Api::SharedMemory,
                None,
                Some("unregister shared memory"),
            ),
            (
                "POST",
                "/v2/connectionsharedmemory/register",
                Api::Inference,
                None,
                None,
            ),
            ("GET", "/v2/unknown", Api::Unknown, None, None),
            ("GET", "//v2", Api::Unknown, None, None),
            ("GET", "/v2//models", Api::Unknown, None, None),
            (
                "GET",
                "/v2/models/m/versions/1/infer/x/y/z",
                Api::Unknown,
                None,
                None,
            ),
        ] {
            let method = method.parse().unwrap();
            let call = Call::of_http(&method, path);
            assert_eq!(
                (call.api, call.model.as_deref(), call.change),
                (api, model, change),
                "{path}"
            );
        }
    }

    #[test]
    fn paths_of_grpc() {
        let of = |method: &str| {
            let path = format!("/inference.GRPCInferenceService/{method}");
            let call = Call::of_grpc(&path);
            (call.api, call.change)
        };
        assert_eq!(of("ModelInfer"), (Api::Inference, None));
        assert_eq!(of("RepositoryModelLoad"), (Api::Repository, Some("load")));
        assert_eq!(of("LogSettings"), (Api::Logging, Some("log settings")));
        assert_eq!(of("Nothing"), (Api::Unknown, None));
        assert_eq!(Call::of_grpc("/grpc.health.v1.Health/Check").api, Api::Health);
        assert_eq!(Call::of_grpc("").api, Api::Unknown);
    }
}
