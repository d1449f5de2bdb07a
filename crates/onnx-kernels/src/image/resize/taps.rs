//! Weighted sums of a few elements, for resizing along one axis.

use onnx_tensor::prelude::*;

use onnx_tensor::cancelling::{PART, Pace};

/// Number of rows that are resized together, so that each tap is read once for all of them.
const TOGETHER: usize = 4;

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

    /// Resizes rows from the first size to the second one.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(crate) fn apply_to_rows(
        &self,
        mut from: &[f32],
        mut to: &mut [f32],
        sizes: [usize; 2],
        pace: &mut Pace,
    ) -> Result<()> {
        let [before, after] = sizes;
        let taps = (&self.places[..], &self.weights[..]);
        while to.len() >= TOGETHER * after && matches!(self.count, 2 | 4) {
            let (few, rest) = to.split_at_mut(TOGETHER * after);
            match self.count {
                2 => apply_to_few::<2>(taps, from, few, sizes, pace)?,
                _ => apply_to_few::<4>(taps, from, few, sizes, pace)?,
            }
            (from, to) = (&from[TOGETHER * before..], rest);
        }
        for (from, to) in from.chunks_exact(before).zip(to.chunks_exact_mut(after)) {
            self.apply(from, to, [1, 0], pace)?;
        }
        Ok(())
    }

    /// Resizes an axis with `inner` contiguous elements at each index. `to` begins with the resized index `first`.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(crate) fn apply(
        &self,
        from: &[f32],
        to: &mut [f32],
        [inner, first]: [usize; 2],
        pace: &mut Pace,
    ) -> Result<()> {
        // Long rows are computed in parts, short ones several at a time.
        let width = inner.clamp(1, PART);
        let rows = PART / width;
        let parts = to.chunks_mut((rows * inner).max(1));
        let places = self.places[first * self.count..].chunks(rows * self.count);
        let weights = self.weights[first * self.count..].chunks(rows * self.count);
        for ((to, places), weights) in parts.zip(places).zip(weights) {
            for (part, to) in to.chunks_mut(rows * width).enumerate() {
                let from = &from[part * width..];
                let sizes = [inner, width.min(to.len())];
                match self.count {
                    2 => apply_as::<2>(places, weights, from, to, sizes, pace)?,
                    4 => apply_as::<4>(places, weights, from, to, sizes, pace)?,
                    count => apply_to_any(count, (places, weights), from, to, sizes, pace)?,
                }
            }
        }
        Ok(())
    }
}

/// Resizes [`TOGETHER`] rows.
fn apply_to_few<const COUNT: usize>(
    (places, weights): (&[usize], &[f32]),
    from: &[f32],
    to: &mut [f32],
    [before, after]: [usize; 2],
    pace: &mut Pace,
) -> Result<()> {
    let rows: [&[f32]; TOGETHER] = std::array::from_fn(|row| &from[row * before..][..before]);
    let (places, _) = places.as_chunks::<COUNT>();
    let (weights, _) = weights.as_chunks::<COUNT>();
    let parts = places.chunks(PART).zip(weights.chunks(PART));
    for (part, (places, weights)) in parts.enumerate() {
        pace.spend((places.len() * COUNT * TOGETHER) as u64)?;
        let mut rows_of = to
            .chunks_exact_mut(after)
            .map(|to| &mut to[part * PART..][..places.len()]);
        let to: [Option<&mut [f32]>; TOGETHER] = std::array::from_fn(|_| rows_of.next());
        let [Some(a), Some(b), Some(c), Some(d)] = to else {
            bail!("expected {TOGETHER} rows");
        };
        let columns = a.iter_mut().zip(b).zip(c.iter_mut().zip(d));
        for (((a, b), (c, d)), (places, weights)) in columns.zip(places.iter().zip(weights)) {
            for (to, row) in [a, b, c, d].into_iter().zip(rows) {
                *to = (0..COUNT).map(|tap| weights[tap] * row[places[tap]]).sum();
            }
        }
    }
    Ok(())
}

/// Computes the same `width` columns of several rows; `from` has rows of `inner` elements and begins at the
/// first of the columns.
fn apply_to_any(
    count: usize,
    (places, weights): (&[usize], &[f32]),
    from: &[f32],
    to: &mut [f32],
    [inner, width]: [usize; 2],
    pace: &mut Pace,
) -> Result<()> {
    let together = (PART / width).max(1);
    let taps = places.chunks_exact(count).zip(weights.chunks_exact(count));
    for (to, (places, weights)) in to.chunks_exact_mut(width).zip(taps) {
        to.fill(0.0);
        for (places, weights) in places.chunks(together).zip(weights.chunks(together)) {
            pace.spend((places.len() * width) as u64)?;
            // Skips taps of weight 0, which would turn an infinity into NaN.
            let taps = places.iter().zip(weights).filter(|(_, weight)| **weight != 0.0);
            for (&place, &weight) in taps {
                let row = &from[place * inner..][..width];
                to.iter_mut().zip(row).for_each(|(to, from)| *to += weight * from);
            }
        }
    }
    Ok(())
}

