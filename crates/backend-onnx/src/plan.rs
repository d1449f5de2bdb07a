//! From the lowered graph to something that runs: one optimized plan, symbolic where dimensions are free.

use std::{fmt, sync::Arc};

use oip_service::CancelToken;
use oip_types::{ErrorCode, InferOutput, InferRequest, ServiceError, ShapePattern, TensorMetadata};
use tensor_core::Quoted;
use tract_onnx::{
    prelude::{
        DatumType, InferenceModelExt, IntoRunnable, Symbol, TValue, TVec, TractError, TractResult,
        TypedRunnableModel,
    },
    tract_core::ops::array::DynSlice,
    tract_hir::{
        infer::InferenceFact,
        internal::{SimpleState, TDim, ToDim, TypedFact, bail, ensure, tvec},
    },
};

use crate::{
    convert,
    dims::NamedDims,
    dtype,
    input_check::InputCheck,
    lower::{self, Lowered},
    ops::{self, BadInput, Limit, Refusal},
    signature::{Dim, Port, Signature},
    size::FreeSizes,
    tract_limit::TractLimit,
};

/// A model that can run.
pub(crate) struct Plan {
    runnable: Arc<TypedRunnableModel>,
    inputs: Vec<TensorMetadata>,
    outputs: Vec<TensorMetadata>,
    named_dims: NamedDims,
    /// By node.
    input_checks: Vec<Option<InputCheck>>,
    /// By node.
    sizes: Vec<FreeSizes>,
}

impl Plan {
    pub(crate) fn new(signature: &Signature, lowered: Lowered) -> Result<Self, ServiceError> {
        let labels = lowered.labels;
        refuse_bf16(signature)?;
        let prepared = prepare(signature, &lowered.model);
        // The structure's constants were copied into the plan.
        drop(lowered.model);
        let runnable = prepared.map_err(|error| unprepared(error, &labels))?;
        let inputs = signature
            .inputs
            .iter()
            .map(|port| metadata(port, None))
            .collect::<Result<_, _>>()?;
        refuse_unsound(&runnable, &labels)?;
        let sizes = free_sizes(&runnable, &labels)?;
        let facts: TractResult<Vec<TypedFact>> = (0..signature.outputs.len())
            .map(|index| runnable.model().output_fact(index).cloned())
            .collect();
        let facts = facts.map_err(|error| {
            ServiceError::internal("the plan has too few outputs").caused_by(into_cause(error))
        })?;
        let outputs = signature
            .outputs
            .iter()
            .zip(&facts)
            .map(|(port, fact)| metadata(port, Some(fact)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            inputs,
            outputs,
            named_dims: NamedDims::of(&signature.inputs),
            sizes,
            input_checks: runnable.model().nodes().iter().map(InputCheck::of).collect(),
            runnable,
        })
    }

    pub(crate) fn inputs(&self) -> &[TensorMetadata] {
        &self.inputs
    }

    pub(crate) fn outputs(&self) -> &[TensorMetadata] {
        &self.outputs
    }

