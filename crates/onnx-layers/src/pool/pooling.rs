//! Sliding windows for pools. A window is a box, so pools reduce one axis after another: a 13 x 13 window
//! takes 26 steps per position instead of 169.

use onnx_kernels::elementwise::vector::vectorized;
use onnx_tensor::prelude::*;

use crate::{
    least_work::ELEMENTS,
    pool::{
        axis::{Axis, Span},
        plane_pool::{PlanePool, fold_all},
    },
};

use onnx_tensor::{
    cancelling::{PART, Pace},
    size, split, threads,
};

/// Minimum number of contiguous elements per index for which whole lines are folded at once.
const WIDE: usize = 16;

/// Number of windows of fewer than [`WIDE`] elements that are folded between two checks of the deadline.
const TOGETHER: usize = PART / WIDE;

/// Maximum window size for which spans are listed per element.
const MAX_SPANS: usize = 1 << 12;

/// How an axis is folded.
enum Way {
    /// Folds one window element at a time, over all windows.
    Spans(Vec<Span>),
    /// Folds one window at a time.
    Lines,
    /// Folds windows of 2, 4, 8, ... elements at all positions of the axis, which is padded to this size.
    Doubling(usize),
}

/// A pass that folds along one axis, with `inner` elements at each index.
struct Pass {
    axis: Axis,
    inner: usize,
    way: Way,
    /// Number of image elements along the axis.
    size: usize,
}

