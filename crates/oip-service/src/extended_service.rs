//! Adds extensions to a service without changing it.

use std::sync::Arc;

use oip_model::{BoxFuture, Responses};
use oip_types::{InferRequest, InferResponse, ServiceError};

use crate::{InferenceService, Logging, RequestContext, ServiceWrapper, SystemSharedMemory};

/// Wraps a service and adds extensions that the process provides: logging and shared memory.
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

impl<S: InferenceService + ?Sized> ServiceWrapper for ExtendedService<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.service
    }

    fn wrap_infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        self.service.infer(request, cx)
    }

    fn wrap_infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        self.service.infer_stream(request, cx)
    }

    fn own_logging(&self) -> Option<&dyn Logging> {
        self.logging.as_deref()
    }

    fn own_shared_memory(&self) -> Option<&dyn SystemSharedMemory> {
        self.shared_memory.as_deref()
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
