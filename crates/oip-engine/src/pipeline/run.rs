//! Runs one request through a planned pipeline: each step as soon as its input tensors are available.

use std::{mem, time::Instant};

use futures_util::{StreamExt, stream::FuturesUnordered};
use oip_resources::StageKind;
use oip_service::RequestContext;
use oip_types::{
    InferInput, InferOutput, InferRequest, ModelRef, Parameters, RequestedOutput, ServiceError, TensorValue,
};

use super::{
    plan::{Plan, Step},
    step_models::StepModels,
};

/// Runs a pipeline for a request. The caller has checked the request against the pipeline's metadata.
///
/// `models` runs the steps, each through its own queue. Only steps needed for the requested outputs run. When
/// a step fails, the futures of the other steps are dropped, which cancels them.
///
/// # Errors
/// The error of the first step that fails.
pub(crate) async fn run(
    plan: &Plan,
    mut request: InferRequest,
    cx: &RequestContext,
    models: &dyn StepModels,
) -> Result<Vec<InferOutput>, ServiceError> {
    let mut state = State::new(plan, &request.outputs);
    let parameters = mem::take(&mut request.parameters);
    for given in &plan.inputs {
        let value = request.take_input(&given.name)?;
        state.tensors[given.tensor].put(value);
    }
    let mut running = FuturesUnordered::new();
    loop {
        for index in state.ready() {
            let step = &plan.steps[index];
            let request = state.request(step, &request, &parameters)?;
            let traced = TracedStep::begin(cx, &step.model);
            let number = traced.as_ref().map_or(cx.step(), |traced| traced.number);
            let answer = models.infer_step(request, cx.clone().with_step(number));
            running.push(async move {
                let answer = answer.await;
                drop(traced);
                (index, answer)
            });
        }
        let Some((index, answer)) = running.next().await else {
            break;
        };
        let step = &plan.steps[index];
        for output in answer?.outputs {
            if let Some((_, tensor)) = step.outputs.iter().find(|(name, _)| *name == output.name) {
                state.tensors[*tensor].put(output.value);
            }
        }
    }
    let outputs = plan.wanted(&request.outputs).map(|(name, tensor)| {
        let lost = || ServiceError::internal(format!("no step returned the output '{name}'"));
        Ok(InferOutput::new(
            name,
            state.tensors[*tensor].take().ok_or_else(lost)?,
        ))
    });
    outputs.collect()
}

/// The trace span of a step.
struct TracedStep<'a> {
    cx: &'a RequestContext,
    model: &'a str,
    number: u32,
    start: Instant,
}

impl<'a> TracedStep<'a> {
    /// Begins the span, if the request is traced.
    fn begin(cx: &'a RequestContext, model: &'a str) -> Option<Self> {
        Some(Self {
            cx,
            model,
            number: cx.lease().notes()?.begin_step()?,
            start: Instant::now(),
        })
    }
}

impl Drop for TracedStep<'_> {
    fn drop(&mut self) {
        if let Some(notes) = self.cx.lease().notes() {
            let (number, model) = (self.number, self.model.to_owned());
            let kind = StageKind::Step { number, model };
            notes.end_stage(kind, self.cx.step(), self.start, Instant::now());
        }
    }
}

/// The state of a run: available tensors and completed steps.
struct State<'p> {
    plan: &'p Plan,
    tensors: Vec<Slot>,
    is_waiting: Vec<bool>,
}

/// A tensor, and how many steps and outputs still need it.
#[derive(Default)]
struct Slot {
    value: Option<TensorValue>,
    readers: usize,
}

impl Slot {
    fn put(&mut self, value: TensorValue) {
        self.value = Some(value).filter(|_| self.readers > 0);
    }

    /// Returns the tensor to a consumer. The last consumer takes it, so that its memory is freed early.
    fn take(&mut self) -> Option<TensorValue> {
        self.readers = self.readers.saturating_sub(1);
        if self.readers == 0 {
            self.value.take()
        } else {
            self.value.clone()
        }
    }
}

