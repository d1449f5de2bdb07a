//! The interface between pipelines and the registry of models.

use std::sync::Arc;

use oip_model::BoxFuture;
use oip_service::RequestContext;
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServiceError};

use super::error::StepError;
use crate::generation::Generation;

/// The models of a pipeline's steps: the pipeline's only access to the rest of the engine.
///
/// A pipeline is planned with the metadata of these models, and its steps send requests to the models as
/// clients do. The registry implements this trait.
pub(crate) trait StepModels: Send + Sync {
    /// Returns the metadata of a model that `pipeline` runs as a step.
    ///
    /// # Errors
    /// The reason why the pipeline cannot run it now: the model does not exist, is not ready, or contains the
    /// pipeline itself.
    fn step_metadata(&self, model: ModelRef<'_>, pipeline: &str) -> Result<Arc<ModelMetadata>, StepError>;

    /// Returns the generation of a model in service, which changes with each load of the model.
    fn step_generation(&self, model: ModelRef<'_>) -> Option<Generation>;

    /// Returns whether a model itself calls other models, so that its responses depend on more than its own
    /// generation.
    fn step_asks_others(&self, model: ModelRef<'_>) -> bool;

    /// Runs the request of a step.
    fn infer_step(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>>;
}
