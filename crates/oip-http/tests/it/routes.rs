//! Tests that a request runs the action of its route, and that access is decided by the same route.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::RawPathParams,
    http::{Method, Request, StatusCode},
    routing::any,
};
use http_body_util::BodyExt;
use oip_auth::{Door, Gate, Guard, Transport};
use oip_http::{HttpConfig, HttpService};
use oip_model::BoxFuture;
use oip_resources::CpuPool;
use oip_service::{
    InferenceService, ModelConfiguration, ModelRepository, RequestContext,
    oip_types::{
        DataType, ErrorCode, InferRequest, InferResponse, LoadOptions, ModelConfig, ModelIndexEntry,
        ModelMetadata, ModelRef, ServerMetadata, ServiceError, TensorMetadata, UnloadOptions,
    },
    route::{Action, PATHS, Route},
};
use proptest::{collection::vec, prelude::*, sample::select};
use tower::ServiceExt;

use crate::support::send;

/// Records the models that were requested; every model exists.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn record(&self, model: ModelRef<'_>) {
        self.0.lock().unwrap().push(model.name().to_owned());
    }
}

impl InferenceService for Recorder {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("recorder", "1.0")
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.record(model);
        let tensors = vec![TensorMetadata::new("x", DataType::FP32, &[-1])];
        Ok(Arc::new(ModelMetadata::new(
            model.name(),
            "test",
            tensors.clone(),
            tensors,
        )))
    }

    fn infer(
        &self,
        request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        self.record(request.model());
        Box::pin(async { Err(ServiceError::invalid("it only records")) })
    }

    fn repository(&self) -> Option<&dyn ModelRepository> {
        Some(self)
    }

    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        Some(self)
    }
}

impl ModelRepository for Recorder {
    fn index(&self) -> Vec<ModelIndexEntry> {
        Vec::new()
    }

    fn load(&self, model: ModelRef<'_>, _: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        self.record(model);
        Box::pin(async { Ok(()) })
    }

    fn unload(&self, model: ModelRef<'_>, _: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        self.record(model);
        Box::pin(async { Ok(()) })
    }
}

impl ModelConfiguration for Recorder {
    fn model_config(&self, model: ModelRef<'_>) -> Result<Arc<ModelConfig>, ServiceError> {
        self.record(model);
        Err(ServiceError::new(ErrorCode::NotFound, "no configuration"))
    }
}

