//! Pools of small windows over images with one or two axes. Rows of windows are folded from whole image rows
//! in vectors: first over the rows of each window, then over its columns.

use onnx_tensor::prelude::*;

use crate::pool::axis::Axis;
use onnx_tensor::cancelling::{PART, Pace};

/// Number of elements that are folded together.
const LANES: usize = 16;

/// Maximum number of window elements along an axis. Larger windows are folded by doubling.
const MAX_KERNEL: usize = 8;

/// Maximum number of elements of a padded row.
const MAX_WIDTH: usize = 1 << 16;

/// Maximum padded width of rows that are divided into phases, in terms of the image's width.
const WIDEST_PHASES: usize = 8;

/// Number of padded elements that are computed together, which fit into the first-level cache.
const BLOCK: usize = 1 << 12;

/// A pool of small windows over an image of rows and columns.
pub(crate) struct PlanePool {
    rows: Axis,
    columns: Axis,
    /// Number of elements of a padded row, a multiple of the columns' stride.
    width: usize,
    /// Number of elements of a padded row at one phase of the columns' stride.
    phase_width: usize,
    /// Number of rows of windows that are computed together.
    together: usize,
}

/// Working memory of a [`PlanePool`].
struct Buffers<T> {
    /// The folds over the rows of windows, with padding before and after each row. Both lists have
    /// [`LANES`] more elements, because the last row may be shorter.
    padded: Vec<T>,
    /// For each phase of the columns' stride, the elements of `padded` at that phase.
    phases: Vec<T>,
}

impl PlanePool {
    /// Plans the pool; `None` if the windows or the rows are too large, or if there are more than two axes.
    pub(crate) fn of(axes: &[Axis]) -> Option<Self> {
        let (rows, columns) = match *axes {
            [columns] => (Axis::ONE, columns),
            [rows, columns] => (rows, columns),
            _ => return None,
        };
        let is_small = |axis: &Axis| axis.kernel <= MAX_KERNEL && axis.size > 0 && axis.count > 0;
        let reach = (columns.count.max(1) - 1)
            .checked_mul(columns.stride)?
            .checked_add((columns.kernel - 1).checked_mul(columns.dilation)?)?
            .checked_add(1)?;
        let width = reach.max(columns.pad.checked_add(columns.size.max(LANES))?);
        if !is_small(&rows) || !is_small(&columns) || width > MAX_WIDTH || columns.stride > MAX_WIDTH {
            return None;
        }
        // Rows are divided into phases as a whole, which is slow where dilations or padding exceed the image.
        if columns.stride > 1 && width > WIDEST_PHASES * (columns.size + LANES) {
            return None;
        }
        let width = width.next_multiple_of(columns.stride);
        let together = (BLOCK / width).clamp(1, rows.count);
        Some(Self {
            rows,
            columns,
            width,
            phase_width: width / columns.stride,
            together,
        })
    }

    /// Returns the index in `phases`, relative to the window's first column, of each window column.
    fn taps(&self) -> ShortVec<usize> {
        let stride = self.columns.stride;
        let phase = self.together * self.phase_width;
        let offsets = (0..self.columns.kernel).map(|column| column * self.columns.dilation);
        offsets.map(|at| at % stride * phase + at / stride).collect()
    }

    /// Folds the windows of consecutive images. Writes each element of `results`; windows without elements
    /// become `start`.
    pub(crate) fn fold<T: Copy>(
        &self,
        images: &[T],
        results: &mut [T],
        start: T,
        take: impl Fn(T, T) -> T + Copy,
        pace: &mut Pace,
    ) -> Result<()> {
        let (rows, columns) = (self.rows, self.columns);
        let taps = self.taps();
        let padded = self.together * self.width + LANES;
        let mut buffers = Buffers {
            padded: vec![start; padded],
            phases: match columns.stride {
                1 => Vec::new(),
                _ => vec![start; padded],
            },
        };
        let arch = pulp::Arch::new();
        let results = results.chunks_exact_mut(rows.count * columns.count);
        for (image, result) in results.enumerate() {
            let images = &images[image * rows.size * columns.size..];
            let blocks = result.chunks_mut(self.together * columns.count);
            for (block, result) in blocks.enumerate() {
                let count = result.len() / columns.count;
                pace.spend((count * self.width * (rows.kernel + columns.kernel) / 4) as u64)?;
                arch.dispatch(Block {
                    pool: self,
                    images,
                    result,
                    first: block * self.together,
                    count,
                    taps: &taps,
                    buffers: &mut buffers,
                    start,
                    take,
                });
            }
        }
        Ok(())
    }

