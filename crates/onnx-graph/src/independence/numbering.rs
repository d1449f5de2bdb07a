//! Tracks row indices, such as the result of `arange(batch)`. As long as the graph only moves these indices,
//! each row may use them to gather its own elements. Any other result depends on the position of a row in the
//! batch.

use super::{
    size::Size,
    value::{Item, Numbering, Value},
};
use crate::proto::{NodeProto, tensor_proto::DataType};

/// Returns the numbering of a node's outputs; `None` if the node's rule determines it.
pub(super) fn given(node: &NodeProto, inputs: &[Option<Item>]) -> Option<Numbering> {
    let values: Vec<&Value> = inputs.iter().flatten().filter_map(value).collect();
    let is_plain = |value: &&Value| value.numbering == Numbering::None;
    if values.iter().all(is_plain) || RULED.contains(&node.op_type.as_str()) {
        return None;
    }
    let (first, others) = values.split_first()?;
    let is_alone = others.iter().all(is_plain);
    Some(match first.numbering {
        _ if !keeps_integers(node) => Numbering::Mixed,
        Numbering::Index if is_alone && MOVED.contains(&node.op_type.as_str()) => Numbering::Index,
        Numbering::Tuples if is_alone && KEPT.contains(&node.op_type.as_str()) => Numbering::Tuples,
        Numbering::Index if is_alone && begins_tuples(node, first, others) => Numbering::Tuples,
        _ => Numbering::Mixed,
    })
}

/// Sets the numbering of the outputs. A value with several elements per row is not a row index.
pub(super) fn apply(items: Vec<Item>, numbering: Option<Numbering>) -> Vec<Item> {
    let apply = |item: Item| match (item, numbering) {
        (Item::Tensor(mut value), Some(given)) => {
            let is_whole =
                value.row_axis().and_then(|axis| value.dims.as_ref()?.get(axis)) == Some(&Size::rows());
            value.numbering = match given {
                Numbering::Index | Numbering::Tuples if !is_whole => Numbering::Mixed,
                given => given,
            };
            Item::Tensor(value)
        }
        (Item::Sequence(Some(mut value)), Some(_)) => {
            value.numbering = Numbering::Mixed;
            Item::Sequence(Some(value))
        }
        (item, _) => item,
    };
    items.into_iter().map(apply).collect()
}

/// Returns whether the target type of a cast can represent every index.
fn keeps_integers(node: &NodeProto) -> bool {
    let to = node.attribute.iter().find(|attribute| attribute.name == "to");
    node.op_type != "Cast"
        || to.is_some_and(|to| [DataType::Int64 as i64, DataType::Int32 as i64].contains(&to.i))
}

/// Returns the value of a tensor, or the common value of the elements of a sequence.
fn value(item: &Item) -> Option<&Value> {
    match item {
        Item::Tensor(value) => Some(value),
        Item::Sequence(value) => value.as_ref(),
    }
}

/// Returns whether the node builds tuples that begin with row indices, by concatenation along the last axis.
fn begins_tuples(node: &NodeProto, first: &Value, others: &[&Value]) -> bool {
    let (Some(dims), Some(rows)) = (&first.dims, first.row_axis()) else {
        return false;
    };
    let last = dims.len() - 1;
    let axis = node.attribute.iter().find(|attribute| attribute.name == "axis");
    let is_last = axis.is_some_and(|axis| axis.i == -1 || usize::try_from(axis.i) == Ok(last));
    let is_wide = |value: &Value| {
        let width = value.dims.as_ref().and_then(|dims| dims.last()?.as_number());
        width.is_some_and(|width| width > 0)
    };
    let has_rows = |value: &&Value| value.row_axis() == Some(rows) && is_wide(value);
    node.op_type == "Concat" && is_last && rows != last && dims[last].is(1) && others.iter().all(has_rows)
}

/// Operators whose rules handle the numbering themselves.
const RULED: &[&str] = &["GatherND", "Shape", "Size"];

/// Operators that change neither the elements nor the last axis.
const KEPT: &[&str] = &["Cast", "Identity"];

/// Operators that move elements without changing them.
const MOVED: &[&str] = &[
    "Cast",
    "Expand",
    "Identity",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];
