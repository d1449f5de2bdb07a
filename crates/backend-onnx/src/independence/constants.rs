//! Constants of the file: their dimensions, and the elements of small ones.

use tensor_core::DType;

use super::{
    node::{Given, Node, one},
    size::{Size, Symbols},
    value::{MAX_CONTENT, Value},
};
use crate::{
    payload::{Data, Payload},
    proto::TensorProto,
};

/// A constant. Numbers with a fraction are symbols.
pub(super) fn tensor(tensor: &TensorProto, symbols: &mut Symbols) -> Value {
    let dims: Vec<Size> = tensor.dims.iter().map(|dim| Size::number(*dim)).collect();
    let count = tensor
        .dims
        .iter()
        .try_fold(1i64, |count, dim| count.checked_mul(*dim));
    let is_small = count.is_some_and(|count| (0..=MAX_CONTENT as i64).contains(&count));
    let elements = if is_small { numbers(tensor) } else { None };
    let Some(elements) = elements else {
        return Value::same(dims);
    };
    let element = |number: Option<i64>| match number {
        Some(number) => Size::number(number),
        None => symbols.real(),
    };
    let elements = elements.into_iter().map(element).map(Some).collect();
    Value::integers_of(dims, elements)
}

/// The first element, if it is an integer.
pub(super) fn first_integer(tensor: &TensorProto) -> Option<i64> {
    numbers(tensor)?.first().copied().flatten()
}

/// An integer that a double holds exactly.
fn as_integer(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let is_integer = number.fract() == 0.0 && number.abs() <= EXACT;
    is_integer.then_some(number as i64)
}

/// The elements of types that shapes, axes and scales have; `None` for those with a fraction.
fn numbers(tensor: &TensorProto) -> Option<Vec<Option<i64>>> {
    let payload = Payload::read(tensor).ok()?;
    let Data::Fixed(bytes) = payload.data else {
        return None;
    };
    macro_rules! read {
        ($T:ty, $of:expr) => {
            bytes
                .chunks_exact(size_of::<$T>())
                .map(|bytes| bytes.try_into().map(<$T>::from_le_bytes).map($of).ok())
                .collect()
        };
    }
    match payload.datatype.dtype()? {
        DType::I64 => read!(i64, Some),
        DType::I32 => read!(i32, |number| Some(i64::from(number))),
        DType::F32 => read!(f32, |number| as_integer(f64::from(number))),
        DType::F64 => read!(f64, as_integer),
        DType::Bool | DType::U8 => read!(u8, |number| Some(i64::from(number))),
        _ => None,
    }
}

pub(super) fn constant(node: &mut Node<'_>) -> Given {
    let proto = node.proto;
    let attribute = |name: &str| proto.attribute.iter().find(|attribute| attribute.name == name);
    if let Some(value) = attribute("value").and_then(|attribute| attribute.t.as_ref()) {
        return one(tensor(value, node.symbols));
    }
    if let Some(value) = attribute("value_int") {
        return one(Value::integers(vec![Some(Size::number(value.i))], true));
    }
    if let Some(value) = attribute("value_ints").filter(|value| value.ints.len() <= MAX_CONTENT) {
        let elements = value.ints.iter().map(|number| Some(Size::number(*number)));
        return one(Value::integers(elements.collect(), false));
    }
    let length =
        |length: usize| i64::try_from(length).map_or_else(|_| vec![], |length| vec![Size::number(length)]);
    let lists = ["value_ints", "value_floats", "value_strings"].map(attribute);
    let list = lists.into_iter().flatten().next();
    one(match list {
        Some(list) => Value::same(length(list.ints.len() + list.floats.len() + list.strings.len())),
        None if attribute("value_float").is_some() || attribute("value_string").is_some() => {
            Value::same(vec![])
        }
        None => Value::same_of_any_rank(),
    })
}
