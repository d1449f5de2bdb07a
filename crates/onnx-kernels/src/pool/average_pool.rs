//! The averages of windows.

use onnx_tensor::prelude::*;

use crate::pool::pooling::{self, Axis};
use onnx_tensor::elements::{Real, elements, tensor, with_real};
use onnx_tensor::size;

/// The averages of windows, with `depth` numbers at each position of an image. `counted` says, for an axis and a window, by how many
/// elements along it the sum is divided.
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
    // How many elements each of an image's windows has.
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
    // Of nothing, the average is 0.
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
