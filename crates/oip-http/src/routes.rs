//! The router: maps every path to its handler.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{Method, StatusCode, Uri},
    response::Response,
    routing::{MethodRouter, any, get, post},
};
use oip_service::{
    Grant, InferenceService, Readiness,
    extensions::offered,
    route::{Action, PATHS, PathPattern, Route},
};
use oip_types::{
    ErrorCode, ServiceError,
    rest::{error_body, json_body},
};
use serde_json::json;
use tower_service::Service;

use crate::{
    HttpConfig,
    app::{App, RequestRoute},
    description,
    entrance::Entrance,
    extensions,
    generate::{generate, generate_stream},
    infer::infer_ready,
    leased::mark,
    missing::with_names,
    response::{self, respond},
    text, v1,
};

/// Creates the REST API of a service.
///
/// Paths may end with a slash. Every failed request, for any path and method, gets a JSON object with a
/// string `error`, or, for `OpenAI`'s API, an object `error`.
pub fn router(service: Arc<dyn InferenceService>, config: HttpConfig) -> Router {
    router_with(service, config, Router::new())
}

/// Creates the REST API with the additional routes `more`. They get the same checks of request heads, and the
/// same responses to unknown paths and wrong methods, as the API. A fallback of `more` is replaced.
///
/// # Panics
/// If `more` has a path of the protocol.
pub fn router_with(service: Arc<dyn InferenceService>, config: HttpConfig, more: Router) -> Router {
    routed(&App::new(service, config), more)
}

/// Creates only the routes under `/v1` and `/v2`, without a fallback, to be merged into a program's router
/// with its own fallback and pages.
///
/// If you mount these routes under a prefix, strip the prefix before `oip-auth`'s gate and before any other
/// layer that reads [`Route`](oip_service::route::Route). Otherwise the route is that of the prefixed path,
/// and every request gets 404.
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
    with_routes(Router::new(), &app, is_protocol).route_layer(entrance)
}

/// Creates a router of all routes and `more`.
pub(crate) fn routed(app: &App, more: Router) -> Router {
    with_routes(more, app, |_| true)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(Entrance::new(app.config.clone()))
}

/// Adds the selected paths, with and without a trailing slash.
fn with_routes(mut router: Router, app: &App, is_wanted: impl Fn(&str) -> bool) -> Router {
    let by_route = by_route(app);
    // axum's router cannot match a verb at the end of a parameter's segment (`{model}:predict`): the verb
    // becomes part of the parameter.
    let patterns = paths().filter(|pattern| is_wanted(pattern) && !pattern.ends_with(":predict"));
    for pattern in patterns {
        router = router
            .route(&format!("{pattern}/"), by_route.clone())
            .route(pattern, by_route.clone());
    }
    router
}

/// Handles requests by their [`Route`]. The router compares the path only to distinguish these requests from
/// those for other routes: the handler and the model are the ones that were authorized.
fn by_route(app: &App) -> MethodRouter {
    let handlers = PATHS.iter().filter_map(|path| {
        let handler = handler(path)?.fallback(method_not_allowed);
        Some((path.pattern, handler.with_state(app.clone())))
    });
    let handlers: Arc<HashMap<&str, MethodRouter>> = Arc::new(handlers.collect());
    any(move |request: Request| {
        let handler = handlers.get(Route::of(&request).pattern()).cloned();
        async move {
            match handler {
                Some(mut handler) => handler.call(request).await,
                None => Ok(not_found().await),
            }
        }
    })
}

/// Returns every path, with parameters in braces and without the variant with a trailing slash.
pub fn paths() -> impl Iterator<Item = &'static str> {
    let served = PATHS.iter().filter(|path| handler(path).is_some());
    served.map(|path| path.pattern)
}

