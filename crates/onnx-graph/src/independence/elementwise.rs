//! Rules for elementwise operators, whose inputs are broadcast.

use super::{
    node::{Node, RuleResult, one},
    size::{Bounds, Size, Symbols},
    value::{Item, MAX_CONTENT, Numbering, Origin, Reason, Value},
};
use crate::proto::tensor_proto::DataType;

/// Propagates rows through an elementwise operator that broadcasts all inputs.
pub(super) fn broadcast(node: &mut Node<'_>) -> RuleResult {
    legacy_axis(node)?;
    let values: Vec<Value> = node.values()?.into_iter().cloned().collect();
    let mut result = broadcast_of(node, &values)?;
    if result.rank().is_some_and(|rank| rank <= 1) {
        follow_content(node, &values, &mut result);
    }
    one(result)
}

/// Propagates rows through an elementwise operator that broadcasts all other inputs to the shape of the
/// first.
pub(super) fn onto_first(node: &mut Node<'_>) -> RuleResult {
    let values: Vec<Value> = node.values()?.into_iter().cloned().collect();
    let (Some(first), others) = (values.first(), values.get(1..).unwrap_or_default()) else {
        return node.refuse("lacks its input 0");
    };
    let mut result = first.clone();
    for other in others {
        result = onto(node, &result, other)?;
    }
    one(Value {
        content: None,
        ..result
    })
}

/// Returns `value`, to which `added` is broadcast. Fails if only `added` has rows, which would be lost.
pub(super) fn onto(node: &mut Node<'_>, value: &Value, added: &Value) -> Result<Value, Reason> {
    let result = broadcast_of(node, &[value.clone(), added.clone()])?;
    let is_alike = (value.origin, value.rank()) == (result.origin, result.rank());
    match result.row_axis().is_none() || is_alike {
        true => Ok(result),
        false => node.refuse("adds rows to a tensor without rows"),
    }
}

/// Propagates rows through an elementwise operator on the first input. All other inputs are parameters,
/// shared by all requests.
pub(super) fn first(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    one(Value {
        content: None,
        ..value
    })
}

/// Propagates rows through `CastLike`, for which only the type of the second input matters.
pub(super) fn cast_like(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    one(Value {
        content: None,
        ..value
    })
}

/// Propagates rows through an operator that returns the first input unchanged, regardless of the others.
pub(super) fn identity(node: &mut Node<'_>) -> RuleResult {
    match node.inputs.first() {
        Some(Some(item)) => Ok(vec![item.clone()]),
        _ => node.refuse("lacks its input 0"),
    }
}

/// Propagates rows through `Dropout`, which returns the input and a mask of `true` in inference.
pub(super) fn dropout(node: &mut Node<'_>) -> RuleResult {
    let trains = match node.optional(2)? {
        Some(value) => value.numbers() != Some(vec![0]),
        None => node.opset < 7 && node.int("is_test", 0) == 0,
    };
    if trains {
        return node.refuse("may be in training mode, where it is random");
    }
    let value = node.input(0)?.clone();
    let mask = Value {
        content: None,
        ..value.clone()
    };
    Ok(vec![Item::Tensor(value), Item::Tensor(mask)])
}

/// Propagates rows through a binary operator on quantized tensors: each of the two inputs and the result have
/// a scale and a zero point.
pub(super) fn quantized_pair(node: &mut Node<'_>) -> RuleResult {
    for index in [1, 2, 4, 5, 6, 7] {
        node.require_same_input(index)?;
    }
    let pair = [node.input(0)?.clone(), node.input(3)?.clone()];
    one(broadcast_of(node, &pair)?)
}

/// Propagates rows through `QLinearWhere`: a condition and two quantized tensors, each of which has a scale
/// and a zero point.
pub(super) fn quantized_choice(node: &mut Node<'_>) -> RuleResult {
    for index in [2, 3, 5, 6, 7, 8] {
        node.require_same_input(index)?;
    }
    let values = [
        node.input(0)?.clone(),
        node.input(1)?.clone(),
        node.input(4)?.clone(),
    ];
    one(broadcast_of(node, &values)?)
}

