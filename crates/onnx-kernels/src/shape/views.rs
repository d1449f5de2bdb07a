//! The operators `Reshape`, `Flatten`, `Squeeze`, `Unsqueeze`, `Shape` and `Size`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::shapes;
use onnx_tensor::{
    axis::axis,
    faults::ensure_input,
    integers::{integers, known_integers},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    shapes::{reshaped, sizes},
    size::admit_rank,
};

/// Builds the operator `Size`.
pub fn size(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Size))
}

/// Builds the operator `Reshape`.
pub fn reshape(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Reshape {
        allows_zero: Attributes(node).int("allowzero", 0) != 0,
    }))
}

/// Builds the operator `Flatten`.
pub fn flatten(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Flatten(Attributes(node).int("axis", 1))))
}

/// Builds the operator `Unsqueeze`.
pub fn unsqueeze(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Unsqueeze(Attributes(node).ints("axes").to_vec())))
}

/// Builds the operator `Squeeze`.
pub fn squeeze(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Squeeze(Attributes(node).ints("axes").to_vec())))
}

/// Builds the operator `Shape`.
pub fn shape(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Shape {
        start: Attributes(node).int("start", 0),
        end: Attributes(node).get("end").map(|end| end.i),
    }))
}

/// Returns the output facts of a reshape. `known` computes the result's shape if all dimensions of the input
/// are known, and `unknown` otherwise.
fn outputs(
    input: &Fact,
    known: impl FnOnce(&[usize]) -> Result<ShortVec<usize>>,
    unknown: impl FnOnce(&[Dim]) -> Result<Option<ShortVec<Dim>>>,
) -> Result<Option<Vec<Fact>>> {
    let shape = match shapes::known(&input.shape) {
        Some(shape) => Some(known(&shape)?.iter().map(ToDim::to_dim).collect()),
        None => unknown(&input.shape)?,
    };
    Ok(shape.map(|shape| vec![Fact::new(input.element_type, shape)]))
}

#[derive(Debug)]
pub(crate) struct Reshape {
    /// `allowzero`: a requested dimension of 0 means 0, instead of the input's dimension.
    pub(crate) allows_zero: bool,
}

impl Reshape {
    fn shape(&self, from: &[usize], wanted: &[i64]) -> Result<ShortVec<usize>> {
        let mut shape: ShortVec<usize> = smallvec![];
        let mut open = None;
        for (at, &size) in wanted.iter().enumerate() {
            shape.push(match size {
                0 if !self.allows_zero => {
                    ensure_input!(at < from.len(), "dimension {at} of {} is to be kept", from.len());
                    from[at]
                }
                -1 => {
                    ensure_input!(open.is_none(), "two dimensions are -1: {wanted:?}");
                    open = Some(at);
                    1
                }
                size => sizes(&[size])?[0],
            });
        }
        let count: usize = from.iter().product();
        let known = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
        ensure_input!(known.is_some(), "dimensions {wanted:?} are wanted");
        let known = known.unwrap_or(0);
        if let Some(open) = open {
            ensure_input!(
                known > 0 && count.is_multiple_of(known),
                "{count} elements do not fill dimensions {wanted:?}"
            );
            shape[open] = count / known.max(1);
        } else {
            ensure_input!(
                known == count,
                "{count} elements, shaped {from:?}, do not fill dimensions {wanted:?}"
            );
        }
        Ok(shape)
    }

