//! Rules for gather, scatter, slice, pad and selection operators.

use super::{
    node::{Node, RuleResult, like, one},
    size::{Bounds, Size, Symbols},
    value::{Item, Numbering, Origin, Reason, Value},
};

pub(super) fn gather(node: &mut Node<'_>) -> RuleResult {
    let (data, indices) = (node.input(0)?.clone(), node.input(1)?.clone());
    if let Some(picked) = gather_content(&data, &indices) {
        return one(picked);
    }
    let axis_of = |node: &Node<'_>, rank| node.axis(node.int("axis", 0), rank);
    let (Some(dims), Some(indexed)) = (&data.dims, &indices.dims) else {
        return node.refuse("has an input whose number of dimensions is not known");
    };
    let axis = axis_of(node, dims.len())?;
    let target = [&dims[..axis], indexed, &dims[axis + 1..]].concat();
    let origin = match (data.origin, indices.origin) {
        (Origin::Rows(rows), Origin::Same) => {
            node.keep_off(&data, axis)?;
            Origin::Rows(if rows < axis {
                rows
            } else {
                rows - 1 + indexed.len()
            })
        }
        (Origin::Same, Origin::Rows(rows)) => Origin::Rows(axis + rows),
        (Origin::Same, Origin::Same) => Origin::Same,
        (Origin::Rows(_), Origin::Rows(_)) => {
            return node.refuse("gathers from rows by indices of other rows");
        }
        (Origin::Count, Origin::Rows(_)) | (Origin::Rows(_), Origin::Count) => return node.refuse_count(),
        (Origin::Count, _) | (_, Origin::Count) => Origin::Count,
    };
    one(Value {
        dims: Some(target),
        origin,
        content: None,
        numbering: Numbering::None,
        outer: None,
    })
}

/// Returns the abstract value of the elements that are gathered from a small tensor, such as a shape.
fn gather_content(data: &Value, indices: &Value) -> Option<Value> {
    let content = data.content.as_ref().filter(|_| data.rank() == Some(1))?;
    let picked = indices.numbers()?;
    let length = i64::try_from(content.len()).ok()?;
    let at = |index: i64| {
        let index = if index < 0 {
            index.checked_add(length)?
        } else {
            index
        };
        content.get(usize::try_from(index).ok()?).cloned()
    };
    let picked: Option<Vec<Option<Size>>> = picked.into_iter().map(at).collect();
    Some(Value::integers_of(indices.dims.clone()?, picked?))
}

/// Propagates rows through an operator on data and indices of the same rank, whose elements correspond except
/// along one axis.
pub(super) fn along_axis(node: &mut Node<'_>) -> RuleResult {
    let (data, indices) = (node.input(0)?.clone(), node.input(1)?.clone());
    let dims = node.dims(1)?;
    let axis = node.axis(node.int("axis", 0), dims.len())?;
    let has_updates = node.optional(2)?.is_some();
    let others = if has_updates {
        vec![indices.clone(), node.input(2)?.clone()]
    } else {
        vec![indices.clone()]
    };
    if data.is_same() && others.iter().all(Value::is_same) {
        return one(like(&data, if has_updates { node.dims(0)? } else { dims }));
    }
    let rows_of = |value: &Value| Some(value.dims.as_ref()?.get(value.row_axis()?)?.clone());
    for value in others.iter().chain([&data]) {
        node.keep_off(value, axis)?;
        if value.origin != data.origin || rows_of(value) != rows_of(&data) {
            return node.refuse("gathers from rows by indices of other rows");
        }
    }
    one(like(&data, if has_updates { node.dims(0)? } else { dims }))
}

