//! Decodes raw binary requests, whose whole body is one input.

use bytes::{BufMut, Bytes, BytesMut};
use tensor_core::{QuotedName, Shape};

use super::{BinaryOutputs, DecodedRequest};
use crate::{
    DataType, InferRequest, Memory, ModelMetadata, ModelRef, ServiceError, TensorMetadata, TensorValue,
};

/// Decodes a raw binary request: the whole body is the data of the model's only input, and all outputs are
/// returned as binary data. Such a request has a [`HEADER_LENGTH`](super::HEADER_LENGTH) of 0.
///
/// The size of a free dimension follows from the number of bytes. If several dimensions are free, the first
/// of them counts as the batch dimension and becomes 1. For BYTES the body is a single element without length
/// prefix.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the model does not have exactly one input, too
/// many dimensions are free, or the number of bytes does not match the shape; otherwise the errors of
/// `memory`, which grants memory before BYTES are copied.
pub fn decode_raw_request(
    model: ModelRef<'_>,
    metadata: &ModelMetadata,
    body: &Bytes,
    memory: &dyn Memory,
) -> Result<DecodedRequest, ServiceError> {
    let [input] = &metadata.inputs[..] else {
        let found = metadata.inputs.len();
        let message = format!("expected a model with one input for a raw binary request, found {found}");
        return Err(ServiceError::invalid(message));
    };
    let value = read(input, body, memory)
        .map_err(|error| error.within(format_args!("input {}", QuotedName(&input.name))))?;
    Ok(DecodedRequest {
        request: InferRequest::new(model).with_input(&input.name, value),
        binary_outputs: BinaryOutputs::all(true),
    })
}

fn read(input: &TensorMetadata, body: &Bytes, memory: &dyn Memory) -> Result<TensorValue, ServiceError> {
    match input.datatype {
        DataType::Bytes => {
            let shape = shape(input, 1)?;
            // Limits on bodies are far below 4 GiB.
            let len = u32::try_from(body.len()).map_err(|_| ServiceError::invalid("it is too long"))?;
            let grant = memory.reserve(4 + body.len())?;
            let mut raw = BytesMut::with_capacity(4 + body.len());
            raw.put_u32_le(len);
            raw.extend_from_slice(body);
            TensorValue::from_raw(DataType::Bytes, shape, grant.own(raw.freeze()))
        }
        DataType::Fixed(dtype) => {
            let (len, size) = (body.len() as u64, dtype.size() as u64);
            if len % size != 0 {
                let message = format!(
                    "expected a multiple of {size} bytes for {}, found {len}",
                    input.datatype
                );
                return Err(ServiceError::invalid(message));
            }
            TensorValue::from_raw(input.datatype, shape(input, len / size)?, body.clone())
        }
    }
}

/// Returns the shape of `input` for `elements` elements, with its free dimensions filled in.
fn shape(input: &TensorMetadata, elements: u64) -> Result<Shape, ServiceError> {
    let mut dims = input.shape.dims().to_vec();
    let unfit = |what: &str| ServiceError::invalid(format!("{elements} elements do not fit {input}{what}"));
    if dims.iter().filter(|dim| dim.is_none()).count() > 1
        && let Some(batch) = dims.iter_mut().find(|dim| dim.is_none())
    {
        *batch = Some(1);
    }
    let fixed = dims
        .iter()
        .flatten()
        .try_fold(1u64, |product, dim| product.checked_mul(*dim));
    let fixed = fixed.ok_or_else(|| unfit(""))?;
    let mut free = dims.iter_mut().filter(|dim| dim.is_none());
    if let Some(dim) = free.next() {
        *dim = Some(elements.checked_div(fixed).ok_or_else(|| unfit(""))?);
    }
    if free.next().is_some() {
        return Err(unfit(
            ": a raw binary request does not say which of its free dimensions has which size",
        ));
    }
    let dims: Vec<u64> = dims.into_iter().flatten().collect();
    let shape = Shape::new(&dims).map_err(|error| ServiceError::invalid(error.to_string()))?;
    Some(shape)
        .filter(|shape| shape.element_count() == elements)
        .ok_or_else(|| unfit(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(datatype: DataType, dims: &[i64], body: &'static [u8]) -> Result<TensorValue, ServiceError> {
        let metadata = ModelMetadata::new(
            "m",
            String::new(),
            vec![TensorMetadata::new("x", datatype, dims)],
            vec![],
        );
        let model = ModelRef::new("m", None).unwrap();
        let mut decoded = decode_raw_request(
            model,
            &metadata,
            &Bytes::from_static(body),
            &crate::UnlimitedMemory,
        )?;
        assert!(decoded.binary_outputs.is_binary("y"));
        decoded.request.take_input("x")
    }

    #[test]
    fn free_dimensions_follow_from_the_bytes() {
        for (dims, shape) in [
            (&[-1][..], &[4][..]),
            (&[-1, 2], &[2, 2]),
            (&[4], &[4]),
            (&[-1, -1, 2], &[1, 2, 2]),
        ] {
            let value = decode(DataType::INT16, dims, b"\x01\x00\x02\x00\x03\x00\x04\x00").unwrap();
            assert_eq!((value.shape().dims(), value.raw().len()), (shape, 8));
        }
        assert_eq!(
            decode(DataType::FP32, &[-1, 4], b"").unwrap().shape().dims(),
            [0, 4]
        );
    }

    #[test]
    fn bytes_are_one_element() {
        for dims in [&[1][..], &[-1], &[-1, 1], &[-1, -1], &[]] {
            let value = decode(DataType::BYTES, dims, b"hello").unwrap();
            assert_eq!(
                value.as_bytes().unwrap().iter().collect::<Vec<_>>(),
                [b"hello"],
                "{dims:?}"
            );
        }
        assert!(decode(DataType::BYTES, &[2], b"hello").is_err());
    }

    /// Rejects raw bodies whose length does not fit the input's datatype and shape.
    #[test]
    fn raw_bodies_that_do_not_fit() {
        for (datatype, dims, message) in [
            (
                DataType::INT32,
                &[-1][..],
                "input 'x': expected a multiple of 4 bytes for INT32, found 6",
            ),
            (
                DataType::INT16,
                &[-1, 2],
                "input 'x': 3 elements do not fit 'x' (INT16[-1, 2])",
            ),
            (
                DataType::INT16,
                &[4],
                "input 'x': 3 elements do not fit 'x' (INT16[4])",
            ),
            (
                DataType::INT16,
                &[-1, 0],
                "input 'x': 3 elements do not fit 'x' (INT16[-1, 0])",
            ),
            (
                DataType::INT16,
                &[i64::MAX, i64::MAX],
                "input 'x': 3 elements do not fit",
            ),
            (
                DataType::INT16,
                &[-1, -1, -1],
                "input 'x': 3 elements do not fit 'x' (INT16[-1, -1, -1]): a raw",
            ),
        ] {
            let error = decode(datatype, dims, b"\x01\x00\x02\x00\x03\x00").unwrap_err();
            assert!(error.message().starts_with(message), "{error}");
        }
    }
}
