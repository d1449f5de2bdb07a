//! A model that tract runs: with one plan for all sizes where that works, else with a plan for each shape.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use oip_service::{CancelToken, LoadContext, Model, ModelSource};
use oip_types::{ErrorCode, InferOutput, InferRequest, ModelMetadata, ServiceError, TensorMetadata};
use tensor_core::{Quoted, Shape};
use tract_onnx::prelude::{TValue, TVec};

use crate::{
    configured_dims, convert,
    dims::NamedDims,
    dtype, lower, output_metadata,
    plan::{Plan, Planner},
    proto::{self, ModelProto},
    shape_plans::ShapePlans,
    signature::Signature,
    size,
    tract_limit::TractLimit,
    trial::{self, Fill},
};

/// A model that tract runs.
pub(crate) struct OnnxModel {
    metadata: ModelMetadata,
    named_dims: NamedDims,
    plans: Plans,
}

/// What computes the answers.
enum Plans {
    /// Whatever the sizes are, but for shapes that it failed for.
    Symbolic(Plan, Option<ShapePlans>),
    ByShape(ShapePlans),
}

impl OnnxModel {
    pub(crate) fn load(
        source: &ModelSource,
        model: &ModelProto,
        cx: &LoadContext,
    ) -> Result<Self, ServiceError> {
        let graph = model
            .graph
            .as_ref()
            .ok_or_else(|| ServiceError::invalid(proto::DAMAGED))?;
        let mut signature = Signature::of(model, graph)?;
        configured_dims::fix(&mut signature, &cx.config);
        signature.remove_repeated_outputs();
        let lowered = lower::lower(graph, &signature.opsets)?;
        let planner = Planner::new(signature, lowered)?;
        let named_dims = NamedDims::of(&planner.signature().inputs);
        let (plans, inputs, outputs) = Plans::new(planner, cx)?;
        let metadata = ModelMetadata::new(source.name.clone(), "onnx_onnxv1", inputs, outputs)
            .with_versions([source.version.clone()]);
        Ok(Self {
            metadata,
            named_dims,
            plans,
        })
    }
}

impl Model for OnnxModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(
        &self,
        mut request: InferRequest,
        cancel: &CancelToken,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        let mut inputs: TVec<TValue> = TVec::new();
        let mut shapes = Vec::with_capacity(self.metadata.inputs.len());
        for input in &self.metadata.inputs {
            let value = request.take_input(&input.name)?;
            shapes.push(value.shape().clone());
            let tensor = size::admit_input(&value)
                .and_then(|()| convert::to_tract(&value))
                .map_err(|error| error.within(format!("input {}", Quoted(&input.name))))?;
            inputs.push(tensor.into());
        }
        self.named_dims.check(&shapes)?;
        let outputs = match &self.plans {
            Plans::ByShape(plans) => plans.get(&shapes, cancel)?.run(inputs, cancel)?,
            Plans::Symbolic(plan, None) => plan.run(inputs, cancel)?,
            Plans::Symbolic(_, Some(plans)) if plans.has(&shapes) => {
                plans.get(&shapes, cancel)?.run(inputs, cancel)?
            }
            Plans::Symbolic(plan, Some(plans)) => match plan.run(inputs.clone(), cancel) {
                Ok(outputs) => outputs,
                // What holds for most sizes was taken to hold for all.
                Err(error) if error.code() == ErrorCode::Internal => match plans.get(&shapes, cancel) {
                    Ok(plan) => plan.run(inputs, cancel)?,
                    Err(_) => return Err(error),
                },
                Err(error) => return Err(error),
            },
        };
        let named = self.metadata.outputs.iter().zip(outputs);
        named
            .map(|(output, value)| {
                Ok(InferOutput::new(
                    output.name.as_str(),
                    convert::from_tract(value)?,
                ))
            })
            .collect()
    }
}

/// How long a model is tried with made-up inputs before it is ready.
const MAX_TRIAL: Duration = Duration::from_secs(60);

type Described = (Plans, Vec<TensorMetadata>, Vec<TensorMetadata>);

impl Plans {
    /// Plans that answered made-up inputs, and what is said of the inputs and outputs.
    fn new(planner: Planner, cx: &LoadContext) -> Result<Described, ServiceError> {
        let ports = &planner.signature().inputs;
        let inputs = ports
            .iter()
            .map(output_metadata::of_input)
            .collect::<Result<_, _>>()?;
        let end = Instant::now() + MAX_TRIAL;
        let trial = CancelToken::new(Some(cx.deadline.map_or(end, |deadline| deadline.min(end))));
        let shapes = trial::shapes(ports);
        let symbolic = catch_unwind(AssertUnwindSafe(|| planner.symbolic()));
        let symbolic = symbolic.unwrap_or_else(|_| Err(panicked()));
        let is_fixed = ports
            .iter()
            .all(|port| port.dims.iter().flatten().all(|dim| dim.fixed().is_some()));
        match symbolic {
            Ok(plan) => match answers(&planner, &shapes, &trial, |_| Ok(&plan)) {
                Ok(_) => {
                    let outputs = outputs_of(&planner, &plan)?;
                    let others = (!is_fixed).then(|| ShapePlans::new(planner));
                    Ok((Self::Symbolic(plan, others), inputs, outputs))
                }
                Err(error) if is_fixed => Err(error),
                Err(_) => Self::by_shape(planner, inputs, &shapes, &trial, cx),
            },
            Err(error) if is_fixed || !is_limit(&error) => Err(error),
            Err(_) => Self::by_shape(planner, inputs, &shapes, &trial, cx),
        }
    }

