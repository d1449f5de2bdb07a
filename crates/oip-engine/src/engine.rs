//! The engine's interface for transports: passes each call to the registry or to the queue of loads and
//! unloads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use futures_channel::oneshot;
use model_repository::{ModelNames, Repositories};
use oip_model::{BoxFuture, Responses};
use oip_service::{
    Classes, Classification, InferenceService, ModelConfiguration, ModelRepository, Readiness,
    RequestContext, Statistics,
};
use oip_types::{
    ErrorCode, InferRequest, InferResponse, LoadOptions, ModelConfig, ModelIndexEntry, ModelMetadata,
    ModelRef, ModelStatistics, ServerMetadata, ServiceError, UnloadOptions,
};
use parking_lot::Mutex;

use crate::{
    config::{EngineConfig, ModelControl},
    load::{
        control::{Action, Control, Task},
        lifecycle::{Cause, Lifecycle},
        poll::Poller,
    },
    statistics::VersionMetrics,
    versions::{registry::Registry, status::ModelStatus},
};

/// Loads and runs the models of repositories; see the [crate](crate).
pub struct Engine {
    lifecycle: Arc<Lifecycle>,
    control: Arc<Control>,
    poller: Mutex<Option<Poller>>,
    is_draining: AtomicBool,
    is_stopped: AtomicBool,
}

impl Engine {
    /// Starts loading the models of repositories in the background, and returns at once.
    #[must_use]
    pub fn start(repositories: impl Into<Repositories>, config: EngineConfig) -> Self {
        Self::start_with(Arc::default(), repositories.into(), config)
    }

    /// Starts like [`Engine::start`], with a registry that may already have models.
    pub(crate) fn start_with(
        registry: Arc<Registry>,
        repository: Repositories,
        config: EngineConfig,
    ) -> Self {
        let all = || {
            let ModelNames { names, unread, .. } = repository.names();
            for (repository, error) in &unread {
                tracing::error!(repository, %error, "a model repository cannot be read");
            }
            names
        };
        let models = match &config.control {
            ModelControl::None | ModelControl::Poll { .. } => all(),
            ModelControl::Explicit { load } if load.iter().any(|name| name == "*") => all(),
            ModelControl::Explicit { load } => load.clone(),
        };
        registry.expect(&models);
        let lifecycle = Arc::new(Lifecycle::new(repository, registry, config));
        let control = Control::new(lifecycle.clone());
        for model in models {
            let action = Action::Load {
                config: None,
                cause: Cause::Start,
            };
            let submitted = control.submit(Task::new(model, action, None));
            debug_assert!(submitted.is_ok(), "nobody has closed it yet");
        }
        let poller = match lifecycle.config.control {
            ModelControl::Poll { interval } => Poller::start(lifecycle.clone(), control.clone(), interval)
                .inspect_err(|error| tracing::error!(%error, "cannot start a thread to poll the repository"))
                .ok(),
            _ => None,
        };
        Self {
            lifecycle,
            control,
            poller: Mutex::new(poller),
            is_draining: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Waits until all loads in progress have succeeded or failed.
    pub fn wait_until_loaded(&self) {
        self.control.wait_until_idle();
    }

    /// Returns the status of all versions of all models that the engine has tried to load.
    #[must_use]
    pub fn models(&self) -> Vec<ModelStatus> {
        self.registry().statuses()
    }

    /// Returns the request statistics of each ready version.
    #[must_use]
    pub fn metrics(&self) -> Vec<VersionMetrics> {
        let served = self.registry().served();
        served.iter().map(|served| served.metrics()).collect()
    }

    /// Returns the number of waiting requests of all models together.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let served = self.registry().served();
        served.iter().map(|served| served.waiting() as u64).sum()
    }

    /// Makes the server unready. Requests are still served, but no more models are loaded.
    pub fn start_draining(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        drop(self.poller.lock().take());
        self.control.close();
    }

    /// Refuses new requests, finishes queued ones and running pipelines, and ends the threads. Returns
    /// whether all threads ended before the deadline; a thread that hangs in its model is abandoned.
    pub fn stop(&self, deadline: Instant) -> bool {
        self.start_draining();
        self.is_stopped.store(true, Ordering::SeqCst);
        // Pipelines are stopped first, because the steps of running pipelines send requests to models.
        let (pipelines, models): (Vec<_>, Vec<_>) = self
            .registry()
            .served()
            .into_iter()
            .partition(|served| served.pipeline().is_some());
        let mut ended = true;
        for served in [pipelines, models] {
            served.iter().for_each(|served| served.stop());
            for served in &served {
                ended &= served.join(deadline);
            }
        }
        self.lifecycle.retirement.finish(deadline) && ended
    }

    fn registry(&self) -> &Registry {
        &self.lifecycle.registry
    }

    fn config(&self) -> &EngineConfig {
        &self.lifecycle.config
    }

    /// Queues an action on a model for a client, and waits for its result.
    fn request(&self, model: ModelRef<'_>, action: Action) -> BoxFuture<'_, Result<(), ServiceError>> {
        let submitted = self.check_control(model).and_then(|()| {
            let (reply, done) = oneshot::channel();
            let task = Task::new(model.name().to_owned(), action, Some(reply));
            self.control.submit(task).map(|()| done)
        });
        Box::pin(async {
            let given_up = |_| {
                Err(ServiceError::new(
                    ErrorCode::Unavailable,
                    "the server is shutting down",
                ))
            };
            submitted?.await.unwrap_or_else(given_up)
        })
    }

    fn check_control(&self, model: ModelRef<'_>) -> Result<(), ServiceError> {
        self.allows_changes()?;
        match model.version() {
            None => Ok(()),
            Some(_) => Err(ServiceError::invalid(format!(
                "{model}: models are loaded and unloaded as a whole; their version policy says which versions are served"
            ))),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Queued loads are no longer needed.
        self.control.close();
    }
}

/// Lists the repository index; loads and unloads models under [`ModelControl::Explicit`].
impl ModelRepository for Engine {
    fn allows_changes(&self) -> Result<(), ServiceError> {
        if matches!(self.config().control, ModelControl::Explicit { .. }) {
            return Ok(());
        }
        // The first half of this text is Triton's message.
        let message = "explicit model load / unload is not allowed if polling is enabled, or without \
                       --model-control-mode=explicit";
        Err(ServiceError::new(ErrorCode::Unavailable, message))
    }

    fn index(&self) -> Vec<ModelIndexEntry> {
        let mut index: Vec<ModelIndexEntry> = Vec::new();
        for status in self.registry().statuses() {
            index.push(ModelIndexEntry {
                name: status.name,
                version: status.version,
                state: Some(status.state),
                reason: status.reason,
            });
        }
        let known = index.len();
        for name in self.lifecycle.repository.names().names {
            // Both lists are sorted by name.
            if index[..known]
                .binary_search_by(|entry| entry.name.cmp(&name))
                .is_err()
            {
                index.push(ModelIndexEntry {
                    name,
                    version: None,
                    state: None,
                    reason: String::new(),
                });
            }
        }
        // A stable sort keeps the order of a model's versions.
        index.sort_by(|a, b| a.name.cmp(&b.name));
        index
    }

    fn load(&self, model: ModelRef<'_>, options: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        let action = Action::Load {
            config: options.config,
            cause: Cause::Request,
        };
        self.request(model, action)
    }

    fn unload(&self, model: ModelRef<'_>, options: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        let action = Action::Unload {
            forget: false,
            with_steps: options.unload_dependents,
        };
        self.request(model, action)
    }
}

impl ModelConfiguration for Engine {
    fn model_config(&self, model: ModelRef<'_>) -> Result<Arc<ModelConfig>, ServiceError> {
        self.registry().find(model).map(|served| served.config().clone())
    }

