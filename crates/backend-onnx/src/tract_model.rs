//! A model that runs without ONNX Runtime: on tract with one plan for all sizes where that works, else with a plan for each shape; or node by
//! node, without plans.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use oip_service::{CancelToken, LoadContext, Model, ModelSource, RowIndependence};
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, ModelMetadata, ServiceError, TensorMetadata,
};
use onnx_graph::{
    Port, Signature,
    expand::{self, Runtime},
    proto::{self, GraphProto, ModelProto},
    training,
};
use tensor_core::{Quoted, Shape};
use tract_hir::prelude::{TValue, TVec};

use crate::{
    configured_dims, convert,
    dims::NamedDims,
    dtype,
    faults::is_misfit,
    file_error::refusal,
    lower, needed_sizes,
    ops::{self, Fact},
    output_metadata::{self, Comparison},
    plan::{Plan, Planner},
    shape_plans::ShapePlans,
    size,
    steps::{self, Failure, Steps},
    time_limit,
    tract_limit::TractLimit,
    trial::{self, Fill},
};

/// The runtime that computes node by node, without plans.
pub(crate) const BUILT_IN: &str = "built-in";

/// A model that runs on tract, or node by node.
pub(crate) struct OnnxModel {
    metadata: ModelMetadata,
    named_dims: NamedDims,
    /// The inputs, with the sizes that the weights decide.
    taken: Vec<TensorMetadata>,
    plans: Plans,
    comparison: Comparison,
    rows: RowIndependence,
}

/// What computes the answers.
enum Plans {
    /// Whatever the sizes are, but for shapes that it failed for.
    Symbolic(Plan, Option<ShapePlans>),
    ByShape(ShapePlans),
    /// For what no single plan serves.
    Steps(Steps),
}

impl OnnxModel {
    pub(crate) fn load(
        source: &ModelSource,
        model: &ModelProto,
        cx: &LoadContext,
    ) -> Result<Self, ServiceError> {
        let _limit = time_limit::until(cx.deadline);
        let runtime = Runtime {
            has_attribute: ops::has_attribute,
            prefers_floats: ops::are_floats_quicker(),
        };
        let expanded = expand::expanded(model, &runtime).map_err(refusal)?;
        let model = expanded.as_ref().unwrap_or(model);
        // Functions may have been given attributes.
        training::refuse(model).map_err(refusal)?;
        let graph = model
            .graph
            .as_ref()
            .ok_or_else(|| ServiceError::invalid(proto::DAMAGED))?;
        let mut signature = Signature::of(model).map_err(refusal)?;
        configured_dims::fix(&mut signature, cx).map_err(refusal)?;
        let named_dims = NamedDims::of(&signature.inputs);
        // The metadata stay what the file says: configurations are compared with them.
        let inputs = described(&signature.inputs)?;
        needed_sizes::fix(&mut signature.inputs, graph).map_err(refusal)?;
        let taken = described(&signature.inputs)?;
        let (plans, outputs) = Plans::of(graph, signature, cx)?;
        let metadata = ModelMetadata::new(source.name.clone(), "onnx_onnxv1", inputs, outputs)
            .with_versions([source.version.clone()]);
        Ok(Self {
            metadata,
            named_dims,
            taken,
            plans,
            comparison: Comparison::default(),
            rows: RowIndependence::default(),
        })
    }

    /// The same with what its graph proves of its rows.
    pub(crate) fn with_row_independence(self, rows: RowIndependence) -> Self {
        Self { rows, ..self }
    }
}

