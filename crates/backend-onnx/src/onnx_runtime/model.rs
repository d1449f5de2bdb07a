//! Models on ONNX Runtime: checks the graph before the library reads it, opens sessions, and runs requests.

use std::collections::BTreeMap;

use bytes::Bytes;
use oip_model::{
    Call, Capabilities, LoadContext, Model, ModelSource, NeedsProcess, Outcome, RowIndependence,
};
use oip_types::{InferOutput, ModelMetadata, ServiceError, ShapePattern, TensorMetadata};
use onnx_graph::{
    Port, Signature,
    proto::{self, GraphProto, ModelProto},
    rewrite, structure,
};
use ort::value::{Outlet, ValueType};
use prost::Message;
use tensor_core::{QuotedName, Shape};

use super::{
    OnnxRuntime,
    first_outputs::first_outputs,
    on_devices::OnDevices,
    providers::{Gpus, Plan, plan},
    session::Settings,
    tensors,
    traps::{self, DisarmOutcome, Guards},
};
use crate::{
    built_in::OnnxModel,
    cancelled_runs::ended,
    convert::admit_input,
    dims::NamedDims,
    dtype,
    file_error::refusal,
    output_metadata::{Comparison, pattern},
};

/// A model that runs on ONNX Runtime.
pub(crate) struct OrtModel {
    metadata: ModelMetadata,
    named_dims: NamedDims,
    devices: OnDevices,
    guards: Guards,
    /// Inputs that must not be empty, each with the operator that would crash the process otherwise.
    filled: BTreeMap<String, String>,
    /// Compares outputs with the metadata. `None` until the metadata is complete.
    comparison: Option<Comparison>,
    rows: RowIndependence,
}

impl OrtModel {
    /// Loads `model` with `threads` threads per run, on the CPU or on those of `gpus` that the configuration
    /// requests.
    ///
    /// # Errors
    /// Returns an error whose cause is [`NeedsProcess`] if the model could crash the process and the caller
    /// can start a separate one for it.
    pub(crate) fn load(
        runtime: &OnnxRuntime,
        gpus: &Gpus,
        source: &ModelSource,
        model: &ModelProto,
        threads: usize,
        cx: &LoadContext,
    ) -> Result<Self, ServiceError> {
        let graph = model
            .graph
            .as_ref()
            .ok_or_else(|| ServiceError::invalid(proto::DAMAGED))?;
        let signature = Signature::of(model).map_err(refusal)?;
        // The structure is checked before the library reads the file, since the library's C++ code runs in
        // this process.
        structure::check(model).map_err(refusal)?;
        let plan = plan(&cx.config, gpus, &runtime.describe(), runtime.providers())?;
        for warning in &plan.warnings {
            tracing::warn!(model = source.name, "{warning}");
        }
        let opening = Opening {
            settings: Settings {
                runtime,
                inputs: &signature.inputs,
                threads,
            },
            plan: &plan,
            source,
            cx,
        };
        let (devices, disarmed) = opening.open(model)?;
        let session = devices
            .any()
            .ok_or_else(|| ServiceError::internal("the model has no session"))?;
        let inputs = ports("input", &signature.inputs, session.inputs())?;
        let outputs = ports("output", &signature.outputs, session.outputs())?;
        let outputs = match has_ml(graph) {
            true => outputs_by_graph(source, model).unwrap_or(outputs),
            false => outputs,
        };
        let mut loaded = Self {
            metadata: ModelMetadata::new(source.name.clone(), "onnx_onnxv1", inputs, outputs)
                .with_versions([source.version.clone()]),
            named_dims: NamedDims::of(&signature.inputs),
            devices,
            guards: disarmed.guards,
            filled: disarmed.filled,
            comparison: None,
            rows: RowIndependence::default(),
        };
        let answer = first_outputs(&loaded, &signature.inputs, cx.deadline);
        loaded.learn(answer.as_deref(), &signature.outputs);
        loaded.comparison = Some(Comparison::default());
        Ok(loaded)
    }

    /// Adds the result of the row independence analysis.
    pub(crate) fn with_row_independence(self, rows: RowIndependence) -> Self {
        Self { rows, ..self }
    }

