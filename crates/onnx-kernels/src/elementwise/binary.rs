//! Elementwise functions of two tensors of numbers or BOOL, which broadcast.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::least_work::ELEMENTS;

use onnx_tensor::elements::elements;
use onnx_tensor::shapes;
use onnx_tensor::{
    cancelling::Pace,
    split::{self, LINE},
};

/// A function of two numbers or two BOOLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Sum,
    Difference,
    Product,
    Quotient,
    Maximum,
    Minimum,
    And,
    Or,
    Xor,
}

/// Combines two tensors of one type element-wise, in place of the first one if it has no other references.
/// Integers wrap; no divisor may be 0 ([`has_zero`](crate::elementwise::remainder::has_zero)). The maximum
/// and minimum of NaN and a number are NaN.
pub(crate) fn combined(
    function: Function,
    a: Arc<Tensor>,
    b: &Tensor,
    shape: &[usize],
) -> Result<Arc<Tensor>> {
    let element_type = a.element_type();
    ensure!(
        b.element_type() == element_type,
        "the inputs have different types"
    );
    macro_rules! real {
        ($T:ty, $is_wide:expr) => {
            match function {
                Function::Sum => computed::<$T, $is_wide>(a, b, shape, |a, b| a + b),
                Function::Difference => computed::<$T, $is_wide>(a, b, shape, |a, b| a - b),
                Function::Product => computed::<$T, $is_wide>(a, b, shape, |a, b| a * b),
                Function::Quotient => computed::<$T, $is_wide>(a, b, shape, |a, b| a / b),
                Function::Maximum => {
                    computed::<$T, $is_wide>(a, b, shape, |a, b| if (a > b) | a.is_nan() { a } else { b })
                }
                Function::Minimum => {
                    computed::<$T, $is_wide>(a, b, shape, |a, b| if (a < b) | a.is_nan() { a } else { b })
                }
                other => bail!("a {other:?} of {element_type:?}"),
            }
        };
    }
    macro_rules! whole {
        ($T:ty, $is_wide:expr, $quotient:expr) => {
            match function {
                Function::Sum => computed::<$T, $is_wide>(a, b, shape, <$T>::wrapping_add),
                Function::Difference => computed::<$T, $is_wide>(a, b, shape, <$T>::wrapping_sub),
                Function::Product => computed::<$T, $is_wide>(a, b, shape, <$T>::wrapping_mul),
                Function::Quotient => computed::<$T, $is_wide>(a, b, shape, $quotient),
                Function::Maximum => computed::<$T, $is_wide>(a, b, shape, Ord::max),
                Function::Minimum => computed::<$T, $is_wide>(a, b, shape, Ord::min),
                other => bail!("a {other:?} of {element_type:?}"),
            }
        };
    }
    // Types that are rare in models share one loop for all functions, which reduces the code to a fifth.
    macro_rules! rare {
        ($T:ty, $function:expr) => {{
            let function: fn($T, $T) -> $T = $function;
            computed::<$T, false>(a, b, shape, function)
        }};
    }
    macro_rules! rare_whole {
        ($T:ty) => {
            rare!(
                $T,
                match function {
                    Function::Sum => <$T>::wrapping_add,
                    Function::Difference => <$T>::wrapping_sub,
                    Function::Product => <$T>::wrapping_mul,
                    Function::Quotient => <$T>::wrapping_div,
                    Function::Maximum => Ord::max,
                    Function::Minimum => Ord::min,
                    other => bail!("a {other:?} of {element_type:?}"),
                }
            )
        };
    }
    match element_type {
        ElementType::F16 => rare!(
            f16,
            match function {
                Function::Sum => |a, b| a + b,
                Function::Difference => |a, b| a - b,
                Function::Product => |a, b| a * b,
                Function::Quotient => |a, b| a / b,
                Function::Maximum => |a, b| if (a > b) | a.is_nan() { a } else { b },
                Function::Minimum => |a, b| if (a < b) | a.is_nan() { a } else { b },
                other => bail!("a {other:?} of {element_type:?}"),
            }
        ),
        ElementType::F32 => real!(f32, true),
        ElementType::F64 => real!(f64, true),
        ElementType::I8 => rare_whole!(i8),
        ElementType::I16 => rare_whole!(i16),
        ElementType::I32 => whole!(i32, true, quotient),
        ElementType::I64 => whole!(i64, true, i64::wrapping_div),
        ElementType::U8 => whole!(u8, false, u8::wrapping_div),
        ElementType::U16 => rare_whole!(u16),
        ElementType::U32 => rare_whole!(u32),
        ElementType::U64 => rare_whole!(u64),
        ElementType::Bool => match function {
            Function::And => truths(a, b, shape, |a, b| a & b).map(Arc::new),
            Function::Or => truths(a, b, shape, |a, b| a | b).map(Arc::new),
            Function::Xor => truths(a, b, shape, |a, b| a ^ b).map(Arc::new),
            other => bail!("a {other:?} of BOOL"),
        },
        other => bail!("a {function:?} of {other:?}"),
    }
}

