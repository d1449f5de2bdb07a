//! The operators `Softmax` and `LogSoftmax` along any axis. `LogSoftmax` is not computed as the logarithm of
//! `Softmax`, which would be minus infinity for small probabilities.

use std::{ops::Range, sync::Arc};

use onnx_tensor::prelude::*;

use crate::least_work::ELEMENTS;
use onnx_kernels::elementwise::transcendental::exp_or_zero;
use onnx_tensor::{
    cancelling::{PART, Pace},
    node::Node,
    operator::{Compute, Fact},
    split,
};
use onnx_tensor::{
    elements::{copied, tensor},
    node::Attributes,
};

/// Builds the operator `Softmax` or `LogSoftmax`, for all operator sets.
pub fn softmax(node: &Node) -> Result<Box<dyn Compute>> {
    let coerces = node.opset < 13;
    Ok(Box::new(Softmax {
        axis: Attributes(node).int("axis", if coerces { 1 } else { -1 }),
        coerces,
        are_logarithms: node.op_type == "LogSoftmax",
    }))
}

/// Cost per element, relative to a loop that reads and writes one element.
const COST: u64 = 4;

#[derive(Debug)]
struct Softmax {
    axis: i64,
    /// Whether the softmax is taken over `axis` and all later axes together, as in operator sets before 13.
    coerces: bool,
    are_logarithms: bool,
}

impl Compute for Softmax {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let rank = inputs[0].rank() as i64;
        // Before operator set 13, `axis` may equal the rank. Each group then has one element.
        let end = if self.coerces { rank + 1 } else { rank.max(1) };
        ensure!(
            (-rank..end).contains(&self.axis),
            "axis {} of rank {rank}",
            self.axis
        );
        Ok(Some(vec![inputs[0].with(inputs[0].element_type)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let input = inputs.pop().context("expected an input")?;
        let shape = input.shape();
        let from_end = if self.axis < 0 { shape.len() as i64 } else { 0 };
        let axis = usize::try_from(self.axis + from_end)?.min(shape.len());
        let (count, inner): (usize, usize) = match (self.coerces, shape.get(axis)) {
            (true, _) | (_, None) => (shape[axis..].iter().product(), 1),
            (false, Some(&dim)) => (dim, shape[axis + 1..].iter().product()),
        };
        if input.is_empty() {
            return Ok(smallvec![input]);
        }
        if input.element_type() == ElementType::F64 {
            let mut values = copied::<f64>(&input)?;
            precise(&mut values, count, inner, self.are_logarithms)?;
            return Ok(smallvec![tensor(shape, values)?.into_arc()]);
        }
        let work = [input.len() as u64 * COST, ELEMENTS];
        let groups = |values: &mut [f32], pace: &mut Pace| {
            pulp::Arch::new().dispatch(Groups {
                values,
                count,
                inner,
                are_logarithms: self.are_logarithms,
                pace,
            })
        };
        let made = split::replaced(input, count * inner, work, |_, values, pace| groups(values, pace))?;
        Ok(smallvec![made])
    }
}

/// Computes the softmax of contiguous rows of `count` elements.
pub(crate) fn rows(values: &mut [f32], count: usize) -> Result<()> {
    pulp::Arch::new().dispatch(Groups {
        values,
        count,
        inner: 1,
        are_logarithms: false,
        pace: &mut Pace::default(),
    })
}

/// Groups of `count` elements that are `inner` apart, and what to compute for each group.
struct Groups<'v> {
    values: &'v mut [f32],
    count: usize,
    inner: usize,
    are_logarithms: bool,
    pace: &'v mut Pace,
}

/// Number of elements that one iteration of a vectorized loop processes.
const LANES: usize = 16;

impl pulp::WithSimd for Groups<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        let Self {
            values,
            count,
            inner,
            are_logarithms,
            pace,
        } = self;
        if inner == 1 {
            for numbers in values.chunks_exact_mut(count) {
                row(numbers, are_logarithms, pace)?;
            }
            return Ok(());
        }
        for block in values.chunks_exact_mut(count * inner) {
            let mut from = 0;
            while from < inner {
                let width = (inner - from).min(LANES);
                columns(block, inner, from..from + width, are_logarithms, pace)?;
                from += width;
            }
        }
        Ok(())
    }
}

