//! Microkernel of products whose second factor is packed. It reads the rows of the first factor where they
//! are, and writes sums to the product without a buffer.

use std::ops::Range;

use crate::{
    microkernel::{GROUP, PANEL},
    prefetch::prefetch,
};

/// The row count up to which a product is limited by reading the second factor from memory. Tiles of more rows
/// also prefetch.
pub(crate) const FEW: usize = 4;

/// The destination of a product.
pub(crate) trait Lines {
    /// Returns the elements of row `row` in `columns`. The range is not empty.
    fn line(&mut self, row: usize, columns: Range<usize>) -> &mut [f32];
}

/// The product of all rows of a matrix with a panel, for a range of terms.
pub(crate) struct PanelProduct<'p, L> {
    /// The first factor: rows of `depth` elements.
    pub(crate) a: &'p [f32],
    pub(crate) depth: usize,
    /// The terms to add. The first range starts the sums; later ranges add to the sums in `sums`.
    pub(crate) terms: Range<usize>,
    /// Up to [`PANEL`] columns of the second factor: groups of [`GROUP`] columns, each with `depth` rows.
    pub(crate) panel: &'p [f32],
    /// The columns of the product that belong to the panel. The last group can have fewer than [`GROUP`].
    pub(crate) columns: Range<usize>,
    pub(crate) sums: &'p mut L,
    /// The panel to prefetch meanwhile; empty for none.
    pub(crate) next: &'p [f32],
}

impl<L: Lines> PanelProduct<'_, L> {
    pub(crate) fn run(self) {
        pulp::Arch::new().dispatch(self);
    }

    /// Multiplies all rows by `VECTORS` vectors, which are whole groups from the group `group` on. Rows are
    /// the inner loop, so that these groups stay in the L1 cache.
    #[inline(always)]
    fn rows<S: pulp::Simd, const VECTORS: usize>(&mut self, simd: S, group: usize) {
        let rows = self.a.len() / self.depth;
        // The sums and the factors of a tile fit into AVX-512's and NEON's 32 registers, or AVX2's 16.
        let is_narrow = VECTORS * S::F32_LANES <= GROUP;
        let mut row = 0;
        while row < rows {
            let left = rows - row;
            row += if S::F32_LANES >= 16 && left >= 8 {
                self.tile::<S, 8, VECTORS>(simd, row, group)
            } else if S::F32_LANES < 16 && is_narrow && left >= 6 {
                self.tile::<S, 6, VECTORS>(simd, row, group)
            } else if (S::F32_LANES >= 16 || is_narrow) && left >= FEW {
                self.tile::<S, FEW, VECTORS>(simd, row, group)
            } else if left >= 2 {
                self.tile::<S, 2, VECTORS>(simd, row, group)
            } else {
                self.tile::<S, 1, VECTORS>(simd, row, group)
            };
        }
    }

    /// Adds the terms of `ROWS` rows and `VECTORS` vectors, and returns `ROWS`.
    #[inline(always)]
    #[allow(
        clippy::manual_memcpy,
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn tile<S: pulp::Simd, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        row: usize,
        group: usize,
    ) -> usize {
        let (count, in_group) = (self.terms.len(), GROUP / S::F32_LANES);
        let rows: [&[f32]; ROWS] =
            std::array::from_fn(|at| &self.a[(row + at) * self.depth + self.terms.start..][..count]);
        let (lines, _) = self.panel.as_chunks::<GROUP>();
        let groups: [&[[f32; GROUP]]; VECTORS] = std::array::from_fn(|vector| {
            &lines[(group + vector / in_group) * self.depth + self.terms.start..][..count]
        });
        let first = self.columns.start + group * GROUP;
        let columns = first..self.columns.end.min(first + VECTORS * S::F32_LANES);
        let is_whole = columns.len() == VECTORS * S::F32_LANES;
        let mut registers = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        if self.terms.start > 0 && is_whole {
            for at in 0..ROWS {
                let (vectors, _) = S::as_simd_f32s(self.sums.line(row + at, columns.clone()));
                let vectors = &vectors[..VECTORS];
                for vector in 0..VECTORS {
                    registers[at][vector] = vectors[vector];
                }
            }
        } else if self.terms.start > 0 {
            let mut lines = [[0.0; PANEL]; ROWS];
            self.load(row, &columns, &mut lines);
            for at in 0..ROWS {
                let (vectors, _) = S::as_simd_f32s(&lines[at]);
                for vector in 0..VECTORS {
                    registers[at][vector] = vectors[vector];
                }
            }
        }
        // Each full tile prefetches an equal share of the next panel, spread over its terms.
        let tiles = (self.a.len() / self.depth / ROWS).max(1);
        let step = self.next.len() / self.depth / tiles;
        let share = (self.terms.start * tiles + row / ROWS * count) * step;
        for term in 0..count {
            if ROWS > FEW {
                prefetch(self.next, share + term * step);
            }
            let mut values = [simd.splat_f32s(0.0); VECTORS];
            for vector in 0..VECTORS {
                values[vector] = S::as_simd_f32s(&groups[vector][term]).0[vector % in_group];
            }
            for at in 0..ROWS {
                let factor = simd.splat_f32s(rows[at][term]);
                for vector in 0..VECTORS {
                    registers[at][vector] =
                        simd.mul_add_e_f32s(factor, values[vector], registers[at][vector]);
                }
            }
        }
        if is_whole {
            for at in 0..ROWS {
                let (vectors, _) = S::as_mut_simd_f32s(self.sums.line(row + at, columns.clone()));
                let vectors = &mut vectors[..VECTORS];
                for vector in 0..VECTORS {
                    vectors[vector] = registers[at][vector];
                }
            }
        } else {
            let mut lines = [[0.0; PANEL]; ROWS];
            for at in 0..ROWS {
                let (vectors, _) = S::as_mut_simd_f32s(&mut lines[at]);
                for vector in 0..VECTORS {
                    vectors[vector] = registers[at][vector];
                }
            }
            self.store(row, &columns, &lines);
        }
        ROWS
    }

    /// Copies the sums of `columns` to the beginning of each of `lines`.
    #[inline(never)]
    fn load(&mut self, row: usize, columns: &Range<usize>, lines: &mut [[f32; PANEL]]) {
        for (at, line) in lines.iter_mut().enumerate() {
            line[..columns.len()].copy_from_slice(self.sums.line(row + at, columns.clone()));
        }
    }

    /// Copies the beginning of each of `lines` to the sums of `columns`.
    #[inline(never)]
    fn store(&mut self, row: usize, columns: &Range<usize>, lines: &[[f32; PANEL]]) {
        for (at, line) in lines.iter().enumerate() {
            let sums = self.sums.line(row + at, columns.clone());
            sums.copy_from_slice(&line[..columns.len()]);
        }
    }
}

