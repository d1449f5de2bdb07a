//! Operators on sequences of tensors and on optional values.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::steps::{
    rows,
    values::{Failure, Slot, Value, Values, Wires},
};
use onnx_tensor::{
    axis,
    cancelling::Pace,
    elements::scalar,
    faults::BadInput,
    node::Attributes,
    node::Node,
    room::Room,
    size::{self, MAX_BYTES},
};

/// Maximum number of tensors in a sequence.
const MAX_LENGTH: usize = 1 << 20;

/// Operators on sequences and optional values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SequenceOp {
    Empty,
    Construct,
    Insert,
    Erase,
    At,
    Length,
    Concat { axis: i64, is_new: bool },
    Split { axis: i64, keeps: bool },
    Optional,
    GetElement,
    HasElement,
}

impl SequenceOp {
    pub(crate) fn of(node: &Node) -> Result<Option<Self>> {
        let attributes = Attributes(node);
        Ok(Some(match node.op_type.as_str() {
            "SequenceEmpty" => Self::Empty,
            "SequenceConstruct" => Self::Construct,
            "SequenceInsert" => Self::Insert,
            "SequenceErase" => Self::Erase,
            "SequenceAt" => Self::At,
            "SequenceLength" => Self::Length,
            "ConcatFromSequence" => Self::Concat {
                axis: attributes.int("axis", 0),
                is_new: attributes.int("new_axis", 0) != 0,
            },
            "SplitToSequence" => Self::Split {
                axis: attributes.int("axis", 0),
                keeps: attributes.flag("keepdims", true)?,
            },
            "Optional" => Self::Optional,
            "OptionalGetElement" => Self::GetElement,
            "OptionalHasElement" => Self::HasElement,
            _ => return Ok(None),
        }))
    }

    /// Runs the operator on the values of its inputs, and stores its outputs.
    pub(crate) fn run(self, wires: &Wires, values: &mut Values<'_>) -> Result<(), Failure> {
        let value = match self {
            Self::Empty => Value::Sequence(Arc::default()),
            Self::Construct => {
                let slots = wires.inputs.iter().flatten();
                let tensors = slots
                    .map(|&slot| values.tensor(slot))
                    .collect::<Result<Vec<_>, _>>()?;
                values.room.ask(bytes(&tensors))?;
                sequence(tensors)?
            }
            Self::Insert => {
                let tensors = values.sequence(given(wires, 0)?)?;
                let tensor = values.tensor(given(wires, 1)?)?;
                values.room.ask(bytes(&tensors) + size::of_listed(&tensor))?;
                let mut tensors = (*tensors).clone();
                let at = position(values, wires, 2, tensors.len(), tensors.len() + 1)?;
                tensors.insert(at, tensor);
                sequence(tensors)?
            }
            Self::Erase => {
                let tensors = values.sequence(given(wires, 0)?)?;
                values.room.ask(bytes(&tensors))?;
                let mut tensors = (*tensors).clone();
                let last = tensors.len().saturating_sub(1);
                tensors.remove(position(values, wires, 1, last, tensors.len())?);
                sequence(tensors)?
            }
            Self::At => {
                let tensors = values.sequence(given(wires, 0)?)?;
                Value::Tensor(tensors[position(values, wires, 1, 0, tensors.len())?].clone())
            }
            Self::Length => {
                let length = values.sequence(given(wires, 0)?)?.len();
                Value::Tensor(Arc::new(Tensor::scalar(length as i64)))
            }
            Self::Concat { axis, is_new } => {
                let tensors = values.sequence(given(wires, 0)?)?;
                Value::Tensor(Arc::new(joined(&tensors, axis, is_new, &mut values.room)?))
            }
            Self::Split { axis, keeps } => {
                let tensor = values.tensor(given(wires, 0)?)?;
                let lengths = match wires.input(1) {
                    Some(slot) => Some(values.tensor(slot)?),
                    None => None,
                };
                sequence(parts(&tensor, lengths.as_deref(), axis, keeps, &mut values.room)?)?
            }
            Self::Optional => match wires.input(0) {
                Some(slot) => values.value(slot)?,
                None => Value::Nothing,
            },
            Self::GetElement => match values.value(given(wires, 0)?)? {
                Value::Nothing => return Err(BadInput("an optional input has no value".to_owned()).into()),
                value => value,
            },
            Self::HasElement => {
                let is_there = match wires.input(0) {
                    Some(slot) => !matches!(values.value(slot)?, Value::Nothing),
                    None => false,
                };
                Value::Tensor(Arc::new(Tensor::scalar(is_there)))
            }
        };
        if let Some(&slot) = wires.outputs.first() {
            values.set(slot, value);
        }
        Ok(())
    }
}

