//! From the lowered graph to something that runs: one optimized plan, symbolic where dimensions are free.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use tensor_core::{Quoted, Shape};
use tract_onnx::{
    prelude::{
        DatumType, InferenceModel, InferenceModelExt, IntoRunnable, Symbol, SymbolValues, TValue, TVec,
        TractError, TractResult, TypedRunnableModel,
    },
    tract_core::{knobs::KnobScope, ops::array::DynSlice},
    tract_hir::{
        infer::InferenceFact,
        internal::{SimpleState, TDim, ToDim, TypedFact, bail, ensure},
    },
};

use crate::{
    convolutions, dtype,
    faults::{BadInput, Limit, NoRoom, Refusal, TooSmall},
    fold,
    input_check::InputCheck,
    lower::{self, Lowered},
    ops,
    signature::{Dim, Signature},
    size::{self, Differences, OutputSizes},
    time_limit,
    tract_limit::TractLimit,
};

/// Makes plans of a model: for sizes that stay free, and for sizes that are given.
pub(crate) struct Planner {
    signature: Signature,
    /// The graph as it was read. Its constants are shared by all plans that are made of it.
    graph: InferenceModel,
    labels: Vec<String>,
}

impl Planner {
    pub(crate) fn new(signature: Signature, lowered: Lowered) -> Result<Self, ServiceError> {
        use tract_onnx::tract_hir::internal::Framework;
        refuse_bf16(&signature)?;
        let labels = lowered.labels;
        let graph = ops::onnx().model_for_proto_model(&lowered.model);
        let mut graph = graph.map_err(|error| unprepared(error, &labels))?;
        let operator = |node: &str| {
            // A label ends with the operator's name in parentheses.
            let (_, name) = label(node, &labels)?.rsplit_once('(')?;
            Some(name.trim_end_matches(')').to_owned())
        };
        fold::fold(&mut graph, operator).map_err(|error| unprepared(error, &labels))?;
        Ok(Self {
            signature,
            graph,
            labels,
        })
    }

    pub(crate) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// One plan for all sizes, which are symbols in it.
    pub(crate) fn symbolic(&self) -> Result<Plan, ServiceError> {
        let scope = &self.graph.symbols;
        let mut batch: Option<Symbol> = None;
        let mut shapes = Vec::with_capacity(self.signature.inputs.len());
        for port in &self.signature.inputs {
            let Some(dims) = &port.dims else {
                return Err(ServiceError::invalid(format!(
                    "input {} has no shape; export the model with the shapes of its inputs (free dimensions may stay free)",
                    Quoted(&port.name)
                )));
            };
            let shape: TVec<TDim> = dims
                .iter()
                .enumerate()
                .map(|(axis, dim)| match dim {
                    Dim::Fixed(dim) => (*dim).to_dim(),
                    Dim::Named(name) => scope.sym(name).to_dim(),
                    // Unnamed leading dimensions are taken for the batch, and that is one for all inputs.
                    Dim::Free if axis == 0 => batch
                        .get_or_insert_with(|| scope.new_with_prefix("batch"))
                        .to_dim(),
                    Dim::Free => scope.new_with_prefix("free").to_dim(),
                })
                .collect();
            shapes.push(shape);
        }
        self.plan(shapes)
    }

    /// A plan for inputs of these shapes alone.
    pub(crate) fn concrete(&self, shapes: &[Shape]) -> Result<Plan, ServiceError> {
        let dims = |shape: &Shape| shape.dims().iter().map(ToDim::to_dim).collect();
        self.plan(shapes.iter().map(dims).collect())
    }

    fn plan(&self, shapes: Vec<TVec<TDim>>) -> Result<Plan, ServiceError> {
        let mut graph = self.graph.clone();
        for (index, (port, shape)) in self.signature.inputs.iter().zip(shapes).enumerate() {
            let datum_type = dtype::to_tract(port.datatype).unwrap_or(DatumType::F32);
            let fact = InferenceFact::dt_shape(datum_type, shape);
            graph
                .set_input_fact(index, fact)
                .map_err(|error| unprepared(error, &self.labels))?;
        }
        Plan::make(graph, &self.labels)
    }
}