impl<'p> State<'p> {
    /// Creates the initial state. Steps that do not contribute to the requested outputs are skipped.
    fn new(plan: &'p Plan, requested: &[RequestedOutput]) -> Self {
        let mut tensors: Vec<Slot> = (0..plan.tensors).map(|_| Slot::default()).collect();
        for (_, tensor) in plan.wanted(requested) {
            tensors[*tensor].readers += 1;
        }
        // The steps are visited in reverse topological order, so that each step comes before the steps that
        // it depends on.
        let mut is_waiting = vec![false; plan.steps.len()];
        for (index, step) in plan.steps.iter().enumerate().rev() {
            is_waiting[index] = step
                .outputs
                .iter()
                .any(|(_, tensor)| tensors[*tensor].readers > 0);
            if is_waiting[index] {
                step.inputs
                    .iter()
                    .for_each(|(_, tensor)| tensors[*tensor].readers += 1);
            }
        }
        Self {
            plan,
            tensors,
            is_waiting,
        }
    }

    /// Takes the steps whose input tensors are all available.
    fn ready(&mut self) -> Vec<usize> {
        let can_run = |step: &Step| {
            step.inputs
                .iter()
                .all(|(_, tensor)| self.tensors[*tensor].value.is_some())
        };
        let steps = self.plan.steps.iter().enumerate();
        let ready: Vec<usize> = steps
            .filter(|(index, step)| self.is_waiting[*index] && can_run(step))
            .map(|(index, _)| index)
            .collect();
        ready.iter().for_each(|index| self.is_waiting[*index] = false);
        ready
    }