/// Propagates rows through quantization. There is one scale for all elements, or one per index of the
/// attribute `axis`.
pub(super) fn quantize(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let scale = node.input(1)?;
    let is_shared = node.int("block_size", 0) == 0
        && scale
            .dims
            .as_ref()
            .is_some_and(|dims| dims.iter().all(|dim| dim.is(1)));
    if let (false, Some(rows)) = (is_shared, value.row_axis()) {
        let rank = node.dims(0)?.len();
        let of_blocks = scale.rank() != Some(1);
        let of_rows = scale.dims.as_ref().and_then(|dims| dims.get(rows));
        if of_blocks && (scale.rank() != Some(rank) || !of_rows.is_some_and(|dim| dim.is(1))) {
            return node.refuse("has scales for blocks of rows");
        }
        let axis = node.axis(node.int("axis", 1), rank)?;
        node.keep_off(&value, axis)?;
    }
    one(Value {
        content: None,
        ..value
    })
}

/// Returns the result of NumPy broadcasting.
pub(super) fn broadcast_of(node: &mut Node<'_>, values: &[Value]) -> Result<Value, Reason> {
    if let [value] = values {
        return Ok(Value {
            content: None,
            ..value.clone()
        });
    }
    let has_rows = values.iter().any(|value| value.row_axis().is_some());
    let counts = values.iter().any(|value| value.origin == Origin::Count);
    if has_rows && counts {
        return node.refuse_count();
    }
    let dims: Option<Vec<Vec<Size>>> = values.iter().map(|value| value.dims.clone()).collect();
    let Some(dims) = dims else {
        if has_rows {
            return node.refuse("has an input whose number of dimensions is not known");
        }
        let origin = if counts { Origin::Count } else { Origin::Same };
        return Ok(Value {
            origin,
            ..Value::same_of_any_rank()
        });
    };
    let result = broadcast_dims(node, &dims)?;
    let origin = match rows_from_end(node, values, &dims)? {
        Some(from_end) => Origin::Rows(result.len() - from_end),
        None if counts => Origin::Count,
        None => Origin::Same,
    };
    Ok(Value {
        dims: Some(result),
        origin,
        content: None,
        numbering: Numbering::None,
        outer: None,
    })
}

/// Returns the row axis, counted from the end (the last axis is 1). All values with rows must agree on it.
fn rows_from_end(node: &Node<'_>, values: &[Value], dims: &[Vec<Size>]) -> Result<Option<usize>, Reason> {
    let mut found = None;
    for (value, dims) in values.iter().zip(dims) {
        let Some(axis) = value.row_axis() else {
            continue;
        };
        let from_end = dims.len() - axis;
        if found.is_some_and(|found| found != from_end) {
            return node.refuse("combines rows on different axes");
        }
        found = Some(from_end);
    }
    let Some(from_end) = found else {
        return Ok(None);
    };
    let at = |dims: &[Size]| {
        dims.len()
            .checked_sub(from_end)
            .and_then(|index| dims.get(index).cloned())
    };
    let mut of_rows = None;
    for (value, dims) in values.iter().zip(dims) {
        let dim = at(dims);
        match value.row_axis() {
            Some(_) if of_rows.is_some() && of_rows != dim => {
                return node.refuse("combines rows of different sizes");
            }
            Some(_) => of_rows = dim,
            None if dim.is_none_or(|dim| dim.is(1)) => {}
            None => return node.refuse("adds a tensor without rows along the axis of the rows"),
        }
    }
    Ok(Some(from_end))
}

fn broadcast_dims(node: &mut Node<'_>, dims: &[Vec<Size>]) -> Result<Vec<Size>, Reason> {
    let rank = dims.iter().map(Vec::len).max().unwrap_or(0);
    let mut result = Vec::with_capacity(rank);
    for from_end in (1..=rank).rev() {
        let mut all = dims
            .iter()
            .filter_map(|dims| dims.len().checked_sub(from_end).and_then(|index| dims.get(index)));
        let mut dim = all.next().cloned().unwrap_or_else(|| Size::number(1));
        for other in all {
            dim = joint(node.symbols, &dim, other)
                .ok_or_else(|| node.refusal("combines the axis of rows with another dimension"))?;
        }
        result.push(dim);
    }
    Ok(result)
}

