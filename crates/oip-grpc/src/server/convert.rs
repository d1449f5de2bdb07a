//! Between the protocol's messages and its nouns.

use std::{collections::BTreeMap, mem};

use bytes::Bytes;
use oip_types::{
    DataType, InferInput, InferOutput, InferRequest, InferResponse, Limits, ModelMetadata, ModelRef,
    Parameters, ReadSharedMemory, RequestedOutput, ServiceError, SharedMemorySlice, TensorMetadata,
    TensorValue, check_parameter_name, take_bool,
};
use tensor_core::Quoted;

use super::GrpcOutput;
use crate::{
    contents,
    parameters::{read_parameters, write_parameters},
    proto::{
        InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataResponse,
        model_infer_request::InferInputTensor, model_infer_response::InferOutputTensor,
        model_metadata_response,
    },
};

/// On a request: whether outputs are raw (true) or typed (false).
const BINARY_DATA_OUTPUT: &str = "binary_data_output";
/// On a request: whether the end of its answers is to be told by an answer without outputs, if need be.
const ENABLE_EMPTY_FINAL_RESPONSE: &str = "triton_enable_empty_final_response";

/// A model by the names in a message; an empty version is none.
pub(crate) fn model<'a>(name: &'a str, version: &'a str) -> Result<ModelRef<'a>, ServiceError> {
    ModelRef::new(name, Some(version))
}

/// A request, and how its answer is to be sent.
pub(crate) struct ReadRequest {
    pub(crate) request: InferRequest,
    /// Raw rather than typed.
    pub(crate) wants_raw: bool,
}

/// Reads a request. Raw inputs stay slices of the message.
pub(crate) fn read_request(
    mut message: ModelInferRequest,
    limits: &Limits,
    output: GrpcOutput,
    shared_memory: &dyn ReadSharedMemory,
) -> Result<ReadRequest, ServiceError> {
    let (name, version) = (
        mem::take(&mut message.model_name),
        mem::take(&mut message.model_version),
    );
    let model = model(&name, &version)?;
    read_request_of(model, message, limits, output, shared_memory).map_err(|error| error.within(model))
}

fn read_request_of(
    model: ModelRef<'_>,
    message: ModelInferRequest,
    limits: &Limits,
    output: GrpcOutput,
    shared_memory: &dyn ReadSharedMemory,
) -> Result<ReadRequest, ServiceError> {
    limits.check_tensors(message.inputs.len() + message.outputs.len())?;
    // A request whose inputs are in neither form has none to mirror; Triton's clients expect raw.
    let is_raw = message.inputs.iter().all(|input| input.contents.is_none());
    let mut request = InferRequest::new(model);
    request.id = limits.id(message.id)?;
    request.parameters = read_parameters(message.parameters, limits)?;
    // An answer without outputs can follow only where models answer more than once, which none here does.
    take_bool(&mut request.parameters, ENABLE_EMPTY_FINAL_RESPONSE)?;
    request
        .parameters
        .keys()
        .try_for_each(|name| check_parameter_name(name))?;
    let wants_raw = match (take_bool(&mut request.parameters, BINARY_DATA_OUTPUT)?, output) {
        (Some(binary), _) => binary,
        (None, GrpcOutput::Mirror) => is_raw,
        (None, GrpcOutput::Raw) => true,
        (None, GrpcOutput::Typed) => false,
    };
    let inputs = message.inputs.into_iter().map(|input| Input::read(input, limits));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    if !message.raw_input_contents.is_empty() {
        check_raw(&inputs, message.raw_input_contents.len())?;
    }
    let mut raw = message.raw_input_contents.into_iter();
    for input in inputs {
        let raw = if input.slice.is_none() { raw.next() } else { None };
        request.inputs.push(input.with_value(raw, limits, shared_memory)?);
    }
    for output in message.outputs {
        let parameters = read_parameters(output.parameters, limits)
            .map_err(|error| error.within(format_args!("output {}", Quoted(&output.name))))?;
        request.outputs.push(RequestedOutput {
            name: output.name,
            parameters,
        });
    }
    Ok(ReadRequest { request, wants_raw })
}

/// An input whose elements are not read yet.
struct Input {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    parameters: Parameters,
    contents: Option<InferTensorContents>,
    /// Where in shared memory the elements are, if they are there.
    slice: Option<SharedMemorySlice>,
}

impl Input {
    fn read(input: InferInputTensor, limits: &Limits) -> Result<Self, ServiceError> {
        let read = || {
            let mut parameters = read_parameters(input.parameters, limits)?;
            let slice = SharedMemorySlice::take(&mut parameters)?;
            Ok((parameters, slice))
        };
        let (parameters, slice) = read()
            .map_err(|error: ServiceError| error.within(format_args!("input {}", Quoted(&input.name))))?;
        Ok(Self {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            parameters,
            contents: input.contents,
            slice,
        })
    }