    fn by_shape(
        planner: Planner,
        inputs: Vec<TensorMetadata>,
        shapes: &[Vec<Shape>],
        trial: &CancelToken,
        cx: &LoadContext,
    ) -> Result<Described, ServiceError> {
        let answer = answers(&planner, shapes, trial, |shapes| {
            planner.concrete(shapes).map(Arc::new)
        })?;
        let signature = planner.signature();
        let sizes = output_metadata::free_sizes(&signature.inputs, &answer.shapes);
        let outputs = signature.outputs.iter().zip(&answer.outputs);
        let outputs = outputs
            .map(|(port, (datatype, shape))| output_metadata::of_trial(port, *datatype, shape, &sizes))
            .collect::<Result<_, _>>()?;
        let plans = ShapePlans::new(planner);
        for shapes in configured_dims::expected_shapes(&plans.planner().signature().inputs, &cx.config) {
            plans.get(&shapes, trial)?;
        }
        Ok((Self::ByShape(plans), inputs, outputs))
    }
}

fn outputs_of(planner: &Planner, plan: &Plan) -> Result<Vec<TensorMetadata>, ServiceError> {
    let ports = planner.signature().outputs.iter();
    let facts = plan.outputs()?;
    ports
        .zip(&facts)
        .map(|(port, fact)| output_metadata::of_fact(port, fact))
        .collect()
}

/// What a plan answered to made-up inputs.
struct Answer {
    shapes: Vec<Shape>,
    outputs: Vec<(Option<oip_types::DataType>, Vec<Option<u64>>)>,
}

/// Runs made-up inputs until one is answered. That the values make no sense to the model is an answer too, if there
/// is no other.
fn answers<P: std::ops::Deref<Target = Plan>>(
    planner: &Planner,
    shapes: &[Vec<Shape>],
    trial: &CancelToken,
    plan: impl Fn(&[Shape]) -> Result<P, ServiceError>,
) -> Result<Answer, ServiceError> {
    let ports = &planner.signature().inputs;
    let mut first_error = None;
    let mut refusal = None;
    for shapes in shapes {
        let made = catch_unwind(AssertUnwindSafe(|| plan(shapes)));
        let plan = match made.unwrap_or_else(|_| Err(panicked())) {
            Ok(plan) => plan,
            Err(error) => {
                first_error.get_or_insert(error);
                continue;
            }
        };
        for fill in [Fill::Ones, Fill::Zeros] {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                let inputs = trial::inputs(ports, shapes, fill)
                    .map_err(|error| ServiceError::internal("no inputs could be made up").caused_by(error))?;
                plan.run(inputs, trial)
            }));
            match ran.unwrap_or_else(|_| Err(panicked())) {
                Ok(values) => {
                    let outputs = values.iter().map(|value| {
                        let dims = value.shape().iter().map(|&dim| Some(dim as u64)).collect();
                        (dtype::from_tract(value.datum_type()), dims)
                    });
                    return Ok(Answer {
                        shapes: shapes.clone(),
                        outputs: outputs.collect(),
                    });
                }
                Err(error)
                    if matches!(
                        error.code(),
                        ErrorCode::InvalidArgument | ErrorCode::DeadlineExceeded
                    ) =>
                {
                    if refusal.is_none() {
                        refusal = Some(from_facts(shapes, &plan)?);
                    }
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        if trial.is_cancelled() {
            break;
        }
    }
    if let Some(answer) = refusal {
        return Ok(answer);
    }
    let error =
        first_error.unwrap_or_else(|| ServiceError::invalid("the model's inputs are too large to be tried"));
    Err(match error.code() {
        ErrorCode::InvalidArgument => error,
        _ => ServiceError::invalid(format!(
            "the model fails on made-up inputs of all sizes that were tried: {}",
            error.message()
        ))
        .caused_by(TractLimit::because(Box::new(error))),
    })
}

/// What a plan says of its outputs, where nothing was computed.
fn from_facts(shapes: &[Shape], plan: &Plan) -> Result<Answer, ServiceError> {
    let facts = plan.outputs()?;
    let outputs = facts.iter().map(|fact| {
        let dims = fact
            .shape
            .iter()
            .map(|dim| dim.to_i64().ok().and_then(|dim| u64::try_from(dim).ok()));
        (dtype::from_tract(fact.datum_type), dims.collect())
    });
    Ok(Answer {
        shapes: shapes.to_vec(),
        outputs: outputs.collect(),
    })
}

fn panicked() -> ServiceError {
    const WHAT: &str = "the runtime cannot prepare or run it";
    ServiceError::invalid(WHAT).caused_by(TractLimit::default())
}

/// Whether an error says what tract cannot do, rather than what is wrong with the file.
fn is_limit(error: &ServiceError) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<TractLimit>)
}
