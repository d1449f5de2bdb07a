//! Products with block-quantized columns. A column is unpacked once for all rows; the whole matrix is never
//! unpacked to floats.

use crate::{least_work::PRODUCTS, split_products::products};
use onnx_gemm::{BlockQuantized, gemv, transpose};
use onnx_tensor::{cancelling::Pace, prelude::*, split};

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
        let (blocks, bytes) = (self.layout.blocks(self.depth), self.layout.block_bytes());
        let columns = self.scales.len() / blocks;
        let count = rows.len() / self.depth;
        let rows = match self.groups {
            Some(_) => rows.into(),
            None => self.layout.ordered(rows, self.depth),
        };
        // The sums are transposed: each column of the product is contiguous.
        let mut sums = vec![0.0; count * columns];
        // Unpacking a column takes as long as multiplying the column by this number of rows.
        const UNPACKED: usize = 8;
        let work = [products([count + UNPACKED, self.depth, columns]), PRODUCTS];
        split::lines(&mut sums, count, work, |first, sums, pace| {
            let mut column = vec![0.0; self.depth];
            for (at, sums) in (first..).zip(sums.chunks_exact_mut(count.max(1))) {
                pace.spend((self.depth + count * self.depth / 8) as u64)?;
                let blocks = at * blocks..(at + 1) * blocks;
                let packed = &self.packed[blocks.start * bytes..blocks.end * bytes];
                let (scales, zero_points) = (&self.scales[blocks.clone()], &self.zero_points[blocks]);
                match self.groups {
                    None => self.layout.unpack(packed, scales, zero_points, &mut column),
                    Some(groups) => {
                        let whole = self.layout.block();
                        for (index, (number, &group)) in column.iter_mut().zip(groups).enumerate() {
                            let packed = &packed[index / whole * bytes..];
                            let found = f32::from(self.layout.number(packed, index % whole));
                            *number = (found - zero_points[group]) * scales[group];
                        }
                    }
                }
                gemv(&column, &rows, self.depth, sums);
                let bias = self.bias.get(at).copied().unwrap_or(0.0);
                pace.over(sums, |sums| sums.iter_mut().for_each(|sum| *sum += bias))?;
            }
            Ok(())
        })?;
        match count {
            1 => pace.pairs(&sums, made, |sums, made| made.copy_from_slice(sums)),
            _ => {
                let sums = transpose(columns, &sums, pace)?;
                pace.pairs(&sums, made, |sums, made| made.copy_from_slice(sums))
            }
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
