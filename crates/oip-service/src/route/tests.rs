//! Tests which action and which names are parsed from each path.

use proptest::prelude::*;

use super::{calls::CALLS, *};

/// A row: method, path, action, model, version, change, name in metrics.
type Row<'a> = (
    &'a str,
    &'a str,
    Action,
    Option<&'a str>,
    Option<&'a str>,
    Option<&'a str>,
    &'a str,
);

const INFER: &str = "/v2/models/{model}/infer";
const PREDICT: &str = "/v1/models/{model}:predict";
const OTHER: &str = "other";

#[rustfmt::skip]
const TABLE: &[Row<'static>] = &[
    ("POST", "/v2/models/m/infer", Action::Infer, Some("m"), None, None, INFER),
    ("POST", "/v2/models/m/infer/", Action::Infer, Some("m"), None, None, INFER),
    ("POST", "/v2/models/m/versions/3/infer", Action::Infer, Some("m"), Some("3"), None, INFER),
    ("GET", "/v2/models/versions/infer", Action::Infer, Some("versions"), None, None, INFER),
    ("POST", "/v2/models/infer/infer", Action::Infer, Some("infer"), None, None, INFER),
    ("POST", "/v2/models/%6d%20x/infer", Action::Infer, Some("m x"), None, None, INFER),
    ("POST", "/v2/models/m%2Fn/infer", Action::Infer, Some("m/n"), None, None, INFER),
    ("POST", "/v2/models/m%2fn/versions/%33/infer", Action::Infer, Some("m/n"), Some("3"), None, INFER),
    ("POST", "/v2/models/m/generate", Action::Generate, Some("m"), None, None, "/v2/models/{model}/generate"),
    ("POST", "/v2/models/m/versions/1/generate_stream", Action::GenerateStream, Some("m"), Some("1"), None, "/v2/models/{model}/generate_stream"),
    ("POST", "/v1/models/m:predict", Action::PredictV1, Some("m"), None, None, PREDICT),
    ("POST", "/v1/models/m/versions/3:predict", Action::PredictV1, Some("m"), Some("3"), None, PREDICT),
    // Names are decoded before the verb is split off.
    ("POST", "/v1/models/m%3Apredict", Action::PredictV1, Some("m"), None, None, PREDICT),
    ("POST", "/v1/models/m:p%72edict/", Action::PredictV1, Some("m"), None, None, PREDICT),
    ("POST", "/v1/models/m/versions/3%3Apredict", Action::PredictV1, Some("m"), Some("3"), None, PREDICT),
    ("POST", "/v1/models/m:predict:predict", Action::PredictV1, Some("m:predict"), None, None, PREDICT),
    ("GET", "/v1/models/m", Action::ModelReadyV1, Some("m"), None, None, "/v1/models/{model}"),
    ("GET", "/v1/models/m:predicts", Action::ModelReadyV1, Some("m:predicts"), None, None, "/v1/models/{model}"),
    ("GET", "/v1/models/m:predict/versions/3", Action::ModelReadyV1, Some("m:predict"), Some("3"), None, "/v1/models/{model}"),
    ("GET", "/v1/models", Action::ModelsV1, None, None, None, "/v1/models"),
    ("POST", "/v1/embeddings", Action::Embeddings, None, None, None, "/v1/embeddings"),
    ("POST", "/v1/rerank", Action::Rerank, None, None, None, "/v1/rerank"),
    ("POST", "/embed", Action::TeiEmbed, None, None, None, "/embed"),
    ("POST", "/rerank/", Action::TeiRerank, None, None, None, "/rerank"),
    ("POST", "/predict", Action::TeiPredict, None, None, None, "/predict"),
    ("GET", "/v2", Action::ServerMetadata, None, None, None, "/v2"),
    ("GET", "/v2/", Action::ServerMetadata, None, None, None, "/v2"),
    ("GET", "/v2/health/live", Action::ServerLive, None, None, None, "/v2/health/live"),
    ("GET", "/livez", Action::ServerLive, None, None, None, "/v2/health/live"),
    ("HEAD", "/v2/health/ready/", Action::ServerReady, None, None, None, "/v2/health/ready"),
    ("GET", "/readyz", Action::ServerReady, None, None, None, "/v2/health/ready"),
    ("GET", "/ping", Action::ServerReady, None, None, None, "/v2/health/ready"),
    ("GET", "/v2/models", Action::Models, None, None, None, "/v2/models"),
    ("GET", "/v2/models/stats", Action::AllStatistics, None, None, None, "/v2/models/stats"),
    ("GET", "/v2/models/%73tats", Action::ModelMetadata, Some("stats"), None, None, "/v2/models/{model}"),
    ("GET", "/v2/models/m", Action::ModelMetadata, Some("m"), None, None, "/v2/models/{model}"),
    ("GET", "/v2/models/m/versions/ready", Action::ModelMetadata, Some("m"), Some("ready"), None, "/v2/models/{model}"),
    ("POST", "/v2/models/m/versions/infer", Action::ModelMetadata, Some("m"), Some("infer"), None, "/v2/models/{model}"),
    ("GET", "/v2/models/m/ready", Action::ModelReady, Some("m"), None, None, "/v2/models/{model}/ready"),
    ("GET", "/v2/models/m/versions/1/config", Action::ModelConfig, Some("m"), Some("1"), None, "/v2/models/{model}/config"),
    ("GET", "/v2/models/m/example", Action::ModelExample, Some("m"), None, None, "/v2/models/{model}/example"),
    ("GET", "/v2/models/m/stats", Action::ModelStatistics, Some("m"), None, None, "/v2/models/{model}/stats"),
    ("POST", "/v2/repository/index", Action::RepositoryIndex, None, None, None, "/v2/repository/index"),
    ("POST", "/v2/repository/models/index", Action::RepositoryIndex, None, None, None, "/v2/repository/index"),
    ("POST", "/v2/repository/models/m/load", Action::RepositoryLoad, Some("m"), None, Some("load"), "/v2/repository/models/{model}/load"),
    ("GET", "/v2/repository/models/m/load", Action::RepositoryLoad, Some("m"), None, Some("load"), "/v2/repository/models/{model}/load"),
    ("PUT", "/v2/repository/r/models/m/unload", Action::RepositoryUnload, Some("m"), None, Some("unload"), "/v2/repository/models/{model}/unload"),
    ("GET", "/v2/logging", Action::LogSettings, None, None, None, "/v2/logging"),
    ("POST", "/v2/logging", Action::LogSettings, None, None, Some("log settings"), "/v2/logging"),
    ("GET", "/v2/trace/setting", Action::TraceSettings, None, None, None, "/v2/trace/setting"),
    ("POST", "/v2/models/m/trace/setting", Action::TraceSettings, Some("m"), None, Some("trace settings"), "/v2/trace/setting"),
    ("GET", "/v2/systemsharedmemory/status", Action::SystemMemoryStatus, None, None, None, "/v2/systemsharedmemory"),
    ("GET", "/v2/systemsharedmemory/region/r/status", Action::SystemMemoryStatus, None, None, None, "/v2/systemsharedmemory"),
    ("POST", "/v2/systemsharedmemory/region/r/register", Action::SystemMemoryRegister, None, None, Some("register shared memory"), "/v2/systemsharedmemory"),
    ("POST", "/v2/systemsharedmemory/unregister", Action::SystemMemoryUnregister, None, None, Some("unregister shared memory"), "/v2/systemsharedmemory"),
    ("OPTIONS", "/v2/cudasharedmemory/region/r/unregister", Action::CudaMemoryUnregister, None, None, Some("unregister shared memory"), "/v2/cudasharedmemory"),
    ("POST", "/v2/cudasharedmemory/region/r/register", Action::CudaMemoryRegister, None, None, Some("register shared memory"), "/v2/cudasharedmemory"),
    ("GET", "/v2/cudasharedmemory/status", Action::CudaMemoryStatus, None, None, None, "/v2/cudasharedmemory"),
    ("POST", "/v2/connectionsharedmemory/register", Action::ConnectionMemoryRegister, None, None, None, "/v2/connectionsharedmemory"),
    ("GET", "/openapi.json", Action::ApiDescription, None, None, None, "/openapi.json"),
    ("GET", "/docs", Action::Page, None, None, None, "/docs"),
    ("GET", "/", Action::Page, None, None, None, "/"),
    ("GET", "/console/page.js", Action::Page, None, None, None, "/console"),
    ("GET", "/console/log", Action::ConsoleLog, None, None, None, "/console"),
    ("GET", "/metrics", Action::Metrics, None, None, None, "/metrics"),
    ("GET", "/metrics/", Action::Metrics, None, None, None, "/metrics"),
    // A name may be empty; using it is an error.
    ("GET", "/v2/models//", Action::ModelMetadata, Some(""), None, None, "/v2/models/{model}"),
    ("POST", "/v2/models//infer", Action::Infer, Some(""), None, None, INFER),
    ("POST", "/v2/models/m/versions//infer", Action::Infer, Some("m"), Some(""), None, INFER),
    ("POST", "/v2/repository/models//load", Action::RepositoryLoad, Some(""), None, Some("load"), "/v2/repository/models/{model}/load"),
    ("POST", "/v2/systemsharedmemory/region//unregister", Action::SystemMemoryUnregister, None, None, Some("unregister shared memory"), "/v2/systemsharedmemory"),
    // Names that look like other paths are still parsed as names.
    ("POST", "/v2/models/../infer", Action::Infer, Some(".."), None, None, INFER),
    ("POST", "/v2/models/%2e%2e/infer", Action::Infer, Some(".."), None, None, INFER),
    ("POST", "/v2/models/%252e/infer", Action::Infer, Some("%2e"), None, None, INFER),
    ("POST", "/v2/models/a%2Finfer%2F/infer", Action::Infer, Some("a/infer/"), None, None, INFER),
    ("POST", "/v2/models/m%/infer", Action::Infer, Some("m%"), None, None, INFER),
    ("POST", "/v2/models/m%2/infer", Action::Infer, Some("m%2"), None, None, INFER),
    ("POST", "/v2/models/m%00/infer", Action::Infer, Some("m\0"), None, None, INFER),
    ("POST", "/v2/models/m+n;x=1/infer", Action::Infer, Some("m+n;x=1"), None, None, INFER),
    ("POST", "/v2/models/%ff/infer", Action::Infer, Some("\u{fffd}"), None, None, INFER),
    ("POST", "/v1/models/:predict", Action::PredictV1, Some(""), None, None, PREDICT),
];