    /// Creates the request of a step from its input tensors.
    fn request(
        &mut self,
        step: &Step,
        whole: &InferRequest,
        parameters: &Parameters,
    ) -> Result<InferRequest, ServiceError> {
        let mut request = InferRequest::new(ModelRef::new(&step.model, step.version.as_deref())?);
        request.id.clone_from(&whole.id);
        request.parameters.clone_from(parameters);
        for (name, tensor) in &step.inputs {
            let lost = || ServiceError::internal(format!("the tensor for input '{name}' is gone"));
            request.inputs.push(InferInput {
                name: name.clone(),
                value: self.tensors[*tensor].take().ok_or_else(lost)?,
                parameters: Parameters::new(),
            });
        }
        for (name, tensor) in &step.outputs {
            if self.tensors[*tensor].readers > 0 {
                request.outputs.push(RequestedOutput {
                    name: name.clone(),
                    parameters: Parameters::new(),
                });
            }
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use futures_executor::block_on;
    use oip_model::BoxFuture;
    use oip_types::{
        DataType, InferResponse, ModelMetadata, TensorMetadata,
        model_config::{EnsembleScheduling, EnsembleStep},
    };
    use parking_lot::Mutex;
    use tensor_core::{Shape, Tensor};

    use super::*;
    use crate::{generation::Generation, pipeline::StepError};

    type StepFuture = BoxFuture<'static, Result<InferResponse, ServiceError>>;

    /// Models implemented by a function.
    struct ScriptedModels<F>(F);

    impl<F: Fn(InferRequest) -> StepFuture + Send + Sync> StepModels for ScriptedModels<F> {
        fn step_metadata(&self, model: ModelRef<'_>, _: &str) -> Result<Arc<ModelMetadata>, StepError> {
            Err(ServiceError::invalid(format!("{model} was planned before")).into())
        }

        fn step_generation(&self, _: ModelRef<'_>) -> Option<Generation> {
            None
        }

        fn step_asks_others(&self, _: ModelRef<'_>) -> bool {
            false
        }

        fn infer_step(
            &self,
            request: InferRequest,
            _: RequestContext,
        ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
            self.0(request)
        }
    }

    fn block_on_diamond(
        request: InferRequest,
        answer: impl Fn(InferRequest) -> StepFuture + Send + Sync,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        block_on(run(
            &diamond(),
            request,
            &RequestContext::new(None),
            &ScriptedModels(answer),
        ))
    }

    /// Returns the plan in -> left (adds 1) -> l, in -> right (adds 1) -> r, (l, r) -> join (sum) -> out; l
    /// is also an output.
    fn diamond() -> Plan {
        let tensor = |name: &str| TensorMetadata::new(name, DataType::FP32, &[-1]);
        let metadata = |name: &str, inputs: &[&str], outputs: &[&str]| {
            ModelMetadata::new(
                name,
                String::new(),
                inputs.iter().map(|name| tensor(name)).collect(),
                outputs.iter().map(|name| tensor(name)).collect(),
            )
        };
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()))
                .collect()
        };
        let step = |model: &str, inputs: &[(&str, &str)], output: &str| EnsembleStep {
            model_name: model.to_owned(),
            input_map: map(inputs),
            output_map: map(&[("y", output)]),
            ..EnsembleStep::default()
        };
        let scheduling = EnsembleScheduling {
            step: vec![
                step("join", &[("x", "l"), ("z", "r")], "out"),
                step("left", &[("x", "in")], "l"),
                step("right", &[("x", "in")], "r"),
            ],
        };
        let find = |model: ModelRef<'_>| {
            let inputs: &[&str] = if model.name() == "join" {
                &["x", "z"]
            } else {
                &["x"]
            };
            Ok(metadata(model.name(), inputs, &["y"]).into())
        };
        Plan::new(&metadata("diamond", &["in"], &["out", "l"]), &scheduling, find).unwrap()
    }

    fn floats(values: &[f32]) -> Tensor {
        Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap()
    }

    fn request() -> InferRequest {
        InferRequest::new(ModelRef::new("diamond", None).unwrap()).with_input("in", floats(&[1.0, 2.0]))
    }

    /// Adds 1 to one input, or sums two inputs. Fails for the model `fails`.
    fn answer(request: &InferRequest, fails: &str) -> Result<InferResponse, ServiceError> {
        let name = request.model().name().to_owned();
        if name == fails {
            return Err(ServiceError::internal(format!("model '{name}': it failed")));
        }
        let values = |input: &str| request.input(input)?.as_fixed()?.to_vec::<f32>().ok();
        let x = values("x").unwrap();
        let z = values("z").unwrap_or_else(|| vec![1.0; x.len()]);
        let sums: Vec<f32> = x.iter().zip(z).map(|(x, z)| x + z).collect();
        Ok(InferResponse::new(
            name,
            vec![InferOutput::new("y", floats(&sums))],
        ))
    }

    fn run_diamond(
        request: InferRequest,
        fails: &str,
    ) -> (Result<Vec<InferOutput>, ServiceError>, Vec<String>) {
        let asked = Mutex::new(Vec::new());
        let outputs = block_on_diamond(request, |request| {
            asked.lock().push(request.model().name().to_owned());
            let answer = answer(&request, fails);
            Box::pin(async { answer })
        });
        (outputs, asked.into_inner())
    }

    #[test]
    fn tensors_go_along_the_edges() {
        let (outputs, asked) = run_diamond(request(), "");
        let outputs = outputs.unwrap();
        assert_eq!(outputs[0], InferOutput::new("out", floats(&[4.0, 6.0])));
        assert_eq!(outputs[1], InferOutput::new("l", floats(&[2.0, 3.0])));
        assert_eq!(asked, ["left", "right", "join"]);
    }

    #[test]
    fn steps_that_nobody_needs_do_not_run() {
        let (outputs, asked) = run_diamond(request().with_output("l"), "");
        assert_eq!(outputs.unwrap(), [InferOutput::new("l", floats(&[2.0, 3.0]))]);
        assert_eq!(asked, ["left"]);
    }

    #[test]
    fn a_step_that_fails_ends_the_pipeline() {
        let (outputs, asked) = run_diamond(request(), "right");
        assert_eq!(outputs.unwrap_err().message(), "model 'right': it failed");
        assert!(!asked.contains(&"join".to_owned()));
    }

    #[test]
    fn tensors_are_passed_on_without_a_copy() {
        let request = request();
        let given = request.input("in").unwrap().raw().as_ptr() as usize;
        let outputs = block_on_diamond(request, move |request| {
            let x = request.input("x").unwrap().clone();
            assert_eq!(x.raw().as_ptr() as usize, given);
            let mut response = answer(&request, "").unwrap();
            response.outputs = vec![InferOutput::new("y", x)];
            Box::pin(async { Ok(response) })
        });
        assert_eq!(outputs.unwrap()[0].value.raw().as_ptr() as usize, given);
    }

    #[test]
    fn steps_that_do_not_need_each_other_run_at_the_same_time() {
        let (sender, receiver) = futures_channel::oneshot::channel::<()>();
        let (sender, receiver) = (Mutex::new(Some(sender)), Mutex::new(Some(receiver)));
        // The left step waits until the right one has started.
        let outputs = block_on_diamond(request(), |request| {
            let answer = answer(&request, "");
            match request.model().name() {
                "left" => {
                    let right = receiver.lock().take();
                    Box::pin(async {
                        right.unwrap().await.unwrap();
                        answer
                    })
                }
                "right" => {
                    let left = sender.lock().take();
                    Box::pin(async {
                        left.unwrap().send(()).unwrap();
                        answer
                    })
                }
                _ => Box::pin(async { answer }),
            }
        });
        assert_eq!(outputs.unwrap().len(), 2);
    }
}
