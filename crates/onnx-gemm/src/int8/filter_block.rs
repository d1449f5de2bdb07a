//! What the kernels of 8-bit filters read and write.

use std::ops::Range;

/// The number of terms that are adjacent in an image: those of one VNNI instruction.
pub(super) const TERMS: usize = 4;

/// Four terms of an image: unsigned bytes, whose zero point is the one of [`Windows`](crate::Windows).
pub type Quad = [u8; TERMS];

/// The number of positions that a kernel reads at once; see [`Windows::slack`](crate::Windows::slack).
pub(super) const LANES: usize = 16;

/// The maximum number of rows that are computed together.
pub(super) const HEIGHT: usize = 8;

/// The number of sums in a tile, for which 3 and 4 vectors are whole parts of its rows.
pub(super) const TILE: usize = HEIGHT * 12 * LANES;

/// The packed filters of a block of rows, and the tile for their sums.
pub(super) struct Block<'b, T> {
    /// For each step, the terms of all rows of the block.
    pub(super) filters: &'b [[T; TERMS]],
    pub(super) height: usize,
    /// The rows of the block that are computed.
    pub(super) rows: Range<usize>,
    pub(super) offsets: &'b [usize],
    /// The quads from the tile's first position on.
    pub(super) image: &'b [Quad],
    /// The number of positions, a multiple of [`LANES`].
    pub(super) positions: usize,
    /// The initial sum of each row.
    pub(super) first: &'b [i32; HEIGHT],
}

/// Where a kernel writes its sums.
pub(super) struct Output<'o> {
    pub(super) sums: &'o mut [i32; TILE],
    /// The distance of two rows.
    pub(super) stride: usize,
}
