//! Results in parts for several threads. A part is worth the start of a helper, which takes some microseconds; no sum is split, so that
//! results are the same bits for any number of threads.

use onnx_gemm::{FirstFactor, PackedIntegers, PackedMatrix};
use onnx_tensor::{
    cancelling::{Pace, in_parts},
    prelude::*,
    threads,
};

/// Multiplications of a part, at least: 50 us at 80 GFLOP/s, which one core of a server has.
pub(crate) const PRODUCTS: u64 = 1 << 21;

/// Elements of a part that are read, computed and written, at least: 50 us at 10 GB/s.
pub(crate) const ELEMENTS: u64 = 1 << 16;

/// Rows for which a matrix is read at the speed of memory: fewer rows take no less time.
const SLOW_ROWS: usize = 8;

/// Rows of a part of a product, at least: each part reads or packs the whole second factor.
const LEAST_ROWS: usize = 16;

/// Rows from which on each part packs its own.
const MANY_ROWS: usize = 1 << 10;

/// Multiplications of a product.
pub(crate) fn products([rows, depth, columns]: [usize; 3]) -> u64 {
    let sizes = [rows, depth, columns].map(|size| size as u64);
    sizes.into_iter().fold(1, u64::saturating_mul)
}

/// Has `run` compute a result of lines of `unit` elements: all of them, or disjoint runs of them on several threads where `work` is
/// worth parts of `least` or more. It is called with the index of the first line.
pub(crate) fn lines<T: Send>(
    made: &mut [T],
    unit: usize,
    [work, least]: [u64; 2],
    run: impl Fn(usize, &mut [T], &mut Pace) -> Result<()> + Sync,
) -> Result<()> {
    let parts = threads::parts(work, least);
    if parts == 1 {
        return run(0, made, &mut Pace::default());
    }
    let unit = unit.max(1);
    let count = made.len().div_ceil(unit).div_ceil(parts).max(1);
    let items = made.chunks_mut(count * unit).enumerate();
    let items = items.map(|(part, made)| (part * count, made)).collect();
    in_parts(items, |(first, made), pace| run(first, made, pace))
}

/// Writes the product of rows with a packed matrix.
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
    let first_factor = FirstFactor::new(a, depth);
    let mut items: Vec<_> = matrix
        .parts(parts)
        .map(|part| (part, Vec::with_capacity(rows)))
        .collect();
    for row in made.chunks_exact_mut(columns) {
        let mut rest = row;
        for (part, strips) in &mut items {
            let strip;
            (strip, rest) = rest.split_at_mut(part.len());
            strips.push(strip);
        }
    }
    in_parts(items, |(part, mut strips), pace| {
        matrix.multiply_part(&first_factor, part, &mut strips, pace)
    })
}

/// Writes the product of rows with a packed matrix of 8-bit integers.
pub(crate) fn multiply_integers(
    matrix: &PackedIntegers,
    a: &[i16],
    made: &mut [i32],
    pace: &mut Pace,
) -> Result<()> {
    let (depth, columns) = (matrix.depth(), matrix.columns());
    let rows = made.len() / columns.max(1);
    multiply_rows(a, made, [rows, depth, columns], pace, |a, made, pace| {
        matrix.multiply(a, made, pace)
    })
}

/// Has `multiply` write the product of all rows, or of some rows on each of several threads.
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
