//! Rules for attention and for recurrent layers, whose rows lie on axis 1 unless the layout says otherwise.

use tensor_core::QuotedName;

use super::{
    elementwise::broadcast_of,
    node::{Node, RuleResult, like, one},
    size::Size,
    value::{Item, Origin, Reason, Value},
};

/// Propagates rows through `RNN`, `GRU` and `LSTM`.
pub(super) fn recurrent(node: &mut Node<'_>) -> RuleResult {
    for index in [1, 2, 3, 7] {
        node.require_same_input(index)?;
    }
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let is_batch_first = node.int("layout", 0) != 0;
    let (time, batch) = if is_batch_first { (1, 0) } else { (0, 1) };
    if dims.len() != 3 {
        return node.refuse("takes three dimensions");
    }
    node.keep_off(&value, time)?;
    node.keep_off(&value, 2)?;
    let state_axis = if is_batch_first { 0 } else { 1 };
    check_states(node, &value, state_axis)?;
    let hidden = match node.dims(2)?.last() {
        Some(hidden) => hidden.clone(),
        None => return node.refuse("has no recurrent weights"),
    };
    let directions = Size::number(if node.text("direction", "forward") == "bidirectional" {
        2
    } else {
        1
    });
    let (steps, rows) = (dims[time].clone(), dims[batch].clone());
    let (all, state) = match is_batch_first {
        true => (
            vec![rows.clone(), steps, directions.clone(), hidden.clone()],
            vec![rows, directions, hidden],
        ),
        false => (
            vec![steps, directions.clone(), rows.clone(), hidden.clone()],
            vec![directions, rows, hidden],
        ),
    };
    let at = |dims: Vec<Size>, axis: usize| {
        let value = like(&value, dims);
        Item::Tensor(match value.origin {
            Origin::Rows(_) => Value {
                origin: Origin::Rows(axis),
                ..value
            },
            _ => value,
        })
    };
    let all = at(all, if is_batch_first { 0 } else { 2 });
    let state = at(state, state_axis);
    Ok(vec![all, state.clone(), state])
}

/// Checks that the rows of the sequence lengths are on axis 0, and those of the initial states on
/// `state_axis`, if `value`, the input, has rows.
fn check_states(node: &mut Node<'_>, value: &Value, state_axis: usize) -> Result<(), Reason> {
    for (index, axis) in [(4, 0), (5, state_axis), (6, state_axis)] {
        let Some(state) = node.optional(index)? else {
            continue;
        };
        let wanted = match value.origin {
            Origin::Rows(_) => Origin::Rows(axis),
            origin => origin,
        };
        let is_input_of_cells = index < 6 || node.proto.op_type.ends_with("LSTM");
        if is_input_of_cells && state.origin != wanted {
            return node.refuse(format_args!(
                "has a state {} whose rows are not on axis {axis}",
                QuotedName(&node.proto.input[index])
            ));
        }
    }
    Ok(())
}

/// Refuses inputs that depend on the request's rows, since the operator computes one quantization scale for
/// all rows.
pub(super) fn scaled_together(node: &mut Node<'_>) -> RuleResult {
    node.refuse("takes a scale over all rows")
}

pub(super) fn random(node: &mut Node<'_>) -> RuleResult {
    node.refuse("is random")
}

/// Checks that the inputs at `indices` have their rows along axis 0, with the same count as the first input,
/// if that has rows.
fn by_batch(node: &Node<'_>, indices: &[usize]) -> Result<(), Reason> {
    let rows = node.input(0)?;
    for &index in indices {
        let Some(value) = node.optional(index)? else {
            continue;
        };
        let same_rows = || {
            let first = |value: &Value| value.dims.as_ref().and_then(|dims| dims.first().cloned());
            first(value) == first(rows)
        };
        let fits = match rows.origin {
            Origin::Rows(0) => value.origin == Origin::Rows(0) && same_rows(),
            Origin::Same => value.is_same(),
            _ => false,
        };
        if !fits {
            return node.refuse(format_args!(
                "has an input {} whose rows are not on axis 0",
                QuotedName(&node.proto.input[index])
            ));
        }
    }
    Ok(())
}