impl Model for OnnxModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn runtime(&self) -> Option<&str> {
        Some(match &self.plans {
            Plans::Steps(steps) if steps.are_direct() => BUILT_IN,
            _ => "tract",
        })
    }

    fn row_independence(&self) -> RowIndependence {
        self.rows.clone()
    }

    /// Not while a plan for the shape has to be made first, and never with loops or sizes that depend on values.
    fn is_bounded(&self, rows: u64) -> bool {
        match &self.plans {
            Plans::Symbolic(plan, None) => plan.is_bounded(),
            Plans::Symbolic(plan, Some(plans)) => {
                plan.is_bounded() && self.shapes(rows).is_some_and(|shapes| plans.is_settled(&shapes))
            }
            Plans::Steps(steps) => steps.is_bounded(),
            Plans::ByShape(_) => false,
        }
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
        self.check_sizes(&shapes)?;
        let outputs = match &self.plans {
            Plans::ByShape(plans) => plans.get(&shapes, cancel)?.run(inputs, cancel),
            Plans::Steps(steps) => steps.run(inputs, cancel).map_err(Failure::answer),
            Plans::Symbolic(plan, None) => plan.run(inputs, cancel),
            Plans::Symbolic(_, Some(plans)) if !self.named_dims.have_one_batch(&shapes) => {
                plans.get(&shapes, cancel)?.run(inputs, cancel)
            }
            Plans::Symbolic(plan, Some(plans)) => run_either(plan, plans, inputs, &shapes, cancel),
        };
        let outputs = outputs.map_err(|error| match is_misfit(&error) {
            true => ServiceError::invalid(error.message().to_owned()).caused_by(error),
            false => error,
        })?;
        let named = self.metadata.outputs.iter().zip(outputs);
        let outputs = named.map(|(output, value)| {
            output_metadata::check_type(
                &output.name,
                output.datatype,
                dtype::from_tract(value.datum_type()),
            )?;
            let value = convert::from_tract(value)?;
            Ok(InferOutput::new(output.name.as_str(), value))
        });
        let outputs = outputs.collect::<Result<Vec<_>, ServiceError>>()?;
        self.comparison.note(&self.metadata, &outputs);
        Ok(outputs)
    }
}

impl OnnxModel {
    /// Refuses sizes that the metadata leave free, but not the weights.
    fn check_sizes(&self, shapes: &[Shape]) -> Result<(), ServiceError> {
        match self
            .taken
            .iter()
            .zip(shapes)
            .find(|(input, shape)| !input.shape.matches(shape))
        {
            None => Ok(()),
            Some((input, shape)) => Err(ServiceError::invalid(format!(
                "input {}: expected shape {}, found {shape}; the model's weights decide these sizes",
                Quoted(&input.name),
                input.shape
            ))),
        }
    }

    /// The shapes of inputs with so many rows, if nothing else in them is free.
    fn shapes(&self, rows: u64) -> Option<Vec<Shape>> {
        let shape = |input: &TensorMetadata| {
            let dims = input.shape.dims().iter().enumerate();
            let dims: Option<Vec<u64>> = dims
                .map(|(axis, dim)| dim.or((axis == 0).then_some(rows)))
                .collect();
            Shape::new(&dims?).ok()
        };
        self.metadata.inputs.iter().map(shape).collect()
    }
}

/// Runs the plan for these shapes if it is worth one, else the plan for all sizes.
fn run_either(
    plan: &Plan,
    plans: &ShapePlans,
    inputs: TVec<TValue>,
    shapes: &[Shape],
    cancel: &CancelToken,
) -> Result<TVec<TValue>, ServiceError> {
    if plans.is_worth(shapes)
        && let Ok(plan) = plans.get(shapes, cancel)
    {
        return plan.run(inputs, cancel);
    }
    let started = Instant::now();
    match plan.run(inputs.clone(), cancel) {
        Ok(outputs) => {
            plans.spend(shapes, started.elapsed());
            Ok(outputs)
        }
        // A rule that holds for most sizes was assumed for all, or these do not fit the model, as the plan for them says.
        Err(error) if error.code() == ErrorCode::Internal => match plans.get(shapes, cancel) {
            Ok(plan) => plan.run(inputs, cancel),
            Err(_) if is_misfit(&error) => Err(error),
            Err(refusal) => Err(refusal),
        },
        Err(error) => Err(error),
    }
}

/// How long a model is tried with made-up inputs before it is ready.
const MAX_TRIAL: Duration = Duration::from_secs(60);