/// Divides INT32 numbers, rounding towards zero. Division in FP64 is exact for them, and has vector
/// instructions. `i32::MIN / -1` wraps. `b` must not be 0.
#[inline(always)]
fn quotient(a: i32, b: i32) -> i32 {
    // 1.5 * 2^52: adding it moves the integer part into the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let whole = (f64::from(a) / f64::from(b)).trunc();
    (whole + ROUND).to_bits() as i32
}

/// Combines two tensors of BOOL, whose bytes are 0 or 1. Computes with bytes, since a slice of BOOL would check
/// each element.
fn truths(
    a: Arc<Tensor>,
    b: &Tensor,
    shape: &[usize],
    function: impl Fn(u8, u8) -> u8 + Copy + Sync,
) -> Result<Tensor> {
    let arch = pulp::Arch::new();
    let runs = Runs::new(a.shape(), b.shape(), shape);
    let a = match a.shape() == shape {
        true => Arc::try_unwrap(a),
        false => Err(a),
    };
    let b = b.as_units::<u8>()?;
    match a {
        Ok(mut a) => {
            replace(a.as_units_mut()?, b, &runs, &|a, b| {
                run::<true>(arch, InPlace { a, b, function });
            })?;
            Ok(a)
        }
        Err(a) => {
            let mut made = Tensor::zero_of(ElementType::Bool, shape)?;
            let (a, work) = (a.as_units()?, [made.len() as u64, PAIRS]);
            split::lines(made.as_units_mut()?, LINE, work, |first, made, pace| {
                meet(
                    [a, b],
                    (first, made),
                    &runs,
                    &|a, b, made| {
                        let function = |a: &u8, b: &u8| function(*a, *b);
                        run::<true>(arch, OutOfPlace { a, b, made, function });
                    },
                    pace,
                )
            })?;
            Ok(made)
        }
    }
}

/// Computes the result in place of `a` if possible. See [`broadcast`] for `IS_WIDE`.
fn computed<T: Element + Copy, const IS_WIDE: bool>(
    a: Arc<Tensor>,
    b: &Tensor,
    shape: &[usize],
    function: impl Fn(T, T) -> T + Copy + Sync,
) -> Result<Arc<Tensor>> {
    let arch = pulp::Arch::new();
    match a.shape() == shape {
        true => replaced(a, b, shape, &|a, b| {
            run::<IS_WIDE>(arch, InPlace { a, b, function });
        }),
        false => pairs::<T, T, IS_WIDE>(&a, b, shape, |a, b| function(*a, *b)).map(Arc::new),
    }
}

/// Calls `block` with contiguous elements of `a` and the corresponding elements of `b`. `block` overwrites
/// the elements of `a`.
fn replaced<T: Element + Copy>(
    a: Arc<Tensor>,
    b: &Tensor,
    shape: &[usize],
    block: InPlaceBlock<'_, T>,
) -> Result<Arc<Tensor>> {
    let runs = Runs::new(shape, b.shape(), shape);
    let (work, b) = ([a.len() as u64, PAIRS], elements::<T>(b)?);
    split::replaced(a, LINE, work, |first, a: &mut [T], pace| {
        runs.each(first * LINE, a.len(), pace, |[_, from_b, to], count| {
            block(&mut a[to..to + count], Side::new(b, from_b, runs.last.b, count));
        })
    })
}

