//! Exact products of 8-bit integers less their zero points: factors are `i16`, sums are `i32` and wrap around.

#[cfg(target_arch = "x86_64")]
mod pairs;

use crate::{
    Pace,
    generic::add_gemm,
    shapes::{expect_matrix, expect_rows},
    transpose,
};

/// Multiplications between two calls of [`Pace::spend`].
const PART: usize = 1 << 22;

/// Multiplications of one step of [`Pace`].
const PER_STEP: u64 = 32;

/// A second factor of integer products, packed once in the order in which products read it.
///
/// Products of two elements and the sum of two neighbouring products must fit an `i32`, as those of two 8-bit numbers less 8-bit zero
/// points do.
///
/// ```
/// use onnx_gemm::{PackedIntegers, Unpaced};
///
/// let b = PackedIntegers::new(&[1, -2, 3, 255], [2, 2]);
/// let mut c = [0; 2];
/// b.multiply(&[10, 100], &mut c, &mut Unpaced).unwrap();
/// assert_eq!(c, [310, 25480]);
/// ```
#[derive(Debug)]
pub struct PackedIntegers {
    depth: usize,
    columns: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// For AVX2.
    #[cfg(target_arch = "x86_64")]
    Pairs(pulp::x86::V3, pairs::Packed),
    /// Row-major.
    Plain(Vec<i32>),
}

impl PackedIntegers {
    /// Packs a row-major matrix of `depth` rows and `columns` columns.
    ///
    /// # Panics
    /// If `matrix` has not `depth * columns` elements.
    #[must_use]
    pub fn new(matrix: &[i16], [depth, columns]: [usize; 2]) -> Self {
        expect_matrix("b", matrix.len(), [depth, columns]);
        #[cfg(target_arch = "x86_64")]
        let pairs = pulp::x86::V3::try_new()
            .map(|simd| Kind::Pairs(simd, pairs::Packed::new(matrix, depth, columns)));
        #[cfg(not(target_arch = "x86_64"))]
        let pairs = None;
        Self {
            depth,
            columns,
            kind: pairs.unwrap_or_else(|| Kind::plain(matrix)),
        }
    }

    /// Rows of the matrix, which are the columns of the first factor.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Columns of the matrix.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of memory that such a matrix takes at most.
    #[must_use]
    pub fn bytes([depth, columns]: [usize; 2]) -> u64 {
        let elements = (depth as u64)
            .next_multiple_of(2)
            .saturating_mul((columns as u64).next_multiple_of(16));
        // Pairs of i16 are filled up; plain elements are i32.
        elements
            .saturating_mul(2)
            .max((depth as u64).saturating_mul(columns as u64).saturating_mul(4))
    }

    /// Writes the product of the row-major matrix `a` with this one to `c`, row-major too. The number of rows is that of `c`.
    ///
    /// # Errors
    /// As [`Pace::spend`].
    ///
    /// # Panics
    /// If `a` and `c` have not the same number of whole rows, of [`depth`](Self::depth) and of [`columns`](Self::columns) elements.
    pub fn multiply<P: Pace>(&self, a: &[i16], c: &mut [i32], pace: &mut P) -> Result<(), P::Stopped> {
        let (depth, columns) = (self.depth, self.columns);
        expect_rows(a.len(), depth, c.len(), columns);
        if depth == 0 {
            c.fill(0);
        }
        if depth == 0 || columns == 0 {
            return Ok(());
        }
        // A multiple of the rows of a tile.
        let rows = (PART / (depth * columns)).max(1).next_multiple_of(4);
        for (a, c) in a.chunks(rows * depth).zip(c.chunks_mut(rows * columns)) {
            match &self.kind {
                #[cfg(target_arch = "x86_64")]
                Kind::Pairs(simd, packed) => {
                    pace.spend((a.len() * columns) as u64 / PER_STEP + 1)?;
                    packed.multiply(*simd, a, c);
                }
                Kind::Plain(matrix) => {
                    let a: Vec<i32> = a.iter().map(|&number| number.into()).collect();
                    c.fill(0);
                    add_gemm(&a, matrix, [a.len() / depth, depth, columns], c, pace)?;
                }
            }
        }
        Ok(())
    }
}

impl Kind {
    fn plain(matrix: &[i16]) -> Self {
        Self::Plain(matrix.iter().map(|&number| number.into()).collect())
    }
}

