//! Reductions along axes, and pools over whole images.

use std::{ops::Range, sync::Arc};

use onnx_tensor::prelude::*;

use crate::reduce::{
    fold::{self, greatest},
    sums::{Finish, Sums, Term},
};
use onnx_tensor::{
    axis::axis,
    cancelling::{PART, Pace},
    elements::{elements, tensor},
    faults::ensure_input,
    integers::known_integers,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel},
};

/// Builds the operator `ArgMax` or `ArgMin`.
pub fn argument(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Argument::of(node)?))
}

/// Builds the operator `GlobalAveragePool` or `GlobalMaxPool`.
pub fn global_pool(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(GlobalPool {
        is_max: node.op_type == "GlobalMaxPool",
        are_channels_last: false,
    }))
}

/// Builds the operator `ChannelsLastGlobalAveragePool`: `GlobalAveragePool` for images whose channels come
/// last.
pub fn channels_last_global_average(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(GlobalPool {
        is_max: false,
        are_channels_last: true,
    }))
}

/// Builds a reduction, such as `ReduceL1`.
pub fn reduce(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Reduce::of(node)?))
}

/// The operator `ReduceSum`, and all other reductions along axes.
#[derive(Debug)]
pub(crate) struct Reduce(fold::Reduce);

impl Reduce {
    pub(crate) fn of(node: &Node) -> Result<Self> {
        fold::Reduce::of(node).map(Self)
    }
}

impl Compute for Reduce {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        if let Some(axes) = inputs.get(1) {
            known_integers(axes)?;
        }
        let Some(axes) = self.0.known_axes(inputs.get(1)) else {
            return Ok(None);
        };
        let shape = self.0.shape(&input.shape, axes, &1.to_dim())?;
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let made = self.0.run(inputs)?;
        Ok(made.into_iter().map(Arc::new).collect())
    }
}

/// `ArgMax` and `ArgMin`. NaN is chosen only if it is the first element.
#[derive(Debug)]
pub(crate) struct Argument {
    axis: i64,
    keeps_dims: bool,
    is_max: bool,
    /// Whether the last of equal elements is chosen (`select_last_index`).
    takes_last: bool,
}

impl Argument {
    pub(crate) fn of(node: &Node) -> Result<Self> {
        let attributes = Attributes(node);
        Ok(Self {
            axis: attributes.int("axis", 0),
            keeps_dims: attributes.flag("keepdims", true)?,
            is_max: node.op_type == "ArgMax",
            takes_last: attributes.flag("select_last_index", false)?,
        })
    }

    fn shape<D: Clone>(&self, shape: &[D], axis: usize, one: D) -> ShortVec<D> {
        let mut shape: ShortVec<D> = shape.into();
        match self.keeps_dims {
            true => shape[axis] = one,
            false => drop(shape.remove(axis)),
        }
        shape
    }

    fn places<T: Element + Copy + PartialOrd>(&self, input: &Tensor, axis: usize) -> Result<Vec<i64>> {
        let values = elements::<T>(input)?;
        match (self.is_max, self.takes_last) {
            (true, false) => places(values, input.shape(), axis, |new, old| new > old),
            (true, true) => places(values, input.shape(), axis, |new, old| new >= old),
            (false, false) => places(values, input.shape(), axis, |new, old| new < old),
            (false, true) => places(values, input.shape(), axis, |new, old| new <= old),
        }
    }
}

