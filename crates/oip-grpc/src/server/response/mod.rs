//! Encodes responses as gRPC frames without copying tensors: a response is a list of buffers, in which raw
//! contents and fixed-width typed contents have buffers of their own.

mod pieces;
mod typed;

use bytes::{Buf, Bytes};
use oip_resources::{
    Lease,
    compression::{Compression, deflate},
};
use oip_types::{InferResponse, ServiceError};
use prost::Message;

use self::{
    pieces::Pieces,
    typed::{TypedContents, delimited_len},
};
use super::frame_head::{HEAD, frame_head};
use crate::{
    parameters::write_parameters,
    proto::{ModelInferResponse, ModelStreamInferResponse, model_infer_response::InferOutputTensor},
    shape::wire_dims,
};

/// Field numbers in `ModelInferResponse`, `InferOutputTensor` and `ModelStreamInferResponse`.
const OUTPUTS: u32 = 5;
const RAW_OUTPUT_CONTENTS: u32 = 6;
const CONTENTS: u32 = 5;
const INFER_RESPONSE: u32 = 2;

/// The message that contains a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// The response is the message of a unary call.
    Call,
    /// The response is a field of a stream's message.
    Stream,
}

/// A response whose size has been computed, but which has not been written yet.
pub(crate) struct ResponseMessage {
    /// The response without its outputs.
    head: ModelInferResponse,
    outputs: Vec<Output>,
    /// Size of the response in bytes.
    response_len: usize,
    envelope: Envelope,
}

struct Output {
    /// The output's message, without the contents of the tensor.
    head: InferOutputTensor,
    /// Size of the output's message in bytes.
    len: usize,
    contents: Contents,
}

enum Contents {
    /// The contents are in shared memory.
    None,
    Typed(TypedContents),
    Raw(Bytes),
}

impl ResponseMessage {
    /// Computes the size of a response in raw or typed form.
    pub(crate) fn new(response: InferResponse, wants_raw: bool, envelope: Envelope) -> Self {
        // A response cannot mix raw and typed contents: if one output has no typed form, all outputs are raw.
        let typed: Option<Vec<_>> = match wants_raw {
            true => None,
            false => {
                let typed = response.outputs.iter().map(|output| match output.shared_memory {
                    Some(_) => Some(Contents::None),
                    None => TypedContents::of(&output.value).map(Contents::Typed),
                });
                typed.collect()
            }
        };
        let head = ModelInferResponse {
            model_name: response.model_name,
            model_version: response.model_version.unwrap_or_default(),
            id: response.id.unwrap_or_default(),
            parameters: write_parameters(response.parameters),
            ..ModelInferResponse::default()
        };
        let mut typed = typed.map(Vec::into_iter);
        let mut response_len = head.encoded_len();
        let outputs = response.outputs.into_iter().map(|output| {
            let mut parameters = output.parameters;
            if let Some(slice) = &output.shared_memory {
                parameters.extend(slice.to_parameters());
            }
            let head = InferOutputTensor {
                name: output.name,
                datatype: output.value.datatype().name().to_owned(),
                shape: wire_dims(output.value.shape()),
                parameters: write_parameters(parameters),
                contents: None,
            };
            let contents = match &mut typed {
                Some(typed) => typed.next().unwrap_or(Contents::None),
                // An output in shared memory gets an empty entry: Triton's clients find raw contents by
                // counting outputs.
                None if output.shared_memory.is_some() => Contents::Raw(Bytes::new()),
                None => Contents::Raw(output.value.into_raw()),
            };
            let mut len = head.encoded_len();
            match &contents {
                Contents::None => {}
                Contents::Typed(typed) => len += delimited_len(typed.len),
                Contents::Raw(raw) => response_len += delimited_len(raw.len()),
            }
            response_len += delimited_len(len);
            Output { head, len, contents }
        });
        let outputs = outputs.collect();
        Self {
            head,
            outputs,
            response_len,
            envelope,
        }
    }

    /// Returns the size of the message in bytes.
    pub(crate) fn len(&self) -> usize {
        match self.envelope {
            Envelope::Call => self.response_len,
            Envelope::Stream => delimited_len(self.response_len),
        }
    }

    /// Writes the message in its frame. Buffers are charged to the lease before they are allocated; tensors
    /// have their own charges.
    ///
    /// # Errors
    /// Returns the errors of the lease.
    pub(crate) fn write(self, lease: &Lease) -> Result<Vec<Bytes>, ServiceError> {
        let outputs: usize = self
            .outputs
            .iter()
            .map(|output| output.head.encoded_len() + 64)
            .sum();
        let mut pieces = Pieces::new(lease, HEAD + 16 + self.head.encoded_len() + outputs)?;
        pieces.write(&frame_head(false, self.len())?)?;
        if self.envelope == Envelope::Stream {
            pieces.delimited(INFER_RESPONSE, self.response_len)?;
        }
        pieces.write(&self.head.encode_to_vec())?;
        let mut raw = Vec::new();
        for output in self.outputs {
            pieces.delimited(OUTPUTS, output.len)?;
            pieces.write(&output.head.encode_to_vec())?;
            match output.contents {
                Contents::None => {}
                Contents::Typed(typed) => {
                    pieces.delimited(CONTENTS, typed.len)?;
                    typed.write(&mut pieces)?;
                }
                Contents::Raw(bytes) => raw.push(bytes),
            }
        }
        for bytes in raw {
            pieces.delimited(RAW_OUTPUT_CONTENTS, bytes.len())?;
            pieces.append(bytes)?;
        }
        Ok(pieces.finish())
    }
}

/// Compresses a framed message.
pub(crate) fn compress(
    mut framed: Vec<Bytes>,
    compression: Compression,
    lease: &Lease,
) -> Result<Vec<Bytes>, ServiceError> {
    // The frame header is in the first buffer.
    if let Some(first) = framed.first_mut() {
        first.advance(HEAD.min(first.len()));
    }
    let compressed = deflate(lease, compression, framed)?;
    let len = compressed.iter().map(Bytes::len).sum();
    let head = Bytes::copy_from_slice(&frame_head(true, len)?);
    Ok(std::iter::once(head).chain(compressed).collect())
}

/// Creates a stream message without outputs: it reports an error or, with an empty error, that no further
/// responses follow.
pub(crate) fn without_outputs(
    error_message: &str,
    response: ModelInferResponse,
) -> Result<Vec<Bytes>, ServiceError> {
    let message = ModelStreamInferResponse {
        error_message: error_message.to_owned(),
        infer_response: Some(response),
    };
    let mut framed = frame_head(false, message.encoded_len())?.to_vec();
    framed.extend(message.encode_to_vec());
    Ok(vec![framed.into()])
}
