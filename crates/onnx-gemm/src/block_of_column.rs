//! A product with a single column, which reads its weights once.

use crate::pack::BLOCK;

/// The products of a block of rows and a single column, all terms of which are repeated for each row.
pub(crate) struct BlockOfColumn<'b> {
    pub(crate) weights: &'b [f32],
    pub(crate) numbers: &'b [f32],
    pub(crate) bias: [f32; BLOCK],
}

impl pulp::WithSimd for BlockOfColumn<'_> {
    type Output = [f32; BLOCK];

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> [f32; BLOCK] {
        // As many independent sums as hide the latency of an addition.
        const SUMS: usize = 8;
        let zero = simd.splat_f32s(0.0);
        let mut sums = [zero; SUMS];
        // Vectors consist of whole blocks, except without vector instructions.
        let whole = match S::F32_LANES.is_multiple_of(BLOCK) {
            true => self.weights.len() / S::F32_LANES * S::F32_LANES,
            false => 0,
        };
        let ((weights, last_weights), (numbers, last_numbers)) =
            (self.weights.split_at(whole), self.numbers.split_at(whole));
        let (weights, numbers) = (S::as_simd_f32s(weights).0, S::as_simd_f32s(numbers).0);
        let ((weights, other_weights), (numbers, other_numbers)) =
            (weights.as_chunks::<SUMS>(), numbers.as_chunks::<SUMS>());
        for (weights, numbers) in weights.iter().zip(numbers) {
            for at in 0..SUMS {
                sums[at] = simd.mul_add_e_f32s(weights[at], numbers[at], sums[at]);
            }
        }
        for (&weights, &numbers) in other_weights.iter().zip(other_numbers) {
            sums[0] = simd.mul_add_e_f32s(weights, numbers, sums[0]);
        }
        let mut of_rows = self.bias;
        let sum = sums
            .into_iter()
            .fold(zero, |sum, other| simd.add_f32s(sum, other));
        let mut lanes = [0.0; 16];
        let (vectors, _) = S::as_mut_simd_f32s(&mut lanes);
        vectors[0] = sum;
        for (at, lane) in lanes.iter().enumerate() {
            of_rows[at % BLOCK] += lane;
        }
        for (at, (weight, number)) in last_weights.iter().zip(last_numbers).enumerate() {
            of_rows[at % BLOCK] += weight * number;
        }
        of_rows
    }
}
