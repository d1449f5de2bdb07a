//! Exact products of 8-bit integers minus their zero points: factors are `i16`, sums are `i32` and wrap
//! around.

mod filter_block;
mod filters;
#[cfg(target_arch = "x86_64")]
mod pair_filters;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod plain_filters;
#[cfg(target_arch = "x86_64")]
mod vnni;
#[cfg(target_arch = "x86_64")]
mod vnni_filters;

pub use filter_block::Quad;
pub use filters::{IntegerFilters, SumBuffer, SumTile, Windows};

use std::ops::Range;

use crate::{
    Pace,
    generic::add_gemm,
    shapes::{expect_matrix, expect_product, expect_rows},
    transpose,
};

/// Column ranges begin at multiples of this number, which is a multiple of the panel width of every packed
/// layout.
const PANEL: usize = 48;

/// The number of multiplications between two calls of [`Pace::spend`].
const PART: usize = 1 << 22;

/// The number of multiplications in one step of [`Pace`].
const PER_STEP: u64 = 32;

/// The right-hand matrix of integer products, packed once in the layout in which the kernel reads it.
///
/// Products of two elements, and the sum of two adjacent products, must fit an `i32`. Differences of 8-bit
/// numbers and 8-bit zero points always do.
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
    /// The layout for AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Bytes(vnni::Vnni, vnni::PackedBytes),
    /// The layouts for AVX2.
    #[cfg(target_arch = "x86_64")]
    Pairs(pulp::x86::V3, pairs::PackedPairs),
    /// The row-major matrix, for all other processors.
    Plain(Vec<i32>),
}

impl PackedIntegers {
    /// Packs a row-major matrix of `depth` rows and `columns` columns.
    ///
    /// # Panics
    /// Panics if `matrix.len()` is not `depth * columns`.
    #[must_use]
    pub fn new(matrix: &[i16], [depth, columns]: [usize; 2]) -> Self {
        expect_matrix("b", matrix.len(), [depth, columns]);
        let sizes = [depth, columns];
        let kind = Kind::bytes(matrix, sizes).or_else(|| Kind::pairs(matrix, sizes));
        Self {
            depth,
            columns,
            kind: kind.unwrap_or_else(|| Kind::plain(matrix)),
        }
    }

    /// Returns the row count, which equals the column count of the first factor.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the column count.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the bytes that a packed matrix of `depth` rows and `columns` columns takes: the maximum over
    /// all processors.
    #[must_use]
    pub fn bytes([depth, columns]: [usize; 2]) -> u64 {
        let [depth, columns] = [depth, columns].map(|size| size as u64);
        let filled = |terms: u64, lanes: u64| {
            let columns = columns.checked_next_multiple_of(lanes).unwrap_or(u64::MAX);
            let depth = depth.checked_next_multiple_of(terms).unwrap_or(u64::MAX);
            [depth, columns]
        };
        let matrix = |[depth, columns]: [u64; 2], bytes| depth.saturating_mul(columns).saturating_mul(bytes);
        // The VNNI layout takes one byte per element, and two 32-bit numbers per column. The AVX2 layout
        // takes up to 16 bits per element, and the plain one 32 bits.
        let of_bytes = matrix(filled(4, 16), 1).saturating_add(matrix([8, filled(4, 16)[1]], 1));
        of_bytes
            .max(matrix(filled(2, 16), 2))
            .max(matrix([depth, columns], 4))
    }

    /// Divides the columns into up to `count` ranges of whole panels.
    pub fn parts(&self, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let columns = self.columns;
        let most = match self.kind {
            // A plain matrix is stored by rows, so it has only one part.
            Kind::Plain(_) => 1,
            #[cfg(target_arch = "x86_64")]
            _ => usize::MAX,
        };
        let width = columns.div_ceil(count.clamp(1, most)).next_multiple_of(PANEL);
        let starts = (0..columns).step_by(width.max(1));
        starts.map(move |start| start..columns.min(start + width))
    }

