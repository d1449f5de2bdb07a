//! Converts tensors between requests and ONNX Runtime: aligned inputs and all outputs without a copy.

use std::{fmt::Debug, marker::PhantomData, ops::Range};

use bytemuck::{NoUninit, checked};
use bytes::Bytes;
use oip_types::{BytesTensor, ServiceError, TensorValue};
use ort::{
    memory::Allocator,
    session::SessionInputValue,
    value::{DynValue, PrimitiveTensorElementType, TensorElementType, TensorRef, ValueType},
};
use tensor_core::{DType, Element, Shape, Tensor, TensorSpec, bf16, f16};

/// Runs `body` with the Rust type of a dtype as `T`, or `bool` for BOOL.
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr, bool => $bool:expr) => {
        match $dtype {
            DType::Bool => $bool,
            DType::U8 => {
                type $T = u8;
                $body
            }
            DType::U16 => {
                type $T = u16;
                $body
            }
            DType::U32 => {
                type $T = u32;
                $body
            }
            DType::U64 => {
                type $T = u64;
                $body
            }
            DType::I8 => {
                type $T = i8;
                $body
            }
            DType::I16 => {
                type $T = i16;
                $body
            }
            DType::I32 => {
                type $T = i32;
                $body
            }
            DType::I64 => {
                type $T = i64;
                $body
            }
            DType::F16 => {
                type $T = f16;
                $body
            }
            DType::BF16 => {
                type $T = bf16;
                $body
            }
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::F64 => {
                type $T = f64;
                $body
            }
            other => Err(ServiceError::invalid(format!(
                "{other} tensors cannot be passed to ONNX Runtime"
            ))),
        }
    };
}

/// Converts an input: borrows the request's memory, or copies it where it is not aligned.
pub(super) fn input(value: &TensorValue) -> Result<SessionInputValue<'_>, ServiceError> {
    let dims = dims(value.shape());
    match value {
        TensorValue::Bytes(strings) => string_input(strings, dims),
        TensorValue::Fixed(tensor) if tensor.bytes().is_empty() => with_number!(
            tensor.spec().dtype(),
            T => empty_input::<T>(dims),
            bool => empty_input::<bool>(dims)
        ),
        TensorValue::Fixed(tensor) => with_number!(
            tensor.spec().dtype(),
            T => number_input::<T>(tensor, dims),
            bool => bool_input(tensor, dims)
        ),
    }
}

/// Converts an output: keeps ONNX Runtime's memory, except for strings and for outputs that alias an input.
/// `inputs` are the inputs' address ranges.
pub(super) fn output(value: DynValue, inputs: &[Range<usize>]) -> Result<TensorValue, ServiceError> {
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        return Err(failed("it is not a tensor", value.dtype().to_string()));
    };
    let dims: Option<Vec<u64>> = shape.iter().map(|&dim| u64::try_from(dim).ok()).collect();
    let dims = dims.ok_or_else(|| failed("it has a negative dimension", shape.to_string()))?;
    let shape = Shape::new(&dims).map_err(|error| failed("it is too large", error))?;
    let dtype = match ty {
        TensorElementType::String => {
            let (_, strings) = value
                .try_extract_strings()
                .map_err(|error| failed("it has no strings", error))?;
            return Ok(BytesTensor::from_elements(shape, strings)?.into());
        }
        TensorElementType::Bool => DType::Bool,
        TensorElementType::Uint8 => DType::U8,
        TensorElementType::Uint16 => DType::U16,
        TensorElementType::Uint32 => DType::U32,
        TensorElementType::Uint64 => DType::U64,
        TensorElementType::Int8 => DType::I8,
        TensorElementType::Int16 => DType::I16,
        TensorElementType::Int32 => DType::I32,
        TensorElementType::Int64 => DType::I64,
        TensorElementType::Float16 => DType::F16,
        TensorElementType::Bfloat16 => DType::BF16,
        TensorElementType::Float32 => DType::F32,
        TensorElementType::Float64 => DType::F64,
        other => return Err(failed("the protocol has no datatype for it", other.to_string())),
    };
    let bytes = with_number!(
        dtype,
        T => leave::<T>(value, inputs),
        bool => leave::<bool>(value, inputs)
    )?;
    let spec = TensorSpec::new(dtype, shape).map_err(|error| failed("it is too large", error))?;
    let tensor = Tensor::new(spec, bytes).map_err(|error| failed("it is not contiguous", error))?;
    Ok(tensor.into())
}

/// Returns the address range of a value's elements.
pub(super) fn addresses(value: &TensorValue) -> Option<Range<usize>> {
    match value {
        TensorValue::Fixed(tensor) => Some(range(tensor.bytes())),
        // Strings are copied in both directions.
        TensorValue::Bytes(_) => None,
    }
}

/// Creates an empty value with a null pointer, like those that ONNX Runtime creates between operators.
/// Operators that read an element of an optional input unchecked, such as `NonMaxSuppression`, tolerate a
/// null pointer, but not the dangling pointer of an empty slice.
fn empty_input<T>(dims: Vec<i64>) -> Result<SessionInputValue<'static>, ServiceError>
where
    T: PrimitiveTensorElementType + Debug,
{
    let value = ort::value::Tensor::<T>::new(&Allocator::default(), dims);
    Ok(value
        .map_err(|error| failed("it does not fit", error))?
        .into_dyn()
        .into())
}

