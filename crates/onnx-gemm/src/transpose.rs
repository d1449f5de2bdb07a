//! Transposes matrices.

use crate::Pace;

/// Returns the transpose of a row-major matrix of `rows` rows, in row-major order.
///
/// # Errors
/// Returns the error of [`Pace::spend`].
///
/// # Panics
/// Panics if the length is not a multiple of `rows`.
///
/// ```
/// let transposed = onnx_gemm::transpose(2, &[1, 2, 3, 4, 5, 6], &mut onnx_gemm::Unpaced).unwrap();
/// assert_eq!(transposed, [1, 4, 2, 5, 3, 6]);
/// ```
pub fn transpose<T: Copy + Default, P: Pace>(
    rows: usize,
    matrix: &[T],
    pace: &mut P,
) -> Result<Vec<T>, P::Stopped> {
    /// The row count of a block. That many elements fill a cache line of the result.
    const BLOCK: usize = 16;
    assert!(
        matrix.len().is_multiple_of(rows),
        "{} elements are not a matrix of {rows} rows",
        matrix.len()
    );
    let columns = matrix.len() / rows.max(1);
    let mut made = vec![T::default(); matrix.len()];
    for first in (0..rows).step_by(BLOCK) {
        let end = rows.min(first + BLOCK);
        pace.spend(((end - first) * columns) as u64)?;
        for (column, line) in made.chunks_exact_mut(rows).enumerate() {
            for (row, to) in (first..end).zip(&mut line[first..end]) {
                *to = matrix[row * columns + column];
            }
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        Unpaced,
        pace::{Budget, Exhausted},
    };

    #[test]
    fn rows_become_columns() {
        let matrix: Vec<usize> = (0..37 * 5).collect();
        let found = transpose(37, &matrix, &mut Unpaced).unwrap();
        for (at, number) in found.into_iter().enumerate() {
            assert_eq!(number, at % 37 * 5 + at / 37);
        }
        assert!(transpose::<u8, _>(0, &[], &mut Unpaced).unwrap().is_empty());
        assert!(transpose::<u8, _>(3, &[], &mut Unpaced).unwrap().is_empty());
        assert_eq!(transpose(37, &matrix, &mut Budget(100)), Err(Exhausted));
    }
}
