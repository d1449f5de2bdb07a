//! Encodes and decodes inference requests as REST bodies.

use std::borrow::Cow;

use bytes::Bytes;
use tensor_core::QuotedName;

use super::{
    EncodedBody,
    tensor::{Destination, TensorReader, missing, read_name, read_parameters, set_once, write_tensor},
};
use crate::{
    InferInput, InferRequest, Memory, ModelRef, NoSharedMemory, NonFinite, ParameterValue, Parameters,
    ReadSharedMemory, RequestLimits, RequestedOutput, ServiceError, SharedMemorySlice, UnlimitedMemory,
    check_parameter_name,
    json::{Cursor, Writer},
    take_bool,
};

/// Request parameter: the default for outputs without `binary_data`.
const BINARY_DATA_OUTPUT: &str = "binary_data_output";
/// Parameter of a requested output: whether it is returned as binary data. Clients may also set it on inputs;
/// see [`RequestEncoding`].
pub const BINARY_DATA: &str = "binary_data";

/// A request and the requested form of its response.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DecodedRequest {
    /// The request, without the parameters that concern only its encoding.
    pub request: InferRequest,
    /// The outputs that are returned as binary data.
    pub binary_outputs: BinaryOutputs,
}

/// The outputs that are returned as binary data.
///
/// An output's `binary_data` takes precedence over the request's `binary_data_output`; the default is JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BinaryOutputs {
    default: bool,
    named: Vec<(String, bool)>,
}

impl BinaryOutputs {
    /// Selects binary data for all outputs if `binary` is true, and JSON for all otherwise.
    #[must_use]
    pub fn all(binary: bool) -> Self {
        Self {
            default: binary,
            named: Vec::new(),
        }
    }

    /// Returns whether `output` is returned as binary data.
    #[must_use]
    pub fn is_binary(&self, output: &str) -> bool {
        let own = self.named.iter().find(|(name, _)| name == output);
        own.map_or(self.default, |(_, binary)| *binary)
    }
}

/// Decodes the body of an inference request.
///
/// `header_length` is the parsed [`HEADER_LENGTH`](super::HEADER_LENGTH), `None` when the header is absent
/// and the whole body is JSON. Binary tensors share the body's bytes.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) with the position and the problem;
/// [`TooLarge`](crate::ErrorCode::TooLarge) when decoded JSON data exceeds [`RequestLimits::tensor_bytes`].
///
/// # Panics
/// When `header_length` is larger than the body; [`parse_header_length`](super::parse_header_length) rejects
/// such a length.
pub fn decode_request(
    model: ModelRef<'_>,
    body: &Bytes,
    header_length: Option<usize>,
    limits: &RequestLimits,
) -> Result<DecodedRequest, ServiceError> {
    decode_request_with(
        model,
        body,
        header_length,
        limits,
        &NoSharedMemory,
        &UnlimitedMemory,
    )
}

/// Decodes like [`decode_request`], for servers: inputs may be in shared memory, and `memory` grants memory
/// before tensors are allocated.
///
/// # Errors
/// The errors of [`decode_request`], `shared_memory` and `memory`.
///
/// # Panics
/// See [`decode_request`].
pub fn decode_request_with(
    model: ModelRef<'_>,
    body: &Bytes,
    header_length: Option<usize>,
    limits: &RequestLimits,
    shared_memory: &dyn ReadSharedMemory,
    memory: &dyn Memory,
) -> Result<DecodedRequest, ServiceError> {
    let json_len = header_length.unwrap_or(body.len());
    let mut cursor = Cursor::new(&body[..json_len])?;
    let mut tensors = TensorReader::new(limits, body.slice(json_len..), Some(shared_memory), memory);
    let (mut id, mut parameters, mut inputs, mut outputs) = (None, None, None, None);
    cursor.object(|cursor, member| match &*member {
        "id" => set_once(&mut id, &member, read_id(cursor, limits)?),
        "parameters" => set_once(&mut parameters, &member, read_parameters(cursor, limits)?),
        "inputs" => set_once(&mut inputs, &member, read_inputs(cursor, &mut tensors, limits)?),
        "outputs" => set_once(&mut outputs, &member, read_outputs(cursor, limits)?),
        _ => cursor.skip(limits.json_depth),
    })?;
    cursor.finish()?;
    tensors.finish()?;

    let mut request = InferRequest::new(model);
    request.id = id.flatten();
    request.parameters = parameters.unwrap_or_default();
    request.inputs = inputs.ok_or_else(|| missing("inputs"))?;
    request.outputs = outputs.unwrap_or_default();
    limits.check_tensors(request.inputs.len() + request.outputs.len())?;
    request
        .parameters
        .keys()
        .try_for_each(|name| check_parameter_name(name))?;

    let mut binary_outputs = BinaryOutputs {
        default: take_bool(&mut request.parameters, BINARY_DATA_OUTPUT)?.unwrap_or(false),
        named: Vec::new(),
    };
    for output in &mut request.outputs {
        let own = take_bool(&mut output.parameters, BINARY_DATA)
            .map_err(|error| error.within(format_args!("output {}", QuotedName(&output.name))))?;
        binary_outputs
            .named
            .extend(own.map(|binary| (output.name.clone(), binary)));
    }
    Ok(DecodedRequest {
        request,
        binary_outputs,
    })
}

