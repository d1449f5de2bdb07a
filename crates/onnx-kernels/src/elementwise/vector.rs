//! Vectorizable FP32 functions: they have no branches or calls, so that the compiler vectorizes loops over
//! them. All functions propagate NaN, and are exact at infinities and where intermediate values overflow.
//! Elsewhere, the errors are a few ULP.
//!
//! The polynomials were fitted for this file to the smallest relative error over the given interval.

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

#[doc(hidden)]
pub use pulp;

use crate::elementwise::transcendental;

/// Computes `e^x`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    transcendental::exp::<false>(x)
}

/// Computes `e^x` for `x <= 0`, or 0 for `x` below -87, where the result is close to the smallest normal number.
#[inline(always)]
pub fn exp_or_zero(x: f32) -> f32 {
    transcendental::exp_or_zero::<false>(x)
}

/// Computes `e^x - 1`, which is also accurate near zero.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    transcendental::expm1::<false>(x)
}

/// Computes `1 / (1 + e^-x)`, or 0 if that is below 2^-50. Results are factors of others, as in `x * sigmoid(x)` and
/// gates of channels, and arithmetic with products below 2^-126 is slow.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    transcendental::sigmoid::<false>(x)
}

/// Computes the hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    transcendental::tanh::<false>(x)
}

/// Computes `ln(1 + e^x)`.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    transcendental::softplus::<false>(x)
}

/// Computes `x tanh(ln(1 + e^x))`.
#[inline(always)]
pub fn mish(x: f32) -> f32 {
    transcendental::mish::<false>(x)
}

/// Computes the error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    transcendental::erf::<false>(x)
}

/// Computes GELU: `x` times the cumulative normal distribution.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    transcendental::gelu::<false>(x)
}

/// Computes GELU with the tanh approximation.
#[inline(always)]
pub fn gelu_by_tanh(x: f32) -> f32 {
    transcendental::gelu_by_tanh::<false>(x)
}

/// Computes the natural logarithm: minus infinity at 0, and NaN below.
///
/// The polynomial is that of the Cephes library (S. L. Moshier).
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    transcendental::ln::<false>(x)
}