/// How long it is tried with inputs of one shape. A loop without an end, or a large model, takes longer: that it is at work is
/// answer enough.
const MAX_TRIAL_RUN: Duration = Duration::from_secs(10);

type Described = (Plans, Vec<TensorMetadata>);

impl Plans {
    /// The simplest that answers.
    fn of(graph: &GraphProto, signature: Signature, cx: &LoadContext) -> Result<Described, ServiceError> {
        let lowered = lower::lower(graph, &signature.opsets)?;
        if cx.config.runtime == BUILT_IN {
            let steps = Steps::direct(signature, lowered)?;
            let ports = steps.signature().outputs.iter();
            let outputs = ports.zip(steps.outputs());
            let outputs = outputs.map(|(port, fact)| output_metadata::of_known(port, fact));
            let outputs = outputs.collect::<Result<_, _>>()?;
            return Ok((Self::Steps(steps), outputs));
        }
        if steps::are_needed(&lowered.graph) {
            return Self::by_steps(Steps::new(signature, lowered)?, cx);
        }
        let stepped = || {
            lower::lower(graph, &signature.opsets)
                .and_then(|lowered| Steps::new(signature.clone(), lowered))
                .and_then(|steps| Self::by_steps(steps, cx))
        };
        if steps::branches_by_values(&lowered.graph) {
            let stepped = stepped();
            if stepped.is_ok() {
                return stepped;
            }
        }
        let planned = Planner::new(signature.clone(), lowered).and_then(|planner| Self::new(planner, cx));
        planned.or_else(|error| {
            if !is_limit(&error) {
                return Err(error);
            }
            // The first reason is about the simpler plan; the other one stands behind it.
            stepped().map_err(|later| {
                if is_unsupported(&error) {
                    return error;
                }
                let message = error.message().to_owned();
                ServiceError::new(error.code(), message).caused_by(TractLimit::because(Box::new(later)))
            })
        })
    }

    fn by_steps(steps: Steps, cx: &LoadContext) -> Result<Described, ServiceError> {
        let signature = steps.signature();
        let shapes = trial::shapes(&signature.inputs);
        let answer = answers(signature, &shapes, &trial_token(cx), |_| Ok(&steps))?;
        let outputs = answer.describe(signature)?;
        Ok((Self::Steps(steps), outputs))
    }

    /// Plans that answered made-up inputs, and what is said of the outputs.
    fn new(planner: Planner, cx: &LoadContext) -> Result<Described, ServiceError> {
        let ports = &planner.signature().inputs;
        let trial = trial_token(cx);
        let shapes = trial::shapes(ports);
        let started = Instant::now();
        let symbolic = catch_unwind(AssertUnwindSafe(|| planner.symbolic()));
        let cost = started.elapsed();
        let symbolic = symbolic.unwrap_or_else(|_| Err(panicked(ErrorCode::InvalidArgument)));
        let is_fixed = ports
            .iter()
            .all(|port| port.dims.iter().flatten().all(|dim| dim.fixed().is_some()));
        match symbolic {
            Ok(plan) => match answers(planner.signature(), &shapes, &trial, |_| Ok(&plan)) {
                Ok(_) => {
                    let outputs = outputs_of(&planner, &plan)?;
                    let others = (!is_fixed).then(|| ShapePlans::new(planner, cost));
                    if let Some(plans) = &others {
                        prepare_expected(plans, &trial, cx);
                    }
                    Ok((Self::Symbolic(plan, others), outputs))
                }
                Err(error) if is_fixed => Err(error),
                Err(_) => Self::by_shape(planner, &shapes, &trial, cx),
            },
            Err(error) if is_fixed || !is_limit(&error) => Err(error),
            Err(_) => Self::by_shape(planner, &shapes, &trial, cx),
        }
    }

    fn by_shape(
        planner: Planner,
        shapes: &[Vec<Shape>],
        trial: &CancelToken,
        cx: &LoadContext,
    ) -> Result<Described, ServiceError> {
        let answer = answers(planner.signature(), shapes, trial, |shapes| {
            planner.concrete(shapes).map(Arc::new)
        })?;
        let outputs = answer.describe(planner.signature())?;
        // Without a plan for all sizes there is no choice.
        let plans = ShapePlans::new(planner, Duration::ZERO);
        prepare_expected(&plans, trial, cx);
        Ok((Self::ByShape(plans), outputs))
    }
}

