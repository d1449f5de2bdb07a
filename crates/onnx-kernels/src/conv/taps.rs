//! Weighted sums of a few elements, for resizing along one axis.

use onnx_tensor::prelude::*;

use onnx_tensor::cancelling::Pace;

/// A fixed number of taps (source indices and their weights) for each element of a resized axis.
pub(crate) struct Taps {
    count: usize,
    pub(crate) places: Vec<usize>,
    pub(crate) weights: Vec<f32>,
}

impl Taps {
    pub(crate) fn new(count: usize, elements: usize) -> Self {
        Self {
            count,
            places: Vec::with_capacity(count * elements),
            weights: Vec::with_capacity(count * elements),
        }
    }

    /// Resizes an axis with `inner` contiguous elements at each index.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(crate) fn apply(&self, from: &[f32], to: &mut [f32], inner: usize, pace: &mut Pace) -> Result<()> {
        /// Number of elements between two checks for cancellation.
        const PART: usize = 1 << 18;
        let rows = (PART / inner.max(1)).max(1);
        let parts = to.chunks_mut((rows * inner).max(1));
        let places = self.places.chunks(rows * self.count);
        let weights = self.weights.chunks(rows * self.count);
        for ((to, places), weights) in parts.zip(places).zip(weights) {
            pace.spend(to.len() as u64)?;
            match self.count {
                2 => apply_as::<2>(places, weights, from, to, inner),
                4 => apply_as::<4>(places, weights, from, to, inner),
                count => apply_to_any(count, places, weights, from, to, inner),
            }
        }
        Ok(())
    }
}

fn apply_to_any(count: usize, places: &[usize], weights: &[f32], from: &[f32], to: &mut [f32], inner: usize) {
    let taps = places.chunks_exact(count).zip(weights.chunks_exact(count));
    for (to, (places, weights)) in to.chunks_exact_mut(inner).zip(taps) {
        to.fill(0.0);
        // Skips taps of weight 0, which would turn an infinity into NaN.
        let taps = places.iter().zip(weights).filter(|(_, weight)| **weight != 0.0);
        for (&place, &weight) in taps {
            let row = &from[place * inner..][..inner];
            to.iter_mut().zip(row).for_each(|(to, from)| *to += weight * from);
        }
    }
}

fn apply_as<const COUNT: usize>(
    places: &[usize],
    weights: &[f32],
    from: &[f32],
    to: &mut [f32],
    inner: usize,
) {
    let (places, _) = places.as_chunks::<COUNT>();
    let (weights, _) = weights.as_chunks::<COUNT>();
    if inner == 1 {
        for ((to, places), weights) in to.iter_mut().zip(places).zip(weights) {
            *to = (0..COUNT).map(|tap| weights[tap] * from[places[tap]]).sum();
        }
        return;
    }
    pulp::Arch::new().dispatch(Rows {
        from,
        to,
        inner,
        places,
        weights,
    });
}

/// Rows that are weighted sums of `COUNT` source rows.
struct Rows<'r, const COUNT: usize> {
    from: &'r [f32],
    to: &'r mut [f32],
    inner: usize,
    places: &'r [[usize; COUNT]],
    weights: &'r [[f32; COUNT]],
}

impl<const COUNT: usize> pulp::WithSimd for Rows<'_, COUNT> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let rows = self.to.chunks_exact_mut(self.inner);
        for ((to, places), weights) in rows.zip(self.places).zip(self.weights) {
            let rows: [&[f32]; COUNT] = places.map(|place| &self.from[place * self.inner..][..to.len()]);
            for (at, to) in to.iter_mut().enumerate() {
                let mut sum = weights[0] * rows[0][at];
                for tap in 1..COUNT {
                    sum += weights[tap] * rows[tap][at];
                }
                *to = sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn rows_are_sums_as_single_numbers_are() {
        let taps = Taps {
            count: 2,
            places: vec![0, 1, 1, 2, 2, 2],
            weights: vec![0.25, 0.75, 0.5, 0.5, 0.5, 0.5],
        };
        let mut numbers = [0.0; 3];
        let mut pace = Pace::default();
        taps.apply(&[4.0, 8.0, f32::INFINITY], &mut numbers, 1, &mut pace)
            .unwrap();
        assert_eq!(numbers, [7.0, f32::INFINITY, f32::INFINITY]);
        let rows: Vec<f32> = (0..15).map(|index| index as f32).collect();
        let mut made = vec![0.0; 15];
        taps.apply(&rows, &mut made, 5, &mut pace).unwrap();
        for (at, &number) in made.iter().enumerate() {
            let column = [rows[at % 5], rows[5 + at % 5], rows[10 + at % 5]];
            let mut expected = [0.0; 3];
            taps.apply(&column, &mut expected, 1, &mut pace).unwrap();
            assert_eq!(number, expected[at / 5]);
        }
    }
}
