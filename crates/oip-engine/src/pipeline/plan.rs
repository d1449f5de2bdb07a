//! Plans a pipeline before it serves requests: checks its steps against their models, and orders them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use oip_types::{
    ModelMetadata, ModelRef, RequestedOutput, ShapePattern, TensorMetadata,
    model_config::{EnsembleScheduling, EnsembleStep},
};
use tensor_core::QuotedName;

use super::error::{PlanError, StepError, StepLocation, TensorSource};

/// The checked steps of a pipeline.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Input tensors, in the order of the metadata.
    pub(super) inputs: Vec<PipelineInput>,
    /// Output tensors, by name.
    pub(super) outputs: Vec<(String, Tensor)>,
    /// Steps in topological order.
    pub(super) steps: Vec<Step>,
    /// Number of distinct tensors in the pipeline, including its inputs.
    pub(super) tensors: usize,
}

/// An input of the pipeline and its tensor.
#[derive(Debug)]
pub(super) struct PipelineInput {
    pub(super) name: String,
    pub(super) tensor: Tensor,
}

/// Index of a tensor in the plan.
pub(super) type Tensor = usize;

/// A step of the pipeline: a model and the tensors that it reads and writes.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) model: String,
    pub(super) version: Option<String>,
    /// The model's inputs and their tensors.
    pub(super) inputs: Vec<(String, Tensor)>,
    /// The model's outputs and their tensors.
    pub(super) outputs: Vec<(String, Tensor)>,
}

impl Plan {
    /// Returns the models of the steps.
    pub(super) fn models(&self) -> impl Iterator<Item = ModelRef<'_>> {
        let steps = self.steps.iter();
        // Planning has checked the names.
        steps.filter_map(|step| ModelRef::new(&step.model, step.version.as_deref()).ok())
    }

    /// Checks the steps in `scheduling` and connects their tensors.
    ///
    /// `metadata` has the pipeline's own inputs and outputs. `find` returns the metadata of a step's model,
    /// or an error.
    ///
    /// # Errors
    /// The first problem found, with the step or tensor concerned.
    pub(crate) fn new(
        metadata: &ModelMetadata,
        scheduling: &EnsembleScheduling,
        find: impl Fn(ModelRef<'_>) -> Result<Arc<ModelMetadata>, StepError>,
    ) -> Result<Self, PlanError> {
        let mut graph = Graph::default();
        let inputs = metadata.inputs.iter().map(|input| {
            let tensor = graph.define(&input.name, TensorSource::Client, input)?;
            Ok(PipelineInput {
                name: input.name.clone(),
                tensor,
            })
        });
        let inputs = inputs.collect::<Result<Vec<_>, PlanError>>()?;
        let mut models = Vec::new();
        for (index, step) in scheduling.step.iter().enumerate() {
            let place = || StepLocation {
                index,
                model: step.model_name.clone(),
            };
            if step.model_name == metadata.name {
                return Err(PlanError::Itself(place()));
            }
            let version = (step.model_version >= 0).then(|| step.model_version.to_string());
            let model = ModelRef::new(&step.model_name, version.as_deref())
                .map_err(StepError::NotServed)
                .and_then(&find)
                .map_err(|source| PlanError::Model {
                    step: place(),
                    source,
                })?;
            graph.define_outputs(index, step, &model)?;
            models.push((model, version));
        }
        let steps = scheduling.step.iter().zip(models).enumerate();
        let steps = steps
            .map(|(index, (step, (model, version)))| graph.step(index, step, &model, version))
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = metadata
            .outputs
            .iter()
            .map(|output| {
                Ok((
                    output.name.clone(),
                    graph.read(&output.name, &"the pipeline's output", output)?,
                ))
            })
            .collect::<Result<Vec<_>, PlanError>>()?;
        graph.check_inputs_read()?;
        let tensors = graph.tensors.len();
        Ok(Self {
            inputs,
            outputs,
            steps: graph.sort(steps)?,
            tensors,
        })
    }

    /// Returns the outputs named in `requested` with their tensors; all outputs of the pipeline if
    /// `requested` is empty.
    pub(super) fn wanted<'a>(
        &'a self,
        requested: &'a [RequestedOutput],
    ) -> impl Iterator<Item = &'a (String, Tensor)> {
        let is_wanted =
            |name: &str| requested.is_empty() || requested.iter().any(|output| output.name == name);
        self.outputs.iter().filter(move |(name, _)| is_wanted(name))
    }
}

