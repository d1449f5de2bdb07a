//! Integer convolution in portable code, which the compiler vectorizes.

use crate::int8::filter_block::{Block, LANES, Output, Quad, TERMS};

/// The number of positions whose sums are in registers.
const WIDTH: usize = 8;

/// Writes the sums of a block.
pub(super) fn compute(block: &Block<'_, i16>, output: &mut Output<'_>) {
    let mut row = block.rows.start;
    while row < block.rows.end {
        for position in (0..block.positions).step_by(WIDTH) {
            match block.rows.end - row {
                1 => tile::<1>(block, row, position, output),
                2 | 3 => tile::<2>(block, row, position, output),
                _ => tile::<4>(block, row, position, output),
            }
        }
        row += match block.rows.end - row {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
    }
}

#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn tile<const ROWS: usize>(block: &Block<'_, i16>, row: usize, position: usize, output: &mut Output<'_>) {
    const { assert!(LANES.is_multiple_of(WIDTH)) }
    let mut sums: [[i32; WIDTH]; ROWS] = std::array::from_fn(|at| [block.first[row + at]; WIDTH]);
    for (filters, &offset) in block.filters.chunks_exact(block.height).zip(block.offsets) {
        let Some(quads) = block.image[offset + position..].first_chunk::<WIDTH>() else {
            panic!("offset {offset} is out of range of the image");
        };
        let terms: [[i16; WIDTH]; TERMS] =
            std::array::from_fn(|term| quads.map(|quad: Quad| i16::from(quad[term])));
        for at in 0..ROWS {
            let filter = filters[row + at];
            for term in 0..TERMS {
                for lane in 0..WIDTH {
                    let product = i32::from(terms[term][lane]) * i32::from(filter[term]);
                    sums[at][lane] = sums[at][lane].wrapping_add(product);
                }
            }
        }
    }
    for (at, sums) in sums.iter().enumerate() {
        output.sums[(row + at) * output.stride + position..][..WIDTH].copy_from_slice(sums);
    }
}
