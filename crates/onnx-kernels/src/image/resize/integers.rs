//! Bilinear interpolation of integers, which ONNX Runtime computes from four neighbors at once.

use onnx_tensor::prelude::*;

use super::{Axis, Resize};
use onnx_tensor::{
    cancelling::Pace,
    elements::{elements, filled},
};

/// Number of columns that are interpolated at a time in integer images.
const COLUMNS: usize = 1 << 12;

/// Number of channels that are interpolated at a time in integer images.
const CHANNELS: usize = 1 << 12;

/// Images with at most this many channels are interpolated in blocks of columns. The steps of a block are
/// passed to [`Pace::spend`] in one call.
const FEW_CHANNELS: usize = 16;

impl Resize {
    /// Interpolates integers bilinearly over the last two axes, or over the two axes before the channels.
    /// Rounds like ONNX Runtime: each element is computed from four neighbors at once.
    pub(super) fn interpolated_integers(&self, input: &Tensor, plan: &[Axis]) -> Result<Tensor> {
        let channels_last = matches!(plan, [_, _, _, last] if plan[1].scale != 1.0 && last.scale == 1.0);
        let (outer, lines, columns, inner) = match (plan, channels_last) {
            ([lines, columns], _) => (1, lines, columns, 1),
            ([batch, lines, columns, channels], true) => (batch.from, lines, columns, channels.from),
            ([batch, channels, lines, columns], false) => (batch.from * channels.from, lines, columns, 1),
            _ => bail!("{} dimensions", plan.len()),
        };
        let shape: ShortVec<usize> = plan.iter().map(|axis| axis.to).collect();
        let (image_length, line_length) = (input.len() / outer, input.len() / outer / lines.from);
        let width = columns.to * inner;
        macro_rules! resized {
            ($T:ty) => {{
                let given = elements::<$T>(input)?;
                filled(&shape, |made: &mut [$T]| {
                    let mut pace = Pace::default();
                    // Works in blocks of columns, since tables of neighbors take many times the memory of
                    // 8-bit elements.
                    for first in (0..columns.to).step_by(COLUMNS) {
                        let end = columns.to.min(first + COLUMNS);
                        let block: Vec<Neighbours> = (first..end)
                            .map(|at| self.neighbours(columns, at))
                            .collect();
                        let images = made.chunks_exact_mut(lines.to * width);
                        for (image, made) in given.chunks_exact(image_length).zip(images) {
                            for (at, line) in made.chunks_exact_mut(width).enumerate() {
                                let y = self.neighbours(lines, at);
                                let rows = [
                                    &image[y.first * line_length..],
                                    &image[y.second * line_length..],
                                ];
                                let elements = line[first * inner..].chunks_exact_mut(inner);
                                let interpolate = |x: &Neighbours, first: usize, element: &mut [$T]| {
                                    for (channel, to) in (first..).zip(element) {
                                        let at =
                                            |row: usize, place: usize| rows[row][place * inner + channel];
                                        let corners = [
                                            at(0, x.first),
                                            at(0, x.second),
                                            at(1, x.first),
                                            at(1, x.second),
                                        ];
                                        *to = match channels_last {
                                            true if size_of::<$T>() == 1 => {
                                                fixed_point(&y, x, corners.map(i64::from)) as $T
                                            }
                                            _ => floating(&y, x, corners.map(|corner| corner as f32)) as $T,
                                        };
                                    }
                                };
                                pace.spend((block.len() * inner.min(FEW_CHANNELS)) as u64)?;
                                for (x, element) in block.iter().zip(elements) {
                                    if inner <= FEW_CHANNELS {
                                        interpolate(x, 0, element);
                                        continue;
                                    }
                                    let parts = element.chunks_mut(CHANNELS);
                                    for (first, element) in (0..).step_by(CHANNELS).zip(parts) {
                                        pace.spend(element.len() as u64)?;
                                        interpolate(x, first, element);
                                    }
                                }
                            }
                        }
                    }
                    Ok(())
                })
            }};
        }
        match input.element_type() {
            ElementType::U8 => resized!(u8),
            ElementType::I8 => resized!(i8),
            _ => resized!(i32),
        }
    }

    fn neighbours(&self, axis: &Axis, at: usize) -> Neighbours {
        let last = axis.from.saturating_sub(1);
        let place = if axis.scale == 1.0 {
            at as f32
        } else {
            self.source_coordinate(axis, at)
        };
        let place = place.clamp(0.0, last as f32);
        let first = (place as usize).min(last);
        Neighbours {
            first,
            second: (first + 1).min(last),
            place,
        }
    }
}

/// The two source elements nearest to an output element.
struct Neighbours {
    first: usize,
    second: usize,
    place: f32,
}

impl Neighbours {
    /// Returns the weights of the first and the second element.
    fn weights(&self) -> [f32; 2] {
        match self.first == self.second {
            true => [0.5; 2],
            false => [
                (self.place - self.second as f32).abs(),
                (self.place - self.first as f32).abs(),
            ],
        }
    }

    /// Returns the weights of both elements in units of 1/1024, truncated.
    fn cut_weights(&self) -> [i64; 2] {
        let place = (self.place * 1024.0) as i64;
        match self.first == self.second {
            true => [512; 2],
            false => [
                (place - (self.second << 10) as i64).abs(),
                (place - (self.first << 10) as i64).abs(),
            ],
        }
    }
}

fn floating(y: &Neighbours, x: &Neighbours, [a, b, c, d]: [f32; 4]) -> f32 {
    let ([y_first, y_second], [x_first, x_second]) = (y.weights(), x.weights());
    x_first * y_first * a + x_second * y_first * b + x_first * y_second * c + x_second * y_second * d
}

fn fixed_point(y: &Neighbours, x: &Neighbours, [a, b, c, d]: [i64; 4]) -> i64 {
    let ([y_first, y_second], [x_first, x_second]) = (y.cut_weights(), x.cut_weights());
    (x_first * y_first * a + x_second * y_first * b + x_first * y_second * c + x_second * y_second * d)
        / (1 << 20)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use super::*;
    use crate::image::resize::{CoordinateMode, Method, Policy};
    use onnx_tensor::{elements::tensor, operator::Kernel};

    #[test]
    fn columns_of_bytes_are_interpolated_some_at_a_time() {
        let resize = Resize {
            method: Method::Linear,
            coordinates: CoordinateMode::Asymmetric,
            policy: Policy::Stretch,
            is_smooth: false,
            excludes: false,
            fixed: Some(vec![1.0, 2.0]),
            axes: None,
            inputs: [None; 3],
        };
        let given: Vec<u8> = (0..COLUMNS + 1000).map(|at| (at * 7 % 251) as u8).collect();
        let input = tensor(&[1, given.len()], given.clone()).unwrap();
        let made = resize.run(&[Arc::new(input)]).unwrap().remove(0);
        assert_eq!(made.shape(), [1, 2 * given.len()]);
        for (at, pair) in elements::<u8>(&made)
            .unwrap()
            .as_chunks::<2>()
            .0
            .iter()
            .enumerate()
        {
            let next = u16::from(given[(at + 1).min(given.len() - 1)]);
            let between = (u16::from(given[at]) + next) / 2;
            assert_eq!(pair.map(u16::from), [u16::from(given[at]), between], "{at}");
        }
    }
}