pub(super) fn gather_nd(node: &mut Node<'_>) -> RuleResult {
    let (data, indices) = (node.input(0)?.clone(), node.input(1)?.clone());
    let (dims, indexed) = (node.dims(0)?, node.dims(1)?);
    let batch_axes = usize::try_from(node.int("batch_dims", 0)).unwrap_or(usize::MAX);
    let depth = indexed
        .last()
        .and_then(Size::as_number)
        .and_then(|depth| usize::try_from(depth).ok());
    let Some(rest) = depth.and_then(|depth| dims.get(batch_axes.checked_add(depth)?..)) else {
        return node.refuse("has indices of a length that is not known");
    };
    let target = [&indexed[..indexed.len() - 1], rest].concat();
    let is_index = |axis: usize| axis + 1 < indexed.len();
    if data.numbering != Numbering::None {
        return node.refuse("gathers from values that depend on the index of a row");
    }
    // If the first index is the row index, each row gathers only its own elements.
    let is_number_first = match indices.numbering {
        Numbering::Index => depth == Some(1),
        Numbering::Tuples => true,
        Numbering::None | Numbering::Mixed => false,
    };
    let picks_own = is_number_first && dims.first() == Some(&Size::rows()) && batch_axes == 0;
    let origin = match (data.origin, indices.origin) {
        (Origin::Same, Origin::Same) => Origin::Same,
        (Origin::Rows(0), Origin::Rows(axis)) if picks_own && is_index(axis) => Origin::Rows(axis),
        _ if indices.numbering != Numbering::None => return node.refuse("gathers by the index of a row"),
        (Origin::Same, Origin::Rows(axis)) if is_index(axis) && axis >= batch_axes => Origin::Rows(axis),
        (Origin::Rows(a), Origin::Rows(b))
            if a == b && a < batch_axes && is_index(a) && dims[a] == indexed[a] =>
        {
            Origin::Rows(a)
        }
        (Origin::Rows(axis), Origin::Same) if depth.is_some_and(|depth| axis >= batch_axes + depth) => {
            let after = axis - batch_axes - depth.unwrap_or(0);
            Origin::Rows(indexed.len() - 1 + after)
        }
        _ => return node.refuse("gathers from rows by index"),
    };
    one(Value {
        dims: Some(target),
        origin,
        content: None,
        numbering: Numbering::None,
        outer: None,
    })
}

/// Propagates rows through `ScatterND`, whose updates may modify elements along any axis.
pub(super) fn scatter_nd(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let is_same = node.values()?.into_iter().all(Value::is_same);
    match value.dims.clone() {
        Some(dims) if is_same => one(like(&value, dims)),
        _ => node.refuse("scatters elements into rows by index"),
    }
}

pub(super) fn slice(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let bounds = SliceBounds::of(node, dims.len())?;
    let mut target = dims.clone();
    for (axis, span) in bounds.spans() {
        let Some(dim) = dims.get(axis) else {
            return node.refuse("has more bounds than its input has dimensions");
        };
        if span.is_all(dim) {
            continue;
        }
        if value.content.is_none() {
            node.keep_off(&value, axis)?;
        }
        let taken = span.of(node.symbols, dim);
        target[axis] = taken.ok_or_else(|| node.refusal("computes with the number of rows"))?;
    }
    let mut spans = bounds.spans();
    if let (Some(content), Some((axis, span)), None) = (&value.content, spans.next(), spans.next())
        && let Some(picked) = span.picked(content, &dims, axis)
    {
        return one(Value::integers_of(target, picked));
    }
    match value.origin {
        Origin::Count => node.refuse_count(),
        _ => one(like(&value, target)),
    }
}

/// The bounds of a slice, from attributes before operator set 10 and from inputs since then. All lists have
/// the same length.
struct SliceBounds {
    axes: Vec<usize>,
    starts: Vec<Size>,
    ends: Vec<Size>,
    steps: Vec<Size>,
}

impl SliceBounds {
    fn of(node: &mut Node<'_>, rank: usize) -> Result<Self, Reason> {
        let (starts, ends) = (Self::list(node, 1, "starts")?, Self::list(node, 2, "ends")?);
        let (Some(starts), Some(ends)) = (starts, ends) else {
            return node.refuse("lacks its bounds");
        };
        let axes = match Self::list(node, 3, "axes")? {
            Some(axes) => {
                let axes: Option<Vec<i64>> = axes.iter().map(Size::as_number).collect();
                let axes = axes.ok_or_else(|| node.refusal("has axes that are not constant"))?;
                node.axes(&axes, rank)?
            }
            None => (0..starts.len()).collect(),
        };
        let steps = match Self::are_attributes(node) {
            true => None,
            false => Self::list(node, 4, "steps")?,
        };
        let steps = steps.unwrap_or_else(|| vec![Size::number(1); starts.len()]);
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
            return node.refuse("has lists of bounds of different lengths");
        }
        Ok(Self {
            axes,
            starts,
            ends,
            steps,
        })
    }

    fn are_attributes(node: &Node<'_>) -> bool {
        node.opset < 10
    }

    /// Returns the attribute `name` or the input `index`, if the node has it.
    fn list(node: &mut Node<'_>, index: usize, name: &str) -> Result<Option<Vec<Size>>, Reason> {
        if Self::are_attributes(node) {
            let numbers = node.attribute(name).map(|attribute| &attribute.ints);
            return Ok(numbers.map(|numbers| numbers.iter().map(|number| Size::number(*number)).collect()));
        }
        if node.optional(index)?.is_none() {
            return Ok(None);
        }
        let elements: Option<Vec<Size>> = node.elements(index)?.into_iter().collect();
        elements
            .map(Some)
            .ok_or_else(|| node.refusal("computes with the number of rows"))
    }

    /// Iterates over the sliced axes.
    fn spans(&self) -> impl Iterator<Item = (usize, Span<'_>)> {
        let bounds = self
            .axes
            .iter()
            .zip(&self.starts)
            .zip(&self.ends)
            .zip(&self.steps);
        bounds.map(|(((axis, start), end), step)| (*axis, Span { start, end, step }))
    }
}

