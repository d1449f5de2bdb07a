//! Typed contents in generated messages, for clients: tensors as repeated protobuf fields.

use std::fmt::Display;

use oip_types::{BytesTensor, DataType, ServiceError, TensorValue};
use tensor_core::{DType, Element, Shape, Tensor};

use crate::proto::InferTensorContents;

/// Decodes a tensor's typed contents; only the field for the tensor's datatype may be set.
pub(crate) fn read(
    datatype: DataType,
    shape: Shape,
    contents: InferTensorContents,
) -> Result<TensorValue, ServiceError> {
    let filled = filled_fields(&contents);
    let expected = field_of(datatype).ok_or_else(|| {
        ServiceError::invalid(format!(
            "{datatype} has no typed contents; send raw_input_contents"
        ))
    })?;
    if let Some(other) = filled.iter().find(|field| **field != expected) {
        return Err(ServiceError::invalid(format!(
            "expected {expected} for {datatype}, found {other}"
        )));
    }
    let dtype = match datatype {
        DataType::Bytes => {
            check_count(&shape, contents.bytes_contents.len())?;
            return BytesTensor::from_elements(shape, contents.bytes_contents).map(TensorValue::Bytes);
        }
        DataType::Fixed(dtype) => dtype,
    };
    match dtype {
        DType::Bool => exact(shape, contents.bool_contents),
        DType::U8 => narrowed::<_, u8>(shape, contents.uint_contents),
        DType::U16 => narrowed::<_, u16>(shape, contents.uint_contents),
        DType::U32 => exact(shape, contents.uint_contents),
        DType::U64 => exact(shape, contents.uint64_contents),
        DType::I8 => narrowed::<_, i8>(shape, contents.int_contents),
        DType::I16 => narrowed::<_, i16>(shape, contents.int_contents),
        DType::I32 => exact(shape, contents.int_contents),
        DType::I64 => exact(shape, contents.int64_contents),
        DType::F32 => exact(shape, contents.fp32_contents),
        DType::F64 => exact(shape, contents.fp64_contents),
        // Unreachable: datatypes without a field were rejected above.
        _ => Err(ServiceError::internal(format!("{datatype} has no field"))),
    }
}

/// Encodes a tensor as typed contents; `None` for datatypes without a typed form.
pub(crate) fn write(value: &TensorValue) -> Option<InferTensorContents> {
    let mut contents = InferTensorContents::default();
    let tensor = match value {
        TensorValue::Bytes(tensor) => {
            contents.bytes_contents = tensor.elements().collect();
            return Some(contents);
        }
        TensorValue::Fixed(tensor) => tensor,
    };
    // `to_vec` cannot fail here: each arm requests the dtype that it matched.
    match tensor.spec().dtype() {
        DType::Bool => contents.bool_contents = tensor.to_vec().ok()?,
        DType::U8 => contents.uint_contents = widened::<u8, _>(tensor)?,
        DType::U16 => contents.uint_contents = widened::<u16, _>(tensor)?,
        DType::U32 => contents.uint_contents = tensor.to_vec().ok()?,
        DType::U64 => contents.uint64_contents = tensor.to_vec().ok()?,
        DType::I8 => contents.int_contents = widened::<i8, _>(tensor)?,
        DType::I16 => contents.int_contents = widened::<i16, _>(tensor)?,
        DType::I32 => contents.int_contents = tensor.to_vec().ok()?,
        DType::I64 => contents.int64_contents = tensor.to_vec().ok()?,
        DType::F32 => contents.fp32_contents = tensor.to_vec().ok()?,
        DType::F64 => contents.fp64_contents = tensor.to_vec().ok()?,
        _ => return None,
    }
    Some(contents)
}

/// Returns the field for a datatype's elements.
fn field_of(datatype: DataType) -> Option<&'static str> {
    let dtype = match datatype {
        DataType::Bytes => return Some("bytes_contents"),
        DataType::Fixed(dtype) => dtype,
    };
    match dtype {
        DType::Bool => Some("bool_contents"),
        DType::U8 | DType::U16 | DType::U32 => Some("uint_contents"),
        DType::U64 => Some("uint64_contents"),
        DType::I8 | DType::I16 | DType::I32 => Some("int_contents"),
        DType::I64 => Some("int64_contents"),
        DType::F32 => Some("fp32_contents"),
        DType::F64 => Some("fp64_contents"),
        _ => None,
    }
}

fn filled_fields(contents: &InferTensorContents) -> Vec<&'static str> {
    let fields = [
        ("bool_contents", contents.bool_contents.is_empty()),
        ("int_contents", contents.int_contents.is_empty()),
        ("int64_contents", contents.int64_contents.is_empty()),
        ("uint_contents", contents.uint_contents.is_empty()),
        ("uint64_contents", contents.uint64_contents.is_empty()),
        ("fp32_contents", contents.fp32_contents.is_empty()),
        ("fp64_contents", contents.fp64_contents.is_empty()),
        ("bytes_contents", contents.bytes_contents.is_empty()),
    ];
    fields
        .into_iter()
        .filter(|(_, is_empty)| !is_empty)
        .map(|(field, _)| field)
        .collect()
}

/// Converts elements of the field's own type without copying.
fn exact<T: Element>(shape: Shape, elements: Vec<T>) -> Result<TensorValue, ServiceError> {
    check_count(&shape, elements.len())?;
    let tensor = Tensor::from_vec(shape, elements);
    tensor
        .map(TensorValue::Fixed)
        .map_err(|error| ServiceError::invalid(error.to_string()))
}

/// Converts elements of a wider field, checking the range.
fn narrowed<W: Copy + Display, T: Element + TryFrom<W>>(
    shape: Shape,
    elements: Vec<W>,
) -> Result<TensorValue, ServiceError> {
    check_count(&shape, elements.len())?;
    let narrow = |(index, element): (usize, W)| {
        T::try_from(element).map_err(|_| {
            let datatype = DataType::Fixed(T::DTYPE);
            ServiceError::invalid(format!("element {index}: {element} does not fit {datatype}"))
        })
    };
    exact(
        shape,
        elements
            .into_iter()
            .enumerate()
            .map(narrow)
            .collect::<Result<Vec<T>, _>>()?,
    )
}

fn widened<T: Element, W: From<T>>(tensor: &Tensor) -> Option<Vec<W>> {
    Some(tensor.view().iter::<T>().ok()?.map(W::from).collect())
}

fn check_count(shape: &Shape, found: usize) -> Result<(), ServiceError> {
    let expected = shape.element_count();
    if expected == found as u64 {
        return Ok(());
    }
    Err(ServiceError::invalid(format!(
        "expected {expected} elements for shape {shape}, found {found}"
    )))
}