    /// Returns the result shape of a value with unknown dimensions.
    fn shape_of_unknown(&self, from: &[Dim], wanted: &[Dim]) -> Result<ShortVec<Dim>> {
        let mut shape: ShortVec<Dim> = smallvec![];
        let mut open = None;
        // The dimensions of the input that have not yet occurred in the result.
        let mut rest: ShortVec<Dim> = from.into();
        let mut divisor = Dim::Known(1);
        for (at, wanted) in wanted.iter().enumerate() {
            let dim = match wanted {
                Dim::Known(0) if !self.allows_zero => {
                    ensure_input!(at < from.len(), "dimension {at} of {} is to be kept", from.len());
                    from[at]
                }
                Dim::Known(-1) => {
                    ensure_input!(open.replace(at).is_none(), "two dimensions are -1: {wanted:?}");
                    shape.push(Dim::Known(1));
                    continue;
                }
                Dim::Known(size) => sizes(&[*size])?[0].to_dim(),
                dim => *dim,
            };
            match rest.iter().position(|other| *other == dim) {
                Some(place) => drop(rest.remove(place)),
                None => divisor *= dim,
            }
            shape.push(dim);
        }
        let Some(open) = open else {
            return Ok(shape);
        };
        let count: Dim = rest.iter().product();
        shape[open] = match divisor {
            Dim::Known(divisor) => {
                ensure_input!(divisor > 0, "elements do not fill dimensions {wanted:?}");
                count / divisor
            }
            _ => Dim::unknown(),
        };
        Ok(shape)
    }
}

impl Compute for Reshape {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [input, wanted] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if let (Some(wanted), Some(_)) = (known_integers(wanted)?, shapes::known(&input.shape)) {
            return outputs(input, |from| self.shape(from, &wanted), |_| Ok(None));
        }
        let Some(wanted) = wanted.dims() else {
            return Ok(None);
        };
        let shape = self.shape_of_unknown(&input.shape, &wanted)?;
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let [input, wanted] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let shape = self.shape(input.shape(), &integers(wanted)?)?;
        Ok(smallvec![reshaped(inputs.swap_remove(0), &shape)?])
    }
}

/// `Flatten` to a matrix. The axes from this one on are merged into the columns.
#[derive(Debug)]
pub(crate) struct Flatten(pub(crate) i64);

impl Flatten {
    fn axis(&self, rank: usize) -> Result<usize> {
        match self.0 == rank as i64 {
            true => Ok(rank),
            false => axis(self.0, rank),
        }
    }
}

impl Compute for Flatten {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let axis = self.axis(input.rank())?;
        let (rows, columns) = input.shape.split_at(axis);
        let shape: [Dim; 2] = [rows, columns].map(|dims| dims.iter().product());
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let shape = inputs[0].shape();
        let (rows, columns) = shape.split_at(self.axis(shape.len())?);
        let shape: [usize; 2] = [rows, columns].map(|dims| dims.iter().product());
        Ok(smallvec![reshaped(inputs.swap_remove(0), &shape)?])
    }
}

/// Returns the axes before a run, or `None` if they are unknown. The axes are an attribute (`given`) before
/// operator set 13, and an input from operator set 13 on.
fn known_axes(given: &[i64], inputs: &[Fact]) -> Result<Option<Vec<i64>>> {
    match inputs.get(1) {
        Some(axes) => known_integers(axes),
        None => Ok(Some(given.to_vec())),
    }
}

fn axes(given: &[i64], inputs: &[Arc<Tensor>]) -> Result<Vec<i64>> {
    match inputs.get(1) {
        Some(axes) => integers(axes),
        None => Ok(given.to_vec()),
    }
}

/// `Unsqueeze`: inserts axes of size 1.
#[derive(Debug)]
pub(crate) struct Unsqueeze(pub(crate) Vec<i64>);

fn unsqueezed<D: Clone + From<usize>>(shape: &[D], added: &[i64]) -> Result<ShortVec<D>> {
    let rank = shape.len() + added.len();
    admit_rank(rank)?;
    let mut is_new: ShortVec<bool> = smallvec![false; rank];
    for &place in added {
        let place = axis(place, rank)?;
        ensure_input!(!is_new[place], "axes {added:?} name one twice");
        is_new[place] = true;
    }
    let mut dims = shape.iter().cloned();
    let dims = is_new.iter().map(|&is_new| match is_new {
        true => Some(D::from(1)),
        false => dims.next(),
    });
    dims.collect::<Option<_>>().context("a dimension that is missing")
}