/// Checks that the masks and biases at `indices` have one row per batch entry, or are shared by all of them.
fn by_batch_or_shared(node: &Node<'_>, indices: &[usize], ranks: &[usize]) -> Result<(), Reason> {
    for &index in indices {
        let Some(value) = node.optional(index)? else {
            continue;
        };
        let is_shared = || {
            let dims = value.dims.as_deref().unwrap_or_default();
            value.dims.is_some() && (dims.len() < 4 || dims[0].is(1))
        };
        let is_known = value.rank().is_some_and(|rank| ranks.contains(&rank));
        match (node.input(0)?.origin, value.origin) {
            (Origin::Rows(0), Origin::Rows(0)) if is_known => by_batch(node, &[index])?,
            (_, Origin::Same) if is_shared() || node.input(0)?.is_same() => {}
            _ => {
                return node.refuse(format_args!(
                    "has an input {} whose rows are not on axis 0",
                    QuotedName(&node.proto.input[index])
                ));
            }
        }
    }
    Ok(())
}

/// Returns the abstract value of a tensor of rank `rank` that has the rows of the first input along axis 0.
fn of_rank(node: &mut Node<'_>, rank: usize) -> Result<Item, Reason> {
    let value = node.input(0)?.clone();
    let mut dims = vec![match node.dims(0)?.first() {
        Some(rows) => rows.clone(),
        None => return node.refuse("takes a scalar"),
    }];
    for _ in 1..rank {
        dims.push(node.symbols.dim());
    }
    Ok(Item::Tensor(like(&value, dims)))
}

/// Propagates rows through ONNX's `Attention`, whose inputs are queries, keys, values, a mask, and past keys
/// and values.
pub(super) fn attention(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 1, 2, 4, 5, 6])?;
    by_batch_or_shared(node, &[3], &[4])?;
    let rank = node.dims(0)?.len();
    let output = attended(node, rank)?;
    let cache = of_rank(node, 4)?;
    Ok(vec![output, cache.clone(), cache.clone(), cache])
}

/// Returns the abstract value of the attention output, which has the same length as the queries.
fn attended(node: &mut Node<'_>, rank: usize) -> Result<Item, Reason> {
    let mut dims = node.dims(0)?;
    let last = node.axis(-1, rank)?;
    dims[last] = node.symbols.dim();
    let value = node.input(0)?.clone();
    Ok(Item::Tensor(like(&value, dims)))
}

/// Propagates rows through `com.microsoft.Attention`, whose inputs are the rows, weights, a bias, a mask of
/// rank 1 or 2, and `past` with its rows on axis 1.
pub(super) fn contributed_attention(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0])?;
    node.require_same_input(1)?;
    node.require_same_input(2)?;
    by_batch(node, &[3, 6])?;
    by_batch_or_shared(node, &[5], &[4])?;
    let past = node.optional(4)?.map(|past| past.origin);
    let first = node.input(0)?.origin;
    let fits = match (first, past) {
        (_, None) | (Origin::Same, Some(Origin::Same)) => true,
        (Origin::Rows(0), Some(past)) => past == Origin::Rows(1),
        _ => false,
    };
    if !fits {
        return node.refuse("has earlier words whose rows are not on axis 1");
    }
    let weights = node.dims(1)?.get(1).cloned();
    let mut dims = node.dims(0)?;
    let last = node.axis(-1, dims.len())?;
    let are_alike = node.ints("qkv_hidden_sizes").is_empty();
    let hidden = weights
        .filter(|_| are_alike)
        .and_then(|weights| weights.over(&Size::number(3)));
    dims[last] = hidden.unwrap_or_else(|| node.symbols.dim());
    let value = node.input(0)?.clone();
    let output = Item::Tensor(like(&value, dims.clone()));
    let mut present = vec![Size::number(2), dims[0].clone()];
    for _ in 0..3 {
        present.push(node.symbols.dim());
    }
    let present = match value.origin {
        Origin::Rows(_) => Value::rows(present, 1),
        _ => like(&value, present),
    };
    Ok(vec![output, Item::Tensor(present)])
}

/// Propagates rows through `QAttention`, whose scales follow the bias and whose zero points follow the mask.
pub(super) fn quantized_attention(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 5])?;
    for index in [1, 2, 3, 4, 6, 7, 8] {
        node.require_same_input(index)?;
    }
    if node.optional(8)?.is_some() && node.input(0)?.row_axis().is_some() {
        return node.refuse("has earlier words that are the same for all rows");
    }
    let output = attended(node, 3)?;
    Ok(vec![output])
}

/// Propagates rows through `MultiHeadAttention`, whose inputs are queries, keys, values, a bias, a mask of
/// rank 1 to 3, an attention bias, past keys and values, their length, and beam indices.
pub(super) fn multi_head_attention(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 1, 2, 4, 6, 7])?;
    node.require_same_input(3)?;
    by_batch_or_shared(node, &[5], &[4])?;
    node.require_same_input(8)?;
    without_beams(node, 9)?;
    attended_by_heads(node)
}

