//! A version of a model that accepts requests: its runner, cache, configuration and labels.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use oip_service::RequestContext;
use oip_types::{InferRequest, Joining, ModelConfig, ModelMetadata, Placement, ServiceError};

use crate::{
    generation::Generation,
    infer_result::InferResult,
    pipeline::{Pipeline, StepModels},
    run::{
        charging::{Inputs, charge_outputs},
        instances::{Instances, ResponseStream},
    },
    statistics::{Recorder, VersionMetrics},
    versions::{
        cache::{Key, Lookup, ResponseCache},
        labels::Labels,
    },
};

/// A version of a model that accepts requests, with its metadata.
///
/// Users hold the version in an [`Arc`]. After the last reference is dropped, the version can end without
/// losing a request.
pub(crate) struct ServedVersion {
    version: Option<String>,
    runs: Runs,
    config: Configs,
    labels: Labels,
    /// The body of the example request in the model's files.
    example: Option<Bytes>,
    cache: Option<Arc<ResponseCache>>,
    /// The generation of this load.
    generation: Generation,
    /// Whether the model itself has called another model.
    asks_others: AtomicBool,
}

/// The effective configuration of a version.
pub(crate) struct Configs {
    pub(crate) usual: Arc<ModelConfig>,
    /// Whether requests are batched; `None` for a pipeline, whose steps batch.
    pub(crate) joining: Option<Joining>,
    /// The devices and providers that the model runs on, if its backend reports them.
    pub(crate) placement: Option<Placement>,
    /// Whether the first dimension of outputs is the number of rows.
    pub(crate) counts_rows: bool,
    /// For a model that is batched without a configuration: the configuration to use once an output did not
    /// have as many rows as the batch.
    pub(crate) without_batches: Option<Arc<ModelConfig>>,
}

/// The instances or the pipeline that run the version's requests.
pub(crate) enum Runs {
    Instances(Instances),
    Pipeline(Box<Pipeline>),
}

impl ServedVersion {
    pub(crate) fn new(
        version: Option<String>,
        runs: Runs,
        config: Configs,
        labels: Labels,
        cache: Option<Arc<ResponseCache>>,
    ) -> Self {
        Self {
            version,
            runs,
            config,
            labels,
            example: None,
            cache,
            generation: Generation::next(),
            asks_others: AtomicBool::new(false),
        }
    }

    /// Sets the body of the example request.
    pub(crate) fn bring_example(&mut self, example: Option<Bytes>) {
        self.example = example;
    }

    /// Returns the body of the example request.
    pub(crate) fn example(&self) -> Option<&Bytes> {
        self.example.as_ref()
    }

    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    pub(crate) fn metadata(&self) -> &Arc<ModelMetadata> {
        match &self.runs {
            Runs::Instances(instances) => instances.metadata(),
            Runs::Pipeline(pipeline) => pipeline.metadata(),
        }
    }

    /// Returns the effective configuration.
    pub(crate) fn config(&self) -> &Arc<ModelConfig> {
        match (&self.config.without_batches, &self.runs) {
            (Some(config), Runs::Instances(instances)) if !instances.is_joining() => config,
            _ => &self.config.usual,
        }
    }

    /// Returns whether requests are batched, `None` for a pipeline, whose steps batch.
    pub(crate) fn joining(&self) -> Option<&Joining> {
        self.config.joining.as_ref()
    }

    /// Returns the devices and providers that the model runs on, if its backend reports them.
    pub(crate) fn placement(&self) -> Option<&Placement> {
        self.config.placement.as_ref()
    }

    /// Returns whether the first dimension of outputs is the number of rows; each row has its own classes.
    pub(crate) fn counts_rows(&self) -> bool {
        self.config.counts_rows
    }

    /// Returns the pipeline; `None` for any other model.
    pub(crate) fn pipeline(&self) -> Option<&Pipeline> {
        match &self.runs {
            Runs::Instances(_) => None,
            Runs::Pipeline(pipeline) => Some(pipeline),
        }
    }

    /// Records that the model itself has called another model. Its responses depend on that model, so from
    /// now on they are not cached.
    pub(crate) fn note_asks_others(&self) {
        self.asks_others.store(true, Ordering::Relaxed);
    }

    /// Returns whether the model calls other models, or is a pipeline with a step that does.
    pub(crate) fn asks_others(&self, models: &dyn StepModels) -> bool {
        match &self.runs {
            Runs::Instances(_) => self.asks_others.load(Ordering::Relaxed),
            Runs::Pipeline(pipeline) => pipeline.asks_others(models),
        }
    }