impl Compute for Unsqueeze {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let Some(added) = known_axes(&self.0, inputs)? else {
            return Ok(None);
        };
        let shape = unsqueezed(&input.shape, &added)?;
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let shape = unsqueezed(inputs[0].shape(), &axes(&self.0, inputs)?)?;
        Ok(smallvec![reshaped(inputs.swap_remove(0), &shape)?])
    }
}

/// `Squeeze`: drops these axes, which have size 1. An empty list drops all axes of size 1.
#[derive(Debug)]
pub(crate) struct Squeeze(pub(crate) Vec<i64>);

impl Squeeze {
    /// Returns for each axis whether it is dropped.
    fn dropped(rank: usize, axes: &[i64]) -> Result<ShortVec<bool>> {
        let mut is_dropped: ShortVec<bool> = smallvec![false; rank];
        for &place in axes {
            is_dropped[axis(place, rank)?] = true;
        }
        Ok(is_dropped)
    }

    fn shape(shape: &[usize], axes: &[i64]) -> Result<ShortVec<usize>> {
        let mut is_dropped = Self::dropped(shape.len(), axes)?;
        if axes.is_empty() {
            is_dropped = shape.iter().map(|&size| size == 1).collect();
        }
        let mut kept: ShortVec<usize> = smallvec![];
        for (place, (&size, is_dropped)) in shape.iter().zip(is_dropped).enumerate() {
            ensure_input!(
                !is_dropped || size == 1,
                "axis {place} of {shape:?} has {size} elements, expected 1"
            );
            if !is_dropped {
                kept.push(size);
            }
        }
        Ok(kept)
    }
}

impl Compute for Squeeze {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let Some(axes) = known_axes(&self.0, inputs)? else {
            return Ok(None);
        };
        // If no axes are given, the rank of the result depends on the sizes.
        let some = |shape: &[Dim]| {
            if axes.is_empty() {
                return Ok(None);
            }
            let dims = shape.iter().zip(Self::dropped(shape.len(), &axes)?);
            let kept = dims.filter(|(_, is_dropped)| !is_dropped);
            Ok(Some(kept.map(|(dim, _)| *dim).collect()))
        };
        outputs(input, |shape| Self::shape(shape, &axes), some)
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let shape = Self::shape(inputs[0].shape(), &axes(&self.0, inputs)?)?;
        Ok(smallvec![reshaped(inputs.swap_remove(0), &shape)?])
    }
}

/// `Shape`, restricted to a range of dimensions.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) start: i64,
    pub(crate) end: Option<i64>,
}

impl Shape {
    /// Returns the range of dimensions, clamped to the rank.
    fn range(&self, rank: usize) -> std::ops::Range<usize> {
        let rank = rank as i64;
        let place = |at: i64| {
            let at = if at < 0 { at.saturating_add(rank) } else { at };
            at.clamp(0, rank) as usize
        };
        let (start, end) = (place(self.start), place(self.end.unwrap_or(rank)));
        start..end.max(start)
    }
}

/// Returns the fact of a value whose elements are the dimensions `dims`. The value is a constant if all
/// dimensions are known.
fn dims_as_value(shape: &[usize], dims: &[Dim]) -> Result<Fact> {
    let mut value = Fact::new(ElementType::I64, shape.iter().map(ToDim::to_dim));
    let known: Option<ShortVec<i64>> = dims.iter().map(|dim| dim.to_i64()).collect();
    match known {
        Some(known) => value.constant = Some(Arc::new(Tensor::vector(&known).into_shape(shape)?)),
        None => {
            let number = |dim: &Dim| dim.to_i64().map_or(f64::NAN, |dim| dim as f64);
            let numbers: ShortVec<f64> = dims.iter().map(number).collect();
            value.sizes = Some(Arc::new(Tensor::vector(&numbers).into_shape(shape)?));
        }
    }
    Ok(value)
}

