//! The state shared by all handlers.

use std::sync::Arc;

use axum::Extension;
use oip_service::{InferenceService, RequestIds, route::Route};

use crate::{HttpConfig, model_names::ModelNames};

/// The state shared by all handlers.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) config: Arc<HttpConfig>,
    pub(crate) request_ids: Arc<RequestIds>,
    pub(crate) model_names: Arc<ModelNames>,
}

/// The route that selected the request's handler.
pub(crate) type RequestRoute = Extension<Route>;

impl App {
    pub(crate) fn new(service: Arc<dyn InferenceService>, config: HttpConfig) -> Self {
        Self {
            service,
            config: Arc::new(config),
            request_ids: Arc::new(RequestIds::new()),
            model_names: Arc::default(),
        }
    }
}
