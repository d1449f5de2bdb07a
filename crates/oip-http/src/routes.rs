use std::sync::Arc;

use axum::{
    Router,
    extract::{RawPathParams, Request, State, rejection::RawPathParamsRejection},
    http::StatusCode,
    middleware,
    response::Response,
    routing::{MethodRouter, get, post},
};
use oip_service::{InferenceService, Readiness, extensions::offered};
use oip_types::{
    ErrorCode, ModelRef, ServerMetadata, ServiceError,
    rest::{error_body, json_body},
};
use serde_json::json;

use crate::{HttpConfig, answer, app::App, head, infer::infer};

/// The REST side of the protocol for a service.
///
/// Paths may end in a slash. Every failed request, on any path and by any method, is answered with a JSON object that
/// has a string `error`.
pub fn router(service: Arc<dyn InferenceService>, config: HttpConfig) -> Router {
    let app = App::new(service, config);
    let config = app.config.clone();
    let routes: [(&str, MethodRouter<App>); 6] = [
        ("/v2", get(server_metadata)),
        ("/v2/health/live", get(server_live)),
        ("/v2/health/ready", get(server_ready)),
        ("/v2/models/{model}", get(model_metadata)),
        ("/v2/models/{model}/ready", get(model_ready)),
        ("/v2/models/{model}/infer", post(model_infer)),
    ];
    let mut router = Router::new();
    for (path, handler) in routes {
        let mut paths = vec![path.to_owned()];
        if path.contains("{model}") {
            paths.push(path.replace("{model}", "{model}/versions/{version}"));
        }
        for path in paths {
            router = router
                .route(&format!("{path}/"), handler.clone())
                .route(&path, handler.clone());
        }
    }
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(config, head::check))
        .with_state(app)
}

async fn server_metadata(State(app): State<App>) -> Response {
    let metadata = ServerMetadata {
        extensions: offered(&*app.service),
        ..app.service.server_metadata()
    };
    answer::json(StatusCode::OK, json_body(&metadata))
}

async fn server_live() -> Response {
    answer::json(StatusCode::OK, json_body(&json!({ "live": true })))
}

/// Says that it is live as well: that is what the protocol's text shows, while clients look for "ready".
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

async fn model_metadata(State(app): State<App>, path: PathParams) -> Response {
    respond(
        with_model(path, |model| app.service.model_metadata(model))
            .map(|metadata| answer::json(StatusCode::OK, json_body(&*metadata))),
    )
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
    let names = with_model(path, |model| {
        Ok((model.name().to_owned(), model.version().map(str::to_owned)))
    });
    let answered = async {
        let (name, version) = names?;
        let model = ModelRef::new(&name, version.as_deref())?;
        // A model that does not exist is not worth reading a body for.
        app.service.model_ready(model)?;
        infer(app, model, request).await
    };
    respond(answered.await)
}

async fn not_found() -> Response {
    answer::error(&ServiceError::new(ErrorCode::NotFound, "Not Found"))
}

async fn method_not_allowed() -> Response {
    answer::json(
        StatusCode::METHOD_NOT_ALLOWED,
        error_body(&ServiceError::invalid("Method Not Allowed")),
    )
}

fn respond(result: Result<Response, ServiceError>) -> Response {
    result.unwrap_or_else(|error| answer::error(&error))
}

/// The path's parameters, percent-decoded.
type PathParams = Result<RawPathParams, RawPathParamsRejection>;

/// Reads model and version from the path.
fn with_model<T>(
    path: PathParams,
    use_model: impl FnOnce(ModelRef<'_>) -> Result<T, ServiceError>,
) -> Result<T, ServiceError> {
    let params = path.map_err(|_| ServiceError::invalid("the path is not UTF-8"))?;
    let param = |wanted: &str| {
        params
            .iter()
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value)
    };
    use_model(ModelRef::new(
        param("model").unwrap_or_default(),
        param("version"),
    )?)
}