/// Paths that no handler serves. Their action is [`Action::Unknown`].
const UNKNOWN_PATHS: &[&str] = &[
    "",
    "*",
    "v2",
    "//",
    "///",
    "//v2",
    "/v2//",
    "/V2",
    "/v3",
    "/v2%2Fmodels",
    "/%76%32/models",
    "/v2//models",
    "/v2/models///",
    "/v2/models/m//infer",
    "/v2/models/m/infer//",
    "/v2/models/m/%69nfer",
    "/v2/models/m/INFER",
    "/v2/models/m/unload",
    "/v2/models/m/infer/infer",
    "/v2/models/m/versions/3/4/infer",
    "/v2/models/m/versions/1/infer/x/y/z",
    "/v2/./models/m/infer",
    "/v2/x/../models/m/infer",
    "/v2/repository/models/m/versions/1/load",
    "/v2/systemsharedmemory/r/register",
    "/v2/connectionsharedmemory/register/",
    "/v1/models/m:predict/x",
    "/console/",
    "/console/other",
    "/console/log/",
    "/infer",
];

#[test]
fn the_meaning_of_each_path() {
    for &(method, path, action, model, version, change, name) in TABLE {
        let route = Route::of_http(&method.parse().unwrap(), path);
        let found = (route.action(), route.model_name(), route.change(), route.name());
        assert_eq!(found, (action, model, change, name), "{method} {path}");
        assert_eq!(route.params.version.as_deref(), version, "{method} {path}");
    }
    let untested: Vec<_> = PATHS.iter().map(|path| path.action).collect();
    let untested = untested
        .iter()
        .find(|action| TABLE.iter().all(|row| row.2 != **action));
    assert_eq!(untested, None, "has no row");
    let long = "/x".repeat(10_000);
    for path in UNKNOWN_PATHS.iter().chain([&&*long]) {
        let route = Route::of_http(&Method::POST, path);
        assert_eq!(route, UNKNOWN, "{path}");
        assert_eq!(
            (route.api(), route.name(), route.change()),
            (Api::Unknown, OTHER, None)
        );
    }
}

