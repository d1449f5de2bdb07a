//! Matrix products of `f64` and integers, which need no packed layout.

use crate::{Pace, shapes::expect_product};

/// An element type of a matrix: `f32`, `f64`, `i32`, `i64`, `u32` or `u64`. Integers wrap around.
pub trait Number: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// Returns `self + a * b`, rounded once if `IS_FUSED`.
    #[must_use]
    fn add_product<const IS_FUSED: bool>(self, a: Self, b: Self) -> Self;

    /// Returns `self + other`, which wraps around for integers.
    #[must_use]
    fn sum(self, other: Self) -> Self;

    /// Returns `self * other`, which wraps around for integers.
    #[must_use]
    fn times(self, other: Self) -> Self;
}

#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn plainly_multiplied<T: Number, S: pulp::Simd, const COUNT: usize>(
    rows: [&[T]; COUNT],
    panel: &[[T; PANEL]],
) -> [[T; PANEL]; COUNT] {
    let rows = rows.map(|row| &row[..panel.len()]);
    let mut sums = [[T::default(); PANEL]; COUNT];
    for (term, numbers) in panel.iter().enumerate() {
        for row in 0..COUNT {
            let factor = rows[row][term];
            for column in 0..PANEL {
                let sum = sums[row][column];
                // All processors with vectors of at least 8 lanes support fused multiply-add.
                sums[row][column] = match S::F32_LANES >= 8 {
                    true => sum.add_product::<true>(factor, numbers[column]),
                    false => sum.add_product::<false>(factor, numbers[column]),
                };
            }
        }
    }
    sums
}

/// Returns the products of rows with a panel, with vectors: the compiler leaves the sums of `f64` scalar.
#[inline(always)]
#[allow(
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn multiplied_doubles<S: pulp::Simd, const VECTORS: usize, const COUNT: usize>(
    simd: S,
    rows: [&[f64]; COUNT],
    panel: &[[f64; PANEL]],
) -> [[f64; PANEL]; COUNT] {
    let rows = rows.map(|row| &row[..panel.len()]);
    let mut sums = [[simd.splat_f64s(0.0); VECTORS]; COUNT];
    for (term, numbers) in panel.iter().enumerate() {
        let (numbers, _) = S::as_simd_f64s(numbers);
        let numbers = &numbers[..VECTORS];
        for row in 0..COUNT {
            let factor = simd.splat_f64s(rows[row][term]);
            for vector in 0..VECTORS {
                sums[row][vector] = simd.mul_add_e_f64s(factor, numbers[vector], sums[row][vector]);
            }
        }
    }
    let mut made = [[0.0; PANEL]; COUNT];
    for row in 0..COUNT {
        let (vectors, _) = S::as_mut_simd_f64s(&mut made[row]);
        let vectors = &mut vectors[..VECTORS];
        for vector in 0..VECTORS {
            vectors[vector] = sums[row][vector];
        }
    }
    made
}

mod sealed {
    use super::PANEL;

    pub trait Sealed: Sized {
        /// Returns the products of rows with a panel. Each sum has the order of its terms.
        fn multiplied<S: pulp::Simd, const COUNT: usize>(
            simd: S,
            rows: [&[Self]; COUNT],
            panel: &[[Self; PANEL]],
        ) -> [[Self; PANEL]; COUNT];
    }
}

macro_rules! plain_sums {
    ($($T:ty)*) => {
        $(impl sealed::Sealed for $T {
            #[inline(always)]
            fn multiplied<S: pulp::Simd, const COUNT: usize>(
                _: S,
                rows: [&[Self]; COUNT],
                panel: &[[Self; PANEL]],
            ) -> [[Self; PANEL]; COUNT] {
                plainly_multiplied::<Self, S, COUNT>(rows, panel)
            }
        })*
    };
}
plain_sums! { f32 i32 i64 u32 u64 }

