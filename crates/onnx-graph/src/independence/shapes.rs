//! Rules for operators that read or change shapes.

use super::{
    elementwise::broadcast_of,
    node::{Node, RuleResult, like, one},
    size::{Bounds, Size, Symbols},
    value::{Numbering, Origin, Reason, Value},
};

pub(super) fn shape(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?;
    if value.dims.is_none() && value.is_same() {
        return one(Value::same_of_any_rank());
    }
    let dims = node.dims(0)?;
    let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
    let bound = |index: i64| {
        let index = if index < 0 {
            index.saturating_add(rank)
        } else {
            index
        };
        usize::try_from(index.clamp(0, rank)).unwrap_or(0)
    };
    let (start, end) = (bound(node.int("start", 0)), bound(node.int("end", i64::MAX)));
    let picked = dims.get(start..end).unwrap_or_default();
    one(Value::integers(picked.iter().cloned().map(Some).collect(), false))
}

pub(super) fn size(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?;
    if value.dims.is_none() && value.is_same() {
        return one(Value::same(vec![]));
    }
    let dims = node.dims(0)?;
    let product = node.symbols.product_of(&dims);
    one(Value::integers(vec![product], true))
}

pub(super) fn reshape(node: &mut Node<'_>) -> RuleResult {
    let Some(wanted) = node.numbers_or_elements("shape")? else {
        return node.refuse("has a shape that is not known");
    };
    let value = node.input(0)?.clone();
    let Some(dims) = value.dims.clone() else {
        return match value.is_same() && wanted.iter().all(is_same) {
            true => one(Value::same_of_any_rank()),
            false => node.refuse("has an input whose number of dimensions is not known"),
        };
    };
    let is_zero_kept = node.int("allowzero", 0) == 0;
    let mut target = Vec::with_capacity(wanted.len());
    let mut inferred = None;
    let mut is_known = true;
    for (index, size) in wanted.into_iter().enumerate() {
        let Some(size) = size else {
            return node.refuse_count();
        };
        match size.as_number() {
            Some(0) if is_zero_kept => match dims.get(index) {
                Some(dim) => target.push(dim.clone()),
                None => return node.refuse("keeps a dimension that its input does not have"),
            },
            Some(-1) if inferred.is_none() => {
                inferred = Some(index);
                target.push(Size::number(1));
            }
            Some(..0) => return node.refuse("has a negative size"),
            // A size that may be 0 or -1 makes the result unknown, since these values have a special meaning.
            None if !is_positive(node.symbols, &size, &dims, index, is_zero_kept) => {
                if value.row_axis().is_some() {
                    return node.refuse("has a size that may be 0 or negative");
                }
                is_known = false;
                target.push(node.symbols.dim());
            }
            _ => target.push(size),
        }
    }
    if let Some(index) = inferred {
        target[index] = match is_known {
            true => infer(node, &dims, &target)?,
            false => node.symbols.dim(),
        };
    }
    one(reshaped(node, &value, &dims, target)?)
}

/// Returns whether `size`, which is requested for dimension `index`, is known to be at least 1, provided that
/// the value, whose dimensions are `dims`, is not empty. With `is_zero_kept`, a requested 0 copies dimension
/// `index` of the value, so a `size` equal to that dimension may be 0.
fn is_positive(symbols: &Symbols, size: &Size, dims: &[Size], index: usize, is_zero_kept: bool) -> bool {
    let is_kept = is_zero_kept && dims.get(index) == Some(size);
    symbols.is_positive(size) || symbols.is_natural(size) && (is_kept || size.has_only_symbols_of_all(dims))
}

fn is_same(size: &Option<Size>) -> bool {
    size.as_ref().is_some_and(|size| !size.has_rows())
}

/// Infers the size of the dimension that the node requests as -1. In `target`, that dimension is 1.
fn infer(node: &mut Node<'_>, dims: &[Size], target: &[Size]) -> Result<Size, Reason> {
    let total = node.symbols.product_of(dims);
    let rest = node.symbols.product_of(target);
    let (Some(total), Some(rest)) = (total, rest) else {
        return node.refuse("has a size that depends on the number of rows otherwise than as a factor");
    };
    if let Some(exact) = total.over(&rest) {
        return Ok(exact);
    }
    // The row count may cancel out; the remaining quotient is shared by all requests.
    let without = |size: &Size| size.over(&Size::rows()).unwrap_or_else(|| size.clone());
    if total.has_rows() == rest.has_rows() {
        let bounds = Bounds {
            // `total` is the product of all dimensions.
            is_positive: node.symbols.is_positive(&total),
            most: node.symbols.most(&without(&total)),
        };
        let quotient = vec![without(&total), without(&rest)];
        return Ok(node
            .symbols
            .bounded_dim_of("quotient", quotient, bounds)
            .unwrap_or_else(|| node.symbols.dim()));
    }
    node.refuse("merges rows with other dimensions, and may split a row")
}