fn prepare(graph: InferenceModel) -> TractResult<(Arc<TypedRunnableModel>, Differences)> {
    let mut typed = graph.into_typed()?;
    size::admit_expressions(&typed)?;
    let differences = Differences::of(&typed)?;
    ops::keep_order(&mut typed)?;
    time_limit::check()?;
    typed.declutter()?;
    time_limit::check()?;
    ops::convolutions(&mut typed)?;
    time_limit::check()?;
    match KnobScope::new([("TRACT_DISABLE_DIRECT_SPATIAL", "true")]) {
        Ok(knobs) if convolutions::are_better_as_products(&typed) => knobs.enter(|| typed.optimize()),
        _ => typed.optimize(),
    }?;
    ops::quicken(&mut typed)?;
    Ok((typed.into_runnable()?, differences))
}

/// How long the making of one plan may take.
const MAX_PLANNING: Duration = Duration::from_secs(60);

/// A graph that is ready to run.
pub(crate) struct Plan {
    runnable: Arc<TypedRunnableModel>,
    /// By node.
    input_checks: Vec<Option<InputCheck>>,
    /// By node.
    sizes: Vec<OutputSizes>,
    differences: Differences,
    is_bounded: bool,
}

impl Plan {
    /// A plan of a graph whose inputs have types and shapes.
    pub(crate) fn make(graph: InferenceModel, labels: &[String]) -> Result<Self, ServiceError> {
        let _limit = time_limit::start(MAX_PLANNING);
        let (runnable, differences) = prepare(graph).map_err(|error| unprepared(error, labels))?;
        refuse_unsound(&runnable, labels)?;
        Ok(Self {
            sizes: output_sizes(&runnable, labels)?,
            input_checks: runnable.model().nodes().iter().map(InputCheck::of).collect(),
            is_bounded: follows_from_shapes(&runnable),
            differences,
            runnable,
        })
    }

    /// What is known of the outputs.
    pub(crate) fn outputs(&self) -> Result<Vec<TypedFact>, ServiceError> {
        let model = self.runnable.model();
        let facts: TractResult<Vec<TypedFact>> = (0..model.outputs.len())
            .map(|index| model.output_fact(index).cloned())
            .collect();
        facts.map_err(|error| ServiceError::internal("the plan has no outputs").caused_by(into_cause(error)))
    }

    /// Whether all sizes in it follow from those of its inputs and it has no inner graphs, so that values decide nothing about its
    /// time.
    pub(crate) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// About how much memory the plan holds by itself.
    pub(crate) fn bytes(&self) -> u64 {
        const NODE: u64 = 4 << 10;
        let nodes = self.runnable.model().nodes();
        let constants = nodes.iter().flat_map(|node| &node.outputs).filter_map(|output| {
            let constant = output.fact.konst.as_ref()?;
            Some((constant.len() * constant.datum_type().size_of()) as u64)
        });
        constants.sum::<u64>() + nodes.len() as u64 * NODE
    }

