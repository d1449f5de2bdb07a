//! Rules for operators that run along axes: reductions, norms, cumulative sums.

use super::{
    node::{Node, RuleResult, like, one},
    size::Size,
    value::{Item, Origin, Value},
};

/// Propagates rows through an operator that runs along one axis and keeps the shape. `default` is the default
/// of the attribute `axis`.
fn along(node: &mut Node<'_>, default: i64) -> RuleResult {
    let value = node.input(0)?.clone();
    let rank = node.dims(0)?.len();
    let axis = node.axis(node.int("axis", default), rank)?;
    node.keep_off(&value, axis)?;
    one(Value {
        content: None,
        ..value
    })
}

/// Propagates rows through `Softmax`. Before operator set 13, all axes starting at `axis` are flattened into
/// one.
pub(super) fn softmax(node: &mut Node<'_>) -> RuleResult {
    if node.opset < 13 {
        return from(node, 1);
    }
    along(node, -1)
}

/// Propagates rows through `QLinearSoftmax`; an attribute selects the operator set whose semantics apply.
pub(super) fn quantized_softmax(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    match node.int("opset", 0) {
        13.. => along(node, -1),
        _ => from(node, -1),
    }
}

pub(super) fn lp_normalization(node: &mut Node<'_>) -> RuleResult {
    along(node, -1)
}

pub(super) fn cum_sum(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let rank = node.dims(0)?.len();
    let axis = node.numbers(1, "axis", 0)?.and_then(|axes| axes.first().copied());
    let Some(axis) = axis else {
        return node.refuse("has an axis that is not constant");
    };
    let axis = node.axis(axis, rank)?;
    node.keep_off(&value, axis)?;
    one(Value {
        content: None,
        ..value
    })
}

/// Propagates rows through an operator over all axes starting at `axis`. Its outputs after the first have
/// size 1 along these axes.
fn from(node: &mut Node<'_>, default: i64) -> RuleResult {
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let first = node.axis(node.int("axis", default), dims.len())?;
    for axis in first..dims.len() {
        node.keep_off(&value, axis)?;
    }
    let reduced: Vec<Size> = dims
        .iter()
        .enumerate()
        .map(|(axis, dim)| {
            if axis < first {
                dim.clone()
            } else {
                Size::number(1)
            }
        })
        .collect();
    let statistics = Item::Tensor(like(&value, reduced));
    Ok(vec![
        Item::Tensor(like(&value, dims)),
        statistics.clone(),
        statistics,
    ])
}

pub(super) fn layer_normalization(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let from_end = value.row_axis().and_then(|rows| Some(value.rank()? - rows));
    for index in [1, 2] {
        let (Some(from_end), Some(setting)) = (from_end, node.optional(index)?) else {
            continue;
        };
        let of_rows = setting
            .dims
            .as_ref()
            .and_then(|dims| dims.get(dims.len().checked_sub(from_end)?));
        if setting.rank().is_none() || of_rows.is_some_and(|dim| !dim.is(1)) {
            return node.refuse("has a scale or a bias for each row");
        }
    }
    from(node, -1)
}

/// Propagates rows through the normalized sum of the inputs. The fourth output is the sum itself.
pub(super) fn skip_layer_normalization(node: &mut Node<'_>) -> RuleResult {
    node.require_same(2)?;
    let pair = [node.input(0)?.clone(), node.input(1)?.clone()];
    let sum = super::elementwise::broadcast_of(node, &pair)?;
    let Some(rank) = sum.rank() else {
        return node.refuse("has an input whose number of dimensions is not known");
    };
    if sum.row_axis().is_some() && (node.input(0)?.origin, node.input(0)?.rank()) != (sum.origin, Some(rank))
    {
        return node.refuse("adds rows to a tensor without rows");
    }
    let axis = node.axis(-1, rank)?;
    node.keep_off(&sum, axis)?;
    let mut dims = sum.dims.clone().unwrap_or_default();
    dims[axis] = Size::number(1);
    let statistic = Item::Tensor(super::node::like(&sum, dims));
    let sum = Item::Tensor(sum);
    Ok(vec![sum.clone(), statistic.clone(), statistic, sum])
}

