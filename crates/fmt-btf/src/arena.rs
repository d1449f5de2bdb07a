//! Memory for the dimensions of all records.

use crate::layout::{WORD, word};

/// The dimensions of many tensors, in chunks of equal size: growing adds a chunk and copies no dimensions.
#[derive(Debug, Default)]
pub(crate) struct Arena(Vec<Vec<u64>>);

impl Arena {
    /// Number of dimensions per chunk: several times the maximum rank, so that little of a chunk is left
    /// unused.
    const PIECE: usize = 512;
    /// Maximum index size in bytes: positions in the arena, including unused ends of chunks, have 32 bits.
    pub(crate) const LARGEST_INDEX: u64 = 16 << 30;

    /// Stores little-endian dimensions, at most `Shape::MAX_RANK`, and returns the position of the first.
    pub(crate) fn push(&mut self, dims: &[u8]) -> u32 {
        let rank = dims.len() / WORD as usize;
        if rank == 0 {
            return 0;
        }
        if self.0.last().is_none_or(|piece| piece.len() + rank > Self::PIECE) {
            self.0.push(Vec::with_capacity(Self::PIECE));
        }
        let number = self.0.len() - 1;
        let piece = &mut self.0[number];
        let start = number * Self::PIECE + piece.len();
        piece.extend(dims.chunks_exact(WORD as usize).map(word));
        start as u32
    }

    pub(crate) fn get(&self, start: u32, rank: u8) -> &[u64] {
        if rank == 0 {
            return &[];
        }
        let (piece, within) = (start as usize / Self::PIECE, start as usize % Self::PIECE);
        &self.0[piece][within..within + usize::from(rank)]
    }
}
