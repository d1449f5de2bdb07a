//! Rules for operators that concatenate tensors along an axis, or split them.

use super::{
    node::{Node, RuleResult, like, one},
    size::Size,
    value::{Item, Reason, Value},
};

pub(super) fn concat(node: &mut Node<'_>) -> RuleResult {
    let values: Vec<Value> = node.values()?.into_iter().cloned().collect();
    let contents: Option<Vec<Vec<Option<Size>>>> = match values.iter().any(|value| value.content.is_some()) {
        true => values.iter().map(|value| value.elements(node.symbols)).collect(),
        false => None,
    };
    let is_list = values.iter().all(|value| value.rank() == Some(1));
    if let (Some(contents), true) = (contents, is_list) {
        return one(Value::integers(contents.concat(), false));
    }
    let axis = node.int("axis", if node.opset < 4 { 1 } else { 0 });
    one(concatenated(node, &values, axis)?)
}

/// Propagates rows through `QLinearConcat`, whose inputs are the scale and zero point of the result, and then
/// each tensor with its scale and zero point.
pub(super) fn quantized_concat(node: &mut Node<'_>) -> RuleResult {
    let mut values = Vec::new();
    for index in 0..node.inputs.len() {
        match index {
            2.. if index % 3 == 2 => values.push(node.input(index)?.clone()),
            _ => node.require_same_input(index)?,
        }
    }
    one(concatenated(node, &values, node.int("axis", 0))?)
}

/// Returns the concatenation of tensors along an axis.
pub(super) fn concatenated(node: &mut Node<'_>, values: &[Value], axis: i64) -> Result<Value, Reason> {
    let Some(first) = values
        .iter()
        .find(|value| value.row_axis().is_some())
        .or(values.first())
    else {
        return node.refuse("joins nothing");
    };
    let all_dims: Option<Vec<&Vec<Size>>> = values.iter().map(|value| value.dims.as_ref()).collect();
    if values.iter().all(Value::is_same) && all_dims.is_none() {
        return Ok(Value::same_of_any_rank());
    }
    let Some(all_dims) = all_dims else {
        return node.refuse("has an input whose number of dimensions is not known");
    };
    let rank = all_dims.first().map_or(0, |dims| dims.len());
    let axis = node.axis(axis, rank)?;
    for value in values {
        node.keep_off(value, axis)?;
        if value.origin != first.origin {
            return node.refuse("concatenates rows with a tensor without rows");
        }
        if let (Some(rows), Some(dims), Some(of_first)) = (value.row_axis(), &value.dims, &first.dims)
            && dims.get(rows) != of_first.get(rows)
        {
            return node.refuse("combines rows of different sizes");
        }
    }
    let mut target = first.dims.clone().unwrap_or_default();
    let mut joined = Size::number(0);
    for dims in all_dims {
        let dim = dims.get(axis).cloned().unwrap_or_else(|| node.symbols.dim());
        joined = node
            .symbols
            .sum(&joined, &dim)
            .ok_or_else(|| node.refusal("computes with the number of rows"))?;
    }
    if let Some(dim) = target.get_mut(axis) {
        *dim = joined;
    }
    Ok(like(first, target))
}

pub(super) fn split(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let axis = node.axis(node.int("axis", 0), dims.len())?;
    let count = node.proto.output.len();
    let sizes = match node.optional(1)? {
        Some(_) => node.elements(1)?,
        None => {
            let sizes = node.numbers(1, "split", 13)?.unwrap_or_default();
            sizes.into_iter().map(|size| Some(Size::number(size))).collect()
        }
    };
    if value.content.is_none() {
        node.keep_off(&value, axis)?;
    } else if let (Some(content), Some(sizes), 1) = (
        &value.content,
        split_sizes(&sizes, count, &dims[axis]),
        dims.len(),
    ) {
        let mut rest = &content[..];
        let mut parts = Vec::with_capacity(count);
        for size in sizes {
            let Some((part, after)) = rest.split_at_checked(size) else {
                return node.refuse("has sizes beyond its input");
            };
            parts.push(Item::Tensor(Value::integers(part.to_vec(), false)));
            rest = after;
        }
        return Ok(parts);
    } else if !value.is_same() {
        return node.refuse_count();
    }
    let equal = dims[axis].over(&Size::number(i64::try_from(count).unwrap_or(i64::MAX)));
    (0..count)
        .map(|index| {
            let size = match sizes.get(index) {
                Some(size) => size.clone(),
                None => equal.clone().or_else(|| Some(node.symbols.dim())),
            };
            let mut target = dims.clone();
            target[axis] = size.ok_or_else(|| node.refusal("computes with the number of rows"))?;
            Ok(Item::Tensor(like(&value, target)))
        })
        .collect()
}

fn split_sizes(sizes: &[Option<Size>], count: usize, dim: &Size) -> Option<Vec<usize>> {
    let as_index = |size: &Option<Size>| {
        size.as_ref()?
            .as_number()
            .and_then(|size| usize::try_from(size).ok())
    };
    if !sizes.is_empty() {
        return sizes.iter().map(as_index).collect();
    }
    let each = as_index(&dim.over(&Size::number(i64::try_from(count).ok()?)))?;
    Some(vec![each; count])
}
