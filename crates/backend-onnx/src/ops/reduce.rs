//! Reductions of integers: tract adds INT64 up in 32 bits, knows neither UINT32 nor UINT64 nor BOOL here, and has roots and logarithms of
//! floats only. And of floats
//! `ReduceLogSumExp`, which overflows in tract, and `ReduceMax` and `ReduceMin`, which give the largest finite number there for
//! infinities and for nothing, and lose NaN; and `ReduceMean` where it may be one of nothing.

use std::sync::Arc;

use tract_hir::internal::*;

use super::{
    attributes::Attributes,
    axis,
    elements::{Element, elements, tensor},
    kernel::{Fact, Kernel, kernel},
};
use crate::{
    building::BuildContext,
    faults::{Limit, Unsupported},
    lowered::OnnxNode,
};

/// One of the reductions, for integers and BOOL, or what is listed above for floats.
pub(crate) fn reduce(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let opset = node.opset;
    let fold = match node.op_type.as_str() {
        "ReduceSum" => Fold::Sum,
        "ReduceSumSquare" => Fold::SumSquare,
        "ReduceL1" => Fold::SumAbs,
        "ReduceMean" => Fold::Mean,
        "ReduceProd" => Fold::Product,
        "ReduceMax" => Fold::Max,
        "ReduceMin" => Fold::Min,
        "ReduceLogSumExp" => Fold::LogSumExp,
        "ReduceL2" => Fold::Norm,
        "ReduceLogSum" => Fold::LogSum,
        _ => bail!(Unsupported::Anywhere("is not supported for integers".to_owned())),
    };
    let has_axes_input = opset >= 18 || (opset >= 13 && fold == Fold::Sum);
    Ok(kernel(Reduce {
        fold,
        axes: (!has_axes_input).then(|| attributes.ints("axes").to_vec()),
        keeps_dims: attributes.int("keepdims", 1) != 0,
        no_axes_is_no_op: attributes.int("noop_with_empty_axes", 0) != 0,
    }))
}

/// Whether a reduction of floats is one of no numbers, which tract computes while it makes a plan, and panics.
pub(crate) fn is_of_nothing(_: Attributes<'_>, inputs: &[Fact]) -> bool {
    inputs[0].datum_type.is_float() && inputs[0].shape.iter().any(|dim| *dim == 0.to_dim())
}

/// Whether a mean of floats may be one of no numbers: 0, as for ONNX Runtime. tract divides by their count.
pub(crate) fn may_be_of_nothing(node: Attributes<'_>, inputs: &[Fact]) -> bool {
    let rank = inputs[0].rank() as i64;
    let axes = match inputs.get(1) {
        Some(axes) => axes.integers().unwrap_or_default(),
        None => node.ints("axes").to_vec(),
    };
    let is_reduced =
        |axis: i64| axes.is_empty() || axes.iter().any(|&given| given == axis || given + rank == axis);
    let dims = (0..rank).zip(&inputs[0].shape);
    let mut reduced = dims.filter(|(axis, _)| is_reduced(*axis));
    reduced.any(|(_, dim)| dim.to_i64().ok().is_none_or(|dim| dim == 0))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    Sum,
    SumSquare,
    SumAbs,
    Mean,
    Product,
    Max,
    Min,
    LogSumExp,
    /// Of whole numbers, and of no floats.
    Norm,
    LogSum,
}

#[derive(Debug)]
struct Reduce {
    fold: Fold,
    /// The axes of the attribute, `None` where an input gives them.
    axes: Option<Vec<i64>>,
    keeps_dims: bool,
    no_axes_is_no_op: bool,
}

impl Reduce {
    /// For each axis, whether it is reduced.
    fn reduced(&self, given: Vec<i64>, rank: usize) -> TractResult<Vec<bool>> {
        let mut reduced = vec![false; rank];
        if given.is_empty() && !self.no_axes_is_no_op {
            reduced.fill(true);
        }
        for axis in given {
            reduced[axis::axis(axis, rank)?] = true;
        }
        Ok(reduced)
    }
}

