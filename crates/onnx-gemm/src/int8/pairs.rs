//! Integer products by AVX2's `vpmaddwd`, which multiplies two pairs of `i16` and adds both products.

use std::ops::Range;

use pulp::{NullaryFnOnce, x86::V3};

/// The column count of a tile.
const COLUMNS: usize = 16;

/// The row count of a tile.
const ROWS: usize = 4;

/// Two terms of each of [`COLUMNS`] columns. The two terms of a column are adjacent.
type Pairs = [[i16; COLUMNS]; 2];

/// The sums of one row for half the columns of a tile.
type Sums = [i32; COLUMNS / 2];

/// The sums of all rows and columns of a tile.
type Tile = [[Sums; 2]; ROWS];

/// A right-hand matrix in panels of [`COLUMNS`] columns. Two terms of a column are adjacent; terms and
/// columns are padded with zeros.
#[derive(Debug)]
pub(super) struct PackedPairs {
    blocks: Vec<Pairs>,
    depth: usize,
}

impl PackedPairs {
    pub(super) fn new(matrix: &[i16], depth: usize, columns: usize) -> Self {
        let pairs = depth.div_ceil(2);
        let mut blocks = vec![[[0; COLUMNS]; 2]; columns.div_ceil(COLUMNS) * pairs];
        for (term, row) in matrix.chunks_exact(columns.max(1)).enumerate() {
            for (block, numbers) in row.chunks(COLUMNS).enumerate() {
                let pair = blocks[block * pairs + term / 2].as_flattened_mut();
                for (column, number) in numbers.iter().enumerate() {
                    pair[2 * column + term % 2] = *number;
                }
            }
        }
        Self { blocks, depth }
    }

    /// Returns the size of the matrix in memory, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.blocks[..])
    }

    /// Writes the product of `rows` and the columns `part` of this matrix. `part` starts at a tile; neither
    /// the depth nor `part` may be empty.
    pub(super) fn multiply(&self, simd: V3, rows: &[i16], part: Range<usize>, sums: &mut [i32]) {
        simd.vectorize(Product {
            simd,
            packed: self,
            rows,
            part,
            sums,
        });
    }
}

/// Adds the products of two terms of a row and the same terms of eight columns to `sums`.
#[inline(always)]
fn add(simd: V3, sums: Sums, pair: [i16; 2], factors: [i16; COLUMNS]) -> Sums {
    let pair = simd.avx._mm256_set1_epi32(pulp::cast(pair));
    let products = simd.avx2._mm256_madd_epi16(pair, pulp::cast(factors));
    pulp::cast(simd.avx2._mm256_add_epi32(pulp::cast(sums), products))
}

struct Product<'p> {
    simd: V3,
    packed: &'p PackedPairs,
    rows: &'p [i16],
    part: Range<usize>,
    sums: &'p mut [i32],
}

impl NullaryFnOnce for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.run();
    }
}

impl Product<'_> {
    #[inline(always)]
    fn run(self) {
        let PackedPairs { blocks, depth } = self.packed;
        let (depth, columns) = (*depth, self.part.len());
        let pairs = depth.div_ceil(2);
        let blocks = &blocks[self.part.start / COLUMNS * pairs..];
        let blocks = &blocks[..columns.div_ceil(COLUMNS) * pairs];
        let mut factors = vec![[[0i16; 2]; ROWS]; pairs];
        let lines = self.rows.chunks(ROWS * depth);
        for (rows, sums) in lines.zip(self.sums.chunks_mut(ROWS * columns)) {
            let count = rows.len() / depth;
            for (row, numbers) in rows.chunks_exact(depth).enumerate() {
                let (whole, last) = numbers.as_chunks::<2>();
                for (factors, pair) in factors.iter_mut().zip(whole) {
                    factors[row] = *pair;
                }
                if let (Some(factors), [last]) = (factors.last_mut(), last) {
                    factors[row] = [*last, 0];
                }
            }
            for (block, numbers) in blocks.chunks_exact(pairs).enumerate() {
                let tile = tile(self.simd, &factors, numbers);
                let first = block * COLUMNS;
                let width = COLUMNS.min(columns - first);
                for (row, tile) in tile.iter().take(count).enumerate() {
                    let tile = &tile.as_flattened()[..width];
                    sums[row * columns + first..][..width].copy_from_slice(tile);
                }
            }
        }
    }
}

/// Returns the product of [`ROWS`] rows with one panel.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn tile(simd: V3, factors: &[[[i16; 2]; ROWS]], numbers: &[Pairs]) -> Tile {
    let mut sums = [[[0; COLUMNS / 2]; 2]; ROWS];
    for (factors, numbers) in factors.iter().zip(numbers) {
        for row in 0..ROWS {
            for half in 0..2 {
                sums[row][half] = add(simd, sums[row][half], factors[row], numbers[half]);
            }
        }
    }
    sums
}