/// Makes the plans for the shapes that the configuration says will come. A shape that none can be made for is refused when
/// it comes.
fn prepare_expected(plans: &ShapePlans, trial: &CancelToken, cx: &LoadContext) {
    for shapes in configured_dims::expected_shapes(&plans.planner().signature().inputs, cx) {
        if let Err(error) = plans.get(&shapes, trial) {
            tracing::warn!(
                error = error.message(),
                "no plan for a shape that the configuration names"
            );
        }
    }
}

fn outputs_of(planner: &Planner, plan: &Plan) -> Result<Vec<TensorMetadata>, ServiceError> {
    let ports = planner.signature().outputs.iter();
    let facts = plan.outputs()?;
    ports
        .zip(&facts)
        .map(|(port, fact)| output_metadata::of_known(port, Some(&Fact::of(fact))))
        .collect()
}

/// Datatype and dimensions of an output, as far as they are known.
type Seen = (Option<DataType>, Vec<Option<u64>>);

/// What a plan answered to made-up inputs.
struct Answer {
    shapes: Vec<Shape>,
    outputs: Vec<Seen>,
}

impl Answer {
    /// What is said of the outputs.
    fn describe(&self, signature: &Signature) -> Result<Vec<TensorMetadata>, ServiceError> {
        let sizes = output_metadata::free_sizes(&signature.inputs, &self.shapes);
        let outputs = signature.outputs.iter().zip(&self.outputs);
        outputs
            .map(|(port, (datatype, shape))| output_metadata::of_trial(port, *datatype, shape, &sizes))
            .collect()
    }
}

fn described(inputs: &[Port]) -> Result<Vec<TensorMetadata>, ServiceError> {
    inputs.iter().map(output_metadata::of_input).collect()
}

fn trial_token(cx: &LoadContext) -> CancelToken {
    let end = Instant::now() + MAX_TRIAL;
    CancelToken::new(Some(cx.deadline.map_or(end, |deadline| deadline.min(end))))
}

/// What can be tried with made-up inputs.
trait Tried {
    fn run(&self, inputs: TVec<TValue>, cancel: &CancelToken) -> Result<TVec<TValue>, ServiceError>;

    /// What is known of the outputs where nothing was computed.
    fn outputs(&self) -> Result<Vec<Seen>, ServiceError>;
}

impl Tried for Plan {
    fn run(&self, inputs: TVec<TValue>, cancel: &CancelToken) -> Result<TVec<TValue>, ServiceError> {
        Plan::run(self, inputs, cancel)
    }

    fn outputs(&self) -> Result<Vec<Seen>, ServiceError> {
        let facts = Plan::outputs(self)?;
        let outputs = facts.iter().map(|fact| {
            let dims = fact
                .shape
                .iter()
                .map(|dim| dim.to_i64().ok().and_then(|dim| u64::try_from(dim).ok()));
            (dtype::from_tract(fact.datum_type), dims.collect())
        });
        Ok(outputs.collect())
    }
}

impl Tried for Steps {
    fn run(&self, inputs: TVec<TValue>, cancel: &CancelToken) -> Result<TVec<TValue>, ServiceError> {
        Steps::run(self, inputs, cancel).map_err(Failure::trial)
    }

    fn outputs(&self) -> Result<Vec<Seen>, ServiceError> {
        let ports = self.signature().outputs.iter();
        let outputs = ports.map(|port| {
            let rank = port.dims.as_ref().map_or(0, Vec::len);
            (Some(dtype::of(port.element_type)), vec![None; rank])
        });
        Ok(outputs.collect())
    }
}

