//! FP32 microkernels. Each computes a tile of a product, whose sums stay in vector registers.

use crate::pack::{BLOCK, copy_line};

/// The column count of a panel. A panel is multiplied by all rows before the next panel, so that it stays in
/// the L1 and L2 caches.
pub(crate) const PANEL: usize = 48;

/// The number of columns in a group. A packed second factor consists of groups, each row-major and
/// contiguous, so that a tile of one group reads consecutive memory.
pub(crate) const GROUP: usize = 16;

/// The number of groups in a panel.
pub(crate) const GROUPS: usize = PANEL / GROUP;

/// The number of terms that are summed before the sums are written back to memory. That many rows of a panel
/// fit into the L2 cache.
pub(crate) const DEPTH: usize = 512;

/// The number of multiplications in one step of [`Pace`](crate::Pace).
pub(crate) const PER_STEP: u64 = 16;

/// A packed left-hand matrix, and the bias of its rows.
pub(crate) struct Rows<'r> {
    /// The elements in the layout that [`pack_rows`](crate::pack_rows) has for more than one row.
    pub(crate) weights: &'r [[f32; BLOCK]],
    /// The initial sums of each block of rows.
    pub(crate) bias: &'r [[f32; BLOCK]],
    pub(crate) terms: usize,
}

impl Rows<'_> {
    /// Adds the products of all rows and the first `columns` columns of a panel to `sums`, whose rows are
    /// `stride` elements apart. Also writes columns up to the end of the last vector. If `part.term` is 0,
    /// the sums start from the bias.
    pub(crate) fn add(&self, part: &Part<'_>, columns: usize, sums: &mut [f32], stride: usize) {
        struct Add<'a>(&'a Rows<'a>, &'a Part<'a>, usize, &'a mut [f32], usize);

        impl pulp::WithSimd for Add<'_> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: pulp::Simd>(self, simd: S) {
                let Self(rows, part, columns, sums, stride) = self;
                rows.add_vectors(simd, part, columns.div_ceil(S::F32_LANES), sums, stride);
            }
        }

        // Detects the instruction set once per panel, in code that callers with different closures share.
        pulp::Arch::new().dispatch(Add(self, part, columns, sums, stride));
    }

    #[inline(always)]
    fn add_vectors<S: pulp::Simd>(
        &self,
        simd: S,
        part: &Part<'_>,
        vectors: usize,
        sums: &mut [f32],
        stride: usize,
    ) {
        let mut vector = 0;
        while vector < vectors {
            let column = vector * S::F32_LANES;
            let left = vectors - vector;
            // With AVX2, a tile has at most two vectors: a third one would leave no register for the next
            // factor.
            vector += match if S::F32_LANES >= 16 { left } else { left.min(2) } {
                1 => self.add_columns::<S, 1>(simd, part, sums, stride, column),
                2 => self.add_columns::<S, 2>(simd, part, sums, stride, column),
                _ => self.add_columns::<S, 3>(simd, part, sums, stride, column),
            };
        }
    }

    /// Adds the products of all rows and `VECTORS` vectors of a panel, starting at `column`, and returns
    /// `VECTORS`. Columns are the outer loop, because these columns of the panel then stay in the L1 cache.
    #[inline(always)]
    fn add_columns<S: pulp::Simd, const VECTORS: usize>(
        &self,
        simd: S,
        part: &Part<'_>,
        sums: &mut [f32],
        stride: usize,
        column: usize,
    ) -> usize {
        let blocks = self.bias.len();
        let rows = |block: usize| BlockRows {
            weights: &self.weights[block * self.terms + part.term..][..part.offsets.len()],
            bias: &self.bias[block],
        };
        let mut block = 0;
        while block < blocks {
            let sums = &mut sums[block * BLOCK * stride..];
            let left = blocks - block;
            block += if S::F32_LANES >= 16 && left >= 2 {
                // A tile of 8 rows by 3 vectors takes 24 of AVX-512's 32 registers.
                part.add::<S, 0, 8, VECTORS>(simd, [rows(block), rows(block + 1)], sums, stride, column);
                2
            } else if left >= 3 {
                // A tile of 6 rows by 2 vectors takes 12 of AVX2's 16 registers.
                let [one, two, three] = [rows(block), rows(block + 1), rows(block + 2)];
                part.add::<S, 0, 6, VECTORS>(simd, [one, two], sums, stride, column);
                let sums = &mut sums[BLOCK * stride..];
                part.add::<S, 2, 6, VECTORS>(simd, [two, three], sums, stride, column);
                3
            } else {
                part.add::<S, 0, BLOCK, VECTORS>(simd, [rows(block); 2], sums, stride, column);
                1
            };
        }
        VECTORS
    }
}

