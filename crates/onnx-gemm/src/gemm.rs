//! Products of two FP32 matrices, neither of which is packed beforehand.

use crate::{
    BlockedGemm, Order, Pace, PackedMatrix, copy_line,
    gemv::{gemv, indirect_gemv},
    microkernel::{GROUP, PANEL},
    pack::pack_rows,
    shapes::expect_product,
};

/// The row count below which packing costs more time than it saves.
const FEW_ROWS: usize = 4;

/// The number of multiplications between two calls of [`Pace::spend`].
const PART: usize = 1 << 20;

/// Writes the product of two row-major matrices, `a` of `rows` by `depth` and `b` of `depth` by `columns`, to
/// the row-major matrix `c`.
///
/// For a second factor that several products share, [`PackedMatrix`](crate::PackedMatrix) is faster.
///
/// # Errors
/// Returns the error of [`Pace::spend`].
///
/// # Panics
/// Panics if the length of a slice differs from the size of its matrix.
///
/// ```
/// let mut c = [0.0; 2];
/// onnx_gemm::gemm(&[2.0, 3.0], &[10.0, 20.0, 30.0, 40.0], [1, 2, 2], &mut c, &mut onnx_gemm::Unpaced).unwrap();
/// assert_eq!(c, [110.0, 160.0]);
/// ```
pub fn gemm<P: Pace>(
    a: &[f32],
    b: &[f32],
    [rows, depth, columns]: [usize; 3],
    c: &mut [f32],
    pace: &mut P,
) -> Result<(), P::Stopped> {
    expect_product([a.len(), b.len(), c.len()], [rows, depth, columns]);
    if depth == 0 || columns == 0 {
        c.fill(0.0);
        return Ok(());
    }
    // With one column, `b` is contiguous in memory like a row, so a dot product suffices.
    if columns == 1 {
        let block = (PART / depth).max(4);
        for (a, c) in a.chunks(block * depth).zip(c.chunks_mut(block)) {
            pace.spend(a.len() as u64 / 8 + 1)?;
            gemv(b, a, depth, c);
        }
        return Ok(());
    }
    if depth == 1 {
        for (a, c) in a.iter().zip(c.chunks_exact_mut(columns)) {
            for (b, c) in b.chunks(PART).zip(c.chunks_mut(PART)) {
                pace.spend(b.len() as u64 / 8 + 1)?;
                pulp::Arch::new().dispatch(Scaled { factor: *a, b, c });
            }
        }
        return Ok(());
    }
    if rows >= FEW_ROWS && depth * columns.next_multiple_of(GROUP) <= PACKED {
        pace.spend(b.len() as u64)?;
        let packed = PackedMatrix::new(b, [depth, columns], Order::RowMajor);
        return packed.multiply_columns(a, c, [columns, 0], pace);
    }
    let offsets: Vec<usize> = (0..depth).map(|term| term * columns).collect();
    if rows < FEW_ROWS {
        let block = (PART / depth).next_multiple_of(64).max(64);
        for (x, y) in a.chunks_exact(depth).zip(c.chunks_exact_mut(columns)) {
            for (part, y) in y.chunks_mut(block).enumerate() {
                pace.spend((y.len() * depth) as u64 / 8 + 1)?;
                indirect_gemv(x, &b[part * block..], &offsets, y);
            }
        }
        return Ok(());
    }
    let product = BlockedGemm {
        rows,
        weights: &pack_rows(rows, a),
        values: b,
        offsets: &offsets,
        columns,
    };
    product.run(pace, &mut |row, first, sums: &[f32]| {
        copy_line(sums, &mut c[row * columns + first..][..sums.len()]);
    })
}

/// A row of an outer product. Adding to 0, as longer sums do, makes a zero of either sign positive.
struct Scaled<'s> {
    factor: f32,
    b: &'s [f32],
    c: &'s mut [f32],
}

impl pulp::WithSimd for Scaled<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for (c, b) in self.c.iter_mut().zip(self.b) {
            *c = 0.0 + self.factor * b;
        }
    }
}

/// The maximum number of elements of the second factor that are packed at once, to keep the buffer small.
const PACKED: usize = 1 << 18;

