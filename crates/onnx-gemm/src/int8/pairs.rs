//! Integer products by AVX2's `vpmaddwd`, which multiplies two pairs of `i16` and adds both products.

use std::ops::Range;

use pulp::{NullaryFnOnce, x86::V3};

/// The column count of a tile.
const COLUMNS: usize = 16;

/// The maximum row count of a tile. With 2 vectors per row, 12 of the 16 registers hold sums.
pub(super) const ROWS: usize = 6;

/// Two terms of each of [`COLUMNS`] columns. The two terms of a column are adjacent.
type Pairs<T> = [[T; COLUMNS]; 2];

/// The sums of one row for half the columns of a tile.
type Sums = [i32; COLUMNS / 2];

/// The sums of all rows and columns of a tile.
type Tile<const HEIGHT: usize> = [[Sums; 2]; HEIGHT];

/// A right-hand matrix in panels of [`COLUMNS`] columns. Two terms of a column are adjacent; terms and
/// columns are padded with zeros.
#[derive(Debug)]
pub(super) struct PackedPairs {
    blocks: Blocks,
    depth: usize,
}

/// The elements of a matrix. The product of one row with a large matrix takes as long as reading the matrix,
/// so elements that fit 8 bits are kept in 8 bits, and extended in registers.
#[derive(Debug)]
enum Blocks {
    Narrow(Vec<Pairs<i8>>),
    Wide(Vec<Pairs<i16>>),
}

/// A type of the elements in memory.
trait Stored: Copy + Default {
    /// Returns `number`, which fits this type.
    fn narrow(number: i16) -> Self;

    /// Returns `numbers` as the factors of `vpmaddwd`.
    fn widen(simd: V3, numbers: [Self; COLUMNS]) -> [i16; COLUMNS];
}

impl Stored for i8 {
    #[inline(always)]
    fn narrow(number: i16) -> Self {
        number as i8
    }

    #[inline(always)]
    fn widen(simd: V3, numbers: [Self; COLUMNS]) -> [i16; COLUMNS] {
        pulp::cast(simd.avx2._mm256_cvtepi8_epi16(pulp::cast(numbers)))
    }
}

impl Stored for i16 {
    #[inline(always)]
    fn narrow(number: i16) -> Self {
        number
    }

    #[inline(always)]
    fn widen(_: V3, numbers: [Self; COLUMNS]) -> [i16; COLUMNS] {
        numbers
    }
}

/// Packs a matrix whose elements fit `T`.
fn pack<T: Stored>(matrix: &[i16], depth: usize, columns: usize) -> Vec<Pairs<T>> {
    let pairs = depth.div_ceil(2);
    let mut blocks = vec![[[T::default(); COLUMNS]; 2]; columns.div_ceil(COLUMNS) * pairs];
    for (term, row) in matrix.chunks_exact(columns.max(1)).enumerate() {
        for (block, numbers) in row.chunks(COLUMNS).enumerate() {
            let pair = blocks[block * pairs + term / 2].as_flattened_mut();
            for (column, number) in numbers.iter().enumerate() {
                pair[2 * column + term % 2] = T::narrow(*number);
            }
        }
    }
    blocks
}

impl PackedPairs {
    pub(super) fn new(matrix: &[i16], depth: usize, columns: usize) -> Self {
        let is_narrow = matrix.iter().all(|number| i8::try_from(*number).is_ok());
        let blocks = match is_narrow {
            true => Blocks::Narrow(pack(matrix, depth, columns)),
            false => Blocks::Wide(pack(matrix, depth, columns)),
        };
        Self { blocks, depth }
    }

    /// Returns the size of the matrix in memory, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        match &self.blocks {
            Blocks::Narrow(blocks) => size_of_val(&blocks[..]),
            Blocks::Wide(blocks) => size_of_val(&blocks[..]),
        }
    }

    /// Writes the product of `rows` and the columns `part` of this matrix. `part` starts at a tile; neither
    /// the depth nor `part` may be empty.
    pub(super) fn multiply(&self, simd: V3, rows: &[i16], part: Range<usize>, sums: &mut [i32]) {
        let depth = self.depth;
        let pairs = depth.div_ceil(2);
        let blocks = part.start / COLUMNS * pairs..part.end.div_ceil(COLUMNS) * pairs;
        let columns = part.len();
        match &self.blocks {
            Blocks::Narrow(all) => simd.vectorize(Product {
                simd,
                blocks: &all[blocks],
                depth,
                columns,
                rows,
                sums,
            }),
            Blocks::Wide(all) => simd.vectorize(Product {
                simd,
                blocks: &all[blocks],
                depth,
                columns,
                rows,
                sums,
            }),
        }
    }
}