/// Returns a reshaped value. The row axis of the result is the axis that has as many elements before it as
/// the row axis of the value. Records an outer axis that is merged into the row axis.
pub(super) fn reshaped(
    node: &mut Node<'_>,
    value: &Value,
    dims: &[Size],
    target: Vec<Size>,
) -> Result<Value, Reason> {
    let (before, after) = (node.symbols.product_of(dims), node.symbols.product_of(&target));
    if let (Some(before), Some(after)) = (&before, &after)
        && before.is_literal()
        && after.is_literal()
        && before != after
    {
        return node.refuse("has another number of elements than its input");
    }
    match value.origin {
        Origin::Rows(axis) => {
            let Some(new) = target.iter().position(Size::has_rows) else {
                return node.refuse("gives its rows a fixed shape");
            };
            let before = node.symbols.product_of(&dims[..axis]);
            let before = match (before, &value.outer) {
                (Some(before), Some(outer)) => node.symbols.product(&before, outer),
                (before, _) => before,
            };
            let kept = node.symbols.product_of(&target[..new]);
            let outer = before.and_then(|before| before.over(&kept?));
            let is_only_one = !target[new + 1..].iter().any(Size::has_rows);
            let outer = outer.filter(|outer| is_only_one && target[new].over(outer).is_some());
            let Some(outer) = outer else {
                return node.refuse("splits rows or mixes them with another dimension");
            };
            Ok(Value {
                outer: (!outer.is(1)).then_some(outer),
                ..Value::rows(target, new)
            })
        }
        _ if target.iter().any(Size::has_rows) => node.refuse("gives rows to a tensor without rows"),
        _ => {
            let length = after.and_then(|after| usize::try_from(after.as_number()?).ok());
            let content = value.content.clone();
            Ok(Value {
                content: content.filter(|content| Some(content.len()) == length),
                ..like(value, target)
            })
        }
    }
}

pub(super) fn flatten(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let at = match node.int("axis", 1) {
        axis if usize::try_from(axis) == Ok(dims.len()) => dims.len(),
        axis => node.axis(axis, dims.len())?,
    };
    let (outer, inner) = dims.split_at(at);
    let (outer, inner) = (node.symbols.product_of(outer), node.symbols.product_of(inner));
    let (Some(outer), Some(inner)) = (outer, inner) else {
        return node.refuse("has a size that depends on the number of rows otherwise than as a factor");
    };
    one(reshaped(node, &value, &dims, vec![outer, inner])?)
}

pub(super) fn squeeze(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let axes = match node.numbers(1, "axes", 13)?.filter(|axes| !axes.is_empty()) {
        Some(axes) => node.axes(&axes, dims.len())?,
        None if dims.iter().all(|dim| dim.as_number().is_some()) => {
            (0..dims.len()).filter(|axis| dims[*axis].is(1)).collect()
        }
        None => return node.refuse("removes every dimension that is 1, whichever these are"),
    };
    for axis in &axes {
        node.keep_off(&value, *axis).or_else(|reason| {
            if value.content.is_some() {
                Ok(())
            } else {
                Err(reason)
            }
        })?;
    }
    let kept = |axis: &usize| !axes.contains(axis);
    let target: Vec<Size> = (0..dims.len())
        .filter(kept)
        .map(|axis| dims[axis].clone())
        .collect();
    let mut result = like(&value, target);
    if let Origin::Rows(axis) = value.origin {
        result.origin = Origin::Rows((0..axis).filter(kept).count());
    }
    result.content = value.content;
    one(result)
}

pub(super) fn unsqueeze(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let axes = node.numbers(1, "axes", 13)?.unwrap_or_default();
    let axes = node.axes(&axes, dims.len() + axes.len())?;
    let mut old = dims.iter().enumerate();
    let (mut target, mut origin) = (Vec::new(), value.origin);
    for axis in 0..dims.len() + axes.len() {
        if axes.contains(&axis) {
            target.push(Size::number(1));
        } else if let Some((index, dim)) = old.next() {
            if value.origin == Origin::Rows(index) {
                origin = Origin::Rows(axis);
            }
            target.push(dim.clone());
        }
    }
    let content = value.content;
    one(Value {
        dims: Some(target),
        origin,
        content,
        numbering: Numbering::None,
        outer: None,
    })
}

