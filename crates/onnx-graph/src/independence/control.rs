//! Rules for sequences and for `If`, `Loop` and `Scan`, whose subgraphs are analyzed too.

use super::{
    node::{Follow, Node, RuleResult, one},
    size::{Bounds, Size, Symbols},
    value::{Item, Numbering, Origin, Reason, Value},
};

/// The maximum number of rounds in which the carried values of a loop must reach a fixpoint.
const MAX_ROUNDS: usize = 6;

pub(super) fn branch(node: &mut Node<'_>, follow: &mut dyn Follow) -> RuleResult {
    let condition = node.input(0)?.clone();
    let is_known = condition.numbers().and_then(|numbers| numbers.first().copied());
    let graphs = match (is_known, condition.origin) {
        (Some(0), _) => vec!["else_branch"],
        (Some(_), _) => vec!["then_branch"],
        (None, Origin::Same) => vec!["then_branch", "else_branch"],
        (None, Origin::Count) => return node.refuse("branches on the number of rows"),
        (None, Origin::Rows(_)) => return node.refuse("branches on values of rows"),
    };
    let mut results: Option<Vec<Item>> = None;
    for name in graphs {
        let graph = node.graph(name)?;
        let given = follow.graph(graph, vec![], node.symbols)?;
        results = Some(match results {
            None => given,
            Some(known) => join_all(node, known, given)?,
        });
    }
    // A dimension that differs between the two branches has a fixed value after the `If`.
    Ok(settled_items(node.symbols, &results.unwrap_or_default()))
}

pub(super) fn looped(node: &mut Node<'_>, follow: &mut dyn Follow) -> RuleResult {
    for index in 0..2 {
        if let Some(value) = node.optional(index)?
            && !value.is_same()
        {
            return node.refuse("has an iteration count that depends on rows");
        }
    }
    let body = node.graph("body")?;
    let carried: Vec<Option<Item>> = node.inputs.get(2..).unwrap_or_default().to_vec();
    let Some(mut carried) = carried.into_iter().collect::<Option<Vec<Item>>>() else {
        return node.refuse("lacks a loop-carried value");
    };
    for _ in 0..MAX_ROUNDS {
        let turn = [
            Item::Tensor(Value::same(vec![])),
            Item::Tensor(Value::same(vec![])),
        ];
        let arguments = turn
            .into_iter()
            .chain(settled_items(node.symbols, &carried))
            .collect();
        let mut results = follow.graph(body, arguments, node.symbols)?;
        if results.len() <= carried.len() {
            return node.refuse("has a body with too few outputs");
        }
        let scanned = results.split_off(1 + carried.len());
        if !matches!(&results[0], Item::Tensor(goes_on) if goes_on.is_same()) {
            return node.refuse("has a condition that depends on rows");
        }
        let next = join_all(node, carried.clone(), results.split_off(1))?;
        if next == carried {
            // If there are no iterations, the unknown dimensions of the scan outputs are 0.
            let runs = runs_at_least_once(node)?;
            let count = node
                .optional(0)?
                .and_then(|count| count.content.as_ref()?.first()?.clone());
            let count = node.symbols.bounded_dim(Bounds {
                is_positive: runs,
                most: count.map_or(u128::MAX, |count| node.symbols.most(&count)),
            });
            let stacked = scanned.into_iter().map(|item| {
                let item = stacked(node, item, 0, &count)?;
                match runs {
                    true => Ok(item),
                    false => of_no_iterations(node, item),
                }
            });
            let stacked = stacked.collect::<Vec<_>>();
            let carried = settled_items(node.symbols, &carried);
            return carried.into_iter().map(Ok).chain(stacked).collect();
        }
        carried = next;
    }
    node.refuse("carries a value whose form changes with each iteration")
}

/// Returns the slice of a scanned input that one iteration receives, and the size of the scanned axis.
fn slice_of(node: &Node<'_>, item: &Item, axis: i64) -> Result<(Value, Size), Reason> {
    let Item::Tensor(value) = item else {
        return node.refuse("scans a sequence");
    };
    if value.outer.is_some() || value.numbering != Numbering::None {
        return node.refuse("scans rows in another order, or their indices");
    }
    let Some(mut dims) = value.dims.clone() else {
        return node.refuse("has an input whose number of dimensions is not known");
    };
    let axis = node.axis(axis, dims.len())?;
    node.keep_off(value, axis)?;
    let length = dims.remove(axis);
    let origin = match value.origin {
        Origin::Rows(rows) if rows > axis => Origin::Rows(rows - 1),
        origin => origin,
    };
    let slice = Value {
        dims: Some(dims),
        origin,
        content: None,
        numbering: Numbering::None,
        outer: None,
    };
    Ok((slice, length))
}

