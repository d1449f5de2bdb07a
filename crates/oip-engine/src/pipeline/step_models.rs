use std::sync::Arc;

use oip_service::{BoxFuture, RequestContext};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServiceError};

use super::error::StepError;
use crate::run::cache::Generation;

/// The models that a pipeline runs: all that it knows of the rest of the engine.
///
/// A pipeline is planned with their metadata, and its steps are requests to them, each of which goes the same way as a
/// client's. The registry of models that are served implements it.
pub(crate) trait StepModels: Send + Sync {
    /// The metadata of a model that `pipeline` runs as a step.
    ///
    /// # Errors
    /// Why the pipeline cannot run it now: there is no such model, it is not ready, or it runs the pipeline in turn.
    fn step_metadata(&self, model: ModelRef<'_>, pipeline: &str) -> Result<Arc<ModelMetadata>, StepError>;

    /// What the answers of a model are kept under, if it is served: another when it is loaded again.
    fn step_generation(&self, model: ModelRef<'_>) -> Option<Generation>;

    /// Whether a model asks others by itself, so that its answers depend on more than on it.
    fn step_asks_others(&self, model: ModelRef<'_>) -> bool;

    /// Answers the request of a step.
    fn infer_step(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>>;
}
