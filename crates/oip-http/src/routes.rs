//! The router: every path with its handler.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{Method, StatusCode, Uri},
    response::Response,
    routing::{MethodRouter, any, get, post},
};
use oip_service::{Grant, InferenceService, Readiness, extensions::offered};
use oip_types::{
    ErrorCode, ModelRef, ServiceError,
    rest::{error_body, json_body},
};
use serde_json::json;

use crate::{
    HttpConfig,
    answer::{self, respond},
    app::App,
    description,
    entrance::Entrance,
    extensions,
    generate::{generate, generate_stream},
    infer::infer,
    leased::mark,
    missing::{check_ready, with_names},
    path::{PathParams, with_model},
    text, v1,
};

/// Creates the REST API of a service.
///
/// Paths may end in a slash. Every failed request, on any path and with any method, gets a JSON object with a
/// string `error`.
pub fn router(service: Arc<dyn InferenceService>, config: HttpConfig) -> Router {
    router_with(service, config, Router::new())
}

/// Creates the REST API with additional routes `more`. The rules for heads, unknown paths and wrong methods
/// apply to them too.
///
/// # Panics
/// When `more` has a fallback, or a path of the protocol.
pub fn router_with(service: Arc<dyn InferenceService>, config: HttpConfig, more: Router) -> Router {
    routed(App::new(service, config), more)
}

/// Creates only the routes under `/v1` and `/v2`, without a fallback, to be merged into a program's router
/// with its own fallback and pages.
///
/// ```
/// use std::sync::Arc;
/// use axum::{Router, http::StatusCode, routing::get};
/// # fn with(service: Arc<dyn oip_service::InferenceService>) -> Router {
/// Router::new()
///     .route("/docs", get(|| async { "the program's" }))
///     .merge(oip_http::protocol_routes(service, oip_http::HttpConfig::default()))
///     .fallback(|| async { (StatusCode::NOT_FOUND, "nothing here") })
/// # }
/// ```
pub fn protocol_routes(service: Arc<dyn InferenceService>, config: HttpConfig) -> Router {
    let app = App::new(service, config);
    let entrance = Entrance::new(app.config.clone());
    let is_protocol = |path: &str| ["/v1", "/v2"].iter().any(|root| path.starts_with(root));
    with_routes(Router::new(), is_protocol)
        .method_not_allowed_fallback(method_not_allowed)
        .route_layer(entrance)
        .with_state(app)
}

/// Creates a router of everything and `more`.
pub(crate) fn routed(app: App, more: Router) -> Router {
    let config = app.config.clone();
    with_routes(Router::new().merge(more.with_state(())), |_| true)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(Entrance::new(config))
        .with_state(app)
}

/// Adds the selected paths, with and without a trailing slash.
fn with_routes(mut router: Router<App>, is_wanted: impl Fn(&str) -> bool) -> Router<App> {
    // In V1 paths the verb is in the same segment as the model's name.
    let v1 = [
        ("/v1/models", get(extensions::models_v1)),
        ("/v1/models/{model}", any(v1::model)),
        ("/v1/models/{model}/versions/{version}", any(v1::model)),
    ];
    let v1 = v1.map(|(path, handler)| (path.to_owned(), handler));
    let all = routes().into_iter().chain(v1);
    for (path, handler) in all.filter(|(path, _)| is_wanted(path)) {
        router = router
            .route(&format!("{path}/"), handler.clone())
            .route(&path, handler);
    }
    router
}

/// Returns every path, with parameters in braces and without the trailing-slash variant.
pub fn paths() -> impl Iterator<Item = String> {
    let v1 = [
        "/v1/models",
        "/v1/models/{model}",
        "/v1/models/{model}:predict",
        "/v1/models/{model}/versions/{version}",
        "/v1/models/{model}/versions/{version}:predict",
    ];
    let paths = routes().into_iter().map(|(path, _)| path);
    paths.chain(v1.map(str::to_owned))
}