/// Propagates rows through `MeanVarianceNormalization`. The default axes are all except the channels.
pub(super) fn mean_variance_normalization(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let rank = node.dims(0)?.len();
    let axes = match node.ints("axes") {
        [] => vec![0, 2, 3],
        axes => axes.to_vec(),
    };
    for axis in node.axes(&axes, rank)? {
        node.keep_off(&value, axis)?;
    }
    one(Value {
        content: None,
        ..value
    })
}

pub(super) fn reduce(node: &mut Node<'_>) -> RuleResult {
    let until = if node.proto.op_type == "ReduceSum" { 13 } else { 18 };
    let axes = node.numbers(1, "axes", until)?.unwrap_or_default();
    let keeps = node.int("keepdims", 1) != 0;
    if axes.is_empty() && node.int("noop_with_empty_axes", 0) != 0 {
        let value = node.input(0)?.clone();
        return one(Value {
            content: None,
            ..value
        });
    }
    if let Some(total) = content_of(node, &axes) {
        return one(Value::integers(vec![total], !keeps));
    }
    reduce_axes(node, &axes, keeps)
}

/// Returns the product of the elements of a small vector, such as a shape, if `axes` reduce the vector.
/// Returns an unknown number for reductions other than products.
fn content_of(node: &mut Node<'_>, axes: &[i64]) -> Option<Option<Size>> {
    let value = node.input(0).ok()?;
    let is_whole = matches!(axes, [] | [0] | [-1]) && value.rank() == Some(1);
    let content = value.content.clone().filter(|_| is_whole)?;
    let known: Option<Vec<Size>> = content.iter().cloned().collect();
    let known = known?;
    match node.proto.op_type.as_str() {
        "ReduceProd" if known.iter().all(|size| node.symbols.is_integer(size)) => {
            let product = node.symbols.product_of(&known);
            Some(product.filter(|product| node.symbols.most(product) <= node.width))
        }
        _ if known.iter().any(Size::has_rows) => Some(None),
        _ => Some(Some(node.symbols.real())),
    }
}

pub(super) fn arg(node: &mut Node<'_>) -> RuleResult {
    let keeps = node.int("keepdims", 1) != 0;
    reduce_axes(node, &[node.int("axis", 0)], keeps)
}

/// Propagates rows through a reduction over `axes`. If `axes` is empty, the reduction is over all axes.
fn reduce_axes(node: &mut Node<'_>, axes: &[i64], keeps: bool) -> RuleResult {
    let value = node.input(0)?.clone();
    let Some(dims) = &value.dims else {
        return match value.is_same() {
            true => one(Value::same_of_any_rank()),
            false => node.refuse("has an input whose number of dimensions is not known"),
        };
    };
    let axes = match axes {
        [] => (0..dims.len()).collect(),
        axes => node.axes(axes, dims.len())?,
    };
    for axis in &axes {
        if value.row_axis() == Some(*axis) {
            return node.refuse(format_args!("reduces axis {axis}"));
        }
    }
    let target = dims
        .iter()
        .enumerate()
        .filter_map(|(axis, dim)| match axes.contains(&axis) {
            true => keeps.then(|| Size::number(1)),
            false => Some(dim.clone()),
        });
    let mut result = like(&value, target.collect());
    if let (Origin::Rows(rows), false) = (value.origin, keeps) {
        result.origin = Origin::Rows((0..rows).filter(|axis| !axes.contains(axis)).count());
    }
    one(result)
}

/// Propagates rows through an operator on the last two axes that keeps them.
pub(super) fn trilu(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    last_two(node)
}

/// Propagates rows through an operator on the last two axes that removes them.
pub(super) fn determinant(node: &mut Node<'_>) -> RuleResult {
    let dims = node.dims(0)?;
    last_two(node)?;
    let value = node.input(0)?.clone();
    one(like(&value, dims[..dims.len().saturating_sub(2)].to_vec()))
}

fn last_two(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    for axis in dims.len().saturating_sub(2)..dims.len() {
        node.keep_off(&value, axis)?;
    }
    one(like(&value, dims))
}
