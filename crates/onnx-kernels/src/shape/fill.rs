//! Broadcasts and selection: `Tile`, `Expand`, `Where`, `ConstantOfShape`.

use std::{ops::Range, sync::Arc};

use onnx_tensor::prelude::*;

use crate::{
    elementwise::binary::Side,
    least_work::{BYTES, ELEMENTS},
    shape::texts,
};
use onnx_tensor::shapes;
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{Refusal, ensure_input},
    integers::{integers, known_integers},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    shapes::{sizes, unset},
    split::{self, LINE},
};

/// Builds the operator `Tile`.
pub fn tile(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Tile))
}

/// Builds the operator `Expand`.
pub fn expand(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Expand))
}

/// Builds the operator `Where`.
pub fn condition(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Where))
}

/// Builds the operator `ConstantOfShape`.
pub fn constant_of_shape(node: &Node) -> Result<Box<dyn Compute>> {
    let value = Attributes(node).get("value").and_then(|value| value.t.clone());
    Ok(Box::new(ConstantOfShape::of(value)?))
}

/// Returns the strides of a value that is broadcast to `shape`. The stride is 0 along broadcast axes.
fn steps(from: &[usize], shape: &[usize]) -> ShortVec<usize> {
    let mut steps: ShortVec<usize> = smallvec![0; shape.len()];
    let mut step = 1;
    for (at, &size) in from.iter().rev().enumerate() {
        if size != 1 {
            steps[shape.len() - 1 - at] = step;
        }
        step *= size;
    }
    steps
}

/// Calls `line` for each line of `shape` in the range `wanted`, with the line's offset in each value, and the
/// line's index.
fn lines<const N: usize>(
    steps: &[ShortVec<usize>; N],
    shape: &[usize],
    wanted: Range<usize>,
    mut line: impl FnMut([usize; N], usize) -> Result<()>,
) -> Result<()> {
    let outer = shape.len().saturating_sub(1);
    let mut place: ShortVec<usize> = smallvec![0; outer];
    let (mut at, mut left) = ([0; N], wanted.start);
    for axis in (0..outer).rev() {
        place[axis] = left % shape[axis];
        left /= shape[axis];
        (0..N).for_each(|value| at[value] += steps[value][axis] * place[axis]);
    }
    for number in wanted {
        line(at, number)?;
        for axis in (0..outer).rev() {
            place[axis] += 1;
            (0..N).for_each(|value| at[value] += steps[value][axis]);
            if place[axis] < shape[axis] {
                break;
            }
            (0..N).for_each(|value| at[value] -= steps[value][axis] * shape[axis]);
            place[axis] = 0;
        }
    }
    Ok(())
}

/// Returns a value broadcast to `shape`.
fn repeated(from: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let mut made = unset(from.element_type(), shape)?;
    let size = from.element_type().size_of();
    repeat(from.as_bytes()?, from.shape(), shape, size, made.as_bytes_mut()?)?;
    Ok(made)
}

/// Broadcasts elements of `size` bytes from shape `from` to `shape`.
fn repeat(given: &[u8], from: &[usize], shape: &[usize], size: usize, made: &mut [u8]) -> Result<()> {
    if made.is_empty() {
        return Ok(());
    }
    let steps = [steps(from, shape)];
    let width = shape.last().copied().unwrap_or(1);
    let step = steps[0].last().copied().unwrap_or(0);
    let (line, work) = (width * size, [made.len() as u64, BYTES]);
    split::lines(made, line, work, |first, made, pace| {
        let wanted = first..first + made.len() / line;
        lines(&steps, shape, wanted, |[at], number| {
            let to = &mut made[(number - first) * line..][..line];
            match step {
                0 => fill(to, &given[at * size..][..size], pace),
                _ => pace.copy_bytes(&given[at * size..][..line], to),
            }
        })
    })
}

