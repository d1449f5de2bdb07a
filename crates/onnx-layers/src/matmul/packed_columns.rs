//! Products with block-quantized columns. A column is unpacked once for all rows; the whole matrix is never
//! unpacked to floats.

use std::ops::Range;

use crate::{
    least_work::PRODUCTS,
    split_products::{Strips, products, strips},
};
use onnx_gemm::{BlockQuantized, dot_products};
use onnx_tensor::{
    cancelling::{Pace, in_parts},
    prelude::*,
    threads,
};

/// The minimum number of columns that are unpacked at once.
const LEAST: usize = 4;

/// The number of rows that are multiplied at once.
const MANY_ROWS: usize = 64;

/// The number of multiplications in one step of [`Pace`].
const PER_STEP: u64 = 8;

/// The columns of a matrix with their scales and zero points.
pub(crate) struct PackedColumns<'p> {
    pub(crate) layout: BlockQuantized,
    /// Number of elements in a column, at least 1.
    pub(crate) depth: usize,
    pub(crate) packed: &'p [u8],
    /// One scale per block.
    pub(crate) scales: &'p [f32],
    /// One zero point per block.
    pub(crate) zero_points: &'p [f32],
    /// For each element of a column, the block whose scale and zero point apply (`g_idx`). `None` if that is
    /// the element's own block.
    pub(crate) groups: Option<&'p [usize]>,
    /// The bias of each column; empty if there is no bias.
    pub(crate) bias: &'p [f32],
}

impl PackedColumns<'_> {
    /// Writes the product of the row-major matrix `rows` and this matrix to the row-major matrix `made`.
    pub(crate) fn multiply(&self, rows: &[f32], made: &mut [f32], pace: &mut Pace) -> Result<()> {
        let columns = self.scales.len() / self.layout.blocks(self.depth);
        let count = rows.len() / self.depth;
        let rows = match self.groups {
            Some(_) => rows.into(),
            None => self.layout.ordered(rows, self.depth),
        };
        // Unpacking a column takes as long as multiplying the column by this number of rows.
        const UNPACKED: usize = 2;
        let parts = threads::parts(products([count + UNPACKED, self.depth, columns]), PRODUCTS);
        let width = columns.div_ceil(parts).next_multiple_of(LEAST).max(LEAST);
        let parts = (0..columns).step_by(width);
        let parts = parts.map(|first| first..columns.min(first + width));
        let items = strips(parts, made, columns);
        let multiply = |(columns, strips): Strips<'_, f32>, pace: &mut Pace| {
            self.multiply_part(&rows, columns, strips, pace)
        };
        match <[_; 1]>::try_from(items) {
            Ok([all]) => multiply(all, pace),
            Err(items) => in_parts(items, multiply),
        }
    }

    /// Writes the columns `columns` of a product, whose rows are `made`.
    fn multiply_part(
        &self,
        rows: &[f32],
        columns: Range<usize>,
        mut made: Vec<&mut [f32]>,
        pace: &mut Pace,
    ) -> Result<()> {
        let depth = self.depth;
        // As many columns are unpacked at once as the L1 cache holds beside few rows, or as the L2 cache holds
        // for many rows, which are read for each group of columns.
        let cached = if made.len() < MANY_ROWS { 1 << 13 } else { 1 << 16 };
        let group = (cached / depth).clamp(LEAST, 64) / LEAST * LEAST;
        let mut unpacked = vec![0.0; group * depth];
        let mut sums = vec![0.0; group * made.len().min(MANY_ROWS)];
        for first in columns.clone().step_by(group) {
            let count = group.min(columns.end - first);
            let unpacked = &mut unpacked[..count * depth];
            for (column, at) in unpacked.chunks_exact_mut(depth).zip(first..) {
                pace.spend(depth as u64)?;
                self.unpack(at, column);
            }
            let blocks = rows.chunks(MANY_ROWS * depth);
            for (rows, made) in blocks.zip(made.chunks_mut(MANY_ROWS)) {
                pace.spend((made.len() * unpacked.len()) as u64 / PER_STEP)?;
                let sums = &mut sums[..count * made.len()];
                dot_products(rows, unpacked, depth, sums);
                for (made, sums) in made.iter_mut().zip(sums.chunks_exact(count)) {
                    let made = &mut made[first - columns.start..][..count];
                    match self.bias.get(first..first + count) {
                        None => made.copy_from_slice(sums),
                        Some(bias) => {
                            let pairs = sums.iter().zip(bias);
                            made.iter_mut()
                                .zip(pairs)
                                .for_each(|(made, (sum, bias))| *made = sum + bias);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the elements of the column `at`.
    fn unpack(&self, at: usize, column: &mut [f32]) {
        let (blocks, bytes) = (self.layout.blocks(self.depth), self.layout.block_bytes());
        let blocks = at * blocks..(at + 1) * blocks;
        let packed = &self.packed[blocks.start * bytes..blocks.end * bytes];
        let (scales, zero_points) = (&self.scales[blocks.clone()], &self.zero_points[blocks]);
        let Some(groups) = self.groups else {
            return self.layout.unpack(packed, scales, zero_points, column);
        };
        let whole = self.layout.block();
        for (index, (number, &group)) in column.iter_mut().zip(groups).enumerate() {
            let packed = &packed[index / whole * bytes..];
            let found = f32::from(self.layout.number(packed, index % whole));
            *number = (found - zero_points[group]) * scales[group];
        }
    }
}

/// Unpacks zero points from rows of `count` numbers. Each row starts at a byte boundary.
pub(crate) fn unpacked_zero_points(
    layout: BlockQuantized,
    packed: &[u8],
    count: usize,
    pace: &mut Pace,
) -> Result<Vec<f32>> {
    let rows = packed.chunks_exact(layout.packed_bytes(count).max(1));
    pace.collect(rows.flat_map(|row| (0..count).map(move |index| f32::from(layout.number(row, index)))))
}