impl Pass {
    fn new(axis: Axis, inner: usize, size: usize) -> Self {
        let reach = (axis.count.max(1) - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1;
        let singly = axis.count.saturating_mul(axis.kernel.min(axis.size));
        // A step of `Doubling` takes twice as long as a step of `Spans` or `Lines`.
        let doubling = reach.saturating_mul(2 * (2 + axis.kernel.ilog2() as usize));
        let way = if doubling < singly {
            Way::Doubling(reach)
        } else if inner < WIDE && axis.kernel <= MAX_SPANS {
            Way::Spans(axis.spans())
        } else {
            Way::Lines
        };
        Self {
            axis,
            inner,
            way,
            size,
        }
    }

    /// Folds the windows of one image along this pass's axis.
    fn fold<T: Copy>(
        &self,
        from: &[T],
        to: &mut [T],
        start: T,
        take: impl Fn(T, T) -> T + Copy,
        pace: &mut Pace,
    ) -> Result<()> {
        let Self { axis, inner, .. } = self;
        let blocks = from.chunks_exact(axis.size * inner);
        for (from, to) in blocks.zip(to.chunks_exact_mut(axis.count * inner)) {
            match &self.way {
                Way::Spans(spans) => {
                    for span in spans {
                        let mut start = span.start;
                        let mut rest = &mut to[span.first * inner..span.end * inner];
                        while !rest.is_empty() {
                            let (to, others) = rest.split_at_mut(rest.len().min(TOGETHER * inner));
                            pace.spend(to.len() as u64)?;
                            let from = &from[start * inner..];
                            vectorized(
                                #[inline(always)]
                                || fold_apart(to, from, axis.stride, *inner, take),
                            );
                            start += TOGETHER * axis.stride;
                            rest = others;
                        }
                    }
                }
                Way::Lines => {
                    for (at, to) in to.chunks_exact_mut(*inner).enumerate() {
                        let mut places = axis.taken(at);
                        let line = |place: usize| &from[place * inner..][..*inner];
                        let Some(first) = places.next() else {
                            continue;
                        };
                        pace.pairs(line(first), to, |from, to| to.copy_from_slice(from))?;
                        for place in places {
                            pace.pairs(line(place), to, |from, to| fold_line_vectorized(to, from, take))?;
                        }
                    }
                }
                Way::Doubling(reach) => self.double(*reach, from, to, start, take, pace)?,
            }
        }
        Ok(())
    }

    /// Folds windows by doubling their size, which takes log2(window) steps.
    fn double<T: Copy>(
        &self,
        reach: usize,
        from: &[T],
        to: &mut [T],
        start: T,
        take: impl Fn(T, T) -> T + Copy,
        pace: &mut Pace,
    ) -> Result<()> {
        let Self { axis, inner, .. } = self;
        let size = reach * inner;
        // For each index, `now` holds the fold of the `width` elements that start there, and `folded` holds
        // the fold of the elements consumed so far.
        let mut now = pace.repeat(&start, size)?;
        let mut wider = pace.repeat(&start, size)?;
        let mut folded = pace.repeat(&start, size)?;
        let room = &mut now[axis.pad.min(reach) * inner..];
        let count = room.len().min(from.len());
        pace.pairs(&from[..count], room, |from, to| to.copy_from_slice(from))?;
        let fold = |from: &[T], to: &mut [T]| fold_line_vectorized(to, from, take);
        let (mut width, mut done) = (1, 0);
        while done < axis.kernel {
            pace.spend(1)?;
            if axis.kernel & width != 0 {
                let ahead = now.get(done * axis.dilation * inner..).unwrap_or_default();
                pace.pairs(ahead, &mut folded, fold)?;
                done += width;
            }
            let ahead = now.get(width * axis.dilation * inner..).unwrap_or_default();
            pace.pairs(&now, &mut wider, |now, wider| wider.copy_from_slice(now))?;
            pace.pairs(ahead, &mut wider, fold)?;
            std::mem::swap(&mut now, &mut wider);
            width *= 2;
        }
        let together = (PART / inner).max(1);
        let windows = to
            .chunks_mut(together * inner)
            .zip(folded.chunks(together * axis.stride * inner));
        for (to, from) in windows {
            if together == 1 {
                pace.pairs(from, to, |from, to| to.copy_from_slice(from))?;
                continue;
            }
            pace.spend(to.len() as u64)?;
            let places = to.chunks_exact_mut(*inner).zip(from.chunks(axis.stride * inner));
            places.for_each(|(to, from)| to.copy_from_slice(&from[..*inner]));
        }
        Ok(())
    }
}

/// Folds the windows of contiguous images with `depth` elements at each position. Writes each element of
/// `results`; windows without elements become `start`, the neutral element.
///
/// # Errors
/// Returns [`BadInput`](onnx_tensor::faults::BadInput) if the result of folding an axis is too large, and
/// [`NoRoom`](onnx_tensor::faults::NoRoom) and [`Cancelled`](onnx_tensor::cancelling::Cancelled).
pub(crate) fn fold<T: Element + Copy>(
    axes: &[Axis],
    depth: usize,
    images: &[T],
    results: &mut [T],
    start: T,
    take: impl Fn(T, T) -> T + Copy + Sync,
) -> Result<()> {
    let image = axes.iter().map(|axis| axis.size).product::<usize>() * depth;
    let result = axes.iter().map(|axis| axis.count).product::<usize>() * depth;
    let work = [images.len() as u64 * COST, ELEMENTS];
    if depth == 1 && image > 0 && axes.iter().all(Axis::is_covered) {
        return split::lines(results, 1, work, |first, results, pace| {
            let images = images[first * image..].chunks_exact(image);
            for (image, result) in images.zip(results) {
                *result = fold_all(image, start, take, pace)?;
            }
            Ok(())
        });
    }
    if let (Some(pool), 1) = (PlanePool::of(axes), depth) {
        return split::lines(results, result, work, |first, results, pace| {
            pool.fold(&images[first * image..], results, start, take, pace)
        });
    }
    if let [rows, columns] = axes
        && depth >= WIDE
        && rows.kernel.saturating_mul(columns.kernel) <= FEW
        && image > 0
        && !results.is_empty()
    {
        // For each window of a line, the first column of the image and the number of columns.
        size::admit_now((columns.count * size_of::<(usize, usize)>()) as u64)?;
        let taken = Pace::default().indices(columns.count, |at| {
            let mut places = columns.taken(at);
            let count = places.len();
            (places.next().unwrap_or(0), count)
        })?;
        return split::lines(results, columns.count * depth, work, |first, results, pace| {
            let lines = (first..).zip(results.chunks_exact_mut(columns.count * depth));
            for (at, line) in lines {
                let (image_at, at) = (at / rows.count, at % rows.count);
                let image = &images[image_at * image..][..image];
                let rows: ShortVec<&[T]> = rows
                    .taken(at)
                    .map(|row| &image[row * columns.size * depth..][..columns.size * depth])
                    .collect();
                let windows = Windows {
                    rows: &rows,
                    dilation: columns.dilation,
                    depth,
                };
                windows.fold(&taken, line, start, take, pace)?;
            }
            Ok(())
        });
    }
    Pace::default().over(results, |results| results.fill(start))?;
    if results.is_empty() || image == 0 {
        return Ok(());
    }
    fold_by_axes(axes, depth, images, results, start, take)
}

/// Maximum number of elements of a window that are folded one by one.
const FEW: usize = 16;

/// Windows over rows of an image with at least [`WIDE`] elements at each position.
struct Windows<'w, T> {
    rows: &'w [&'w [T]],
    dilation: usize,
    depth: usize,
}

