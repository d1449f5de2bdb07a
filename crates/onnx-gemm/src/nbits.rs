//! Block-quantized weights of 2, 4 or 8 bits: each block has a scale and a zero point.

use std::borrow::Cow;

/// The layout of a column of block-quantized weights: `weight = (number - zero_point) * scale`.
///
/// Numbers are packed from the low bits of a byte to the high bits. Each block begins at a byte boundary.
///
/// ```
/// use onnx_gemm::BlockQuantized;
///
/// let layout = BlockQuantized::new(4, 2);
/// let mut column = [0.0; 4];
/// layout.unpack(&[0x21, 0x43], &[1.0, 10.0], &[0.0, 4.0], &mut column);
/// assert_eq!(column, [1.0, 2.0, -10.0, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockQuantized {
    bits: usize,
    block: usize,
}

impl BlockQuantized {
    /// Creates a layout with numbers of `bits` bits and a scale for every `block` numbers.
    ///
    /// # Panics
    /// Panics if `bits` is not 2, 4 or 8, or `block` is 0.
    #[must_use]
    pub fn new(bits: usize, block: usize) -> Self {
        assert!(matches!(bits, 2 | 4 | 8), "numbers of {bits} bits");
        assert!(block > 0, "blocks without numbers");
        Self { bits, block }
    }

    /// Returns the middle of the range of numbers, 2^(bits - 1), which is the zero point in symmetric
    /// quantization.
    #[must_use]
    pub fn middle(&self) -> u8 {
        1 << (self.bits - 1)
    }

    /// Returns the number of weights per block.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }

    /// Returns the number of blocks in a column of `depth` numbers.
    #[must_use]
    pub fn blocks(&self, depth: usize) -> usize {
        depth.div_ceil(self.block)
    }

    /// Returns the size of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        packed_bytes(self.bits, self.block)
    }

    /// Returns the size of `count` packed numbers in bytes. Zero points are packed the same way.
    #[must_use]
    pub fn packed_bytes(&self, count: usize) -> usize {
        packed_bytes(self.bits, count)
    }

    /// Returns the number at index `index` of `packed`.
    ///
    /// # Panics
    /// Panics if `index` is past the end.
    #[inline]
    #[must_use]
    pub fn number(&self, packed: &[u8], index: usize) -> u8 {
        let per_byte = 8 / self.bits;
        let shifted = packed[index / per_byte] >> (index % per_byte * self.bits);
        shifted & (u8::MAX >> (8 - self.bits))
    }

    /// Unpacks a column, in the order described at [`ordered`](Self::ordered).
    ///
    /// # Panics
    /// Panics if `packed`, `scales` or `zero_points` are too short for the blocks of the column.
    pub fn unpack(&self, packed: &[u8], scales: &[f32], zero_points: &[f32], column: &mut [f32]) {
        let blocks = self.blocks(column.len());
        assert!(
            packed.len() / self.block_bytes() >= blocks
                && scales.len() >= blocks
                && zero_points.len() >= blocks,
            "{} bytes, {} scales and {} zero points for {blocks} blocks of {} bytes",
            packed.len(),
            scales.len(),
            zero_points.len(),
            self.block_bytes()
        );
        pulp::Arch::new().dispatch(Unpack {
            layout: *self,
            packed,
            scales,
            zero_points,
            column,
        });
    }

    /// Reorders rows of `depth` elements in the same way as unpacked columns. With 4 bits, the elements at
    /// even positions of a block come before those at odd positions, so that vector instructions can unpack
    /// both halves of a byte. The sum of a dot product has the same terms in either order.
    ///
    /// # Panics
    /// Panics if `depth` is 0.
    #[must_use]
    pub fn ordered<'r>(&self, rows: &'r [f32], depth: usize) -> Cow<'r, [f32]> {
        assert!(depth > 0, "rows without elements");
        if self.bits != 4 {
            return rows.into();
        }
        let mut ordered = vec![0.0; rows.len()];
        for (row, ordered) in rows.chunks(depth).zip(ordered.chunks_mut(depth)) {
            pulp::Arch::new().dispatch(Split {
                row,
                ordered,
                block: self.block,
            });
        }
        ordered.into()
    }
}

/// Writes the elements of each block at even positions, and behind them those at odd positions.
struct Split<'s> {
    row: &'s [f32],
    ordered: &'s mut [f32],
    block: usize,
}

impl pulp::WithSimd for Split<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let blocks = self.ordered.chunks_mut(self.block);
        for (block, ordered) in self.row.chunks(self.block).zip(blocks) {
            let (even, odd) = ordered.split_at_mut(block.len().div_ceil(2));
            let (pairs, last) = block.as_chunks::<2>();
            for ((even, odd), pair) in even.iter_mut().zip(odd).zip(pairs) {
                [*even, *odd] = *pair;
            }
            if let (Some(even), Some(&last)) = (even.last_mut(), last.first()) {
                *even = last;
            }
        }
    }
}

/// Returns the size of `count` packed numbers in bytes, without overflow.
fn packed_bytes(bits: usize, count: usize) -> usize {
    count.div_ceil(8 / bits)
}

