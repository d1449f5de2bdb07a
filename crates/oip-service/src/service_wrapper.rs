//! Services around another service: a wrapper implements what it changes, and everything else is forwarded.

use std::{sync::Arc, time::Instant};

use oip_model::{BoxFuture, Responses};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};

use crate::{
    Classification, InferenceService, Logging, ModelConfiguration, ModelRepository, Readiness,
    RequestContext, Statistics, SystemSharedMemory,
};

/// A service that changes some calls of an inner service. Every wrapper is an [`InferenceService`].
///
/// ```
/// use oip_model::{BoxFuture, Responses};
/// use oip_service::{InferenceService, RequestContext, ServiceWrapper};
/// use oip_types::{InferRequest, InferResponse, ServiceError};
///
/// /// Refuses requests without an id.
/// struct WithIds<S>(S);
///
/// impl<S: InferenceService> ServiceWrapper for WithIds<S> {
///     type Inner = S;
///
///     fn inner(&self) -> &S {
///         &self.0
///     }
///
///     fn wrap_infer(
///         &self,
///         request: InferRequest,
///         cx: RequestContext,
///     ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
///         match request.id {
///             Some(_) => self.0.infer(request, cx),
///             None => Box::pin(async { Err(ServiceError::invalid("the request has no id")) }),
///         }
///     }
///
///     fn wrap_infer_stream(
///         &self,
///         request: InferRequest,
///         cx: RequestContext,
///     ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
///         match request.id {
///             Some(_) => self.0.infer_stream(request, cx),
///             None => Box::pin(async { Err(ServiceError::invalid("the request has no id")) }),
///         }
///     }
/// }
/// ```
pub trait ServiceWrapper: Send + Sync + 'static {
    /// The type of the inner service.
    type Inner: InferenceService + ?Sized;

    /// Returns the inner service.
    fn inner(&self) -> &Self::Inner;

    /// Runs an inference; see [`InferenceService::infer`].
    fn wrap_infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>>;

    /// Runs an inference with any number of responses; see [`InferenceService::infer_stream`]. It has no
    /// default, because a wrapper that changes only [`wrap_infer`](Self::wrap_infer) would let streaming calls
    /// pass.
    fn wrap_infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>>;

    /// Returns the wrapper's logging extension, which replaces that of the inner service.
    fn own_logging(&self) -> Option<&dyn Logging> {
        None
    }

    /// Returns the wrapper's shared memory extension, which replaces that of the inner service.
    fn own_shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        None
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "a provided method that is not forwarded would take a capability away from the inner service"
)]
impl<W: ServiceWrapper> InferenceService for W {
    fn server_metadata(&self) -> ServerMetadata {
        self.inner().server_metadata()
    }

    fn readiness(&self) -> Readiness {
        self.inner().readiness()
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.inner().model_metadata(model)
    }

    fn model_ready(&self, model: ModelRef<'_>) -> Result<(), ServiceError> {
        self.inner().model_ready(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        self.wrap_infer(request, cx)
    }

    fn infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        self.wrap_infer_stream(request, cx)
    }

    fn start_draining(&self) {
        self.inner().start_draining();
    }

    fn stop(&self, deadline: Instant) -> bool {
        self.inner().stop(deadline)
    }

    fn checks_requests(&self) -> bool {
        self.inner().checks_requests()
    }

    fn repository(&self) -> Option<&dyn ModelRepository> {
        self.inner().repository()
    }

    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        self.inner().configuration()
    }

    fn statistics(&self) -> Option<&dyn Statistics> {
        self.inner().statistics()
    }

    fn classification(&self) -> Option<&dyn Classification> {
        self.inner().classification()
    }

    fn logging(&self) -> Option<&dyn Logging> {
        self.own_logging().or_else(|| self.inner().logging())
    }

    fn shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        self.own_shared_memory().or_else(|| self.inner().shared_memory())
    }

    fn has_schedule_policy(&self) -> bool {
        self.inner().has_schedule_policy()
    }
}
