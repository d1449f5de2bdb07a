//! The models and the service that runs them.

use std::sync::Arc;

use model_repository::{PassedOver, Repositories};
use oip_capture::{CapturingService, Recorder};
use oip_engine::{Engine, EngineConfig};
use oip_service::{ExtendedService, InferenceService};
use oip_shm::{Regions, RegionsConfig};

use crate::telemetry::Log;

/// The engine, which loads models in the background, and facts about its repositories for messages.
pub(super) struct Models {
    pub(super) engine: Arc<Engine>,
    /// Files that have no effect.
    pub(super) passed_over: Vec<PassedOver>,
    /// The name of the model if the repositories hold only one.
    pub(super) only_model: Option<String>,
}

impl Models {
    /// Starts loading the models of `repositories`.
    pub(super) fn start(repositories: Repositories, config: EngineConfig) -> Self {
        Self {
            passed_over: repositories.passed_over(),
            only_model: repositories.only_model(),
            engine: Arc::new(Engine::start(repositories, config)),
        }
    }

    /// Returns the service of both transports: the engine with the extensions that belong to the process, and
    /// with a recorder of requests if there is one.
    pub(super) fn service(
        &self,
        log: &Log,
        shared_memory: Option<RegionsConfig>,
        recorder: Option<&Recorder>,
    ) -> Arc<dyn InferenceService> {
        let mut service = ExtendedService::new(self.engine.clone()).with_logging(log.control.clone());
        if let Some(config) = shared_memory {
            service = service.with_shared_memory(Arc::new(Regions::new(config)));
        }
        match recorder {
            None => Arc::new(service),
            Some(recorder) => {
                let service: Arc<dyn InferenceService> = Arc::new(service);
                Arc::new(CapturingService::new(service, recorder.clone()))
            }
        }
    }
}