    /// Writes the offsets of the image rows that the windows of row `at` cover, and returns their number.
    #[inline(always)]
    fn rows_of(&self, at: usize, offsets: &mut [usize; MAX_KERNEL]) -> usize {
        let Axis {
            size,
            kernel,
            stride,
            dilation,
            pad,
            ..
        } = self.rows;
        let start = at * stride;
        // Nearly all windows are inside the image. `taken` divides, which takes long for each row.
        if start >= pad && start - pad + (kernel - 1) * dilation < size {
            for (element, offset) in offsets[..kernel].iter_mut().enumerate() {
                *offset = (start - pad + element * dilation) * self.columns.size;
            }
            return kernel;
        }
        let taken = self.rows.taken(at);
        let kernel = taken.len();
        for (offset, row) in offsets.iter_mut().zip(taken) {
            *offset = row * self.columns.size;
        }
        kernel
    }

    /// Folds over the window rows of `count` rows of windows of the first image, starting with row `first`.
    #[inline(always)]
    fn fold_rows<T: Copy>(
        &self,
        images: &[T],
        [first, count]: [usize; 2],
        padded: &mut [T],
        start: T,
        take: impl Fn(T, T) -> T + Copy,
    ) {
        let Axis { size, pad, .. } = self.columns;
        for row in 0..count {
            let mut offsets = [0; MAX_KERNEL];
            let kernel = self.rows_of(first + row, &mut offsets);
            let end = offsets[kernel.saturating_sub(1)] + LANES;
            let to = &mut padded[row * self.width + pad..];
            if kernel == 0 {
                to[..size].fill(start);
                continue;
            }
            // Short rows are folded together with elements after them, which the padding then replaces.
            let width = match size < LANES && end <= images.len() {
                true => LANES,
                false => size,
            };
            fold_slices(&mut to[..width], images, &offsets[..kernel], take);
            to[size..width].fill(start);
        }
    }

    /// Folds over the columns of the windows of a block.
    #[inline(always)]
    fn fold_columns<T: Copy>(
        &self,
        (result, rows): (&mut [T], usize),
        taps: &[usize],
        buffers: &mut Buffers<T>,
        take: impl Fn(T, T) -> T + Copy,
    ) {
        let Axis { count, stride, .. } = self.columns;
        let width = self.phase_width;
        if stride > 1 {
            let used = stride.min((self.columns.kernel - 1) * self.columns.dilation + 1);
            for phase in 0..used {
                let to = &mut buffers.phases[phase * self.together * width..][..rows * width];
                copy_phase(to, &buffers.padded, phase, stride);
            }
        }
        let source = match stride {
            1 => &buffers.padded,
            _ => &buffers.phases,
        };
        for row in 0..rows {
            let to = &mut result[row * count..];
            // Elements after a short row are written too. The rows after it overwrite them.
            let written = match count < LANES && to.len() >= LANES {
                true => LANES,
                false => count,
            };
            fold_slices(&mut to[..written], &source[row * width..], taps, take);
        }
    }
}

/// Consecutive rows of windows of an image. A closure would not be compiled for the processor's widest vectors.
struct Block<'b, T, F> {
    pool: &'b PlanePool,
    /// The image, and those after it.
    images: &'b [T],
    result: &'b mut [T],
    /// The first row of windows.
    first: usize,
    /// The number of rows of windows.
    count: usize,
    taps: &'b [usize],
    buffers: &'b mut Buffers<T>,
    start: T,
    take: F,
}

impl<T: Copy, F: Fn(T, T) -> T + Copy> pulp::WithSimd for Block<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let rows = [self.first, self.count];
        self.pool
            .fold_rows(self.images, rows, &mut self.buffers.padded, self.start, self.take);
        self.pool
            .fold_columns((self.result, self.count), self.taps, self.buffers, self.take);
    }
}

/// Copies every `stride`th element of `from`, starting at index `phase`.
#[inline(always)]
fn copy_phase<T: Copy>(to: &mut [T], from: &[T], phase: usize, stride: usize) {
    if stride == 2 {
        let (pairs, _) = from.as_chunks::<2>();
        match phase {
            0 => to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]),
            _ => to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[1]),
        }
        return;
    }
    let from = from[phase..].iter().step_by(stride);
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