/// Checks that the path made from each pattern matches no earlier pattern in the table.
#[test]
fn each_pattern_is_found_by_its_own_path() {
    for path in PATHS {
        let of_itself = path.pattern.replace(['{', '}'], "");
        let mut found = vec![of_itself.clone()];
        if !path.is_exact {
            found.push(format!("{of_itself}/"));
        }
        for asked in found {
            let route = Route::of_http(&Method::GET, &asked);
            assert_eq!(route.pattern(), path.pattern, "{asked}");
            assert_ne!((route.api(), route.name()), (Api::Unknown, OTHER), "{asked}");
        }
    }
}

#[test]
fn models_are_checked() {
    let model = |path: &str| {
        let route = Route::of_http(&Method::POST, path);
        let model = route.model().map_err(|error| error.message().to_owned());
        model.map(|model| (model.name().to_owned(), model.version().map(str::to_owned)))
    };
    assert_eq!(model("/v2/models/m/infer"), Ok(("m".to_owned(), None)));
    let versioned = Ok(("m n".to_owned(), Some("3".to_owned())));
    assert_eq!(model("/v1/models/m%20n/versions/3:predict"), versioned);
    // An empty version selects the default version.
    assert_eq!(
        model("/v1/models/m/versions/:predict"),
        Ok(("m".to_owned(), None))
    );
    for path in [
        "/v2/models/%ff/infer",
        "/v2/models/m/versions/%c0%ae/infer",
        "/v1/models/%e2%82:predict",
    ] {
        assert_eq!(model(path), Err("the path is not UTF-8".to_owned()), "{path}");
    }
    for path in [
        "/v2/models/m%2Fn/infer",
        "/v2/models/%2e%2e/infer",
        "/v1/models/:predict",
        "/v2",
    ] {
        assert!(model(path).is_err(), "{path}");
    }
    let region = |path: &str| {
        Route::of_http(&Method::POST, path)
            .region()
            .map(str::to_owned)
            .ok()
    };
    assert_eq!(
        region("/v2/systemsharedmemory/region/a%2fb/register").as_deref(),
        Some("a/b")
    );
    assert_eq!(region("/v2/systemsharedmemory/unregister").as_deref(), Some(""));
    assert_eq!(region("/v2/systemsharedmemory/region/%ff/unregister"), None);
    let named = Route::of_http(&Method::POST, "/v2/repository/r/models/m/load");
    assert_eq!(named.repository().ok(), Some("r"));
}

