//! Matrix products of FP64 and of integers, whose sums wrap around as ONNX Runtime's do.

use tract_hir::internal::TractResult;

use super::elements::Element;
use crate::cancelling::Pace;

/// A type that matrices have here.
pub(super) trait Factor: Element + Copy + Default + Send + Sync {
    /// This sum with a product added; with one rounding if `IS_FUSED`.
    fn plus<const IS_FUSED: bool>(self, a: Self, b: Self) -> Self;

    /// The sum of two numbers.
    fn sum(self, other: Self) -> Self;

    /// The product of two numbers.
    fn times(self, other: Self) -> Self;
}

macro_rules! real_factors {
    ($($T:ty)*) => {
        $(impl Factor for $T {
            #[inline(always)]
            fn plus<const IS_FUSED: bool>(self, a: Self, b: Self) -> Self {
                if IS_FUSED { a.mul_add(b, self) } else { self + a * b }
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
        })*
    };
}
real_factors! { f32 f64 }

macro_rules! whole_factors {
    ($($T:ty)*) => {
        $(impl Factor for $T {
            #[inline(always)]
            fn plus<const IS_FUSED: bool>(self, a: Self, b: Self) -> Self {
                self.wrapping_add(a.wrapping_mul(b))
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        })*
    };
}
whole_factors! { i32 i64 u32 u64 }

/// Columns that are computed for all rows before the next ones.
const PANEL: usize = 8;

/// Rows whose sums stay in registers together.
const ROWS: usize = 4;

/// Multiplications that take as long as a step of [`Pace`].
const PER_STEP: u64 = 4;

/// Adds the product of two matrices, of `rows` by `depth` and `depth` by `columns`, to sums.
///
/// # Errors
/// As [`Pace::spend`].
pub(super) fn add_product<T: Factor>(
    a: &[T],
    b: &[T],
    [rows, depth, columns]: [usize; 3],
    sums: &mut [T],
    pace: &mut Pace,
) -> TractResult<()> {
    let mut panel = vec![[T::default(); PANEL]; depth];
    for first in (0..columns).step_by(PANEL) {
        pace.spend(((rows + 1) * depth * PANEL) as u64 / PER_STEP + 1)?;
        let width = PANEL.min(columns - first);
        for (term, numbers) in panel.iter_mut().enumerate() {
            numbers[..width].copy_from_slice(&b[term * columns + first..][..width]);
        }
        pulp::Arch::new().dispatch(Panel {
            a,
            panel: &panel,
            sums,
            rows,
            columns,
            first,
            width,
        });
    }
    Ok(())
}

/// All rows times some columns.
struct Panel<'p, T> {
    a: &'p [T],
    panel: &'p [[T; PANEL]],
    sums: &'p mut [T],
    rows: usize,
    columns: usize,
    /// Of the columns.
    first: usize,
    width: usize,
}

impl<T: Factor> pulp::WithSimd for Panel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        // Processors with such vectors multiply and add at once.
        match S::F32_LANES >= 8 {
            true => self.add::<true>(),
            false => self.add::<false>(),
        }
    }
}

impl<T: Factor> Panel<'_, T> {
    #[inline(always)]
    fn add<const IS_FUSED: bool>(mut self) {
        let mut row = 0;
        while row + ROWS <= self.rows {
            self.add_rows::<IS_FUSED, ROWS>(row);
            row += ROWS;
        }
        while row < self.rows {
            self.add_rows::<IS_FUSED, 1>(row);
            row += 1;
        }
    }

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn add_rows<const IS_FUSED: bool, const COUNT: usize>(&mut self, first_row: usize) {
        let depth = self.panel.len();
        let rows: [&[T]; COUNT] = std::array::from_fn(|row| &self.a[(first_row + row) * depth..][..depth]);
        let mut sums = [[T::default(); PANEL]; COUNT];
        for (term, numbers) in self.panel.iter().enumerate() {
            for row in 0..COUNT {
                let factor = rows[row][term];
                for column in 0..PANEL {
                    sums[row][column] = sums[row][column].plus::<IS_FUSED>(factor, numbers[column]);
                }
            }
        }
        for (row, found) in sums.iter().enumerate() {
            let to = &mut self.sums[(first_row + row) * self.columns + self.first..][..self.width];
            to.iter_mut()
                .zip(found)
                .for_each(|(to, found)| *to = to.sum(*found));
        }
    }
}

/// Turns a matrix of `rows` rows, which become columns.
pub(super) fn turned<T: Copy + Default>(rows: usize, matrix: &[T], pace: &mut Pace) -> TractResult<Vec<T>> {
    /// Rows at a time: as many numbers as stand in what is written at once.
    const TOGETHER: usize = 16;
    let columns = matrix.len() / rows.max(1);
    let mut made = vec![T::default(); matrix.len()];
    for first in (0..rows).step_by(TOGETHER) {
        let end = rows.min(first + TOGETHER);
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
    use crate::cancelling::{Cancelled, while_cancelled};

    fn check<T: Factor + PartialEq>(of: fn(usize) -> T) {
        for rows in [1, 3, 4, 9] {
            for depth in [0, 1, 5, 30] {
                for columns in [1, 7, 8, 17] {
                    let a: Vec<T> = (0..rows * depth).map(of).collect();
                    let b: Vec<T> = (0..depth * columns).map(|at| of(3 * at + 1)).collect();
                    let mut sums: Vec<T> = (0..rows * columns).map(of).collect();
                    let expected: Vec<T> = (0..rows * columns)
                        .map(|at| {
                            let (row, column) = (at / columns, at % columns);
                            (0..depth).fold(of(at), |sum, term| {
                                sum.plus::<false>(a[row * depth + term], b[term * columns + column])
                            })
                        })
                        .collect();
                    add_product(&a, &b, [rows, depth, columns], &mut sums, &mut Pace::default()).unwrap();
                    assert!(sums == expected, "{rows}, {depth}, {columns}");
                }
            }
        }
    }

    #[test]
    fn products_are_those_of_plain_loops_for_all_types() {
        check::<f64>(|at| (at * 7919 % 17) as f64 - 8.0);
        check::<f32>(|at| (at * 7919 % 17) as f32 - 8.0);
        check::<i32>(|at| (at as i32).wrapping_mul(0x7654_3210));
        check::<u32>(|at| (at as u32).wrapping_mul(0x7654_3210));
        check::<i64>(|at| (at as i64).wrapping_mul(0x7654_3210_0123_4567));
        check::<u64>(|at| (at as u64).wrapping_mul(0x7654_3210_0123_4567));
    }

    #[test]
    fn long_products_end_with_their_request() {
        let (a, b) = (vec![1.0f64; 1 << 14], vec![1.0f64; 1 << 14]);
        let mut sums = vec![0.0; 1 << 14];
        let sizes = [1 << 7, 1 << 7, 1 << 7];
        let ended = while_cancelled(|| add_product(&a, &b, sizes, &mut sums, &mut Pace::default()));
        assert!(ended.unwrap_err().is::<Cancelled>());
    }

    #[test]
    fn rows_become_columns() {
        let matrix: Vec<usize> = (0..37 * 5).collect();
        let found = turned(37, &matrix, &mut Pace::default()).unwrap();
        for (at, number) in found.into_iter().enumerate() {
            assert_eq!(number, at % 37 * 5 + at / 37);
        }
    }
}