/// Folds the slices of `from` that start at each of `offsets`, of which there is at least one, elementwise.
#[inline(always)]
fn fold_slices<T: Copy>(to: &mut [T], from: &[T], offsets: &[usize], take: impl Fn(T, T) -> T + Copy) {
    match *offsets {
        [a] => to.copy_from_slice(&from[a..][..to.len()]),
        [a, b] => fold_as(to, from, [a, b], take),
        [a, b, c] => fold_as(to, from, [a, b, c], take),
        [a, b, c, d] => fold_as(to, from, [a, b, c, d], take),
        [a, b, c, d, e] => fold_as(to, from, [a, b, c, d, e], take),
        [a, b, c, d, e, f] => fold_as(to, from, [a, b, c, d, e, f], take),
        [a, b, c, d, e, f, g] => fold_as(to, from, [a, b, c, d, e, f, g], take),
        [a, b, c, d, e, f, g, h] => fold_as(to, from, [a, b, c, d, e, f, g, h], take),
        _ => {}
    }
}

#[inline(always)]
fn fold_as<T: Copy, const COUNT: usize>(
    to: &mut [T],
    from: &[T],
    offsets: [usize; COUNT],
    take: impl Fn(T, T) -> T + Copy,
) {
    let count = to.len();
    let mut slices = [from; COUNT];
    for (slice, offset) in slices.iter_mut().zip(offsets) {
        *slice = &from[offset..][..count];
    }
    if count < LANES {
        for (at, to) in to.iter_mut().enumerate() {
            *to = slices[1..]
                .iter()
                .fold(slices[0][at], |folded, slice| take(folded, slice[at]));
        }
        return;
    }
    for at in (0..count - LANES).step_by(LANES) {
        fold_lanes(to, slices, at, take);
    }
    // The last lanes overlap those before them.
    fold_lanes(to, slices, count - LANES, take);
}

/// Folds [`LANES`] elements. They are arrays, so that the compiler keeps them in vector registers.
#[inline(always)]
fn fold_lanes<T: Copy, const COUNT: usize>(
    to: &mut [T],
    slices: [&[T]; COUNT],
    at: usize,
    take: impl Fn(T, T) -> T + Copy,
) {
    let Some(to) = to[at..].first_chunk_mut::<LANES>() else {
        return;
    };
    let Some(first) = slices[0][at..].first_chunk::<LANES>() else {
        return;
    };
    let mut folded = *first;
    for slice in &slices[1..] {
        let Some(lanes) = slice[at..].first_chunk::<LANES>() else {
            return;
        };
        for lane in 0..LANES {
            folded[lane] = take(folded[lane], lanes[lane]);
        }
    }
    *to = folded;
}

/// Folds all elements of an image.
pub(crate) fn fold_all<T: Copy>(
    image: &[T],
    start: T,
    take: impl Fn(T, T) -> T + Copy,
    pace: &mut Pace,
) -> Result<T> {
    let mut folded = start;
    for elements in image.chunks(PART) {
        pace.spend(elements.len() as u64)?;
        // Sums of parts lose fewer digits than a single one.
        let mut lanes = [start; LANES];
        pulp::Arch::new().dispatch(All {
            elements,
            folded: &mut lanes,
            take,
        });
        folded = take(folded, lanes.into_iter().fold(start, take));
    }
    Ok(folded)
}

/// Elements that are folded into lanes.
struct All<'e, T, F> {
    elements: &'e [T],
    folded: &'e mut [T; LANES],
    take: F,
}