/// Writes the product of two row-major integer matrices, `a` of `rows` by `depth` and `b` of `depth` by `columns`, to the row-major matrix
/// `c`. The larger factor is packed, whichever it is. Elements are limited as those of [`PackedIntegers`].
///
/// # Errors
/// As [`Pace::spend`].
///
/// # Panics
/// If a slice has not as many elements as its matrix.
///
/// ```
/// let mut c = [0; 2];
/// onnx_gemm::integer_gemm(&[1, 2], &[3, 4, 5, 6], [1, 2, 2], &mut c, &mut onnx_gemm::Unpaced).unwrap();
/// assert_eq!(c, [13, 16]);
/// ```
pub fn integer_gemm<P: Pace>(
    a: &[i16],
    b: &[i16],
    [rows, depth, columns]: [usize; 3],
    c: &mut [i32],
    pace: &mut P,
) -> Result<(), P::Stopped> {
    expect_matrix("a", a.len(), [rows, depth]);
    expect_matrix("b", b.len(), [depth, columns]);
    expect_matrix("c", c.len(), [rows, columns]);
    if depth == 0 {
        c.fill(0);
        return Ok(());
    }
    if rows <= columns {
        return PackedIntegers::new(b, [depth, columns]).multiply(a, c, pace);
    }
    let columns_as_rows = transpose(depth, b, pace)?;
    let packed = PackedIntegers::new(&transpose(rows, a, pace)?, [depth, rows]);
    let mut transposed = vec![0; rows * columns];
    packed.multiply(&columns_as_rows, &mut transposed, pace)?;
    c.copy_from_slice(&transpose(columns, &transposed, pace)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        Unpaced,
        pace::{Budget, Exhausted},
    };

    fn numbers(count: usize, step: usize) -> Vec<i16> {
        (0..count).map(|at| (at * step % 511) as i16 - 255).collect()
    }

    #[test]
    fn sums_are_those_of_plain_loops_whichever_factor_is_packed() {
        for rows in [0, 1, 2, 3, 4, 5, 8, 9, 30] {
            for depth in [0, 1, 2, 7, 33, 64] {
                for columns in [0, 1, 8, 15, 16, 17, 40] {
                    let (a, b) = (numbers(rows * depth, 37), numbers(depth * columns, 91));
                    let at = |at: usize| -> i32 {
                        let (row, column) = (at / columns, at % columns);
                        (0..depth)
                            .map(|term| {
                                i32::from(a[row * depth + term]) * i32::from(b[term * columns + column])
                            })
                            .sum()
                    };
                    let expected: Vec<i32> = (0..rows * columns).map(at).collect();
                    let sizes = [rows, depth, columns];
                    let mut found = vec![1; rows * columns];
                    integer_gemm(&a, &b, sizes, &mut found, &mut Unpaced).unwrap();
                    assert_eq!(found, expected, "{sizes:?}");
                    let plain = PackedIntegers {
                        depth,
                        columns,
                        kind: Kind::plain(&b),
                    };
                    for matrix in [plain, PackedIntegers::new(&b, [depth, columns])] {
                        let mut found = vec![1; rows * columns];
                        matrix.multiply(&a, &mut found, &mut Unpaced).unwrap();
                        assert_eq!(found, expected, "{sizes:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn sums_wrap_around() {
        let depth = 1 << 16;
        let matrix = PackedIntegers::new(&vec![-255; depth], [depth, 1]);
        let mut found = [0];
        matrix
            .multiply(&vec![255; depth], &mut found, &mut Unpaced)
            .unwrap();
        assert_eq!(found, [(-255 * 255_i32).wrapping_mul(1 << 16)]);
    }

    #[test]
    fn products_end_with_their_pace() {
        let (a, b, mut c) = (vec![0; 1 << 17], vec![0; 1 << 14], vec![0; 1 << 17]);
        let matrix = PackedIntegers::new(&b, [1 << 7; 2]);
        let steps = (1 << 24) / PER_STEP;
        let mut found = |budget| matrix.multiply(&a, &mut c, &mut Budget(budget));
        assert_eq!(found(2 * steps), Ok(()));
        assert_eq!(found(steps / 2), Err(Exhausted));
    }

    #[test]
    #[should_panic(expected = "a of 4 and c of 3 elements are not the same number of rows of 2 and 3")]
    fn factors_and_product_have_as_many_rows() {
        let matrix = PackedIntegers::new(&[0; 6], [2, 3]);
        matrix.multiply(&[0; 4], &mut [0; 3], &mut Unpaced).unwrap();
    }
}