/// The graph under construction.
#[derive(Default)]
struct Graph {
    tensors: Vec<Edge>,
    by_name: BTreeMap<String, Tensor>,
}

/// A tensor with its source and type.
struct Edge {
    name: String,
    source: TensorSource,
    metadata: TensorMetadata,
    is_read: bool,
}

impl Graph {
    fn define(
        &mut self,
        name: &str,
        source: TensorSource,
        metadata: &TensorMetadata,
    ) -> Result<Tensor, PlanError> {
        let number = self.tensors.len();
        if let Some(first) = self.by_name.insert(name.to_owned(), number) {
            return Err(PlanError::TwoSources {
                tensor: name.to_owned(),
                first: self.tensors[first].source,
                second: source,
            });
        }
        self.tensors.push(Edge {
            name: name.to_owned(),
            source,
            metadata: metadata.clone(),
            is_read: false,
        });
        Ok(number)
    }

    /// Defines the tensors that the step `index` writes.
    fn define_outputs(
        &mut self,
        index: usize,
        step: &EnsembleStep,
        model: &ModelMetadata,
    ) -> Result<(), PlanError> {
        for (output, tensor) in &step.output_map {
            let known = named(&model.outputs, output).ok_or_else(|| PlanError::NoSuchOutput {
                step: StepLocation {
                    index,
                    model: step.model_name.clone(),
                },
                output: output.clone(),
            })?;
            self.define(tensor, TensorSource::Step(index), known)?;
        }
        Ok(())
    }

