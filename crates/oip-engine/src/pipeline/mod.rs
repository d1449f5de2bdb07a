//! Pipelines: several models that feed each other and are served as one.
//!
//! A pipeline is Triton's ensemble: a configuration with `ensemble_scheduling` and no model file. Its steps
//! form a graph whose edges are named tensors. [`plan`] checks the graph: every tensor has one source, every
//! input has a tensor, datatypes and shapes match along each edge, and there is no cycle. [`run`] executes
//! it: a step starts when its tensors are available, independent steps run concurrently, and tensors are
//! passed on without copies.
//!
//! When a model that a pipeline contains is loaded or unloaded, the pipeline is replanned. If that fails, the
//! pipeline is listed as unavailable with the reason.

mod error;
mod plan;
mod run;
mod step_models;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use model_config::steps;
use oip_service::RequestContext;
use oip_types::{
    ErrorCode, InferRequest, ModelConfig, ModelMetadata, ModelRef, ServiceError,
    model_config::EnsembleScheduling,
};
use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::{
    error::{PlanError, StepError},
    step_models::StepModels,
};

use self::plan::Plan;
use crate::{
    batching::batch,
    generation::Generation,
    infer_result::{InferResult, given_up},
    statistics::{Ending, Execution, Recorder},
};

/// A pipeline in service.
pub(crate) struct Pipeline {
    metadata: Arc<ModelMetadata>,
    config: Arc<ModelConfig>,
    planned: Mutex<CurrentPlan>,
    recorder: Recorder,
    /// Number of running requests.
    running: AtomicUsize,
}

/// The current plan of a pipeline.
struct CurrentPlan {
    plan: Result<Arc<Plan>, Arc<PlanError>>,
    /// Generations of the steps' models at the time of planning.
    steps: Vec<Option<Generation>>,
    /// Generation that becomes part of the cache keys of the pipeline's responses.
    generation: Generation,
}

/// The effect of replanning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// The generation of a step's model changed, for example because the model was loaded again.
    Models,
    /// The pipeline became available or unavailable, or is unavailable for a different reason than before.
    Availability,
}

impl Pipeline {
    /// Creates an unplanned pipeline.
    pub(crate) fn new(metadata: Arc<ModelMetadata>, config: Arc<ModelConfig>) -> Self {
        Self {
            metadata,
            config,
            planned: Mutex::new(CurrentPlan {
                plan: Err(Arc::new(PlanError::Loading)),
                steps: Vec::new(),
                generation: Generation::next(),
            }),
            recorder: Recorder::default(),
            running: AtomicUsize::new(0),
        }
    }

    pub(crate) fn metadata(&self) -> &Arc<ModelMetadata> {
        &self.metadata
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Returns the model of each step; a model may occur several times.
    pub(crate) fn models(&self) -> impl Iterator<Item = &str> {
        steps(&self.config)
    }

    /// Returns the generation that is part of the cache keys of the pipeline's responses.
    pub(crate) fn generation(&self) -> Generation {
        self.lock().generation
    }

    /// Plans the pipeline with the current models. The caller ensures that the models do not change
    /// meanwhile.
    pub(crate) fn plan(&self, models: &dyn StepModels) -> Change {
        let none = EnsembleScheduling::default();
        let scheduling = self.config.ensemble_scheduling.as_ref().unwrap_or(&none);
        let find = |model: ModelRef<'_>| models.step_metadata(model, &self.metadata.name);
        let new = Plan::new(&self.metadata, scheduling, find)
            .map(Arc::new)
            .map_err(Arc::new);
        let steps = new.iter().flat_map(|plan| plan.models());
        let steps: Vec<_> = steps.map(|model| models.step_generation(model)).collect();
        let mut planned = self.lock();
        let reason = |plan: &Result<_, Arc<PlanError>>| plan.as_ref().err().map(ToString::to_string);
        let change = if reason(&planned.plan) != reason(&new) {
            Change::Availability
        } else if planned.steps != steps {
            Change::Models
        } else {
            Change::Nothing
        };
        if change != Change::Nothing {
            planned.generation = Generation::next();
        }
        (planned.plan, planned.steps) = (new, steps);
        change
    }

    /// Returns whether any model that the pipeline runs calls other models.
    pub(crate) fn asks_others(&self, models: &dyn StepModels) -> bool {
        let plan = self.lock().plan.clone();
        plan.is_ok_and(|plan| plan.models().any(|model| models.step_asks_others(model)))
    }

    /// Returns the reason why the pipeline is unavailable; `None` if it is available.
    pub(crate) fn unavailable(&self) -> Option<Arc<PlanError>> {
        self.lock().plan.as_ref().err().cloned()
    }

    /// Checks and runs a request. `models` runs the steps.
    pub(crate) async fn infer(
        &self,
        request: InferRequest,
        cx: &RequestContext,
        models: &dyn StepModels,
    ) -> InferResult {
        let start = Instant::now();
        let mut rows = 1;
        let running = Running::new(self, cx);
        let answer = async {
            self.metadata.check_request(&request)?;
            rows = batch::rows(self.config.max_batch_size.into(), &[], &request)?.unwrap_or(1);
            let plan = self.lock().plan.clone();
            let plan =
                plan.map_err(|reason| ServiceError::new(ErrorCode::Unavailable, reason.to_string()))?;
            let wanted = request.outputs.clone();
            let outputs = run::run(&plan, request, cx, models).await?;
            self.metadata.pick_outputs(&wanted, outputs)
        };
        let answer = answer.await;
        match &answer {
            Ok(_) => {
                let execution = Execution {
                    rows,
                    infer: start.elapsed(),
                    ..Execution::default()
                };
                // The queue time is counted for the models of the steps.
                let ending = Ending {
                    execution: Some(execution),
                    rows,
                    queue: Duration::ZERO,
                    total: cx.received().elapsed(),
                    failure: None,
                };
                self.recorder.execution(&execution);
                self.recorder.endings([ending]);
            }
            Err(error) => self.failure(error.code(), cx),
        }
        running.end();
        answer
    }

    /// Counts a failed request. The request counts as run if a step of the pipeline ran.
    fn failure(&self, code: ErrorCode, cx: &RequestContext) {
        self.recorder.endings([Ending {
            execution: cx.lease().was_run().then(Execution::default),
            rows: 1,
            queue: Duration::ZERO,
            total: cx.received().elapsed(),
            failure: Some(code),
        }]);
    }

    /// Waits for running requests. Returns whether all of them ended by the deadline.
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        loop {
            if self.running.load(Ordering::SeqCst) == 0 {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Locks the current plan.
    fn lock(&self) -> MutexGuard<'_, CurrentPlan> {
        self.planned.lock()
    }
}

/// Guard of a running request. If its future is dropped, the request counts as failed.
struct Running<'a> {
    pipeline: &'a Pipeline,
    cx: &'a RequestContext,
    has_ended: bool,
}

impl<'a> Running<'a> {
    fn new(pipeline: &'a Pipeline, cx: &'a RequestContext) -> Self {
        pipeline.running.fetch_add(1, Ordering::SeqCst);
        Self {
            pipeline,
            cx,
            has_ended: false,
        }
    }

    /// Marks the request as answered.
    fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.pipeline.failure(given_up(self.cx.cancel()), self.cx);
        }
        self.pipeline.running.fetch_sub(1, Ordering::SeqCst);
    }
}
