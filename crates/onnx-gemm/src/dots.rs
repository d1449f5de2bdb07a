//! Dot products of the rows of two matrices, neither of which is packed.

use crate::gemv::with_rest;

/// Writes the dot product of row `i` of `a` and row `j` of `b` to `c[i * rows of b + j]`. Both matrices are
/// row-major with rows of `depth` elements.
///
/// An element of `c` has the same bits for any number of rows.
///
/// # Panics
/// Panics if `depth` is 0, if a matrix does not consist of whole rows, or if `c` has another size.
///
/// ```
/// let mut c = [0.0; 2];
/// onnx_gemm::dot_products(&[1.0, 10.0], &[1.0, 2.0, 3.0, 4.0], 2, &mut c);
/// assert_eq!(c, [21.0, 43.0]);
/// ```
pub fn dot_products(a: &[f32], b: &[f32], depth: usize, c: &mut [f32]) {
    let are_whole = depth > 0 && a.len().is_multiple_of(depth) && b.len().is_multiple_of(depth);
    assert!(
        are_whole && Some(c.len()) == (a.len() / depth).checked_mul(b.len() / depth),
        "{} and {} elements in rows of {depth}, and {} products",
        a.len(),
        b.len(),
        c.len()
    );
    if c.is_empty() {
        return;
    }
    pulp::Arch::new().dispatch(Dots { a, b, depth, c });
}

struct Dots<'p> {
    a: &'p [f32],
    b: &'p [f32],
    depth: usize,
    c: &'p mut [f32],
}

/// The number of rows of `b` in a tile.
const WIDTH: usize = 4;

impl pulp::WithSimd for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        let rows = self.a.len() / self.depth;
        let mut row = 0;
        while row < rows {
            // With AVX-512, a tile of 4 rows takes 16 of 32 registers for the sums. With AVX2, a tile of 2
            // rows takes 8 of 16.
            row += match rows - row {
                4.. if S::F32_LANES >= 16 => self.tiles::<S, 4>(simd, row),
                2.. => self.tiles::<S, 2>(simd, row),
                _ => self.tiles::<S, 1>(simd, row),
            };
        }
    }
}

impl Dots<'_> {
    /// Computes the products of `ROWS` rows of `a` and all rows of `b`, and returns `ROWS`.
    #[inline(always)]
    fn tiles<S: pulp::Simd, const ROWS: usize>(&mut self, simd: S, row: usize) -> usize {
        let columns = self.b.len() / self.depth;
        let whole = columns / WIDTH * WIDTH;
        for column in (0..whole).step_by(WIDTH) {
            self.tile::<S, ROWS, WIDTH>(simd, row, column);
        }
        for column in whole..columns {
            self.tile::<S, ROWS, 1>(simd, row, column);
        }
        ROWS
    }

    /// Computes a tile of products.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn tile<S: pulp::Simd, const ROWS: usize, const COLUMNS: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
    ) {
        let depth = self.depth;
        let a: [_; ROWS] = std::array::from_fn(|at| S::as_simd_f32s(&self.a[(row + at) * depth..][..depth]));
        let b: [_; COLUMNS] =
            std::array::from_fn(|at| S::as_simd_f32s(&self.b[(column + at) * depth..][..depth]));
        let count = a[0].0.len();
        let heads_of_a = a.map(|(head, _)| &head[..count]);
        let heads_of_b = b.map(|(head, _)| &head[..count]);
        let mut sums = [[simd.splat_f32s(0.0); COLUMNS]; ROWS];
        for at in 0..count {
            let factors: [S::f32s; COLUMNS] = std::array::from_fn(|column| heads_of_b[column][at]);
            for row in 0..ROWS {
                let factor = heads_of_a[row][at];
                for column in 0..COLUMNS {
                    sums[row][column] = simd.mul_add_e_f32s(factor, factors[column], sums[row][column]);
                }
            }
        }
        let stride = self.b.len() / depth;
        for at in 0..ROWS {
            let c = &mut self.c[(row + at) * stride + column..][..COLUMNS];
            for column in 0..COLUMNS {
                let sum = with_rest(simd, a[at].1, b[column].1, sums[at][column]);
                c[column] = simd.reduce_sum_f32s(sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns arbitrary numbers whose sums are rounded.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919 + seed) % 1013) as f32 / 97.0 - 5.0)
            .collect()
    }

    #[test]
    fn dot_products_are_right_for_all_remainders() {
        for depth in [1, 3, 16, 17, 40, 100] {
            for rows in [0, 1, 2, 3, 4, 7, 9] {
                for columns in [0, 1, 3, 4, 5, 10] {
                    let (a, b) = (numbers(rows * depth, 1), numbers(columns * depth, 5));
                    let mut c = vec![f32::NAN; rows * columns];
                    dot_products(&a, &b, depth, &mut c);
                    for (at, &found) in c.iter().enumerate() {
                        let (a, b) = (&a[at / columns * depth..], &b[at % columns * depth..][..depth]);
                        let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
                        let expected: f64 = products.sum();
                        let difference = (f64::from(found) - expected).abs();
                        assert!(difference < 1e-3, "{rows} x {columns} of {depth}: {difference}");
                        let mut alone = [0.0];
                        dot_products(&a[..depth], b, depth, &mut alone);
                        assert_eq!(alone[0].to_bits(), found.to_bits());
                    }
                }
            }
        }
    }

    /// Multiplies integers, whose sums are exact in any order, with narrower vectors.
    #[test]
    fn narrower_vectors_have_the_same_results() {
        let [depth, rows, columns] = [35, 7, 9];
        let whole = |count: usize| {
            (0..count)
                .map(|at| (at * 37 % 19) as f32 - 9.0)
                .collect::<Vec<_>>()
        };
        let (a, b) = (whole(rows * depth), whole(columns * depth));
        let mut expected = vec![f32::NAN; rows * columns];
        dot_products(&a, &b, depth, &mut expected);
        check_narrower(pulp::Scalar::new(), [&a, &b], depth, &expected);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            check_narrower(simd, [&a, &b], depth, &expected);
        }
    }

    fn check_narrower<S: pulp::Simd>(simd: S, [a, b]: [&[f32]; 2], depth: usize, expected: &[f32]) {
        let mut c = vec![f32::NAN; expected.len()];
        simd.vectorize(Dots {
            a,
            b,
            depth,
            c: &mut c,
        });
        assert_eq!(c, expected);
    }

    #[test]
    #[should_panic(expected = "4 and 3 elements in rows of 2, and 2 products")]
    fn matrices_consist_of_whole_rows() {
        dot_products(&[0.0; 4], &[0.0; 3], 2, &mut [0.0; 2]);
    }
}