macro_rules! real_numbers {
    ($($T:ty)*) => {
        $(impl Number for $T {
            #[inline(always)]
            fn add_product<const IS_FUSED: bool>(self, a: Self, b: Self) -> Self {
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
real_numbers! { f32 f64 }

impl sealed::Sealed for f64 {
    #[inline(always)]
    fn multiplied<S: pulp::Simd, const COUNT: usize>(
        simd: S,
        rows: [&[Self]; COUNT],
        panel: &[[Self; PANEL]],
    ) -> [[Self; PANEL]; COUNT] {
        match S::F64_LANES {
            8.. => multiplied_doubles::<S, 1, COUNT>(simd, rows, panel),
            4.. => multiplied_doubles::<S, 2, COUNT>(simd, rows, panel),
            2.. => multiplied_doubles::<S, 4, COUNT>(simd, rows, panel),
            _ => multiplied_doubles::<S, 8, COUNT>(simd, rows, panel),
        }
    }
}

macro_rules! integers {
    ($($T:ty)*) => {
        $(impl Number for $T {
            #[inline(always)]
            fn add_product<const IS_FUSED: bool>(self, a: Self, b: Self) -> Self {
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
integers! { i32 i64 u32 u64 }

/// The number of columns in a panel. A panel is multiplied by all rows before the next panel.
const PANEL: usize = 8;

/// The number of multiplications in one step of [`Pace`].
const PER_STEP: u64 = 4;

/// Adds the product of two row-major matrices, `a` of `rows` by `depth` and `b` of `depth` by `columns`, to
/// the row-major matrix `c`.
///
/// Each element of the product is summed from the first term to the last, and then added to `c`.
///
/// # Errors
/// Returns the error of [`Pace::spend`].
///
/// # Panics
/// Panics if the length of a slice differs from the size of its matrix.
///
/// ```
/// let mut c = [1_i64, 1];
/// onnx_gemm::add_gemm(&[2, 3], &[10, 20, 30, 40], [1, 2, 2], &mut c, &mut onnx_gemm::Unpaced).unwrap();
/// assert_eq!(c, [111, 161]);
/// ```
pub fn add_gemm<T: Number, P: Pace>(
    a: &[T],
    b: &[T],
    [rows, depth, columns]: [usize; 3],
    c: &mut [T],
    pace: &mut P,
) -> Result<(), P::Stopped> {
    expect_product([a.len(), b.len(), c.len()], [rows, depth, columns]);
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
            c,
            rows,
            columns,
            first,
            width,
        });
    }
    Ok(())
}

/// The product of all rows with one panel of columns.
struct Panel<'p, T> {
    a: &'p [T],
    panel: &'p [[T; PANEL]],
    c: &'p mut [T],
    rows: usize,
    columns: usize,
    /// The first column of the panel.
    first: usize,
    width: usize,
}

impl<T: Number> pulp::WithSimd for Panel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        let mut row = 0;
        while row < self.rows {
            row += match self.rows - row {
                // Eight sums of one vector hide the latency of an addition.
                8.. if S::F64_LANES >= 8 => self.add_rows::<S, 8>(simd, row),
                4.. => self.add_rows::<S, 4>(simd, row),
                _ => self.add_rows::<S, 1>(simd, row),
            };
        }
    }
}

impl<T: Number> Panel<'_, T> {
    /// Adds the product of `COUNT` rows, and returns `COUNT`.
    #[inline(always)]
    fn add_rows<S: pulp::Simd, const COUNT: usize>(&mut self, simd: S, first_row: usize) -> usize {
        let depth = self.panel.len();
        let rows = std::array::from_fn(|row| &self.a[(first_row + row) * depth..][..depth]);
        let sums: [_; COUNT] = T::multiplied(simd, rows, self.panel);
        for (row, found) in sums.iter().enumerate() {
            let to = &mut self.c[(first_row + row) * self.columns + self.first..][..self.width];
            to.iter_mut()
                .zip(found)
                .for_each(|(to, found)| *to = to.sum(*found));
        }
        COUNT
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

    fn check<T: Number + PartialEq>(of: fn(usize) -> T) {
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
                                sum.add_product::<false>(a[row * depth + term], b[term * columns + column])
                            })
                        })
                        .collect();
                    add_gemm(&a, &b, [rows, depth, columns], &mut sums, &mut Unpaced).unwrap();
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
    fn products_end_with_their_pace() {
        let (a, b, mut c) = (vec![1.0f64; 1 << 14], vec![1.0; 1 << 14], vec![0.0; 1 << 14]);
        let mut found = |budget| add_gemm(&a, &b, [1 << 7; 3], &mut c, &mut Budget(budget));
        assert_eq!(found(1 << 20), Ok(()));
        assert_eq!(found(1 << 18), Err(Exhausted));
    }

    #[test]
    #[should_panic(expected = "c of 2 rows and 2 columns has 3 elements")]
    fn matrices_have_all_elements() {
        add_gemm(&[0; 2], &[0; 2], [2, 1, 2], &mut [0; 3], &mut Unpaced).unwrap();
    }
}
