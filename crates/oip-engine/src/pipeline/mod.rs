//! Pipelines: models whose outputs feed other models, known to clients as one.
//!
//! A pipeline is what Triton calls an ensemble: a configuration with `ensemble_scheduling` and no file. Its steps are a
//! graph, whose edges are tensors with names of the pipeline's own. [`plan`] proves the graph: every tensor has one
//! source, every input a tensor, datatypes and shapes fit along each edge, and there is no cycle. [`run`] runs it: a step
//! starts when its tensors are there, steps that do not need each other run at the same time, and tensors are passed on
//! without copies.
//!
//! Models come and go under a pipeline. Each time one does that it uses, it is planned anew; while that fails, the
//! pipeline is there but unavailable, and says why.

mod plan;
mod run;
mod step_models;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use model_config::steps;
use oip_service::RequestContext;
use oip_types::{
    ErrorCode, InferRequest, ModelConfig, ModelMetadata, ModelRef, ServiceError,
    model_config::EnsembleScheduling,
};

pub(crate) use self::step_models::StepModels;

use self::plan::Plan;
use crate::{
    batching::batch,
    run::{
        delivery::Answer,
        statistics::{Ending, Execution, Recorder},
    },
};

/// A pipeline that is served.
pub(crate) struct Pipeline {
    metadata: Arc<ModelMetadata>,
    config: Arc<ModelConfig>,
    plan: Mutex<Result<Arc<Plan>, String>>,
    recorder: Recorder,
}

impl Pipeline {
    /// A pipeline that is yet to be planned.
    pub(crate) fn new(metadata: Arc<ModelMetadata>, config: Arc<ModelConfig>) -> Self {
        Self {
            metadata,
            config,
            plan: Mutex::new(Err("it is being loaded".to_owned())),
            recorder: Recorder::default(),
        }
    }

    pub(crate) fn metadata(&self) -> &Arc<ModelMetadata> {
        &self.metadata
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The models that it runs; one that it runs more than once is there as often.
    pub(crate) fn models(&self) -> impl Iterator<Item = &str> {
        steps(&self.config)
    }

    /// Plans it with the models as they are now. Returns whether it has become available, or is unavailable for another
    /// reason than before.
    pub(crate) fn plan(&self, models: &dyn StepModels) -> bool {
        let none = EnsembleScheduling::default();
        let scheduling = self.config.ensemble_scheduling.as_ref().unwrap_or(&none);
        let find = |model: ModelRef<'_>| models.step_metadata(model, &self.metadata.name);
        let new = Plan::new(&self.metadata, scheduling, find).map(Arc::new);
        let mut plan = self.lock();
        let is_changed = plan.as_ref().err() != new.as_ref().err();
        *plan = new;
        is_changed
    }

    /// Why no request can be run.
    pub(crate) fn unavailable(&self) -> Option<String> {
        self.lock().as_ref().err().cloned()
    }

    /// Checks a request and runs it; `models` answer the steps' requests.
    pub(crate) async fn infer(
        &self,
        request: InferRequest,
        cx: &RequestContext,
        models: &dyn StepModels,
    ) -> Answer {
        let start = Instant::now();
        let mut rows = 1;
        let answer = async {
            self.metadata.check_request(&request)?;
            rows = batch::rows(self.config.max_batch_size.into(), &request)?.unwrap_or(1);
            let plan = self.lock().clone();
            let plan = plan.map_err(|reason| ServiceError::new(ErrorCode::Unavailable, reason))?;
            let wanted = request.outputs.clone();
            let outputs = run::run(&plan, request, cx, models).await?;
            self.metadata.pick_outputs(&wanted, outputs)
        };
        let answer = answer.await;
        let total = cx.received().elapsed();
        match &answer {
            Ok(_) => {
                let execution = Execution {
                    rows,
                    infer: start.elapsed(),
                    ..Execution::default()
                };
                // What its requests waited is in the statistics of the models that they waited for.
                let ending = Ending {
                    rows,
                    queue: Duration::ZERO,
                    total,
                    failure: None,
                };
                self.recorder.batch(&execution, &[ending]);
            }
            Err(error) => self.recorder.failure(error.code(), total),
        }
        answer
    }

    /// Nothing panics while it holds the lock, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, Result<Arc<Plan>, String>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
