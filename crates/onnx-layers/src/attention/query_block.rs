//! The scores of a block of queries, and the sums of values that they weight.

use std::ops::Range;

use onnx_gemm::{Order, PackedMatrix, gemm, gemm_nt};
use onnx_tensor::prelude::*;

use crate::{
    attention::{
        block_sizes::{FEWEST_ROWS, ask_for_buffers, block_rows, packed_len},
        score_mask::{LEAST, Mask},
    },
    norm::softmax,
};
use onnx_tensor::cancelling::{PART, Pace};

/// Buffers for the scores of a block of queries of one head.
pub(crate) struct QueryBlock<'k> {
    pub(crate) scores: Vec<f32>,
    /// Maximum number of queries per block.
    pub(crate) rows: usize,
    total: usize,
    width: usize,
    depth: usize,
    /// Whether the queries of a head are enough to pack its keys and values.
    packs: bool,
    /// The keys and values of the head, and its index.
    keys: &'k [f32],
    values: &'k [f32],
    head: Option<usize>,
    /// The same, if they are packed.
    packed_keys: PackedMatrix,
    packed_values: PackedMatrix,
    scaled: Vec<f32>,
    pub(crate) pace: Pace,
}

/// Returns the number of elements of the packed keys and values of a head; `None` if they are not packed.
fn packed(rows: usize, [depth, total, width]: [usize; 3]) -> Option<usize> {
    packed_len([depth, total, width]).filter(|_| rows >= FEWEST_ROWS)
}

/// Reserves memory for the buffers of `heads` heads, each with `rows` queries, on all threads.
pub(crate) fn ask(heads: usize, rows: usize, [depth, total, width]: [usize; 3]) -> Result<()> {
    let block = block_rows(rows, total) * (total + depth);
    ask_for_buffers(heads, block + packed(rows, [depth, total, width]).unwrap_or(0))
}

impl<'k> QueryBlock<'k> {
    /// Creates buffers for heads of `rows` queries of `depth` elements, and `total` keys with values of
    /// `width` elements.
    pub(crate) fn new(rows: usize, total: usize, width: usize, depth: usize) -> Self {
        Self {
            scores: Vec::new(),
            rows: block_rows(rows, total),
            total,
            width,
            depth,
            packs: packed(rows, [depth, total, width]).is_some(),
            keys: &[],
            values: &[],
            head: None,
            packed_keys: PackedMatrix::default(),
            packed_values: PackedMatrix::default(),
            scaled: Vec::new(),
            pace: Pace::default(),
        }
    }

    /// Takes the keys and values of the head `head`, which all queries until the next call share.
    pub(crate) fn take_head(&mut self, head: usize, keys: &'k [f32], values: &'k [f32]) -> Result<()> {
        if self.head.replace(head) == Some(head) {
            return Ok(());
        }
        self.keys = &keys[..self.total * self.depth];
        self.values = &values[..self.total * self.width];
        if self.packs {
            let padded = packed_len([self.depth, self.total, self.width]).unwrap_or(0);
            self.pace.spend(padded as u64)?;
            self.packed_keys
                .pack(self.keys, [self.depth, self.total], Order::ColumnMajor);
            self.packed_values
                .pack(self.values, [self.total, self.width], Order::RowMajor);
        }
        Ok(())
    }

    /// Computes the scores: the product of each query with each key.
    pub(crate) fn products(&mut self, queries: &[f32], scale: f32) -> Result<()> {
        let rows = queries.len() / self.depth.max(1);
        self.scaled.clear();
        for queries in queries.chunks(PART) {
            self.pace.spend(queries.len() as u64)?;
            self.scaled.extend(queries.iter().map(|x| x * scale));
        }
        self.scores.resize(rows * self.total, 0.0);
        if self.packs {
            return self
                .packed_keys
                .multiply(&self.scaled, &mut self.scores, &mut self.pace);
        }
        let sizes = [rows, self.depth, self.total];
        gemm_nt(&self.scaled, self.keys, sizes, &mut self.scores, &mut self.pace)
    }

