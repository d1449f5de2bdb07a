//! Parses a request's head once into a [`Route`], which access rights, logs, metrics, traces and the
//! transports all use.

mod action;
mod aliases;
mod calls;
mod paths;

use http::{Method, Request, Version, header::CONTENT_TYPE};
use oip_types::{ModelRef, ServiceError};

use self::paths::Params;
pub use self::{
    action::{Action, Api},
    aliases::Aliases,
    paths::{PATHS, PathPattern, path_segment},
};

/// Returns whether a request is gRPC: HTTP/2 with the content type of gRPC.
#[must_use]
pub fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    request.version() == Version::HTTP_2
        && content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The action and the model of a request, parsed from its method and path.
///
/// The outermost layer parses the route and stores it in the request's extensions, where inner layers read
/// it. A layer that rewrites paths must wrap the layer that parses the route; otherwise inner layers use the
/// route of the original path.
///
/// ```
/// use oip_service::route::{Action, Api, Route};
/// use http::{Method, Request};
///
/// let mut request = Request::post("/v2/models/my%20model/versions/3/infer/").body(()).unwrap();
/// Route::read_http(&mut request);
/// let route = Route::of(&request);
/// assert_eq!((route.action(), route.api()), (Action::Infer, Api::Inference));
/// assert_eq!(route.name(), "/v2/models/{model}/infer");
/// let model = route.model().unwrap();
/// assert_eq!((model.name(), model.version()), ("my model", Some("3")));
/// assert_eq!(Route::of_http(&Method::GET, "/elsewhere").action(), Action::Unknown);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    action: Action,
    pattern: &'static str,
    name: &'static str,
    change: Option<&'static str>,
    params: Params,
}

/// The route of all unknown requests, which share one name in metrics.
static UNKNOWN: Route = Route {
    action: Action::Unknown,
    pattern: "",
    name: "other",
    change: None,
    params: Params::NONE,
};

impl Route {
    /// Returns the route of an HTTP request. `path` is split into segments first, and then each name is
    /// percent-decoded once.
    #[must_use]
    pub fn of_http(method: &Method, path: &str) -> Self {
        let Some((found, params)) = paths::find(path) else {
            return UNKNOWN.clone();
        };
        Self {
            action: found.action,
            pattern: found.pattern,
            name: found.name(),
            change: found.action.change(*method == Method::POST),
            params,
        }
    }

    /// Returns the route of a gRPC request. The route contains no model, because the message names the model.
    #[must_use]
    pub fn of_grpc(path: &str) -> Self {
        let Some((name, action)) = calls::find(path) else {
            return UNKNOWN.clone();
        };
        Self {
            action,
            pattern: "",
            name,
            change: action.change(true),
            params: Params::NONE,
        }
    }

    /// Adds the route of an HTTP request to its extensions, unless an outer layer has already added one.
    pub fn read_http<B>(request: &mut Request<B>) {
        if request.extensions().get::<Self>().is_none() {
            let route = Self::of_http(request.method(), request.uri().path());
            request.extensions_mut().insert(route);
        }
    }

    /// Adds the route of a gRPC request to its extensions, unless an outer layer has already added one.
    pub fn read_grpc<B>(request: &mut Request<B>) {
        if request.extensions().get::<Self>().is_none() {
            let route = Self::of_grpc(request.uri().path());
            request.extensions_mut().insert(route);
        }
    }

    /// Returns the route in a request's extensions, or the unknown route if there is none.
    pub fn of<B>(request: &Request<B>) -> &Self {
        request.extensions().get().unwrap_or(&UNKNOWN)
    }

    /// Removes the route from a request's extensions and returns it, or the unknown route if there is none.
    pub fn take<B>(request: &mut Request<B>) -> Self {
        let route = request.extensions_mut().remove();
        route.unwrap_or_else(|| UNKNOWN.clone())
    }

    /// Returns the action that the request asks for.
    #[must_use]
    pub fn action(&self) -> Action {
        self.action
    }

    /// Returns the API that access rights refer to.
    #[must_use]
    pub fn api(&self) -> Api {
        self.action.api()
    }

    /// Returns the pattern of an HTTP path; empty for gRPC methods and unknown paths.
    #[must_use]
    pub fn pattern(&self) -> &'static str {
        self.pattern
    }

    /// Returns the name for metrics, logs and traces: a path with parameters in braces, or a gRPC method. The
    /// name contains nothing that a client chooses.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns a name for the state that the request changes; `None` if the request has no lasting effect.
    #[must_use]
    pub fn change(&self) -> Option<&'static str> {
        self.change
    }

    /// Returns the model's name as it appears in the path; `None` if the path contains no model. Invalid
    /// UTF-8 is replaced.
    #[must_use]
    pub fn model_name(&self) -> Option<&str> {
        self.params.model.as_deref()
    }

    /// Returns the version as it appears in the path, like [`Route::model_name`].
    #[must_use]
    pub fn version_name(&self) -> Option<&str> {
        self.params.version.as_deref()
    }

    /// Returns the model and version that the path names.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the path is not UTF-8, or a name is
    /// not safe. The empty name of a path without a model is not safe either.
    pub fn model(&self) -> Result<ModelRef<'_>, ServiceError> {
        let params = self.utf8_params()?;
        ModelRef::new(
            params.model.as_deref().unwrap_or_default(),
            params.version.as_deref(),
        )
    }

    /// Returns the name of the shared memory region; empty if the path contains none.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the path is not UTF-8.
    pub fn region(&self) -> Result<&str, ServiceError> {
        Ok(self.utf8_params()?.region.as_deref().unwrap_or_default())
    }

    /// Returns the name of the repository; empty if the path contains none.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the path is not UTF-8.
    pub fn repository(&self) -> Result<&str, ServiceError> {
        Ok(self.utf8_params()?.repository.as_deref().unwrap_or_default())
    }

    fn utf8_params(&self) -> Result<&Params, ServiceError> {
        match self.params.is_not_utf8 {
            true => Err(ServiceError::invalid("the path is not UTF-8")),
            false => Ok(&self.params),
        }
    }
}

#[cfg(test)]
mod tests;
