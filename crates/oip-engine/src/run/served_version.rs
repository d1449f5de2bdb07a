//! A version of a model that takes requests: what answers them, its cache, configuration and labels.

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
    load::labels::Labels,
    pipeline::{Pipeline, StepModels},
    run::{
        cache::{Found, Generation, Key, ResponseCache},
        charging::{Inputs, charge_outputs},
        client::Answer,
        instances::{Instances, Several},
        statistics::{Recorder, VersionMetrics},
    },
};

/// A version of a model that takes requests, with what there is to know of it.
///
/// Users hold it by an [`Arc`]; when the last one is gone, it can be ended without losing a request.
pub(crate) struct ServedVersion {
    version: Option<String>,
    runs: Runs,
    config: Configs,
    labels: Labels,
    /// The body of an inference request, as its files have it.
    example: Option<Bytes>,
    cache: Option<Arc<ResponseCache>>,
    /// Of this load.
    generation: Generation,
    /// Whether it has asked another model by itself.
    asks_others: AtomicBool,
}

/// The effective configuration of a version.
pub(crate) struct Configs {
    pub(crate) usual: Arc<ModelConfig>,
    /// Whether requests are joined; none of a pipeline, whose steps join them.
    pub(crate) joining: Option<Joining>,
    /// On what it runs, if its backend says so.
    pub(crate) placement: Option<Placement>,
    /// Whether the first dimension of outputs counts rows.
    pub(crate) counts_rows: bool,
    /// For a model whose requests are joined although the configuration does not say so: what holds once its outputs had other rows
    /// than its inputs.
    pub(crate) without_batches: Option<Arc<ModelConfig>>,
}