fn number_input<T>(tensor: &Tensor, dims: Vec<i64>) -> Result<SessionInputValue<'_>, ServiceError>
where
    T: Element + PrimitiveTensorElementType + Debug,
{
    match tensor.view().as_slice::<T>() {
        Ok(elements) => {
            let borrowed = TensorRef::from_array_view((dims, elements));
            Ok(borrowed.map_err(|error| failed("it does not fit", error))?.into())
        }
        Err(_) => Ok(copy::<T>(tensor, dims)?.into()),
    }
}

fn bool_input(tensor: &Tensor, dims: Vec<i64>) -> Result<SessionInputValue<'_>, ServiceError> {
    match checked::try_cast_slice::<u8, bool>(tensor.bytes()) {
        Ok(elements) => {
            let borrowed = TensorRef::from_array_view((dims, elements));
            Ok(borrowed.map_err(|error| failed("it does not fit", error))?.into())
        }
        // A byte other than 0 and 1 is not a valid `bool`, so the input is converted in a copy.
        Err(_) => Ok(own(dims, bools(tensor))?.into()),
    }
}

fn string_input(tensor: &BytesTensor, dims: Vec<i64>) -> Result<SessionInputValue<'static>, ServiceError> {
    let strings: Vec<String> = tensor.iter().enumerate().map(string).collect::<Result<_, _>>()?;
    let value = ort::value::Tensor::from_string_array((dims, strings.as_slice()));
    Ok(value.map_err(|error| failed("it does not fit", error))?.into())
}

fn string((index, bytes): (usize, &[u8])) -> Result<String, ServiceError> {
    let string = std::str::from_utf8(bytes)
        .map_err(|_| ServiceError::invalid(format!("element {index} is not UTF-8, which ONNX requires")))?;
    // ONNX Runtime takes null-terminated strings, so a string with a zero byte would be truncated.
    match string.contains('\0') {
        true => Err(ServiceError::invalid(format!(
            "element {index} has a zero byte, which ONNX Runtime does not support in strings"
        ))),
        false => Ok(string.to_owned()),
    }
}

fn bools(tensor: &Tensor) -> Vec<bool> {
    tensor.bytes().iter().map(|&byte| byte != 0).collect()
}

fn copy<T>(tensor: &Tensor, dims: Vec<i64>) -> Result<DynValue, ServiceError>
where
    T: Element + PrimitiveTensorElementType + Debug,
{
    let elements: Vec<T> = tensor
        .to_vec()
        .map_err(|error| failed("its type differs", error))?;
    own(dims, elements)
}

fn own<T>(dims: Vec<i64>, elements: Vec<T>) -> Result<DynValue, ServiceError>
where
    T: PrimitiveTensorElementType + Debug + Clone + 'static,
{
    let value = ort::value::Tensor::from_array((dims, elements));
    Ok(value
        .map_err(|error| failed("it does not fit", error))?
        .into_dyn())
}

fn leave<T>(value: DynValue, inputs: &[Range<usize>]) -> Result<Bytes, ServiceError>
where
    T: PrimitiveTensorElementType + NoUninit + Send + Sync + 'static,
{
    let (_, elements) = value
        .try_extract_tensor::<T>()
        .map_err(|error| failed("its type differs", error))?;
    let bytes: &[u8] = bytemuck::cast_slice(elements);
    let own = range(bytes);
    // An output may be an input that the model passes through. Its memory then belongs to the request, and
    // the output may outlive the request.
    let is_input = |input: &Range<usize>| own.start < input.end && input.start < own.end;
    if bytes.is_empty() || inputs.iter().any(is_input) {
        return Ok(Bytes::copy_from_slice(bytes));
    }
    Ok(Bytes::from_owner(Elements {
        value,
        of: PhantomData::<T>,
    }))
}

/// Lets [`Bytes`] own a tensor of ONNX Runtime.
struct Elements<T> {
    value: DynValue,
    of: PhantomData<T>,
}

impl<T: PrimitiveTensorElementType + NoUninit> AsRef<[u8]> for Elements<T> {
    fn as_ref(&self) -> &[u8] {
        // The caller has checked the element type, so the extraction succeeds.
        self.value
            .try_extract_tensor::<T>()
            .map_or(&[], |(_, elements)| bytemuck::cast_slice(elements))
    }
}

fn range(bytes: &[u8]) -> Range<usize> {
    let addresses = bytes.as_ptr_range();
    addresses.start.addr()..addresses.end.addr()
}

fn dims(shape: &Shape) -> Vec<i64> {
    // The cast is lossless: the dimensions of a tensor in memory are far below the maximum.
    shape.dims().iter().map(|&dim| dim as i64).collect()
}

fn failed(reason: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ServiceError {
    ServiceError::internal(format!("a tensor could not be converted: {reason}")).caused_by(cause)
}