/// Fills bytes with copies of one element.
fn fill(to: &mut [u8], one: &[u8], pace: &mut Pace) -> Result<()> {
    fn each<const SIZE: usize>(to: &mut [u8], one: &[u8]) {
        if let Some(one) = one.first_chunk::<SIZE>() {
            to.as_chunks_mut::<SIZE>().0.fill(*one);
        }
    }
    pace.spend(1)?;
    for to in to.chunks_mut(PART * one.len().max(1)) {
        pace.spend(to.len() as u64 / 8)?;
        match one.len() {
            1 => each::<1>(to, one),
            2 => each::<2>(to, one),
            4 => each::<4>(to, one),
            8 => each::<8>(to, one),
            size => to
                .chunks_exact_mut(size.max(1))
                .for_each(|to| to.copy_from_slice(one)),
        }
    }
    Ok(())
}

#[derive(Debug)]
pub(crate) struct Expand;

impl Compute for Expand {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [input, wanted] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if let Some(wanted) = known_integers(wanted)? {
            sizes(&wanted)?;
        }
        let Some(wanted) = wanted.dims() else {
            return Ok(None);
        };
        let shape = shapes::broadcast(&[&input.shape, &wanted])?;
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        texts::moved(inputs, |inputs| {
            let wanted = sizes(&integers(&inputs[1])?)?;
            let input = inputs.swap_remove(0);
            let shape = shapes::broadcast(&[input.shape(), &wanted])?;
            Ok(smallvec![match shape[..] == *input.shape() {
                true => input,
                false => Arc::new(repeated(&input, &shape)?),
            }])
        })
    }
}

/// `ConstantOfShape`, which fills its result with this element.
#[derive(Debug)]
pub(crate) struct ConstantOfShape(Arc<Tensor>);

impl ConstantOfShape {
    pub(crate) fn of(value: Option<Arc<Tensor>>) -> Result<Self> {
        let Some(value) = value else {
            return Ok(Self(Arc::new(Tensor::scalar(0.0f32))));
        };
        if value.len() != 1 {
            bail!(Refusal(format!(
                "has a value of {} elements, expected 1",
                value.len()
            )));
        }
        if value.element_type() == ElementType::String {
            bail!(Refusal("has a string as its value, expected a number".to_owned()));
        }
        Ok(Self(Arc::new((*value).clone().into_shape(&[])?)))
    }
}

