//! Averages of windows, for `AveragePool`.

use onnx_tensor::prelude::*;

use crate::pool::pooling::{self, Axis};
use onnx_tensor::elements::{Real, elements, tensor, with_real};
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
    let mut averages = vec![T::default(); shape.iter().product()];
    if averages.is_empty() {
        return tensor(shape, averages);
    }
    pooling::fold(axes, depth, elements::<T>(input)?, &mut averages, |sum, x| {
        sum + x
    })?;
    // The number of windows of each image.
    let windows: usize = axes.iter().map(|axis| axis.count).product();
    size::admit_now(windows as u64 * 16)?;
    let mut counts = vec![1];
    for (index, axis) in axes.iter().enumerate() {
        let along: Vec<usize> = (0..axis.count).map(|at| counted(index, axis, at)).collect();
        let all = counts
            .iter()
            .flat_map(|count| along.iter().map(move |along| count * along));
        counts = all.collect();
    }
    // The average of an empty window is 0.
    let counts: Vec<T> = counts
        .into_iter()
        .map(|count| T::of(count.max(1) as f64))
        .collect();
    pulp::Arch::new().dispatch(|| {
        for averages in averages.chunks_exact_mut((counts.len() * depth).max(1)) {
            match depth {
                1 => averages
                    .iter_mut()
                    .zip(&counts)
                    .for_each(|(sum, count)| *sum /= *count),
                _ => {
                    let positions = averages.chunks_exact_mut(depth).zip(&counts);
                    positions.for_each(|(sums, count)| sums.iter_mut().for_each(|sum| *sum /= *count));
                }
            }
        }
    });
    tensor(shape, averages)
}