#[test]
fn each_grpc_method_has_a_route() {
    let definition = include_str!("../../../../proto/inference.proto");
    let defined = definition
        .lines()
        .filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next());
    let mut defined: Vec<&str> = defined.collect();
    let mut known: Vec<&str> = CALLS.iter().map(|call| call.0).collect();
    defined.sort_unstable();
    known.sort_unstable();
    assert_eq!(defined, known);
    for name in defined {
        let route = Route::of_grpc(&format!("/inference.GRPCInferenceService/{name}"));
        assert_eq!(route.name(), name);
        assert_ne!(route.api(), Api::Unknown, "{name}");
        assert_eq!(route.action().is_inference(), name.ends_with("Infer"), "{name}");
    }
    for (path, api, change, name) in [
        (
            "/inference.GRPCInferenceService/RepositoryModelLoad",
            Api::Repository,
            Some("load"),
            "RepositoryModelLoad",
        ),
        (
            "/inference.GRPCInferenceService/LogSettings",
            Api::Logging,
            Some("log settings"),
            "LogSettings",
        ),
        ("/grpc.health.v1.Health/Check", Api::Health, None, "Health/Check"),
        ("/grpc.health.v1.Health/Watch", Api::Health, None, "Health/Watch"),
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            Api::Metadata,
            None,
            "ServerReflection",
        ),
        (
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            Api::Metadata,
            None,
            "ServerReflection",
        ),
        (
            "/inference.GRPCInferenceService/Nothing",
            Api::Unknown,
            None,
            OTHER,
        ),
        (
            "/inference.GRPCInferenceService/ModelInfer/",
            Api::Unknown,
            None,
            OTHER,
        ),
        (
            "/inference.GRPCInferenceService/Model%49nfer",
            Api::Unknown,
            None,
            OTHER,
        ),
        ("/inference.GRPCInferenceService", Api::Unknown, None, OTHER),
        ("/v2/models/m/infer", Api::Unknown, None, OTHER),
        ("", Api::Unknown, None, OTHER),
    ] {
        let route = Route::of_grpc(path);
        assert_eq!(
            (route.api(), route.change(), route.name()),
            (api, change, name),
            "{path}"
        );
    }
}