/// Returns the index of the chosen element of each group along an axis.
fn places<T: Copy>(
    values: &[T],
    shape: &[usize],
    axis: usize,
    replaces: impl Fn(T, T) -> bool + Copy,
) -> Result<Vec<i64>> {
    let outside: usize = shape[..axis].iter().product();
    let (along, width) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let mut places = vec![0i64; outside * width];
    if places.is_empty() {
        return Ok(places);
    }
    ensure_input!(
        along > 0,
        "axis {axis} of {shape:?} has no elements, of which one is to be found"
    );
    let mut pace = Pace::default();
    let mut best = Vec::with_capacity(width.min(PART));
    let together = PART / width.min(PART);
    let blocks = values.chunks_exact(along * width);
    for (block, places) in blocks.zip(places.chunks_exact_mut(width)) {
        // Processes a block of columns at a time, and in it a few rows at a time.
        for (column, places) in (0..).step_by(PART).zip(places.chunks_mut(PART)) {
            let columns = column..column + places.len();
            pace.spend(places.len() as u64)?;
            best.clear();
            best.extend_from_slice(&block[columns.clone()]);
            let (mut rows, mut number) = (&block[width..], 1);
            while !rows.is_empty() {
                pace.spend((together.min(along) * places.len()) as u64)?;
                for _ in 0..together {
                    // `chunks_exact` would divide, which takes longer than a short row.
                    let Some((row, rest)) = rows.split_at_checked(width) else {
                        break;
                    };
                    let pairs = places.iter_mut().zip(&mut best).zip(&row[columns.clone()]);
                    for ((place, best), &value) in pairs {
                        if replaces(value, *best) {
                            (*place, *best) = (number, value);
                        }
                    }
                    (rows, number) = (rest, number + 1);
                }
            }
        }
    }
    Ok(places)
}

