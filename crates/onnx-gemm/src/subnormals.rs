//! Weights that are too small to matter, but slow.

/// If a weight has at least this magnitude, products with subnormal ones are at most 2^-26 of the product with it,
/// for inputs of about the same magnitude: the rounding of FP32 loses them.
const LEAST: f32 = f32::from_bits((127 - 100) << 23);

/// Replaces subnormal weights, of magnitudes below 2^-126, with zeros, unless all weights are tiny.
///
/// A filter whose weights are all subnormal counts as zeros beside others that are not: it belongs to a channel that
/// died in training.
///
/// Training with weight decay leaves such weights behind, for example where a filter only ever saw padding.
/// On many processors, a multiplication with a subnormal number takes about a hundred times as long.
///
/// ```
/// let mut weights = [0.5, 1e-40, -1e-42, 0.0];
/// onnx_gemm::clear_subnormals(&mut weights);
/// assert_eq!(weights, [0.5, 0.0, 0.0, 0.0]);
///
/// // All are tiny: they may be all that matters.
/// let mut weights = [1e-35, 1e-40];
/// onnx_gemm::clear_subnormals(&mut weights);
/// assert_eq!(weights, [1e-35, 1e-40]);
/// ```
pub fn clear_subnormals(weights: &mut [f32]) {
    if has_subnormal(weights) && weights.iter().any(|weight| weight.abs() >= LEAST) {
        for weight in weights {
            *weight = if weight.is_subnormal() { 0.0 } else { *weight };
        }
    }
}

fn has_subnormal(weights: &[f32]) -> bool {
    struct Search<'w>(&'w [f32]);

    impl pulp::WithSimd for Search<'_> {
        type Output = bool;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) -> bool {
            /// The search ends after a part, not at a weight, so that the loop over it vectorizes.
            const PART: usize = 512;
            let mut parts = self.0.chunks(PART);
            parts.any(|part| {
                part.iter()
                    .fold(false, |found, weight| found | weight.is_subnormal())
            })
        }
    }

    pulp::Arch::new().dispatch(Search(weights))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnormal_weights_are_cleared_beside_larger_ones() {
        let (tiny, least) = (f32::from_bits(1), f32::MIN_POSITIVE);
        let mut weights = [-LEAST, tiny, -tiny, least, f32::NAN, f32::INFINITY];
        clear_subnormals(&mut weights);
        assert_eq!(weights[..4], [-LEAST, 0.0, 0.0, least]);
        assert!(weights[4].is_nan() && weights[5] == f32::INFINITY);
        for count in [16, 512, 513, 1600] {
            let mut weights = vec![1.0; count];
            weights[count - 1] = tiny;
            clear_subnormals(&mut weights);
            assert_eq!(weights[count - 1], 0.0);
        }
        let mut tiny_ones = [LEAST / 2.0, tiny];
        clear_subnormals(&mut tiny_ones);
        assert_eq!(tiny_ones, [LEAST / 2.0, tiny]);
    }
}
