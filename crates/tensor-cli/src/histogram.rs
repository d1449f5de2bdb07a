//! A one-line histogram.

/// Counts of values in the equally wide buckets of a range.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    min: f64,
    width: f64,
    counts: [u64; Self::PARTS],
}

impl Histogram {
    const PARTS: usize = 40;

    /// Creates a histogram of the range from `min` to `max`; infinities are ignored.
    pub(crate) fn new(min: f64, max: f64) -> Self {
        let (min, max) = (min.max(f64::MIN), max.min(f64::MAX));
        Self {
            min,
            width: max / 2.0 - min / 2.0,
            counts: [0; Self::PARTS],
        }
    }

    pub(crate) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        // Both numbers are halved, so that their difference does not overflow, even for the range of all
        // doubles.
        let place = (value / 2.0 - self.min / 2.0) / self.width;
        let part = if place.is_nan() {
            0
        } else {
            (place * Self::PARTS as f64) as usize
        };
        self.counts[part.min(Self::PARTS - 1)] += 1;
    }

    /// Returns one bar character per bucket, scaled to the highest count.
    pub(crate) fn sketch(&self) -> String {
        const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.counts.iter().copied().max().unwrap_or(0).max(1);
        let bar = |&count: &u64| BARS[(count as f64 / most as f64 * 8.0).ceil() as usize];
        self.counts.iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_counts() {
        let mut histogram = Histogram::new(0.0, 40.0);
        (0..40).for_each(|value| histogram.add(f64::from(value)));
        (0..7).for_each(|_| histogram.add(0.5));
        histogram.add(40.0);
        assert_eq!(histogram.sketch(), format!("█{}▂", "▁".repeat(38)));
    }

    #[test]
    fn extremes_have_a_place() {
        let mut histogram = Histogram::new(f64::NEG_INFINITY, f64::INFINITY);
        for value in [f64::MIN, f64::MAX, f64::NAN, f64::INFINITY] {
            histogram.add(value);
        }
        assert_eq!(histogram.sketch(), format!("█{}█", " ".repeat(38)));
        let mut single = Histogram::new(3.0, 3.0);
        single.add(3.0);
        assert_eq!(single.sketch().trim_end(), "█");
    }
}