    /// Completes the metadata of outputs from `answer`, the outputs of a run. Logs a warning where the file
    /// declares something else.
    fn learn(&mut self, answer: Option<&[InferOutput]>, declared: &[Port]) {
        for (index, (output, port)) in self.metadata.outputs.iter_mut().zip(declared).enumerate() {
            let seen = answer.and_then(|outputs| outputs.get(index));
            let seen = seen.map(|seen| seen.value.shape().clone());
            if let Some(seen) = &seen {
                let is_unknown = output.shape == ShapePattern::with_any_leading(vec![]);
                // Only the rank of the run's output is used, since sizes may differ between runs, and the
                // rank rarely does.
                if is_unknown || !output.shape.matches(seen) {
                    output.shape = ShapePattern::new(vec![None; seen.dims().len()]);
                }
            }
            let declared = pattern(port);
            let is_wrong = match (&declared, &seen) {
                (Some(declared), Some(seen)) => !declared.matches(seen),
                _ => false,
            };
            if let (true, Some(declared)) = (is_wrong, declared) {
                tracing::warn!(
                    model = self.metadata.name,
                    output = output.name,
                    %declared,
                    served = %output.shape,
                    "an output's dimensions differ from those in the file"
                );
            }
        }
    }
}

impl Model for OrtModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| {
            capabilities.runtime = Some("onnxruntime".to_owned());
            capabilities.row_independence = self.rows.clone();
            // On a GPU, a single instance gives the largest batches; several instances would only wait for
            // each other.
            let placement = self.devices.placement();
            capabilities.instances = (!placement.gpus.is_empty()).then_some(1);
            capabilities.placement = Some(placement.clone());
        })
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let (mut request, cancel) = (call.request, call.cancel);
        if cancel.is_cancelled() {
            return Err(ended(cancel));
        }
        let values = self.metadata.inputs.iter();
        let values = values.map(|input| request.take_input(&input.name));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let shapes: Vec<Shape> = values.iter().map(|value| value.shape().clone()).collect();
        self.named_dims.check(&shapes)?;
        for (input, shape) in self.metadata.inputs.iter().zip(&shapes) {
            if let Some(operator) = self.filled.get(&input.name) {
                refuse_empty(operator, &input.name, shape)?;
            }
        }
        let mut inputs = Vec::with_capacity(values.len());
        for (input, value) in self.metadata.inputs.iter().zip(&values) {
            let value = admit_input(value)
                .and_then(|()| tensors::input(value))
                .map_err(|error| error.within(format!("input {}", QuotedName(&input.name))))?;
            inputs.push(value);
        }
        let addresses: Vec<_> = values.iter().filter_map(tensors::addresses).collect();

        let outputs = self.devices.run(&inputs, &self.guards, cancel)?;
        let outputs = self.metadata.outputs.iter().zip(outputs).map(|(output, value)| {
            let value = tensors::output(value, &addresses)?;
            Ok(InferOutput::new(output.name.as_str(), value))
        });
        let outputs = outputs.collect::<Result<Vec<_>, ServiceError>>()?;
        if let Some(comparison) = &self.comparison {
            comparison.note(&self.metadata, &outputs);
        }
        Ok(outputs.into())
    }
}

/// The parameters for creating a model's sessions.
struct Opening<'l> {
    settings: Settings<'l>,
    plan: &'l Plan,
    source: &'l ModelSource,
    cx: &'l LoadContext,
}

impl Opening<'_> {
    /// Creates the sessions of a model after rewriting the operators that could crash the process. If the
    /// rewrite fails, the original model is opened, unless the caller can start a separate process for it.
    fn open(&self, model: &ModelProto) -> Result<(OnDevices, DisarmOutcome), ServiceError> {
        let mut disarmed = DisarmOutcome::default();
        if traps::are_there(model) {
            let mut rewritten = model.clone();
            disarmed = traps::disarm(&mut rewritten);
            if let Some(reason) = &disarmed.refused {
                return Err(ServiceError::invalid(format!(
                    "ONNX Runtime is not given the model: {reason}"
                )));
            }
            if let Some(reason) = &disarmed.unguarded {
                self.needs_process(reason)?;
            }
            if disarmed.is_changed {
                // The rewritten names must not collide with names in the file.
                structure::check(&rewritten).map_err(refusal)?;
                match content(&rewritten)? {
                    None => self.needs_process(UNREAD)?,
                    Some(content) => match self.sessions(&content) {
                        Ok(devices) => return Ok((devices, disarmed)),
                        // The original model would fail as well if the required device is missing.
                        Err(error) if self.plan.is_demanded => return Err(error),
                        Err(error) => {
                            self.needs_process(&format!("an operator cannot be rewritten: {error}"))?;
                        }
                    },
                }
            }
        }
        let content = content(model)?.unwrap_or_else(|| self.source.content.clone());
        Ok((self.sessions(&content)?, disarmed))
    }

    fn sessions(&self, content: &Bytes) -> Result<OnDevices, ServiceError> {
        OnDevices::open(self.settings, self.plan, &self.source.name, content)
    }

    fn needs_process(&self, reason: &str) -> Result<(), ServiceError> {
        let reason = NeedsProcess::new(format!(
            "a request could crash the process in ONNX Runtime: {reason}"
        ));
        if self.cx.can_isolate {
            return Err(ServiceError::invalid(reason.to_string()).caused_by(reason));
        }
        tracing::info!(model = self.source.name, %reason, "no safe rewrite is known");
        Ok(())
    }
}

