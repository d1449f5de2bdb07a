//! Matrix transposition for elements of any size.

use onnx_tensor::{
    cancelling::{PART, Pace},
    prelude::*,
};

/// Number of rows and columns of a large tile.
const LARGE_TILE: usize = 64;

/// Transposes columns of a matrix of `rows` rows, starting at `first`, until `to` is full. Each element is
/// `BYTES` bytes long, and rows begin `stride` elements apart.
///
/// # Errors
/// Fails if the request is cancelled.
pub(crate) fn transpose<const BYTES: usize>(
    from: &[u8],
    to: &mut [u8],
    [rows, stride]: [usize; 2],
    first: usize,
    pace: &mut Pace,
) -> Result<()> {
    let (from, _) = from.as_chunks::<BYTES>();
    let (to, _) = to.as_chunks_mut::<BYTES>();
    let turned = to.len() / rows.max(1);
    match (rows, stride) {
        (2, _) => interleave::<_, 2>(from, to, stride, first, pace),
        (3, _) => interleave::<_, 3>(from, to, stride, first, pace),
        (4, _) => interleave::<_, 4>(from, to, stride, first, pace),
        (_, 2) => separate::<_, 2>(from, to, rows, first, pace),
        (_, 3) => separate::<_, 3>(from, to, rows, first, pace),
        (_, 4) => separate::<_, 4>(from, to, rows, first, pace),
        _ if rows >= LARGE_TILE && turned >= LARGE_TILE && BYTES <= 8 => {
            transpose_large(from, to, [rows, stride], [first, turned], pace)
        }
        _ => transpose_small(from, to, [rows, stride], [first, turned], pace),
    }
}

/// Transposes a matrix of `ROWS` rows. The loop has a constant number of reads, and so is vectorized.
fn interleave<T: Copy, const ROWS: usize>(
    from: &[T],
    to: &mut [T],
    stride: usize,
    first: usize,
    pace: &mut Pace,
) -> Result<()> {
    for (part, to) in to.as_chunks_mut::<ROWS>().0.chunks_mut(PART).enumerate() {
        pace.spend((ROWS * to.len()) as u64)?;
        let start = first + part * PART;
        let rows: [&[T]; ROWS] = std::array::from_fn(|row| &from[row * stride + start..][..to.len()]);
        pulp::Arch::new().dispatch(Interleaved { rows, to });
    }
    Ok(())
}

struct Interleaved<'v, T, const ROWS: usize> {
    rows: [&'v [T]; ROWS],
    to: &'v mut [[T; ROWS]],
}

impl<T: Copy, const ROWS: usize> pulp::WithSimd for Interleaved<'_, T, ROWS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { rows, to } = self;
        // Slices of the same length, so that the loop does not check indices.
        let rows = rows.map(|row| &row[..to.len()]);
        for at in 0..to.len() {
            for row in 0..ROWS {
                to[at][row] = rows[row][at];
            }
        }
    }
}

/// Transposes a matrix whose rows begin `STRIDE` elements apart: copies one column after the other.
fn separate<T: Copy, const STRIDE: usize>(
    from: &[T],
    to: &mut [T],
    rows: usize,
    first: usize,
    pace: &mut Pace,
) -> Result<()> {
    for (column, to) in (first..).zip(to.chunks_exact_mut(rows.max(1))) {
        let (whole, rest) = from.as_chunks::<STRIDE>();
        for (from, to) in whole.chunks(PART).zip(to.chunks_mut(PART)) {
            pace.spend(to.len() as u64)?;
            pulp::Arch::new().dispatch(Column { from, column, to });
        }
        // The last row may end before the next one would begin.
        if let (Some(to), Some(from)) = (to.get_mut(whole.len()), rest.get(column)) {
            *to = *from;
        }
    }
    Ok(())
}

struct Column<'v, T, const STRIDE: usize> {
    from: &'v [[T; STRIDE]],
    column: usize,
    to: &'v mut [T],
}

impl<T: Copy, const STRIDE: usize> pulp::WithSimd for Column<'_, T, STRIDE> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { from, column, to } = self;
        // The loops differ by a constant, and so are vectorized.
        for constant in 0..STRIDE {
            if constant == column {
                let pairs = to.iter_mut().zip(from);
                pairs.for_each(|(to, from)| *to = from[constant]);
            }
        }
    }
}

