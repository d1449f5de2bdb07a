//! Windows that move over images, for pools. A window is a box, so that its elements can be folded along one axis after the
//! other: a window of 13 by 13 takes 26 steps for each of its places, and not 169.

use tract_hir::{internal::*, tract_core::ops::cnn::PoolSpec};

use crate::{cancelling::Pace, size};

/// The windows along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// Elements of the image.
    pub(super) size: usize,
    /// How many windows there are.
    pub(super) count: usize,
    /// Elements of a window.
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    /// How far before the image the first window begins.
    pub(super) pad: usize,
}

/// Windows `first..end` have the same one of their elements in the image, the first of them at `start`.
struct Span {
    first: usize,
    end: usize,
    start: usize,
}

impl Axis {
    /// Those of a pool over images of a shape, and how many elements lie side by side at one position.
    pub(super) fn of(spec: &PoolSpec, shape: &[usize]) -> TractResult<(Vec<Self>, usize)> {
        let shape = spec.data_format.shape::<usize, _>(shape)?;
        let depth = match spec.data_format.c_is_last() {
            true => *shape.c(),
            false => 1,
        };
        let sizes = shape.hw_dims();
        let padding = spec.computed_padding(sizes).into_iter().enumerate();
        let axes = padding.map(|(axis, padded)| Self {
            size: sizes[axis],
            count: padded.convoluted,
            kernel: spec.kernel_shape[axis],
            stride: spec.stride(axis),
            dilation: spec.dilation(axis),
            pad: padded.pad_before,
        });
        Ok((axes.collect(), depth))
    }

    /// Places in the image that the window at `at` covers.
    pub(super) fn taken(&self, at: usize) -> impl ExactSizeIterator<Item = usize> {
        let Self {
            size, dilation, pad, ..
        } = *self;
        let start = at * self.stride;
        let first = pad.saturating_sub(start).div_ceil(dilation);
        let end = (size + pad)
            .saturating_sub(start)
            .div_ceil(dilation)
            .min(self.kernel);
        (first..end.max(first)).map(move |element| start + element * dilation - pad)
    }

    /// For each element of a window, the windows that have it in the image.
    fn spans(&self) -> Vec<Span> {
        let furthest = self.count.saturating_sub(1) * self.stride;
        let first = self.pad.saturating_sub(furthest).div_ceil(self.dilation);
        let end = (self.size + self.pad).div_ceil(self.dilation).min(self.kernel);
        let spans = (first..end).map(|element| {
            let ahead = element * self.dilation;
            let first = self.pad.saturating_sub(ahead).div_ceil(self.stride);
            let end = (self.size + self.pad - ahead)
                .div_ceil(self.stride)
                .min(self.count);
            Span {
                first,
                end,
                start: (first * self.stride + ahead).saturating_sub(self.pad),
            }
        });
        spans.filter(|span| span.first < span.end).collect()
    }

    /// Whether each window is one element, and each element has one.
    fn is_identity(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.pad == 0 && self.count == self.size
    }
}

/// Elements behind each other from which on lines are folded as a whole.
const WIDE: usize = 16;

/// An axis that is folded, with `inner` elements at each of its places.
struct Pass {
    axis: Axis,
    inner: usize,
    /// Empty where lines are folded as a whole.
    spans: Vec<Span>,
    /// Elements of an image behind it.
    size: usize,
}