/// Computes weights from bytes. Whole vectors have a loop of their own, since blocks are short.
#[inline(always)]
fn scaled(weights: &mut [f32], packed: &[u8], weight: impl Fn(u8) -> f32) {
    let packed = &packed[..weights.len()];
    let (vectors, rest) = weights.as_chunks_mut::<16>();
    let (bytes, bytes_of_rest) = packed.as_chunks::<16>();
    for (weights, bytes) in vectors.iter_mut().zip(bytes) {
        *weights = bytes.map(&weight);
    }
    for (to, &byte) in rest.iter_mut().zip(bytes_of_rest) {
        *to = weight(byte);
    }
}

struct Unpack<'u> {
    layout: BlockQuantized,
    packed: &'u [u8],
    scales: &'u [f32],
    zero_points: &'u [f32],
    column: &'u mut [f32],
}

impl pulp::WithSimd for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let BlockQuantized { bits, block } = self.layout;
        match (bits, block) {
            (4, 32) => return self.halves::<16>(),
            (4, 64) => return self.halves::<32>(),
            (4, 128) => return self.halves::<64>(),
            _ => {}
        }
        let blocks = self
            .column
            .chunks_mut(block)
            .zip(self.packed.chunks_exact(self.layout.block_bytes()));
        let numbers = self.scales.iter().zip(self.zero_points);
        for ((column, packed), (&scale, &zero_point)) in blocks.zip(numbers) {
            match bits {
                4 => {
                    let (lower, upper) = column.split_at_mut(column.len().div_ceil(2));
                    scaled(lower, packed, |byte| (f32::from(byte & 15) - zero_point) * scale);
                    scaled(upper, packed, |byte| (f32::from(byte >> 4) - zero_point) * scale);
                }
                8 => scaled(column, packed, |byte| (f32::from(byte) - zero_point) * scale),
                _ => {
                    for (index, weight) in column.iter_mut().enumerate() {
                        *weight = (f32::from(self.layout.number(packed, index)) - zero_point) * scale;
                    }
                }
            }
        }
    }
}

impl Unpack<'_> {
    /// Unpacks blocks of `2 * HALF` numbers of 4 bits. Constant sizes make this faster than other blocks.
    #[inline(always)]
    fn halves<const HALF: usize>(self) {
        let numbers = self.scales.iter().zip(self.zero_points);
        let packed = self.packed.as_chunks::<HALF>().0;
        let columns = self.column.chunks_mut(2 * HALF);
        for ((column, packed), (&scale, &zero_point)) in columns.zip(packed).zip(numbers) {
            let lower = packed.map(|byte| (f32::from(byte & 15) - zero_point) * scale);
            let upper = packed.map(|byte| (f32::from(byte >> 4) - zero_point) * scale);
            match column.as_chunks_mut::<HALF>().0 {
                [all_lower, all_upper] => (*all_lower, *all_upper) = (lower, upper),
                // The last block of a column may be shorter.
                _ => {
                    let (to_lower, to_upper) = column.split_at_mut(column.len().div_ceil(2));
                    to_lower.copy_from_slice(&lower[..to_lower.len()]);
                    to_upper.copy_from_slice(&upper[..to_upper.len()]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_products_are_those_of_numbers_less_zero_points() {
        for bits in [2, 4, 8] {
            for (block, depth) in [
                (16, 32),
                (16, 19),
                (3, 7),
                (32, 5),
                (32, 75),
                (64, 130),
                (128, 383),
            ] {
                let layout = BlockQuantized::new(bits, block);
                let (blocks, bytes) = (layout.blocks(depth), layout.block_bytes());
                let packed: Vec<u8> = (0..blocks * bytes).map(|at| (at * 91 + 7) as u8).collect();
                let scales: Vec<f32> = (0..blocks).map(|at| (at + 1) as f32 / 4.0).collect();
                let zero_points: Vec<f32> = (0..blocks).map(|at| at as f32).collect();
                let row: Vec<f32> = (0..depth).map(|at| (at % 16) as f32 - 4.0).collect();
                let expected: f32 = (0..depth)
                    .map(|term| {
                        let block_of_term = term / block;
                        let packed = &packed[block_of_term * bytes..][..bytes];
                        let number = f32::from(layout.number(packed, term % block));
                        (number - zero_points[block_of_term]) * scales[block_of_term] * row[term]
                    })
                    .sum();
                let mut column = vec![f32::NAN; depth];
                layout.unpack(&packed, &scales, &zero_points, &mut column);
                let ordered = layout.ordered(&row, depth);
                let found: f32 = column.iter().zip(&*ordered).map(|(a, b)| a * b).sum();
                assert_eq!(found, expected, "{bits} bits, blocks of {block}, {depth} deep");
            }
        }
    }

    #[test]
    fn numbers_begin_with_the_lowest_bits() {
        let numbers = |bits| {
            let layout = BlockQuantized::new(bits, 1);
            (0..8 / bits).map(move |index| layout.number(&[0b1110_0100], index))
        };
        assert_eq!(numbers(2).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(numbers(4).collect::<Vec<_>>(), [4, 14]);
        assert_eq!(numbers(8).collect::<Vec<_>>(), [228]);
    }

    #[test]
    #[should_panic(expected = "1 bytes, 1 scales and 1 zero points for 2 blocks of 1 bytes")]
    fn every_block_has_bytes_a_scale_and_a_zero_point() {
        BlockQuantized::new(4, 2).unpack(&[0], &[1.0], &[0.0], &mut [0.0; 3]);
    }
}
