//! Adds extensions to a service without changing it.

use std::{sync::Arc, time::Instant};

use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};

use crate::{
    BoxFuture, Classification, InferenceService, Logging, ModelConfiguration, ModelRepository, Readiness,
    RequestContext, Responses, Statistics, SystemSharedMemory,
};

/// Wraps a service and adds extensions that the process provides: logging and shared memory.
///
/// All other methods are forwarded to the inner service. The wrapper implements every method of
/// [`InferenceService`], including the provided ones, so that lints report any capability that is added to
/// the trait but not forwarded here.
pub struct ExtendedService<S: ?Sized> {
    logging: Option<Arc<dyn Logging>>,
    shared_memory: Option<Arc<dyn SystemSharedMemory>>,
    service: Arc<S>,
}

impl<S: InferenceService + ?Sized> ExtendedService<S> {
    /// Wraps `service` without adding extensions.
    #[must_use]
    pub fn new(service: Arc<S>) -> Self {
        Self {
            logging: None,
            shared_memory: None,
            service,
        }
    }

    /// Adds the logging extension.
    #[must_use]
    pub fn with_logging(mut self, logging: Arc<dyn Logging>) -> Self {
        self.logging = Some(logging);
        self
    }

    /// Adds the system shared memory extension.
    #[must_use]
    pub fn with_shared_memory(mut self, shared_memory: Arc<dyn SystemSharedMemory>) -> Self {
        self.shared_memory = Some(shared_memory);
        self
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "a provided method that is not forwarded would take a capability away from the inner service"
)]
impl<S: InferenceService + ?Sized> InferenceService for ExtendedService<S> {
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
        self.service.infer(request, cx)
    }

    fn infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        self.service.infer_stream(request, cx)
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
        self.logging.as_deref().or_else(|| self.service.logging())
    }

    fn shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        self.shared_memory
            .as_deref()
            .or_else(|| self.service.shared_memory())
    }

    fn has_schedule_policy(&self) -> bool {
        self.service.has_schedule_policy()
    }
}

#[cfg(feature = "testing")]
#[cfg(test)]
mod tests {
    use oip_types::LogSettings;

    use super::*;
    use crate::{extensions::offered, testing::TestService};

    struct Quiet;

    impl Logging for Quiet {
        fn log_settings(&self) -> LogSettings {
            LogSettings::new()
        }

        fn change_log_settings(&self, _: LogSettings) -> Result<LogSettings, ServiceError> {
            Err(ServiceError::invalid("it stays quiet"))
        }
    }

    #[test]
    fn what_is_added_comes_first_and_the_rest_stays() {
        let plain = ExtendedService::new(Arc::new(TestService::plain())).with_logging(Arc::new(Quiet));
        assert_eq!(offered(&plain), ["binary_tensor_data", "parameters", "logging"]);
        let full = ExtendedService::new(Arc::new(TestService::default()));
        assert_eq!(offered(&full), offered(&TestService::default()));
        assert_eq!(
            full.logging().map(|logging| logging.log_settings().len()),
            Some(5)
        );
        let quiet = full.with_logging(Arc::new(Quiet));
        assert_eq!(
            quiet.logging().map(|logging| logging.log_settings().len()),
            Some(0)
        );
    }
}