impl Kernel for Reduce {
    fn name(&self) -> &'static str {
        "Reduce"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let axes = match (&self.axes, inputs.get(1)) {
            (Some(axes), _) => axes.clone(),
            (None, Some(axes)) => axes
                .integers()
                .ok_or_else(|| Limit("needs its axes to be constant".to_owned()))?,
            (None, None) => vec![],
        };
        let input = &inputs[0];
        let reduced = self.reduced(axes, input.rank())?;
        let dims = input.shape.iter().zip(reduced);
        let shape = dims.filter_map(|(dim, reduced)| match (reduced, self.keeps_dims) {
            (false, _) => Some(dim.clone()),
            (true, true) => Some(1.into()),
            (true, false) => None,
        });
        Ok(vec![Fact::new(input.datum_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let input = &inputs[0];
        if input.len() == 0 && input.datum_type().is_float() {
            return Ok(tvec![self.of_nothing(inputs)?]);
        }
        let axes = match (&self.axes, inputs.get(1)) {
            (Some(axes), _) => axes.clone(),
            (None, Some(axes)) => elements::<i64>(axes)?.to_vec(),
            (None, None) => vec![],
        };
        let reduced = self.reduced(axes, input.rank())?;
        macro_rules! fold {
            ($($name:ident $type:ty),*) => {
                match input.datum_type() {
                    DatumType::Bool => {
                        let bits: Vec<u8> = elements::<bool>(input)?.iter().map(|&bool| u8::from(bool)).collect();
                        let folded = self.fold(&bits, input.shape(), &reduced)?;
                        self.shaped(input.shape(), &reduced, folded.into_iter().map(|bit: u8| bit != 0).collect())
                    }
                    DatumType::F32 if self.is_extreme() => {
                        let folded = self.extremes(elements::<f32>(input)?, input.shape(), &reduced, f32::INFINITY, f32::NEG_INFINITY);
                        self.shaped(input.shape(), &reduced, folded)
                    }
                    DatumType::F64 if self.is_extreme() => {
                        let folded = self.extremes(elements::<f64>(input)?, input.shape(), &reduced, f64::INFINITY, f64::NEG_INFINITY);
                        self.shaped(input.shape(), &reduced, folded)
                    }
                    DatumType::F32 if self.fold == Fold::Mean => {
                        let folded = means(elements::<f32>(input)?, input.shape(), &reduced);
                        self.shaped(input.shape(), &reduced, folded.into_iter().map(|x| x as f32).collect())
                    }
                    DatumType::F64 if self.fold == Fold::Mean => {
                        let folded = means(elements::<f64>(input)?, input.shape(), &reduced);
                        self.shaped(input.shape(), &reduced, folded)
                    }
                    DatumType::F32 => {
                        let wide: Vec<f64> = elements::<f32>(input)?.iter().map(|&x| x.into()).collect();
                        let folded = log_sum_exp(&wide, input.shape(), &reduced);
                        self.shaped(input.shape(), &reduced, folded.into_iter().map(|x| x as f32).collect())
                    }
                    DatumType::F64 => {
                        let folded = log_sum_exp(elements::<f64>(input)?, input.shape(), &reduced);
                        self.shaped(input.shape(), &reduced, folded)
                    }
                    $(DatumType::$name => {
                        let folded = self.fold::<$type>(elements(input)?, input.shape(), &reduced)?;
                        self.shaped(input.shape(), &reduced, folded)
                    })*
                    other => bail!("{other:?} is not an integer type"),
                }
            };
        }
        Ok(tvec![
            fold!(U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64)?
        ])
    }
}

impl Reduce {
    fn of_nothing(&self, inputs: &[Arc<Tensor>]) -> TractResult<Tensor> {
        let number = match self.fold {
            Fold::Sum | Fold::SumSquare | Fold::SumAbs | Fold::Mean | Fold::Norm => 0.0,
            Fold::Product => 1.0,
            Fold::Max | Fold::LogSumExp | Fold::LogSum => f32::NEG_INFINITY,
            Fold::Min => f32::INFINITY,
        };
        let outputs = self.outputs(&Fact::of_values(inputs))?;
        let shape = outputs[0].shape.iter().map(TDim::to_usize);
        let shape: Vec<usize> = shape.collect::<Result<_, _>>()?;
        let number = Tensor::from(number)
            .cast_to_dt(inputs[0].datum_type())?
            .into_owned();
        number.broadcast_scalar_to_shape(&shape)
    }

    fn is_extreme(&self) -> bool {
        matches!(self.fold, Fold::Max | Fold::Min)
    }

    /// The greatest or least floats. NaN is both, wherever it stands; of nothing it is the infinity that is greater or less than all.
    fn extremes<T: Copy + PartialOrd>(
        &self,
        input: &[T],
        shape: &[usize],
        reduced: &[bool],
        most: T,
        least: T,
    ) -> Vec<T> {
        // A NaN is neither greater nor less than what is there, and not equal to itself.
        #[expect(clippy::eq_op, reason = "NaN")]
        let greater = |a: T, b: T| if b > a || b != b { b } else { a };
        #[expect(clippy::eq_op, reason = "NaN")]
        let less = |a: T, b: T| if b < a || b != b { b } else { a };
        match self.fold {
            Fold::Max => extremes(input, shape, reduced, least, greater),
            _ => extremes(input, shape, reduced, most, less),
        }
    }

    fn fold<T: Integer>(&self, input: &[T], shape: &[usize], reduced: &[bool]) -> TractResult<Vec<T>> {
        let kept = shape.iter().zip(reduced).filter(|(_, reduced)| !**reduced);
        let groups: usize = kept.map(|(&dim, _)| dim).product();
        let count = input.len().checked_div(groups).unwrap_or(0);
        if let Fold::LogSumExp | Fold::Norm | Fold::LogSum = self.fold {
            let wide: Vec<f64> = input.iter().map(|number| number.wide()).collect();
            let rounded = self.of_floats(&wide, shape, reduced, groups).into_iter();
            return Ok(rounded.map(T::truncated).collect());
        }
        let start = match self.fold {
            Fold::Product => T::ONE,
            Fold::Max => T::LEAST,
            Fold::Min => T::GREATEST,
            _ => T::ZERO,
        };
        let mut folded = vec![start; groups];
        for (&value, group) in input.iter().zip(self::groups(shape, reduced)) {
            let slot = &mut folded[group];
            *slot = match self.fold {
                Fold::Sum | Fold::Mean => slot.add(value),
                Fold::SumSquare => slot.add(value.times(value)),
                Fold::SumAbs => slot.add(value.magnitude()),
                Fold::Product => slot.times(value),
                Fold::Max => value.max(*slot),
                Fold::Min => value.min(*slot),
                Fold::LogSumExp | Fold::Norm | Fold::LogSum => bail!("{:?} of integers", self.fold),
            };
        }
        if self.fold == Fold::Mean {
            folded.iter_mut().for_each(|sum| *sum = sum.divided(count.max(1)));
        }
        Ok(folded)
    }

    /// A root or a logarithm, before it is rounded towards zero.
    fn of_floats(&self, input: &[f64], shape: &[usize], reduced: &[bool], groups: usize) -> Vec<f64> {
        if self.fold == Fold::LogSumExp {
            return log_sum_exp(input, shape, reduced);
        }
        let is_norm = self.fold == Fold::Norm;
        let mut sums = vec![0.0; groups];
        for (&number, group) in input.iter().zip(self::groups(shape, reduced)) {
            sums[group] += if is_norm { number * number } else { number };
        }
        let finished = |sum: f64| if is_norm { sum.sqrt() } else { sum.ln() };
        sums.into_iter().map(finished).collect()
    }

    fn shaped<T: Element>(&self, shape: &[usize], reduced: &[bool], folded: Vec<T>) -> TractResult<Tensor> {
        let dims = shape.iter().zip(reduced);
        let shape: Vec<usize> = dims
            .filter_map(|(&dim, reduced)| match (reduced, self.keeps_dims) {
                (false, _) => Some(dim),
                (true, true) => Some(1),
                (true, false) => None,
            })
            .collect();
        tensor(&shape, folded)
    }
}

/// The means of floats; 0 for none.
fn means<T: Copy + Into<f64>>(input: &[T], shape: &[usize], reduced: &[bool]) -> Vec<f64> {
    let kept = shape.iter().zip(reduced).filter(|(_, reduced)| !**reduced);
    let mut means = vec![0.0; kept.map(|(&dim, _)| dim).product()];
    let count = input.len().checked_div(means.len()).unwrap_or(0).max(1) as f64;
    // Numbers that lie side by side and belong together.
    let last = reduced.iter().rposition(|&reduced| !reduced);
    let line: usize = shape[last.map_or(0, |last| last + 1)..].iter().product();
    let (outer, outer_reduced) = match last {
        Some(last) => (&shape[..=last], &reduced[..=last]),
        None => (&[][..], &[][..]),
    };
    let lines = input.chunks_exact(line.max(1));
    for (line, group) in lines.zip(groups(outer, outer_reduced)) {
        means[group] += line.iter().map(|&x| x.into()).sum::<f64>();
    }
    means.iter_mut().for_each(|sum| *sum /= count);
    means
}

/// Folds floats by what chooses one of two.
fn extremes<T: Copy>(
    input: &[T],
    shape: &[usize],
    reduced: &[bool],
    start: T,
    choose: impl Fn(T, T) -> T + Copy,
) -> Vec<T> {
    /// So many at a time, for vector instructions.
    const LANES: usize = 16;
    let kept = shape.iter().zip(reduced).filter(|(_, reduced)| !**reduced);
    let groups: usize = kept.map(|(&dim, _)| dim).product();
    let mut folded = vec![start; groups];
    let first = reduced.iter().position(|&reduced| reduced).unwrap_or(shape.len());
    let count = reduced[first..].iter().take_while(|&&reduced| reduced).count();
    let (inside, behind) = reduced[first..].split_at(count);
    if behind.contains(&true) {
        for (&value, group) in input.iter().zip(self::groups(shape, reduced)) {
            folded[group] = choose(folded[group], value);
        }
        return folded;
    }
    // Neighbouring axes: blocks of so many rows, each as wide as a result.
    let inside: usize = shape[first..first + inside.len()].iter().product();
    let width: usize = shape[first + count..].iter().product();
    if inside * width == 0 {
        return folded;
    }
    for (block, folded) in input
        .chunks_exact(inside * width)
        .zip(folded.chunks_exact_mut(width))
    {
        if let [folded] = folded {
            let (parts, rest) = block.as_chunks::<LANES>();
            let mut lanes = [start; LANES];
            for part in parts {
                lanes = std::array::from_fn(|lane| choose(lanes[lane], part[lane]));
            }
            *folded = lanes.iter().chain(rest).fold(start, |a, &b| choose(a, b));
            continue;
        }
        for row in block.chunks_exact(width) {
            for (folded, &value) in folded.iter_mut().zip(row) {
                *folded = choose(*folded, value);
            }
        }
    }
    folded
}

/// To which group each element belongs, in row-major order, without end.
pub(super) fn groups<'a>(shape: &'a [usize], reduced: &'a [bool]) -> impl Iterator<Item = usize> + use<'a> {
    let mut place = vec![0usize; shape.len()];
    std::iter::repeat_with(move || {
        let kept = place
            .iter()
            .zip(shape)
            .zip(reduced)
            .filter(|(_, reduced)| !**reduced);
        let group = kept.fold(0, |index, ((&at, &dim), _)| index * dim + at);
        for (at, &dim) in place.iter_mut().zip(shape).rev() {
            *at += 1;
            if *at < dim {
                break;
            }
            *at = 0;
        }
        group
    })
}

/// The logarithm of the sum of exponentials, each of the distance to the largest, so that none overflows.
fn log_sum_exp(input: &[f64], shape: &[usize], reduced: &[bool]) -> Vec<f64> {
    let kept = shape.iter().zip(reduced).filter(|(_, reduced)| !**reduced);
    let count: usize = kept.map(|(&dim, _)| dim).product();
    let mut greatest = vec![f64::NEG_INFINITY; count];
    for (&x, group) in input.iter().zip(groups(shape, reduced)) {
        greatest[group] = greatest[group].max(x);
    }
    // Distances to an infinity are no numbers; the sum is infinite or zero by itself then.
    for greatest in greatest.iter_mut().filter(|greatest| greatest.is_infinite()) {
        *greatest = 0.0;
    }
    let mut sums = vec![0.0; count];
    for (&x, group) in input.iter().zip(groups(shape, reduced)) {
        sums[group] += (x - greatest[group]).exp();
    }
    sums.iter()
        .zip(greatest)
        .map(|(sum, greatest)| sum.ln() + greatest)
        .collect()
}

/// Arithmetic that wraps, as NumPy's does.
trait Integer: Datum + Copy + Ord {
    const ZERO: Self;
    const ONE: Self;
    const LEAST: Self;
    const GREATEST: Self;

    fn add(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn magnitude(self) -> Self;
    /// A sum divided by the count of its terms.
    fn divided(self, count: usize) -> Self;
    fn wide(self) -> f64;
    /// Rounded towards zero.
    fn truncated(number: f64) -> Self;
}

macro_rules! integer {
    ($($type:ty: $magnitude:expr),* $(,)?) => {$(
        impl Integer for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LEAST: Self = Self::MIN;
            const GREATEST: Self = Self::MAX;

            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn magnitude(self) -> Self {
                $magnitude(self)
            }

            fn divided(self, count: usize) -> Self {
                (i128::from(self) / count as i128) as Self
            }

            fn wide(self) -> f64 {
                self as f64
            }

            fn truncated(number: f64) -> Self {
                number as Self
            }
        }
    )*};
}

integer! {
    u8: std::convert::identity, u16: std::convert::identity, u32: std::convert::identity, u64: std::convert::identity,
    i8: i8::wrapping_abs, i16: i16::wrapping_abs, i32: i32::wrapping_abs, i64: i64::wrapping_abs,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn reduced(fold: Fold, shape: &[usize], values: &[f32], axes: &[i64]) -> Vec<f32> {
        let reduce = Reduce {
            fold,
            axes: Some(axes.to_vec()),
            keeps_dims: false,
            no_axes_is_no_op: false,
        };
        let input = Tensor::from_shape(shape, values).unwrap().into_arc_tensor();
        let outputs = reduce.run(&[input]).unwrap();
        elements::<f32>(&outputs[0]).unwrap().to_vec()
    }

    #[test]
    fn roots_and_logarithms_of_whole_numbers_are_rounded_towards_zero() {
        let of = |fold, values: &[i32]| {
            let reduce = Reduce {
                fold,
                axes: Some(vec![1]),
                keeps_dims: false,
                no_axes_is_no_op: false,
            };
            let input = Tensor::from_shape(&[1, values.len()], values).unwrap();
            let outputs = reduce.run(&[input.into_arc_tensor()]).unwrap();
            elements::<i32>(&outputs[0]).unwrap()[0]
        };
        assert_eq!(of(Fold::Norm, &[-3, 4]), 5);
        assert_eq!(of(Fold::Norm, &[1, 1]), 1);
        assert_eq!(of(Fold::LogSum, &[4, 4]), 2);
        assert_eq!(of(Fold::LogSumExp, &[900, 900, 900]), 901);
    }

    #[test]
    fn extremes_of_infinities_nan_and_nothing() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let values = [-inf, -inf, inf, inf, nan, 1.0, 1.0, nan];
        let most = reduced(Fold::Max, &[4, 2], &values, &[1]);
        assert_eq!(most[..2], [-inf, inf]);
        assert!(most[2].is_nan() && most[3].is_nan());
        let least = reduced(Fold::Min, &[4, 2], &values, &[1]);
        assert_eq!(least[..2], [-inf, inf]);
        assert!(least[2].is_nan() && least[3].is_nan());
        for axes in [&[1][..], &[]] {
            let count = if axes.is_empty() { 1 } else { 3 };
            assert_eq!(reduced(Fold::Max, &[3, 0], &[], axes), vec![-inf; count]);
            assert_eq!(reduced(Fold::Min, &[3, 0], &[], axes), vec![inf; count]);
        }
    }

    #[test]
    fn extremes_along_all_axes_are_those_of_their_groups() {
        let shape = [2, 3, 5, 7];
        let count = shape.iter().product();
        // Each number once, mixed.
        let values: Vec<f32> = (0..count)
            .map(|at: usize| (at * 67 % 210) as f32 - 99.0)
            .collect();
        for bits in 1..16u32 {
            let axes: Vec<i64> = (0..4).filter(|axis| bits >> axis & 1 == 1).collect();
            let along: Vec<bool> = (0..4).map(|axis| bits >> axis & 1 == 1).collect();
            let kept = shape.iter().zip(&along).filter(|(_, reduced)| !**reduced);
            let results: usize = kept.map(|(&dim, _)| dim).product();
            let (mut most, mut least) = (vec![f32::MIN; results], vec![f32::MAX; results]);
            for (&value, group) in values.iter().zip(groups(&shape, &along)) {
                most[group] = most[group].max(value);
                least[group] = least[group].min(value);
            }
            assert_eq!(reduced(Fold::Max, &shape, &values, &axes), most, "{axes:?}");
            assert_eq!(reduced(Fold::Min, &shape, &values, &axes), least, "{axes:?}");
        }
    }
}
