//! Loops over FP32 values that are compiled for the widest vectors of the processor.

/// Returns `x`, and 0 for -0, as a result that a loop stores even where it equals the value that it replaces.
///
/// LLVM leaves unchanged values where they are, by masked stores of the others. On AMD processors with AVX2, these
/// take several times as long as storing all values.
///
/// ```
/// use onnx_kernels::elementwise::vector::stored;
///
/// let relu = [-1.0, 2.0, f32::NAN].map(|x| if x < 0.0 { 0.0 } else { stored(x) });
/// assert_eq!(relu[..2], [0.0, 2.0]);
/// assert!(relu[2].is_nan());
/// ```
#[inline(always)]
#[must_use]
pub fn stored(x: f32) -> f32 {
    // LLVM may not remove the sum, because of -0.
    x + 0.0
}

/// Replaces each value with the result of an expression that may use the listed variables, compiled for the
/// processor's widest vectors.
///
/// This is a macro, since closures are not always inlined into the vectorized function.
///
/// ```
/// use onnx_kernels::elementwise::vector::each;
///
/// let (mut values, alpha) = ([1.0f32, 2.0], 3.0);
/// each!(&mut values, [alpha] |x| alpha * x);
/// assert_eq!(values, [3.0, 6.0]);
/// ```
#[macro_export]
macro_rules! each {
    ($values:expr, [$($number:ident),*] |$x:ident| $body:expr) => {
        $crate::each!($values, [$($number),*] |$x, _FUSED| $body)
    };
    // `$fused` is a constant: whether the loop is compiled for processors with fused multiply-add.
    ($values:expr, [$($number:ident),*] |$x:ident, $fused:ident| $body:expr) => {{
        struct Each<'v> {
            values: &'v mut [f32],
            $($number: f32,)*
        }
        impl $crate::elementwise::vector::pulp::WithSimd for Each<'_> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: $crate::elementwise::vector::pulp::Simd>(self, _: S) {
                let Self { values, $($number,)* } = self;
                // All processors with wide vectors have fused multiply-add.
                if S::F32_LANES >= 8 {
                    const $fused: bool = true;
                    for value in values {
                        let $x = *value;
                        *value = $body;
                    }
                } else {
                    const $fused: bool = false;
                    for value in values {
                        let $x = *value;
                        *value = $body;
                    }
                }
            }
        }
        $crate::elementwise::vector::pulp::Arch::new().dispatch(Each { values: $values, $($number,)* });
    }};
}
pub use crate::each;

/// Runs `work` compiled for the processor's widest vectors, if it is a closure with `#[inline(always)]` that calls
/// only functions with `#[inline(always)]`.
///
/// `pulp` runs closures too, but by way of a function that is not always inlined, and is then compiled for the oldest
/// processor.
///
/// ```
/// use onnx_kernels::elementwise::vector::vectorized;
///
/// let mut values = [1.0f32, 2.0];
/// vectorized(
///     #[inline(always)]
///     || values.iter_mut().for_each(|value| *value *= 3.0),
/// );
/// assert_eq!(values, [3.0, 6.0]);
/// ```
pub fn vectorized(work: impl FnMut()) {
    struct Work<F>(F);
    impl<F: FnMut()> pulp::WithSimd for Work<F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(mut self, _: S) {
            (self.0)();
        }
    }
    pulp::Arch::new().dispatch(Work(work));
}

#[doc(hidden)]
pub use pulp;