/// Adds the products of two terms of a row and the same terms of eight columns to `sums`.
#[inline(always)]
fn add(simd: V3, sums: Sums, pair: [i16; 2], factors: [i16; COLUMNS]) -> Sums {
    let pair = simd.avx._mm256_set1_epi32(pulp::cast(pair));
    let products = simd.avx2._mm256_madd_epi16(pair, pulp::cast(factors));
    pulp::cast(simd.avx2._mm256_add_epi32(pulp::cast(sums), products))
}

/// The product of rows and whole panels.
struct Product<'p, T> {
    simd: V3,
    blocks: &'p [Pairs<T>],
    depth: usize,
    columns: usize,
    rows: &'p [i16],
    sums: &'p mut [i32],
}

impl<T: Stored> NullaryFnOnce for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self {
            simd,
            blocks,
            depth,
            columns,
            rows,
            sums,
        } = self;
        let mut factors = Vec::new();
        let (mut rows, mut sums) = (rows, sums);
        while !rows.is_empty() {
            let left = rows.len() / depth;
            let height = match left {
                1 => 1,
                2..4 => 2,
                4..ROWS => 4,
                _ => ROWS,
            };
            let (of_tile, others) = rows.split_at(height * depth);
            let (found, others_found) = sums.split_at_mut(height * columns);
            (rows, sums) = (others, others_found);
            order_by_term(of_tile, depth, &mut factors);
            match height {
                1 => multiply::<T, 1>(simd, &factors, blocks, found),
                2 => multiply::<T, 2>(simd, &factors, blocks, found),
                4 => multiply::<T, 4>(simd, &factors, blocks, found),
                _ => multiply::<T, ROWS>(simd, &factors, blocks, found),
            }
        }
    }
}

/// Replaces `factors` with the pairs of terms of `rows`. The pairs of the same terms are adjacent.
fn order_by_term(rows: &[i16], depth: usize, factors: &mut Vec<[i16; 2]>) {
    let height = rows.len() / depth;
    factors.clear();
    factors.resize(depth.div_ceil(2) * height, [0; 2]);
    for (row, numbers) in rows.chunks_exact(depth).enumerate() {
        let (whole, last) = numbers.as_chunks::<2>();
        for (factors, pair) in factors.chunks_exact_mut(height).zip(whole) {
            factors[row] = *pair;
        }
        if let (Some(factors), [last]) = (factors.chunks_exact_mut(height).last(), last) {
            factors[row] = [*last, 0];
        }
    }
}

/// Writes the product of [`HEIGHT`](Tile) rows and all panels.
#[inline(always)]
fn multiply<T: Stored, const HEIGHT: usize>(
    simd: V3,
    factors: &[[i16; 2]],
    blocks: &[Pairs<T>],
    sums: &mut [i32],
) {
    let (factors, _) = factors.as_chunks::<HEIGHT>();
    let columns = sums.len() / HEIGHT;
    for (block, numbers) in blocks.chunks_exact(factors.len()).enumerate() {
        let tile = tile(simd, factors, numbers);
        let first = block * COLUMNS;
        let width = COLUMNS.min(columns - first);
        for (row, tile) in tile.iter().enumerate() {
            let tile = &tile.as_flattened()[..width];
            sums[row * columns + first..][..width].copy_from_slice(tile);
        }
    }
}

/// Returns the product of `HEIGHT` rows with one panel.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn tile<T: Stored, const HEIGHT: usize>(
    simd: V3,
    factors: &[[[i16; 2]; HEIGHT]],
    numbers: &[Pairs<T>],
) -> Tile<HEIGHT> {
    let mut sums = [[[0; COLUMNS / 2]; 2]; HEIGHT];
    for (factors, numbers) in factors.iter().zip(numbers) {
        let numbers = [T::widen(simd, numbers[0]), T::widen(simd, numbers[1])];
        for row in 0..HEIGHT {
            for half in 0..2 {
                sums[row][half] = add(simd, sums[row][half], factors[row], numbers[half]);
            }
        }
    }
    sums
}