impl Compute for Argument {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let axis = axis(self.axis, input.rank())?;
        Ok(Some(vec![Fact::new(
            ElementType::I64,
            self.shape(&input.shape, axis, 1.to_dim()),
        )]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let input = &inputs[0];
        let axis = axis(self.axis, input.rank())?;
        let places = with_number!(input.element_type(), T => self.places::<T>(input, axis))?;
        let shape = self.shape(input.shape(), axis, 1);
        Ok(smallvec![Arc::new(tensor(&shape, places)?)])
    }
}

/// The operators `GlobalAveragePool` and `GlobalMaxPool`.
#[derive(Debug)]
pub(crate) struct GlobalPool {
    pub(crate) is_max: bool,
    /// Whether the channels are the last axis, not the second.
    pub(crate) are_channels_last: bool,
}

impl GlobalPool {
    /// Returns the range of the pooled axes of an image of `rank` dimensions.
    fn pooled(&self, rank: usize) -> Range<usize> {
        match self.are_channels_last {
            true => 1..rank - 1,
            false => 2..rank,
        }
    }
}

impl Compute for GlobalPool {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        ensure_input!(
            input.rank() > 2,
            "an image has {} dimensions, expected 3 at least: batch, channels and pixels",
            input.rank()
        );
        ensure_input!(
            !input.shape[1..].contains(&Dim::Known(0)),
            "an image of the shape {:?} has no pixels",
            input.shape
        );
        let mut pooled = input.with(input.element_type);
        pooled.shape[self.pooled(input.rank())].fill(1.to_dim());
        Ok(Some(vec![pooled]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let input = &inputs[0];
        let shape = input.shape();
        let axes = self.pooled(shape.len());
        let reduced: Vec<bool> = (0..shape.len()).map(|axis| axes.contains(&axis)).collect();
        if !self.is_max {
            let means = Sums {
                reduced,
                term: Term::Itself,
                finish: Finish::Mean,
            };
            return Ok(smallvec![Arc::new(means.of(input)?)]);
        }
        let mut pooled: ShortVec<usize> = shape.into();
        pooled[axes].fill(1);
        let made = match input.element_type() {
            ElementType::F16 => tensor(
                &pooled,
                greatest(elements::<f16>(input)?, shape, &reduced, f16::NEG_INFINITY)?,
            ),
            ElementType::F32 => tensor(
                &pooled,
                greatest(elements::<f32>(input)?, shape, &reduced, f32::NEG_INFINITY)?,
            ),
            ElementType::F64 => tensor(
                &pooled,
                greatest(elements::<f64>(input)?, shape, &reduced, f64::NEG_INFINITY)?,
            ),
            other => bail!("a pool of {other:?}"),
        }?;
        Ok(smallvec![Arc::new(made)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::shape::texts::tests::run;
    use onnx_tensor::{
        faults::{BadInput, Refusal},
        node::Attribute,
    };

    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;

    fn node(name: &str, attributes: &[(&str, i64)]) -> Node {
        let attribute = attributes.iter().map(|&(name, i)| Attribute {
            name: name.to_owned(),
            i,
            ..Attribute::default()
        });
        Node {
            op_type: name.to_owned(),
            opset: 18,
            attribute: attribute.collect(),
            ..Node::default()
        }
    }

    /// Reduces along `axes`, or along all axes.
    fn reduced(name: &str, input: &Tensor, axes: Option<&[i64]>, attributes: &[(&str, i64)]) -> Tensor {
        let reduce = Reduce::of(&node(name, attributes)).unwrap();
        let mut inputs = vec![input.clone()];
        inputs.extend(axes.map(Tensor::vector));
        run(&reduce, &inputs).unwrap().remove(0)
    }

    fn floats(tensor: &Tensor) -> Vec<f32> {
        elements::<f32>(tensor).unwrap().to_vec()
    }

    /// The expected values come from ONNX Runtime, except for NaN, which propagates here.
    #[test]
    fn floats_are_reduced_along_axes() {
        let input = Tensor::matrix(&[[-1.0f32, 2.0], [3.0, -4.0]]);
        for (name, all, rows) in [
            ("ReduceL1", 10.0, [3.0, 7.0]),
            ("ReduceL2", 30f32.sqrt(), [5f32.sqrt(), 5.0]),
            ("ReduceLogSum", -INF, [0.0, NAN]),
            ("ReduceLogSumExp", 3.327_220_2, [2.048_587_3, 3.000_911_5]),
            ("ReduceMax", 3.0, [2.0, 3.0]),
            ("ReduceMean", 0.0, [0.5, -0.5]),
            ("ReduceMin", -4.0, [-1.0, -4.0]),
            ("ReduceProd", 24.0, [-2.0, -12.0]),
            ("ReduceSum", 0.0, [1.0, -1.0]),
            ("ReduceSumSquare", 30.0, [5.0, 25.0]),
        ] {
            let is_close = |found: f32, expected: f32| {
                let is_same = found == expected || (found.is_nan() && expected.is_nan());
                is_same || (found - expected).abs() < 1e-5
            };
            for values in [
                input.clone(),
                input.cast_to_type(ElementType::F64).unwrap().into_owned(),
            ] {
                let along = |axes, attributes: &[_]| {
                    let found = reduced(name, &values, axes, attributes);
                    found.cast_to_type(ElementType::F32).unwrap().into_owned()
                };
                let found = along(None, &[]);
                assert_eq!(found.shape(), [1, 1]);
                assert!(is_close(floats(&found)[0], all), "{name}: {found:?}");
                let found = along(Some(&[-1]), &[("keepdims", 0)]);
                assert_eq!(found.shape(), [2]);
                let pairs = floats(&found).into_iter().zip(rows);
                assert!(
                    pairs.clone().all(|(found, row)| is_close(found, row)),
                    "{name}: {found:?}"
                );
                let found = along(Some(&[]), &[("noop_with_empty_axes", 1)]);
                assert_eq!(found.shape(), [2, 2]);
            }
        }
    }

    #[test]
    fn without_axes_each_number_is_reduced_by_itself() {
        let input = Tensor::matrix(&[[-1.0f32, 2.0], [3.0, -4.0]]);
        let of = |name| floats(&reduced(name, &input, None, &[("noop_with_empty_axes", 1)]));
        assert_eq!(of("ReduceL1"), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(of("ReduceL2"), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(of("ReduceSumSquare"), [1.0, 4.0, 9.0, 16.0]);
        assert_eq!(of("ReduceLogSumExp"), [-1.0, 2.0, 3.0, -4.0]);
        for name in ["ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"] {
            assert_eq!(of(name), floats(&input), "{name}");
        }
        let scalar = |name| reduced(name, &Tensor::scalar(-3.0f32), None, &[]);
        assert_eq!(scalar("ReduceL1"), Tensor::scalar(3.0f32));
        assert_eq!(scalar("ReduceSumSquare"), Tensor::scalar(9.0f32));
        assert_eq!(scalar("ReduceMean"), Tensor::scalar(-3.0f32));
    }

    #[test]
    fn of_nothing_there_are_neutral_numbers() {
        let (floats_of_none, whole) = (
            Tensor::zero::<f32>(&[0, 2]).unwrap(),
            Tensor::zero::<i32>(&[0, 2]).unwrap(),
        );
        for (name, float, integer) in [
            ("ReduceL1", 0.0, 0),
            ("ReduceL2", 0.0, 0),
            ("ReduceLogSum", -INF, i32::MIN),
            ("ReduceLogSumExp", -INF, i32::MIN),
            ("ReduceMax", -INF, i32::MIN),
            ("ReduceMean", 0.0, 0),
            ("ReduceMin", INF, i32::MAX),
            ("ReduceProd", 1.0, 1),
            ("ReduceSum", 0.0, 0),
            ("ReduceSumSquare", 0.0, 0),
        ] {
            let found = reduced(name, &floats_of_none, Some(&[0]), &[]);
            assert_eq!(found, Tensor::matrix(&[[float, float]]), "{name}");
            assert_eq!(reduced(name, &floats_of_none, Some(&[1]), &[]).shape(), [0, 1]);
            let found = reduced(name, &whole, Some(&[0]), &[]);
            assert_eq!(found, Tensor::matrix(&[[integer, integer]]), "{name}");
        }
    }

    #[test]
    fn nan_and_infinities_stay() {
        let input = Tensor::matrix(&[[1.0, NAN], [INF, -INF], [INF, INF]]);
        let of = |name| floats(&reduced(name, &input, Some(&[1]), &[]));
        let sums = of("ReduceSum");
        assert!(sums[0].is_nan() && sums[1].is_nan() && sums[2] == INF, "{sums:?}");
        let norms = of("ReduceL2");
        assert!(norms[0].is_nan() && norms[1..] == [INF, INF], "{norms:?}");
        let products = of("ReduceProd");
        assert!(
            products[0].is_nan() && products[1..] == [-INF, INF],
            "{products:?}"
        );
    }

    #[test]
    fn whole_numbers_wrap_and_truths_are_joined() {
        let bytes = Tensor::matrix(&[[100i8, 100], [-128, -1]]);
        let of = |name| {
            let found = reduced(name, &bytes, Some(&[1]), &[("keepdims", 0)]);
            elements::<i8>(&found).unwrap().to_vec()
        };
        assert_eq!(of("ReduceSum"), [-56, 127]);
        assert_eq!(of("ReduceProd"), [16, -128]);
        assert_eq!(of("ReduceL1"), [-56, -127]);
        assert_eq!(of("ReduceMax"), [100, -1]);
        let truths = Tensor::matrix(&[[true, false], [true, true]]);
        let of = |name| reduced(name, &truths, Some(&[1]), &[("keepdims", 0)]);
        assert_eq!(of("ReduceMax"), Tensor::vector(&[true, true]));
        assert_eq!(of("ReduceMin"), Tensor::vector(&[false, true]));
    }

    #[test]
    fn axes_that_do_not_exist_are_refused() {
        let reduce = Reduce::of(&node("ReduceSum", &[])).unwrap();
        let input = Tensor::vector(&[1.0f32]);
        let error = run(&reduce, &[input.clone(), Tensor::vector(&[1i64])]).unwrap_err();
        assert!(error.is::<Refusal>(), "{error}");
        let error = run(&reduce, &[input, Tensor::vector(&[0.5f32])]).unwrap_err();
        assert!(error.is::<BadInput>(), "{error}");
    }

    #[test]
    fn places_of_extremes_are_found() {
        let of = |name: &str, last: i64, numbers: &[f32]| {
            let argument =
                Argument::of(&node(name, &[("select_last_index", last), ("keepdims", 0)])).unwrap();
            let line = Tensor::vector(numbers);
            let found = run(&argument, std::slice::from_ref(&line)).unwrap().remove(0);
            // A matrix whose two columns have the same values as `line`.
            let both = Tensor::concat(
                1,
                &[line.clone(), line].map(|line| line.into_shape(&[numbers.len(), 1]).unwrap()),
            );
            let columns = run(&argument, &[both.unwrap()]).unwrap().remove(0);
            let place = *elements::<i64>(&found).unwrap().first().unwrap();
            assert_eq!(columns, Tensor::vector(&[place, place]));
            place
        };
        for (numbers, max, min) in [
            (&[NAN, 1.0, 2.0][..], [0, 0], [0, 0]),
            (&[1.0, NAN, 2.0, NAN], [2, 2], [0, 0]),
            (&[3.0, NAN, 1.0], [0, 0], [2, 2]),
            (&[1.0, 1.0, 0.0, 0.0, 1.0], [0, 4], [2, 3]),
            (&[INF, INF], [0, 1], [0, 1]),
            (&[-0.0, 0.0], [0, 1], [0, 1]),
        ] {
            for last in [0, 1] {
                assert_eq!(of("ArgMax", last, numbers), max[last as usize], "{numbers:?}");
                assert_eq!(of("ArgMin", last, numbers), min[last as usize], "{numbers:?}");
            }
        }
    }

    #[test]
    fn places_are_found_along_any_axis_of_all_types() {
        let of = |attributes: &[_], input: Tensor| {
            run(&Argument::of(&node("ArgMax", attributes)).unwrap(), &[input])
        };
        let table = Tensor::matrix(&[[1u16, 5, 3], [4, 2, 9]]);
        assert_eq!(
            of(&[], table.clone()).unwrap()[0],
            Tensor::matrix(&[[1i64, 0, 1]])
        );
        assert_eq!(
            of(&[("axis", -1)], table.clone()).unwrap()[0],
            Tensor::matrix(&[[1i64], [2]])
        );
        let halves = Tensor::vector(&[f16::from_f32(-1.0), f16::from_f32(0.5)]);
        assert_eq!(of(&[], halves).unwrap()[0], Tensor::vector(&[1i64]));
        let close = Tensor::vector(&[1i64 << 53, (1 << 53) + 1]);
        assert_eq!(of(&[], close).unwrap()[0], Tensor::vector(&[1i64]));
        let nothing = Tensor::zero::<f32>(&[0, 3]).unwrap();
        assert_eq!(of(&[("axis", 1)], nothing.clone()).unwrap()[0].shape(), [0, 1]);
        assert!(of(&[], nothing).unwrap_err().is::<BadInput>());
        assert!(of(&[("axis", 2)], table).unwrap_err().is::<Refusal>());
    }

    #[test]
    fn images_are_pooled_as_a_whole() {
        let image = Tensor::vector(&[1.0f32, 5.0, -3.0, -1.0, -INF, -INF, NAN, 2.0]);
        let image = image.into_shape(&[1, 4, 2, 1]).unwrap();
        let pooled = |is_max, input: &Tensor| {
            let are_channels_last = false;
            run(
                &GlobalPool {
                    is_max,
                    are_channels_last,
                },
                std::slice::from_ref(input),
            )
        };
        let max = pooled(true, &image).unwrap().remove(0);
        assert_eq!(max.shape(), [1, 4, 1, 1]);
        let max = floats(&max);
        assert!(max[..3] == [5.0, -1.0, -INF] && max[3].is_nan(), "{max:?}");
        let mean = floats(&pooled(false, &image).unwrap()[0]);
        assert!(mean[..3] == [3.0, -2.0, -INF] && mean[3].is_nan(), "{mean:?}");
        let halves = onnx_tensor::testing::cube(&[[[f16::from_f32(1.0), f16::from_f32(2.0)]]]);
        assert_eq!(
            pooled(true, &halves).unwrap()[0],
            onnx_tensor::testing::cube(&[[[f16::from_f32(2.0)]]])
        );
        let doubles = onnx_tensor::testing::cube(&[[[1.0f64, 2.0]]]);
        assert_eq!(
            pooled(false, &doubles).unwrap()[0],
            onnx_tensor::testing::cube(&[[[1.5f64]]])
        );
        let no_images = Tensor::zero::<f32>(&[0, 2, 3]).unwrap();
        assert_eq!(pooled(true, &no_images).unwrap()[0].shape(), [0, 2, 1]);
        for shape in [&[1, 2, 0][..], &[1, 0, 3], &[2, 3], &[]] {
            for is_max in [true, false] {
                let error = pooled(is_max, &Tensor::zero::<f32>(shape).unwrap()).unwrap_err();
                assert!(error.is::<BadInput>(), "{shape:?}: {error}");
            }
        }
    }
}