/// A loop over contiguous elements of the result, which it overwrites, and of another tensor.
type InPlaceBlock<'b, T> = &'b (dyn Fn(&mut [T], Side<'_, T>) + Sync);

/// Calls `block` as [`replaced`] does.
fn replace<T: Element>(a: &mut [T], b: &[T], runs: &Runs, block: InPlaceBlock<'_, T>) -> Result<()> {
    let work = [a.len() as u64, PAIRS];
    split::lines(a, LINE, work, |first, a, pace| {
        runs.each(first * LINE, a.len(), pace, |[_, from_b, to], count| {
            block(&mut a[to..to + count], Side::new(b, from_b, runs.last.b, count));
        })
    })
}

/// Computes one number per pair of elements. `IS_WIDE` compiles the loop for each vector width, which pays
/// off for most functions. It does not pay off for bytes, for which the baseline instruction set suffices, or
/// for powers and remainders, which have no vector instructions.
///
/// # Errors
/// Fails if the shapes do not match, if an element type is not `T`, or if the request is cancelled.
pub fn broadcast<T: Element + Copy, const IS_WIDE: bool>(
    a: &Tensor,
    b: &Tensor,
    function: impl Fn(T, T) -> T + Copy + Sync,
) -> Result<Tensor> {
    let shape = shapes::broadcast(&[a.shape(), b.shape()])?;
    pairs::<T, T, IS_WIDE>(a, b, &shape, |a, b| function(*a, *b))
}

/// Computes one result per pair of elements of two tensors broadcast to `shape`. See [`broadcast`] for
/// `IS_WIDE`.
pub(crate) fn pairs<T: Element, R: Element + Copy, const IS_WIDE: bool>(
    a: &Tensor,
    b: &Tensor,
    shape: &[usize],
    function: impl Fn(&T, &T) -> R + Copy + Sync,
) -> Result<Tensor> {
    let arch = pulp::Arch::new();
    met(a, b, shape, &|a, b, made| {
        run::<IS_WIDE>(arch, OutOfPlace { a, b, made, function });
    })
}

/// A loop over contiguous elements of two tensors and the result.
pub(crate) type Block<'b, T, R> = &'b (dyn Fn(Side<'_, T>, Side<'_, T>, &mut [R]) + Sync);

/// Calls `block` with elements of both tensors, broadcast to `shape`. The trait object `block` lets `met` be
/// compiled once per type, instead of once per elementwise function.
pub(crate) fn met<T: Element, R: Element + Copy>(
    a: &Tensor,
    b: &Tensor,
    shape: &[usize],
    block: Block<'_, T, R>,
) -> Result<Tensor> {
    let runs = Runs::new(a.shape(), b.shape(), shape);
    let (a, b) = (elements::<T>(a)?, elements::<T>(b)?);
    let work = [shape.iter().product::<usize>() as u64, PAIRS];
    split::created(shape, LINE, work, |first, made: &mut [R], pace| {
        meet([a, b], (first, made), &runs, block, pace)
    })
}

/// Calls `block` as [`met`] does, for the elements `made` from the line `first` on.
fn meet<T: Element, R: Element>(
    [a, b]: [&[T]; 2],
    (first, made): (usize, &mut [R]),
    runs: &Runs,
    block: Block<'_, T, R>,
    pace: &mut Pace,
) -> Result<()> {
    runs.each(first * LINE, made.len(), pace, |[from_a, from_b, to], count| {
        let a = Side::new(a, from_a, runs.last.a, count);
        let b = Side::new(b, from_b, runs.last.b, count);
        block(a, b, &mut made[to..to + count]);
    })
}

/// Minimum number of elements per thread, since most of these functions are cheap.
const PAIRS: u64 = 2 * ELEMENTS;

fn run<const IS_WIDE: bool>(arch: pulp::Arch, work: impl pulp::WithSimd<Output = ()>) {
    match IS_WIDE {
        true => arch.dispatch(work),
        false => work.with_simd(pulp::Scalar),
    }
}

/// Iterates over two tensors that broadcast to one shape. Neighboring axes are merged where the strides allow
/// it.
#[derive(Debug, PartialEq, Eq)]
struct Runs {
    /// The outer axes, the outermost first.
    axes: ShortVec<Axis>,
    /// The innermost axis, along which runs are contiguous or broadcast.
    last: Axis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: usize,
    /// Strides of both tensors (`a` and `b`) in elements; 0 if the tensor is broadcast along the axis.
    a: usize,
    b: usize,
}

impl Runs {
    fn new(a: &[usize], b: &[usize], shape: &[usize]) -> Self {
        let rank = shape.len();
        let mut axes: ShortVec<Axis> = ShortVec::new();
        let (mut step_a, mut step_b) = (1, 1);
        // Visits the axes from the innermost outwards. Missing leading axes have size 1.
        for from_end in 1..=rank {
            let size = shape[rank - from_end];
            let dim = |dims: &[usize]| dims.len().checked_sub(from_end).map_or(1, |axis| dims[axis]);
            let (size_a, size_b) = (dim(a), dim(b));
            let axis = Axis {
                size,
                a: if size_a == 1 { 0 } else { step_a },
                b: if size_b == 1 { 0 } else { step_b },
            };
            step_a *= size_a;
            step_b *= size_b;
            if size == 1 {
                continue;
            }
            match axes.last_mut() {
                Some(inner)
                    if axis.a == inner.a * inner.size
                        && axis.b == inner.b * inner.size
                        && (axis.a == 0) == (inner.a == 0)
                        && (axis.b == 0) == (inner.b == 0) =>
                {
                    inner.size *= size;
                }
                _ => axes.push(axis),
            }
        }
        axes.reverse();
        let last = axes.pop().unwrap_or(Axis { size: 1, a: 1, b: 1 });
        Self { axes, last }
    }

    /// Iterates over `count` elements of the result, starting at `first`, in runs along the innermost axis.
    /// `run` receives the offsets in both tensors and in the range, and the length of the run. Long runs are
    /// split to check for cancellation.
    #[inline(always)]
    fn each(
        &self,
        first: usize,
        count: usize,
        pace: &mut Pace,
        mut run: impl FnMut([usize; 3], usize),
    ) -> Result<()> {
        const PART: usize = 1 << 16;
        if count == 0 {
            return Ok(());
        }
        let (mut outer, mut at) = (first / self.last.size, first % self.last.size);
        let mut places: ShortVec<usize> = smallvec![0; self.axes.len()];
        let (mut a, mut b, mut to) = (0, 0, 0);
        for (axis, place) in self.axes.iter().zip(&mut places).rev() {
            *place = outer % axis.size;
            outer /= axis.size;
            a += *place * axis.a;
            b += *place * axis.b;
        }
        loop {
            let end = self.last.size.min(at + count - to);
            while at < end {
                let part = PART.min(end - at);
                pace.spend(part as u64)?;
                run([a + at * self.last.a, b + at * self.last.b, to], part);
                at += part;
                to += part;
            }
            if to == count {
                return Ok(());
            }
            at = 0;
            for (axis, place) in self.axes.iter().zip(&mut places).rev() {
                *place += 1;
                a += axis.a;
                b += axis.b;
                if *place < axis.size {
                    break;
                }
                *place = 0;
                a -= axis.a * axis.size;
                b -= axis.b * axis.size;
            }
        }
    }
}

/// An operand of a loop: one element per result, or one element for all results.
#[derive(Clone, Copy)]
pub(crate) enum Side<'v, T> {
    Each(&'v [T]),
    Same(&'v T),
}

impl<'v, T> Side<'v, T> {
    /// Creates an operand of `count` elements starting at `first`, or of only that element if `step` is 0.
    #[inline(always)]
    pub(crate) fn new(values: &'v [T], first: usize, step: usize, count: usize) -> Self {
        match step {
            0 => Self::Same(&values[first]),
            _ => Self::Each(&values[first..first + count]),
        }
    }

    /// Returns `count` elements starting at `first`.
    #[inline(always)]
    pub(crate) fn part(self, first: usize, count: usize) -> Self {
        match self {
            Self::Each(values) => Self::Each(&values[first..first + count]),
            Self::Same(value) => Self::Same(value),
        }
    }

    /// Returns the element at index `at`.
    #[inline(always)]
    pub(crate) fn at(self, at: usize) -> &'v T {
        match self {
            Self::Each(values) => &values[at],
            Self::Same(value) => value,
        }
    }
}

/// A loop that writes over its first operand. It owns the function: numbers that the function captures by
/// reference would be read again for each element, because elements that are bytes may overlap them.
struct InPlace<'v, T, F> {
    a: &'v mut [T],
    b: Side<'v, T>,
    function: F,
}

impl<T: Copy, F: Fn(T, T) -> T> pulp::WithSimd for InPlace<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { a, b, function } = self;
        match b {
            Side::Same(&b) => a.iter_mut().for_each(|a| *a = function(*a, b)),
            Side::Each(b) => a.iter_mut().zip(b).for_each(|(a, b)| *a = function(*a, *b)),
        }
    }
}