impl<T: Copy, F: Fn(T, T) -> T> pulp::WithSimd for All<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let (chunks, rest) = self.elements.as_chunks::<LANES>();
        let mut folded = *self.folded;
        for chunk in chunks {
            for lane in 0..LANES {
                folded[lane] = (self.take)(folded[lane], chunk[lane]);
            }
        }
        for (folded, &element) in folded.iter_mut().zip(rest) {
            *folded = (self.take)(*folded, element);
        }
        *self.folded = folded;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::testing::while_cancelled;

    fn axis(size: usize, [kernel, stride, dilation, pad]: [usize; 4]) -> Option<Axis> {
        let room = (size + 2 * pad).checked_sub((kernel - 1) * dilation + 1)?;
        Some(Axis {
            size,
            // The last window may begin in the padding, as with `ceil_mode`.
            count: room.div_ceil(stride) + 1,
            kernel,
            stride,
            dilation,
            pad,
        })
    }

    /// Folds each window of one image by itself.
    fn plainly<T: Copy>(image: &[T], [rows, columns]: [Axis; 2], start: T, take: fn(T, T) -> T) -> Vec<T> {
        let mut made = Vec::new();
        for row in 0..rows.count {
            for column in 0..columns.count {
                let mut folded = start;
                for at in rows.taken(row) {
                    for place in columns.taken(column) {
                        folded = take(folded, image[at * columns.size + place]);
                    }
                }
                made.push(folded);
            }
        }
        made
    }

    fn check<T: Copy + Default + PartialEq + std::fmt::Debug>(
        of: fn(usize) -> T,
        start: T,
        take: fn(T, T) -> T,
    ) {
        let windows = [
            [1, 1, 1, 0],
            [2, 2, 1, 0],
            [3, 2, 1, 1],
            [3, 1, 2, 2],
            [5, 1, 1, 2],
            [4, 3, 2, 1],
            [8, 5, 1, 7],
        ];
        for [height, width] in [[1, 1], [1, 40], [40, 1], [7, 15], [9, 16], [6, 33], [300, 18]] {
            for (rows, columns) in windows
                .iter()
                .flat_map(|rows| windows.map(|columns| (*rows, columns)))
            {
                let (Some(rows), Some(columns)) = (axis(height, rows), axis(width, columns)) else {
                    continue;
                };
                let images: Vec<T> = (0..2 * height * width).map(of).collect();
                let result = rows.count * columns.count;
                let mut found = vec![T::default(); 2 * result];
                let pool = PlanePool::of(&[rows, columns]).unwrap();
                pool.fold(&images, &mut found, start, take, &mut Pace::default())
                    .unwrap();
                let expected = images.chunks(height * width);
                let expected = expected.flat_map(|image| plainly(image, [rows, columns], start, take));
                assert_eq!(found, expected.collect::<Vec<T>>(), "{rows:?} {columns:?}");
            }
        }
    }

    #[test]
    fn windows_of_all_shapes_are_folded_as_one_by_one() {
        check(|at| (at * 67 % 211) as f32 - 99.0, 0.0, |sum, x| sum + x);
        check(|at| (at * 67 % 211) as f64 - 99.0, f64::NEG_INFINITY, f64::max);
        check(|at| (at * 67 % 211) as u8, 0, Ord::max);
    }

    #[test]
    fn one_window_of_a_whole_image_is_folded_in_lanes() {
        for count in [1, 15, 16, 33, 2 * PART + 5] {
            let image: Vec<f64> = (0..count).map(|at| (at * 67 % 211) as f64 - 99.0).collect();
            let mut pace = Pace::default();
            let sum = fold_all(&image, 0.0, |sum, x| sum + x, &mut pace).unwrap();
            assert_eq!(sum, image.iter().sum::<f64>());
            let most = fold_all(&image, f64::NEG_INFINITY, f64::max, &mut pace).unwrap();
            assert_eq!(most, image.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
    }

    #[test]
    fn large_windows_and_rows_are_left_to_other_ways() {
        let of = |size, window| PlanePool::of(&[axis(size, window).unwrap(); 2]).is_some();
        assert!(of(40, [8, 1, 1, 0]) && !of(40, [9, 1, 1, 0]));
        assert!(of(MAX_WIDTH, [2, 2, 1, 0]) && !of(MAX_WIDTH + 2, [2, 2, 1, 0]));
        assert!(!of(40, [2, MAX_WIDTH + 1, 1, 0]));
        assert!(PlanePool::of(&[axis(4, [2, 2, 1, 0]).unwrap(); 3]).is_none());
        // Each row would be 1000 times as wide as the image.
        assert!(of(40, [2, 2, 100, 100]) && !of(40, [2, 2, 60_000, 30_000]));
    }

    #[test]
    fn a_cancelled_fold_ends() {
        let pool = PlanePool::of(&[axis(400, [3, 1, 1, 1]).unwrap(); 2]).unwrap();
        let (image, mut sums) = (vec![1.0f32; 400 * 400], vec![0.0; 401 * 401]);
        let fold = || pool.fold(&image, &mut sums, 0.0, |sum, x| sum + x, &mut Pace::default());
        assert!(while_cancelled(fold).is_err());
    }
}
