//! Products of a row vector with a matrix (GEMV). Each element of the matrix is read only once, so packing
//! would not pay off.

/// Writes the dot product of `x` with each row of `b` to `y`: `y = B * x`. `stride` is the distance between
/// two rows of `b`; `b` has `y.len()` rows.
///
/// # Panics
/// Panics if a row extends past the end of `b`.
///
/// ```
/// let mut y = [0.0; 2];
/// onnx_gemm::gemv(&[1.0, 10.0], &[1.0, 2.0, 9.0, 3.0, 4.0], 3, &mut y);
/// assert_eq!(y, [21.0, 43.0]);
/// ```
pub fn gemv(x: &[f32], b: &[f32], stride: usize, y: &mut [f32]) {
    expect_rows(x.len(), b.len(), stride, y.len());
    pulp::Arch::new().dispatch(Dots { x, b, stride, y });
}

#[track_caller]
fn expect_rows(depth: usize, len: usize, stride: usize, rows: usize) {
    let Some(last) = rows.checked_sub(1) else {
        return;
    };
    let end = last
        .checked_mul(stride)
        .and_then(|start| start.checked_add(depth));
    assert!(
        end.is_some_and(|end| end <= len),
        "b of {rows} rows of {depth}, {stride} apart, has {len} elements"
    );
}

/// Writes a linear combination of rows to `y`: the sum over `k` of `x[k] * values[offsets[k]..]`. If the rows
/// are those of a matrix `B`, the result is `y = x * B`.
///
/// # Panics
/// Panics if `offsets` is shorter than `x`, or a row extends past the end of `values`.
///
/// ```
/// let mut y = [0.0; 2];
/// onnx_gemm::indirect_gemv(&[1.0, 10.0], &[1.0, 2.0, 3.0], &[0, 1], &mut y);
/// assert_eq!(y, [21.0, 32.0]);
/// ```
pub fn indirect_gemv(x: &[f32], values: &[f32], offsets: &[usize], y: &mut [f32]) {
    assert!(
        offsets.len() >= x.len(),
        "{} offsets for {} rows",
        offsets.len(),
        x.len()
    );
    pulp::Arch::new().dispatch(Combination {
        x,
        values,
        offsets,
        y,
    });
}

struct Dots<'p> {
    x: &'p [f32],
    b: &'p [f32],
    stride: usize,
    y: &'p mut [f32],
}

impl pulp::WithSimd for Dots<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "chains of `zip` are not always inlined here"
    )]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        let depth = self.x.len();
        let (head, tail) = S::as_simd_f32s(self.x);
        // Computes four rows at a time, since independent accumulators hide the latency of the additions.
        let (groups, last) = self.y.as_chunks_mut::<4>();
        let all_in_groups = groups.len() * 4;
        for (group, y) in groups.iter_mut().enumerate() {
            let row = |at: usize| S::as_simd_f32s(&self.b[(4 * group + at) * self.stride..][..depth]);
            let (first, second, third, fourth) = (row(0), row(1), row(2), row(3));
            let count = head.len();
            let (a, b) = (&first.0[..count], &second.0[..count]);
            let (c, d) = (&third.0[..count], &fourth.0[..count]);
            let zero = simd.splat_f32s(0.0);
            let mut sums = (zero, zero, zero, zero);
            for at in 0..count {
                let value = head[at];
                sums.0 = simd.mul_add_e_f32s(value, a[at], sums.0);
                sums.1 = simd.mul_add_e_f32s(value, b[at], sums.1);
                sums.2 = simd.mul_add_e_f32s(value, c[at], sums.2);
                sums.3 = simd.mul_add_e_f32s(value, d[at], sums.3);
            }
            y[0] = simd.reduce_sum_f32s(with_rest(simd, tail, first.1, sums.0));
            y[1] = simd.reduce_sum_f32s(with_rest(simd, tail, second.1, sums.1));
            y[2] = simd.reduce_sum_f32s(with_rest(simd, tail, third.1, sums.2));
            y[3] = simd.reduce_sum_f32s(with_rest(simd, tail, fourth.1, sums.3));
        }
        for (at, y) in last.iter_mut().enumerate() {
            let row = &self.b[(all_in_groups + at) * self.stride..][..depth];
            let (row_head, row_tail) = S::as_simd_f32s(row);
            let mut sum = simd.splat_f32s(0.0);
            for at in 0..head.len() {
                sum = simd.mul_add_e_f32s(head[at], row_head[at], sum);
            }
            *y = simd.reduce_sum_f32s(with_rest(simd, tail, row_tail, sum));
        }
    }
}

