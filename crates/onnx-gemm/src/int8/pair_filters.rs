//! Integer convolution by AVX2's `vpmaddwd`. The bytes of a quad are widened to 16 bits in registers, because
//! `vpmaddubsw` saturates.

use pulp::{NullaryFnOnce, x86::V3};

use crate::int8::filter_block::{Block, Output, Quad, TERMS};

/// The number of positions in a vector.
const WIDTH: usize = 8;

/// Returns filters in the order in which the kernel reads them: the even terms of a quad, then the odd ones.
pub(super) fn packed(filters: &[[i16; TERMS]]) -> Vec<[i16; TERMS]> {
    filters.iter().map(|&[a, b, c, d]| [a, c, b, d]).collect()
}

/// Writes the sums of a block.
pub(super) fn compute(simd: V3, block: &Block<'_, i16>, output: &mut Output<'_>) {
    simd.vectorize(Compute { simd, block, output });
}

struct Compute<'c, 'o> {
    simd: V3,
    block: &'c Block<'c, i16>,
    output: &'c mut Output<'o>,
}

impl NullaryFnOnce for Compute<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { simd, block, output } = self;
        let mut row = block.rows.start;
        while row < block.rows.end {
            let left = block.rows.end - row;
            // A tile of 4 rows by 2 vectors takes 8 of the 16 registers.
            for position in (0..block.positions).step_by(2 * WIDTH) {
                match left {
                    1 => tile::<1>(simd, block, row, position, output),
                    2 | 3 => tile::<2>(simd, block, row, position, output),
                    _ => tile::<4>(simd, block, row, position, output),
                }
            }
            row += match left {
                1 => 1,
                2 | 3 => 2,
                _ => 4,
            };
        }
    }
}

#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn tile<const ROWS: usize>(
    simd: V3,
    block: &Block<'_, i16>,
    row: usize,
    position: usize,
    output: &mut Output<'_>,
) {
    let (avx, avx2) = (simd.avx, simd.avx2);
    let even = avx._mm256_set1_epi16(0xff);
    let mut sums: [[[i32; WIDTH]; 2]; ROWS] = std::array::from_fn(|at| [[block.first[row + at]; WIDTH]; 2]);
    for (filters, &offset) in block.filters.chunks_exact(block.height).zip(block.offsets) {
        let (vectors, _) = block.image[offset + position..][..2 * WIDTH].as_chunks::<WIDTH>();
        let halves: [[_; 2]; 2] = std::array::from_fn(|half| {
            let quads: [Quad; WIDTH] = vectors[half];
            let quads = pulp::cast(quads);
            [
                avx2._mm256_and_si256(quads, even),
                avx2._mm256_srli_epi16::<8>(quads),
            ]
        });
        let filters = &filters[row..][..ROWS];
        for at in 0..ROWS {
            let [a, c, b, d] = filters[at];
            let pairs = [pulp::cast::<_, i32>([a, c]), pulp::cast([b, d])];
            for half in 0..2 {
                let mut sum = pulp::cast(sums[at][half]);
                for parity in 0..2 {
                    let pair = avx._mm256_set1_epi32(pairs[parity]);
                    let products = avx2._mm256_madd_epi16(halves[half][parity], pair);
                    sum = avx2._mm256_add_epi32(sum, products);
                }
                sums[at][half] = pulp::cast(sum);
            }
        }
    }
    for (at, sums) in sums.iter().enumerate() {
        let to = &mut output.sums[(row + at) * output.stride + position..][..2 * WIDTH];
        to.copy_from_slice(sums.as_flattened());
    }
}
