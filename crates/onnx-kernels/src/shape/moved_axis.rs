//! Matrices turned, of elements of any size.

/// Turns a matrix of elements of so many bytes, in tiles that stay in the nearest cache.
pub(crate) fn transpose<const BYTES: usize>(from: &[u8], to: &mut [u8], rows: usize, columns: usize) {
    const TILE: usize = 16;
    let (from, _) = from.as_chunks::<BYTES>();
    let (to, _) = to.as_chunks_mut::<BYTES>();
    for first_row in (0..rows).step_by(TILE) {
        let count = TILE.min(rows - first_row);
        for first in (0..columns).step_by(TILE) {
            for column in first..columns.min(first + TILE) {
                let to = &mut to[column * rows + first_row..][..count];
                let from = from[first_row * columns + column..].iter().step_by(columns);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        for (rows, columns) in [(1, 1), (1, 40), (37, 18), (16, 32), (5, 7)] {
            let from: Vec<u8> = (0..rows * columns * 2).map(|at| (at * 7 % 251) as u8).collect();
            let mut to = vec![0; from.len()];
            transpose::<2>(&from, &mut to, rows, columns);
            for (at, element) in to.chunks_exact(2).enumerate() {
                let place = at % rows * columns + at / rows;
                assert_eq!(element, &from[2 * place..][..2], "{rows} x {columns}");
            }
        }
    }
}