    /// Checks that the pipeline reads each of its inputs.
    fn check_inputs_read(&self) -> Result<(), PlanError> {
        let mut inputs = self
            .tensors
            .iter()
            .filter(|tensor| tensor.source == TensorSource::Client);
        match inputs.find(|input| !input.is_read) {
            Some(unused) => Err(PlanError::UnusedInput {
                input: unused.name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Connects a tensor to an input, if their types match.
    fn read(
        &mut self,
        name: &str,
        reader: &dyn fmt::Display,
        expected: &TensorMetadata,
    ) -> Result<Tensor, PlanError> {
        let number = self.by_name.get(name).copied();
        let number = number.ok_or_else(|| PlanError::NoSource {
            tensor: name.to_owned(),
            reader: format!("{reader} {expected}"),
        })?;
        let edge = &mut self.tensors[number];
        edge.is_read = true;
        let found = &edge.metadata;
        if found.datatype != expected.datatype || !overlap(&found.shape, &expected.shape) {
            return Err(PlanError::Mismatch {
                tensor: name.to_owned(),
                source_tensor: format!("{} {found}", edge.source),
                reader: format!("{reader} {expected}"),
            });
        }
        Ok(number)
    }

    fn step(
        &mut self,
        index: usize,
        step: &EnsembleStep,
        model: &ModelMetadata,
        version: Option<String>,
    ) -> Result<Step, PlanError> {
        let place = || StepLocation {
            index,
            model: step.model_name.clone(),
        };
        let mut inputs = Vec::new();
        for (input, tensor) in &step.input_map {
            let known = named(&model.inputs, input).ok_or_else(|| PlanError::NoSuchInput {
                step: place(),
                input: input.clone(),
            })?;
            inputs.push((
                input.clone(),
                self.read(tensor, &format_args!("{} input", place()), known)?,
            ));
        }
        let is_missing =
            |input: &&TensorMetadata| !input.optional && !step.input_map.contains_key(&input.name);
        if let Some(missing) = model.inputs.iter().find(is_missing) {
            return Err(PlanError::MissingInput {
                step: place(),
                input: missing.to_string(),
            });
        }
        let outputs = step.output_map.iter();
        Ok(Step {
            model: step.model_name.clone(),
            version,
            inputs,
            outputs: outputs
                .map(|(output, tensor)| (output.clone(), self.by_name[tensor]))
                .collect(),
        })
    }

    /// Sorts the steps topologically.
    fn sort(&self, steps: Vec<Step>) -> Result<Vec<Step>, PlanError> {
        let mut waiting: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
        let mut is_there: Vec<bool> = self
            .tensors
            .iter()
            .map(|tensor| tensor.source == TensorSource::Client)
            .collect();
        let mut sorted = Vec::with_capacity(waiting.len());
        loop {
            let before = sorted.len();
            for slot in &mut waiting {
                let can_run = |step: &mut Step| step.inputs.iter().all(|(_, tensor)| is_there[*tensor]);
                let Some(step) = slot.take_if(can_run) else {
                    continue;
                };
                step.outputs
                    .iter()
                    .for_each(|(_, tensor)| is_there[*tensor] = true);
                sorted.push(step);
            }
            if sorted.len() == waiting.len() {
                return Ok(sorted);
            }
            if sorted.len() == before {
                return Err(self.cycle(&waiting, &is_there));
            }
        }
    }

    /// Describes a cycle: walks from a blocked step to the step that it depends on, until a step repeats.
    fn cycle(&self, waiting: &[Option<Step>], is_there: &[bool]) -> PlanError {
        let mut walked: Vec<(usize, Tensor)> = Vec::new();
        let mut index = waiting.iter().position(Option::is_some).unwrap_or_default();
        loop {
            if let Some(start) = walked.iter().position(|(step, _)| *step == index) {
                // The walk went against the direction of the edges, so the steps are reversed.
                let mut told: Vec<String> = walked[start..]
                    .iter()
                    .rev()
                    .map(|(step, tensor)| {
                        format!("{} -> step {step}", QuotedName(&self.tensors[*tensor].name))
                    })
                    .collect();
                told.insert(0, format!("step {index}"));
                return PlanError::Cycle { walk: told };
            }
            let missing = waiting[index]
                .iter()
                .flat_map(|step| &step.inputs)
                .map(|(_, tensor)| *tensor);
            let missing = missing.into_iter().find(|tensor| !is_there[*tensor]);
            match missing.map(|tensor| (tensor, self.tensors[tensor].source)) {
                Some((tensor, TensorSource::Step(source))) => {
                    walked.push((index, tensor));
                    index = source;
                }
                // Every blocked step depends on a tensor of another blocked step.
                _ => return PlanError::Cycle { walk: Vec::new() },
            }
        }
    }
}

/// Returns whether some shape matches both patterns.
fn overlap(one: &ShapePattern, other: &ShapePattern) -> bool {
    let fits = |(one, other): (&Option<u64>, &Option<u64>)| match (one, other) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    let (ranks, leading) = (
        [one.dims().len(), other.dims().len()],
        [one.has_any_leading(), other.has_any_leading()],
    );
    let has_rank = match leading {
        [true, true] => true,
        [true, false] => ranks[0] <= ranks[1],
        [false, true] => ranks[1] <= ranks[0],
        [false, false] => ranks[0] == ranks[1],
    };
    // Compare from the last dimension: a pattern that allows any rank allows any leading dimensions.
    has_rank && one.dims().iter().rev().zip(other.dims().iter().rev()).all(fits)
}

fn named<'m>(tensors: &'m [TensorMetadata], name: &str) -> Option<&'m TensorMetadata> {
    tensors.iter().find(|tensor| tensor.name == name)
}

#[cfg(test)]
mod tests {
    use oip_types::{DataType, ServiceError};

    use super::*;

    fn model(name: &str) -> Result<Arc<ModelMetadata>, StepError> {
        let tensor = TensorMetadata::new;
        let (inputs, outputs) = match name {
            "scale" | "shift" => (
                vec![tensor("x", DataType::FP32, &[-1, 4])],
                vec![tensor("y", DataType::FP32, &[-1, 4])],
            ),
            "sum" => (
                vec![
                    tensor("a", DataType::FP32, &[-1, 4]),
                    tensor("b", DataType::FP32, &[-1, 4]),
                ],
                vec![tensor("y", DataType::FP32, &[-1])],
            ),
            "count" => (
                vec![tensor("x", DataType::INT64, &[-1, 4])],
                vec![tensor("y", DataType::INT64, &[1])],
            ),
            "narrow" => (
                vec![tensor("x", DataType::FP32, &[-1, 3])],
                vec![tensor("y", DataType::FP32, &[-1])],
            ),
            other => {
                return Err(ServiceError::invalid(format!("model '{other}' does not exist")).into());
            }
        };
        Ok(Arc::new(ModelMetadata::new(name, String::new(), inputs, outputs)))
    }

    fn step(model: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> EnsembleStep {
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()))
                .collect()
        };
        EnsembleStep {
            model_name: model.into(),
            input_map: map(inputs),
            output_map: map(outputs),
            ..EnsembleStep::default()
        }
    }

    fn plan(steps: Vec<EnsembleStep>) -> Result<Plan, PlanError> {
        let metadata = ModelMetadata::new(
            "pipeline",
            "ensemble",
            vec![TensorMetadata::new("in", DataType::FP32, &[-1, 4])],
            vec![TensorMetadata::new("out", DataType::FP32, &[-1])],
        );
        Plan::new(&metadata, &EnsembleScheduling { step: steps }, |found| {
            model(found.name())
        })
    }

