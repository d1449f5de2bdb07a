//! Encodes and decodes inference responses as REST bodies.

use bytes::Bytes;
use tensor_core::QuotedName;

use super::{
    BinaryOutputs, EncodedBody, EncodedPieces,
    tensor::{Destination, TensorReader, missing, read_parameters, set_once, write_tensor},
};
use crate::{
    InferOutput, InferResponse, Memory, NoSharedMemory, NonFinite, Parameters, ReadSharedMemory,
    RequestLimits, ServiceError, UnlimitedMemory,
    json::{Cursor, Writer, answer_too_large},
};

/// Encodes an inference response; binary outputs are not copied.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when a value has no JSON form: a byte string that
/// is not UTF-8, or a non-finite float under [`NonFinite::Error`]. Requesting binary data avoids both errors.
pub fn encode_response(
    response: &InferResponse,
    binary_outputs: &BinaryOutputs,
    non_finite: NonFinite,
) -> Result<EncodedBody, ServiceError> {
    let mut writer = Writer::with_capacity(256);
    let binary = write_response(&mut writer, response, binary_outputs, non_finite)?;
    Ok(EncodedBody {
        json: writer.into_bytes(),
        binary,
    })
}

/// Encodes like [`encode_response`], with a size limit and a memory budget. JSON is printed into chunks, each
/// granted before it is allocated; encoding stops when the response exceeds the limit.
///
/// # Errors
/// The errors of [`encode_response`] and `memory`; [`Internal`](crate::ErrorCode::Internal) when the response
/// exceeds `limit` bytes.
pub fn encode_response_within(
    response: &InferResponse,
    binary_outputs: &BinaryOutputs,
    non_finite: NonFinite,
    memory: &dyn Memory,
    limit: usize,
) -> Result<EncodedPieces, ServiceError> {
    let mut writer = Writer::in_pieces(memory, limit);
    let binary = write_response(&mut writer, response, binary_outputs, non_finite)?;
    let pieces = EncodedPieces {
        json: writer.into_pieces()?,
        binary,
    };
    match pieces.len() {
        found if found > limit => Err(answer_too_large(found, limit)),
        _ => Ok(pieces),
    }
}

/// Writes the JSON part and returns the binary part.
fn write_response(
    writer: &mut Writer<'_>,
    response: &InferResponse,
    binary_outputs: &BinaryOutputs,
    non_finite: NonFinite,
) -> Result<Vec<Bytes>, ServiceError> {
    let mut binary = Vec::new();
    // Estimates the size of a typical response without the tensors' elements.
    writer.room(128 * (1 + response.outputs.len().min(8)))?;
    writer.raw("{");
    if let Some(id) = &response.id {
        writer.raw("\"id\":");
        writer.string(id);
        writer.raw(",");
    }
    writer.raw("\"model_name\":");
    writer.string(&response.model_name);
    if let Some(version) = &response.model_version {
        writer.raw(",\"model_version\":");
        writer.string(version);
    }
    if !response.parameters.is_empty() {
        writer.raw(",\"parameters\":");
        writer.parameters(&response.parameters);
    }
    writer.raw(",\"outputs\":");
    let mut failed = Ok(());
    writer.array(&response.outputs, |writer, output| {
        if failed.is_err() {
            return;
        }
        let none = Parameters::new();
        let (destination, parameters) = match &output.shared_memory {
            Some(slice) => (Destination::SharedMemory(Some(slice)), &none),
            None if binary_outputs.is_binary(&output.name) => {
                (Destination::Binary(&mut binary), &output.parameters)
            }
            // Parameters of JSON outputs are omitted: Triton's C++ client requires "binary_data_size" on
            // outputs with parameters.
            None => (Destination::Json(non_finite), &none),
        };
        let written = write_tensor(writer, destination, &output.name, &output.value, parameters);
        if let Err(error) = written {
            failed = Err(error.within(format_args!("output {}", QuotedName(&output.name))));
        }
    });
    failed?;
    writer.raw("}");
    Ok(binary)
}

/// Decodes the body of an inference response.
///
/// `header_length` is the parsed [`HEADER_LENGTH`](super::HEADER_LENGTH), `None` when the header is absent
/// and the whole body is JSON. Binary tensors share the body's bytes.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) with the position and the problem.
///
/// # Panics
/// When `header_length` is larger than the body; [`parse_header_length`](super::parse_header_length) rejects
/// such a length.
pub fn decode_response(
    body: &Bytes,
    header_length: Option<usize>,
    limits: &RequestLimits,
) -> Result<InferResponse, ServiceError> {
    decode(body, header_length, limits, Some(&NoSharedMemory))
}

/// Decodes like [`decode_response`], and reads outputs that are in shared memory.
///
/// # Errors
/// Returns the errors of [`decode_response`] and `memory`.
///
/// # Panics
/// See [`decode_response`].
pub fn decode_response_with(
    body: &Bytes,
    header_length: Option<usize>,
    limits: &RequestLimits,
    memory: &dyn ReadSharedMemory,
) -> Result<InferResponse, ServiceError> {
    decode(body, header_length, limits, Some(memory))
}

/// Decodes like [`decode_response`], but does not read outputs in shared memory: their values are zeros, and
/// [`InferOutput::shared_memory`] gives the location of the bytes.
///
/// # Errors
/// See [`decode_response`].
///
/// # Panics
/// See [`decode_response`].
pub fn decode_shared_response(
    body: &Bytes,
    header_length: Option<usize>,
    limits: &RequestLimits,
) -> Result<InferResponse, ServiceError> {
    decode(body, header_length, limits, None)
}

fn decode(
    body: &Bytes,
    header_length: Option<usize>,
    limits: &RequestLimits,
    memory: Option<&dyn ReadSharedMemory>,
) -> Result<InferResponse, ServiceError> {
    let json_len = header_length.unwrap_or(body.len());
    let mut cursor = Cursor::new(&body[..json_len])?;
    let mut tensors = TensorReader::new(limits, body.slice(json_len..), memory, &UnlimitedMemory);
    let (mut model_name, mut model_version, mut id) = (None, None, None);
    let (mut parameters, mut outputs) = (None, None);
    cursor.object(|cursor, member| match &*member {
        "model_name" => set_once(&mut model_name, &member, cursor.string()?.into_owned()),
        "model_version" => set_once(&mut model_version, &member, string_or_null(cursor)?),
        "id" => set_once(&mut id, &member, string_or_null(cursor)?),
        "parameters" => set_once(&mut parameters, &member, read_parameters(cursor, limits)?),
        "outputs" => {
            let mut read = Vec::new();
            cursor.array(|cursor| {
                limits.check_tensors(read.len() + 1)?;
                let tensor = tensors.read(cursor, "output", read.len())?;
                read.push(InferOutput {
                    name: tensor.name,
                    value: tensor.value,
                    parameters: tensor.parameters,
                    shared_memory: tensor.place,
                });
                Ok(())
            })?;
            set_once(&mut outputs, &member, read)
        }
        _ => cursor.skip(limits.json_depth),
    })?;
    cursor.finish()?;
    tensors.finish()?;
    Ok(InferResponse {
        model_name: model_name.ok_or_else(|| missing("model_name"))?,
        model_version: model_version.flatten(),
        id: id.flatten(),
        parameters: parameters.unwrap_or_default(),
        outputs: outputs.ok_or_else(|| missing("outputs"))?,
    })
}

fn string_or_null(cursor: &mut Cursor<'_>) -> Result<Option<String>, ServiceError> {
    if cursor.eat_word("null") {
        return Ok(None);
    }
    cursor.string().map(|string| Some(string.into_owned()))
}