#[test]
fn the_outermost_layer_decides() {
    let mut request = Request::post("/v2/models/a/infer").body(()).unwrap();
    assert_eq!(Route::of(&request), &UNKNOWN);
    Route::read_http(&mut request);
    // An inner layer rewrites the path.
    *request.uri_mut() = "/v2/repository/models/b/unload".parse().unwrap();
    Route::read_http(&mut request);
    Route::read_grpc(&mut request);
    assert_eq!(Route::of(&request).model_name(), Some("a"));
    assert_eq!(Route::take(&mut request).action(), Action::Infer);
    assert_eq!(Route::take(&mut request), UNKNOWN);
}

proptest! {
    /// A name may consist of any characters. It is decoded exactly once.
    #[test]
    fn any_name_is_read_as_it_was_encoded(name in "\\PC{1,12}", version in "[a-z0-9%/.: ]{1,6}", plain in any::<bool>()) {
        let encode = |text: &str| -> String {
            let bytes = text.bytes();
            let kept = |byte: u8| plain && byte.is_ascii_alphanumeric();
            bytes.map(|byte| if kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }).collect()
        };
        let (model, of) = (encode(&name), encode(&version));
        for path in [format!("/v2/models/{model}/versions/{of}/infer"), format!("/v1/models/{model}/versions/{of}:predict/")] {
            let route = Route::of_http(&Method::POST, &path);
            prop_assert!(route.action().is_inference());
            prop_assert_eq!(route.model_name(), Some(&*name));
            prop_assert_eq!(route.params.version.as_deref(), Some(&*version));
            prop_assert!(!route.params.is_not_utf8);
        }
    }

    /// Metric labels come only from the tables, never from the client's path.
    #[test]
    fn names_hold_nothing_of_the_client(path in "(/[a-z0-9%.:]{0,12}){0,9}") {
        let name = Route::of_http(&Method::GET, &path).name();
        let known = PATHS.iter().any(|path| path.name() == name);
        prop_assert!(known || name == OTHER, "{}", name);
    }
}