fn apply_as<const COUNT: usize>(
    places: &[usize],
    weights: &[f32],
    from: &[f32],
    to: &mut [f32],
    [inner, width]: [usize; 2],
    pace: &mut Pace,
) -> Result<()> {
    pace.spend((to.len() * COUNT) as u64)?;
    let (places, _) = places.as_chunks::<COUNT>();
    let (weights, _) = weights.as_chunks::<COUNT>();
    if inner == 1 {
        for ((to, places), weights) in to.iter_mut().zip(places).zip(weights) {
            *to = (0..COUNT).map(|tap| weights[tap] * from[places[tap]]).sum();
        }
        return Ok(());
    }
    pulp::Arch::new().dispatch(Rows {
        from,
        to,
        sizes: [inner, width],
        places,
        weights,
    });
    Ok(())
}

/// Parts of rows that are weighted sums of `COUNT` source rows.
struct Rows<'r, const COUNT: usize> {
    from: &'r [f32],
    to: &'r mut [f32],
    /// Length of a source row, and of a part.
    sizes: [usize; 2],
    places: &'r [[usize; COUNT]],
    weights: &'r [[f32; COUNT]],
}

impl<const COUNT: usize> pulp::WithSimd for Rows<'_, COUNT> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let [inner, width] = self.sizes;
        let rows = self.to.chunks_exact_mut(width);
        for ((to, places), weights) in rows.zip(self.places).zip(self.weights) {
            let rows: [&[f32]; COUNT] = places.map(|place| &self.from[place * inner..][..to.len()]);
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
    use onnx_tensor::testing::while_counted;

    #[test]
    fn long_rows_are_computed_in_parts() {
        let inner = PART + 5;
        let from: Vec<f32> = (0..3 * inner).map(|index| (index % 1009) as f32).collect();
        for count in [2, 3, 4] {
            let taps = Taps {
                count,
                places: (0..2 * count).map(|tap| tap % 3).collect(),
                weights: (0..2 * count).map(|tap| tap as f32 - 1.5).collect(),
            };
            let mut made = vec![0.0; 2 * inner];
            let mut pace = Pace::default();
            taps.apply(&from, &mut made, [inner, 0], &mut pace).unwrap();
            for column in [0, 7, PART - 1, PART, inner - 1] {
                let column_of = |numbers: &[f32]| -> Vec<f32> {
                    numbers.iter().skip(column).step_by(inner).copied().collect()
                };
                let mut expected = [0.0; 2];
                taps.apply(&column_of(&from), &mut expected, [1, 0], &mut pace)
                    .unwrap();
                assert_eq!(column_of(&made), expected, "{count} {column}");
            }
        }
    }

    #[test]
    fn rows_are_resized_together_as_one_by_one() {
        let [before, after] = [5, PART + 3];
        for (count, rows) in [(2, 9), (3, 5), (4, 4), (2, 1)] {
            let from: Vec<f32> = (0..rows * before).map(|at| (at * 31 % 17) as f32 - 8.0).collect();
            let taps = Taps {
                count,
                places: (0..after * count).map(|tap| tap * 7 % before).collect(),
                weights: (0..after * count).map(|tap| (tap % 9) as f32 - 4.5).collect(),
            };
            let [mut found, mut expected] = [(); 2].map(|()| vec![0.0; rows * after]);
            let mut pace = Pace::default();
            taps.apply_to_rows(&from, &mut found, [before, after], &mut pace)
                .unwrap();
            for (from, to) in from.chunks(before).zip(expected.chunks_mut(after)) {
                taps.apply(from, to, [1, 0], &mut pace).unwrap();
            }
            assert!(found == expected, "{rows} rows of {count} taps");
        }
    }

    #[test]
    fn many_taps_of_one_element_check_for_cancellation() {
        let count = 1 << 20;
        let taps = Taps {
            count,
            places: vec![0; count],
            weights: vec![1.0; count],
        };
        let apply = || taps.apply(&[1.0], &mut [0.0], [1, 0], &mut Pace::default());
        assert!(while_counted(u64::MAX, apply).1 >= 8);
        assert!(while_counted(4, apply).0.is_err());
    }

    #[test]
    fn rows_are_sums_as_single_numbers_are() {
        let taps = Taps {
            count: 2,
            places: vec![0, 1, 1, 2, 2, 2],
            weights: vec![0.25, 0.75, 0.5, 0.5, 0.5, 0.5],
        };
        let mut numbers = [0.0; 3];
        let mut pace = Pace::default();
        taps.apply(&[4.0, 8.0, f32::INFINITY], &mut numbers, [1, 0], &mut pace)
            .unwrap();
        assert_eq!(numbers, [7.0, f32::INFINITY, f32::INFINITY]);
        let rows: Vec<f32> = (0..15).map(|index| index as f32).collect();
        let mut made = vec![0.0; 15];
        taps.apply(&rows, &mut made, [5, 0], &mut pace).unwrap();
        for (at, &number) in made.iter().enumerate() {
            let column = [rows[at % 5], rows[5 + at % 5], rows[10 + at % 5]];
            let mut expected = [0.0; 3];
            taps.apply(&column, &mut expected, [1, 0], &mut pace).unwrap();
            assert_eq!(number, expected[at / 5]);
        }
    }
}
