//! Services that panic, for tests of what a panic costs a transport.

use std::sync::Arc;

use oip_model::BoxFuture;
use oip_types::{
    InferRequest, InferResponse, LoadOptions, ModelConfig, ModelIndexEntry, ModelMetadata, ModelRef,
    ServerMetadata, ServiceError, UnloadOptions,
};

use crate::{
    InferenceService, ModelConfiguration, ModelRepository, Readiness, RequestContext, Statistics,
    testing::TestService,
};

/// A [`TestService`] that panics in its readiness check, in the metadata of the model `metadata`, and in
/// inferences: of `early` in the call, of `late` while its future runs.
#[derive(Debug, Default)]
pub struct PanickingService(TestService);

impl InferenceService for PanickingService {
    fn server_metadata(&self) -> ServerMetadata {
        self.0.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        panic!("on purpose")
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        assert_ne!(model.name(), "metadata", "on purpose");
        let name = ["early", "late"]
            .contains(&model.name())
            .then_some("identity_fp32");
        self.0
            .model_metadata(ModelRef::new(name.unwrap_or(model.name()), None)?)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        assert_ne!(request.model().name(), "early", "on purpose");
        Box::pin(async {
            assert_ne!(request.model().name(), "late", "on purpose");
            self.0.infer(request, cx).await
        })
    }
}

/// A [`TestService`] that panics in each extension: in the call, or while its future runs.
#[derive(Debug, Default)]
pub struct PanickingExtensions(TestService);

impl InferenceService for PanickingExtensions {
    fn server_metadata(&self) -> ServerMetadata {
        panic!("on purpose")
    }

    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.0.model_metadata(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        self.0.infer(request, cx)
    }

    fn repository(&self) -> Option<&dyn ModelRepository> {
        Some(self)
    }

    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        Some(self)
    }

    fn statistics(&self) -> Option<&dyn Statistics> {
        panic!("on purpose")
    }
}

impl ModelRepository for PanickingExtensions {
    fn index(&self) -> Vec<ModelIndexEntry> {
        panic!("on purpose")
    }

    fn load(&self, _: ModelRef<'_>, _: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async { panic!("on purpose") })
    }

    fn unload(&self, _: ModelRef<'_>, _: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        panic!("on purpose")
    }
}

impl ModelConfiguration for PanickingExtensions {
    fn model_config(&self, _: ModelRef<'_>) -> Result<Arc<ModelConfig>, ServiceError> {
        panic!("on purpose")
    }
}