/// Propagates rows through `DecoderMaskedMultiHeadAttention`, whose inputs are queries, keys, values, a mask,
/// an attention bias, past keys and values, their length, the beam width, beam indices, and a bias.
pub(super) fn decoder_attention(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 1, 2, 3, 5, 6])?;
    by_batch_or_shared(node, &[4], &[4])?;
    for index in [7, 8, 10] {
        node.require_same_input(index)?;
    }
    without_beams(node, 9)?;
    attended_by_heads(node)
}

/// Refuses beam indices (input `index`) if the inputs have rows, since a beam reads rows of other beams.
fn without_beams(node: &Node<'_>, index: usize) -> Result<(), Reason> {
    match node.optional(index)? {
        Some(_) if !node.input(0)?.is_same() => node.refuse("takes rows of other beams"),
        Some(beams) if !beams.is_same() => node.require_same_input(index),
        _ => Ok(()),
    }
}

fn attended_by_heads(node: &mut Node<'_>) -> RuleResult {
    let mut dims = node.dims(0)?;
    if dims.len() != 3 {
        return node.refuse("takes three dimensions");
    }
    let is_alike = match node.optional(2)? {
        Some(values) if values.rank() == Some(3) => {
            values.dims.as_ref().and_then(|dims| dims.last()) == dims.last()
        }
        Some(_) | None => false,
    };
    if !is_alike {
        dims[2] = node.symbols.dim();
    }
    let value = node.input(0)?.clone();
    let cache = of_rank(node, 4)?;
    let output = Item::Tensor(like(&value, dims));
    Ok(vec![output, cache.clone(), cache.clone(), cache])
}

/// Propagates rows through grouped-query attention. Sequence lengths are per row; the maximum length is
/// shared by all requests.
pub(super) fn grouped_attention(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 1, 2, 3, 4, 5, 9])?;
    node.require_same_input(6)?;
    node.require_same_input(7)?;
    node.require_same_input(8)?;
    by_batch_or_shared(node, &[10], &[4])?;
    node.require_same(11)?;
    let rank = node.dims(0)?.len();
    let output = match node.optional(1)? {
        Some(_) => {
            let value = node.input(0)?.clone();
            let dims = node.dims(0)?;
            Item::Tensor(like(&value, dims))
        }
        None => attended(node, rank)?,
    };
    let cache = of_rank(node, 4)?;
    Ok(vec![output, cache.clone(), cache])
}

/// Propagates rows through `TensorScatter`: a row of the cache is overwritten by the same row of the update.
pub(super) fn tensor_scatter(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 1])?;
    match node.optional(2)? {
        Some(positions) if !positions.is_same() => by_batch(node, &[2])?,
        Some(_) if !node.input(0)?.is_same() => return node.refuse("has positions without rows"),
        _ => {}
    }
    let value = node.input(0)?.clone();
    one(Value {
        content: None,
        ..value
    })
}

/// Propagates rows through linear attention, which has one state per row.
pub(super) fn linear_attention(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 1, 2, 3, 4, 5])?;
    let output = attended(node, 3)?;
    Ok(vec![output, of_rank(node, 4)?])
}

/// Propagates rows through `CausalConvWithState`, whose inputs are the rows, weights, a bias, and one state
/// per row.
pub(super) fn causal_conv(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 3])?;
    node.require_same_input(1)?;
    node.require_same_input(2)?;
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let state = of_rank(node, dims.len())?;
    Ok(vec![Item::Tensor(like(&value, dims)), state])
}

/// Propagates rows through `DeformConv`, whose inputs are images, weights, offsets, a bias and a mask.
pub(super) fn deform_conv(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 2, 4])?;
    node.require_same_input(1)?;
    node.require_same_input(3)?;
    let filters = node.dims(1)?.first().cloned();
    let Item::Tensor(value) = of_rank(node, 4)? else {
        return node.refuse("takes a sequence");
    };
    let mut dims = value.dims.clone().unwrap_or_default();
    if let (Some(filters), Some(dim)) = (filters, dims.get_mut(1)) {
        *dim = filters;
    }
    one(like(&value, dims))
}