/// Runs made-up inputs until one is answered. That the values make no sense to the model is an answer too, if there
/// is no other and no run failed; and so is that all sizes are too small for it, which may follow from the values.
fn answers<P: std::ops::Deref<Target: Tried>>(
    signature: &Signature,
    shapes: &[Vec<Shape>],
    trial: &CancelToken,
    plan: impl Fn(&[Shape]) -> Result<P, ServiceError>,
) -> Result<Answer, ServiceError> {
    let ports = &signature.inputs;
    let mut first_error = None;
    let mut refusal = None;
    let mut too_small = None;
    let mut has_failed = false;
    let _limit = time_limit::until(trial.deadline());
    'tried: for shapes in shapes {
        // Plans may take all of the time although none is made.
        if (first_error.is_some() || refusal.is_some()) && trial.is_cancelled() {
            break;
        }
        let made = catch_unwind(AssertUnwindSafe(|| plan(shapes)));
        let plan = match made.unwrap_or_else(|_| Err(panicked(ErrorCode::InvalidArgument))) {
            Ok(plan) => plan,
            Err(error) => {
                if first_error.as_ref().is_none_or(is_misfit) {
                    first_error = Some(error);
                }
                continue;
            }
        };
        for fill in [Fill::Ones, Fill::Zeros] {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                let inputs = trial::inputs(ports, shapes, fill)
                    .map_err(|error| ServiceError::internal("no inputs could be made up").caused_by(error))?;
                let end = Instant::now() + MAX_TRIAL_RUN;
                let end = trial.deadline().map_or(end, |deadline| deadline.min(end));
                plan.run(inputs, &CancelToken::new(Some(end)))
            }));
            // A request would get 500 for it, so it is no refusal.
            match ran.unwrap_or_else(|_| Err(panicked(ErrorCode::Internal))) {
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
                    let is_late = error.code() == ErrorCode::DeadlineExceeded;
                    if refusal.is_none() || is_late {
                        refusal = Some(Answer {
                            shapes: shapes.clone(),
                            outputs: plan.outputs()?,
                        });
                    }
                    // Other sizes would take as long.
                    if is_late {
                        break 'tried;
                    }
                }
                Err(error) => {
                    match is_misfit(&error) {
                        true => {
                            too_small = Some(Answer {
                                shapes: shapes.clone(),
                                outputs: plan.outputs()?,
                            });
                        }
                        // The fault is neither these sizes' nor these values'.
                        false => has_failed |= error.code() == ErrorCode::Internal,
                    }
                    // If larger sizes fail too, the first ones being too small is not the reason.
                    if first_error.as_ref().is_none_or(is_misfit) {
                        first_error = Some(error);
                    }
                }
            }
        }
    }
    let refusal = refusal.filter(|_| !has_failed);
    if let Some(answer) = refusal.or(too_small.filter(|_| first_error.as_ref().is_some_and(is_misfit))) {
        return Ok(answer);
    }
    let error =
        first_error.unwrap_or_else(|| ServiceError::invalid("the model's inputs are too large to be tried"));
    Err(match error.code() {
        ErrorCode::InvalidArgument => error,
        _ => ServiceError::invalid(format!(
            "the model fails on made-up inputs of all sizes that were tried: {}",
            crate::plan::root(&error)
        ))
        .caused_by(TractLimit::because(Box::new(error))),
    })
}

fn panicked(code: ErrorCode) -> ServiceError {
    const WHAT: &str = "the runtime cannot prepare or run it";
    ServiceError::new(code, WHAT).caused_by(TractLimit::default())
}

/// Whether an error says what tract cannot do, rather than what is wrong with the file.
fn is_limit(error: &ServiceError) -> bool {
    limit(error).is_some()
}

/// Whether an error says what tract can do for no sizes.
fn is_unsupported(error: &ServiceError) -> bool {
    matches!(
        limit(error),
        Some(TractLimit::Unsupported | TractLimit::Everybodys)
    )
}

