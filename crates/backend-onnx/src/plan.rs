//! From the lowered graph to something that runs: one optimized plan, symbolic where dimensions are free.

use std::{collections::HashSet, time::Duration};

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use onnx_graph::{Dim, Signature};
use tensor_core::{Quoted, Shape};
use tract_hir::{
    infer::InferenceFact,
    internal::{TDim, ToDim, TypedFact},
    prelude::{
        DatumType, InferenceModel, InferenceModelExt, Symbol, SymbolValues, TValue, TVec, TractError,
        TypedModel,
    },
};

use crate::{
    cancelling,
    checked_graph::{CheckedGraph, UNSOUND},
    dtype,
    faults::{BadInput, Limit, Misfit, NoRoom, OutOfTime, Refusal, Unsupported},
    fold,
    lower::{self, Lowered},
    ops, plan_memory, time_limit,
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
        refuse_bf16(&signature)?;
        let labels = lowered.labels;
        let graph = ops::context().model(&lowered.graph);
        let mut graph = graph.map_err(|error| unprepared(error, &labels))?;
        // The names of nodes end with their operators. Labels have those of the file, of which some stand for several.
        let operator = |node: &str| Some(node.rsplit_once('~')?.1.to_owned());
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
                    // Unnamed leading dimensions are taken for the batch: where they differ, this plan is not used.
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
            let datum_type = dtype::to_tract(dtype::of(port.element_type)).unwrap_or(DatumType::F32);
            let fact = InferenceFact::dt_shape(datum_type, shape);
            graph
                .set_input_fact(index, fact)
                .map_err(|error| unprepared(error, &self.labels))?;
        }
        Plan::make(graph, &self.labels)
    }
}

/// How long the making of one plan may take.
const MAX_PLANNING: Duration = Duration::from_secs(60);

/// A graph that is ready to run.
pub(crate) struct Plan {
    graph: CheckedGraph,
    is_bounded: bool,
    bytes: u64,
}

impl Plan {
    /// A plan of a graph whose inputs have types and shapes.
    pub(crate) fn make(graph: InferenceModel, labels: &[String]) -> Result<Self, ServiceError> {
        let _limit = time_limit::start(MAX_PLANNING);
        let shared = plan_memory::constants(&graph);
        let graph = graph.into_typed().and_then(CheckedGraph::of);
        let graph = graph.map_err(|error| unprepared(error, labels))?;
        refuse_unsound(&graph, labels)?;
        Ok(Self {
            is_bounded: follows_from_shapes(graph.model()),
            bytes: plan_memory::bytes(graph.model(), shared),
            graph,
        })
    }

    /// What is known of the outputs.
    pub(crate) fn outputs(&self) -> Result<Vec<TypedFact>, ServiceError> {
        let facts = self.graph.outputs();
        facts.map_err(|error| ServiceError::internal("the plan has no outputs").caused_by(into_cause(error)))
    }