    pub(crate) fn cap(&mut self, cap: f32) -> Result<()> {
        if cap <= 0.0 {
            return Ok(());
        }
        self.pace.over(&mut self.scores, |scores| {
            let scores = scores.iter_mut();
            scores.for_each(|score| *score = (*score / cap).tanh() * cap);
        })
    }

    /// Masks the scores outside of the range `visible` of each row.
    pub(crate) fn hide(&mut self, visible: impl Fn(usize) -> Range<usize>) -> Result<()> {
        for (row, scores) in self.scores.chunks_exact_mut(self.total.max(1)).enumerate() {
            let Range { start, end } = visible(row);
            self.pace
                .over(&mut scores[..start], |scores| scores.fill(LEAST))?;
            self.pace.over(&mut scores[end..], |scores| scores.fill(LEAST))?;
        }
        Ok(())
    }

    /// Adds a mask term, as [`Mask::add`] does.
    pub(crate) fn add(&mut self, mask: &Mask, place: [usize; 3]) -> Result<()> {
        mask.add(place, &mut self.scores, &mut self.pace)
    }

    /// Computes the softmax of the scores. The optional `sink` is an additional score without a value vector.
    /// Fully masked rows become 0.
    pub(crate) fn weigh(&mut self, sink: Option<f32>) -> Result<()> {
        let total = self.total.max(1);
        let pace = &mut self.pace;
        let mut counts: Vec<f32> = Vec::with_capacity(self.scores.len() / total);
        for row in self.scores.chunks_exact(total) {
            let Some(sink) = sink else {
                let mut is_masked = true;
                for row in row.chunks(PART) {
                    pace.spend(row.len() as u64)?;
                    is_masked = row.iter().all(|&score| score <= LEAST);
                    if !is_masked {
                        break;
                    }
                }
                counts.push(if is_masked { 0.0 } else { 1.0 });
                continue;
            };
            let mut most = LEAST;
            for row in row.chunks(PART) {
                pace.spend(row.len() as u64)?;
                let scores = row.iter();
                most = scores.fold(most, |most, &score| if score <= most { most } else { score });
            }
            // With a sink, the weights of the scores sum to this fraction, and the sink has the rest of the
            // weight.
            let most = most.max(sink);
            let mut sum = 0.0f32;
            for row in row.chunks(PART) {
                pace.spend(4 * row.len() as u64)?;
                sum = row.iter().fold(sum, |sum, score| sum + (score - most).exp());
            }
            counts.push(sum / (sum + (sink - most).exp()));
        }
        softmax::rows(&mut self.scores, total)?;
        for (row, part) in self.scores.chunks_exact_mut(total).zip(counts) {
            match part {
                1.0 => {}
                0.0 => pace.over(row, |row| row.fill(0.0))?,
                part => pace.over(row, |row| row.iter_mut().for_each(|weight| *weight *= part))?,
            }
        }
        Ok(())
    }

    /// Computes the sums of the values, weighted by the scores.
    pub(crate) fn sums(&mut self, sums: &mut [f32]) -> Result<()> {
        if self.packs {
            return self.packed_values.multiply(&self.scores, sums, &mut self.pace);
        }
        let sizes = [sums.len() / self.width.max(1), self.total, self.width];
        gemm(&self.scores, self.values, sizes, sums, &mut self.pace)
    }
}

#[cfg(test)]
mod tests {
    use onnx_tensor::{faults::NoRoom, room::Room};

    use super::*;

    #[test]
    fn buffers_are_asked_for_and_limited() {
        let asked = |mib: u64, sizes| {
            let asked = Room::of_limit(mib << 20).during(false, || ask(1, 32, sizes));
            asked.map_err(|error| assert!(error.is::<NoRoom>(), "{error}"))
        };
        // 16 rows of 2^18 scores, and no packed keys, since each would be padded to 16 elements.
        let sizes = [1, 1 << 18, 1];
        assert!(asked(16, sizes).is_err());
        assert!(asked(33, sizes).is_ok());
        assert_eq!(QueryBlock::new(32, 1 << 18, 1, 1).rows, 16);
        assert_eq!(QueryBlock::new(32, 1 << 30, 1, 1).rows, 1);
        assert!(!QueryBlock::new(32, 1 << 18, 1, 1).packs && QueryBlock::new(32, 1 << 10, 8, 8).packs);
    }
}
