//! Converts tensors between requests and the model, without copies where memory is aligned.

use std::sync::Arc;

use oip_types::{BytesTensor, ServiceError, TensorValue};
use onnx_tensor::{
    Tensor,
    size::{MAX_BYTES, MAX_EMPTY_BYTES},
};
use tensor_core::{Shape, TensorSpec};

use crate::dtype;

/// Converts an input of a request. Numeric data is borrowed from the request where it is aligned.
pub(crate) fn to_input(value: &TensorValue) -> Result<Tensor, ServiceError> {
    let dims: Vec<usize> = value.shape().dims().iter().map(|&dim| dim as usize).collect();
    match value {
        TensorValue::Bytes(strings) => to_strings(strings, &dims),
        TensorValue::Fixed(tensor) => {
            let element_type = dtype::computed(value.datatype())
                .ok_or_else(|| failed("its type is not supported", value.datatype().to_string()))?;
            Tensor::from_bytes(element_type, &dims, tensor.bytes().clone())
                .map_err(|error| failed("it does not fit", error))
        }
    }
}

/// Checks the size of `value` before memory is allocated for it. If a dimension is 0, the size is computed
/// from the other dimensions.
pub(crate) fn admit_input(value: &TensorValue) -> Result<(), ServiceError> {
    let element = value.datatype().dtype().map_or(1, |dtype| dtype.size() as u64);
    let sizes = value.shape().dims().iter().map(|&dim| dim.max(1));
    let bytes = sizes.fold(element, u64::saturating_mul);
    let limit = match value.shape().dims().contains(&0) {
        true => MAX_EMPTY_BYTES,
        false => MAX_BYTES,
    };
    if bytes <= limit {
        return Ok(());
    }
    let (shape, mib) = (value.shape(), limit >> 20);
    let size = match bytes {
        u64::MAX => "a byte length that overflows".to_owned(),
        bytes => format!("{} MiB", bytes >> 20),
    };
    Err(ServiceError::invalid(format!(
        "dimensions {shape} take {size}, the limit is {mib} MiB"
    )))
}

/// Converts an output for the response. Shares the tensor's memory, except for strings.
pub(crate) fn to_output(value: &Arc<Tensor>) -> Result<TensorValue, ServiceError> {
    let dims: Vec<u64> = value.shape().iter().map(|&dim| dim as u64).collect();
    // A shape that the model computes from values may have more dimensions than the protocol supports.
    let shape = Shape::new(&dims).map_err(|error| {
        ServiceError::invalid(format!(
            "the model returned an output with an invalid shape: {error}"
        ))
    })?;
    let Some(dtype) = dtype::served(value.element_type()).dtype() else {
        let strings = value
            .as_slice::<String>()
            .map_err(|error| failed("it has no strings", error))?;
        return Ok(BytesTensor::from_elements(shape, strings)?.into());
    };
    let spec = TensorSpec::new(dtype, shape).map_err(|error| failed("it is too large", error))?;
    let bytes = value
        .shared_bytes()
        .map_err(|error| failed("it has no bytes", error))?;
    let tensor = tensor_core::Tensor::new(spec, bytes);
    Ok(tensor
        .map_err(|error| failed("it is not contiguous", error))?
        .into())
}

fn to_strings(tensor: &BytesTensor, dims: &[usize]) -> Result<Tensor, ServiceError> {
    let utf8 = |(index, bytes): (usize, &[u8])| {
        let string = std::str::from_utf8(bytes).map(str::to_owned);
        string
            .map_err(|_| ServiceError::invalid(format!("element {index} is not UTF-8, which ONNX requires")))
    };
    let strings: Vec<String> = tensor.iter().enumerate().map(utf8).collect::<Result<_, _>>()?;
    Tensor::from_vec(dims, strings).map_err(|error| failed("it does not fit", error))
}

fn failed(reason: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ServiceError {
    ServiceError::internal(format!("a tensor could not be converted: {reason}")).caused_by(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_its_sender_nothing_is_small() {
        let admits = |dims: &[u64]| {
            let shape = tensor_core::Shape::new(dims).expect("a shape");
            let value = tensor_core::Tensor::from_vec(shape, Vec::<f32>::new()).expect("a tensor");
            admit_input(&value.into()).map_err(|error| error.to_string())
        };
        assert_eq!(admits(&[0, 3, 4096, 4096]), Ok(()));
        let error = "dimensions [0, 8388608, 16] take 512 MiB, the limit is 256 MiB";
        assert_eq!(admits(&[0, 1 << 23, 16]), Err(error.to_owned()));
    }
}
