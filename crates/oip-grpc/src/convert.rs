//! Between the protocol's messages and its nouns.

use std::{collections::BTreeMap, mem};

use bytes::Bytes;
use oip_types::{
    DataType, InferInput, InferRequest, InferResponse, Limits, ModelMetadata, ModelRef, Parameters,
    RequestedOutput, ServiceError, TensorMetadata, TensorValue, check_parameter_name, take_bool,
};
use tensor_core::Quoted;

use crate::{
    GrpcOutput, contents,
    parameters::{read_parameters, write_parameters},
    proto::{
        ModelInferRequest, ModelInferResponse, ModelMetadataResponse, model_infer_request::InferInputTensor,
        model_infer_response::InferOutputTensor, model_metadata_response,
    },
};

/// On a request: whether outputs are raw (true) or typed (false).
const BINARY_DATA_OUTPUT: &str = "binary_data_output";

/// A model by the names in a message; an empty version is none.
pub(crate) fn model<'a>(name: &'a str, version: &'a str) -> Result<ModelRef<'a>, ServiceError> {
    ModelRef::new(name, Some(version))
}

/// Reads a request, and whether its answer is to be raw. Raw inputs stay slices of the message.
pub(crate) fn read_request(
    mut message: ModelInferRequest,
    limits: &Limits,
    output: GrpcOutput,
) -> Result<(InferRequest, bool), ServiceError> {
    let (name, version) = (
        mem::take(&mut message.model_name),
        mem::take(&mut message.model_version),
    );
    let model = model(&name, &version)?;
    read_request_of(model, message, limits, output).map_err(|error| error.within(model))
}

fn read_request_of(
    model: ModelRef<'_>,
    message: ModelInferRequest,
    limits: &Limits,
    output: GrpcOutput,
) -> Result<(InferRequest, bool), ServiceError> {
    limits.check_tensors(message.inputs.len() + message.outputs.len())?;
    // A request without inputs has no form to mirror; Triton's clients expect raw.
    let is_raw = !message.raw_input_contents.is_empty() || message.inputs.is_empty();
    if is_raw {
        check_raw(&message)?;
    }
    let mut request = InferRequest::new(model);
    request.id = limits.id(message.id)?;
    request.parameters = read_parameters(message.parameters, limits)?;
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
    let mut raw = message.raw_input_contents.into_iter();
    for mut input in message.inputs {
        let name = mem::take(&mut input.name);
        let read = read_input(input, raw.next(), limits);
        let (value, parameters) =
            read.map_err(|error| error.within(format_args!("input {}", Quoted(&name))))?;
        request.inputs.push(InferInput {
            name,
            value,
            parameters,
        });
    }
    for output in message.outputs {
        let parameters = read_parameters(output.parameters, limits)?;
        refuse_shared_memory(&parameters)
            .map_err(|error| error.within(format_args!("output {}", Quoted(&output.name))))?;
        request.outputs.push(RequestedOutput {
            name: output.name,
            parameters,
        });
    }
    Ok((request, wants_raw))
}

fn check_raw(message: &ModelInferRequest) -> Result<(), ServiceError> {
    let (expected, found) = (message.inputs.len(), message.raw_input_contents.len());
    if expected != found {
        let message = format!("expected {expected} raw_input_contents, one per input, found {found}");
        return Err(ServiceError::invalid(message));
    }
    match message.inputs.iter().find(|input| input.contents.is_some()) {
        None => Ok(()),
        Some(input) => Err(ServiceError::invalid(format!(
            "input {}: expected no contents together with raw_input_contents",
            Quoted(&input.name)
        ))),
    }
}

fn read_input(
    input: InferInputTensor,
    raw: Option<Bytes>,
    limits: &Limits,
) -> Result<(TensorValue, Parameters), ServiceError> {
    let datatype = DataType::from_name(&input.datatype)?;
    let shape = limits.shape(&input.shape)?;
    let parameters = read_parameters(input.parameters, limits)?;
    refuse_shared_memory(&parameters)?;
    let value = match (raw, input.contents) {
        (Some(raw), _) => TensorValue::from_raw(datatype, shape, raw)?,
        (None, Some(contents)) => contents::read(datatype, shape, contents)?,
        // A tensor without elements needs no contents.
        (None, None) if shape.element_count() == 0 => TensorValue::from_raw(datatype, shape, Bytes::new())?,
        (None, None) => {
            return Err(ServiceError::invalid(
                "expected contents or raw_input_contents, found neither",
            ));
        }
    };
    Ok((value, parameters))
}

fn refuse_shared_memory(parameters: &Parameters) -> Result<(), ServiceError> {
    if parameters.contains_key("shared_memory_region") {
        return Err(ServiceError::invalid(
            "shared memory is not offered by this server; send the data itself",
        ));
    }
    Ok(())
}

/// Writes a response, raw or typed. Raw outputs share the tensors' bytes.
pub(crate) fn write_response(response: InferResponse, wants_raw: bool) -> ModelInferResponse {
    let typed = if wants_raw {
        None
    } else {
        contents::write_all(response.outputs.iter().map(|output| &output.value))
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
        let contents = typed.as_mut().and_then(Iterator::next);
        message.outputs.push(InferOutputTensor {
            name: output.name,
            datatype: output.value.datatype().name().to_owned(),
            shape: contents::wire_dims(output.value.shape()),
            parameters: write_parameters(output.parameters),
            contents,
        });
        if typed.is_none() {
            message.raw_output_contents.push(output.value.into_raw());
        }
    }
    message
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
