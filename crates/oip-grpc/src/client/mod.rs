//! Client-side conversion: encodes requests and decodes responses.
//!
//! Bring your own transport: [`proto`](crate::proto) has a generated client, `oip-client` a complete one.
//!
//! ```
//! use oip_grpc::client::encode_request;
//! use oip_types::{InferRequest, ModelRef};
//! use tensor_core::Tensor;
//!
//! let request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", Tensor::scalar(1.5f32));
//! let message = encode_request(&request, true);
//! assert_eq!(message.raw_input_contents[0], 1.5f32.to_le_bytes()[..]);
//! let message = encode_request(&request, false);
//! assert_eq!(message.inputs[0].contents.as_ref().unwrap().fp32_contents, [1.5]);
//! ```

mod config;
mod extensions;

use bytes::Bytes;
use oip_types::{
    DataType, InferInput, InferOutput, InferRequest, InferResponse, ModelMetadata, ReadSharedMemory,
    RequestLimits, ServiceError, SharedMemorySlice, TensorMetadata, TensorValue,
};
use tensor_core::QuotedName;

pub use self::{
    config::decode_config,
    extensions::{
        decode_cuda_regions, decode_index, decode_log_settings, decode_regions, decode_statistics,
        decode_trace_settings, encode_cuda_region, encode_load, encode_log_settings, encode_region,
        encode_trace_settings, encode_unload,
    },
};
use crate::{
    contents,
    parameters::{read_parameters, write_parameters},
    proto::{
        ModelInferRequest, ModelInferResponse, ModelMetadataResponse,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
        model_infer_response::InferOutputTensor,
        model_metadata_response,
    },
    shape::wire_dims,
};

/// Encodes an inference request. Raw inputs share the tensors' bytes; typed ones are copied. If an input has
/// no typed form (16-bit floats), the whole request is raw. Inputs whose parameters name a slice of shared
/// memory have no contents.
#[must_use]
pub fn encode_request(request: &InferRequest, is_raw: bool) -> ModelInferRequest {
    let is_here = |input: &&InferInput| !SharedMemorySlice::is_in(&input.parameters);
    let here = || request.inputs.iter().filter(is_here);
    let typed = match is_raw {
        true => None,
        // A request cannot mix raw and typed contents.
        false => here()
            .map(|input| contents::write(&input.value))
            .collect::<Option<Vec<_>>>(),
    };
    let raw = match &typed {
        Some(_) => Vec::new(),
        None => here().map(|input| input.value.raw().clone()).collect(),
    };
    let mut typed = typed.into_iter().flatten();
    let inputs = request.inputs.iter().map(|input| InferInputTensor {
        name: input.name.clone(),
        datatype: input.value.datatype().name().to_owned(),
        shape: wire_dims(input.value.shape()),
        parameters: write_parameters(input.parameters.clone()),
        contents: is_here(&input).then(|| typed.next()).flatten(),
    });
    let outputs = request.outputs.iter().map(|output| InferRequestedOutputTensor {
        name: output.name.clone(),
        parameters: write_parameters(output.parameters.clone()),
    });
    let model = request.model();
    ModelInferRequest {
        model_name: model.name().to_owned(),
        model_version: model.version().unwrap_or_default().to_owned(),
        id: request.id.clone().unwrap_or_default(),
        parameters: write_parameters(request.parameters.clone()),
        inputs: inputs.collect(),
        outputs: outputs.collect(),
        raw_input_contents: raw,
    }
}

/// Decodes an inference response, raw or typed, from any server. Raw outputs remain slices of the message.
/// The values of outputs in shared memory are zeros, and [`InferOutput::shared_memory`] gives the location of
/// their bytes.
///
/// # Errors
/// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) with the problem and its location.
pub fn decode_response(
    message: ModelInferResponse,
    limits: &RequestLimits,
) -> Result<InferResponse, ServiceError> {
    decode(message, limits, None)
}

/// Decodes like [`decode_response`], and reads outputs that are in shared memory.
///
/// # Errors
/// Returns the errors of [`decode_response`] and of `memory`.
pub fn decode_response_with(
    message: ModelInferResponse,
    limits: &RequestLimits,
    memory: &dyn ReadSharedMemory,
) -> Result<InferResponse, ServiceError> {
    decode(message, limits, Some(memory))
}