impl Compute for Shape {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let dims = &input.shape[self.range(input.rank())];
        Ok(Some(vec![dims_as_value(&[dims.len()], dims)?]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let shape = inputs[0].shape();
        let dims = shape[self.range(shape.len())].iter();
        let dims: ShortVec<i64> = dims.map(|&dim| dim as i64).collect();
        Ok(smallvec![Arc::new(Tensor::vector(&dims))])
    }
}

/// `Size`: the number of elements.
#[derive(Debug)]
pub(crate) struct Size;

impl Compute for Size {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let count: Dim = input.shape.iter().product();
        Ok(Some(vec![dims_as_value(&[], &[count])?]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        Ok(smallvec![Arc::new(Tensor::scalar(inputs[0].len() as i64))])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::shape::texts::tests::{run, texts};
    use onnx_tensor::faults::{BadInput, Refusal};

    fn shape(compute: &dyn Compute, from: &[usize], numbers: Option<&[i64]>) -> Result<Vec<usize>> {
        let mut inputs = vec![Tensor::zero::<f16>(from)?];
        inputs.extend(numbers.map(Tensor::vector));
        Ok(run(compute, &inputs)?[0].shape().to_vec())
    }

    #[test]
    fn wanted_dimensions_are_kept_or_follow() {
        let reshape =
            |allows_zero, from: &[usize], wanted: &[i64]| shape(&Reshape { allows_zero }, from, Some(wanted));
        for (from, wanted, expected) in [
            (&[2, 3, 4][..], &[0, -1][..], &[2, 12][..]),
            (&[2, 3, 4], &[4, 3, 2], &[4, 3, 2]),
            (&[1, 1], &[], &[]),
            (&[], &[1, -1], &[1, 1]),
            (&[0, 3], &[0, 5], &[0, 5]),
            (&[0, 3], &[5, -1], &[5, 0]),
        ] {
            assert_eq!(reshape(false, from, wanted).unwrap(), expected, "{wanted:?}");
        }
        assert_eq!(reshape(true, &[0, 3], &[3, 0]).unwrap(), [3, 0]);
        for (allows_zero, from, wanted) in [
            (false, &[2, 3][..], &[7][..]),
            (false, &[2, 3], &[4, -1]),
            (false, &[2, 3], &[-1, -1]),
            (false, &[2, 3], &[-2, 3]),
            (false, &[2, 3], &[2, 3, 0]),
            (true, &[2, 3], &[0, -1]),
            (false, &[2, 3], &[i64::MAX, i64::MAX]),
        ] {
            let error = reshape(allows_zero, from, wanted).unwrap_err();
            assert!(error.is::<BadInput>(), "{wanted:?}: {error}");
        }
    }

    #[test]
    fn texts_keep_their_order() {
        let words = texts(&[2, 2], &["a", "b", "c", "d"]);
        let reshape = Reshape { allows_zero: false };
        let flat = run(&reshape, &[words, Tensor::vector(&[-1i64])]).unwrap();
        assert_eq!(flat[0], texts(&[4], &["a", "b", "c", "d"]));
    }

    #[test]
    fn unknown_dimensions_give_the_others() {
        let (n, m) = (Dim::unknown(), Dim::unknown());
        let reshape = |from: &[Dim], wanted: Fact| {
            let input = Fact::new(ElementType::F32, from.iter().copied());
            let outputs = Reshape { allows_zero: false }.outputs(&[input, wanted]).unwrap();
            outputs.map(|outputs| outputs[0].shape.to_vec())
        };
        let wanted = |numbers: &[i64]| Fact::of_values(&[Arc::new(Tensor::vector(numbers))]).remove(0);
        let from = [n, 3.to_dim(), 8.to_dim()];
        assert_eq!(reshape(&from, wanted(&[0, -1])).unwrap(), [n, 24.to_dim()]);
        let twice = reshape(&from, wanted(&[-1, 12])).unwrap();
        assert!(!twice[0].is_known() && twice[1] == 12.to_dim());
        assert_eq!(
            reshape(&from, wanted(&[2, 12])).unwrap(),
            [2.to_dim(), 12.to_dim()]
        );
        // The requested shape is the output of `Shape` for another value.
        let other = Fact::new(ElementType::F32, [m, 5.to_dim()]);
        let of_other = Shape { start: 0, end: None }
            .outputs(&[other])
            .unwrap()
            .unwrap()
            .remove(0);
        let found = reshape(&[n, 5.to_dim()], of_other).unwrap();
        assert!(found[0].to_i64().is_none() && found[1] == 5.to_dim(), "{found:?}");
        assert!(reshape(&from, Fact::new(ElementType::I64, [2.to_dim()])).is_none());
        let size = Size
            .outputs(&[Fact::new(ElementType::F32, from)])
            .unwrap()
            .unwrap();
        assert_eq!(size[0].shape.len(), 0);
    }

    #[test]
    fn matrices_begin_at_an_axis() {
        for (axis, expected) in [
            (0, [1, 24]),
            (1, [2, 12]),
            (-1, [6, 4]),
            (3, [24, 1]),
            (-3, [1, 24]),
        ] {
            assert_eq!(
                shape(&Flatten(axis), &[2, 3, 4], None).unwrap(),
                expected,
                "{axis}"
            );
        }
        assert_eq!(shape(&Flatten(0), &[], None).unwrap(), [1, 1]);
        for axis in [4, -4] {
            let error = shape(&Flatten(axis), &[2, 3, 4], None).unwrap_err();
            assert!(error.is::<Refusal>(), "{error}");
        }
    }

    #[test]
    fn axes_of_one_are_added_and_dropped() {
        assert_eq!(shape(&Unsqueeze(vec![0, -1]), &[3], None).unwrap(), [1, 3, 1]);
        let by_input = shape(&Unsqueeze(vec![]), &[3, 4], Some(&[1])).unwrap();
        assert_eq!(by_input, [3, 1, 4]);
        assert_eq!(shape(&Squeeze(vec![]), &[1, 3, 1, 0], None).unwrap(), [3, 0]);
        assert_eq!(shape(&Squeeze(vec![]), &[1, 3, 1], Some(&[-1])).unwrap(), [1, 3]);
        assert_eq!(shape(&Squeeze(vec![0, -3]), &[1, 3, 1], None).unwrap(), [3, 1]);
        for (compute, from) in [
            (&Unsqueeze(vec![0, -3]) as &dyn Compute, &[3][..]),
            (&Unsqueeze((0..64).collect()), &[3]),
            (&Squeeze(vec![1]), &[1, 3]),
            (&Squeeze(vec![0]), &[0]),
        ] {
            let error = shape(compute, from, None).unwrap_err();
            assert!(error.is::<BadInput>(), "{compute:?}: {error}");
        }
        assert!(shape(&Squeeze(vec![2]), &[1, 3], None).is_err());
    }

    #[test]
    fn dimensions_are_values() {
        let of = |start, end| {
            let shape = Shape { start, end };
            run(&shape, &[Tensor::zero::<u8>(&[2, 0, 4]).unwrap()])
                .unwrap()
                .remove(0)
        };
        assert_eq!(of(0, None), Tensor::vector(&[2i64, 0, 4]));
        assert_eq!(of(-2, Some(-1)), Tensor::vector(&[0i64]));
        assert_eq!(of(-9, Some(9)), Tensor::vector(&[2i64, 0, 4]));
        assert_eq!(of(2, Some(1)), Tensor::vector::<i64>(&[]));
        assert_eq!(
            run(&Size, &[texts(&[2, 1], &["a", "b"])]).unwrap()[0],
            Tensor::scalar(2i64)
        );
    }
}