pub(super) fn scan(node: &mut Node<'_>, follow: &mut dyn Follow) -> RuleResult {
    if node.opset < 9 {
        return node.refuse("is of an old operator set");
    }
    let body = node.graph("body")?;
    let count = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(usize::MAX);
    let Some(inputs) = node.inputs.iter().cloned().collect::<Option<Vec<Item>>>() else {
        return node.refuse("lacks an input");
    };
    let Some(states) = inputs.len().checked_sub(count) else {
        return node.refuse("has fewer inputs than it scans");
    };
    let (states, scanned) = inputs.split_at(states);
    let axes = node.ints("scan_input_axes").to_vec();
    let mut slices = Vec::with_capacity(count);
    let mut length = None;
    for (index, item) in scanned.iter().enumerate() {
        let (slice, size) = slice_of(node, item, axes.get(index).copied().unwrap_or(0))?;
        length = Some(size);
        slices.push(Item::Tensor(slice));
    }
    let Some(length) = length else {
        return node.refuse("scans nothing");
    };
    let mut states = states.to_vec();
    for _ in 0..MAX_ROUNDS {
        let mut arguments = settled_items(node.symbols, &states);
        arguments.extend_from_slice(&slices);
        let mut results = follow.graph(body, arguments, node.symbols)?;
        if results.len() < states.len() {
            return node.refuse("has a body with too few outputs");
        }
        let outputs = results.split_off(states.len());
        let next = join_all(node, states.clone(), results)?;
        if next == states {
            let axes = node.ints("scan_output_axes").to_vec();
            let mut given = settled_items(node.symbols, &states);
            for (index, item) in outputs.into_iter().enumerate() {
                given.push(stacked(
                    node,
                    item,
                    axes.get(index).copied().unwrap_or(0),
                    &length,
                )?);
            }
            return Ok(given);
        }
        states = next;
    }
    node.refuse("carries a value whose form changes with each iteration")
}