/// Generates a path segment: a name, encoded in one of several ways.
fn segment() -> impl Strategy<Value = String> {
    let name = vec(
        select(vec![
            "a", "b", ".", "..", "/", "%", "%2F", "%61", ":", ":predict", "infer", "\0", "ä", " ", "~",
        ]),
        0..4,
    );
    let percent = |name: &str, is_kept: fn(u8) -> bool, upper: bool| -> String {
        let bytes = name.bytes().map(|byte| match (is_kept(byte), upper) {
            (true, _) => char::from(byte).to_string(),
            (false, true) => format!("%{byte:02X}"),
            (false, false) => format!("%{byte:02x}"),
        });
        bytes.collect()
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:~".contains(&byte);
    prop_oneof![
        (name.clone(), proptest::bool::ANY).prop_map(move |(name, upper)| percent(
            &name.concat(),
            is_plain,
            upper
        )),
        (name.clone(), proptest::bool::ANY).prop_map(move |(name, upper)| percent(
            &name.concat(),
            |_| false,
            upper
        )),
        // The name is encoded twice.
        name.prop_map(move |name| percent(&percent(&name.concat(), |_| false, true), is_plain, true)),
        // Segments that are not encoded names: invalid escapes and UTF-8, several segments, long names.
        select(vec![
            "a%", "b%2", "%zz", "%ff", "a%c0%ae", "a/b", "a/../b", "..", "", "a?b", "a;b", "a//b"
        ])
        .prop_map(str::to_owned),
        Just("b".repeat(3000)),
    ]
}

/// Returns all literal segments of the paths.
fn words() -> Vec<&'static str> {
    let words = PATHS.iter().flat_map(|path| path.pattern.split('/'));
    let mut words: Vec<_> = words.filter(|word| !word.contains('{')).collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// Generates a known path with names from [`segment`] as parameters, or any sequence of literal segments and
/// such names.
fn path() -> impl Strategy<Value = String> {
    let known = (
        select(PATHS),
        segment(),
        segment(),
        segment(),
        select(vec!["", "/", "//", "/infer"]),
    );
    let known = known.prop_map(|(path, model, version, region, end)| {
        let path = path
            .pattern
            .replace("{model}", &model)
            .replace("{version}", &version);
        let path = path.replace("{region}", &region).replace("{repository}", &region);
        format!("{path}{end}")
    });
    let part = prop_oneof![3 => select(words()).prop_map(str::to_owned), 1 => segment()];
    prop_oneof![
        known,
        vec(part, 0..8).prop_map(|parts| format!("/{}", parts.join("/")))
    ]
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.unwrap().block_on(work)
}

/// Creates a gate in front of the service: every client may do everything with models whose names begin with
/// `a`.
fn gated(service: Arc<Recorder>, folder: &tempfile::TempDir) -> Gate<HttpService, Body> {
    let table = folder.path().join("auth.toml");
    fs::write(&table, "[anonymous]\napis = [\"*\"]\nmodels = [\"a*\"]").unwrap();
    let guard = Guard::with_table(&table, CpuPool::new(1)).unwrap();
    let transport = Transport {
        is_grpc: false,
        refuse: |error, route| oip_http::error_response_to(error, route.action()),
        certificate: |_| Vec::new(),
    };
    let service = oip_http::service(service, HttpConfig::default());
    Gate::new(service, guard, Door::default(), transport)
}

#[test]
fn models_that_run_are_those_that_were_allowed() {
    let (service, folder) = (Arc::new(Recorder::default()), tempfile::tempdir().unwrap());
    let gate = gated(service.clone(), &folder);
    let body = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}"#;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3000));
    let methods = select(vec![Method::GET, Method::POST, Method::HEAD, Method::PUT]);
    let checked = runner.run(&(path(), methods), |(path, method)| {
        let request = Request::builder().method(method).uri(&path).header("host", "x");
        let Ok(request) = request.body(Body::from(body)) else {
            return Ok(());
        };
        let expected = Route::of_http(request.method(), request.uri().path());
        let response = block_on(gate.clone().oneshot(request)).unwrap();
        let asked = std::mem::take(&mut *service.0.lock().unwrap());
        for model in &asked {
            prop_assert!(model.starts_with('a'), "{} reached {}", path, model);
            prop_assert_eq!(Some(&**model), expected.model_name(), "{}", path);
        }
        let is_denied = expected.model_name().is_some_and(|model| !model.starts_with('a'));
        prop_assert_eq!(response.status() == StatusCode::FORBIDDEN, is_denied, "{}", path);
        Ok(())
    });
    checked.unwrap();
    // The gate lets requests for allowed models through, and no others.
    let mut asked = 0;
    for (path, is_reached) in [("/v2/models/a%2Db/infer", true), ("/v2/models/%62/infer", false)] {
        let request = Request::post(path)
            .header("host", "x")
            .body(Body::from(body))
            .unwrap();
        let response = block_on(gate.clone().oneshot(request)).unwrap();
        assert_eq!(response.status() == StatusCode::FORBIDDEN, !is_reached, "{path}");
        asked += service.0.lock().unwrap().len();
    }
    assert!(asked > 0);
}

