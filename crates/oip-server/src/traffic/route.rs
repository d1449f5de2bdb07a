//! Route names of bounded cardinality.

/// The route of a request, without anything a client can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// A path with parameters in braces, or a gRPC method name.
    pub(crate) name: &'static str,
    /// Whether it runs a model.
    pub(crate) is_inference: bool,
}

/// The name of all unknown routes.
pub(crate) const OTHER: &str = "other";

const fn route(name: &'static str) -> Route {
    Route {
        name,
        is_inference: false,
    }
}

const fn inference(name: &'static str) -> Route {
    Route {
        name,
        is_inference: true,
    }
}

/// Returns the route of an HTTP path.
pub(crate) fn of_http(path: &str) -> Route {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    // Fast path for nearly all requests.
    let inferred = path
        .strip_prefix("v2/models/")
        .and_then(|rest| rest.strip_suffix("/infer"));
    if inferred.is_some_and(|model| !model.contains('/')) {
        return of_model(&["infer"]);
    }
    let mut parts = [""; 7];
    let mut count = 0;
    for part in path.split('/') {
        let Some(slot) = parts.get_mut(count) else {
            return route(OTHER);
        };
        *slot = part;
        count += 1;
    }
    match parts[..count] {
        [""] => route("/"),
        ["v2"] => route("/v2"),
        ["v2", "health", "live"] | ["livez"] => route("/v2/health/live"),
        ["v2", "health", "ready"] | ["readyz" | "ping"] => route("/v2/health/ready"),
        ["metrics"] => route("/metrics"),
        ["openapi.json"] => route("/openapi.json"),
        ["docs"] => route("/docs"),
        ["v2", "models"] => route("/v2/models"),
        ["v2", "models", "stats"] => route("/v2/models/stats"),
        ["v2", "models", _, ref rest @ ..] => of_model(rest),
        ["v1", "models"] => route("/v1/models"),
        ["v1", "embeddings"] => inference("/v1/embeddings"),
        ["v1", "rerank"] => inference("/v1/rerank"),
        ["embed"] => inference("/embed"),
        ["rerank"] => inference("/rerank"),
        ["predict"] => inference("/predict"),
        ["v1", "models", last] | ["v1", "models", _, "versions", last] => {
            if last.ends_with(":predict") {
                inference("/v1/models/{model}:predict")
            } else {
                route("/v1/models/{model}")
            }
        }
        ["v2", "repository", "index"] | ["v2", "repository", _, "index"] => route("/v2/repository/index"),
        ["v2", "repository", "models", _, "load"] | ["v2", "repository", _, "models", _, "load"] => {
            route("/v2/repository/models/{model}/load")
        }
        ["v2", "repository", "models", _, "unload"] | ["v2", "repository", _, "models", _, "unload"] => {
            route("/v2/repository/models/{model}/unload")
        }
        ["v2", "logging"] => route("/v2/logging"),
        ["v2", "trace", "setting"] => route("/v2/trace/setting"),
        ["v2", "systemsharedmemory", ..] => route("/v2/systemsharedmemory"),
        ["v2", "connectionsharedmemory", ..] => route("/v2/connectionsharedmemory"),
        ["v2", "cudasharedmemory", ..] => route("/v2/cudasharedmemory"),
        ["console", ..] => route("/console"),
        _ => route(OTHER),
    }
}

/// Returns the route of a model, for any version.
fn of_model(rest: &[&str]) -> Route {
    let rest = if let ["versions", _, rest @ ..] = rest {
        rest
    } else {
        rest
    };
    match rest {
        [] => route("/v2/models/{model}"),
        ["ready"] => route("/v2/models/{model}/ready"),
        ["infer"] => inference("/v2/models/{model}/infer"),
        ["generate"] => inference("/v2/models/{model}/generate"),
        ["generate_stream"] => inference("/v2/models/{model}/generate_stream"),
        ["config"] => route("/v2/models/{model}/config"),
        ["example"] => route("/v2/models/{model}/example"),
        ["stats"] => route("/v2/models/{model}/stats"),
        ["trace", "setting"] => route("/v2/trace/setting"),
        _ => route(OTHER),
    }
}

/// The protocol's gRPC methods.
const CALLS: [&str; 21] = [
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelStreamInfer",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "ConnectionSharedMemoryRegister",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
];

/// Returns the route of a gRPC path.
pub(crate) fn of_grpc(path: &str) -> Route {
    if let Some(call) = path.strip_prefix("/inference.GRPCInferenceService/") {
        let call = CALLS.into_iter().find(|known| *known == call);
        return match call {
            Some(call @ ("ModelInfer" | "ModelStreamInfer")) => inference(call),
            Some(call) => route(call),
            None => route(OTHER),
        };
    }
    match path {
        "/grpc.health.v1.Health/Check" => route("Health/Check"),
        "/grpc.health.v1.Health/Watch" => route("Health/Watch"),
        path if path.starts_with("/grpc.reflection.") => route("ServerReflection"),
        _ => route(OTHER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_route_and_inference_is_known() {
        for path in oip_http::paths() {
            let asked = path
                .replace("{model}", "m%2F")
                .replace("{version}", "3")
                .replace("{region}", "r")
                .replace("{repository}", "x");
            for asked in [format!("{asked}/"), asked] {
                let route = of_http(&asked);
                assert_ne!(route.name, OTHER, "{path}");
                let ends = ["/infer", "/generate", "/generate_stream", ":predict"];
                let of_texts = ["/embed", "/embeddings", "/rerank", "/predict"];
                let is_inference = ends.iter().chain(&of_texts).any(|end| path.ends_with(end));
                assert_eq!(route.is_inference, is_inference, "{path}");
            }
        }
        for path in ["/metrics", "/"] {
            assert_ne!(of_http(path).name, OTHER, "{path}");
        }
        let long = "/x".repeat(10_000);
        for path in ["/v3", "/v2/models/m/n", "/infer", "*", "///", &long] {
            assert_eq!(of_http(path), route(OTHER), "{path}");
        }
    }

    #[test]
    fn every_call_has_a_route() {
        let definition = include_str!("../../../../proto/inference.proto");
        let calls: Vec<&str> = definition
            .lines()
            .filter_map(|line| line.trim().strip_prefix("rpc "))
            .filter_map(|line| line.split(['(', ' ']).next())
            .collect();
        assert_eq!(calls.len(), CALLS.len());
        for call in calls {
            let route = of_grpc(&format!("/inference.GRPCInferenceService/{call}"));
            assert_eq!(route.name, call);
            assert_eq!(route.is_inference, call.ends_with("Infer"), "{call}");
        }
        assert_eq!(of_grpc("/inference.GRPCInferenceService/Model").name, OTHER);
        assert_eq!(of_grpc("/x").name, OTHER);
    }
}