/// Transposes in tiles whose rows are copied next to each other first. The rows of a large matrix are in
/// different pages of memory, and those of some sizes share the same lines of the first-level cache.
fn transpose_large<T: Copy>(
    from: &[T],
    to: &mut [T],
    [rows, columns]: [usize; 2],
    [first, turned]: [usize; 2],
    pace: &mut Pace,
) -> Result<()> {
    let mut copied = match from.first() {
        Some(&any) => vec![[any; LARGE_TILE]; LARGE_TILE],
        None => return Ok(()),
    };
    for first_row in (0..rows).step_by(LARGE_TILE) {
        let count = LARGE_TILE.min(rows - first_row);
        for tile in (0..turned).step_by(LARGE_TILE) {
            let width = LARGE_TILE.min(turned - tile);
            pace.spend((count * width) as u64)?;
            for (row, copied) in copied[..count].iter_mut().enumerate() {
                let from = &from[(first_row + row) * columns + first + tile..][..width];
                match <&[T; LARGE_TILE]>::try_from(from) {
                    Ok(from) => *copied = *from,
                    Err(_) => copied[..width].copy_from_slice(from),
                }
            }
            for column in 0..width {
                let to = &mut to[(tile + column) * rows + first_row..][..count];
                for (to, row) in to.iter_mut().zip(&copied) {
                    *to = row[column];
                }
            }
        }
    }
    Ok(())
}

/// Transposes in tiles that fit into the first-level cache.
fn transpose_small<T: Copy>(
    from: &[T],
    to: &mut [T],
    [rows, columns]: [usize; 2],
    [first, turned]: [usize; 2],
    pace: &mut Pace,
) -> Result<()> {
    const TILE: usize = 16;
    for first_row in (0..rows).step_by(TILE) {
        let count = TILE.min(rows - first_row);
        for tile in (0..turned).step_by(TILE) {
            pace.spend((count * TILE.min(turned - tile)) as u64)?;
            for column in tile..turned.min(tile + TILE) {
                let to = &mut to[column * rows + first_row..][..count];
                let from = from[first_row * columns + first + column..]
                    .iter()
                    .step_by(columns);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn rows_become_columns() {
        for (rows, columns) in [
            (1, 1),
            (1, 40),
            (2, 1),
            (2, 75),
            (3, 50),
            (4, 33),
            (75, 2),
            (50, 3),
            (33, 4),
            (37, 18),
            (16, 32),
            (5, 7),
            (64, 192),
            (131, 200),
        ] {
            let from: Vec<u8> = (0..rows * columns * 2).map(|at| (at * 7 % 251) as u8).collect();
            let mut to = vec![0; from.len()];
            let (low, high) = to.split_at_mut(columns / 3 * rows * 2);
            let mut pace = Pace::default();
            transpose::<2>(&from, low, [rows, columns], 0, &mut pace).unwrap();
            transpose::<2>(&from, high, [rows, columns], columns / 3, &mut pace).unwrap();
            for (at, element) in to.chunks_exact(2).enumerate() {
                let place = at % rows * columns + at / rows;
                assert_eq!(element, &from[2 * place..][..2], "{rows} x {columns}");
            }
        }
    }

    #[test]
    fn rows_may_be_apart() {
        for (rows, columns, stride) in [
            (2, 37, 41),
            (3, 70, 71),
            (4, 1, 9),
            (7, 2, 3),
            (70, 3, 4),
            (80, 90, 99),
        ] {
            let from: Vec<u8> = (0..(rows - 1) * stride + columns)
                .map(|at| (at * 7 % 251) as u8)
                .collect();
            let mut to = vec![0; rows * columns];
            transpose::<1>(&from, &mut to, [rows, stride], 0, &mut Pace::default()).unwrap();
            for (at, element) in to.iter().enumerate() {
                assert_eq!(
                    *element,
                    from[at % rows * stride + at / rows],
                    "{rows} x {columns}"
                );
            }
        }
    }
}