impl<L: Lines> pulp::WithSimd for PanelProduct<'_, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        let groups = self.columns.len().div_ceil(GROUP);
        let most = match self.a.len() / self.depth {
            _ if S::F32_LANES >= 16 => 3,
            1 => 3,
            rows if rows < FEW => 2,
            _ => 1,
        };
        let mut group = 0;
        while group < groups {
            let taken = most.min(groups - group);
            match (S::F32_LANES, taken) {
                (16.., 1) => self.rows::<S, 1>(simd, group),
                (16.., 2) => self.rows::<S, 2>(simd, group),
                (16.., _) => self.rows::<S, 3>(simd, group),
                (8.., 1) => self.rows::<S, 2>(simd, group),
                (8.., 2) => self.rows::<S, 4>(simd, group),
                (8.., _) => self.rows::<S, 6>(simd, group),
                (4.., 1) => self.rows::<S, 4>(simd, group),
                (4.., 2) => self.rows::<S, 8>(simd, group),
                (4.., _) => self.rows::<S, 12>(simd, group),
                (2.., 1) => self.rows::<S, 8>(simd, group),
                (2.., 2) => self.rows::<S, 16>(simd, group),
                (2.., _) => self.rows::<S, 24>(simd, group),
                (_, 1) => self.rows::<S, 16>(simd, group),
                (_, 2) => self.rows::<S, 32>(simd, group),
                (_, _) => self.rows::<S, 48>(simd, group),
            }
            group += taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use pulp::Simd;

    use super::*;
    use crate::{Order, PackedMatrix};

    struct Whole<'c>(&'c mut [f32], usize);

    impl Lines for Whole<'_> {
        fn line(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
            &mut self.0[row * self.1..][columns]
        }
    }

    /// Multiplies in two ranges of terms, and compares with plain loops over small integers, whose sums are
    /// exact.
    fn check<S: Simd>(simd: S) {
        let depth = 5;
        for rows in 1..=17 {
            for columns in 1..=PANEL {
                let number = |at: usize| (at * 7919 % 17) as f32 - 8.0;
                let a: Vec<f32> = (0..rows * depth).map(number).collect();
                let b: Vec<f32> = (0..depth * columns).map(|at| number(at + 3)).collect();
                let packed = PackedMatrix::new(&b, [depth, columns], Order::RowMajor);
                let mut found = vec![f32::NAN; rows * columns];
                for terms in [0..3, 3..depth] {
                    simd.vectorize(PanelProduct {
                        a: &a,
                        depth,
                        terms,
                        panel: packed.panel(0, columns.next_multiple_of(GROUP)),
                        columns: 0..columns,
                        sums: &mut Whole(&mut found, columns),
                        next: &b,
                    });
                }
                for (at, found) in found.into_iter().enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let terms = (0..depth).map(|term| a[row * depth + term] * b[term * columns + column]);
                    assert_eq!(found, terms.sum::<f32>(), "{rows} x {columns}: {row}, {column}");
                }
            }
        }
    }

    #[test]
    fn tiles_of_all_sizes_and_instruction_sets_have_the_right_sums() {
        check(pulp::Scalar::new());
        #[cfg(target_arch = "x86_64")]
        {
            pulp::x86::V3::try_new().into_iter().for_each(check);
            pulp::x86::V4::try_new().into_iter().for_each(check);
        }
        #[cfg(target_arch = "aarch64")]
        pulp::aarch64::Neon::try_new().into_iter().for_each(check);
    }
}