fn limit(error: &ServiceError) -> Option<&TractLimit> {
    std::error::Error::source(error)?.downcast_ref()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::cell::Cell;

    use bytes::Bytes;
    use oip_types::{ModelConfig, ModelRef};
    use onnx_graph::proto::{AttributeProto, NodeProto};
    use tensor_core::Tensor;

    use super::*;
    use crate::made_up::{constant, model, node};

    /// The making of one plan has a limit, and there are dozens of shapes to be tried.
    #[test]
    fn a_trial_ends_with_its_time_although_no_plan_is_made() {
        let model = model(vec![node("Neg", &["x"], "y")], &[-1, -1], &[-1, -1], vec![]);
        let signature = Signature::of(&model).unwrap();
        let shapes = trial::shapes(&signature.inputs);
        assert!(shapes.len() > 5);
        let (limit, made) = (Duration::from_millis(100), Cell::new(0));
        let trial = CancelToken::new(Some(Instant::now() + limit));
        let answer = answers(&signature, &shapes, &trial, |_| -> Result<Arc<Plan>, _> {
            made.set(made.get() + 1);
            std::thread::sleep(limit);
            // The making of plans looks at this limit on its way.
            assert!(time_limit::check().is_err());
            Err(ServiceError::invalid("no plan"))
        });
        assert!(answer.is_err_and(|error| error.message() == "no plan"));
        assert_eq!(made.get(), 1);
    }

    /// A plan that ends in the same way whatever it is asked.
    struct Ends(fn() -> ServiceError);

    impl Tried for Ends {
        fn run(&self, _: TVec<TValue>, _: &CancelToken) -> Result<TVec<TValue>, ServiceError> {
            Err(self.0())
        }

        fn outputs(&self) -> Result<Vec<Seen>, ServiceError> {
            Ok(vec![])
        }
    }

    #[test]
    fn a_model_that_fails_for_some_sizes_and_refuses_others_is_not_ready() {
        let model = model(vec![node("Neg", &["x"], "y")], &[-1, -1], &[-1, -1], vec![]);
        let signature = Signature::of(&model).unwrap();
        let shapes = &trial::shapes(&signature.inputs)[..2];
        let is_ready = |first: fn() -> ServiceError, second: fn() -> ServiceError| {
            let made = Cell::new(0);
            let answer = answers(&signature, shapes, &CancelToken::new(None), |_| {
                made.set(made.get() + 1);
                Ok(Arc::new(Ends(if made.get() == 1 { first } else { second })))
            });
            assert_eq!(made.get(), 2);
            answer.is_ok()
        };
        let refuses = || ServiceError::invalid("these values make no sense");
        let fails = || ServiceError::internal("the model failed");
        let panics = || panic!("a panic of a test");
        assert!(is_ready(refuses, refuses));
        for broken in [fails, panics] {
            assert!(!is_ready(refuses, broken));
            assert!(!is_ready(broken, refuses));
        }
    }

    /// What is only known while a model runs may show that its file is wrong.
    #[test]
    fn an_output_of_another_type_than_the_file_declares_is_refused() {
        let cast = NodeProto {
            attribute: vec![AttributeProto {
                name: "to".to_owned(),
                i: 7,
                r#type: 2,
                ..AttributeProto::default()
            }],
            ..node("Cast", &["x"], "sizes")
        };
        let nodes = vec![
            cast,
            node("Greater", &["x", "w"], "truth"),
            node("Reshape", &["truth", "sizes"], "y"),
        ];
        let model = model(nodes, &[-1], &[-1], vec![constant("w", &[1])]);
        let config = ModelConfig {
            runtime: BUILT_IN.to_owned(),
            ..ModelConfig::default()
        };
        let cx = LoadContext::default().with_config(Arc::new(config));
        let source = ModelSource::new("m", "1", "m/1/model.onnx", Bytes::new());
        let model = OnnxModel::load(&source, &model, &cx).unwrap();
        let one = Tensor::from_vec(Shape::new(&[1]).unwrap(), vec![1f32]).unwrap();
        let request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", one);
        let error = model.infer(request, &CancelToken::new(None)).unwrap_err();
        let message = "output 'y' is declared as FP32, but would be BOOL";
        assert_eq!(
            (error.code(), error.message()),
            (ErrorCode::InvalidArgument, message)
        );
    }
}