/// Returns the handler of a path; `None` if the router does not serve the path.
fn handler(path: &PathPattern) -> Option<MethodRouter<App>> {
    let has = |param: &str| path.pattern.contains(param);
    Some(match path.action {
        Action::Infer => post(model_infer),
        Action::PredictV1 => post(v1::predict),
        Action::Generate => post(generate),
        Action::GenerateStream => post(generate_stream),
        Action::Embeddings => post(text::openai::embeddings),
        Action::Rerank => post(text::cohere::rerank),
        Action::TeiEmbed => post(text::tei::embed),
        Action::TeiRerank => post(text::tei::rerank),
        Action::TeiPredict => post(text::tei::predict),
        Action::ServerMetadata => get(server_metadata),
        Action::ServerLive => get(server_live),
        Action::ServerReady => get(server_ready),
        Action::Models => get(extensions::models),
        Action::ModelsV1 => get(extensions::models_v1),
        Action::ModelMetadata => get(model_metadata),
        Action::ModelReady => get(model_ready),
        Action::ModelReadyV1 => get(v1::model_ready),
        Action::ModelConfig => get(extensions::model_config),
        Action::ModelExample => get(extensions::model_example),
        Action::ModelStatistics => get(extensions::model_statistics),
        Action::AllStatistics => get(extensions::all_statistics),
        Action::RepositoryIndex | Action::RepositoryLoad | Action::RepositoryUnload
            if has("{repository}") =>
        {
            post(extensions::named_repository)
        }
        Action::RepositoryIndex => post(extensions::repository_index),
        Action::RepositoryLoad => get(extensions::may_change).post(extensions::load),
        Action::RepositoryUnload => get(extensions::may_change).post(extensions::unload),
        Action::LogSettings => get(extensions::log_settings).post(extensions::change_log_settings),
        Action::TraceSettings => get(extensions::trace_settings).post(extensions::trace_settings),
        Action::SystemMemoryStatus if has("{region}") => get(extensions::region_status),
        Action::SystemMemoryStatus => get(extensions::all_regions),
        Action::SystemMemoryRegister => post(extensions::register_region),
        Action::SystemMemoryUnregister if has("{region}") => post(extensions::unregister_region),
        Action::SystemMemoryUnregister => post(extensions::unregister_all_regions),
        Action::CudaMemoryStatus => get(extensions::cuda_shared_memory),
        Action::CudaMemoryRegister | Action::CudaMemoryUnregister => post(extensions::cuda_shared_memory),
        Action::ApiDescription => get(description::openapi),
        Action::Page if path.pattern == "/docs" => get(description::page),
        // The service handles this path before the router.
        Action::ConnectionMemoryRegister
        // The embedding program adds these routes.
        | Action::Page
        | Action::ConsoleLog
        | Action::Metrics
        // These actions are available over gRPC only.
        | Action::StreamInfer
        | Action::GrpcHealth
        | Action::GrpcReflection
        | Action::Unknown => return None,
    })
}

async fn server_metadata(State(app): State<App>) -> Response {
    let mut metadata = app.service.server_metadata();
    metadata.extensions = offered(&*app.service);
    response::json(StatusCode::OK, json_body(&metadata))
}

async fn server_live() -> Response {
    response::json(StatusCode::OK, json_body(&json!({ "live": true })))
}

/// Returns readiness. Also reports "live", as in the specification's example; clients look for "ready".
async fn server_ready(State(app): State<App>) -> Response {
    match app.service.readiness() {
        Readiness::Ready => {
            response::json(StatusCode::OK, json_body(&json!({ "live": true, "ready": true })))
        }
        Readiness::NotReady(reason) => {
            let error = ServiceError::new(ErrorCode::Unavailable, reason);
            let body = json!({ "live": true, "ready": false, "error": error.message() });
            let mut response = response::json(StatusCode::SERVICE_UNAVAILABLE, json_body(&body));
            response::retry_later(&mut response, &error);
            response
        }
    }
}

async fn model_metadata(
    State(app): State<App>,
    grant: Option<Extension<Grant>>,
    route: RequestRoute,
) -> Response {
    let answered = async {
        let model = route.model()?;
        match app.service.model_metadata(model) {
            Ok(metadata) => Ok(response::json(StatusCode::OK, json_body(&*metadata))),
            Err(error) => Err(with_names(&app, model, grant.map(|Extension(grant)| grant), error).await),
        }
    };
    respond(answered.await)
}

async fn model_ready(State(app): State<App>, route: RequestRoute) -> Response {
    let answer = route
        .model()
        .and_then(|model| match app.service.model_ready(model) {
            Ok(()) => {
                let body = json!({ "name": model.name(), "ready": true });
                Ok(response::json(StatusCode::OK, json_body(&body)))
            }
            Err(error) if error.code() == ErrorCode::Unavailable => {
                let body = json!({ "name": model.name(), "ready": false, "error": error.message() });
                let mut response = response::json(StatusCode::SERVICE_UNAVAILABLE, json_body(&body));
                response::retry_later(&mut response, &error);
                Ok(response)
            }
            Err(error) => Err(error),
        });
    respond(answer)
}

async fn model_infer(State(app): State<App>, route: RequestRoute, request: Request) -> Response {
    respond(infer_ready(&app, &route, request).await.map(mark))
}

async fn not_found() -> Response {
    response::error(&ServiceError::new(ErrorCode::NotFound, "Not Found"))
}

/// Rejects a method. Every path of the protocol accepts GET or POST, so the error for GET recommends POST.
async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let is_get = method == Method::GET || method == Method::HEAD;
    let message = match is_get && uri.path().starts_with("/v2/") {
        true => "Method Not Allowed: this path takes POST",
        false => "Method Not Allowed",
    };
    response::json(
        StatusCode::METHOD_NOT_ALLOWED,
        error_body(&ServiceError::invalid(message)),
    )
}
