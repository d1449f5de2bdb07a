//! Converts the file's constants to abstract values: their dimensions, and the elements of small constants.

use tensor_core::DType;

use super::{
    node::{Node, RuleResult, one},
    size::{Size, Symbols},
    value::{MAX_CONTENT, Value},
};
use crate::{
    payload::{Data, Payload},
    proto::TensorProto,
};

/// Returns the abstract value of a constant.
pub(super) fn tensor(tensor: &TensorProto, symbols: &mut Symbols) -> Value {
    let dims: Vec<Size> = tensor.dims.iter().map(|dim| Size::number(*dim)).collect();
    let count = tensor
        .dims
        .iter()
        .try_fold(1i64, |count, dim| count.checked_mul(*dim));
    let is_small = count.is_some_and(|count| (0..=MAX_CONTENT as i64).contains(&count));
    let is_small = is_small && tensor.dims.iter().all(|dim| *dim >= 0);
    let elements = if is_small { elements(tensor, symbols) } else { None };
    match elements {
        Some(elements) => Value::integers_of(dims, elements.into_iter().map(Some).collect()),
        None => Value::same(dims),
    }
}

/// Returns the first element of `tensor`; `None` unless its type is one that shapes, axes or scales can have.
pub(super) fn first(tensor: &TensorProto, symbols: &mut Symbols) -> Option<Size> {
    elements(tensor, symbols)?.into_iter().next()
}

/// Converts a floating-point number to a symbol. The symbol is a literal if `number` is an integer that every
/// type represents exactly.
pub(super) fn float(number: f64, symbols: &mut Symbols) -> Size {
    const EXACT: f64 = 16_777_216.0;
    match number.fract() == 0.0 && number.abs() <= EXACT {
        true => symbols.float(number as i64),
        false => symbols.real(),
    }
}

/// Returns the elements of `tensor`; `None` unless its type is one that shapes, axes or scales can have.
fn elements(tensor: &TensorProto, symbols: &mut Symbols) -> Option<Vec<Size>> {
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
    match payload.element_type.dtype()? {
        DType::I64 => read!(i64, Size::number),
        DType::I32 => read!(i32, |number| Size::number(i64::from(number))),
        DType::F32 => read!(f32, |number| float(f64::from(number), symbols)),
        DType::F64 => read!(f64, |number| float(number, symbols)),
        DType::Bool => read!(u8, |number| Size::number(i64::from(number != 0))),
        _ => None,
    }
}

pub(super) fn constant(node: &mut Node<'_>) -> RuleResult {
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
    if let Some(value) = attribute("value_float") {
        let element = float(f64::from(value.f), node.symbols);
        return one(Value::integers(vec![Some(element)], true));
    }
    if let Some(value) = attribute("value_floats").filter(|value| value.floats.len() <= MAX_CONTENT) {
        let elements = value
            .floats
            .iter()
            .map(|number| Some(float(f64::from(*number), node.symbols)));
        return one(Value::integers(elements.collect(), false));
    }
    let length =
        |length: usize| i64::try_from(length).map_or_else(|_| vec![], |length| vec![Size::number(length)]);
    let lists = ["value_ints", "value_floats", "value_strings"].map(attribute);
    let list = lists.into_iter().flatten().next();
    one(match list {
        Some(list) => Value::same(length(list.ints.len() + list.floats.len() + list.strings.len())),
        None if attribute("value_string").is_some() => Value::same(vec![]),
        None => Value::same_of_any_rank(),
    })
}