/// Returns the size of two dimensions after broadcasting.
pub(super) fn joint(symbols: &mut Symbols, a: &Size, b: &Size) -> Option<Size> {
    match (a.as_number(), b.as_number()) {
        _ if a == b && a.is_any() => Some(symbols.dim()),
        _ if a == b => Some(a.clone()),
        (Some(1), _) => Some(b.clone()),
        (_, Some(1)) => Some(a.clone()),
        // A size other than 1 determines the result: the other size is equal or 1.
        (Some(_), _) => (!b.has_rows()).then(|| a.clone()),
        (_, Some(_)) => (!a.has_rows()).then(|| b.clone()),
        _ => {
            let mut arguments = vec![a.clone(), b.clone()];
            arguments.sort();
            let bounds = Bounds {
                is_positive: symbols.is_positive(a) && symbols.is_positive(b),
                most: symbols.most(a).max(symbols.most(b)),
            };
            symbols.bounded_dim_of("broadcast", arguments, bounds)
        }
    }
}

/// Refuses the attribute `axis`, which aligns the second input in operator sets before 7.
fn legacy_axis(node: &Node<'_>) -> Result<(), Reason> {
    let is_legacy = node.opset < 7 && node.proto.domain.is_empty();
    match is_legacy && node.attribute("axis").is_some() {
        true => node.refuse("broadcasts in the way of an old operator set"),
        false => Ok(()),
    }
}

/// Tracks the elements of small integer tensors through the operator.
fn follow_content(node: &mut Node<'_>, values: &[Value], result: &mut Value) {
    let is_followed = values.iter().any(|value| value.content.is_some());
    let length = match result.dims.as_deref() {
        Some([]) => Some(1),
        Some([length]) => length.as_number().and_then(|length| usize::try_from(length).ok()),
        _ => None,
    };
    let length = length.filter(|length| *length <= MAX_CONTENT);
    let (true, Some(length)) = (is_followed, length) else {
        return;
    };
    let elements: Option<Vec<Vec<Option<Size>>>> =
        values.iter().map(|value| value.elements(node.symbols)).collect();
    let Some(elements) = elements else {
        return;
    };
    let operator = node.proto.op_type.as_str();
    let to = node.int("to", 0);
    let width = node.width;
    let content: Vec<Option<Size>> = (0..length)
        .map(|index| {
            let at = |elements: &Vec<Option<Size>>| {
                let index = if elements.len() == 1 { 0 } else { index };
                elements.get(index).cloned().flatten()
            };
            let arguments: Vec<Option<Size>> = elements.iter().map(at).collect();
            element(node.symbols, operator, to, width, &arguments)
        })
        .collect();
    *result = Value::integers(content, result.rank() == Some(0));
}

/// Computes one element of the result; `None` if it is unknown. `to` is the target type of a cast. `width` is
/// the maximum of the integer type in which the node computes.
fn element(
    symbols: &mut Symbols,
    operator: &str,
    to: i64,
    width: u128,
    arguments: &[Option<Size>],
) -> Option<Size> {
    if let ("Where", [Some(condition), then, other]) = (operator, arguments) {
        return match condition.as_number() {
            Some(0) => other.clone(),
            Some(_) => then.clone(),
            None => by_number(symbols, operator, &known(arguments)?),
        };
    }
    let arguments = known(arguments)?;
    if let ("Cast", [a]) = (operator, arguments.as_slice()) {
        return cast(symbols, a, to);
    }
    if let Some(is_less) = compared(symbols, operator, &arguments) {
        return Some(Size::number(i64::from(is_less)));
    }
    // The rules below hold only for integers: floating-point results are rounded, and NaN differs from
    // itself.
    let are_integers = arguments.iter().all(|argument| symbols.is_integer(argument));
    let computed = match (operator, arguments.as_slice()) {
        _ if !are_integers => unknown(symbols, &arguments),
        ("Add", [a, b]) => symbols.sum(a, b),
        ("Sub", [a, b]) => symbols.difference(a, b),
        ("Mul", [a, b]) => symbols.product(a, b),
        ("Div", [a, b]) => symbols.quotient(a, b),
        ("Equal", [a, b]) if a == b && !a.is_any() => Some(Size::number(1)),
        ("Equal", [a, b]) if differ(symbols, a, b) => Some(Size::number(0)),
        ("Max" | "Min", [a, rest @ ..]) if rest.iter().all(|b| a == b) => Some(a.clone()),
        (_, numbers) => by_number(symbols, operator, numbers),
    };
    // A result out of range may wrap around.
    match computed {
        Some(size) if symbols.most(&size) > width => unknown(symbols, &arguments),
        computed => computed,
    }
}