/// What answers requests.
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

    /// Sets the example request that its files have.
    pub(crate) fn bring_example(&mut self, example: Option<Bytes>) {
        self.example = example;
    }

    /// The body of an inference request, as its files have it.
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

    /// Its configuration as it is in effect.
    pub(crate) fn config(&self) -> &Arc<ModelConfig> {
        match (&self.config.without_batches, &self.runs) {
            (Some(config), Runs::Instances(instances)) if !instances.is_joining() => config,
            _ => &self.config.usual,
        }
    }

    /// Whether requests are joined; none of a pipeline, whose steps join them.
    pub(crate) fn joining(&self) -> Option<&Joining> {
        self.config.joining.as_ref()
    }

    /// On what it runs, if its backend says so.
    pub(crate) fn placement(&self) -> Option<&Placement> {
        self.config.placement.as_ref()
    }

    /// Whether the first dimension of outputs counts rows, each of which has classes of its own.
    pub(crate) fn counts_rows(&self) -> bool {
        self.config.counts_rows
    }

    /// The pipeline that it is, if it is one.
    pub(crate) fn pipeline(&self) -> Option<&Pipeline> {
        match &self.runs {
            Runs::Instances(_) => None,
            Runs::Pipeline(pipeline) => Some(pipeline),
        }
    }

    /// It asks another model by itself, whose changes its answers depend on: none of them is kept any more.
    pub(crate) fn note_asks_others(&self) {
        self.asks_others.store(true, Ordering::Relaxed);
    }

    /// Whether it asks other models, or is a pipeline with a step that does.
    pub(crate) fn asks_others(&self, models: &dyn StepModels) -> bool {
        match &self.runs {
            Runs::Instances(_) => self.asks_others.load(Ordering::Relaxed),
            Runs::Pipeline(pipeline) => pipeline.asks_others(models),
        }
    }

    /// The cache, if it may be asked. A request of another model's never waits here for one in work: by way of a pipeline, that may be
    /// the one it was made for.
    fn cache_for(&self, cx: &RequestContext, models: &dyn StepModels) -> Option<&ResponseCache> {
        let cache = self.cache.as_deref()?;
        let may_wait = cx.caller().is_none() || self.pipeline().is_none();
        (may_wait && !self.asks_others(models)).then_some(cache)
    }

    /// Answers a request; `models` answer those that a pipeline makes of it.
    pub(crate) async fn infer(
        &self,
        request: InferRequest,
        cx: &RequestContext,
        models: &dyn StepModels,
    ) -> Answer {
        let run = async |request| match &self.runs {
            Runs::Instances(instances) => instances.infer(request, cx).await,
            Runs::Pipeline(pipeline) => pipeline.infer(request, cx, models).await,
        };
        let Some(cache) = self.cache_for(cx, models) else {
            return run(request).await;
        };
        // A request that does not fit the model is not looked for.
        self.metadata().check_request(&request).inspect_err(|error| {
            self.recorder().failure(error.code(), cx.received().elapsed());
        })?;
        let start = Instant::now();
        let found = cache.find(Key::new(self.generation(), &request));
        let looked = start.elapsed();
        let given = match found {
            Found::Answer(outputs) => Some(outputs),
            Found::InWork(answer) => answer.await.ok(),
            Found::Nothing(leader) => {
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
            // The request in work was given up, or failed, which need not be true of this one.
            let outputs = run(request).await?;
            self.recorder().miss(looked);
            return Ok(outputs);
        };
        let outputs = charge_outputs(cx.lease(), &Inputs::of(&request), false, outputs)
            .inspect_err(|error| self.recorder().failure(error.code(), cx.received().elapsed()))?;
        self.recorder().hit(looked, cx.received().elapsed());
        Ok(outputs)
    }

    /// Whether it gives any number of answers to a request, which [`ServedVersion::infer_several`] starts.
    pub(crate) fn is_decoupled(&self) -> bool {
        matches!(&self.runs, Runs::Instances(instances) if instances.is_decoupled())
    }

    /// Has a request run of which any number of answers may come; `None` of a pipeline, which gives one.
    pub(crate) fn infer_several(
        &self,
        request: InferRequest,
        cx: &RequestContext,
    ) -> Option<Result<Several, ServiceError>> {
        match &self.runs {
            Runs::Instances(instances) => Some(instances.infer_several(request, cx)),
            Runs::Pipeline(_) => None,
        }
    }

    /// What its answers are kept under: another number than for any other load, and for a pipeline also when one of its
    /// models has changed.
    pub(crate) fn generation(&self) -> Generation {
        match &self.runs {
            Runs::Instances(_) => self.generation,
            Runs::Pipeline(pipeline) => pipeline.generation(),
        }
    }

    /// Why no request can be run although the model is loaded.
    pub(crate) fn unavailable(&self) -> Option<String> {
        match &self.runs {
            Runs::Instances(instances) => instances.unavailable(),
            Runs::Pipeline(pipeline) => pipeline.unavailable().map(|reason| reason.to_string()),
        }
    }

    /// What happened to its requests.
    pub(crate) fn metrics(&self) -> VersionMetrics {
        self.recorder()
            .snapshot(&self.metadata().name, self.version(), self.waiting())
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        match &self.runs {
            Runs::Instances(instances) => instances.waiting(),
            // They wait for the models of its steps.
            Runs::Pipeline(_) => 0,
        }
    }

    fn recorder(&self) -> &Recorder {
        match &self.runs {
            Runs::Instances(instances) => instances.recorder(),
            Runs::Pipeline(pipeline) => pipeline.recorder(),
        }
    }

    /// Takes no more requests; those in the queue are still answered.
    pub(crate) fn stop(&self) {
        if let Runs::Instances(instances) = &self.runs {
            instances.stop();
        }
    }

    /// Waits for its threads to end after [`ServedVersion::stop`]; see [`Instances::join`].
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        match &self.runs {
            Runs::Instances(instances) => instances.join(deadline),
            Runs::Pipeline(pipeline) => pipeline.join(deadline),
        }
    }

    /// The names of an output's classes; empty where there are none.
    pub(crate) fn labels(&self, output: &str) -> Arc<[String]> {
        self.labels.of(output)
    }
}