    fn model_example(&self, model: ModelRef<'_>) -> Result<Option<Bytes>, ServiceError> {
        self.registry()
            .find(model)
            .map(|served| served.example().cloned())
    }
}

impl Statistics for Engine {
    fn model_statistics(&self, model: Option<ModelRef<'_>>) -> Result<Vec<ModelStatistics>, ServiceError> {
        let mut all = self.metrics();
        if let Some(model) = model {
            all.retain(|metrics| {
                let statistics = &metrics.statistics;
                let is_version = |version| statistics.version == version;
                statistics.name == model.name() && model.version().is_none_or(is_version)
            });
            if all.is_empty() {
                self.registry().find(model)?;
            }
        }
        Ok(all.into_iter().map(|metrics| metrics.statistics).collect())
    }
}

impl Classification for Engine {
    fn classes(&self, model: ModelRef<'_>, output: &str) -> Classes {
        self.registry().find(model).map_or_else(
            |_| Classes::default(),
            |served| Classes::new(served.counts_rows(), served.labels(output)),
        )
    }
}

impl InferenceService for Engine {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new(
            self.config().server_name.clone(),
            self.config().server_version.clone(),
        )
    }

    fn readiness(&self) -> Readiness {
        if self.is_draining.load(Ordering::Relaxed) {
            return Readiness::NotReady("the server is shutting down".to_owned());
        }
        self.registry().readiness(self.config().strict_readiness)
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        let served = self.registry().find(model)?;
        let versions = self.registry().ready_versions(model.name());
        let metadata = (**served.metadata()).clone();
        Ok(Arc::new(metadata.with_versions(versions)))
    }

    fn model_ready(&self, model: ModelRef<'_>) -> Result<(), ServiceError> {
        self.registry().find(model).map(drop)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        if self.is_stopped.load(Ordering::SeqCst) {
            let stopped = ServiceError::new(ErrorCode::Unavailable, "the server is shutting down");
            return Box::pin(async { Err(stopped) });
        }
        self.registry().infer(request, cx)
    }

    fn infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        if self.is_stopped.load(Ordering::SeqCst) {
            let stopped = ServiceError::new(ErrorCode::Unavailable, "the server is shutting down");
            return Box::pin(async { Err(stopped) });
        }
        self.registry().infer_stream(request, cx)
    }

    fn start_draining(&self) {
        self.start_draining();
    }

    fn stop(&self, deadline: Instant) -> bool {
        self.stop(deadline)
    }

    fn checks_requests(&self) -> bool {
        true
    }

    fn repository(&self) -> Option<&dyn ModelRepository> {
        Some(self)
    }

    fn configuration(&self) -> Option<&dyn ModelConfiguration> {
        Some(self)
    }

    fn classification(&self) -> Option<&dyn Classification> {
        Some(self)
    }

    fn statistics(&self) -> Option<&dyn Statistics> {
        Some(self)
    }

    fn has_schedule_policy(&self) -> bool {
        true
    }
}
