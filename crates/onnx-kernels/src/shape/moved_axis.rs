//! Matrix transposition for elements of any size.

use onnx_tensor::{cancelling::Pace, prelude::*};

/// Transposes columns of a matrix, starting at `first`, until `to` is full, in tiles that fit into the L1
/// cache. Each element is `BYTES` bytes long.
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
    const TILE: usize = 16;
    let (from, _) = from.as_chunks::<BYTES>();
    let (to, _) = to.as_chunks_mut::<BYTES>();
    let turned = to.len() / rows.max(1);
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
        for (rows, columns) in [(1, 1), (1, 40), (37, 18), (16, 32), (5, 7)] {
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