    /// Writes the product of the row-major matrix `a` and this matrix to the row-major matrix `c`. `a` and
    /// `c` have the same number of rows.
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if `a` does not consist of whole rows of [`depth`](Self::depth) elements, if `c` does not
    /// consist of whole rows of [`columns`](Self::columns) elements, or if their row counts differ.
    pub fn multiply<P: Pace>(&self, a: &[i16], c: &mut [i32], pace: &mut P) -> Result<(), P::Stopped> {
        self.multiply_part(a, 0..self.columns, c, pace)
    }

    /// Writes the columns `columns` of the product of `a` and this matrix to `c`. `a` and `c` are row-major.
    ///
    /// ```
    /// use onnx_gemm::{PackedIntegers, Unpaced};
    ///
    /// let b = PackedIntegers::new(&[2; 100], [1, 100]);
    /// for columns in b.parts(2) {
    ///     let mut c = vec![0; 3 * columns.len()];
    ///     b.multiply_part(&[1, 10, 100], columns.clone(), &mut c, &mut Unpaced).unwrap();
    ///     assert_eq!(c[columns.len()], 20);
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if `columns` is neither a range from [`parts`](Self::parts) nor all columns, or if `a` and `c`
    /// do not have the same number of whole rows.
    pub fn multiply_part<P: Pace>(
        &self,
        a: &[i16],
        columns: Range<usize>,
        c: &mut [i32],
        pace: &mut P,
    ) -> Result<(), P::Stopped> {
        let (depth, width) = (self.depth, columns.len());
        let is_part = columns.start.is_multiple_of(PANEL)
            && (columns.end.is_multiple_of(PANEL) || columns.end == self.columns);
        assert!(
            is_part && columns.start <= columns.end && columns.end <= self.columns,
            "columns {columns:?} of {} are not whole panels",
            self.columns
        );
        expect_rows(a.len(), depth, c.len(), width);
        if depth == 0 {
            c.fill(0);
        }
        if depth == 0 || width == 0 {
            return Ok(());
        }
        match &self.kind {
            #[cfg(target_arch = "x86_64")]
            Kind::Bytes(vnni, packed) => packed.multiply(*vnni, a, columns, c, pace),
            #[cfg(target_arch = "x86_64")]
            Kind::Pairs(simd, packed) => {
                // The number of rows between two calls of `spend`, a multiple of the row count of a tile.
                let rows = (PART / (depth * width)).max(1).next_multiple_of(pairs::ROWS);
                for (a, c) in a.chunks(rows * depth).zip(c.chunks_mut(rows * width)) {
                    pace.spend((a.len() * width) as u64 / PER_STEP + 1)?;
                    packed.multiply(*simd, a, columns.clone(), c);
                }
                Ok(())
            }
            Kind::Plain(matrix) => {
                assert!(width == self.columns, "a part of a plain matrix");
                let a: Vec<i32> = a.iter().map(|&number| number.into()).collect();
                c.fill(0);
                add_gemm(&a, matrix, [a.len() / depth, depth, width], c, pace)
            }
        }
    }
}

impl Kind {
    #[cfg(target_arch = "x86_64")]
    fn bytes(matrix: &[i16], [depth, columns]: [usize; 2]) -> Option<Self> {
        let vnni = vnni::Vnni::detect()?;
        Some(Self::Bytes(vnni, vnni::PackedBytes::new(matrix, depth, columns)?))
    }