    /// Runs the plan once. Every call has a state of its own, so calls can be at the same time.
    pub(crate) fn run(
        &self,
        mut request: InferRequest,
        cancel: &CancelToken,
    ) -> Result<Vec<InferOutput>, ServiceError> {
        let mut inputs: TVec<TValue> = tvec![];
        let mut dims = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            let value = request.take_input(&input.name)?;
            dims.push(value.shape().clone());
            let tensor = convert::to_tract(&value)
                .map_err(|error| error.within(format!("input {}", Quoted(&input.name))))?;
            inputs.push(tensor.into());
        }
        self.named_dims.check(&dims)?;
        let outputs = self.eval(inputs, cancel)?;
        self.outputs
            .iter()
            .zip(outputs)
            .map(|(output, value)| {
                Ok(InferOutput::new(
                    output.name.as_str(),
                    convert::from_tract(value)?,
                ))
            })
            .collect()
    }

    fn eval(&self, inputs: TVec<TValue>, cancel: &CancelToken) -> Result<TVec<TValue>, ServiceError> {
        let mut state = SimpleState::new(&self.runnable).map_err(failed)?;
        let outputs = state.run_plan_with_eval(inputs, |context, state, node, inputs| {
            if cancel.is_cancelled() {
                bail!(Cancelled);
            }
            self.sizes[node.id].check(context.symbols)?;
            let inputs = match self.input_checks[node.id] {
                Some(check) => check.apply(inputs)?,
                None => inputs,
            };
            let outputs = tract_onnx::tract_core::plan::eval(context, state, node, inputs)?;
            // Later nodes rely on what was found out when the plan was made.
            for (output, value) in node.outputs.iter().zip(&outputs) {
                let fits = output.fact.datum_type == value.datum_type() && output.fact.rank() == value.rank();
                ensure!(fits, "{node} gave {value:?}, expected {:?}", output.fact);
            }
            Ok(outputs)
        });
        outputs.map_err(|error| match error.is::<Cancelled>() {
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
fn failed(error: TractError) -> ServiceError {
    let reason = error.chain().find_map(|cause| cause.downcast_ref::<BadInput>());
    let answer = match reason {
        Some(BadInput(reason)) => {
            ServiceError::invalid(format!("the model cannot take these values: {reason}"))
        }
        None => ServiceError::internal("the model failed"),
    };
    answer.caused_by(into_cause(error))
}

fn prepare(
    signature: &Signature,
    model: &tract_onnx::pb::ModelProto,
) -> TractResult<Arc<TypedRunnableModel>> {
    use tract_onnx::tract_hir::internal::Framework;
    let mut inference = ops::onnx().model_for_proto_model(model)?;
    let scope = inference.symbols.clone();
    let mut batch: Option<Symbol> = None;
    for (index, port) in signature.inputs.iter().enumerate() {
        let Some(dims) = &port.dims else {
            bail!("input without dimensions");
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
        let datum_type = dtype::to_tract(port.datatype).unwrap_or(DatumType::F32);
        inference.set_input_fact(index, InferenceFact::dt_shape(datum_type, shape))?;
    }
    inference.into_optimized()?.into_runnable()
}

/// What is said of an input, or of an output of which `fact` is what the plan knows.
///
/// Exporters are often wrong about outputs' dimensions. Where the plan knows better, the plan is believed.
fn metadata(port: &Port, fact: Option<&TypedFact>) -> Result<TensorMetadata, ServiceError> {
    let Some(fact) = fact else {
        let shape = port.pattern().ok_or_else(|| {
            ServiceError::invalid(format!(
                "input {} has no shape; export the model with the shapes of its inputs (free dimensions may stay free)",
                Quoted(&port.name)
            ))
        })?;
        return Ok(TensorMetadata::with_shape(&port.name, port.datatype, shape));
    };
    let computed = dtype::from_tract(fact.datum_type);
    if computed != Some(port.datatype) {
        return Err(ServiceError::invalid(format!(
            "output {} is declared as {}, but would be {}",
            Quoted(&port.name),
            port.datatype,
            computed.map_or_else(
                || "of no type of the protocol".to_owned(),
                |datatype| datatype.to_string()
            ),
        )));
    }
    let known: Vec<Option<u64>> = fact
        .shape
        .iter()
        .map(|dim| dim.to_i64().ok().and_then(|dim| u64::try_from(dim).ok()))
        .collect();
    let declared = port
        .dims
        .as_ref()
        .filter(|declared| declared.len() == known.len());
    let dims = match declared {
        None => known,
        Some(declared) => declared
            .iter()
            .zip(&known)
            .map(|(declared, &known)| {
                if declared.fixed() == known {
                    known
                } else {
                    known.filter(|_| declared.fixed().is_some())
                }
            })
            .collect(),
    };
    Ok(TensorMetadata::with_shape(
        &port.name,
        port.datatype,
        ShapePattern::new(dims),
    ))
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

fn free_sizes(runnable: &TypedRunnableModel, labels: &[String]) -> Result<Vec<FreeSizes>, ServiceError> {
    let nodes = runnable.model().nodes().iter();
    let sizes = nodes.map(|node| {
        let sizes = FreeSizes::of(node);
        sizes.map_err(|error| unprepared(error.context(node.name.clone()), labels))
    });
    sizes.collect()
}

/// Says which node tract stopped at, if it does, and whether it is tract that cannot go on.
fn unprepared(error: TractError, labels: &[String]) -> ServiceError {
    let chain = format!("{error:#}");
    let label = label(&chain, labels).unwrap_or("an operator");
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