impl<T: Copy> Windows<'_, T> {
    /// Writes the folds of windows, each of which has the given first column and number of columns.
    fn fold(
        &self,
        taken: &[(usize, usize)],
        to: &mut [T],
        start: T,
        take: impl Fn(T, T) -> T + Copy,
        pace: &mut Pace,
    ) -> Result<()> {
        let together = (PART / self.depth).max(1);
        let parts = to.chunks_mut(together * self.depth);
        for (taken, to) in taken.chunks(together).zip(parts) {
            pace.spend((to.len() * FEW) as u64 / 4 + 1)?;
            vectorized(
                #[inline(always)]
                || {
                    for (&columns, to) in taken.iter().zip(to.chunks_exact_mut(self.depth)) {
                        self.fold_one(columns, to, start, take);
                    }
                },
            );
        }
        Ok(())
    }

    /// Folds one window, [`WIDE`] elements at a time. The last ones may overlap with those before.
    #[inline(always)]
    fn fold_one(&self, (first, count): (usize, usize), to: &mut [T], start: T, take: impl Fn(T, T) -> T) {
        let mut at = 0;
        while at < self.depth {
            at = at.min(self.depth - WIDE);
            let mut folded = [start; WIDE];
            for row in self.rows {
                for column in 0..count {
                    let from = (first + column * self.dilation) * self.depth + at;
                    if let Some(from) = row[from..].first_chunk::<WIDE>() {
                        folded
                            .iter_mut()
                            .zip(from)
                            .for_each(|(folded, &from)| *folded = take(*folded, from));
                    }
                }
            }
            to[at..at + WIDE].copy_from_slice(&folded);
            at += WIDE;
        }
    }
}

/// Folds the windows one axis after another. The caller fills `results` with `start`. The axis that shrinks
/// most is folded first. Among axes that shrink equally, the outermost is folded first, because its stride
/// skips whole lines.
fn fold_by_axes<T: Element + Copy>(
    axes: &[Axis],
    depth: usize,
    images: &[T],
    results: &mut [T],
    start: T,
    take: impl Fn(T, T) -> T + Copy + Sync,
) -> Result<()> {
    let image = axes.iter().map(|axis| axis.size).product::<usize>() * depth;
    let result = axes.iter().map(|axis| axis.count).product::<usize>() * depth;
    let mut order: Vec<usize> = (0..axes.len())
        .filter(|&axis| !axes[axis].is_identity())
        .collect();
    order.sort_by(|&one, &other| axes[one].growth().total_cmp(&axes[other].growth()));
    let mut sizes: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
    let mut passes: Vec<Pass> = Vec::with_capacity(order.len());
    let mut bytes = 0;
    for index in order {
        let inner = sizes[index + 1..].iter().product::<usize>() * depth;
        sizes[index] = axes[index].count;
        let outer: usize = sizes[..=index].iter().product();
        size::admit_shape(T::element_type(), &[outer, inner])?;
        let pass = Pass::new(axes[index], inner, outer * inner);
        let padded = match pass.way {
            Way::Doubling(reach) => reach,
            _ => 0,
        };
        size::admit_shape(T::element_type(), &[padded, inner])?;
        bytes = bytes.max((2 * outer * inner + 3 * padded * inner) * size_of::<T>());
        passes.push(pass);
    }
    let work = [images.len() as u64 * COST, ELEMENTS];
    let parts = threads::parts(work[0], work[1]).min(images.len() / image.max(1));
    size::admit_now(bytes as u64 * parts.max(1) as u64)?;
    let Some((last, passes)) = passes.split_last() else {
        return Pace::default().pairs(images, results, |from, to| to.copy_from_slice(from));
    };
    split::lines(results, result, work, |first, results, pace| {
        let (mut now, mut next) = (Vec::new(), Vec::new());
        let images = images[first * image..].chunks_exact(image);
        for (image, result) in images.zip(results.chunks_exact_mut(result)) {
            let mut from = image;
            for pass in passes {
                next.clear();
                next.reserve(pass.size);
                while next.len() < pass.size {
                    let end = pass.size.min(next.len() + PART);
                    pace.spend((end - next.len()) as u64)?;
                    next.resize(end, start);
                }
                pass.fold(from, &mut next, start, take, pace)?;
                std::mem::swap(&mut now, &mut next);
                from = &now;
            }
            last.fold(from, result, start, take, pace)?;
        }
        Ok(())
    })
}