/// Returns every path with its handler.
pub(crate) fn routes() -> Vec<(String, MethodRouter<App>)> {
    let server: [(&str, MethodRouter<App>); 23] = [
        ("/openapi.json", get(description::openapi)),
        ("/docs", get(description::page)),
        ("/v2", get(server_metadata)),
        ("/v2/health/live", get(server_live)),
        ("/v2/health/ready", get(server_ready)),
        // Paths of platforms: the Kubernetes convention, and SageMaker.
        ("/livez", get(server_live)),
        ("/readyz", get(server_ready)),
        ("/ping", get(server_ready)),
        ("/v2/models", get(extensions::models)),
        // A model of this name is not reachable here; Triton behaves the same.
        ("/v2/models/stats", get(extensions::all_statistics)),
        ("/v2/repository/index", post(extensions::repository_index)),
        (
            "/v2/repository/{repository}/index",
            post(extensions::named_repository),
        ),
        (
            "/v2/repository/models/{model}/load",
            get(extensions::may_change).post(extensions::load),
        ),
        (
            "/v2/repository/models/{model}/unload",
            get(extensions::may_change).post(extensions::unload),
        ),
        (
            "/v2/repository/{repository}/models/{model}/load",
            post(extensions::named_repository),
        ),
        (
            "/v2/repository/{repository}/models/{model}/unload",
            post(extensions::named_repository),
        ),
        (
            "/v2/logging",
            get(extensions::log_settings).post(extensions::change_log_settings),
        ),
        (
            "/v2/trace/setting",
            get(extensions::trace_settings).post(extensions::trace_settings),
        ),
        ("/v2/systemsharedmemory/status", get(extensions::all_regions)),
        (
            "/v2/systemsharedmemory/region/{region}/status",
            get(extensions::region_status),
        ),
        (
            "/v2/systemsharedmemory/region/{region}/register",
            post(extensions::register_region),
        ),
        (
            "/v2/systemsharedmemory/region/{region}/unregister",
            post(extensions::unregister_region),
        ),
        (
            "/v2/systemsharedmemory/unregister",
            post(extensions::unregister_all_regions),
        ),
    ];
    let cuda = [
        ("/v2/cudasharedmemory/status", get(extensions::cuda_shared_memory)),
        (
            "/v2/cudasharedmemory/region/{region}/status",
            get(extensions::cuda_shared_memory),
        ),
        (
            "/v2/cudasharedmemory/region/{region}/register",
            post(extensions::cuda_shared_memory),
        ),
        (
            "/v2/cudasharedmemory/region/{region}/unregister",
            post(extensions::cuda_shared_memory),
        ),
        (
            "/v2/cudasharedmemory/unregister",
            post(extensions::cuda_shared_memory),
        ),
        (
            "/v2/models/{model}/trace/setting",
            get(extensions::trace_settings).post(extensions::trace_settings),
        ),
    ];
    let texts = [
        ("/v1/embeddings", post(text::openai::embeddings)),
        ("/v1/rerank", post(text::cohere::rerank)),
        ("/embed", post(text::tei::embed)),
        ("/rerank", post(text::tei::rerank)),
        ("/predict", post(text::tei::predict)),
    ];
    let models = [
        ("", get(model_metadata)),
        ("/ready", get(model_ready)),
        ("/infer", post(model_infer)),
        ("/generate", post(generate)),
        ("/generate_stream", post(generate_stream)),
        ("/config", get(extensions::model_config)),
        ("/example", get(extensions::model_example)),
        ("/stats", get(extensions::model_statistics)),
    ];
    let models = models.into_iter().flat_map(|(path, handler)| {
        let prefixes = ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"];
        prefixes.map(|prefix| (format!("{prefix}{path}"), handler.clone()))
    });
    let server = server
        .into_iter()
        .chain(cuda)
        .chain(texts)
        .map(|(path, handler)| (path.to_owned(), handler));
    server.chain(models).collect()
}

async fn server_metadata(State(app): State<App>) -> Response {
    let mut metadata = app.service.server_metadata();
    metadata.extensions = offered(&*app.service);
    answer::json(StatusCode::OK, json_body(&metadata))
}

async fn server_live() -> Response {
    answer::json(StatusCode::OK, json_body(&json!({ "live": true })))
}

/// Also reports that it is live: the specification's example shows that, while clients look for "ready".
async fn server_ready(State(app): State<App>) -> Response {
    match app.service.readiness() {
        Readiness::Ready => answer::json(StatusCode::OK, json_body(&json!({ "live": true, "ready": true }))),
        Readiness::NotReady(reason) => {
            let error = ServiceError::new(ErrorCode::Unavailable, reason);
            let body = json!({ "live": true, "ready": false, "error": error.message() });
            let mut response = answer::json(StatusCode::SERVICE_UNAVAILABLE, json_body(&body));
            answer::retry_later(&mut response, &error);
            response
        }
    }
}

async fn model_metadata(
    State(app): State<App>,
    grant: Option<Extension<Grant>>,
    path: PathParams,
) -> Response {
    let answered = async {
        let (name, version) = owned_names(path)?;
        let model = ModelRef::new(&name, version.as_deref())?;
        match app.service.model_metadata(model) {
            Ok(metadata) => Ok(answer::json(StatusCode::OK, json_body(&*metadata))),
            Err(error) => Err(with_names(&app, model, grant.map(|Extension(grant)| grant), error).await),
        }
    };
    respond(answered.await)
}

/// Copies model and version from a path, to be kept across an await.
fn owned_names(path: PathParams) -> Result<(String, Option<String>), ServiceError> {
    with_model(path, |model| {
        Ok((model.name().to_owned(), model.version().map(str::to_owned)))
    })
}

async fn model_ready(State(app): State<App>, path: PathParams) -> Response {
    let answer = with_model(path, |model| match app.service.model_ready(model) {
        Ok(()) => {
            let body = json!({ "name": model.name(), "ready": true });
            Ok(answer::json(StatusCode::OK, json_body(&body)))
        }
        Err(error) if error.code() == ErrorCode::Unavailable => {
            let body = json!({ "name": model.name(), "ready": false, "error": error.message() });
            let mut response = answer::json(StatusCode::SERVICE_UNAVAILABLE, json_body(&body));
            answer::retry_later(&mut response, &error);
            Ok(response)
        }
        Err(error) => Err(error),
    });
    respond(answer)
}

async fn model_infer(State(app): State<App>, path: PathParams, request: Request) -> Response {
    let names = owned_names(path);
    let answered = async {
        let (name, version) = names?;
        let model = ModelRef::new(&name, version.as_deref())?;
        // Do not read a body for an unknown model.
        let grant = request.extensions().get::<Grant>().cloned();
        check_ready(&app, model, grant).await?;
        infer(app, model, request).await
    };
    respond(answered.await.map(mark))
}

async fn not_found() -> Response {
    answer::error(&ServiceError::new(ErrorCode::NotFound, "Not Found"))
}

/// Rejects a method: every path supports GET or POST, so the other one is meant.
async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let is_get = method == Method::GET || method == Method::HEAD;
    let message = match is_get && uri.path().starts_with("/v2/") {
        true => "Method Not Allowed: this path takes POST",
        false => "Method Not Allowed",
    };
    answer::json(
        StatusCode::METHOD_NOT_ALLOWED,
        error_body(&ServiceError::invalid(message)),
    )
}