impl Compute for ConstantOfShape {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [wanted] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        if let Some(wanted) = known_integers(wanted)? {
            sizes(&wanted)?;
        }
        let shape = wanted.dims();
        Ok(shape.map(|shape| vec![Fact::new(self.0.element_type(), shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let shape = sizes(&integers(&inputs[0])?)?;
        Ok(smallvec![Arc::new(repeated(&self.0, &shape)?)])
    }
}

/// `Tile`: repeats a value along its axes.
#[derive(Debug)]
pub(crate) struct Tile;

impl Compute for Tile {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [input, repeats] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let Some(repeats) = known_integers(repeats)? else {
            return Ok(None);
        };
        ensure_input!(
            repeats.len() == input.rank(),
            "{} repetitions for {} dimensions",
            repeats.len(),
            input.rank()
        );
        let dims = input.shape.iter().zip(repeats).map(|(dim, count)| {
            let is_counted = dim.to_i64().is_some_and(|dim| dim.checked_mul(count).is_none());
            ensure_input!(
                count >= 0 && !is_counted,
                "{count} repetitions of a dimension of {dim}, expected at least 0 and a product that can be counted"
            );
            Ok(*dim * count)
        });
        let shape = dims.collect::<Result<ShortVec<Dim>>>()?;
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        texts::moved(inputs, |inputs| {
            let repeats = sizes(&integers(&inputs[1])?)?;
            let input = inputs.swap_remove(0);
            match repeats.iter().all(|&count| count == 1) {
                true => Ok(smallvec![input]),
                false => Ok(smallvec![Arc::new(tiled(&input, &repeats)?)]),
            }
        })
    }
}

/// Repeats a value along its axes: broadcasts the value along one additional axis per repeated axis.
fn tiled(input: &Tensor, repeats: &[usize]) -> Result<Tensor> {
    ensure!(repeats.len() == input.rank(), "a repetition for each dimension");
    let (mut from, mut to): (ShortVec<usize>, ShortVec<usize>) = (smallvec![], smallvec![]);
    let mut shape: ShortVec<usize> = smallvec![];
    for (&dim, &count) in input.shape().iter().zip(repeats) {
        let size = dim.checked_mul(count);
        ensure_input!(size.is_some(), "{count} repetitions of a dimension of {dim}");
        shape.push(size.unwrap_or(0));
        if count != 1 {
            from.push(1);
            to.push(count);
        }
        // An axis that is not broadcast is merged with the previous axis, if that is not broadcast either.
        match (from.last_mut(), to.last_mut()) {
            (Some(from), Some(to)) if from == to => {
                *from *= dim;
                *to *= dim;
            }
            _ if dim != 1 => {
                from.push(dim);
                to.push(dim);
            }
            _ => {}
        }
    }
    let mut made = unset(input.element_type(), &shape)?;
    repeat(
        input.as_bytes()?,
        &from,
        &to,
        made.element_type().size_of(),
        made.as_bytes_mut()?,
    )?;
    Ok(made)
}

#[derive(Debug)]
pub(crate) struct Where;

impl Compute for Where {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [condition, yes, no] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        ensure_input!(
            condition.element_type == ElementType::Bool && yes.element_type == no.element_type,
            "the inputs have the types {:?}, {:?} and {:?}, expected BOOL and twice the same",
            condition.element_type,
            yes.element_type,
            no.element_type
        );
        let shape = shapes::broadcast(&[&condition.shape, &yes.shape, &no.shape])?;
        Ok(Some(vec![Fact::new(yes.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        texts::moved(inputs, |inputs| {
            let [condition, yes, no] = &**inputs else {
                bail!("expected 3 inputs, found {}", inputs.len());
            };
            Ok(smallvec![Arc::new(chosen(condition, yes, no)?)])
        })
    }
}

/// Returns elements of `yes` where the condition holds, and of `no` elsewhere.
fn chosen(condition: &Tensor, yes: &Tensor, no: &Tensor) -> Result<Tensor> {
    with_unit!(yes.element_type(), U => chosen_units::<U>(condition, yes, no))
}

fn chosen_units<U: Unit>(condition: &Tensor, yes: &Tensor, no: &Tensor) -> Result<Tensor> {
    let shape = shapes::broadcast(&[condition.shape(), yes.shape(), no.shape()])?;
    let mut made = Tensor::unset_of(yes.element_type(), &shape)?;
    if made.is_empty() {
        return Ok(made);
    }
    // As in C, each byte that is not 0 is true.
    let conditions = condition.as_units::<u8>()?;
    let (yes_units, no_units) = (yes.as_units::<U>()?, no.as_units::<U>()?);
    let work = [made.len() as u64, ELEMENTS];
    // Calls `choose` for the elements at `places`, which are `steps` apart.
    let line = |places: [usize; 3], steps: [usize; 3], to: &mut [U], pace: &mut Pace| {
        for (part, to) in to.chunks_mut(PART).enumerate() {
            pace.spend(to.len() as u64)?;
            let at = |value: usize| places[value] + part * PART * steps[value];
            choose(
                Side::new(conditions, at(0), steps[0], to.len()),
                Side::new(yes_units, at(1), steps[1], to.len()),
                Side::new(no_units, at(2), steps[2], to.len()),
                to,
            );
        }
        Ok(())
    };
    let is_flat = |value: &Tensor| value.len() == 1 || *value.shape() == *shape;
    let units = made.as_units_mut::<U>()?;
    if [condition, yes, no].into_iter().all(is_flat) {
        let steps = [condition, yes, no].map(|value| usize::from(value.len() != 1));
        split::lines(units, LINE, work, |first, to, pace| {
            line(steps.map(|step| step * first * LINE), steps, to, pace)
        })?;
        return Ok(made);
    }
    let all = [condition, yes, no].map(|value| steps(value.shape(), &shape));
    let last = all.each_ref().map(|steps| steps.last().copied().unwrap_or(0));
    let width = shape.last().copied().unwrap_or(1);
    split::lines(units, width, work, |first, made, pace| {
        let wanted = first..first + made.len() / width;
        lines(&all, &shape, wanted, |places, number| {
            pace.spend(1)?;
            line(places, last, &mut made[(number - first) * width..][..width], pace)
        })
    })?;
    Ok(made)
}

/// Writes a line of elements of `yes` where the condition is not 0, and of `no` elsewhere.
fn choose<U: Unit>(conditions: Side<'_, u8>, yes: Side<'_, U>, no: Side<'_, U>, to: &mut [U]) {
    // Loops over slices, without a branch for each element, are vectorized.
    match (conditions, yes, no) {
        (Side::Same(condition), yes, no) => match if *condition == 0 { no } else { yes } {
            Side::Each(from) => to.clone_from_slice(from),
            Side::Same(one) => to.fill(one.clone()),
        },
        (Side::Each(conditions), Side::Each(yes), Side::Each(no)) => {
            for (((to, condition), yes), no) in to.iter_mut().zip(conditions).zip(yes).zip(no) {
                *to = if *condition == 0 { no.clone() } else { yes.clone() };
            }
        }
        (Side::Each(conditions), Side::Each(yes), Side::Same(no)) => {
            for ((to, condition), yes) in to.iter_mut().zip(conditions).zip(yes) {
                *to = if *condition == 0 { no.clone() } else { yes.clone() };
            }
        }
        (Side::Each(conditions), Side::Same(yes), Side::Each(no)) => {
            for ((to, condition), no) in to.iter_mut().zip(conditions).zip(no) {
                *to = if *condition == 0 { no.clone() } else { yes.clone() };
            }
        }
        (Side::Each(conditions), Side::Same(yes), Side::Same(no)) => {
            for (to, condition) in to.iter_mut().zip(conditions) {
                *to = if *condition == 0 { no.clone() } else { yes.clone() };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::shape::texts::tests::{run, texts};
    use onnx_tensor::faults::BadInput;

    fn one(compute: &dyn Compute, inputs: &[Tensor]) -> Tensor {
        run(compute, inputs).unwrap().remove(0)
    }

    fn is_refused(compute: &dyn Compute, inputs: &[Tensor]) -> bool {
        run(compute, inputs).unwrap_err().is::<BadInput>()
    }

    #[test]
    fn values_are_expanded_both_ways() {
        let column = Tensor::matrix(&[[1i16], [2]]);
        let expanded = one(&Expand, &[column.clone(), Tensor::vector(&[3i64, 1, 2])]);
        let expected = onnx_tensor::testing::cube(&[[[1i16, 1], [2, 2]], [[1, 1], [2, 2]], [[1, 1], [2, 2]]]);
        assert_eq!(expanded, expected);
        // In `Expand`, a requested size of 1 keeps the size of the input.
        assert_eq!(one(&Expand, &[column.clone(), Tensor::vector(&[1i64])]), column);
        assert_eq!(
            one(&Expand, &[column.clone(), Tensor::vector(&[2i64, 0])]).shape(),
            [2, 0]
        );
        let row = texts(&[2], &["x", ""]);
        let expanded = one(&Expand, &[row, Tensor::vector(&[2i64, 2])]);
        assert_eq!(expanded, texts(&[2, 2], &["x", "", "x", ""]));
        for wanted in [&[3i64, 2][..], &[-1, 1]] {
            assert!(
                is_refused(&Expand, &[column.clone(), Tensor::vector(wanted)]),
                "{wanted:?}"
            );
        }
        assert!(is_refused(&Expand, &[column, Tensor::vector(&[1.0f32])]));
    }

    #[test]
    fn values_are_tiled_along_all_axes() {
        let value = Tensor::matrix(&[[1u8, 2], [3, 4]]);
        for (repeats, expected) in [
            ([1i64, 2], Tensor::matrix(&[[1u8, 2, 1, 2], [3, 4, 3, 4]])),
            ([2, 1], Tensor::matrix(&[[1u8, 2], [3, 4], [1, 2], [3, 4]])),
            (
                [2, 2],
                Tensor::matrix(&[[1u8, 2, 1, 2], [3, 4, 3, 4], [1, 2, 1, 2], [3, 4, 3, 4]]),
            ),
            ([1, 1], value.clone()),
        ] {
            assert_eq!(
                one(&Tile, &[value.clone(), Tensor::vector(&repeats)]),
                expected,
                "{repeats:?}"
            );
        }
        let words = texts(&[1, 2], &["a", "b"]);
        let tiled = one(&Tile, &[words.clone(), Tensor::vector(&[2i64, 2])]);
        assert_eq!(tiled, texts(&[2, 4], &["a", "b", "a", "b", "a", "b", "a", "b"]));
        assert_eq!(one(&Tile, &[words, Tensor::vector(&[0i64, 3])]).shape(), [0, 6]);
        assert_eq!(
            one(&Tile, &[Tensor::scalar(3i64), Tensor::vector::<i64>(&[])]),
            Tensor::scalar(3i64)
        );
        for repeats in [&[2i64][..], &[1, -1], &[1, i64::MAX]] {
            assert!(
                is_refused(&Tile, &[value.clone(), Tensor::vector(repeats)]),
                "{repeats:?}"
            );
        }
    }

    #[test]
    fn elements_are_chosen_by_conditions() {
        let condition = Tensor::matrix(&[[true], [false]]);
        let (row, table) = (
            Tensor::vector(&[1.0f64, 2.0]),
            Tensor::matrix(&[[3.0f64, 4.0], [5.0, 6.0]]),
        );
        let found = one(&Where, &[condition.clone(), row.clone(), table]);
        assert_eq!(found, Tensor::matrix(&[[1.0f64, 2.0], [5.0, 6.0]]));
        let (row_of_texts, other) = (texts(&[2], &["x", "y"]), texts(&[], &["z"]));
        let found = one(&Where, &[condition.clone(), row_of_texts, other]);
        assert_eq!(found, texts(&[2, 2], &["x", "y", "z", "z"]));
        let halves = [f16::from_f32(1.0), f16::from_f32(-1.0)].map(Tensor::scalar);
        let found = one(
            &Where,
            &[Tensor::scalar(true), halves[0].clone(), halves[1].clone()],
        );
        assert_eq!(found, halves[0]);
        let nothing = Tensor::vector::<f64>(&[]);
        assert_eq!(
            one(&Where, &[Tensor::scalar(true), nothing.clone(), nothing]).len(),
            0
        );
        for inputs in [
            [
                condition.clone(),
                row.clone(),
                Tensor::vector(&[1.0f64, 2.0, 3.0]),
            ],
            [condition, row.clone(), Tensor::vector(&[1i64])],
            [row.clone(), row.clone(), row],
        ] {
            assert!(is_refused(&Where, &inputs));
        }
    }

    #[test]
    fn constants_are_repeated() {
        let truth = ConstantOfShape::of(Some(Arc::new(Tensor::vector(&[true])))).unwrap();
        assert_eq!(
            one(&truth, &[Tensor::vector(&[2i64])]),
            Tensor::vector(&[true, true])
        );
        assert!(ConstantOfShape::of(Some(Arc::new(texts(&[1], &["a"])))).is_err());
        let zero = ConstantOfShape::of(None).unwrap();
        assert_eq!(one(&zero, &[Tensor::vector::<i64>(&[])]), Tensor::scalar(0.0f32));
        assert_eq!(one(&zero, &[Tensor::vector(&[0i64, 3])]).shape(), [0, 3]);
        assert!(is_refused(&zero, &[Tensor::vector(&[-2i64])]));
        assert!(ConstantOfShape::of(Some(Arc::new(Tensor::vector(&[1i64, 2])))).is_err());
    }

    /// Checks that repeating a string of one megabyte 8192 times is refused.
    #[test]
    fn long_texts_are_not_repeated_without_end() {
        let long = texts(&[1], &[&"x".repeat(1 << 20)]);
        let others = texts(&[8192], &vec!["y"; 8192]);
        let many = |is_long: bool| Tensor::vector(&vec![is_long; 8192]);
        for (op, inputs) in [
            (
                &Expand as &dyn Compute,
                vec![long.clone(), Tensor::vector(&[8192i64])],
            ),
            (&Tile, vec![long.clone(), Tensor::vector(&[8192i64])]),
            (&Where, vec![many(true), long.clone(), others.clone()]),
        ] {
            let error = run(op, &inputs).unwrap_err();
            let text = error.downcast_ref::<BadInput>().unwrap().to_string();
            assert!(text.starts_with("the strings together take 859"), "{text}");
        }
        // Strings that are not selected do not count toward the limit.
        assert_eq!(one(&Where, &[many(false), long, others.clone()]), others);
    }
}