pub(super) fn transpose(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let Some(dims) = value.dims.clone() else {
        let permutation = node.ints("perm").to_vec();
        return match value.origin {
            _ if permutation.is_empty() => {
                node.refuse("has an input whose number of dimensions is not known")
            }
            Origin::Rows(axis) => {
                let target = permutation.iter().map(|_| node.symbols.dim()).collect();
                one(moved(node, &value, target, &permutation, axis)?)
            }
            _ => one(Value {
                content: None,
                ..value
            }),
        };
    };
    let permutation = match node.ints("perm") {
        [] => (0..dims.len() as i64).rev().collect(),
        permutation => permutation.to_vec(),
    };
    let axes = node.axes(&permutation, dims.len())?;
    let target: Vec<Size> = axes.iter().map(|axis| dims[*axis].clone()).collect();
    match value.origin {
        Origin::Rows(axis) => one(moved(node, &value, target, &permutation, axis)?),
        _ => {
            let content = value
                .content
                .as_deref()
                .and_then(|content| permuted(content, &dims, &axes))
                .map(Into::into);
            one(Value {
                content,
                ..like(&value, target)
            })
        }
    }
}

/// Returns the elements of a transposed tensor.
fn permuted(content: &[Option<Size>], dims: &[Size], axes: &[usize]) -> Option<Vec<Option<Size>>> {
    let lengths: Option<Vec<usize>> = dims
        .iter()
        .map(|dim| dim.as_number().and_then(|dim| usize::try_from(dim).ok()))
        .collect();
    let lengths = lengths?;
    // Comparing the count ensures that no size is 0, and that no product below overflows.
    let count = lengths
        .iter()
        .try_fold(1usize, |count, length| count.checked_mul(*length));
    if content.is_empty() || count != Some(content.len()) {
        return None;
    }
    let stride = |axis: usize| lengths[axis + 1..].iter().product::<usize>();
    (0..content.len())
        .map(|index| {
            let (mut rest, mut from) = (index, 0);
            for axis in axes.iter().rev() {
                from += (rest % lengths[*axis]) * stride(*axis);
                rest /= lengths[*axis];
            }
            content.get(from).cloned()
        })
        .collect()
}

fn moved(
    node: &Node<'_>,
    value: &Value,
    target: Vec<Size>,
    permutation: &[i64],
    axis: usize,
) -> Result<Value, Reason> {
    let new = permutation
        .iter()
        .position(|from| usize::try_from(*from) == Ok(axis));
    match (new, target.len() == permutation.len()) {
        (Some(new), true) => Ok(Value {
            origin: Origin::Rows(new),
            ..like(value, target)
        }),
        _ => node.refuse("loses an axis"),
    }
}

pub(super) fn expand(node: &mut Node<'_>) -> RuleResult {
    let wanted = node.elements(1)?;
    let wanted: Option<Vec<Size>> = wanted.into_iter().collect();
    let Some(wanted) = wanted else {
        return node.refuse_count();
    };
    let value = node.input(0)?.clone();
    one(expanded(node, value, wanted)?)
}

fn expanded(node: &mut Node<'_>, value: Value, wanted: Vec<Size>) -> Result<Value, Reason> {
    if value.origin == Origin::Count {
        return node.refuse_count();
    }
    let Some(shape) = Value::filled(wanted) else {
        return node.refuse("has rows on two axes");
    };
    broadcast_of(node, &[value, shape])
}

pub(super) fn tile(node: &mut Node<'_>) -> RuleResult {
    let repeats = node.elements(1)?;
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    if repeats.len() != dims.len() || value.origin == Origin::Count {
        return node.refuse_count();
    }
    let mut target = Vec::with_capacity(dims.len());
    for (axis, (dim, repeat)) in dims.iter().zip(repeats).enumerate() {
        let Some(repeat) = repeat else {
            return node.refuse_count();
        };
        if !repeat.is(1) {
            node.keep_off(&value, axis)?;
        }
        match node.symbols.product(dim, &repeat) {
            Some(dim) => target.push(dim),
            None => return node.refuse_count(),
        }
    }
    match (value.origin, Value::filled(target.clone())) {
        // The result is one copy of the value per row, concatenated.
        (Origin::Same, Some(filled)) => one(filled),
        (Origin::Rows(axis), Some(_)) => one(Value::rows(target, axis)),
        _ => node.refuse("has rows on two axes"),
    }
}