    #[cfg(target_arch = "x86_64")]
    fn pairs(matrix: &[i16], [depth, columns]: [usize; 2]) -> Option<Self> {
        let simd = pulp::x86::V3::try_new()?;
        Some(Self::Pairs(simd, pairs::PackedPairs::new(matrix, depth, columns)))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn bytes(_: &[i16], _: [usize; 2]) -> Option<Self> {
        None
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn pairs(_: &[i16], _: [usize; 2]) -> Option<Self> {
        None
    }

    fn plain(matrix: &[i16]) -> Self {
        Self::Plain(matrix.iter().map(|&number| number.into()).collect())
    }
}

/// Writes the product of the row-major integer matrices `a` (`rows` by `depth`) and `b` (`depth` by
/// `columns`) to the row-major matrix `c`. The larger factor is packed, unless there are few rows. Elements
/// are limited as in [`PackedIntegers`].
///
/// # Errors
/// Returns the error of [`Pace::spend`].
///
/// # Panics
/// Panics if the length of a slice differs from the size of its matrix.
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
    expect_product([a.len(), b.len(), c.len()], [rows, depth, columns]);
    if depth == 0 {
        c.fill(0);
        return Ok(());
    }
    if rows < FEW_ROWS {
        for (a, c) in a.chunks_exact(depth).zip(c.chunks_mut(columns.max(1))) {
            c.fill(0);
            let block = (PART / columns.max(1)).max(1);
            for (a, b) in a.chunks(block).zip(b.chunks(block * columns.max(1))) {
                pace.spend(b.len() as u64 / PER_STEP + 1)?;
                pulp::Arch::new().dispatch(Combination { a, b, c });
            }
        }
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

/// The row count below which packing takes longer than the product itself.
const FEW_ROWS: usize = 4;

/// The addition of a linear combination of rows of `b` to `c`.
struct Combination<'c> {
    a: &'c [i16],
    b: &'c [i16],
    c: &'c mut [i32],
}

impl pulp::WithSimd for Combination<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let rows = self.b.chunks_exact(self.c.len().max(1));
        for (&a, b) in self.a.iter().zip(rows) {
            let pairs = self.c.iter_mut().zip(b);
            pairs.for_each(|(c, &b)| *c = c.wrapping_add(i32::from(a).wrapping_mul(b.into())));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        Unpaced,
        pace::{Budget, Exhausted},
    };

    /// Returns an arbitrary sequence of 9-bit numbers.
    fn numbers(count: usize, step: usize) -> Vec<i16> {
        (0..count).map(|at| (at * step % 511) as i16 - 255).collect()
    }

    /// Returns 8-bit numbers minus a zero point, which differs between lines.
    fn bytes(count: usize, step: usize, line: impl Fn(usize) -> usize) -> Vec<i16> {
        let byte = |at: usize| (at * step % 256) as i16;
        (0..count)
            .map(|at| byte(at) - (line(at) * 53 % 256) as i16)
            .collect()
    }

    /// Returns `matrix` in each layout that this processor supports.
    fn packed(matrix: &[i16], sizes: [usize; 2]) -> Vec<PackedIntegers> {
        let kinds = [
            Kind::bytes(matrix, sizes),
            Kind::pairs(matrix, sizes),
            Some(Kind::plain(matrix)),
        ];
        let [depth, columns] = sizes;
        let all = kinds.into_iter().flatten();
        all.map(|kind| PackedIntegers { depth, columns, kind }).collect()
    }

    fn check(a: &[i16], b: &[i16], sizes: [usize; 3]) {
        let [rows, depth, columns] = sizes;
        let at = |at: usize| -> i32 {
            let (row, column) = (at / columns, at % columns);
            (0..depth)
                .map(|term| i32::from(a[row * depth + term]) * i32::from(b[term * columns + column]))
                .fold(0, i32::wrapping_add)
        };
        let expected: Vec<i32> = (0..rows * columns).map(at).collect();
        let mut found = vec![1; rows * columns];
        integer_gemm(a, b, sizes, &mut found, &mut Unpaced).unwrap();
        assert_eq!(found, expected, "{sizes:?}");
        for matrix in packed(b, [depth, columns]) {
            let mut found = vec![1; rows * columns];
            matrix.multiply(a, &mut found, &mut Unpaced).unwrap();
            assert_eq!(
                found,
                expected,
                "{sizes:?} by {:?}",
                std::mem::discriminant(&matrix.kind)
            );
            check_parts(&matrix, a, &expected);
        }
    }

    fn check_parts(matrix: &PackedIntegers, a: &[i16], expected: &[i32]) {
        for count in [0, 2, 100] {
            let mut end = 0;
            for part in matrix.parts(count) {
                assert_eq!(part.start, end);
                end = part.end;
                let whole = expected.chunks_exact(matrix.columns);
                let expected: Vec<i32> = whole.flat_map(|row| row[part.clone()].to_vec()).collect();
                let mut found = vec![1; expected.len()];
                matrix.multiply_part(a, part, &mut found, &mut Unpaced).unwrap();
                assert_eq!(found, expected);
            }
            assert_eq!(end, matrix.columns);
        }
    }

    #[test]
    fn sums_are_those_of_plain_loops_whichever_factor_is_packed() {
        for rows in [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 30] {
            for depth in [0, 1, 2, 7, 33, 64] {
                for columns in [0, 1, 8, 16, 17, 40, 48, 49, 100] {
                    let sizes = [rows, depth, columns];
                    let [of_a, of_b] = [rows * depth, depth * columns];
                    check(&numbers(of_a, 37), &numbers(of_b, 91), sizes);
                    let a = bytes(of_a, 37, |at| at / depth);
                    let b = bytes(of_b, 91, |at| at % columns);
                    check(&a, &b, sizes);
                    let narrow: Vec<i16> = b.iter().map(|&number| number.clamp(-128, 127)).collect();
                    check(&a, &narrow, sizes);
                    // Some rows of the first factor contain 9-bit numbers.
                    let mut a = a;
                    for row in a.chunks_mut(depth.max(1)).step_by(3) {
                        row[0] = 255;
                        row[depth - 1] = -255;
                    }
                    check(&a, &b, sizes);
                }
            }
        }
    }

    #[test]
    fn rows_are_more_than_one_part() {
        let [rows, depth, columns] = [70, 1 << 13, 3];
        let a = bytes(rows * depth, 37, |at| at / depth);
        let b = bytes(depth * columns, 91, |at| at % columns);
        check(&a, &b, [rows, depth, columns]);
    }

    /// Multiplies the smallest and largest differences of 8-bit numbers and zero points.
    #[test]
    fn extremes_do_not_saturate() {
        for [a, b] in [
            [255, -128],
            [255, 127],
            [-255, 255],
            [-128, -255],
            [i16::MAX, i16::MIN],
        ] {
            check(&[a; 8 * 12], &[b; 12 * 16], [8, 12, 16]);
        }
    }

    #[test]
    fn matrices_take_no_more_memory_than_is_told() {
        for sizes in [[1, 1], [1, 100], [3, 16], [64, 48]] {
            // 9-bit numbers take the most.
            for matrix in packed(&vec![255; sizes[0] * sizes[1]], sizes) {
                let taken = match &matrix.kind {
                    #[cfg(target_arch = "x86_64")]
                    Kind::Bytes(_, packed) => packed.bytes(),
                    #[cfg(target_arch = "x86_64")]
                    Kind::Pairs(_, packed) => packed.bytes(),
                    Kind::Plain(numbers) => size_of_val(&numbers[..]),
                };
                assert!(
                    taken as u64 <= PackedIntegers::bytes(sizes),
                    "{taken} of {sizes:?}"
                );
            }
        }
        assert_eq!(PackedIntegers::bytes([usize::MAX; 2]), u64::MAX);
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
        let mut budget = Budget(u64::MAX);
        assert_eq!(matrix.multiply(&a, &mut c, &mut budget), Ok(()));
        // A step is at most 64 multiplications; fewer on processors without instructions for 8-bit products.
        let steps = u64::MAX - budget.0;
        assert!(steps >= (1 << 24) / 64, "{steps}");
        assert_eq!(
            matrix.multiply(&a, &mut c, &mut Budget(steps / 2)),
            Err(Exhausted)
        );
    }

    #[test]
    #[should_panic(expected = "a of 4 and c of 3 elements are not the same number of rows of 2 and 3")]
    fn factors_and_product_have_as_many_rows() {
        let matrix = PackedIntegers::new(&[0; 6], [2, 3]);
        matrix.multiply(&[0; 4], &mut [0; 3], &mut Unpaced).unwrap();
    }
}