/// The bounds of a slice along one axis.
struct Span<'s> {
    start: &'s Size,
    end: &'s Size,
    step: &'s Size,
}

impl Span<'_> {
    /// The end index that most exporters write for "to the end", which is larger than any dimension.
    const FAR: i64 = i32::MAX as i64;
    /// The end index that TensorFlow's exporter writes for "to the end".
    const AS_FAR: i64 = 1_000_000_000;

    fn is_all(&self, dim: &Size) -> bool {
        let far = if dim.is_short_of_rows() {
            Self::AS_FAR
        } else {
            Self::FAR
        };
        let is_to_end = self.end == dim || self.end.as_number().is_some_and(|end| end >= far);
        self.start.is(0) && self.step.is(1) && is_to_end
    }

    fn numbers(&self) -> Option<(i64, i64, i64)> {
        Some((
            self.start.as_number()?,
            self.end.as_number()?,
            self.step.as_number()?,
        ))
    }

    /// Returns the elements that the slice selects from a tensor.
    fn picked(&self, content: &[Option<Size>], dims: &[Size], axis: usize) -> Option<Vec<Option<Size>>> {
        let (start, end, step) = self.numbers()?;
        let length = |dim: &Size| dim.as_number().and_then(|dim| usize::try_from(dim).ok());
        let lengths: Vec<usize> = dims.iter().map(length).collect::<Option<_>>()?;
        let inner: usize = lengths.get(axis + 1..)?.iter().product();
        let (first, count) = range(i64::try_from(*lengths.get(axis)?).ok()?, start, end, step)?;
        let mut picked = Vec::new();
        let block = lengths[axis].checked_mul(inner)?;
        for outer in content.chunks(block.max(1)) {
            for at in 0..count {
                let index = usize::try_from(first.checked_add(at.checked_mul(step)?)?).ok()?;
                picked.extend_from_slice(outer.get(index * inner..(index + 1) * inner)?);
            }
        }
        Some(picked)
    }

    /// Returns the size that an axis of size `dim` has after slicing.
    fn of(&self, symbols: &mut Symbols, dim: &Size) -> Option<Size> {
        if let (Some((start, end, step)), Some(length)) = (self.numbers(), dim.as_number())
            && let Some(range) = range(length, start, end, step)
        {
            return Some(Size::number(range.1));
        }
        // For a slice from the start or to the end, the size of the removed part is known.
        if self.step.is(1) && self.start.is(0) && self.end.as_number().is_none() && !self.end.has_rows() {
            let bounds = Bounds {
                is_positive: symbols.is_positive(dim) && symbols.is_positive(self.end),
                most: symbols.most(dim),
            };
            return symbols.bounded_dim_of("first", vec![dim.clone(), self.end.clone()], bounds);
        }
        let arguments = [dim, self.start, self.end, self.step];
        let bounds = Bounds {
            is_positive: false,
            most: symbols.most(dim),
        };
        symbols.bounded_dim_of("slice", arguments.into_iter().cloned().collect(), bounds)
    }
}

