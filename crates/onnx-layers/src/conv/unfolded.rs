//! Convolutions along any number of axes as matrix products of the weights with columns of windows (im2col),
//! in pieces that fit into the caches.

use onnx_tensor::prelude::*;

use crate::pool::axis::Axis;
use onnx_tensor::{cancelling::Pace, size};

/// Number of column elements written at a time.
const TOGETHER: usize = if cfg!(test) { 1 << 8 } else { 1 << 18 };

/// A convolution that is computed by im2col.
pub(crate) struct Im2colConvolution<'u> {
    pub(crate) groups: usize,
    /// Input channels of one group.
    pub(crate) channels: usize,
    /// Output channels of one group.
    pub(crate) rows: usize,
    pub(crate) axes: &'u [Axis],
}

impl Im2colConvolution<'_> {
    /// Returns the number of terms of each sum. The product saturates, since empty weights may have sizes
    /// whose product overflows.
    pub(crate) fn depth(&self) -> usize {
        let kernel = self.axes.iter().map(|axis| axis.kernel);
        kernel.fold(self.channels, usize::saturating_mul)
    }

    /// Adds the convolution to `result`. Elements of the padding have the default value. `multiply` receives
    /// a group's weights, columns, number of rows, depth, number of columns, and zeroed sums.
    ///
    /// # Errors
    /// Returns [`NoRoom`](onnx_tensor::faults::NoRoom) or [`Cancelled`](onnx_tensor::cancelling::Cancelled).
    pub(crate) fn add<T: Copy + Default, U: Copy + Default>(
        &self,
        images: &[T],
        weights: &[T],
        result: &mut [U],
        multiply: impl Fn(&[T], &[T], [usize; 3], &mut [U], &mut Pace) -> Result<()>,
        sum: impl Fn(U, U) -> U,
    ) -> Result<()> {
        let positions: usize = self.axes.iter().map(|axis| axis.count).product();
        let sizes = self.axes.iter().map(|axis| axis.size);
        let image = sizes.fold(self.channels, usize::saturating_mul);
        let (rows, depth) = (self.rows, self.depth());
        if positions == 0 || rows == 0 || result.is_empty() || depth == 0 {
            return Ok(());
        }
        let width = (TOGETHER / depth).max(1).min(positions);
        size::admit_now((width * (depth * size_of::<T>() + rows * size_of::<U>())) as u64)?;
        let mut columns = vec![T::default(); depth * width];
        let mut sums = vec![U::default(); rows * width];
        let mut pace = Pace::default();
        for (index, result) in result.chunks_exact_mut(rows * positions).enumerate() {
            let image = &images[index * image..][..image];
            let weights = &weights[index % self.groups * rows * depth..][..rows * depth];
            for first in (0..positions).step_by(width) {
                let width = width.min(positions - first);
                let (columns, sums) = (&mut columns[..depth * width], &mut sums[..rows * width]);
                self.unfold(image, [first, width], columns, &mut pace)?;
                pace.over(sums, |sums| sums.fill(U::default()))?;
                multiply(weights, columns, [rows, depth, width], sums, &mut pace)?;
                for (result, sums) in result.chunks_exact_mut(positions).zip(sums.chunks_exact(width)) {
                    pace.pairs(sums, &mut result[first..first + width], |sums, result| {
                        let pairs = result.iter_mut().zip(sums);
                        pairs.for_each(|(result, found)| *result = sum(*result, *found));
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Writes the im2col columns of `width` windows, starting at window `first`: one line per window element.
    fn unfold<T: Copy + Default>(
        &self,
        image: &[T],
        [first, width]: [usize; 2],
        columns: &mut [T],
        pace: &mut Pace,
    ) -> Result<()> {
        let Some((last, outer)) = self.axes.split_last() else {
            return Ok(());
        };
        let window: usize = self.axes.iter().map(|axis| axis.kernel).product();
        let channel: usize = self.axes.iter().map(|axis| axis.size).product();
        for (term, to) in columns.chunks_exact_mut(width).enumerate() {
            let image = &image[term / window * channel..][..channel];
            let element = term % window;
            let inside = inside(last, element % last.kernel);
            let mut position = first;
            while position < first + width {
                let (line, at) = (position / last.count, position % last.count);
                let end = last.count.min(at + first + width - position);
                let to = &mut to[position - first..][..end - at];
                position += end - at;
                pace.spend(1 + to.len() as u64)?;
                let Some(line) = line_of(outer, element / last.kernel, line) else {
                    to.fill(T::default());
                    continue;
                };
                let [start, stop] = inside.map(|place| place.clamp(at, end));
                to[..start - at].fill(T::default());
                to[stop.max(start) - at..].fill(T::default());
                if start < stop {
                    let place = start * last.stride + element % last.kernel * last.dilation - last.pad;
                    let from = &image[line * last.size + place..];
                    let to = &mut to[start - at..stop - at];
                    match last.stride {
                        1 => to.copy_from_slice(&from[..to.len()]),
                        stride => {
                            let from = from.iter().step_by(stride);
                            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the range of windows in which `element` is inside the image, as the first window and the end.
fn inside(axis: &Axis, element: usize) -> [usize; 2] {
    let ahead = element * axis.dilation;
    let first = axis.pad.saturating_sub(ahead).div_ceil(axis.stride);
    let end = (axis.size + axis.pad).saturating_sub(ahead).div_ceil(axis.stride);
    [first, end.max(first)]
}

/// Returns the index of the image line that `element` of the windows in row `line` reads; `None` in the
/// padding.
fn line_of(axes: &[Axis], mut element: usize, mut line: usize) -> Option<usize> {
    let (mut place, mut stride) = (0, 1);
    for axis in axes.iter().rev() {
        let ahead = line % axis.count * axis.stride + element % axis.kernel * axis.dilation;
        place += stride * ahead.checked_sub(axis.pad).filter(|&at| at < axis.size)?;
        stride *= axis.size;
        line /= axis.count;
        element /= axis.kernel;
    }
    Some(place)
}