/// The terms of a [`Part`] in a block of rows of the left-hand matrix, and the bias of these rows.
#[derive(Clone, Copy)]
struct BlockRows<'r> {
    weights: &'r [[f32; BLOCK]],
    bias: &'r [f32; BLOCK],
}

/// Copies the rows of a panel into `panel`, which consists of [`GROUPS`] groups of at least as many rows.
/// Elements past the end of `values` are left unchanged.
pub(crate) fn copy_panel(values: &[f32], offsets: &[usize], panel: &mut [[f32; GROUP]]) {
    let (first, rest) = panel.split_at_mut(panel.len() / GROUPS);
    let (second, third) = rest.split_at_mut(first.len());
    let groups = first.iter_mut().zip(second).zip(third);
    for (offset, ((first, second), third)) in offsets.iter().zip(groups) {
        let from = &values[*offset..];
        let to = [first, second, third];
        match from.first_chunk::<PANEL>() {
            Some(from) => {
                let from = from.as_chunks::<GROUP>().0;
                to.into_iter().zip(from).for_each(|(to, from)| *to = *from);
            }
            None => {
                let from = from.chunks(GROUP);
                to.into_iter()
                    .zip(from)
                    .for_each(|(to, from)| copy_line(from, to));
            }
        }
    }
}

/// A range of consecutive terms of a product, with the corresponding rows of the right-hand matrix.
pub(crate) struct Part<'p> {
    /// The index of the first term of the range.
    pub(crate) term: usize,
    pub(crate) values: &'p [f32],
    /// The index in `values` of each term's row.
    pub(crate) offsets: &'p [usize],
    /// The distance between the groups of a row: [`GROUP`] if its columns are contiguous.
    pub(crate) stride: usize,
}

impl Part<'_> {
    /// Adds the product of `ROWS` rows and `VECTORS` vectors of a panel. The rows start at index `FIRST` of
    /// two adjacent blocks; `sums` begins with the first block, and its rows are `stride` elements apart.
    #[inline(always)]
    #[allow(
        clippy::manual_memcpy,
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn add<S: pulp::Simd, const FIRST: usize, const ROWS: usize, const VECTORS: usize>(
        &self,
        simd: S,
        blocks: [BlockRows<'_>; 2],
        sums: &mut [f32],
        stride: usize,
        column: usize,
    ) {
        let width = VECTORS * S::F32_LANES;
        let weights = blocks.map(|block| &block.weights[..self.offsets.len()]);
        let starts: [usize; VECTORS] = std::array::from_fn(|vector| {
            let column = column + vector * S::F32_LANES;
            column / GROUP * self.stride + column % GROUP
        });
        let mut registers = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            let at = FIRST + row;
            if self.term == 0 {
                registers[row] = [simd.splat_f32s(blocks[at / BLOCK].bias[at % BLOCK]); VECTORS];
                continue;
            }
            let at = at * stride + column;
            let (vectors, _) = S::as_simd_f32s(&sums[at..at + width]);
            for vector in 0..VECTORS {
                registers[row][vector] = vectors[vector];
            }
        }
        for term in 0..self.offsets.len() {
            let mut values = [simd.splat_f32s(0.0); VECTORS];
            if width <= GROUP {
                let at = self.offsets[term] + starts[0];
                let (vectors, _) = S::as_simd_f32s(&self.values[at..at + width]);
                for vector in 0..VECTORS {
                    values[vector] = vectors[vector];
                }
            } else {
                for vector in 0..VECTORS {
                    let at = self.offsets[term] + starts[vector];
                    values[vector] = S::as_simd_f32s(&self.values[at..at + S::F32_LANES]).0[0];
                }
            }
            for row in 0..ROWS {
                let at = FIRST + row;
                let weight = simd.splat_f32s(weights[at / BLOCK][term][at % BLOCK]);
                for vector in 0..VECTORS {
                    registers[row][vector] =
                        simd.mul_add_e_f32s(weight, values[vector], registers[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            let at = (FIRST + row) * stride + column;
            let (vectors, _) = S::as_mut_simd_f32s(&mut sums[at..at + width]);
            for vector in 0..VECTORS {
                vectors[vector] = registers[row][vector];
            }
        }
    }
}

/// Returns the instruction sets of this processor for which kernels are compiled.
#[cfg(test)]
pub(crate) fn architectures() -> Vec<pulp::Arch> {
    let mut found = vec![pulp::Arch::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        found.extend(pulp::x86::V3::try_new().map(pulp::Arch::V3));
        found.extend(pulp::x86::V4::try_new().map(pulp::Arch::V4));
    }
    #[cfg(target_arch = "aarch64")]
    found.extend(pulp::aarch64::Neon::try_new().map(pulp::Arch::Neon));
    found
}