/// Returns the first index and the length of a slice. Also returns `None` for a negative step with an `end`
/// far before the tensor's start, which runtimes interpret differently.
fn range(length: i64, start: i64, end: i64, step: i64) -> Option<(i64, i64)> {
    if length <= 0 {
        return (length == 0).then_some((0, 0));
    }
    let from_start = |index: i64| {
        if index < 0 {
            index.saturating_add(length)
        } else {
            index
        }
    };
    let (first, count) = match step {
        0 => return None,
        1.. => {
            let (start, end) = (
                from_start(start).clamp(0, length),
                from_start(end).clamp(0, length),
            );
            (
                start,
                end.checked_sub(start)?
                    .max(0)
                    .checked_add(step - 1)?
                    .checked_div(step)?,
            )
        }
        _ if end >= Span::FAR => return None,
        _ => {
            let (start, end) = (
                from_start(start).clamp(0, length - 1),
                from_start(end).clamp(-1, length - 1),
            );
            let span = start.checked_sub(end)?.max(0);
            (
                start,
                span.checked_sub(step.checked_add(1)?)?
                    .checked_div(step.checked_neg()?)?,
            )
        }
    };
    Some((first, count.max(0)))
}

pub(super) fn pad(node: &mut Node<'_>) -> RuleResult {
    node.require_same(2)?;
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let pads = if node.opset < 11 {
        let name = if node.opset < 2 { "paddings" } else { "pads" };
        node.ints(name)
            .iter()
            .map(|pad| Some(Size::number(*pad)))
            .collect()
    } else {
        node.elements(1)?
    };
    let axes = match node.numbers(3, "axes", 0)? {
        Some(axes) => node.axes(&axes, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    let (before, after) = pads.split_at(pads.len() / 2);
    if before.len() != axes.len() || after.len() != axes.len() {
        return node.refuse("has another number of pads than axes");
    }
    let mut target = dims;
    for ((axis, before), after) in axes.into_iter().zip(before).zip(after) {
        let (Some(before), Some(after)) = (before, after) else {
            return node.refuse_count();
        };
        if before.has_rows() || after.has_rows() {
            return node.refuse_count();
        }
        if before.is(0) && after.is(0) {
            continue;
        }
        node.keep_off(&value, axis)?;
        let dim = node.symbols.sum(before, after);
        let dim = dim.and_then(|pads| node.symbols.sum(&target[axis], &pads));
        target[axis] = dim.ok_or_else(|| node.refusal("computes with the number of rows"))?;
    }
    one(like(&value, target))
}

/// Propagates rows through one-hot encoding, which adds an axis of size `depth`.
pub(super) fn one_hot(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let mut target = node.dims(0)?;
    let axis = node.axis(node.int("axis", -1), target.len() + 1)?;
    let depth = node.elements(1)?.into_iter().next().flatten();
    target.insert(axis, depth.unwrap_or_else(|| node.symbols.dim()));
    let origin = match value.origin {
        Origin::Rows(rows) if axis <= rows => Origin::Rows(rows + 1),
        Origin::Count => return node.refuse_count(),
        origin => origin,
    };
    one(Value {
        origin,
        ..like(&value, target)
    })
}

pub(super) fn top_k(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let mut target = node.dims(0)?;
    let axis = node.axis(node.int("axis", -1), target.len())?;
    node.keep_off(&value, axis)?;
    let count = match node.attribute("k").filter(|_| node.opset < 10) {
        Some(count) => Some(Size::number(count.i)),
        None => node.elements(1)?.into_iter().next().flatten(),
    };
    target[axis] = count.unwrap_or_else(|| node.symbols.dim());
    let result = Item::Tensor(like(&value, target));
    Ok(vec![result.clone(), result])
}

pub(super) fn compress(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let mut target = node.dims(0)?;
    let Some(axis) = node.attribute("axis").map(|axis| axis.i) else {
        return node.refuse("treats its input as one list");
    };
    let axis = node.axis(axis, target.len())?;
    node.keep_off(&value, axis)?;
    target[axis] = node.symbols.dim();
    one(like(&value, target))
}

pub(super) fn reverse_sequence(node: &mut Node<'_>) -> RuleResult {
    let (value, lengths) = (node.input(0)?.clone(), node.input(1)?.clone());
    let dims = node.dims(0)?;
    let time = node.axis(node.int("time_axis", 0), dims.len())?;
    let batch = node.axis(node.int("batch_axis", 1), dims.len())?;
    node.keep_off(&value, time)?;
    let fits = match value.origin {
        Origin::Rows(rows) if rows == batch => lengths.origin == Origin::Rows(0),
        _ => lengths.is_same(),
    };
    if !fits {
        return node.refuse("has lengths of other rows");
    }
    one(like(&value, dims))
}