/// Normalizes a position in a sequence; negative ones count from the end.
fn position(
    values: &Values<'_>,
    wires: &Wires,
    index: usize,
    default: usize,
    places: usize,
) -> Result<usize, Failure> {
    let at = match wires.input(index) {
        Some(slot) => scalar::<i64>(&*values.tensor(slot)?)?,
        None => default as i64,
    };
    // An insertion may be at the end, one position after the last element, but negative positions count from
    // the last element.
    let length = if matches!(places.checked_sub(default), Some(1)) && index == 2 {
        default
    } else {
        places
    };
    let from_start = if at < 0 {
        at.saturating_add(length as i64)
    } else {
        at
    };
    match usize::try_from(from_start) {
        Ok(place) if place < places => Ok(place),
        _ => Err(BadInput(format!(
            "the position {at} is outside of a sequence of {length} tensors"
        ))
        .into()),
    }
}

fn given(wires: &Wires, index: usize) -> Result<Slot, Failure> {
    let slot = wires.input(index);
    Ok(slot.with_context(|| format!("input {index} is not given"))?)
}

fn sequence(tensors: Vec<Arc<Tensor>>) -> Result<Value, Failure> {
    if tensors.len() > MAX_LENGTH {
        return Err(BadInput(format!(
            "a sequence is longer than the limit of {MAX_LENGTH} tensors"
        ))
        .into());
    }
    if bytes(&tensors) > MAX_BYTES {
        let limit = size::gib(MAX_BYTES);
        return Err(BadInput(format!("a sequence takes more than the limit of {limit}")).into());
    }
    Ok(Value::Sequence(Arc::new(tensors)))
}

/// Returns the size of a sequence in bytes.
fn bytes(tensors: &[Arc<Tensor>]) -> u64 {
    let each = tensors.iter().map(|tensor| size::of_listed(tensor));
    each.sum()
}

/// Concatenates tensors along an axis, after reserving memory for the result in `room`.
fn joined(tensors: &[Arc<Tensor>], axis: i64, is_new: bool, room: &mut Room<'_>) -> Result<Tensor, Failure> {
    let Some(first) = tensors.first() else {
        return Err(BadInput("an empty sequence cannot be concatenated".to_owned()).into());
    };
    let axis = axis::axis(axis, first.rank() + usize::from(is_new))?;
    for tensor in tensors {
        let fits = tensor.element_type() == first.element_type()
            && tensor.rank() == first.rank()
            && (0..first.rank()).all(|at| (at == axis && !is_new) || tensor.shape()[at] == first.shape()[at]);
        if !fits {
            return Err(BadInput(format!(
                "tensors of the shapes {:?} and {:?} cannot be concatenated",
                first.shape(),
                tensor.shape()
            ))
            .into());
        }
    }
    let bytes = bytes(tensors);
    room.ask(bytes)?;
    size::admit_now(bytes)?;
    if is_new {
        size::admit_rank(first.rank() + 1)?;
        return Ok(rows::joined(tensors.to_vec(), axis)?);
    }
    Ok(Tensor::concat(axis, tensors)?)
}