/// Folds the windows of images that lie behind each other, with `depth` elements at each position. `results` has `start`
/// everywhere, which windows without elements keep. The outermost axis is first, so that a stride is taken in whole lines
/// before it is taken within lines.
///
/// # Errors
/// [`BadInput`](crate::faults::BadInput) if too many elements lie between two axes; [`Cancelled`](crate::cancelling::Cancelled).
pub(super) fn fold<T: Datum + Copy>(
    axes: &[Axis],
    depth: usize,
    images: &[T],
    results: &mut [T],
    take: impl Fn(T, T) -> T + Copy,
) -> TractResult<()> {
    let image = axes.iter().map(|axis| axis.size).product::<usize>() * depth;
    let result = axes.iter().map(|axis| axis.count).product::<usize>() * depth;
    let (Some(&start), true) = (results.first(), image > 0) else {
        return Ok(());
    };
    let mut passes: Vec<Pass> = Vec::new();
    for (index, axis) in axes.iter().enumerate() {
        let outer: usize = axes[..=index].iter().map(|axis| axis.count).product();
        let inner = axes[index + 1..].iter().map(|axis| axis.size).product::<usize>() * depth;
        size::admit_shape(T::datum_type(), &[outer, inner])?;
        if !axis.is_identity() {
            passes.push(Pass {
                axis: *axis,
                inner,
                spans: if inner < WIDE { axis.spans() } else { Vec::new() },
                size: outer * inner,
            });
        }
    }
    let Some((last, passes)) = passes.split_last() else {
        results.copy_from_slice(images);
        return Ok(());
    };
    let (mut now, mut next) = (Vec::new(), Vec::new());
    let mut pace = Pace::default();
    for (image, result) in images.chunks_exact(image).zip(results.chunks_exact_mut(result)) {
        let mut from = image;
        for pass in passes {
            next.clear();
            next.resize(pass.size, start);
            pass.fold(from, &mut next, take, &mut pace)?;
            std::mem::swap(&mut now, &mut next);
            from = &now;
        }
        last.fold(from, result, take, &mut pace)?;
    }
    Ok(())
}

impl Pass {
    fn fold<T: Copy>(
        &self,
        from: &[T],
        to: &mut [T],
        take: impl Fn(T, T) -> T + Copy,
        pace: &mut Pace,
    ) -> TractResult<()> {
        let Self {
            axis, inner, spans, ..
        } = self;
        let blocks = from.chunks_exact(axis.size * inner);
        let blocks = blocks.zip(to.chunks_exact_mut(axis.count * inner));
        if *inner < WIDE {
            for (from, to) in blocks {
                pace.spend((spans.len() * axis.count * inner) as u64)?;
                pulp::Arch::new().dispatch(|| {
                    for span in spans {
                        let to = &mut to[span.first * inner..span.end * inner];
                        fold_apart(to, &from[span.start * inner..], axis.stride, *inner, take);
                    }
                });
            }
            return Ok(());
        }
        for (from, to) in blocks {
            for (at, to) in to.chunks_exact_mut(*inner).enumerate() {
                let mut places = axis.taken(at);
                pace.spend((places.len() * inner) as u64)?;
                let line = |place: usize| &from[place * inner..][..*inner];
                let Some(first) = places.next() else {
                    continue;
                };
                to.copy_from_slice(line(first));
                pulp::Arch::new().dispatch(|| {
                    places.for_each(|place| fold_line(to, line(place), take));
                });
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn fold_line<T: Copy>(to: &mut [T], from: &[T], take: impl Fn(T, T) -> T) {
    to.iter_mut()
        .zip(from)
        .for_each(|(to, from)| *to = take(*to, *from));
}

/// Folds what stands `stride` places apart.
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

    use oip_service::CancelToken;

    use super::*;
    use crate::cancelling::{self, Cancelled};

    #[test]
    fn windows_as_large_as_the_image_are_folded_in_time_or_given_up() {
        // Each window with each of its elements would take 3 * 10^9 steps.
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
        fold(&[axis; 2], 1, &image, &mut sums, |sum, x| sum + x).unwrap();
        for (at, &sum) in sums.iter().enumerate() {
            assert_eq!(
                sum as usize,
                axis.taken(at / SIZE).len() * axis.taken(at % SIZE).len()
            );
        }
        let token = CancelToken::new(None);
        token.cancel();
        let _run = cancelling::start(&token);
        let error = fold(&[axis; 2], 1, &image, &mut sums, |sum, x| sum + x).unwrap_err();
        assert!(error.is::<Cancelled>(), "{error}");
    }
}