    /// Runs the plan once. Every call has a state of its own, so calls can be at the same time.
    pub(crate) fn run(
        &self,
        inputs: TVec<TValue>,
        cancel: &CancelToken,
    ) -> Result<TVec<TValue>, ServiceError> {
        let mut state = SimpleState::new(&self.runnable).map_err(failed)?;
        let mut differences = self.differences.all();
        let outputs = state.run_plan_with_eval(inputs, |context, state, node, inputs| {
            if cancel.is_cancelled() {
                bail!(Cancelled);
            }
            if !differences.is_empty() {
                Differences::check(&mut differences, context.symbols)?;
            }
            self.sizes[node.id].check(context.symbols)?;
            let inputs = match self.input_checks[node.id] {
                Some(check) => check.apply(inputs)?,
                None => inputs,
            };
            let symbols = context.symbols;
            let outputs = tract_onnx::tract_core::plan::eval(context, state, node, inputs)?;
            // Later nodes rely on what was found out when the plan was made: where a size is another one, they reach beyond it.
            for (output, value) in node.outputs.iter().zip(&outputs) {
                ensure!(
                    fits(&output.fact, value, symbols),
                    "{node} gave {value:?}, expected {:?}",
                    output.fact
                );
            }
            Ok(outputs)
        });
        outputs.map_err(|error| match error.is::<Cancelled>() {
            true => ended(cancel),
            false => failed(error),
        })
    }
}

/// Whether a value is what the plan took it for, as far as that can be told.
fn fits(fact: &TypedFact, value: &TValue, symbols: &SymbolValues) -> bool {
    let has_size = |dim: &TDim, size: usize| dim.eval_to_i64(symbols).map_or(true, |dim| dim == size as i64);
    fact.datum_type == value.datum_type()
        && fact.rank() == value.rank()
        && match fact.shape.as_concrete() {
            Some(dims) => dims == value.shape(),
            None => fact
                .shape
                .iter()
                .zip(value.shape())
                .all(|(dim, &size)| has_size(dim, size)),
        }
}

/// Why a run ended early.
pub(crate) fn ended(cancel: &CancelToken) -> ServiceError {
    match cancel.is_expired() {
        true => ServiceError::new(
            ErrorCode::DeadlineExceeded,
            "the deadline passed while the model ran",
        ),
        false => ServiceError::new(
            ErrorCode::Cancelled,
            "the request was cancelled while the model ran",
        ),
    }
}

/// Ends a run whose answer nobody waits for.
#[derive(Debug)]
struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cancelled")
    }
}

impl std::error::Error for Cancelled {}

/// A run's error, as the client's fault where it is.
pub(crate) fn failed(error: TractError) -> ServiceError {
    let reason = error.chain().find_map(|cause| cause.downcast_ref::<BadInput>());
    // Not the request's fault for certain: a plan for all sizes may be wrong about some.
    if let Some(&TooSmall(dim)) = error.chain().find_map(|cause| cause.downcast_ref::<TooSmall>()) {
        return ServiceError::internal(TooSmall(dim).to_string()).caused_by(TooSmall(dim));
    }
    let room = error.chain().find_map(|cause| cause.downcast_ref::<NoRoom>());
    let answer = match (reason, room) {
        (Some(BadInput(reason)), _) => {
            ServiceError::invalid(format!("the model cannot take these values: {reason}"))
        }
        (None, Some(NoRoom(reason))) => ServiceError::new(ErrorCode::Overloaded, reason),
        (None, None) => ServiceError::internal("the model failed"),
    };
    answer.caused_by(into_cause(error))
}

/// Refuses operators of tract that came out of the optimization and would fail on values that ONNX admits.
fn refuse_unsound(runnable: &TypedRunnableModel, labels: &[String]) -> Result<(), ServiceError> {
    let slice = runnable
        .model()
        .nodes()
        .iter()
        .find(|node| node.op_is::<DynSlice>());
    slice.map_or(Ok(()), |node| {
        let label = label(&node.name, labels).unwrap_or("a Slice");
        Err(ServiceError::invalid(format!(
            "{label}: starts and ends that are computed from values of inputs are not supported"
        ))
        .caused_by(TractLimit::default()))
    })
}

/// Whether no size depends on anything but the sizes of the inputs. What happens in inner graphs is not looked at.
fn follows_from_shapes(runnable: &TypedRunnableModel) -> bool {
    let model = runnable.model();
    let inputs = (0..model.inputs.len()).filter_map(|index| model.input_fact(index).ok());
    let given: HashSet<Symbol> = inputs
        .flat_map(|fact| fact.shape.iter().flat_map(TDim::symbols))
        .collect();
    model.nodes().iter().all(|node| {
        let mut dims = node.outputs.iter().flat_map(|output| output.fact.shape.iter());
        !matches!(&*node.op.name(), "Scan" | "If") && dims.all(|dim| dim.symbols().is_subset(&given))
    })
}

