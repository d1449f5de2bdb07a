//! The rows of a convolution as a product: the pixels under the taps of each output pixel.

use std::ops::Range;

use onnx_gemm::OUTSIDE;
use onnx_kernels::elementwise::vector::vectorized;
use onnx_tensor::{cancelling::Pace, prelude::*};

use crate::conv::geometry::Geometry;

/// Gives the first factor of a product: the pixels under each tap of a range of output pixels.
pub(super) trait Image: Sync {
    /// Returns the values, and those that the next range of pixels reads but this one does not, as far as they are
    /// known. Fills `starts` with the index of each segment in the values.
    fn segments<'s>(
        &'s self,
        geometry: &Geometry,
        pixels: Range<usize>,
        starts: &mut Vec<usize>,
        copies: &'s mut Vec<f32>,
        pace: &mut Pace,
    ) -> Result<[&'s [f32]; 2]>;

    /// Returns the number of taps and the number of elements of each.
    fn taps(&self, geometry: &Geometry) -> [usize; 2];

    /// Computes the whole image, if it is otherwise computed a range at a time.
    fn whole(&self) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Returns the best number of pixels of a range, at most `most`.
    fn together(&self, _geometry: &Geometry, most: usize) -> usize {
        most
    }
}

/// An image with the channels last, which is read where it is.
pub(super) struct InPlace<'i>(pub(super) &'i [f32]);

impl Image for InPlace<'_> {
    fn segments<'s>(
        &'s self,
        geometry: &Geometry,
        pixels: Range<usize>,
        starts: &mut Vec<usize>,
        _: &'s mut Vec<f32>,
        _: &mut Pace,
    ) -> Result<[&'s [f32]; 2]> {
        let channels = geometry.groups * geometry.channels;
        let ([height, width], [_, taps]) = (geometry.input, geometry.kernel);
        let (stride, dilation, before) = (geometry.strides[1], geometry.dilations[1], geometry.before[1]);
        let of_pixel = geometry.kernel[0] * taps;
        starts.clear();
        starts.resize(pixels.len() * of_pixel, OUTSIDE);
        let (mut at, mut pixel) = (0, pixels.start);
        // The image of the line before, if that line is whole and its windows are not above or below the image.
        let mut like = None;
        while pixel < pixels.end {
            let [batch, y, first] = geometry.place(pixel);
            let end = geometry.output[1].min(first + pixels.end - pixel);
            let (done, rest) = starts.split_at_mut(at);
            let of_line = &mut rest[..(end - first) * of_pixel];
            let is_within = geometry
                .taken(0, y)
                .all(|row| row.is_some_and(|row| row < height));
            if is_within && like == Some(batch) {
                let line = &done[at - geometry.output[1] * of_pixel..];
                shift(line, geometry.strides[0] * width * channels, of_line);
            } else {
                for (row, first_tap) in geometry.taken(0, y).zip((0..).step_by(taps)) {
                    let Some(row) = row.filter(|&row| row < height) else {
                        continue;
                    };
                    let line = (batch * height + row) * width;
                    for (x, starts) in (first..end).zip(of_line.chunks_exact_mut(of_pixel)) {
                        for (tap, start) in starts[first_tap..][..taps].iter_mut().enumerate() {
                            let column = (x * stride + tap * dilation).wrapping_sub(before);
                            if column < width {
                                *start = (line + column) * channels;
                            }
                        }
                    }
                }
            }
            like = (is_within && end - first == geometry.output[1]).then_some(batch);
            at += of_line.len();
            pixel += end - first;
        }
        // The last line of the windows of the next pixels, if they are as many as these.
        let [batch, y, x] = geometry.place(pixels.end);
        let row = y * geometry.strides[0] + (geometry.kernel[0] - 1) * geometry.dilations[0];
        let line = batch * height + row.saturating_sub(geometry.before[0]);
        let start = (line * width + x * stride).min(self.0.len() / channels) * channels;
        let end = (start + pixels.len() * stride * channels).min(self.0.len());
        Ok([self.0, &self.0[start..end]])
    }

    fn taps(&self, geometry: &Geometry) -> [usize; 2] {
        [geometry.kernel[0] * geometry.kernel[1], geometry.channels]
    }
}

/// Writes the starts of segments that are `distance` elements after those of `from`.
fn shift(from: &[usize], distance: usize, to: &mut [usize]) {
    vectorized(
        #[inline(always)]
        || {
            for (to, &from) in to.iter_mut().zip(from) {
                *to = match from {
                    OUTSIDE => OUTSIDE,
                    start => start + distance,
                };
            }
        },
    );
}

/// An image with the channels first, whose windows are copied.
pub(super) struct Copied<'i>(pub(super) &'i [f32]);

impl Image for Copied<'_> {
    fn segments<'s>(
        &'s self,
        geometry: &Geometry,
        pixels: Range<usize>,
        starts: &mut Vec<usize>,
        copies: &'s mut Vec<f32>,
        _: &mut Pace,
    ) -> Result<[&'s [f32]; 2]> {
        let ([height, width], taps) = (geometry.input, geometry.kernel[1]);
        // Each line of a window is copied in whole parts, which the next line overwrites.
        let distance = geometry.depth() + COPIED - 1;
        starts.clear();
        starts.extend((0..pixels.len()).map(|pixel| pixel * distance));
        copies.resize(pixels.len() * distance, 0.0);
        let mut pixel = pixels.start;
        while pixel < pixels.end {
            let [batch, y, first] = geometry.place(pixel);
            let end = geometry.output[1].min(first + pixels.end - pixel);
            let windows = &mut copies[(pixel - pixels.start) * distance..][..(end - first) * distance];
            for channel in 0..geometry.channels {
                let plane = (batch * geometry.channels + channel) * height;
                for (tap, row) in geometry.taken(0, y).enumerate() {
                    let windows = &mut windows[(channel * geometry.kernel[0] + tap) * taps..];
                    match row.filter(|&row| row < height) {
                        Some(row) => {
                            let line = &self.0[(plane + row) * width..];
                            copy_line_of_windows(geometry, line, first..end, windows, distance);
                        }
                        None => windows
                            .chunks_mut(distance)
                            .for_each(|window| window[..taps].fill(0.0)),
                    }
                }
            }
            pixel += end - first;
        }
        Ok([copies, &[]])
    }

    fn taps(&self, geometry: &Geometry) -> [usize; 2] {
        [1, geometry.depth()]
    }
}