fn decode(
    message: ModelInferResponse,
    limits: &RequestLimits,
    memory: Option<&dyn ReadSharedMemory>,
) -> Result<InferResponse, ServiceError> {
    limits.check_tensors(message.outputs.len())?;
    // For outputs in shared memory, some servers send empty raw contents and others none.
    let found = message.raw_output_contents.len();
    let is_elsewhere = |output: &InferOutputTensor| output.parameters.contains_key("shared_memory_region");
    let (all, elsewhere) = (
        message.outputs.len(),
        message
            .outputs
            .iter()
            .filter(|output| is_elsewhere(output))
            .count(),
    );
    let is_for_all = found == all;
    let expected = all - elsewhere;
    if found != 0 && !is_for_all && expected != found {
        let message = format!("expected {expected} raw_output_contents, one per output, found {found}");
        return Err(ServiceError::invalid(message));
    }
    let mut raw = message.raw_output_contents.into_iter();
    let outputs = message.outputs.into_iter().map(|mut output| {
        let name = std::mem::take(&mut output.name);
        let has_raw = is_for_all || !is_elsewhere(&output);
        read_output(output, has_raw.then(|| raw.next()).flatten(), limits, memory)
            .map_err(|error| error.within(format_args!("output {}", QuotedName(&name))))
            .map(|read| InferOutput { name, ..read })
    });
    let outputs = outputs.collect::<Result<_, _>>()?;
    Ok(InferResponse::new(message.model_name, outputs)
        .with_version(Some(message.model_version).filter(|version| !version.is_empty()))
        .with_id(Some(message.id).filter(|id| !id.is_empty()))
        .with_parameters(read_parameters(message.parameters, limits)?))
}

fn read_output(
    output: InferOutputTensor,
    raw: Option<Bytes>,
    limits: &RequestLimits,
    memory: Option<&dyn ReadSharedMemory>,
) -> Result<InferOutput, ServiceError> {
    let datatype = DataType::from_name(&output.datatype)?;
    let shape = limits.shape(&output.shape)?;
    let mut parameters = read_parameters(output.parameters, limits)?;
    let place = SharedMemorySlice::take(&mut parameters)?;
    let value = match (raw, output.contents) {
        _ if let (Some(place), Some(memory)) = (&place, memory) => {
            TensorValue::from_raw(datatype, shape, memory.read(place)?)?
        }
        _ if place.is_some() => TensorValue::zeros(datatype, shape, limits.tensor_bytes)?,
        // Some servers set an empty typed message next to raw contents.
        (Some(raw), _) => TensorValue::from_raw(datatype, shape, raw)?,
        (None, Some(contents)) => contents::read(datatype, shape, contents)?,
        (None, None) if shape.element_count() == 0 => TensorValue::from_raw(datatype, shape, Bytes::new())?,
        (None, None) => {
            return Err(ServiceError::invalid(
                "expected contents or raw_output_contents, found neither",
            ));
        }
    };
    Ok(InferOutput {
        parameters,
        shared_memory: place,
        ..InferOutput::new(String::new(), value)
    })
}

/// Decodes a model's metadata.
///
/// # Errors
/// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when a datatype is unknown.
pub fn decode_metadata(message: ModelMetadataResponse) -> Result<ModelMetadata, ServiceError> {
    let read = |tensor: model_metadata_response::TensorMetadata| {
        let datatype =
            DataType::from_name(&tensor.datatype).map_err(|error| error.within(QuotedName(&tensor.name)))?;
        Ok(TensorMetadata::new(tensor.name, datatype, &tensor.shape))
    };
    let inputs = message.inputs.into_iter().map(read);
    let inputs = inputs.collect::<Result<_, ServiceError>>()?;
    let outputs = message.outputs.into_iter().map(read);
    let outputs = outputs.collect::<Result<_, ServiceError>>()?;
    let metadata = ModelMetadata::new(message.name, message.platform, inputs, outputs);
    Ok(metadata.with_versions(message.versions))
}