/// Cost per element, relative to a loop that reads and writes one element: each element is part of several
/// windows.
const COST: u64 = 4;

#[inline(always)]
fn fold_line<T: Copy>(to: &mut [T], from: &[T], take: impl Fn(T, T) -> T) {
    to.iter_mut()
        .zip(from)
        .for_each(|(to, from)| *to = take(*to, *from));
}

/// Does the same, compiled for the processor's widest vectors.
fn fold_line_vectorized<T: Copy>(to: &mut [T], from: &[T], take: impl Fn(T, T) -> T) {
    vectorized(
        #[inline(always)]
        || fold_line(to, from, &take),
    );
}

/// Folds elements that are `stride` apart.
#[inline(always)]
fn fold_apart<T: Copy>(to: &mut [T], from: &[T], stride: usize, inner: usize, take: impl Fn(T, T) -> T) {
    if stride == 1 {
        fold_line(to, from, take);
    } else if inner > 1 {
        let places = to.chunks_exact_mut(inner).zip(from.chunks(stride * inner));
        places.for_each(|(to, from)| fold_line(to, from, &take));
    } else if stride == 2 {
        let (pairs, rest) = from.as_chunks::<2>();
        let count = to.len().min(pairs.len());
        let (to, last) = to.split_at_mut(count);
        to.iter_mut()
            .zip(pairs)
            .for_each(|(to, pair)| *to = take(*to, pair[0]));
        fold_line(last, rest, take);
    } else {
        let from = from.iter().step_by(stride);
        to.iter_mut()
            .zip(from)
            .for_each(|(to, from)| *to = take(*to, *from));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{cancelling::Cancelled, testing::while_cancelled};

    #[test]
    fn all_ways_to_fold_are_the_same() {
        let image: Vec<f64> = (0..3 * 40 * 20).map(|at| (at * 67 % 211) as f64 - 99.0).collect();
        for kernel in [1usize, 2, 3, 7, 13, 16, 37, 5000] {
            for stride in [1, 2, 5, 40] {
                for dilation in [1, 3] {
                    for pad in [0, 1, kernel - 1] {
                        let reach = (kernel - 1) * dilation + 1;
                        let Some(room) = (40 + 2 * pad).checked_sub(reach) else {
                            continue;
                        };
                        let axis = Axis {
                            size: 40,
                            count: room / stride + 1,
                            kernel,
                            stride,
                            dilation,
                            pad,
                        };
                        for inner in [1, 3, 20] {
                            let image = &image[..3 * 40 * inner];
                            let mut found = vec![0.0; 3 * axis.count * inner];
                            let other = Axis {
                                size: inner,
                                count: inner,
                                kernel: 1,
                                stride: 1,
                                dilation: 1,
                                pad: 0,
                            };
                            fold(&[axis, other], 1, image, &mut found, 0.0, |sum, x| sum + x).unwrap();
                            for (at, &found) in found.iter().enumerate() {
                                let (block, window) = (at / inner / axis.count, at / inner % axis.count);
                                let expected: f64 = axis
                                    .taken(window)
                                    .map(|place| image[(block * 40 + place) * inner + at % inner])
                                    .sum();
                                assert_eq!(found, expected, "{axis:?}, {inner} next to each other");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn windows_of_several_elements_at_each_position_are_those_of_plain_loops() {
        let axis = |size, kernel, stride, dilation, pad, count| Axis {
            size,
            count,
            kernel,
            stride,
            dilation,
            pad,
        };
        for (rows, columns) in [
            (axis(6, 2, 2, 1, 0, 3), axis(8, 2, 2, 1, 0, 4)),
            (axis(7, 3, 1, 2, 1, 5), axis(9, 2, 2, 3, 2, 5)),
            // The last windows are wholly in the padding.
            (axis(4, 2, 3, 1, 0, 3), axis(5, 3, 4, 1, 1, 3)),
            // More windows than are folded between two checks of the deadline.
            (axis(2, 2, 1, 1, 0, 1), axis(4 * PART, 2, 2, 1, 0, 2 * PART)),
        ] {
            for depth in [16, 17, 31, 33] {
                let image: Vec<f64> = (0..2 * rows.size * columns.size * depth)
                    .map(|at| (at * 67 % 211) as f64 - 99.0)
                    .collect();
                let mut found = vec![f64::NAN; 2 * rows.count * columns.count * depth];
                fold(&[rows, columns], depth, &image, &mut found, 0.5, |sum, x| sum + x).unwrap();
                for (at, &found) in found.iter().enumerate() {
                    let (window, element) = (at / depth, at % depth);
                    let (line, column) = (window / columns.count, window % columns.count);
                    let (batch, row) = (line / rows.count, line % rows.count);
                    let mut expected = 0.5;
                    for y in rows.taken(row) {
                        for x in columns.taken(column) {
                            expected += image[((batch * rows.size + y) * columns.size + x) * depth + element];
                        }
                    }
                    assert_eq!(found, expected, "{rows:?}, {columns:?}, {depth}: {at}");
                }
            }
        }
    }

    #[test]
    fn windows_of_several_elements_end_with_their_request() {
        let columns = Axis {
            size: 1 << 14,
            count: 1 << 14,
            kernel: 1,
            stride: 1,
            dilation: 1,
            pad: 0,
        };
        let image = vec![1.0f32; 17 * columns.size];
        let mut sums = vec![0.0; image.len()];
        let add = |sum, x| sum + x;
        let ended = while_cancelled(|| fold(&[Axis::ONE, columns], 17, &image, &mut sums, 0.0, add));
        assert!(ended.unwrap_err().is::<Cancelled>());
    }

    #[test]
    fn windows_as_large_as_the_image_are_folded_in_time() {
        // With windows of this size, folding each window element by element would take 3 * 10^9 steps.
        const SIZE: usize = 256;
        let axis = Axis {
            size: SIZE,
            count: SIZE,
            kernel: SIZE - 1,
            stride: 1,
            dilation: 1,
            pad: SIZE / 2 - 1,
        };
        let image = vec![1.0f32; SIZE * SIZE];
        let mut sums = vec![0.0; image.len()];
        fold(&[axis; 2], 1, &image, &mut sums, 0.0, |sum, x| sum + x).unwrap();
        for (at, &sum) in sums.iter().enumerate() {
            assert_eq!(
                sum as usize,
                axis.taken(at / SIZE).len() * axis.taken(at % SIZE).len()
            );
        }
    }

    #[test]
    fn each_way_to_fold_ends_with_its_request() {
        let axis = |size: usize, kernel: usize| Axis {
            size,
            count: size,
            kernel,
            stride: 1,
            dilation: 1,
            pad: kernel / 2,
        };
        for (axis, inner, way) in [
            (axis(1 << 18, 3), 1, "spans"),
            (axis(1 << 12, 3), 64, "lines"),
            (axis(1 << 18, 255), 1, "doubling"),
        ] {
            let pass = Pass::new(axis, inner, axis.count * inner);
            let found = match pass.way {
                Way::Spans(_) => "spans",
                Way::Lines => "lines",
                Way::Doubling(_) => "doubling",
            };
            assert_eq!(found, way);
            let image = vec![1.0f32; axis.size * inner];
            let mut sums = vec![0.0; image.len()];
            let add = |sum, x| sum + x;
            let ended = while_cancelled(|| pass.fold(&image, &mut sums, 0.0, add, &mut Pace::default()));
            assert!(ended.unwrap_err().is::<Cancelled>(), "{way}");
        }
    }
}
