//! Endpoints of the protocol's extensions.

use axum::{
    Extension,
    body::Bytes,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use oip_resources::Lease;
use oip_service::{
    Grant, InferenceService, extensions,
    route::{Action, Route},
};
use oip_types::{
    ErrorCode, ModelRef, ServiceError,
    rest::{decode_index_request, decode_log_settings, decode_parameters, decode_region, json_body},
};
use serde_json::{Value, json};

use crate::{
    app::{App, RequestRoute},
    infer::receive,
    leased::leased,
    missing::may_see,
    response::{self, respond, respond_to},
};

/// Maximum body size of requests to extensions, in bytes. The largest bodies carry a model configuration.
const MAX_BODY: usize = 1 << 20;

/// Returns the names of the repository's models.
pub(crate) async fn models(State(app): State<App>, grant: Option<Extension<Grant>>) -> Response {
    respond(listed(app, grant, |names| json!({ "models": names })).await)
}

/// Returns the names of the models for the V1 protocol, and a second list in the form of `OpenAI`'s API.
pub(crate) async fn models_v1(State(app): State<App>, grant: Option<Extension<Grant>>) -> Response {
    let print = |names: &[String]| {
        let entry =
            |name: &String| json!({"id": name, "object": "model", "created": 0, "owned_by": "server"});
        let data: Vec<_> = names.iter().map(entry).collect();
        json!({ "models": names, "object": "list", "data": data })
    };
    respond_to(Action::ModelsV1, listed(app, grant, print).await)
}

async fn listed(
    app: App,
    grant: Option<Extension<Grant>>,
    print: fn(&[String]) -> Value,
) -> Result<Response, ServiceError> {
    let service = app.service.clone();
    let listed = elsewhere(&app, move || {
        let index = extensions::index(&*service, false)?;
        let mut names: Vec<String> = index.into_iter().map(|entry| entry.name).collect();
        names.retain(|name| may_see(grant.as_deref(), name));
        names.dedup();
        Ok(ok(&print(&names)))
    });
    listed.await
}

pub(crate) async fn repository_index(State(app): State<App>, request: Request) -> Response {
    respond(index(&app, request).await)
}

async fn index(app: &App, request: Request) -> Result<Response, ServiceError> {
    extensions::repository(&*app.service)?;
    let grant = request.extensions().get::<Grant>().cloned();
    let body = small_body(app, request).await?;
    let is_ready_only = decode_index_request(&body, &app.config.limits)?;
    let service = app.service.clone();
    let list = move || {
        let mut index = extensions::index(&*service, is_ready_only)?;
        index.retain(|entry| may_see(grant.as_ref(), &entry.name));
        Ok(ok(&index))
    };
    elsewhere(app, list).await
}

/// Rejects a repository name: there is one repository, and it has no name.
pub(crate) async fn named_repository(State(app): State<App>, route: RequestRoute) -> Response {
    let refused = || {
        extensions::repository(&*app.service)?;
        let name = route.repository()?;
        extensions::check_repository_name(name)?;
        match name {
            // An empty name is the default repository in a gRPC message, but not in a path.
            "" => Err(ServiceError::new(ErrorCode::NotFound, "Not Found")),
            _ => Ok(()),
        }
    };
    respond(refused().map(|()| done()))
}

pub(crate) async fn load(State(app): State<App>, route: RequestRoute, request: Request) -> Response {
    let loaded = async {
        extensions::repository(&*app.service)?;
        let model = route.model()?;
        let body = small_body(&app, request).await?;
        let parameters = decode_parameters(&body, &app.config.limits)?;
        extensions::load(&*app.service, model.name(), parameters).await
    };
    respond(loaded.await.map(|()| done()))
}

/// Returns whether a model may be loaded or unloaded by request: makes the same checks as `POST` to the same
/// path, without loading or unloading.
pub(crate) async fn may_change(State(app): State<App>, route: RequestRoute) -> Response {
    let allowed = || {
        let repository = extensions::repository(&*app.service)?;
        route.model()?;
        repository.allows_changes()
    };
    respond(allowed().map(|()| done()))
}

pub(crate) async fn unload(State(app): State<App>, route: RequestRoute, request: Request) -> Response {
    let unloaded = async {
        extensions::repository(&*app.service)?;
        let model = route.model()?;
        let body = small_body(&app, request).await?;
        let parameters = decode_parameters(&body, &app.config.limits)?;
        extensions::unload(&*app.service, model.name(), parameters).await
    };
    respond(unloaded.await.map(|()| done()))
}

pub(crate) async fn model_config(State(app): State<App>, route: RequestRoute) -> Response {
    respond(
        extensions::configuration(&*app.service).and_then(|configuration| {
            configuration
                .model_config(route.model()?)
                .map(|config| ok(&*config))
        }),
    )
}

/// Returns the example that a model provides, as a request body.
pub(crate) async fn model_example(State(app): State<App>, route: RequestRoute) -> Response {
    respond(
        extensions::configuration(&*app.service).and_then(|configuration| {
            let model = route.model()?;
            let example = configuration.model_example(model)?.ok_or_else(|| {
                let message = format!("{model} has no example.json with valid inputs");
                ServiceError::new(ErrorCode::NotFound, message)
            })?;
            Ok(response::json(StatusCode::OK, example))
        }),
    )
}

pub(crate) async fn model_statistics(State(app): State<App>, route: RequestRoute) -> Response {
    let model = route.model();
    respond(model.and_then(|model| statistics(&*app.service, Some(model), None)))
}

pub(crate) async fn all_statistics(State(app): State<App>, grant: Option<Extension<Grant>>) -> Response {
    let service = app.service.clone();
    let list = move || statistics(&*service, None, grant.as_deref());
    respond(elsewhere(&app, list).await)
}

fn statistics(
    service: &dyn InferenceService,
    model: Option<ModelRef<'_>>,
    grant: Option<&Grant>,
) -> Result<Response, ServiceError> {
    let mut statistics = extensions::statistics(service)?.model_statistics(model)?;
    statistics.retain(|statistics| may_see(grant, &statistics.name));
    Ok(ok(&json!({ "model_stats": statistics })))
}

pub(crate) async fn log_settings(State(app): State<App>) -> Response {
    respond(extensions::logging(&*app.service).map(|logging| ok(&logging.log_settings())))
}

pub(crate) async fn change_log_settings(State(app): State<App>, request: Request) -> Response {
    let changed = async {
        let logging = extensions::logging(&*app.service)?;
        let body = small_body(&app, request).await?;
        let changes = decode_log_settings(&body, &app.config.limits)?;
        logging.change_log_settings(changes)
    };
    respond(changed.await.map(|settings| ok(&settings)))
}

pub(crate) async fn all_regions(State(app): State<App>) -> Response {
    let memory = extensions::shared_memory(&*app.service);
    respond(memory.and_then(|memory| memory.status(None).map(|regions| ok(&regions))))
}

pub(crate) async fn region_status(State(app): State<App>, route: RequestRoute) -> Response {
    let status = || {
        let memory = extensions::shared_memory(&*app.service)?;
        memory.status(Some(region(&route)?))
    };
    respond(status().map(|regions| ok(&regions)))
}

pub(crate) async fn register_region(
    State(app): State<App>,
    route: RequestRoute,
    request: Request,
) -> Response {
    let registered = async {
        extensions::shared_memory(&*app.service)?;
        let name = region(&route)?;
        let body = small_body(&app, request).await?;
        extensions::register_region(&*app.service, decode_region(name, &body, &app.config.limits)?)
    };
    respond(registered.await.map(|()| done()))
}

pub(crate) async fn unregister_all_regions(State(app): State<App>) -> Response {
    let memory = extensions::shared_memory(&*app.service);
    respond(memory.map(|memory| {
        memory.unregister(None);
        done()
    }))
}

pub(crate) async fn unregister_region(State(app): State<App>, route: RequestRoute) -> Response {
    let unregistered = || {
        let memory = extensions::shared_memory(&*app.service)?;
        memory.unregister(Some(region(&route)?));
        Ok(())
    };
    respond(unregistered().map(|()| done()))
}

/// Returns the region named in the path. An empty name is an error, since it must not select all regions.
fn region(route: &Route) -> Result<&str, ServiceError> {
    let name = route.region()?;
    extensions::check_region_name(name).map(|()| name)
}

/// Rejects GPU memory, which no service supports.
pub(crate) async fn cuda_shared_memory() -> Response {
    response::error(&extensions::not_offered("cuda_shared_memory"))
}

/// Rejects trace settings, which no service supports.
pub(crate) async fn trace_settings() -> Response {
    response::error(&extensions::not_offered("trace"))
}

/// Runs work that reads directories or visits all models on a pool thread, off the reactor.
async fn elsewhere(
    app: &App,
    work: impl FnOnce() -> Result<Response, ServiceError> + Send + 'static,
) -> Result<Response, ServiceError> {
    /// Assumed number of bytes that the work reads, so that it counts as a small job in the pool's queue.
    const BYTES: u64 = 64 << 10;
    let lease = Lease::new(&app.config.budget, &app.config.time);
    let guard = lease.guard();
    let charged = {
        let lease = lease.clone();
        move || work().and_then(|response| leased(response, &lease))
    };
    let answer = app.config.cpu.run(&lease, BYTES, charged).await;
    guard.disarm();
    answer
}

async fn small_body(app: &App, request: Request) -> Result<Bytes, ServiceError> {
    let (head, body) = request.into_parts();
    let limit = app.config.max_body_bytes.min(MAX_BODY);
    let lease = Lease::new(&app.config.budget, &app.config.time);
    let guard = lease.guard();
    let body = receive(app, &head.headers, body, limit, &lease).await;
    guard.disarm();
    body
}

fn ok<T: serde::Serialize>(value: &T) -> Response {
    response::json(StatusCode::OK, json_body(value))
}

/// Creates an empty success response.
fn done() -> Response {
    Response::default()
}