/// Propagates rows through a mixture of experts: tokens are independent, and the router has one row per
/// token. With three dimensions, tokens are not rows.
pub(super) fn experts(node: &mut Node<'_>) -> RuleResult {
    if node.dims(0)?.len() == 2 {
        by_batch(node, &[0, 1, 14])?;
    } else {
        node.require_same(0)?;
    }
    for index in 2..14 {
        node.require_same_input(index)?;
    }
    let value = node.input(0)?.clone();
    one(Value {
        content: None,
        ..value
    })
}

/// Checks that positions or tables without rows apply to all rows: they are a vector, or have size 1 along
/// axis 0.
fn for_all_rows(node: &Node<'_>, index: usize) -> Result<(), Reason> {
    let Some(value) = node.optional(index)? else {
        return Ok(());
    };
    let is_one = match value.dims.as_deref() {
        Some(dims) => dims.len() < 2 || dims[0].is(1) && !node.proto.op_type.contains("Rotary"),
        None => false,
    };
    match is_one || node.input(0)?.is_same() {
        true => Ok(()),
        false => node.refuse("has positions without rows"),
    }
}

/// Propagates rows through ONNX's `RotaryEmbedding`, whose tables precede the positions.
pub(super) fn rotary(node: &mut Node<'_>) -> RuleResult {
    rotated(node, 3)
}

pub(super) fn contributed_rotary(node: &mut Node<'_>) -> RuleResult {
    if node.int("is_packed_batching", 0) != 0 {
        return node.refuse("takes a packed batch");
    }
    rotated(node, 1)
}

fn rotated(node: &mut Node<'_>, positions: usize) -> RuleResult {
    by_batch(node, &[0])?;
    for index in [1, 2, 3] {
        if index != positions {
            let tables = node.optional(index)?;
            let by_position = node.optional(positions)?.is_some() || positions == 1;
            if by_position || tables.is_some_and(Value::is_same) {
                node.require_same_input(index)?;
                if !by_position {
                    for_all_rows(node, index)?;
                }
            } else {
                by_batch(node, &[index])?;
            }
        }
    }
    match node.optional(positions)? {
        Some(value) if !value.is_same() => by_batch(node, &[positions])?,
        Some(_) => for_all_rows(node, positions)?,
        None => {}
    }
    let value = node.input(0)?.clone();
    one(Value {
        content: None,
        ..value
    })
}

/// Propagates rows through word, position and segment embeddings. The second output is the number of unmasked
/// words per row.
pub(super) fn embed_layer_normalization(node: &mut Node<'_>) -> RuleResult {
    by_batch(node, &[0, 1, 7])?;
    for index in [2, 3, 4, 5, 6] {
        node.require_same_input(index)?;
    }
    match node.optional(8)? {
        Some(positions) if !positions.is_same() => by_batch(node, &[8])?,
        Some(_) => for_all_rows(node, 8)?,
        None => {}
    }
    let value = node.input(0)?.clone();
    let mut dims = node.dims(0)?;
    let rows = dims.first().cloned();
    let width = node.dims(2)?.last().cloned();
    dims.push(width.unwrap_or_else(|| node.symbols.dim()));
    let embedded = Item::Tensor(like(&value, dims));
    let counts = Item::Tensor(like(&value, rows.into_iter().collect()));
    Ok(vec![embedded.clone(), counts, embedded])
}

/// Propagates rows through a gated activation, which halves the size of the last axis.
pub(super) fn halved(node: &mut Node<'_>) -> RuleResult {
    let values: Vec<Value> = node.values()?.into_iter().cloned().collect();
    let sum = broadcast_of(node, &values)?;
    let Some(mut dims) = sum.dims.clone() else {
        return node.refuse("has an input whose number of dimensions is not known");
    };
    let last = node.axis(-1, dims.len())?;
    node.keep_off(&sum, last)?;
    let half = dims[last].over(&Size::number(2));
    dims[last] = half.unwrap_or_else(|| node.symbols.dim());
    one(like(&sum, dims))
}

/// Propagates rows through `GatherBlockQuantized`, which looks up rows in a table of packed quantized
/// numbers.
pub(super) fn packed_gather(node: &mut Node<'_>) -> RuleResult {
    node.require_same_input(0)?;
    node.require_same(2)?;
    let indices = node.input(1)?.clone();
    let (table, mut dims) = (node.dims(0)?, node.dims(1)?);
    let axis = node.axis(node.int("gather_axis", 0), table.len())?;
    if axis != 0 {
        return node.refuse("gathers from a table along another axis than 0");
    }
    for _ in 1..table.len() {
        dims.push(node.symbols.dim());
    }
    one(like(&indices, dims))
}