/// Writes the product of the row-major matrix `a` (`rows` by `depth`) and the transpose of the row-major
/// matrix `b` (`columns` by `depth`) to `c`.
///
/// # Errors
/// Returns the error of [`Pace::spend`].
///
/// # Panics
/// Panics if the length of a slice differs from the size of its matrix.
///
/// ```
/// let mut c = [0.0; 2];
/// onnx_gemm::gemm_nt(&[2.0, 3.0], &[10.0, 20.0, 30.0, 40.0], [1, 2, 2], &mut c, &mut onnx_gemm::Unpaced).unwrap();
/// assert_eq!(c, [80.0, 180.0]);
/// ```
pub fn gemm_nt<P: Pace>(
    a: &[f32],
    b: &[f32],
    [rows, depth, columns]: [usize; 3],
    c: &mut [f32],
    pace: &mut P,
) -> Result<(), P::Stopped> {
    /// The row count below which packing `b` costs more time than it saves.
    const FEW_ROWS: usize = 8;
    expect_product([a.len(), b.len(), c.len()], [rows, depth, columns]);
    if depth == 0 || columns == 0 {
        c.fill(0.0);
        return Ok(());
    }
    if columns == 1 {
        return gemm(a, b, [rows, depth, columns], c, pace);
    }
    if rows >= FEW_ROWS {
        let block = (PACKED / depth / PANEL).max(1) * PANEL;
        for (part, b) in b.chunks(block * depth).enumerate() {
            pace.spend(b.len() as u64)?;
            let packed = PackedMatrix::new(b, [depth, b.len() / depth], Order::ColumnMajor);
            packed.multiply_columns(a, c, [columns, part * block], pace)?;
        }
        return Ok(());
    }
    let block = (PART / depth).max(4);
    for (x, y) in a.chunks_exact(depth).zip(c.chunks_exact_mut(columns)) {
        for (y, b) in y.chunks_mut(block).zip(b.chunks(block * depth)) {
            pace.spend(b.len() as u64 / 8 + 1)?;
            gemv(x, b, depth, y);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        Unpaced,
        pace::{Budget, Exhausted},
        transpose,
    };

    /// Returns -1, 0 and 1 in turn, so that sums of a million products are exact in any order.
    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|at| (at * step % 3) as f32 - 1.0).collect()
    }

    #[test]
    fn products_are_those_of_plain_loops() {
        for rows in [0, 1, 3, 4, 8, 9] {
            // The depths include one with more than `PART` multiplications for one column.
            for depth in [0, 1, 7, PART + 3] {
                for columns in [0, 1, 2, 15, 49, 130] {
                    if depth > PART && !(2..=3).contains(&(rows * columns)) {
                        continue;
                    }
                    let (a, b) = (numbers(rows * depth, 7919), numbers(depth * columns, 31));
                    let mut c = vec![f32::NAN; rows * columns];
                    gemm(&a, &b, [rows, depth, columns], &mut c, &mut Unpaced).unwrap();
                    for (at, &found) in c.iter().enumerate() {
                        let (row, column) = (at / columns, at % columns);
                        let terms = (0..depth).map(|term| a[row * depth + term] * b[term * columns + column]);
                        assert_eq!(found, terms.sum::<f32>(), "{rows} x {depth} x {columns}");
                    }
                    let transposed = transpose(depth, &b, &mut Unpaced).unwrap();
                    let mut found = vec![f32::NAN; c.len()];
                    gemm_nt(&a, &transposed, [rows, depth, columns], &mut found, &mut Unpaced).unwrap();
                    assert_eq!(found, c, "{rows} x {depth} x {columns}");
                }
            }
        }
    }

    #[test]
    fn transposed_factors_are_packed_in_parts() {
        let [rows, depth, columns] = [9, PACKED / 90, 200];
        let (a, b) = (numbers(rows * depth, 7919), numbers(depth * columns, 31));
        let mut expected = vec![f32::NAN; rows * columns];
        gemm(&a, &b, [rows, depth, columns], &mut expected, &mut Unpaced).unwrap();
        let transposed = transpose(depth, &b, &mut Unpaced).unwrap();
        let mut found = vec![f32::NAN; rows * columns];
        gemm_nt(&a, &transposed, [rows, depth, columns], &mut found, &mut Unpaced).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn outer_products_are_computed_in_chunks() {
        let columns = 2 * PART + 3;
        let (a, b) = ([2.0, -1.0], numbers(columns, 7919));
        let mut c = vec![f32::NAN; 2 * columns];
        gemm(&a, &b, [2, 1, columns], &mut c, &mut Unpaced).unwrap();
        let expected = |row: usize, column: usize| a[row] * b[column];
        assert!((0..2 * columns).all(|at| c[at] == expected(at / columns, at % columns)));
        // With steps for one chunk, the product ends before the second one.
        c.fill(f32::NAN);
        let steps = PART as u64 / 8 + 1;
        let found = gemm(&a, &b, [2, 1, columns], &mut c, &mut Budget(steps));
        assert_eq!(found, Err(Exhausted));
        let is_computed = |(at, sum): (usize, &f32)| (at < PART) != sum.is_nan();
        assert!(c.iter().enumerate().all(is_computed));
    }

    #[test]
    fn products_end_with_their_pace() {
        let sizes = [[1 << 12, 1], [2, 1 << 12], [64, 64]];
        for ([rows, columns], depth) in sizes.into_iter().flat_map(|size| [(size, 1), (size, 1 << 10)]) {
            let (a, b, mut c) = (
                vec![0.0; rows * depth],
                vec![0.0; depth * columns],
                vec![0.0; rows * columns],
            );
            let steps = (rows * depth * columns) as u64 / 8;
            let mut found = |budget| gemm(&a, &b, [rows, depth, columns], &mut c, &mut Budget(budget));
            assert_eq!(found(2 * steps), Ok(()));
            assert_eq!(found(steps / 3), Err(Exhausted));
            let mut found = |budget| gemm_nt(&a, &b, [rows, depth, columns], &mut c, &mut Budget(budget));
            assert_eq!(found(2 * steps), Ok(()));
            assert_eq!(found(steps / 3), Err(Exhausted));
        }
    }
}
