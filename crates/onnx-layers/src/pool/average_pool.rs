//! Averages of windows, for `AveragePool`.

use onnx_tensor::cancelling::{PART, Pace};
use onnx_tensor::prelude::*;

use crate::pool::{axis::Axis, pooling};
use onnx_kernels::elementwise::vector::vectorized;
use onnx_tensor::elements::{Real, elements, with_real};
use onnx_tensor::size;

/// Averages each window of images with `depth` elements at each position. The divisor of a window is the
/// product of `counted` over all axes.
pub(crate) fn averages(
    input: &Tensor,
    axes: &[Axis],
    depth: usize,
    shape: &[usize],
    counted: impl Fn(usize, &Axis, usize) -> usize,
) -> Result<Tensor> {
    with_real!(input.element_type(), T => averages_of::<T>(input, axes, depth, shape, counted))
}

fn averages_of<T: Real + Default + std::ops::DivAssign>(
    input: &Tensor,
    axes: &[Axis],
    depth: usize,
    shape: &[usize],
    counted: impl Fn(usize, &Axis, usize) -> usize,
) -> Result<Tensor> {
    let mut made = Tensor::unset_of(T::ELEMENT_TYPE, shape)?;
    if made.is_empty() {
        return Ok(made);
    }
    let averages = made.as_slice_mut::<T>()?;
    let images = elements::<T>(input)?;
    pooling::fold(axes, depth, images, averages, T::default(), |sum, x| sum + x)?;
    // The number of windows of each image.
    let windows: usize = axes.iter().map(|axis| axis.count).product();
    size::admit_now(windows as u64 * 16)?;
    let mut pace = Pace::default();
    let mut counts = vec![1];
    for (index, axis) in axes.iter().enumerate() {
        let along = pace.indices(axis.count, |at| counted(index, axis, at))?;
        let all = counts
            .iter()
            .flat_map(|count| along.iter().map(move |along| count * along));
        counts = pace.collect(all)?;
    }
    // The average of an empty window is 0.
    let counts = pace.map(&counts, |&count| T::of(count.max(1) as f64))?;
    for averages in averages.chunks_exact_mut((counts.len() * depth).max(1)) {
        if depth == 1 {
            pace.pairs(&counts, averages, |counts, averages| {
                vectorized(
                    #[inline(always)]
                    || {
                        let pairs = averages.iter_mut().zip(counts);
                        pairs.for_each(|(sum, count)| *sum /= *count);
                    },
                );
            })?;
            continue;
        }
        if depth > PART {
            for (sums, count) in averages.chunks_exact_mut(depth).zip(&counts) {
                pace.over(sums, |sums| {
                    vectorized(
                        #[inline(always)]
                        || sums.iter_mut().for_each(|sum| *sum /= *count),
                    );
                })?;
            }
            continue;
        }
        let together = PART / depth;
        for (averages, counts) in averages.chunks_mut(together * depth).zip(counts.chunks(together)) {
            pace.spend(averages.len() as u64)?;
            vectorized(
                #[inline(always)]
                || {
                    let positions = averages.chunks_exact_mut(depth).zip(counts);
                    positions.for_each(|(sums, count)| sums.iter_mut().for_each(|sum| *sum /= *count));
                },
            );
        }
    }
    Ok(made)
}
