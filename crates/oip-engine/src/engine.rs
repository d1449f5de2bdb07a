use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use oip_service::{BoxFuture, InferenceService, Readiness, RequestContext, extensions::Statistics};
use oip_types::{
    InferRequest, InferResponse, ModelMetadata, ModelRef, ModelStatistics, Parameters, ServerMetadata,
    ServiceError,
};
use tensor_core::Quoted;

use crate::{BatchPolicy, ModelStatus, Repository, VersionMetrics, loader::load_all, registry::Registry};

/// How an engine works.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The server's name, for its metadata.
    pub server_name: String,
    /// The server's version, for its metadata.
    pub server_version: String,
    /// Threads per model version (as many as the machine has cores).
    pub instances: usize,
    /// Requests that may wait for one model version (256).
    pub queue_capacity: usize,
    /// Rows of a batch that nobody configured ([`BatchPolicy::DEFAULT_MAX_ROWS`]); 0 so that requests are only joined
    /// where a configuration says so.
    pub default_max_batch_size: u64,
    /// How long an instance may go on with a request that nobody waits for any more before it counts as lost (5 s).
    pub hang_timeout: Duration,
    /// Models that are loaded at the same time (as many as the machine has cores).
    pub parallel_loads: usize,
    /// How long loading one model may take (120 s).
    pub load_timeout: Duration,
    /// Whether one model that fails to load makes the server not ready (yes).
    pub strict_readiness: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            server_name: "tensorwire".to_owned(),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            instances: cores,
            queue_capacity: 256,
            default_max_batch_size: BatchPolicy::DEFAULT_MAX_ROWS,
            hang_timeout: Duration::from_secs(5),
            parallel_loads: cores,
            load_timeout: Duration::from_secs(120),
            strict_readiness: true,
        }
    }
}

/// Loads and runs the models of a repository; see the [crate's page](crate).
pub struct Engine {
    registry: Arc<Registry>,
    config: EngineConfig,
    is_draining: AtomicBool,
}

impl Engine {
    /// Starts loading all models of a repository, in the background, and returns at once.
    #[must_use]
    pub fn start(repository: Repository, config: EngineConfig) -> Self {
        let registry = Arc::new(Registry::default());
        for model in &repository.models {
            registry.insert_loading(&model.name, model.version.as_deref());
        }
        let loading = thread::Builder::new().name("load".to_owned()).spawn({
            let (registry, config) = (registry.clone(), config.clone());
            move || load_all(repository.models, &registry, &config)
        });
        if let Err(error) = loading {
            // What was not loaded stays "loading", so the server never says that it is ready.
            tracing::error!(%error, "the system gave no thread to load models");
        }
        Self {
            registry,
            config,
            is_draining: AtomicBool::new(false),
        }
    }

    /// Waits until every model is loaded or has failed.
    pub fn wait_until_loaded(&self) {
        self.registry.wait_until_loaded();
    }

    /// All versions of all models and how they are.
    #[must_use]
    pub fn models(&self) -> Vec<ModelStatus> {
        self.registry.statuses()
    }

    /// What happened to the requests to each version that is ready, by model and version.
    #[must_use]
    pub fn metrics(&self) -> Vec<VersionMetrics> {
        self.registry
            .instances()
            .iter()
            .map(|instances| instances.metrics())
            .collect()
    }

    /// From now on the server says that it is not ready; requests are still answered.
    pub fn start_draining(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Takes no more requests, finishes those that are queued, and ends the threads. Returns whether all ended before
    /// the deadline; a thread that hangs in its model is left behind.
    pub fn stop(&self, deadline: Instant) -> bool {
        let instances = self.registry.instances();
        instances.iter().for_each(|instances| instances.stop());
        instances.iter().all(|instances| instances.join(deadline))
    }
}

impl InferenceService for Engine {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata {
            name: self.config.server_name.clone(),
            version: self.config.server_version.clone(),
            extensions: Vec::new(),
        }
    }

    fn readiness(&self) -> Readiness {
        if self.is_draining.load(Ordering::Relaxed) {
            return Readiness::NotReady("the server is shutting down".to_owned());
        }
        self.registry.readiness(self.config.strict_readiness)
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        let instances = self.registry.find(model)?;
        let versions = self.registry.ready_versions(model.name());
        Ok(Arc::new(ModelMetadata {
            versions,
            ..(**instances.metadata()).clone()
        }))
    }

    fn model_ready(&self, model: ModelRef<'_>) -> Result<(), ServiceError> {
        self.registry.find(model).map(drop)
    }

    fn statistics(&self) -> Option<&dyn Statistics> {
        Some(self)
    }

    fn has_schedule_policy(&self) -> bool {
        true
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async move {
            let instances = self.registry.find(request.model())?;
            let metadata = instances.metadata();
            let within_model =
                |error: ServiceError| error.within(format_args!("model {}", Quoted(&metadata.name)));
            let mut response = InferResponse {
                model_name: metadata.name.clone(),
                model_version: instances.version().map(str::to_owned),
                id: request.id.clone(),
                parameters: Parameters::new(),
                outputs: Vec::new(),
            };
            response.outputs = instances.infer(request, &cx).await.map_err(within_model)?;
            Ok(response)
        })
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
                self.registry.find(model)?;
            }
        }
        Ok(all.into_iter().map(|metrics| metrics.statistics).collect())
    }
}