const UNREAD: &str =
    "an operator must be rewritten, but some attributes of the file are types, which are not supported";

/// Encodes a model for ONNX Runtime; `None` where the encoding would lose information.
fn content(model: &ModelProto) -> Result<Option<Bytes>, ServiceError> {
    match rewrite::without_claims(model) {
        Some(model) if model.encoded_len() <= MAX_FILE => Ok(Some(model.encode_to_vec().into())),
        Some(_) => Err(ServiceError::invalid(
            "the model and its external data are larger than 2 GiB together, which ONNX Runtime is not given in one piece; set \
             runtime to 'built-in' in the model's configuration",
        )),
        None => Ok(None),
    }
}

/// The largest model that ONNX Runtime reads: protocol buffer lengths have 31 bits.
const MAX_FILE: usize = i32::MAX as usize;

/// Returns whether a graph has operators of the `ai.onnx.ml` domain. ONNX Runtime does not infer their
/// dimensions; it trusts the file, and exporters are often wrong.
fn has_ml(graph: &GraphProto) -> bool {
    graph.node.iter().any(|node| node.domain == "ai.onnx.ml")
}

/// Returns the output metadata that the built-in runtime infers, if it can run the model.
fn outputs_by_graph(source: &ModelSource, model: &ModelProto) -> Option<Vec<TensorMetadata>> {
    let loaded = OnnxModel::load(source, model, &LoadContext::default()).ok()?;
    Some(loaded.metadata().outputs.clone())
}

/// Builds the metadata of inputs or outputs: names and types from the file, dimensions from ONNX Runtime.
fn ports(role: &str, ports: &[Port], outlets: &[Outlet]) -> Result<Vec<TensorMetadata>, ServiceError> {
    let mismatch = || ServiceError::invalid(format!("ONNX Runtime finds other {role}s than the file has"));
    if ports.len() != outlets.len() {
        return Err(mismatch());
    }
    let metadata = ports.iter().zip(outlets).map(|(port, outlet)| {
        let ValueType::Tensor { shape, .. } = outlet.dtype() else {
            return Err(mismatch());
        };
        if outlet.name() != port.name {
            return Err(mismatch());
        }
        let known: Vec<Option<u64>> = shape.iter().map(|&dim| u64::try_from(dim).ok()).collect();
        let shape = match pattern(port) {
            // ONNX Runtime reports an empty shape for scalars and for values of unknown rank.
            None if known.is_empty() && role == "input" => {
                return Err(ServiceError::invalid(format!(
                    "input {} has no shape; export the model with the shapes of its inputs (free dimensions may stay free)",
                    QuotedName(&port.name)
                )));
            }
            Some(declared) if role == "input" => declared,
            // The shape is unknown: output shapes of the file, which may be wrong, are not given to the
            // session.
            _ if known.is_empty() => ShapePattern::with_any_leading(vec![]),
            _ => ShapePattern::new(known),
        };
        let described = TensorMetadata::with_shape(&port.name, dtype::of(port.element_type), shape);
        Ok(if role == "output" { described.approximate() } else { described })
    });
    metadata.collect()
}

/// Refuses an empty input for an operator that would crash the process.
fn refuse_empty(operator: &str, input: &str, shape: &Shape) -> Result<(), ServiceError> {
    if shape.element_count() != 0 {
        return Ok(());
    }
    Err(ServiceError::invalid(format!(
        "input {} has the shape {shape}: ONNX Runtime cannot run {operator} without elements; expected at least one in each \
         dimension (or set runtime to 'built-in' in the model's configuration)",
        QuotedName(input)
    )))
}