    /// Whether all sizes in it follow from those of its inputs and it has no inner graphs, so that values decide nothing about its
    /// time.
    pub(crate) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// About how much memory the plan holds by itself.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Runs the plan once. Every call has a state of its own, so calls can be at the same time.
    pub(crate) fn run(
        &self,
        inputs: TVec<TValue>,
        cancel: &CancelToken,
    ) -> Result<TVec<TValue>, ServiceError> {
        let _run = cancelling::start(cancel);
        let outputs = self.graph.run(inputs, &SymbolValues::default());
        outputs.map_err(|error| match cancelling::is_cancelled(&error) {
            true => ended(cancel),
            false => failed(error),
        })
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

/// A run's error, as the client's fault where it is.
pub(crate) fn failed(error: TractError) -> ServiceError {
    let reason = error.chain().find_map(|cause| cause.downcast_ref::<BadInput>());
    // Not the request's fault for certain: a plan for all sizes may be wrong about some.
    if let Some(&misfit) = error.chain().find_map(|cause| cause.downcast_ref::<Misfit>()) {
        return ServiceError::internal(misfit.to_string()).caused_by(misfit);
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

/// Refuses a graph with operators that would fail on values that ONNX admits.
fn refuse_unsound(graph: &CheckedGraph, labels: &[String]) -> Result<(), ServiceError> {
    graph.unsound_node().map_or(Ok(()), |node| {
        let label = label(&node.name, labels).unwrap_or("a Slice");
        Err(ServiceError::invalid(format!("{label}: {UNSOUND}")).caused_by(TractLimit::default()))
    })
}

/// Whether no size depends on anything but the sizes of the inputs. What happens in inner graphs is not looked at.
fn follows_from_shapes(model: &TypedModel) -> bool {
    let inputs = (0..model.inputs.len()).filter_map(|index| model.input_fact(index).ok());
    let given: HashSet<Symbol> = inputs
        .flat_map(|fact| fact.shape.iter().flat_map(TDim::symbols))
        .collect();
    model.nodes().iter().all(|node| {
        let mut dims = node.outputs.iter().flat_map(|output| output.fact.shape.iter());
        &*node.op.name() != "If" && dims.all(|dim| dim.symbols().is_subset(&given))
    })
}

/// Says which node tract stopped at, if it does, and whether it is tract that cannot go on.
pub(crate) fn unprepared(error: TractError, labels: &[String]) -> ServiceError {
    let chain = format!("{error:#}");
    let label = label(&chain, labels).unwrap_or("an operator");
    if let Some(&misfit) = error.chain().find_map(|cause| cause.downcast_ref::<Misfit>()) {
        return ServiceError::invalid(format!("{label}: {misfit}")).caused_by(misfit);
    }
    let refusal = error.chain().find_map(|cause| cause.downcast_ref::<Refusal>());
    let unsupported = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Unsupported>());
    if let (None, Some(reason)) = (refusal, unsupported) {
        let limit = match reason {
            Unsupported::Here(_) => TractLimit::Unsupported,
            Unsupported::Anywhere(_) => TractLimit::Everybodys,
        };
        return ServiceError::invalid(format!("{label}: {reason}")).caused_by(limit);
    }
    let limit = error.chain().find_map(|cause| cause.downcast_ref::<Limit>());
    let out_of_time = error.chain().find_map(|cause| cause.downcast_ref::<OutOfTime>());
    let room = error.chain().find_map(|cause| cause.downcast_ref::<NoRoom>());
    let reason = match (refusal, limit) {
        (Some(Refusal(reason)), _) | (None, Some(Limit(reason))) => reason.clone(),
        (None, None) => match (out_of_time, room) {
            (Some(out_of_time), _) => out_of_time.to_string(),
            (None, Some(room)) => room.to_string(),
            (None, None) => format!("is used in a way that is not supported: {}", root(&*error)),
        },
    };
    let answer = ServiceError::invalid(format!("{label}: {reason}"));
    match refusal.is_some() {
        true => answer.caused_by(into_cause(error)),
        false => answer.caused_by(TractLimit::because(into_cause(error))),
    }
}

/// The innermost cause in a few words: tract's own are long where they have values in them.
pub(crate) fn root(error: &(dyn std::error::Error + 'static)) -> String {
    const LONGEST: usize = 160;
    let causes = std::iter::successors(Some(error), |error| error.source());
    // That it is tract's limit says nothing about what it is.
    let causes = causes.filter(|cause| !cause.is::<TractLimit>());
    let mut text = causes.last().map_or_else(String::new, ToString::to_string);
    let line = text.find('\n').unwrap_or(text.len());
    let end = text.floor_char_boundary(line.min(LONGEST));
    if end < text.len() {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// tract has no BF16.
pub(crate) fn refuse_bf16(signature: &Signature) -> Result<(), ServiceError> {
    let mut ports = signature.inputs.iter().chain(&signature.outputs);
    match ports.find(|port| dtype::to_tract(dtype::of(port.element_type)).is_none()) {
        None => Ok(()),
        Some(port) => Err(ServiceError::invalid(format!(
            "{} is {}, which tract does not have",
            Quoted(&port.name),
            dtype::of(port.element_type)
        ))
        .caused_by(TractLimit::Unsupported)),
    }
}

/// How to call the node that is named in a text of tract's; the innermost is named last.
pub(crate) fn label<'l>(text: &str, labels: &'l [String]) -> Option<&'l str> {
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

    use tract_hir::prelude::SymbolValues;

    use tract_hir::prelude::TractResult;

    use super::*;
    use crate::made_up::{constant, model, node, planner, planner_of_fixture};

    /// tract writes the neighbourhoods of all places out: more memory than what stands before and after them.
    #[test]
    fn neighbourhoods_are_held_against_the_limit() {
        let planner = planner_of_fixture("wide_window");
        let plan = planner.symbolic().unwrap();
        let fact = plan.graph.model().input_fact(0).unwrap();
        let [height, width] = [2, 3].map(|axis| fact.shape[axis].symbols().into_iter().next().unwrap());
        let check = |size: i64| {
            let symbols = SymbolValues::default().with(&height, size).with(&width, size);
            let checks = plan.graph.sizes().iter().map(|sizes| sizes.check(&symbols));
            checks.collect::<TractResult<()>>()
        };
        check(200).unwrap();
        let error = failed(check(1100).unwrap_err());
        assert!(error.report().contains("takes 4 GiB"), "{}", error.report());
        // A plan for the shape is asked next.
        assert_eq!(error.code(), ErrorCode::Internal);
        if onnx_gemm::has_wide_vectors() {
            let image = Shape::new(&[1, 1, 1100, 1100]).unwrap();
            assert!(planner.concrete(&[image]).is_ok());
        }
    }

    fn dense(rows: i64) -> Planner {
        let nodes = vec![node("MatMul", &["x", "w"], "y")];
        planner(&model(
            nodes,
            &[rows, 256],
            &[rows, 512],
            vec![constant("w", &[256, 512])],
        ))
    }

    /// What a plan holds by itself is what is thrown out with it.
    #[test]
    fn weights_in_the_order_of_their_products_count() {
        // A product of one row is tract's: it packs the weights for each plan.
        let plan = dense(1).symbolic().unwrap();
        assert!(plan.bytes() >= 4 * 256 * 512, "{}", plan.bytes());
    }

    /// A layer that a network repeats has its weights in memory once.
    #[test]
    fn weights_of_many_nodes_are_packed_once() {
        let names: Vec<String> = (0..12).map(|index| format!("v{index}")).collect();
        let nodes = (0..12).map(|index| {
            let input = if index == 0 { "x" } else { &names[index - 1] };
            node(
                "MatMul",
                &[input, "w"],
                if index == 11 { "y" } else { &names[index] },
            )
        });
        let constants = vec![constant("w", &[256, 256])];
        let plan = planner(&model(nodes.collect(), &[20, 256], &[20, 256], constants))
            .symbolic()
            .unwrap();
        let weights = 4 * 256 * 256;
        assert!(plan.bytes() < 3 * weights, "{}", plan.bytes());
    }

    /// With factors of their own the copies differ: there are as many as the file has constants for.
    #[test]
    fn copies_of_weights_are_bounded() {
        let mut nodes = vec![];
        let mut constants = vec![constant("w", &[512, 512])];
        let mut input = "x".to_owned();
        for index in 0..100 {
            let [product, factor] = ["p", "f"].map(|what| format!("{what}{index}"));
            let output = if index == 99 {
                "y".to_owned()
            } else {
                format!("q{index}")
            };
            let mut factors = constant(&factor, &[512]);
            let bytes = vec![1.0 + index as f32; 512]
                .into_iter()
                .flat_map(f32::to_le_bytes);
            factors.raw_data = bytes.collect::<Vec<u8>>().into();
            constants.push(factors);
            nodes.push(node("MatMul", &[&input, "w"], &product));
            nodes.push(node("Mul", &[&product, &factor], &output));
            input = output;
        }
        let planner = planner(&model(nodes, &[20, 512], &[20, 512], constants));
        let plan = planner.symbolic().unwrap();
        let weights = 4 * 512 * 512;
        let times = plan.bytes() / weights;
        assert!(
            (10..30).contains(&times) || !onnx_gemm::has_wide_vectors(),
            "{times} times"
        );
    }
}
