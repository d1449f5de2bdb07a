//! Tensors between requests and tract: in with one copy, out with none.

use std::sync::Arc;

use bytemuck::Pod;
use bytes::Bytes;
use oip_types::{BytesTensor, ServiceError, TensorValue};
use tensor_core::{DType, Shape, Tensor, TensorSpec, f16};
use tract_hir::{
    internal as tract,
    prelude::{Datum, DatumType, IntoArcTensor, TValue, TractResult},
};

use crate::dtype;

/// Copies an input, once, into memory that is aligned as tract wants it.
pub(crate) fn to_tract(value: &TensorValue) -> Result<tract::Tensor, ServiceError> {
    let dims: Vec<usize> = value.shape().dims().iter().map(|&dim| dim as usize).collect();
    match value {
        TensorValue::Bytes(strings) => strings_to_tract(strings, &dims),
        TensorValue::Fixed(tensor) => {
            let datum_type = dtype::to_tract(value.datatype())
                .ok_or_else(|| failed("tract does not have its type", value.datatype().to_string()))?;
            from_bytes(datum_type, &dims, tensor.bytes()).map_err(|error| failed("it does not fit", error))
        }
    }
}

/// An output as it leaves: in tract's own memory, unless it is strings or computed from dimensions.
pub(crate) fn from_tract(value: TValue) -> Result<TensorValue, ServiceError> {
    let dims: Vec<u64> = value.shape().iter().map(|&dim| dim as u64).collect();
    // Shapes that the values of inputs decide on may have any number of dimensions.
    let shape = Shape::new(&dims).map_err(|error| {
        ServiceError::invalid(format!(
            "the model gives an output whose shape is not possible: {error}"
        ))
    })?;
    match value.datum_type() {
        DatumType::String => {
            let view = value
                .try_as_plain_ram()
                .and_then(|view| view.as_slice::<String>());
            let strings = view.map_err(|error| failed("it has no strings", error))?;
            Ok(BytesTensor::from_elements(shape, strings)?.into())
        }
        DatumType::TDim => {
            let numbers = value
                .cast_to::<i64>()
                .map_err(|error| failed("a dimension is unknown", error))?;
            owned(DType::I64, shape, numbers.into_owned().into_arc_tensor())
        }
        datum_type => {
            let dtype = dtype::from_tract(datum_type).and_then(oip_types::DataType::dtype);
            let dtype =
                dtype.ok_or_else(|| failed("it has no type of the protocol", format!("{datum_type:?}")))?;
            owned(dtype, shape, value.into_arc_tensor())
        }
    }
}

/// A tensor of fixed-width elements, from row-major little-endian bytes that are as many as it takes.
pub(crate) fn from_bytes(datum_type: DatumType, dims: &[usize], bytes: &[u8]) -> TractResult<tract::Tensor> {
    match datum_type {
        DatumType::Bool => {
            let mut copy = tract::Tensor::zero_dt(DatumType::Bool, dims)?;
            let mut view = copy.try_as_plain_ram_mut()?;
            // One by one: a byte that is neither 0 nor 1 is no bool.
            for (bool, &byte) in view.as_slice_mut::<bool>()?.iter_mut().zip(bytes) {
                *bool = byte != 0;
            }
            Ok(copy)
        }
        DatumType::U8 => copy::<u8>(dims, bytes),
        DatumType::U16 => copy::<u16>(dims, bytes),
        DatumType::U32 => copy::<u32>(dims, bytes),
        DatumType::U64 => copy::<u64>(dims, bytes),
        DatumType::I8 => copy::<i8>(dims, bytes),
        DatumType::I16 => copy::<i16>(dims, bytes),
        DatumType::I32 => copy::<i32>(dims, bytes),
        DatumType::I64 => copy::<i64>(dims, bytes),
        DatumType::F16 => copy::<f16>(dims, bytes),
        DatumType::F32 => copy::<f32>(dims, bytes),
        DatumType::F64 => copy::<f64>(dims, bytes),
        other => tract::bail!("{other:?} has no fixed width"),
    }
}

fn copy<T: Pod + Datum>(dims: &[usize], bytes: &[u8]) -> TractResult<tract::Tensor> {
    if let Ok(elements) = bytemuck::try_cast_slice::<u8, T>(bytes) {
        return tract::Tensor::from_shape(dims, elements);
    }
    let mut copy = tract::Tensor::zero_dt(T::datum_type(), dims)?;
    let room = copy.as_bytes_mut();
    tract::ensure!(
        room.len() == bytes.len(),
        "{} bytes for {}",
        bytes.len(),
        room.len()
    );
    room.copy_from_slice(bytes);
    Ok(copy)
}

fn strings_to_tract(tensor: &BytesTensor, dims: &[usize]) -> Result<tract::Tensor, ServiceError> {
    let utf8 = |(index, bytes): (usize, &[u8])| {
        let string = std::str::from_utf8(bytes).map(str::to_owned);
        string.map_err(|_| {
            ServiceError::invalid(format!("element {index} is not UTF-8, as strings for ONNX are"))
        })
    };
    let strings: Vec<String> = tensor.iter().enumerate().map(utf8).collect::<Result<_, _>>()?;
    let array = tract::tract_ndarray::ArrayD::from_shape_vec(dims, strings);
    Ok(array.map_err(|error| failed("it does not fit", error))?.into())
}

fn owned(dtype: DType, shape: Shape, tensor: Arc<tract::Tensor>) -> Result<TensorValue, ServiceError> {
    let spec = TensorSpec::new(dtype, shape).map_err(|error| failed("it is too large", error))?;
    let tensor = Tensor::new(spec, Bytes::from_owner(TractBytes(tensor)));
    Ok(tensor.map_err(|error| failed("it has gaps", error))?.into())
}

/// Lets [`Bytes`] own a tensor of tract.
struct TractBytes(Arc<tract::Tensor>);

impl AsRef<[u8]> for TractBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn failed(reason: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ServiceError {
    ServiceError::internal(format!("a tensor could not be converted: {reason}")).caused_by(cause)
}

// Tensors of requests are little-endian, tract's are as the host has them.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "only little-endian hosts are supported"
);