pub(super) fn constant_of_shape(node: &mut Node<'_>) -> RuleResult {
    let wanted: Option<Vec<Size>> = node.elements(0)?.into_iter().collect();
    let Some(wanted) = wanted else {
        return node.refuse_count();
    };
    let proto = node.proto;
    let mut attributes = proto.attribute.iter();
    let element = attributes
        .find(|attribute| attribute.name == "value")
        .and_then(|attribute| attribute.t.as_ref());
    // Without the attribute `value`, the element is an FP32 zero.
    let element = match element {
        Some(element) => super::constants::first(element, node.symbols),
        None => Some(node.symbols.float(0)),
    };
    let Some(filled) = Value::filled(wanted) else {
        return node.refuse("has rows on two axes");
    };
    one(with_content(filled, element))
}

/// Returns `value` with all elements equal to `element`.
fn with_content(value: Value, element: Option<Size>) -> Value {
    let length = match value.dims.as_deref() {
        Some([]) => Some(1),
        Some([length]) => length.as_number().and_then(|length| usize::try_from(length).ok()),
        _ => None,
    };
    match (length, element) {
        (Some(length @ ..=super::value::MAX_CONTENT), Some(element)) => {
            let is_scalar = value.rank() == Some(0);
            Value::integers(vec![Some(element); length], is_scalar)
        }
        _ => value,
    }
}

pub(super) fn range(node: &mut Node<'_>) -> RuleResult {
    let mut bounds = Vec::with_capacity(3);
    for index in 0..3 {
        bounds.push(node.elements(index)?.into_iter().next().flatten());
    }
    let known: Option<Vec<Size>> = bounds.into_iter().collect();
    if let Some([start, limit, step]) = known.as_deref()
        && start.is(0)
        && *limit == Size::rows()
        && step.is(1)
    {
        let mut numbers = Value::rows(vec![Size::rows()], 0);
        numbers.numbering = Numbering::Index;
        return one(numbers);
    }
    let Some(known) = known.filter(|bounds| !bounds.iter().any(Size::has_rows)) else {
        return node.refuse("returns the indices of rows");
    };
    let length = match known.as_slice() {
        [start, limit, step] if start.is(0) && step.is(1) && node.symbols.is_dim(limit) => limit.clone(),
        _ => length_of(node.symbols, known),
    };
    one(Value::same(vec![length]))
}

fn length_of(symbols: &mut Symbols, bounds: Vec<Size>) -> Size {
    let numbers: Option<Vec<i64>> = bounds.iter().map(Size::as_number).collect();
    if let Some([start, limit, step]) = numbers.as_deref()
        && *step == 1
        && let Some(length) = limit.checked_sub(*start)
    {
        return Size::number(length.max(0));
    }
    symbols.dim_of("range", bounds).unwrap_or_else(|| symbols.dim())
}

/// Propagates rows through `NonZero`, which returns one index per nonzero element.
pub(super) fn non_zero(node: &mut Node<'_>) -> RuleResult {
    node.require_same(0)?;
    let rank = i64::try_from(node.dims(0)?.len()).unwrap_or(i64::MAX);
    // For a scalar, ONNX specifies 0 and ONNX Runtime returns 1.
    let rank = match rank {
        0 => node.symbols.dim(),
        rank => Size::number(rank),
    };
    let count = node.symbols.dim();
    one(Value::same(vec![rank, count]))
}

/// Refuses inputs with rows, since the result depends on the position of the rows.
pub(super) fn needs_no_rows(node: &mut Node<'_>) -> RuleResult {
    node.refuse("depends on where the rows are")
}

impl Node<'_> {
    /// Returns the elements of the second input, or of the attribute that replaces it in older operator sets.
    fn numbers_or_elements(&mut self, attribute: &str) -> Result<Option<Vec<Option<Size>>>, Reason> {
        if self.optional(1)?.is_some() {
            return self.elements(1).map(Some);
        }
        let numbers = self
            .attribute(attribute)
            .map(|attribute| attribute.ints.as_slice());
        Ok(numbers.map(|numbers| numbers.iter().map(|number| Some(Size::number(*number))).collect()))
    }

    pub(super) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, Reason> {
        axes.iter().map(|axis| self.axis(*axis, rank)).collect()
    }
}
