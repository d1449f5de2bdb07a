//! The packed layout of a first factor: blocks of [`BLOCK`] rows, column-major within a block.

/// The number of rows in a block of a packed first factor.
pub(crate) const BLOCK: usize = 4;

/// Packs a row-major matrix of `rows` rows for [`LineGemm`](crate::LineGemm) and
/// [`BlockedGemm`](crate::BlockedGemm): blocks of four rows, column-major within a block. The last block is
/// padded with zeros. A single row, for [`LineFilter`](crate::LineFilter), is unchanged.
///
/// The number of columns is `matrix.len() / rows`.
///
/// # Panics
/// Panics if the length is not a multiple of `rows`.
///
/// ```
/// let packed = onnx_gemm::pack_rows(2, &[1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(packed, [1.0, 3.0, 0.0, 0.0, 2.0, 4.0, 0.0, 0.0]);
/// ```
#[must_use]
pub fn pack_rows(rows: usize, matrix: &[f32]) -> Vec<f32> {
    let depth = depth(rows, matrix);
    if rows == 1 {
        return matrix.to_vec();
    }
    let mut packed = Vec::with_capacity(packed_len(rows, depth) / BLOCK);
    for matrix in matrix.chunks((BLOCK * depth).max(1)) {
        if let Some([first, second, third, fourth]) = four_rows(matrix, depth) {
            pulp::Arch::new().dispatch(|| {
                let terms = first.iter().zip(second).zip(third.iter().zip(fourth));
                packed.extend(
                    terms.map(|((first, second), (third, fourth))| [*first, *second, *third, *fourth]),
                );
            });
            continue;
        }
        let rows = matrix.len() / depth;
        let term = |term: usize| {
            std::array::from_fn(|row| {
                if row < rows {
                    matrix[row * depth + term]
                } else {
                    0.0
                }
            })
        };
        packed.extend((0..depth).map(term));
    }
    packed.into_flattened()
}

/// Returns the row-major matrix of `rows` rows from which [`pack_rows`] made `packed`.
///
/// # Panics
/// Panics if `packed` does not have the length of such a matrix.
#[must_use]
pub fn unpack_rows(rows: usize, packed: &[f32]) -> Vec<f32> {
    let depth = depth(packed_len(rows, 1), packed);
    if rows == 1 {
        return packed.to_vec();
    }
    let (terms, _) = packed.as_chunks::<BLOCK>();
    let element = |at: usize| {
        let (row, term) = (at / depth, at % depth);
        terms[row / BLOCK * depth + term][row % BLOCK]
    };
    (0..rows * depth).map(element).collect()
}

/// Packs the transpose of a row-major matrix with `rows` columns, in the layout of [`pack_rows`] for `rows`
/// rows. A single row is also padded to a block, so that [`BlockedGemm`](crate::BlockedGemm) accepts any row
/// count.
///
/// # Panics
/// Panics if the length is not a multiple of `rows`.
#[must_use]
pub fn pack_columns(rows: usize, matrix: &[f32]) -> Vec<f32> {
    let depth = depth(rows, matrix);
    // Packs as for at least two rows, because a single row has a different layout.
    let mut packed = vec![0.0; packed_len(rows.max(2), depth)];
    let blocks = packed.chunks_exact_mut((BLOCK * depth).max(1));
    for (block, first) in blocks.zip((0..rows).step_by(BLOCK)) {
        let (terms, _) = block.as_chunks_mut::<BLOCK>();
        for (numbers, matrix) in terms.iter_mut().zip(matrix.chunks_exact(rows)) {
            match matrix[first..].first_chunk::<BLOCK>() {
                Some(four) => *numbers = *four,
                None => numbers[..rows - first].copy_from_slice(&matrix[first..]),
            }
        }
    }
    packed
}

/// Returns the length of a packed matrix of `rows` by `depth`, as from [`pack_rows`].
///
/// # Panics
/// Panics if the length does not fit into a `usize`.
#[must_use]
pub fn packed_len(rows: usize, depth: usize) -> usize {
    let rows = match rows {
        1 => Some(1),
        rows => rows.checked_next_multiple_of(BLOCK),
    };
    rows.and_then(|rows| rows.checked_mul(depth))
        .expect("the length of a packed matrix fits a usize")
}

/// Returns the column count of a matrix.
#[track_caller]
fn depth(rows: usize, matrix: &[f32]) -> usize {
    assert!(
        matrix.len().is_multiple_of(rows),
        "{} elements are not a matrix of {rows} rows",
        matrix.len()
    );
    matrix.len() / rows.max(1)
}

/// Returns the rows of a full block; `None` if `matrix` has fewer than four rows.
fn four_rows(matrix: &[f32], depth: usize) -> Option<[&[f32]; BLOCK]> {
    let (first, rest) = matrix.split_at_checked(depth)?;
    let (second, rest) = rest.split_at_checked(depth)?;
    let (third, rest) = rest.split_at_checked(depth)?;
    Some([first, second, third, rest.get(..depth)?])
}

/// Copies the first `min(from.len(), to.len())` elements. For the few dozen elements in a row of a tile, this
/// is faster than `copy_from_slice`.
#[inline(always)]
pub fn copy_line(from: &[f32], to: &mut [f32]) {
    const FEW: usize = 256;
    let count = from.len().min(to.len());
    let (from, to) = (&from[..count], &mut to[..count]);
    if count > FEW {
        to.copy_from_slice(from);
        return;
    }
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
    }
}

/// Returns a zeroed buffer, and an index that is aligned to a cache line and followed by `count` elements.
/// Loading 64 bytes across two cache lines takes twice as long.
pub(crate) fn aligned(count: usize) -> (Vec<f32>, usize) {
    const LINE: usize = 64 / size_of::<f32>();
    let numbers = vec![0.0f32; count + LINE - 1];
    let start = numbers.as_ptr().align_offset(64).min(LINE - 1);
    (numbers, start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_packed_as_rows_are() {
        for rows in [2, 3, 4, 5, 9] {
            for depth in [0, 1, 2, 7] {
                let matrix: Vec<f32> = (0..rows * depth).map(|at| at as f32).collect();
                let transposed: Vec<f32> = (0..rows * depth)
                    .map(|at| matrix[at % rows * depth + at / rows])
                    .collect();
                assert_eq!(pack_columns(rows, &transposed), pack_rows(rows, &matrix));
            }
        }
        assert_eq!(
            pack_columns(1, &[5.0, 7.0]),
            [5.0, 0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0]
        );
        assert!(pack_rows(0, &[]).is_empty());
    }

    #[test]
    fn unpacked_rows_are_those_that_were_packed() {
        for rows in [0, 1, 2, 3, 4, 5, 9] {
            for depth in [0, 1, 2, 7] {
                let matrix: Vec<f32> = (0..rows * depth).map(|at| at as f32).collect();
                assert_eq!(unpack_rows(rows, &pack_rows(rows, &matrix)), matrix);
            }
        }
    }

    #[test]
    #[should_panic(expected = "5 elements are not a matrix of 2 rows")]
    fn a_matrix_has_whole_rows() {
        let _ = pack_rows(2, &[0.0; 5]);
    }
}