/// The number of elements of a part that is copied at once.
const COPIED: usize = 4;

/// Copies a line of the windows of the pixels `pixels` of an output line from a line of the image, which may
/// extend beyond its width. The copies are `distance` elements apart; up to [`COPIED`]` - 1` elements after each
/// are overwritten.
fn copy_line_of_windows(
    geometry: &Geometry,
    line: &[f32],
    pixels: Range<usize>,
    to: &mut [f32],
    distance: usize,
) {
    let ([_, width], taps) = (geometry.input, geometry.kernel[1]);
    let (stride, before) = (geometry.strides[1], geometry.before[1]);
    // The pixels whose windows are within the image, and whose last part is within the line.
    let parts = taps.next_multiple_of(COPIED);
    let last = match (width.checked_sub(taps), line.len().checked_sub(parts)) {
        (Some(column), Some(start)) if geometry.dilations[1] == 1 => Some(column.min(start) + before),
        _ => None,
    };
    let within = before.div_ceil(stride)..last.map_or(0, |last| last / stride + 1);
    let within = within.start.clamp(pixels.start, pixels.end)..within.end.clamp(pixels.start, pixels.end);
    for pixel in (pixels.start..within.start).chain(within.end..pixels.end) {
        let element = |column: Option<usize>| line[..width].get(column?).copied();
        let to = &mut to[(pixel - pixels.start) * distance..];
        to.iter_mut()
            .zip(geometry.taken(1, pixel))
            .for_each(|(to, column)| *to = element(column).unwrap_or(0.0));
    }
    if within.is_empty() {
        return;
    }
    let from = &line[within.start * stride - before..];
    let to = &mut to[(within.start - pixels.start) * distance..];
    for part in (0..taps).step_by(COPIED) {
        let from = from[part..].windows(COPIED).step_by(stride);
        let to = to[part..].chunks_mut(distance).take(within.len());
        for (to, from) in to.zip(from) {
            if let Some(to) = to.first_chunk_mut::<COPIED>() {
                to.copy_from_slice(from);
            }
        }
    }
}

impl Geometry {
    /// Returns the batch, the line and the column of an output pixel.
    pub(super) fn place(&self, pixel: usize) -> [usize; 3] {
        let [height, width] = self.output;
        [pixel / width / height, pixel / width % height, pixel % width]
    }

    /// Returns the index along an axis of each element of the window at `position`; `None` for indices below 0.
    pub(super) fn taken(&self, axis: usize, position: usize) -> impl Iterator<Item = Option<usize>> + use<> {
        let (first, before) = (position * self.strides[axis], self.before[axis]);
        let dilation = self.dilations[axis];
        (0..self.kernel[axis]).map(move |tap| (first + tap * dilation).checked_sub(before))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Returns the start of each segment, each computed by itself.
    fn plainly(geometry: &Geometry, pixels: Range<usize>) -> Vec<usize> {
        let [height, width] = geometry.input;
        let mut starts = Vec::new();
        for pixel in pixels {
            let [batch, y, x] = geometry.place(pixel);
            for row in geometry.taken(0, y) {
                for column in geometry.taken(1, x) {
                    let row = row.filter(|&row| row < height);
                    let column = column.filter(|&column| column < width);
                    let start = row.zip(column).map(|(row, column)| {
                        ((batch * height + row) * width + column) * geometry.groups * geometry.channels
                    });
                    starts.push(start.unwrap_or(OUTSIDE));
                }
            }
        }
        starts
    }

    #[test]
    fn segments_start_where_the_taps_of_a_pixel_are() {
        for (kernel, strides, dilations, before) in [
            ([3, 3], [1, 1], [1, 1], [1, 1]),
            ([3, 2], [2, 1], [1, 2], [0, 2]),
            ([1, 3], [1, 2], [1, 1], [0, 1]),
            ([2, 2], [3, 3], [4, 1], [3, 0]),
            ([5, 1], [1, 1], [3, 1], [6, 0]),
        ] {
            let geometry = Geometry {
                batch: 3,
                groups: 2,
                channels: 3,
                rows: 1,
                input: [9, 7],
                output: [8, 6],
                kernel,
                strides,
                dilations,
                before,
            };
            let image = vec![0.0; 3 * 9 * 7 * 6];
            let all = 3 * 8 * 6;
            for pixels in [0..all, 0..40, 3..100, 50..51, 47..97] {
                let (mut starts, mut copies, mut pace) = (Vec::new(), Vec::new(), Pace::default());
                InPlace(&image)
                    .segments(&geometry, pixels.clone(), &mut starts, &mut copies, &mut pace)
                    .unwrap();
                assert_eq!(starts, plainly(&geometry, pixels), "{geometry:?}");
            }
        }
    }
}
