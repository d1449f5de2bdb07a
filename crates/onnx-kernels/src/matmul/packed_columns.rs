//! Products with block-quantized columns. A column is unpacked once for all rows, so that the matrix never is in memory as floats.

use onnx_gemm::{BlockQuantized, gemv, transpose};
use onnx_tensor::{cancelling::Pace, prelude::*};

use crate::split::{self, PRODUCTS, products};

/// The columns of a matrix, each with its scales and zero points.
pub(crate) struct PackedColumns<'p> {
    pub(crate) layout: BlockQuantized,
    /// Numbers of a column, at least 1.
    pub(crate) depth: usize,
    pub(crate) packed: &'p [u8],
    /// A scale for each block.
    pub(crate) scales: &'p [f32],
    /// A zero point for each block.
    pub(crate) zero_points: &'p [f32],
    /// For each number of a column, the block that its scale and zero point are of, where that is not the block that it lies in.
    pub(crate) groups: Option<&'p [usize]>,
    /// A number for each column, or none.
    pub(crate) bias: &'p [f32],
}

impl PackedColumns<'_> {
    /// Writes the product of row-major `rows` with the matrix to the row-major `made`, which has as many rows.
    pub(crate) fn multiply(&self, rows: &[f32], made: &mut [f32], pace: &mut Pace) -> Result<()> {
        let (blocks, bytes) = (self.layout.blocks(self.depth), self.layout.block_bytes());
        let columns = self.scales.len() / blocks;
        let count = rows.len() / self.depth;
        let rows = match self.groups {
            Some(_) => rows.into(),
            None => self.layout.ordered(rows, self.depth),
        };
        // By columns, which are lines of the sums.
        let mut sums = vec![0.0; count * columns];
        // Unpacking a column takes about as long as multiplying it with so many rows.
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
                sums.iter_mut().for_each(|sum| *sum += bias);
            }
            Ok(())
        })?;
        match count {
            1 => made.copy_from_slice(&sums),
            _ => made.copy_from_slice(&transpose(columns, &sums, pace)?),
        }
        Ok(())
    }
}

/// Unpacks zero points from rows of `count`, each of which begins with a byte of its own.
pub(crate) fn unpacked_zero_points(layout: BlockQuantized, packed: &[u8], count: usize) -> Vec<f32> {
    let rows = packed.chunks_exact(layout.packed_bytes(count).max(1));
    rows.flat_map(|row| (0..count).map(move |index| f32::from(layout.number(row, index))))
        .collect()
}