    /// Returns the cache if this request may use it. A call from another model must not wait for an identical
    /// running request: through a pipeline, that may be the request that caused the call.
    fn cache_for(&self, cx: &RequestContext, models: &dyn StepModels) -> Option<&ResponseCache> {
        let cache = self.cache.as_deref()?;
        let may_wait = cx.caller().is_none() || self.pipeline().is_none();
        (may_wait && !self.asks_others(models)).then_some(cache)
    }

    /// Answers a request. `models` runs the steps of a pipeline.
    pub(crate) async fn infer(
        &self,
        request: InferRequest,
        cx: &RequestContext,
        models: &dyn StepModels,
    ) -> InferResult {
        let run = async |request| match &self.runs {
            Runs::Instances(instances) => instances.infer(request, cx).await,
            Runs::Pipeline(pipeline) => pipeline.infer(request, cx, models).await,
        };
        let Some(cache) = self.cache_for(cx, models) else {
            return run(request).await;
        };
        // Invalid requests are refused before the cache lookup.
        self.metadata().check_request(&request).inspect_err(|error| {
            self.recorder().failure(error.code(), cx.received().elapsed());
        })?;
        let start = Instant::now();
        let found = cache.find(Key::new(self.generation(), &request));
        let looked = start.elapsed();
        let given = match found {
            Lookup::Response(outputs) => Some(outputs),
            Lookup::InWork(answer) => answer.await.ok(),
            Lookup::Nothing(leader) => {
                let outputs = run(request).await?;
                let start = Instant::now();
                if !self.asks_others(models) {
                    leader.finish(&outputs);
                }
                self.recorder().miss(looked + start.elapsed());
                return Ok(outputs);
            }
        };
        let Some(outputs) = given else {
            // The identical request was cancelled or failed, but this one may succeed.
            let outputs = run(request).await?;
            self.recorder().miss(looked);
            return Ok(outputs);
        };
        let outputs = charge_outputs(cx.lease(), &Inputs::of(&request), false, outputs)
            .inspect_err(|error| self.recorder().failure(error.code(), cx.received().elapsed()))?;
        self.recorder().hit(looked, cx.received().elapsed());
        Ok(outputs)
    }

    /// Returns whether the model may send any number of responses, which requires
    /// [`ServedVersion::infer_several`].
    pub(crate) fn is_decoupled(&self) -> bool {
        matches!(&self.runs, Runs::Instances(instances) if instances.is_decoupled())
    }

    /// Runs a request that may get any number of responses. Returns `None` for a pipeline, which sends one
    /// response.
    pub(crate) fn infer_several(
        &self,
        request: InferRequest,
        cx: &RequestContext,
    ) -> Option<Result<ResponseStream, ServiceError>> {
        match &self.runs {
            Runs::Instances(instances) => Some(instances.infer_several(request, cx)),
            Runs::Pipeline(_) => None,
        }
    }

    /// Returns the generation of this load, which never changes.
    pub(crate) fn load_generation(&self) -> Generation {
        self.generation
    }

    /// Returns the generation for cached responses. The generation changes with each load, and for a pipeline
    /// also when one of its models changes.
    pub(crate) fn generation(&self) -> Generation {
        match &self.runs {
            Runs::Instances(_) => self.generation,
            Runs::Pipeline(pipeline) => pipeline.generation(),
        }
    }

    /// Returns the reason why the loaded model cannot run requests.
    pub(crate) fn unavailable(&self) -> Option<String> {
        match &self.runs {
            Runs::Instances(instances) => instances.unavailable(),
            Runs::Pipeline(pipeline) => pipeline.unavailable().map(|reason| reason.to_string()),
        }
    }

    /// Returns the statistics of the version's requests.
    pub(crate) fn metrics(&self) -> VersionMetrics {
        self.recorder()
            .snapshot(&self.metadata().name, self.version(), self.waiting())
    }

    /// Returns the number of queued requests.
    pub(crate) fn waiting(&self) -> usize {
        match &self.runs {
            Runs::Instances(instances) => instances.waiting(),
            // A pipeline's requests wait in the queues of the steps' models.
            Runs::Pipeline(_) => 0,
        }
    }

    fn recorder(&self) -> &Recorder {
        match &self.runs {
            Runs::Instances(instances) => instances.recorder(),
            Runs::Pipeline(pipeline) => pipeline.recorder(),
        }
    }

    /// Refuses new requests; queued ones are still answered.
    pub(crate) fn stop(&self) {
        if let Runs::Instances(instances) = &self.runs {
            instances.stop();
        }
    }

    /// Waits until the threads end after [`ServedVersion::stop`]; see [`Instances::join`].
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        match &self.runs {
            Runs::Instances(instances) => instances.join(deadline),
            Runs::Pipeline(pipeline) => pipeline.join(deadline),
        }
    }

    /// Returns the class names of an output; empty if it has none.
    pub(crate) fn labels(&self, output: &str) -> Arc<[String]> {
        self.labels.of(output)
    }
}