/// Computes the softmax of one contiguous group. The maximum ignores NaN; the sum, and thus all results,
/// become NaN. `PART` is a multiple of `LANES`, so the order of a sum does not depend on the parts.
#[inline(always)]
fn row(row: &mut [f32], are_logarithms: bool, pace: &mut Pace) -> Result<()> {
    let (whole, rest) = row.split_at_mut(row.len() / LANES * LANES);
    // The last elements are one more vector, whose padding affects neither the maximum nor the sum.
    let mut last = [f32::NEG_INFINITY; LANES];
    last.iter_mut().zip(&*rest).for_each(|(last, x)| *last = *x);
    pace.spend(LANES as u64)?;
    let mut greatest = [f32::NEG_INFINITY; LANES];
    for part in whole.chunks(PART) {
        pace.spend(part.len() as u64)?;
        part.as_chunks()
            .0
            .iter()
            .for_each(|chunk| take_greater(&mut greatest, chunk));
    }
    take_greater(&mut greatest, &last);
    let most = folded(greatest, |a, b| if b > a { b } else { a });
    let mut sums = [0.0f32; LANES];
    if are_logarithms {
        let mut add = |chunk: &[f32; LANES]| {
            for (sum, &x) in sums.iter_mut().zip(chunk) {
                *sum += exp_or_zero::<false>(x - most);
            }
        };
        for part in whole.chunks(PART) {
            pace.spend(part.len() as u64)?;
            part.as_chunks().0.iter().for_each(&mut add);
        }
        let last = exponentials(&last, rest.len(), most);
        sums.iter_mut().zip(last).for_each(|(sum, x)| *sum += x);
        let logarithm = folded(sums, |a, b| a + b).ln();
        for part in whole.chunks_mut(PART) {
            pace.spend(part.len() as u64)?;
            part.iter_mut().for_each(|x| *x = (*x - most) - logarithm);
        }
        rest.iter_mut().for_each(|x| *x = (*x - most) - logarithm);
        return Ok(());
    }
    let mut exponentiate = |chunk: &mut [f32; LANES]| {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *x = exp_or_zero::<false>(*x - most);
            *sum += *x;
        }
    };
    for part in whole.chunks_mut(PART) {
        pace.spend(part.len() as u64)?;
        part.as_chunks_mut().0.iter_mut().for_each(&mut exponentiate);
    }
    let last = exponentials(&last, rest.len(), most);
    sums.iter_mut().zip(&last).for_each(|(sum, x)| *sum += x);
    let scale = 1.0 / folded(sums, |a, b| a + b);
    for part in whole.chunks_mut(PART) {
        pace.spend(part.len() as u64)?;
        part.iter_mut().for_each(|x| *x *= scale);
    }
    rest.iter_mut().zip(&last).for_each(|(x, last)| *x = last * scale);
    Ok(())
}

/// Replaces each element with the one of `chunk` if that is greater.
#[inline(always)]
fn take_greater(greatest: &mut [f32; LANES], chunk: &[f32; LANES]) {
    for (greatest, &x) in greatest.iter_mut().zip(chunk) {
        *greatest = if x > *greatest { x } else { *greatest };
    }
}

/// Returns the exponentials of the first `count` differences from `most`, and zeros.
#[inline(always)]
fn exponentials(values: &[f32; LANES], count: usize, most: f32) -> [f32; LANES] {
    std::array::from_fn(|at| {
        let x = exp_or_zero::<false>(values[at] - most);
        if at < count { x } else { 0.0 }
    })
}

/// Combines all elements, in halves.
#[inline(always)]
fn folded(mut values: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for at in 0..half {
            values[at] = combine(values[at], values[at + half]);
        }
        half /= 2;
    }
    values[0]
}

/// Number of rows of at most `LANES` columns between two calls of [`Pace::spend`].
const ROWS: usize = PART / LANES;