/// Converts a number to another type. Casts to INT64 and INT32, the types of sizes, leave an integer in the
/// type's range unchanged.
fn cast(symbols: &mut Symbols, number: &Size, to: i64) -> Option<Size> {
    const SIZES: [i64; 2] = [DataType::Int64 as i64, DataType::Int32 as i64];
    const FLOATS: [i64; 2] = [DataType::Float as i64, DataType::Double as i64];
    let is_bool = to == DataType::Bool as i64;
    match number.as_number() {
        _ if to == SIZES[0] => symbols.as_integer(number),
        _ if to == SIZES[1] => symbols.as_narrow(number),
        Some(number) if FLOATS.contains(&to) && number.unsigned_abs() <= 1 << 24 => {
            Some(symbols.float(number))
        }
        Some(number) if is_bool => Some(Size::number(i64::from(number != 0))),
        None if FLOATS.contains(&to) => symbols.as_real(number),
        _ => unknown(symbols, std::slice::from_ref(number)),
    }
}

/// Returns an unknown number that depends on `arguments`, or `None` if an argument depends on the row count.
fn unknown(symbols: &mut Symbols, arguments: &[Size]) -> Option<Size> {
    let is_same = !arguments.iter().any(Size::has_rows);
    is_same.then(|| symbols.real())
}

fn known(arguments: &[Option<Size>]) -> Option<Vec<Size>> {
    arguments.iter().cloned().collect()
}

/// Returns whether two sizes are known to be different.
fn differ(symbols: &Symbols, a: &Size, b: &Size) -> bool {
    let is_negative = |size: &Size| size.as_number().is_some_and(|number| number < 0);
    match (a.as_number(), b.as_number()) {
        (Some(a), Some(b)) => a != b,
        _ => is_negative(a) && symbols.is_natural(b) || is_negative(b) && symbols.is_natural(a),
    }
}

/// Evaluates an operator on literal numbers. Other arguments give a new symbol, or `None` if they depend on
/// the row count.
fn by_number(symbols: &mut Symbols, operator: &str, arguments: &[Size]) -> Option<Size> {
    let numbers: Option<Vec<i64>> = arguments.iter().map(Size::as_number).collect();
    let computed = numbers.and_then(|numbers| of_numbers(operator, &numbers));
    computed.map(Size::number).or_else(|| unknown(symbols, arguments))
}

/// Compares two floating-point numbers that are literal integers, or 0 and a number known to be at least 1.
/// Returns `None` if the result is unknown.
fn compared(symbols: &Symbols, operator: &str, arguments: &[Size]) -> Option<bool> {
    let (("Less", [less, more]) | ("Greater", [more, less])) = (operator, arguments) else {
        return None;
    };
    let literal = |size: &Size| symbols.as_float(size);
    if let (Some(less), Some(more)) = (literal(less), literal(more)) {
        return Some(less < more);
    }
    let is_zero = less.is(0) || literal(less) == Some(0);
    (is_zero && symbols.is_positive(more)).then_some(true)
}

fn of_numbers(operator: &str, numbers: &[i64]) -> Option<i64> {
    match (operator, numbers) {
        ("Abs", [a]) => a.checked_abs(),
        ("And", [a, b]) => Some(i64::from(*a != 0 && *b != 0)),
        ("Equal", [a, b]) => Some(i64::from(a == b)),
        ("Greater", [a, b]) => Some(i64::from(a > b)),
        ("GreaterOrEqual", [a, b]) => Some(i64::from(a >= b)),
        ("Less", [a, b]) => Some(i64::from(a < b)),
        ("LessOrEqual", [a, b]) => Some(i64::from(a <= b)),
        ("Max", [a, b]) => Some(*a.max(b)),
        ("Min", [a, b]) => Some(*a.min(b)),
        // Implementations of the remainder differ in its sign, so negative operands are not evaluated.
        ("Mod", [a, b]) if *a >= 0 && *b > 0 => a.checked_rem(*b),
        ("Neg", [a]) => a.checked_neg(),
        ("Not", [a]) => Some(i64::from(*a == 0)),
        ("Or", [a, b]) => Some(i64::from(*a != 0 || *b != 0)),
        _ => None,
    }
}