/// Multiplies the last elements of `a` and `b`, which do not fill a vector, and adds the products to `sums`.
#[inline(always)]
pub(crate) fn with_rest<S: pulp::Simd>(simd: S, a: &[f32], b: &[f32], sums: S::f32s) -> S::f32s {
    if a.is_empty() {
        return sums;
    }
    simd.mul_add_e_f32s(simd.partial_load_f32s(a), simd.partial_load_f32s(b), sums)
}

struct Combination<'w> {
    x: &'w [f32],
    values: &'w [f32],
    offsets: &'w [usize],
    y: &'w mut [f32],
}

impl pulp::WithSimd for Combination<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        const VECTORS: usize = 4;
        let Self {
            x,
            values,
            offsets,
            y,
        } = self;
        let lanes = S::F32_LANES;
        let mut first = 0;
        while y.len() - first >= VECTORS * lanes {
            combine::<S, VECTORS>(simd, x, values, offsets, y, first);
            first += VECTORS * lanes;
        }
        while y.len() - first >= lanes {
            combine::<S, 1>(simd, x, values, offsets, y, first);
            first += lanes;
        }
        let last = &mut y[first..];
        if !last.is_empty() {
            let mut sum = simd.splat_f32s(0.0);
            for (&weight, &offset) in x.iter().zip(offsets) {
                let values = simd.partial_load_f32s(&values[offset + first..][..last.len()]);
                sum = simd.mul_add_e_f32s(simd.splat_f32s(weight), values, sum);
            }
            simd.partial_store_f32s(last, sum);
        }
    }
}

/// Writes `VECTORS` vectors of a linear combination, from column `first`.
#[inline(always)]
#[allow(
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn combine<S: pulp::Simd, const VECTORS: usize>(
    simd: S,
    x: &[f32],
    values: &[f32],
    offsets: &[usize],
    y: &mut [f32],
    first: usize,
) {
    let width = VECTORS * S::F32_LANES;
    let mut registers = [simd.splat_f32s(0.0); VECTORS];
    for (&weight, &offset) in x.iter().zip(offsets) {
        let (vectors, _) = S::as_simd_f32s(&values[offset + first..][..width]);
        let weight = simd.splat_f32s(weight);
        for vector in 0..VECTORS {
            registers[vector] = simd.mul_add_e_f32s(weight, vectors[vector], registers[vector]);
        }
    }
    let (vectors, _) = S::as_mut_simd_f32s(&mut y[first..first + width]);
    for vector in 0..VECTORS {
        vectors[vector] = registers[vector];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns multiples of a power of two, so that sums are exact in any order.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7 + seed) % 11) as f32 / 4.0 - 1.25)
            .collect()
    }

    #[test]
    fn dot_products_are_right_for_all_remainders() {
        for depth in [0, 1, 3, 8, 17, 40] {
            for rows in [0, 1, 3, 4, 6, 13] {
                let stride = depth + 2;
                let (x, b) = (numbers(depth, 1), numbers(rows * stride, 5));
                let mut y = vec![f32::NAN; rows];
                gemv(&x, &b, stride, &mut y);
                for (row, &found) in y.iter().enumerate() {
                    let expected: f32 = x.iter().zip(&b[row * stride..]).map(|(x, b)| x * b).sum();
                    assert_eq!(found, expected, "{rows} rows of {depth}");
                }
            }
        }
    }

    #[test]
    fn combinations_are_right_for_all_remainders() {
        for depth in [0, 1, 3, 40] {
            for columns in [0, 1, 7, 16, 31, 64, 100] {
                let x = numbers(depth, 1);
                let offsets: Vec<usize> = (0..depth).map(|term| term * 5 % 97).collect();
                let values = numbers(97 + columns, 3);
                let mut y = vec![f32::NAN; columns];
                indirect_gemv(&x, &values, &offsets, &mut y);
                for (column, &found) in y.iter().enumerate() {
                    let terms = x.iter().zip(&offsets);
                    let expected: f32 = terms.map(|(x, offset)| x * values[offset + column]).sum();
                    assert_eq!(found, expected, "{depth} rows of {columns}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "b of 3 rows of 2, 2 apart, has 5 elements")]
    fn rows_end_within_the_matrix() {
        gemv(&[0.0; 2], &[0.0; 5], 2, &mut [0.0; 3]);
    }
}