/// Computes the softmax of up to `LANES` groups, which are columns of a block.
#[inline(always)]
fn columns(
    block: &mut [f32],
    inner: usize,
    columns: Range<usize>,
    are_logarithms: bool,
    pace: &mut Pace,
) -> Result<()> {
    let mut most = [f32::NEG_INFINITY; LANES];
    for part in block.chunks(inner * ROWS) {
        pace.spend((part.len() / inner * columns.len()) as u64)?;
        for row in part.chunks_exact(inner) {
            for (most, &x) in most.iter_mut().zip(&row[columns.clone()]) {
                *most = if x > *most { x } else { *most };
            }
        }
    }
    let mut sums = [0.0f32; LANES];
    if are_logarithms {
        for part in block.chunks(inner * ROWS) {
            pace.spend((part.len() / inner * columns.len()) as u64)?;
            for row in part.chunks_exact(inner) {
                for ((&x, sum), most) in row[columns.clone()].iter().zip(&mut sums).zip(&most) {
                    *sum += exp_or_zero::<false>(x - most);
                }
            }
        }
        let logarithms = sums.map(f32::ln);
        for part in block.chunks_mut(inner * ROWS) {
            pace.spend((part.len() / inner * columns.len()) as u64)?;
            for row in part.chunks_exact_mut(inner) {
                let numbers = row[columns.clone()].iter_mut();
                for ((x, most), logarithm) in numbers.zip(&most).zip(&logarithms) {
                    *x = (*x - most) - logarithm;
                }
            }
        }
        return Ok(());
    }
    for part in block.chunks_mut(inner * ROWS) {
        pace.spend((part.len() / inner * columns.len()) as u64)?;
        for row in part.chunks_exact_mut(inner) {
            for ((x, sum), most) in row[columns.clone()].iter_mut().zip(&mut sums).zip(&most) {
                *x = exp_or_zero::<false>(*x - most);
                *sum += *x;
            }
        }
    }
    let scales = sums.map(|sum| 1.0 / sum);
    for part in block.chunks_mut(inner * ROWS) {
        pace.spend((part.len() / inner * columns.len()) as u64)?;
        for row in part.chunks_exact_mut(inner) {
            for (x, scale) in row[columns.clone()].iter_mut().zip(&scales) {
                *x *= scale;
            }
        }
    }
    Ok(())
}

/// Computes the softmax in FP64 over `count` elements that are `inner` apart.
fn precise(values: &mut [f64], count: usize, inner: usize, are_logarithms: bool) -> Result<()> {
    let mut pace = Pace::default();
    for block in values.chunks_exact_mut(count * inner) {
        for lane in 0..inner {
            let mut greatest = f64::NEG_INFINITY;
            along(block, [lane, inner], &mut pace, |x| greatest = greatest.max(*x))?;
            let mut sum = 0.0;
            if are_logarithms {
                along(block, [lane, inner], &mut pace, |x| sum += (*x - greatest).exp())?;
                let logarithm = sum.ln();
                along(block, [lane, inner], &mut pace, |x| {
                    *x = (*x - greatest) - logarithm;
                })?;
                continue;
            }
            along(block, [lane, inner], &mut pace, |x| {
                *x = (*x - greatest).exp();
                sum += *x;
            })?;
            along(block, [lane, inner], &mut pace, |x| *x /= sum)?;
        }
    }
    Ok(())
}

/// Calls `run` for the elements of a lane, which are `inner` apart.
fn along(
    block: &mut [f64],
    [lane, inner]: [usize; 2],
    pace: &mut Pace,
    mut run: impl FnMut(&mut f64),
) -> Result<()> {
    for part in block.chunks_mut(inner * PART) {
        pace.spend((part.len() / inner) as u64)?;
        part[lane..].iter_mut().step_by(inner).for_each(&mut run);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_what_they_are_one_by_one() {
        let value = |index: usize| (index as f32 * 0.37).sin() * 20.0;
        for (outer, count, inner) in [(3, 5, 1), (2, 40, 1), (2, 7, 33), (1, 3, 16), (4, 1, 1)] {
            let values: Vec<f32> = (0..outer * count * inner).map(value).collect();
            let mut found = values.clone();
            pulp::Arch::new()
                .dispatch(Groups {
                    values: &mut found,
                    count,
                    inner,
                    are_logarithms: false,
                    pace: &mut Pace::default(),
                })
                .unwrap();
            for group in 0..outer * inner {
                let first = group / inner * count * inner + group % inner;
                let at = |index: usize| first + index * inner;
                let most = (0..count).map(|i| values[at(i)]).fold(f32::MIN, f32::max);
                let parts: Vec<f64> = (0..count)
                    .map(|i| f64::from(values[at(i)] - most).exp())
                    .collect();
                let sum: f64 = parts.iter().sum();
                for (index, part) in parts.iter().enumerate() {
                    let (found, wanted) = (f64::from(found[at(index)]), part / sum);
                    assert!((found - wanted).abs() <= 1e-6, "{found}, not {wanted}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_spreads() {
        for (values, is_nan) in [
            ([1.0, f32::NAN, 2.0], true),
            ([1.0, f32::INFINITY, 2.0], true),
            ([f32::NEG_INFINITY; 3], true),
            ([1.0, f32::NEG_INFINITY, 1.0], false),
        ] {
            let mut values = values;
            row(&mut values, false, &mut Pace::default()).unwrap();
            assert_eq!(values[0].is_nan(), is_nan);
        }
    }
}