    /// Reads the elements from where they are.
    fn with_value(
        self,
        raw: Option<Bytes>,
        limits: &Limits,
        shared_memory: &dyn ReadSharedMemory,
    ) -> Result<InferInput, ServiceError> {
        let read = || {
            let datatype = DataType::from_name(&self.datatype)?;
            let shape = limits.shape(&self.shape)?;
            match (self.slice, raw, self.contents) {
                (Some(_), _, Some(_)) => Err(ServiceError::invalid(
                    "expected contents or shared_memory_region, found both",
                )),
                (Some(slice), ..) => TensorValue::from_raw(datatype, shape, shared_memory.read(&slice)?),
                (None, Some(raw), _) => TensorValue::from_raw(datatype, shape, raw),
                (None, None, Some(contents)) => contents::read(datatype, shape, contents),
                // A tensor without elements needs no contents.
                (None, None, None) if shape.element_count() == 0 => {
                    TensorValue::from_raw(datatype, shape, Bytes::new())
                }
                (None, None, None) => Err(ServiceError::invalid(
                    "expected contents or raw_input_contents, found neither",
                )),
            }
        };
        let value = read().map_err(|error| error.within(format_args!("input {}", Quoted(&self.name))))?;
        Ok(InferInput {
            name: self.name,
            value,
            parameters: self.parameters,
        })
    }
}

/// Checks that each input outside of shared memory has its raw contents, and no others.
fn check_raw(inputs: &[Input], found: usize) -> Result<(), ServiceError> {
    let expected = inputs.iter().filter(|input| input.slice.is_none()).count();
    if expected != found {
        let one_per = match expected == inputs.len() {
            true => "input",
            false => "input that is not in shared memory",
        };
        let message = format!("expected {expected} raw_input_contents, one per {one_per}, found {found}");
        return Err(ServiceError::invalid(message));
    }
    match inputs.iter().find(|input| input.contents.is_some()) {
        None => Ok(()),
        Some(input) => Err(ServiceError::invalid(format!(
            "input {}: expected no contents together with raw_input_contents",
            Quoted(&input.name)
        ))),
    }
}

/// Writes a response, raw or typed. Raw outputs share the tensors' bytes.
pub(crate) fn write_response(response: InferResponse, wants_raw: bool) -> ModelInferResponse {
    let typed = match wants_raw {
        true => None,
        false => typed_contents(&response.outputs),
    };
    let mut message = ModelInferResponse {
        model_name: response.model_name,
        model_version: response.model_version.unwrap_or_default(),
        id: response.id.unwrap_or_default(),
        parameters: write_parameters(response.parameters),
        ..ModelInferResponse::default()
    };
    let mut typed = typed.map(Vec::into_iter);
    for output in response.outputs {
        let mut parameters = output.parameters;
        if let Some(slice) = &output.shared_memory {
            parameters.extend(slice.to_parameters());
        }
        message.outputs.push(InferOutputTensor {
            name: output.name,
            datatype: output.value.datatype().name().to_owned(),
            shape: contents::wire_dims(output.value.shape()),
            parameters: write_parameters(parameters),
            contents: typed.as_mut().and_then(Iterator::next).flatten(),
        });
        if typed.is_none() {
            // What is in shared memory keeps its place: Triton's clients find raw contents by counting outputs.
            message.raw_output_contents.push(match output.shared_memory {
                Some(_) => Bytes::new(),
                None => output.value.into_raw(),
            });
        }
    }
    message
}

/// All outputs in typed form, if all have one: the two forms cannot be mixed. Those in shared memory have nothing.
fn typed_contents(outputs: &[InferOutput]) -> Option<Vec<Option<InferTensorContents>>> {
    let contents = |output: &InferOutput| match output.shared_memory {
        Some(_) => Some(None),
        None => contents::write(&output.value).map(Some),
    };
    outputs.iter().map(contents).collect()
}

/// Writes a model's metadata.
pub(crate) fn write_metadata(metadata: &ModelMetadata) -> ModelMetadataResponse {
    let tensor = |tensor: &TensorMetadata| model_metadata_response::TensorMetadata {
        name: tensor.name.clone(),
        datatype: tensor.datatype.name().to_owned(),
        shape: tensor.shape.to_wire().collect(),
    };
    ModelMetadataResponse {
        name: metadata.name.clone(),
        versions: metadata.versions.clone(),
        platform: metadata.platform.clone(),
        inputs: metadata.inputs.iter().map(tensor).collect(),
        outputs: metadata.outputs.iter().map(tensor).collect(),
        // MLServer's clients read this field as something else and would fail on anything in it.
        properties: BTreeMap::new(),
    }
}
