//! Matrix transposition for elements of any size.

use onnx_tensor::{cancelling::Pace, prelude::*};

/// Number of rows and columns of a large tile.
const LARGE_TILE: usize = 64;

/// Transposes columns of a matrix, starting at `first`, until `to` is full. Each element is `BYTES` bytes
/// long.
///
/// # Errors
/// Fails if the request is cancelled.
pub(crate) fn transpose<const BYTES: usize>(
    from: &[u8],
    to: &mut [u8],
    [rows, columns]: [usize; 2],
    first: usize,
    pace: &mut Pace,
) -> Result<()> {
    let (from, _) = from.as_chunks::<BYTES>();
    let (to, _) = to.as_chunks_mut::<BYTES>();
    let turned = to.len() / rows.max(1);
    match rows >= LARGE_TILE && turned >= LARGE_TILE && BYTES <= 8 {
        true => transpose_large(from, to, [rows, columns], [first, turned], pace),
        false => transpose_small(from, to, [rows, columns], [first, turned], pace),
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
        for (rows, columns) in [(1, 1), (1, 40), (37, 18), (16, 32), (5, 7), (64, 192), (131, 200)] {
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
}