/// Splits a tensor along an axis into parts, after reserving memory for the parts in `room`.
fn parts(
    tensor: &Tensor,
    lengths: Option<&Tensor>,
    axis: i64,
    keeps: bool,
    room: &mut Room<'_>,
) -> Result<Vec<Arc<Tensor>>, Failure> {
    let axis = axis::axis(axis, tensor.rank())?;
    // If lengths are given, ONNX ignores `keepdims` and keeps the axis.
    let drops = !keeps && lengths.is_none();
    let lengths = lengths_of_parts(lengths, tensor.shape()[axis])?;
    let bytes = size::of_value(tensor);
    room.ask(bytes.saturating_add(size::TENSOR * lengths.len() as u64))?;
    size::admit_now(bytes)?;
    // Copying a part takes one step per line of the tensor, however short the line is.
    let lines = tensor.shape()[..axis].iter().product::<usize>() as u64;
    let (mut start, mut pace) = (0, Pace::default());
    let mut parts = Vec::with_capacity(lengths.len());
    for length in lengths {
        pace.spend(lines.max(1))?;
        let mut shape = tensor.shape().to_vec();
        shape[axis] = length;
        let part = match length {
            0 => Tensor::zero_of(tensor.element_type(), &shape)?,
            _ => tensor.slice(axis, start, start + length)?,
        };
        if drops {
            shape.remove(axis);
        }
        parts.push(Arc::new(part.into_shape(&shape)?));
        start += length;
    }
    Ok(parts)
}

/// Returns the lengths of the parts into which a dimension of `size` is split: 1 by default, the given
/// lengths, or equal parts of a single given length.
fn lengths_of_parts(lengths: Option<&Tensor>, size: usize) -> Result<Vec<usize>, Failure> {
    let wrong = || {
        BadInput(format!(
            "a dimension of {size} cannot be split into these lengths, of which there may be {MAX_LENGTH}"
        ))
    };
    let too_many = |count: usize| count > MAX_LENGTH;
    let lengths: Vec<usize> = match lengths {
        None if too_many(size) => return Err(wrong().into()),
        None => vec![1; size],
        Some(lengths) => {
            let numbers = lengths.cast_to::<i64>()?;
            let given = numbers.as_slice::<i64>()?;
            let given: Result<Vec<usize>, _> = given.iter().map(|&length| usize::try_from(length)).collect();
            let given = given.map_err(|_| wrong())?;
            match (lengths.rank(), &*given) {
                (0, &[0]) | (0, []) => return Err(wrong().into()),
                (0, &[length, ..]) if too_many(size / length) => return Err(wrong().into()),
                (0, &[length, ..]) => {
                    let mut all = vec![length; size / length];
                    all.extend(Some(size % length).filter(|&rest| rest > 0));
                    all
                }
                _ => given,
            }
        }
    };
    let total = lengths
        .iter()
        .try_fold(0usize, |total, &length| total.checked_add(length));
    if total != Some(size) || too_many(lengths.len()) {
        return Err(wrong().into());
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use onnx_tensor::testing;

    use super::*;
    use crate::RunErrorKind;

    #[test]
    fn cutting_ends_with_its_run() {
        let tensor = Tensor::zero::<u8>(&[1 << 9, 1 << 9]).expect("a tensor");
        let cut = || parts(&tensor, None, 1, true, &mut Room::new());
        assert!(cut().is_ok());
        let failure = testing::while_cancelled(cut).expect_err("cancelled");
        assert_eq!(failure.into_error().kind(), RunErrorKind::Cancelled);
    }

    #[test]
    fn lengths_are_counted_before_they_are_listed() {
        let tensor = |dims: &[usize]| Tensor::zero::<u8>(dims).expect("a tensor");
        let one = Tensor::scalar(1i64);
        for lengths in [None, Some(&one)] {
            let cut = |dims: &[usize]| parts(&tensor(dims), lengths, 0, true, &mut Room::new());
            assert!(cut(&[u32::MAX as usize, 0]).is_err());
            assert!(cut(&[3, 0]).is_ok_and(|parts| parts.len() == 3));
        }
    }
}
