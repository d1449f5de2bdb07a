//! Handles row axes into which an outer axis is merged, as in attention over sequences: `[steps, rows,
//! width]` is reshaped to `[steps * rows, width]` and later back. In between, only operators that treat each
//! index of the merged axis independently are allowed.

use super::{
    node::label,
    size::Size,
    value::{Item, Reason, Value},
};
use crate::proto::NodeProto;

/// Returns the outer size that is merged into the row axis of the inputs, and thus of the outputs.
pub(super) fn given(node: &NodeProto, inputs: &[Option<Item>]) -> Result<Option<Size>, Reason> {
    let values = inputs.iter().flatten().filter_map(|item| match item {
        Item::Tensor(value) => Some(value),
        Item::Sequence(value) => value.as_ref(),
    });
    let mut outers = values
        .filter(|value| value.row_axis().is_some())
        .map(|value| &value.outer);
    let Some(first) = outers.next() else {
        return Ok(None);
    };
    let are_equal = outers.all(|outer| outer == first);
    let operator = node.op_type.as_str();
    match first {
        None if are_equal => Ok(None),
        _ if RULED.contains(&operator) => Ok(None),
        Some(outer) if are_equal && EACH_BY_ITSELF.contains(&operator) => Ok(Some(outer.clone())),
        _ => Err(format!("{} combines rows in different orders", label(node)).into()),
    }
}

pub(super) fn apply(items: Vec<Item>, outer: Option<&Size>) -> Vec<Item> {
    let Some(outer) = outer else {
        return items;
    };
    let apply = |item: Item| match item {
        Item::Tensor(value) if value.row_axis().is_some() => Item::Tensor(Value {
            outer: Some(outer.clone()),
            ..value
        }),
        item => item,
    };
    items.into_iter().map(apply).collect()
}

/// Operators whose rules handle merged axes themselves.
const RULED: &[&str] = &["Flatten", "Reshape", "Shape", "Size"];

/// Operators that treat all indices of the row axis independently.
const EACH_BY_ITSELF: &[&str] = &[
    "Add",
    "BiasGelu",
    "Cast",
    "Clip",
    "Div",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "FastGelu",
    "Gelu",
    "Gemm",
    "Identity",
    "LayerNormalization",
    "LeakyRelu",
    "LogSoftmax",
    "MatMul",
    "MatMulNBits",
    "Mul",
    "Neg",
    "Pow",
    "QuickGelu",
    "ReduceMean",
    "Relu",
    "Selu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Sqrt",
    "Sub",
    "Tanh",
    "Transpose",
    "Unsqueeze",
];