fn read_id(cursor: &mut Cursor<'_>, limits: &RequestLimits) -> Result<Option<String>, ServiceError> {
    if cursor.eat_word("null") {
        return Ok(None);
    }
    let id = cursor.string().map_err(|error| error.within("id"))?;
    limits.id(id.into_owned())
}

fn read_inputs(
    cursor: &mut Cursor<'_>,
    tensors: &mut TensorReader<'_>,
    limits: &RequestLimits,
) -> Result<Vec<InferInput>, ServiceError> {
    let mut inputs = Vec::new();
    cursor.array(|cursor| {
        limits.check_tensors(inputs.len() + 1)?;
        let tensor = tensors.read(cursor, "input", inputs.len())?;
        inputs.push(InferInput {
            name: tensor.name,
            value: tensor.value,
            parameters: tensor.parameters,
        });
        Ok(())
    })?;
    Ok(inputs)
}

fn read_outputs(
    cursor: &mut Cursor<'_>,
    limits: &RequestLimits,
) -> Result<Vec<RequestedOutput>, ServiceError> {
    let mut outputs = Vec::new();
    if cursor.eat_word("null") {
        return Ok(outputs);
    }
    cursor.array(|cursor| {
        limits.check_tensors(outputs.len() + 1)?;
        let (mut name, mut parameters) = (None, None);
        let read = cursor.object(|cursor, member| match &*member {
            "name" => set_once(&mut name, &member, read_name(cursor)?),
            "parameters" => set_once(&mut parameters, &member, read_parameters(cursor, limits)?),
            _ => cursor.skip(limits.json_depth),
        });
        let name = read.and_then(|()| name.ok_or_else(|| missing("name")));
        let name = name.map_err(|error| error.within(format_args!("outputs[{}]", outputs.len())))?;
        let parameters = parameters.unwrap_or_default();
        outputs.push(RequestedOutput {
            name: name.into_owned(),
            parameters,
        });
        Ok(())
    })?;
    Ok(outputs)
}

/// How a client encodes a request, and how the server is to encode its response.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RequestEncoding {
    /// Whether inputs are sent as binary data rather than JSON, except those whose parameter `binary_data` is
    /// false. The parameter itself is not sent.
    pub binary_inputs: bool,
    /// Whether outputs are requested as binary data rather than JSON, except those whose parameter
    /// `binary_data` is false.
    pub binary_outputs: bool,
    /// How NaN and the infinities are written.
    pub non_finite: NonFinite,
}

impl RequestEncoding {
    /// Returns the encoding with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Encodes an inference request; binary inputs are not copied.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when a value has no JSON form: a byte string that
/// is not UTF-8, or a non-finite float under [`NonFinite::Error`].
pub fn encode_request(
    request: &InferRequest,
    encoding: RequestEncoding,
) -> Result<EncodedBody, ServiceError> {
    let mut writer = Writer::of_request();
    let mut binary = Vec::new();
    writer.raw("{");
    if let Some(id) = &request.id {
        writer.raw("\"id\":");
        writer.string(id);
        writer.raw(",");
    }
    let mut parameters = request.parameters.clone();
    if encoding.binary_outputs {
        parameters.insert(BINARY_DATA_OUTPUT.to_owned(), ParameterValue::Bool(true));
    }
    if !parameters.is_empty() {
        writer.raw("\"parameters\":");
        writer.parameters(&parameters);
        writer.raw(",");
    }
    writer.raw("\"inputs\":");
    let mut failed = Ok(());
    writer.array(&request.inputs, |writer, input| {
        let destination = match encoding.binary_inputs && !is_for_json(&input.parameters) {
            _ if SharedMemorySlice::is_in(&input.parameters) => Destination::SharedMemory(None),
            true => Destination::Binary(&mut binary),
            false => Destination::Json(encoding.non_finite),
        };
        let mut parameters = Cow::Borrowed(&input.parameters);
        if parameters.contains_key(BINARY_DATA) {
            parameters.to_mut().remove(BINARY_DATA);
        }
        let written = write_tensor(writer, destination, &input.name, &input.value, &parameters);
        if let Err(error) = written {
            failed = Err(error.within(format_args!("input {}", QuotedName(&input.name))));
        }
    });
    failed?;
    if !request.outputs.is_empty() {
        writer.raw(",\"outputs\":");
        writer.array(&request.outputs, |writer, output| {
            write_requested(writer, output, encoding.binary_outputs);
        });
    }
    writer.raw("}");
    Ok(EncodedBody {
        json: writer.into_bytes(),
        binary,
    })
}

/// Writes a requested output. `is_binary` is the default for outputs without their own setting.
fn write_requested(writer: &mut Writer<'_>, output: &RequestedOutput, is_binary: bool) {
    // The parameter is sent for every output, because Triton does not apply the request's default to listed
    // outputs.
    let mut parameters = output.parameters.clone();
    let is_binary = is_binary && !is_for_json(&parameters) && !SharedMemorySlice::is_in(&parameters);
    parameters.insert(BINARY_DATA.to_owned(), ParameterValue::Bool(is_binary));
    writer.raw("{\"name\":");
    writer.string(&output.name);
    writer.raw(",\"parameters\":");
    writer.parameters(&parameters);
    writer.raw("}");
}

/// Returns whether a tensor is sent as JSON even if other tensors are binary.
fn is_for_json(parameters: &Parameters) -> bool {
    parameters.get(BINARY_DATA) == Some(&ParameterValue::Bool(false))
}
