//! Which elements of an axis an output element is computed from, and with which weights.

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::ensure_input,
};

use super::{
    Axis, Resize,
    attributes::{CoordinateMode, Method, Rounding},
    taps::Taps,
};

/// Maximum number of taps of an axis with antialias. With a scale near zero, a filter covers any number of
/// elements.
const MAX_TAPS: usize = 1 << 24;

impl Resize {
    /// Returns the source coordinate of the output element `at` along an axis.
    pub(super) fn source_coordinate(&self, axis: &Axis, at: usize) -> f32 {
        let x = at as f32;
        let (from, to) = (axis.from as f32, axis.to as f32);
        match self.coordinates {
            CoordinateMode::HalfPixel => (x + 0.5) / axis.scale - 0.5,
            CoordinateMode::HalfPixelSymmetric => {
                let adjustment = to / (axis.scale * from);
                let center = from / 2.0;
                center * (1.0 - adjustment) + (x + 0.5) / axis.scale - 0.5
            }
            CoordinateMode::PytorchHalfPixel if axis.to > 1 => (x + 0.5) / axis.scale - 0.5,
            CoordinateMode::AlignCorners if axis.to > 1 => x * (from - 1.0) / (to - 1.0),
            CoordinateMode::PytorchHalfPixel | CoordinateMode::AlignCorners => 0.0,
            CoordinateMode::Asymmetric => x / axis.scale,
            CoordinateMode::TfHalfPixel => (x + 0.5) / axis.scale,
            CoordinateMode::Crop(_) => {
                let [start, end] = axis.region;
                match axis.to > 1 {
                    true => start * (from - 1.0) + x * (end - start) * (from - 1.0) / (to - 1.0),
                    false => 0.5 * (start + end) * (from - 1.0),
                }
            }
        }
    }

    /// Returns the source index of each output element along an axis.
    pub(super) fn nearest(&self, axis: &Axis, rounding: Rounding) -> Result<Vec<usize>> {
        let source = |at: usize| {
            if self.is_unchanged(axis) {
                return at;
            }
            let x = self.source_coordinate(axis, at);
            let rounded = match rounding {
                Rounding::PreferFloor if x == x.trunc() + 0.5 => x.floor(),
                Rounding::PreferFloor | Rounding::PreferCeil => x.round(),
                Rounding::Floor => x.floor(),
                Rounding::Ceil => x.ceil(),
                Rounding::Simple if axis.scale < 1.0 => x.ceil(),
                Rounding::Simple => x.trunc(),
            };
            // The cast turns negative coordinates into 0.
            (rounded as usize).min(axis.from.saturating_sub(1))
        };
        Pace::default().indices(axis.to, source)
    }

    /// Returns source indices and weights for each output element of an axis.
    pub(super) fn taps(&self, axis: &Axis) -> Result<Taps> {
        if self.is_smooth {
            return self.smooth_taps(axis);
        }
        let last = axis.from.saturating_sub(1);
        let (mut taps, count) = match self.method {
            Method::Cubic { .. } => (Taps::new(4, axis.to), 4),
            Method::Nearest(_) | Method::Linear => (Taps::new(2, axis.to), 2),
        };
        let mut pace = Pace::default();
        for at in 0..axis.to {
            pace.spend(count as u64)?;
            let x = self.source_coordinate(axis, at);
            let Method::Cubic { a } = self.method else {
                let x = x.clamp(0.0, last as f32);
                let low = (x as usize).min(last);
                let part = x - low as f32;
                let is_one = low == last || part == 0.0;
                // Omits taps of weight 0, which would turn an infinity into NaN.
                taps.places.extend([low, if is_one { low } else { low + 1 }]);
                taps.weights
                    .extend(if is_one { [0.5, 0.5] } else { [1.0 - part, part] });
                continue;
            };
            let floor = x.floor();
            let s = x - floor;
            let mut weights = [
                ((a * (s + 1.0) - 5.0 * a) * (s + 1.0) + 8.0 * a) * (s + 1.0) - 4.0 * a,
                ((a + 2.0) * s - (a + 3.0)) * s * s + 1.0,
                ((a + 2.0) * (1.0 - s) - (a + 3.0)) * (1.0 - s) * (1.0 - s) + 1.0,
                ((a * (2.0 - s) - 5.0 * a) * (2.0 - s) + 8.0 * a) * (2.0 - s) - 4.0 * a,
            ];
            let place = |index: usize| (floor as i64).saturating_add(index as i64 - 1);
            if self.excludes {
                for (index, weight) in weights.iter_mut().enumerate() {
                    if !(0..axis.from as i64).contains(&place(index)) {
                        *weight = 0.0;
                    }
                }
                let sum: f32 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            let inside = |index: usize| place(index).clamp(0, last as i64) as usize;
            taps.places.extend((0..count).map(inside));
            taps.weights.extend(weights);
        }
        Ok(taps)
    }

    /// Returns the taps like [`Self::taps`], with antialias: the filter widens as the scale decreases.
    fn smooth_taps(&self, axis: &Axis) -> Result<Taps> {
        let last = axis.from as i64 - 1;
        let step = 1.0 / axis.scale;
        let width = match self.method {
            Method::Cubic { .. } => 2.0,
            Method::Nearest(_) | Method::Linear => 1.0,
        };
        let reach = width * step.max(1.0);
        let count = (reach.ceil() as usize).saturating_mul(2).saturating_add(1);
        ensure_input!(
            count.saturating_mul(axis.to) <= MAX_TAPS,
            "resizing {} elements to {} with antialias at a scale of {} takes more than {MAX_TAPS} products \
             for an axis",
            axis.from,
            axis.to,
            axis.scale
        );
        let mut taps = Taps::new(count, axis.to);
        let mut pace = Pace::default();
        for at in 0..axis.to {
            pace.spend(count as u64)?;
            let center = 0.5 + self.source_coordinate(axis, at);
            let [mut first, mut end] =
                [center - reach, center + reach].map(|edge| (edge + 0.5).floor() as i64);
            if self.excludes {
                (first, end) = (first.max(0), end.min(last + 1));
            }
            let weights = (first..end)
                .take(count)
                .map(|place| self.filter((place as f32 - center + 0.5) / step.max(1.0)));
            let mut weights: Vec<f32> = pace.collect(weights)?;
            let mut sum = 0.0f32;
            for weights in weights.chunks(PART) {
                pace.spend(weights.len() as u64)?;
                sum = weights.iter().fold(sum, |sum, weight| sum + weight);
            }
            if sum != 0.0 {
                pace.over(&mut weights, |weights| {
                    weights.iter_mut().for_each(|weight| *weight /= sum);
                })?;
            }
            let inside = |place: i64| place.clamp(0, last) as usize;
            // All elements have the same number of taps; unused taps have weight 0.
            let unused = std::iter::repeat_n(inside(first), count - weights.len());
            let places = (first..end).take(count).map(inside).chain(unused);
            taps.places.append(&mut pace.collect(places)?);
            weights.resize(count, 0.0);
            pace.append(&weights, &mut taps.weights)?;
        }
        Ok(taps)
    }

    /// Returns the weight of the filter at `distance` from its center.
    fn filter(&self, distance: f32) -> f32 {
        let x = distance.abs();
        match self.method {
            Method::Cubic { a } if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Method::Cubic { a } if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * a,
            Method::Cubic { .. } => 0.0,
            Method::Nearest(_) | Method::Linear => (1.0 - x).max(0.0),
        }
    }
}