/// A loop that writes its results elsewhere. It owns the function as [`InPlace`] does.
struct OutOfPlace<'v, T, R, F> {
    a: Side<'v, T>,
    b: Side<'v, T>,
    made: &'v mut [R],
    function: F,
}

impl<T, R: Copy, F: Fn(&T, &T) -> R> pulp::WithSimd for OutOfPlace<'_, T, R, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { a, b, made, function } = self;
        match (a, b) {
            (Side::Same(a), Side::Same(b)) => made.fill(function(a, b)),
            (Side::Same(a), Side::Each(b)) => {
                let pairs = made.iter_mut().zip(b);
                pairs.for_each(|(made, b)| *made = function(a, b));
            }
            (Side::Each(a), Side::Same(b)) => {
                let pairs = made.iter_mut().zip(a);
                pairs.for_each(|(made, a)| *made = function(a, b));
            }
            (Side::Each(a), Side::Each(b)) => {
                let pairs = made.iter_mut().zip(a.iter().zip(b));
                pairs.for_each(|(made, (a, b))| *made = function(a, b));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::tensor;

    fn numbers<T: Element>(shape: &[usize], number: impl Fn(usize) -> T) -> Tensor {
        let count = shape.iter().product();
        tensor(shape, (0..count).map(number).collect()).unwrap()
    }

    const SHAPES: &[[&[usize]; 2]] = &[
        [&[], &[]],
        [&[5], &[1]],
        [&[1], &[5]],
        [&[2, 3, 4, 5], &[2, 3, 4, 5]],
        [&[2, 3, 4, 5], &[1, 3, 1, 1]],
        [&[2, 3, 4, 5], &[2, 1, 4, 1]],
        [&[2, 3, 4, 5], &[1, 1, 1, 5]],
        [&[2, 1, 4, 1], &[1, 3, 1, 5]],
        [&[1, 1, 1, 5], &[2, 3, 4, 5]],
        [&[2, 3, 1, 1], &[2, 3, 4, 5]],
        [&[1, 1], &[1, 1]],
        [&[0, 3], &[1, 3]],
        [&[3, 0], &[3, 1]],
    ];

    /// Reference implementation, which materializes a broadcast tensor.
    fn repeated<T: Element + Copy>(tensor: &Tensor, shape: &[usize]) -> Vec<T> {
        let elements = elements::<T>(tensor).unwrap();
        let rank = shape.len();
        let mut own = vec![1; rank - tensor.rank()];
        own.extend_from_slice(tensor.shape());
        let place = |mut at: usize| {
            let (mut place, mut stride) = (0, 1);
            for axis in (0..rank).rev() {
                if own[axis] > 1 {
                    place += at % shape[axis] * stride;
                    stride *= own[axis];
                }
                at /= shape[axis];
            }
            place
        };
        (0..shape.iter().product())
            .map(|at| elements[place(at)])
            .collect()
    }

    fn check<T: Element + Copy>(function: Function, a: &Tensor, b: &Tensor, of: impl Fn(T, T) -> T) {
        let shape = shapes::broadcast(&[a.shape(), b.shape()]).unwrap();
        let pairs = repeated::<T>(a, &shape).into_iter().zip(repeated::<T>(b, &shape));
        let wanted = tensor(&shape, pairs.map(|(a, b)| of(a, b)).collect()).unwrap();
        let (shared, owned) = (Arc::new(a.clone()), Arc::new(a.clone()));
        let found = combined(function, shared.clone(), b, &shape).unwrap();
        assert_eq!(*found, wanted, "{function:?} of {a:?} and {b:?}");
        assert_eq!(*shared, *a);
        assert_eq!(*combined(function, owned, b, &shape).unwrap(), wanted);
        if T::ELEMENT_TYPE != ElementType::Bool {
            // The bytes of a request are not overwritten.
            let bytes = Bytes::copy_from_slice(a.as_bytes().unwrap());
            let request = Tensor::from_bytes(T::ELEMENT_TYPE, a.shape(), bytes.clone()).unwrap();
            assert_eq!(*combined(function, Arc::new(request), b, &shape).unwrap(), wanted);
            assert_eq!(bytes[..], *a.as_bytes().unwrap());
        }
    }

    #[test]
    fn each_pair_is_combined() {
        for [a, b] in SHAPES {
            let floats = [
                numbers(a, |index| index as f32 - 7.5),
                numbers(b, |index| index as f32 * 3.25 - 6.5),
            ];
            let integers = [
                numbers(a, |index| (index as i64 - 40) << 30),
                numbers(b, |index| (777 - 35 * index as i64) << 40),
            ];
            let truths = [
                numbers(a, |index| index % 3 == 0),
                numbers(b, |index| index % 2 == 0),
            ];
            let [x, y] = &floats;
            check::<f32>(Function::Sum, x, y, |a, b| a + b);
            check::<f32>(Function::Difference, x, y, |a, b| a - b);
            check::<f32>(Function::Product, x, y, |a, b| a * b);
            check::<f32>(Function::Quotient, x, y, |a, b| a / b);
            check::<f32>(Function::Maximum, x, y, f32::max);
            check::<f32>(Function::Minimum, x, y, f32::min);
            let [x, y] = &integers;
            check::<i64>(Function::Sum, x, y, i64::wrapping_add);
            check::<i64>(Function::Difference, x, y, i64::wrapping_sub);
            check::<i64>(Function::Product, x, y, i64::wrapping_mul);
            check::<i64>(Function::Quotient, x, y, i64::wrapping_div);
            check::<i64>(Function::Maximum, x, y, i64::max);
            check::<i64>(Function::Minimum, x, y, i64::min);
            let [x, y] = &truths;
            check::<bool>(Function::And, x, y, |a, b| a & b);
            check::<bool>(Function::Or, x, y, |a, b| a | b);
            check::<bool>(Function::Xor, x, y, |a, b| a ^ b);
        }
    }

    #[test]
    fn axes_that_are_walked_alike_are_one() {
        let runs = Runs::new(&[2, 3, 4, 5], &[1, 3, 1, 1], &[2, 3, 4, 5]);
        assert_eq!(runs.last, Axis { size: 20, a: 1, b: 0 });
        assert_eq!(runs.axes.len(), 2);
        let runs = Runs::new(&[2, 3, 4], &[2, 3, 4], &[2, 3, 4]);
        assert_eq!((runs.axes.len(), runs.last.size), (0, 24));
    }
}