/// The path is matched twice, by axum (to distinguish it from a program's other routes) and by this crate;
/// both results must be equal.
#[test]
fn axum_finds_the_same_path_and_names() {
    let mut router = Router::new();
    for path in PATHS
        .iter()
        .filter(|path| !path.is_exact && !path.pattern.ends_with(":predict"))
    {
        let answer = move |params: RawPathParams| async move {
            let params = params.iter().map(|(name, value)| format!(" {name}={value}"));
            format!("{}{}", path.pattern, params.collect::<String>())
        };
        router = router
            .route(path.pattern, any(answer))
            .route(&format!("{}/", path.pattern), any(answer));
    }
    proptest!(ProptestConfig::with_cases(5000), |(path in path())| {
        let Ok(request) = Request::get(&path).body(Body::empty()) else {
            return Ok(());
        };
        let route = Route::of_http(&Method::GET, request.uri().path());
        let response = block_on(router.clone().oneshot(request)).unwrap();
        let status = response.status();
        let found = block_on(response.into_body().collect()).unwrap().to_bytes();
        if status != StatusCode::OK {
            // Either the path is not found, or it is found and a name is not UTF-8.
            let is_known = !PATHS.iter().any(|path| path.is_exact && path.pattern == route.pattern())
                && route.action() != Action::Unknown;
            prop_assert_eq!(status == StatusCode::BAD_REQUEST, is_known, "{} {}", path, status);
            prop_assert!(!is_known || route.region().is_err());
            return Ok(());
        }
        let pattern = route.pattern().trim_end_matches(":predict");
        let verb = route.pattern().strip_prefix(pattern).unwrap_or_default();
        let names = [
            ("repository", route.repository().unwrap()),
            ("model", route.model_name().unwrap_or_default()),
            ("version", route.version_name().unwrap_or_default()),
            ("region", route.region().unwrap()),
        ];
        let names = names.iter().filter(|(name, _)| pattern.contains(&format!("{{{name}}}")));
        let names: String = names.map(|(name, value)| format!(" {name}={value}")).collect();
        let expected = format!("{pattern}{names}{verb}");
        prop_assert_eq!(found, expected);
    });
}

/// The request is handled by the route that an outer layer has read, even if the path was rewritten
/// afterwards.
#[tokio::test]
async fn a_path_that_is_rewritten_behind_the_gate_changes_nothing() {
    for (read, rewritten, status, asked) in [
        ("/v2/models/a/infer", "/v2/models/b/infer", 400, Some("a")),
        ("/v2/models/a/ready", "/v2/repository/models/b/unload", 405, None),
        ("/v2/repository/models/a/load", "/v2/models/b", 200, Some("a")),
        ("/elsewhere", "/v2/repository/models/b/unload", 404, None),
        ("/elsewhere", "/v2/models/b/infer", 404, None),
        ("/v2/models/a/ready", "/elsewhere", 404, None),
    ] {
        let service = Arc::new(Recorder::default());
        let mut request = Request::post(read)
            .header("host", "x")
            .body(Body::empty())
            .unwrap();
        Route::read_http(&mut request);
        *request.uri_mut() = rewritten.parse().unwrap();
        let app = oip_http::service(service.clone(), HttpConfig::default());
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{read} {rewritten}");
        let names = service.0.lock().unwrap();
        assert!(
            names.iter().all(|name| Some(&**name) == asked),
            "{read} {rewritten}: {names:?}"
        );
        assert_eq!(names.is_empty(), asked.is_none(), "{read} {rewritten}");
    }
}

/// The router serves the paths in the table, except those listed below, which are served elsewhere.
#[tokio::test]
async fn every_path_of_the_table_is_served() {
    let app = oip_http::service(Arc::new(Recorder::default()), HttpConfig::default());
    let mut elsewhere = Vec::new();
    for path in PATHS {
        let asked = path.pattern.replace(['{', '}'], "");
        let answer = send(&app, Method::OPTIONS, &asked, Body::empty()).await;
        match answer.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                assert!(oip_http::paths().any(|served| served == path.pattern), "{asked}");
            }
            status => {
                assert_eq!(status, StatusCode::NOT_FOUND, "{asked}");
                elsewhere.push(path.pattern);
            }
        }
    }
    let expected = [
        "/metrics",
        "/v2/connectionsharedmemory/register",
        "/",
        "/console/log",
        "/console/{file}.js",
        "/console/{file}.css",
        "/console/{file}.svg",
    ];
    assert_eq!(elsewhere, expected);
}

/// Without an outer layer, the route is read from the path after the prefix.
#[tokio::test]
async fn routes_below_a_prefix() {
    let service = Arc::new(Recorder::default());
    let protocol = oip_http::protocol_routes(service.clone(), HttpConfig::default());
    let app = Router::new().nest("/api", protocol);
    for (path, status) in [
        ("/api/v2/models/a%20b/ready", 200),
        ("/api/v2/models/a/infer", 405),
        ("/v2/models/b/ready", 404),
        ("/api/docs", 404),
    ] {
        let request = Request::get(path)
            .header("host", "x")
            .body(Body::empty())
            .unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
    assert_eq!(*service.0.lock().unwrap(), ["a b"]);
}