/// Returns whether a loop runs at least once in batched requests, which have no dimensions of size 0.
fn runs_at_least_once(node: &Node<'_>) -> Result<bool, Reason> {
    for index in 0..2 {
        let Some(value) = node.optional(index)? else {
            continue;
        };
        let first = value
            .content
            .as_ref()
            .and_then(|content| content.first()?.as_ref());
        if !first.is_some_and(|first| node.symbols.is_positive(first)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the scan output of a loop that may have no iterations. Its dimensions are unknown, but the same
/// for all requests.
fn of_no_iterations(node: &mut Node<'_>, item: Item) -> Result<Item, Reason> {
    match item {
        Item::Tensor(value) if matches!(value.origin, Origin::Rows(_)) => {
            node.refuse("may have no iterations, and then no rows")
        }
        Item::Tensor(value) => {
            let dims = value
                .dims
                .as_ref()
                .map(|dims| dims.iter().map(|_| node.symbols.dim()).collect());
            Ok(Item::Tensor(Value { dims, ..value }))
        }
        item => Ok(item),
    }
}

/// Returns the results of all iterations stacked along a new axis.
fn stacked(node: &Node<'_>, item: Item, axis: i64, count: &Size) -> Result<Item, Reason> {
    let Item::Tensor(value) = item else {
        return node.refuse("collects sequences");
    };
    if value.outer.is_some() {
        return node.refuse("collects rows in another order");
    }
    let Some(mut dims) = value.dims.clone() else {
        return match value.is_same() {
            true => Ok(Item::Tensor(Value::same_of_any_rank())),
            false => node.refuse("collects values whose number of dimensions is not known"),
        };
    };
    let axis = node.axis(axis, dims.len() + 1)?;
    dims.insert(axis, count.clone());
    let origin = match value.origin {
        Origin::Rows(rows) if axis <= rows => Origin::Rows(rows + 1),
        origin => origin,
    };
    Ok(Item::Tensor(Value {
        dims: Some(dims),
        origin,
        content: None,
        numbering: match value.numbering {
            Numbering::None => Numbering::None,
            _ => Numbering::Mixed,
        },
        outer: None,
    }))
}

fn join_all(node: &mut Node<'_>, these: Vec<Item>, those: Vec<Item>) -> RuleResult {
    if these.len() != those.len() {
        return node.refuse("has graphs with different numbers of outputs");
    }
    these
        .into_iter()
        .zip(those)
        .map(|(this, that)| join(node, this, that))
        .collect()
}

/// Returns the join of two abstract values: the facts that hold for both.
fn join(node: &mut Node<'_>, this: Item, that: Item) -> Result<Item, Reason> {
    match (this, that) {
        (this, that) if this == that => Ok(this),
        (Item::Tensor(this), Item::Tensor(that)) => Ok(Item::Tensor(join_values(node, this, &that)?)),
        (Item::Sequence(None), sequence @ Item::Sequence(_))
        | (sequence @ Item::Sequence(_), Item::Sequence(None)) => Ok(sequence),
        (Item::Sequence(Some(this)), Item::Sequence(Some(that))) => {
            Ok(Item::Sequence(Some(join_values(node, this, &that)?)))
        }
        _ => node.refuse("returns a tensor or a sequence"),
    }
}

fn join_values(node: &mut Node<'_>, this: Value, that: &Value) -> Result<Value, Reason> {
    let origin = match (this.origin, that.origin) {
        (a, b) if a == b => a,
        (Origin::Same | Origin::Count, Origin::Same | Origin::Count) => Origin::Count,
        _ => return node.refuse("returns a value with or without rows"),
    };
    if this.outer != that.outer {
        return node.refuse("combines rows in different orders");
    }
    let dims = match (this.dims, &that.dims) {
        (Some(these), Some(those)) if these.len() == those.len() => {
            let joined = these.into_iter().zip(those).enumerate();
            let joined = joined.map(|(axis, (a, b))| match (a == *b, origin == Origin::Rows(axis)) {
                (true, _) => Ok(a),
                (false, true) => node.refuse("combines rows of different sizes"),
                (false, false) => Ok(Symbols::any()),
            });
            Some(joined.collect::<Result<Vec<Size>, Reason>>()?)
        }
        _ if matches!(origin, Origin::Rows(_)) => {
            return node.refuse("returns values of different ranks");
        }
        _ => None,
    };
    let content = (this.content == that.content).then_some(this.content).flatten();
    let is_alike = this.numbering == that.numbering;
    Ok(Value {
        dims,
        origin,
        content,
        numbering: if is_alike {
            this.numbering
        } else {
            Numbering::Mixed
        },
        outer: this.outer,
    })
}

/// Replaces each dimension that may differ at each use with a new symbol, for a value whose dimensions are
/// fixed from there on.
fn settled(symbols: &mut Symbols, value: &Value) -> Value {
    let dims = value.dims.as_ref();
    Value {
        dims: dims.map(|dims| dims.iter().map(|dim| symbols.settled(dim)).collect()),
        ..value.clone()
    }
}

fn settled_items(symbols: &mut Symbols, items: &[Item]) -> Vec<Item> {
    let settled = |item: &Item| match item {
        Item::Tensor(value) => Item::Tensor(settled(symbols, value)),
        Item::Sequence(_) => item.clone(),
    };
    items.iter().map(settled).collect()
}

pub(super) fn sequence_empty(_: &mut Node<'_>) -> RuleResult {
    Ok(vec![Item::Sequence(None)])
}

pub(super) fn sequence_construct(node: &mut Node<'_>) -> RuleResult {
    let values: Vec<Value> = node.values()?.into_iter().cloned().collect();
    let mut sequence = Item::Sequence(None);
    for value in values {
        sequence = join(node, sequence, Item::Sequence(Some(value)))?;
    }
    Ok(vec![sequence])
}

pub(super) fn sequence_insert(node: &mut Node<'_>) -> RuleResult {
    node.require_same(2)?;
    let sequence = sequence(node)?;
    let value = node.input(1)?.clone();
    Ok(vec![join(node, sequence, Item::Sequence(Some(value)))?])
}

pub(super) fn sequence_at(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    match sequence(node)? {
        Item::Sequence(Some(value)) => one(settled(node.symbols, &value)),
        _ => node.refuse("reads from an empty sequence"),
    }
}

pub(super) fn sequence_erase(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    Ok(vec![sequence(node)?])
}

pub(super) fn sequence_length(node: &mut Node<'_>) -> RuleResult {
    sequence(node)?;
    one(Value::same(vec![]))
}

/// Propagates rows through an operator that concatenates or stacks the tensors of a sequence.
pub(super) fn concat_from_sequence(node: &mut Node<'_>) -> RuleResult {
    let Item::Sequence(Some(value)) = sequence(node)? else {
        return node.refuse("concatenates an empty sequence");
    };
    let value = settled(node.symbols, &value);
    let axis = node.int("axis", 0);
    let count = node.symbols.dim();
    if node.int("new_axis", 0) != 0 {
        return Ok(vec![stacked(node, Item::Tensor(value), axis, &count)?]);
    }
    let Some(mut dims) = value.dims.clone() else {
        return node.refuse("has an input whose number of dimensions is not known");
    };
    let axis = node.axis(axis, dims.len())?;
    node.keep_off(&value, axis)?;
    dims[axis] = count;
    one(super::node::like(&value, dims))
}

pub(super) fn split_to_sequence(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let mut dims = node.dims(0)?;
    let axis = node.axis(node.int("axis", 0), dims.len())?;
    node.keep_off(&value, axis)?;
    let mut origin = value.origin;
    let is_removed = node.int("keepdims", 1) == 0;
    if is_removed && node.optional(1)?.is_some() {
        // With explicit sizes, ONNX keeps the axis, and ONNX Runtime removes the axis if all sizes are 1.
        return node.refuse("returns parts with or without their axis");
    }
    if is_removed {
        dims.remove(axis);
        if let Origin::Rows(rows) = origin
            && rows > axis
        {
            origin = Origin::Rows(rows - 1);
        }
    } else {
        dims[axis] = Symbols::any();
    }
    let part = Value {
        dims: Some(dims),
        origin,
        content: None,
        numbering: Numbering::None,
        outer: None,
    };
    Ok(vec![Item::Sequence(Some(part))])
}

fn sequence(node: &Node<'_>) -> Result<Item, Reason> {
    match node.inputs.first() {
        Some(Some(item @ Item::Sequence(_))) => Ok(item.clone()),
        _ => node.refuse("takes a sequence"),
    }
}
