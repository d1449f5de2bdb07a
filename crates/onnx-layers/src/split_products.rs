//! Splits matrix products over several threads, by rows or by columns. Sums are never split, so results are
//! bit-identical for any number of threads.

use std::ops::Range;

use onnx_gemm::{PackedIntegers, PackedMatrix};
use onnx_tensor::prelude::*;

use crate::least_work::PRODUCTS;
use onnx_tensor::{
    cancelling::{Pace, in_parts},
    threads,
};

/// Maximum number of rows for which reading the matrix dominates the time of a product.
const SLOW_ROWS: usize = 8;

/// Minimum number of rows per part of a product, since each part reads or packs the whole right-hand matrix.
pub(crate) const LEAST_ROWS: usize = 16;

/// A product with more rows than this is split by rows instead of columns.
const MANY_ROWS: usize = 1 << 10;

/// Returns the number of multiplications of a product.
pub(crate) fn products([rows, depth, columns]: [usize; 3]) -> u64 {
    let sizes = [rows, depth, columns].map(|size| size as u64);
    sizes.into_iter().fold(1, u64::saturating_mul)
}

/// Multiplies rows by a packed matrix.
pub(crate) fn multiply_packed(
    matrix: &PackedMatrix,
    a: &[f32],
    made: &mut [f32],
    pace: &mut Pace,
) -> Result<()> {
    let (depth, columns) = (matrix.depth(), matrix.columns());
    let rows = made.len() / columns.max(1);
    let parts = threads::parts(products([rows.max(SLOW_ROWS), depth, columns]), PRODUCTS);
    if parts == 1 || depth == 0 {
        return matrix.multiply(a, made, pace);
    }
    if rows > columns.min(MANY_ROWS) {
        return multiply_rows(a, made, [rows, depth, columns], pace, |a, made, pace| {
            matrix.multiply(a, made, pace)
        });
    }
    in_parts(
        strips(matrix.parts(parts), made, columns),
        |(part, mut strips), pace| matrix.multiply_part(a, part, &mut strips, pace),
    )
}

/// Multiplies rows by a packed 8-bit matrix.
pub(crate) fn multiply_integers(
    matrix: &PackedIntegers,
    a: &[i16],
    made: &mut [i32],
    pace: &mut Pace,
) -> Result<()> {
    let (depth, columns) = (matrix.depth(), matrix.columns());
    let rows = made.len() / columns.max(1);
    if rows >= 2 * LEAST_ROWS {
        return multiply_rows(a, made, [rows, depth, columns], pace, |a, made, pace| {
            matrix.multiply(a, made, pace)
        });
    }
    let parts = threads::parts(products([rows, depth, columns]), PRODUCTS);
    if parts == 1 {
        return matrix.multiply(a, made, pace);
    }
    in_parts(
        strips(matrix.parts(parts), made, columns),
        |(part, strips), pace| {
            let mut sums = vec![0; rows * part.len()];
            let width = part.len().max(1);
            matrix.multiply_part(a, part, &mut sums, pace)?;
            let rows = strips.into_iter().zip(sums.chunks_exact(width));
            rows.for_each(|(strip, sums)| strip.copy_from_slice(sums));
            Ok(())
        },
    )
}

/// A range of columns of a product, and the slices of all rows for these columns.
pub(crate) type Strips<'m, T> = (Range<usize>, Vec<&'m mut [T]>);

/// Splits the rows of a product at the column ranges `parts`, which are consecutive and cover all `columns`.
pub(crate) fn strips<T>(
    parts: impl Iterator<Item = Range<usize>>,
    made: &mut [T],
    columns: usize,
) -> Vec<Strips<'_, T>> {
    let rows = made.len() / columns.max(1);
    let mut items: Vec<_> = parts.map(|part| (part, Vec::with_capacity(rows))).collect();
    for row in made.chunks_exact_mut(columns.max(1)) {
        let mut rest = row;
        for (part, strips) in &mut items {
            let strip;
            (strip, rest) = rest.split_at_mut(part.len());
            strips.push(strip);
        }
    }
    items
}

/// Calls `multiply` for all rows, or for ranges of rows on several threads.
pub(crate) fn multiply_rows<T: Sync, U: Send>(
    a: &[T],
    made: &mut [U],
    [rows, depth, columns]: [usize; 3],
    pace: &mut Pace,
    multiply: impl Fn(&[T], &mut [U], &mut Pace) -> Result<()> + Sync,
) -> Result<()> {
    let parts = threads::parts(products([rows, depth, columns]), PRODUCTS);
    if parts == 1 || rows < 2 * LEAST_ROWS {
        return multiply(a, made, pace);
    }
    let rows = rows.div_ceil(parts).next_multiple_of(LEAST_ROWS);
    let items = a.chunks(rows * depth).zip(made.chunks_mut(rows * columns));
    in_parts(items.collect(), |(a, made), pace| multiply(a, made, pace))
}