fn output_sizes(runnable: &TypedRunnableModel, labels: &[String]) -> Result<Vec<OutputSizes>, ServiceError> {
    let nodes = runnable.model().nodes().iter();
    let sizes = nodes.map(|node| {
        let sizes = OutputSizes::of(node);
        sizes.map_err(|error| unprepared(error.context(node.name.clone()), labels))
    });
    sizes.collect()
}

/// Says which node tract stopped at, if it does, and whether it is tract that cannot go on.
pub(crate) fn unprepared(error: TractError, labels: &[String]) -> ServiceError {
    let chain = format!("{error:#}");
    let label = label(&chain, labels).unwrap_or("an operator");
    if let Some(&TooSmall(dim)) = error.chain().find_map(|cause| cause.downcast_ref::<TooSmall>()) {
        let reason = format!("{label}: {}", TooSmall(dim));
        return ServiceError::invalid(reason).caused_by(TooSmall(dim));
    }
    let refusal = error.chain().find_map(|cause| cause.downcast_ref::<Refusal>());
    let limit = error.chain().find_map(|cause| cause.downcast_ref::<Limit>());
    let reason = match (refusal, limit) {
        (Some(Refusal(reason)), _) | (None, Some(Limit(reason))) => reason,
        (None, None) => "is used in a way that is not supported",
    };
    let answer = ServiceError::invalid(format!("{label}: {reason}"));
    match refusal.is_some() {
        true => answer.caused_by(into_cause(error)),
        false => answer.caused_by(TractLimit::because(into_cause(error))),
    }
}

/// tract has no BF16.
fn refuse_bf16(signature: &Signature) -> Result<(), ServiceError> {
    let mut ports = signature.inputs.iter().chain(&signature.outputs);
    match ports.find(|port| dtype::to_tract(port.datatype).is_none()) {
        None => Ok(()),
        Some(port) => Err(ServiceError::invalid(format!(
            "{} is {}, which tract does not have",
            Quoted(&port.name),
            port.datatype
        ))
        .caused_by(TractLimit::default())),
    }
}

/// How to call the node that is named in a text of tract's; the innermost is named last.
fn label<'l>(text: &str, labels: &'l [String]) -> Option<&'l str> {
    let (_, number) = text.rsplit_once(lower::NODE)?;
    let number: usize = number.split('~').next()?.parse().ok()?;
    labels.get(number).map(String::as_str)
}

fn into_cause(error: TractError) -> Box<dyn std::error::Error + Send + Sync> {
    error.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tract_onnx::tract_hir::internal::{DatumExt, IntoTValue, SymbolScope, Tensor};

    use super::*;

    #[test]
    fn values_have_the_sizes_that_the_plan_took_them_for() {
        let scope = SymbolScope::default();
        let (height, unknown) = (scope.sym("h"), scope.sym("k"));
        let symbols = SymbolValues::default().with(&height, 4);
        let value = |size: usize| Tensor::zero::<f32>(&[2, size]).unwrap().into_tvalue();
        let fact = |dim: TDim| f32::fact([2.to_dim(), dim]);
        let smaller = fact(height.to_dim() - 1);
        assert!(fits(&smaller, &value(3), &symbols) && !fits(&smaller, &value(4), &symbols));
        let fixed = fact(3.to_dim());
        assert!(fits(&fixed, &value(3), &symbols) && !fits(&fixed, &value(2), &symbols));
        // Not known before the operator ran.
        assert!(fits(&fact(unknown.to_dim()), &value(9), &symbols));
        assert!(!fits(&i64::fact([2, 3]), &value(3), &symbols));
    }
}