    #[test]
    fn steps_are_put_in_the_order_of_their_tensors() {
        let pipeline = plan(vec![
            step("sum", &[("a", "scaled"), ("b", "shifted")], &[("y", "out")]),
            step("shift", &[("x", "scaled")], &[("y", "shifted")]),
            step("scale", &[("x", "in")], &[("y", "scaled")]),
        ])
        .unwrap();
        let order: Vec<&str> = pipeline.steps.iter().map(|step| step.model.as_str()).collect();
        assert_eq!(order, ["scale", "shift", "sum"]);
        assert_eq!(pipeline.tensors, 4);
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_edge() {
        let scale = || step("scale", &[("x", "in")], &[("y", "scaled")]);
        let sum = || step("sum", &[("a", "scaled"), ("b", "scaled")], &[("y", "out")]);
        for (steps, message) in [
            (
                vec![scale(), step("pipeline", &[], &[])],
                "step 1 (model 'pipeline') is the pipeline itself",
            ),
            (
                vec![step("none", &[], &[])],
                "step 0 (model 'none'): model 'none' does not exist",
            ),
            (
                vec![step("../x", &[], &[])],
                "step 0 (model '../x'): model name '../x' must not contain a path separator",
            ),
            (
                vec![step("scale", &[("x", "in")], &[("z", "out")])],
                "step 0 (model 'scale'): the model has no output 'z'",
            ),
            (
                vec![scale(), sum(), step("scale", &[("x", "in"), ("z", "in")], &[])],
                "step 2 (model 'scale'): the model has no input 'z'",
            ),
            (
                vec![scale(), step("sum", &[("a", "scaled")], &[("y", "out")])],
                "step 1 (model 'sum'): no tensor goes to the model's input 'b' (FP32[-1, 4])",
            ),
            (
                vec![scale(), step("shift", &[("x", "in")], &[("y", "scaled")])],
                "tensor 'scaled' has two sources: step 0 output and step 1 output",
            ),
            (
                vec![step("scale", &[("x", "in")], &[("y", "in")])],
                "tensor 'in' has two sources: the pipeline's input and step 0 output",
            ),
            (
                vec![sum()],
                "tensor 'scaled' goes to step 0 (model 'sum') input 'a' (FP32[-1, 4]), but has no source",
            ),
            (
                vec![scale()],
                "tensor 'out' goes to the pipeline's output 'out' (FP32[-1]), but has no source",
            ),
            (
                vec![scale(), step("count", &[("x", "scaled")], &[("y", "out")])],
                "tensor 'scaled' comes from step 0 output 'y' (FP32[-1, 4]), but goes to step 1 (model 'count') input 'x' (INT64[-1, 4])",
            ),
            (
                vec![scale(), step("narrow", &[("x", "scaled")], &[("y", "out")])],
                "tensor 'scaled' comes from step 0 output 'y' (FP32[-1, 4]), but goes to step 1 (model 'narrow') input 'x' (FP32[-1, 3])",
            ),
            (
                vec![step("scale", &[("x", "in")], &[("y", "out")])],
                "tensor 'out' comes from step 0 output 'y' (FP32[-1, 4]), but goes to the pipeline's output 'out' (FP32[-1])",
            ),
            (
                vec![
                    scale(),
                    step("sum", &[("a", "scaled"), ("b", "back")], &[("y", "out")]),
                    step("shift", &[("x", "forth")], &[("y", "back")]),
                    step("scale", &[("x", "back")], &[("y", "forth")]),
                ],
                "the steps form a cycle: step 2 -> 'back' -> step 3 -> 'forth' -> step 2",
            ),
            (
                vec![
                    step("shift", &[("x", "t")], &[("y", "t")]),
                    step("sum", &[("a", "t"), ("b", "in")], &[("y", "out")]),
                ],
                "the steps form a cycle: step 0 -> 't' -> step 0",
            ),
            (
                vec![
                    step("shift", &[("x", "t")], &[("y", "u")]),
                    step("sum", &[("a", "t"), ("b", "t")], &[("y", "out")]),
                ],
                "tensor 't' goes to step 0 (model 'shift') input 'x' (FP32[-1, 4]), but has no source",
            ),
        ] {
            assert_eq!(plan(steps).unwrap_err().to_string(), message);
        }
    }
}
