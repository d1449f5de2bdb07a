//! A service wrapper that records requests.

use std::sync::Arc;

use oip_model::{BoxFuture, Responses};
use oip_service::{InferenceService, RequestContext, ServiceWrapper};
use oip_types::{InferRequest, InferResponse, ServiceError};

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

impl<S: InferenceService + ?Sized> ServiceWrapper for CapturingService<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.service
    }

    fn wrap_infer(
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

    fn wrap_infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        if !self.recorder.wants(request.model().name()) {
            return self.service.infer_stream(request, cx);
        }
        Box::pin(async move {
            let responses = self.service.infer_stream(request.clone(), cx).await?;
            if let Responses::One(response) = &responses {
                self.recorder.record(request, response.clone());
            }
            Ok(responses)
        })
    }
}
