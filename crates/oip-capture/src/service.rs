//! A service wrapper that records requests.

use std::{sync::Arc, time::Instant};

use oip_service::{
    BoxFuture, Classification, InferenceService, Logging, ModelConfiguration, ModelRepository, Readiness,
    RequestContext, Responses, Statistics, SystemSharedMemory,
};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};

use crate::recorder::Recorder;

/// A service wrapper that passes sampled requests and their responses to a [`Recorder`]. Failed requests, and
/// requests with several responses, are not recorded.
pub struct CapturingService<S: ?Sized> {
    recorder: Recorder,
    service: Arc<S>,
}

impl<S: InferenceService + ?Sized> CapturingService<S> {
    /// Wraps `service`, whose requests `recorder` samples and records.
    #[must_use]
    pub fn new(service: Arc<S>, recorder: Recorder) -> Self {
        Self { recorder, service }
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "a provided method that is not forwarded would take a capability away from the inner service"
)]
impl<S: InferenceService + ?Sized> InferenceService for CapturingService<S> {
    fn server_metadata(&self) -> ServerMetadata {
        self.service.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        self.service.readiness()
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.service.model_metadata(model)
    }

    fn model_ready(&self, model: ModelRef<'_>) -> Result<(), ServiceError> {
        self.service.model_ready(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        if !self.recorder.wants(request.model().name()) {
            return self.service.infer(request, cx);
        }
        Box::pin(async move {
            // Cloning the request shares its tensors rather than copying them.
            let response = self.service.infer(request.clone(), cx).await?;
            self.recorder.record(request, response.clone());
            Ok(response)
        })
    }

    fn infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        if !self.recorder.wants(request.model().name()) {
            return self.service.infer_stream(request, cx);
        }
        Box::pin(async move {
            let answers = self.service.infer_stream(request.clone(), cx).await?;
            if let Responses::One(response) = &answers {
                self.recorder.record(request, response.clone());
            }
            Ok(answers)
        })
    }

    fn start_draining(&self) {
        self.service.start_draining();
    }

    fn stop(&self, deadline: Instant) -> bool {
        self.service.stop(deadline)
    }

    fn checks_requests(&self) -> bool {
        self.service.checks_requests()
    }

    fn repository(&self) -> Option<&dyn ModelRepository> {
        self.service.repository()
    }

    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        self.service.configuration()
    }

    fn statistics(&self) -> Option<&dyn Statistics> {
        self.service.statistics()
    }

    fn classification(&self) -> Option<&dyn Classification> {
        self.service.classification()
    }

    fn logging(&self) -> Option<&dyn Logging> {
        self.service.logging()
    }

    fn shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        self.service.shared_memory()
    }

    fn has_schedule_policy(&self) -> bool {
        self.service.has_schedule_policy()
    }
}
