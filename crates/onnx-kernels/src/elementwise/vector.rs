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
    ($values:expr, [$($number:ident),*] |$x:ident| $body:expr) => {{
        struct Each<'v> {
            values: &'v mut [f32],
            $($number: f32,)*
        }
        impl $crate::elementwise::vector::pulp::WithSimd for Each<'_> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: $crate::elementwise::vector::pulp::Simd>(self, _: S) {
                let Self { values, $($number,)* } = self;
                for value in values {
                    let $x = *value;
                    *value = $body;
                }
            }
        }
        $crate::elementwise::vector::pulp::Arch::new().dispatch(Each { values: $values, $($number,)* });
    }};
}
pub use crate::each;

#[doc(hidden)]
pub use pulp;

/// Computes `e^x`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (power, rest) = split(x);
    scale(1.0 + expm1_near_zero(rest), power)
}

/// Computes `e^x` for `x <= 0`, or 0 for `x` below -87, where the result is close to the smallest normal number.
#[inline(always)]
pub fn exp_or_zero(x: f32) -> f32 {
    let bounded = if x < -87.0 { -87.0 } else { x };
    let (power, rest) = split_bounded(bounded);
    let power_of_two = f32::from_bits((power.wrapping_add(127) as u32) << 23);
    let made = (1.0 + expm1_near_zero(rest)) * power_of_two;
    if x < -87.0 { 0.0 } else { made }
}

/// Computes `e^x - 1`, which is also accurate near zero.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    // Below -40, the result is -1. Subnormal numbers are avoided: they take many times as long.
    let x = if x < -40.0 { -40.0 } else { x };
    let (power, rest) = split(x);
    // Multiplies by half of the power twice: 2^128 is not an FP32 value although the product may be.
    let (first, second) = halves(power);
    let tail = expm1_near_zero(rest);
    // If the power is small, the terms cancel exactly; if it is large, the second term dominates.
    let exact = first * second * tail + (first * second - 1.0);
    let large = (tail + 1.0) * first * second;
    if x > 64.0 { large } else { exact }
}

/// Splits `x = power * ln 2 + rest` with `|rest| <= ln 2 / 2`. `x` is clamped to values for which `e^x` is
/// just outside of the range of FP32.
#[inline(always)]
fn split(x: f32) -> (i32, f32) {
    // Comparisons with NaN are false, so NaN stays NaN.
    let x = if x > 89.0 { 89.0 } else { x };
    split_bounded(if x < -104.0 { -104.0 } else { x })
}

/// Splits `x` like [`split`], without clamping it.
#[inline(always)]
fn split_bounded(x: f32) -> (i32, f32) {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // 1.5 * 2^23: adding it moves the integer part into the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let power = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let whole = rounded - ROUND;
    (power, x - whole * LN_2_HIGH - whole * LN_2_LOW)
}

/// Computes `e^r - 1` for `|r| <= ln 2 / 2`.
#[inline(always)]
fn expm1_near_zero(r: f32) -> f32 {
    const TERMS: [f32; 6] = [
        0.5,
        0.166_666_67,
        0.041_666_36,
        0.008_333_389,
        0.001_394_062_9,
        0.000_198_459_95,
    ];
    r + r * r * polynomial(&TERMS, r)
}

#[inline(always)]
fn polynomial<const N: usize>(terms: &[f32; N], x: f32) -> f32 {
    let mut sum = terms[N - 1];
    let mut index = N - 1;
    while index > 0 {
        index -= 1;
        sum = sum * x + terms[index];
    }
    sum
}

/// Returns two powers of two whose product is `2^power`.
#[inline(always)]
fn halves(power: i32) -> (f32, f32) {
    let half = power >> 1;
    let rest = power.wrapping_sub(half);
    let power_of_two = |power: i32| f32::from_bits((power.wrapping_add(127) as u32) << 23);
    (power_of_two(half), power_of_two(rest))
}

#[inline(always)]
fn scale(x: f32, power: i32) -> f32 {
    let (first, second) = halves(power);
    x * first * second
}

/// Computes `ln(1 + x)` for `0 <= x <= 1`.
#[inline(always)]
fn log1p_of_fraction(x: f32) -> f32 {
    // 2 artanh(x / (2 + x)), whose argument is at most 1/3.
    let s = x / (2.0 + x);
    let square = s * s;
    const TERMS: [f32; 7] = [
        1.0,
        1.0 / 3.0,
        1.0 / 5.0,
        1.0 / 7.0,
        1.0 / 9.0,
        1.0 / 11.0,
        1.0 / 13.0,
    ];
    2.0 * s * polynomial(&TERMS, square)
}

/// Computes `1 / (1 + e^-x)`, or 0 if that is below 2^-50. Results are factors of others, as in `x * sigmoid(x)` and
/// gates of channels, and arithmetic with products below 2^-126 is slow.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    const LEAST: f32 = -50.0 * std::f32::consts::LN_2;
    // Above 87, the exponential is a subnormal number, and the result is 1.
    let bounded = if x > 87.0 { 87.0 } else { x };
    let sigmoid = 1.0 / (1.0 + exp(-bounded));
    if x < LEAST { 0.0 } else { sigmoid }
}

/// Computes the hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    // For 10 and above, the hyperbolic tangent is 1 in FP32.
    let magnitude = if magnitude > 10.0 { 10.0 } else { magnitude };
    let grown = expm1(2.0 * magnitude);
    (grown / (grown + 2.0)).copysign(x)
}

/// Computes `ln(1 + e^x)`.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + log1p_of_fraction(exp(-x.abs()))
}

/// Computes `x tanh(ln(1 + e^x))`.
#[inline(always)]
pub fn mish(x: f32) -> f32 {
    let grown = exp(if x > 20.0 { 20.0 } else { x });
    let ratio = grown * (grown + 2.0);
    x * (ratio / (ratio + 2.0))
}

/// Computes the error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    // erf(x) / x as a polynomial in x^2, for |x| in [0, 1].
    const NEAR: [f32; 7] = [
        std::f32::consts::FRAC_2_SQRT_PI,
        -0.376_126_26,
        0.112_835_85,
        -0.026_853_812,
        0.005_188_327,
        -0.000_801_018_94,
        0.000_078_538_47,
    ];
    // erfc(x) e^(x^2) / t as a polynomial in t = 1 / (1 + x / 2), for x in [1, 4.2].
    const FAR: [f32; 7] = [
        0.282_557_1,
        0.274_944_16,
        0.293_493_03,
        0.011_146_551,
        0.419_316_47,
        -0.371_927,
        0.090_307_61,
    ];
    let magnitude = x.abs();
    let near = x * polynomial(&NEAR, x * x);
    let bounded = if magnitude > 4.2 { 4.2 } else { magnitude };
    let t = 1.0 / (1.0 + 0.5 * bounded);
    let far = 1.0 - exp(-bounded * bounded) * t * polynomial(&FAR, t);
    if magnitude < 1.0 { near } else { far.copysign(x) }
}

/// Computes GELU: `x` times the cumulative normal distribution.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Computes GELU with the tanh approximation.
#[inline(always)]
pub fn gelu_by_tanh(x: f32) -> f32 {
    let inner = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    // (1 + tanh(u)) / 2 is a sigmoid.
    x * sigmoid(2.0 * inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the largest error in ULP of the result, or of the smallest normal number.
    fn worst(function: fn(f32) -> f32, exact: fn(f64) -> f64, range: std::ops::Range<f32>) -> f64 {
        let steps = 200_003;
        let step = f64::from(range.end - range.start) / f64::from(steps);
        let mut worst = 0.0;
        for index in 0..steps {
            let x = (f64::from(range.start) + f64::from(index) * step) as f32;
            let (found, wanted) = (f64::from(function(x)), exact(f64::from(x)));
            let unit = (wanted.abs() * f64::from(f32::EPSILON)).max(f64::from(f32::MIN_POSITIVE));
            worst = f64::max(worst, (found - wanted).abs() / unit);
        }
        worst
    }

    #[test]
    fn errors_are_a_few_units_in_the_last_place() {
        assert!(worst(exp, f64::exp, -87.0..88.7) < 2.0);
        assert!(worst(exp_or_zero, f64::exp, -87.0..0.0) < 2.0);
        assert!(worst(expm1, f64::exp_m1, -110.0..88.7) < 4.0);
        assert!(worst(expm1, f64::exp_m1, -0.5..0.5) < 3.0);
        assert!(worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -34.6..87.0) < 3.0);
        assert!(worst(tanh, f64::tanh, -12.0..12.0) < 4.0);
        assert!(worst(tanh, f64::tanh, -0.01..0.01) < 3.0);
        let softplus_exact = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        assert!(worst(softplus, softplus_exact, -80.0..100.0) < 4.0);
        assert!(
            worst(
                mish,
                |x| x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh(),
                -20.0..40.0
            ) < 8.0
        );
    }

    #[test]
    fn erf_is_exact_at_known_points() {
        // Reference values from published tables.
        for (x, wanted) in [
            (1e-6, 1.128_379_167_095_1e-6),
            (0.1, 0.112_462_916_018_285),
            (0.5, 0.520_499_877_813_047),
            (0.99, 0.838_508_066_379_4),
            (1.0, 0.842_700_792_949_715),
            (2.0, 0.995_322_265_018_953),
            (3.5, 0.999_999_256_901_628),
        ] {
            for sign in [1.0, -1.0] {
                let found = f64::from(erf(sign * x as f32));
                let wanted: f64 = f64::from(sign) * wanted;
                assert!(
                    (found - wanted).abs() <= wanted.abs() * 4e-7,
                    "{x}: {found}, not {wanted}"
                );
            }
        }
    }

    #[test]
    fn ends_are_as_in_mathematics() {
        for function in [exp, expm1, sigmoid, tanh, softplus, mish, erf, gelu, gelu_by_tanh] {
            assert!(function(f32::NAN).is_nan());
        }
        let infinity = f32::INFINITY;
        assert_eq!(
            (exp(infinity), exp(-infinity), exp(89.5)),
            (infinity, 0.0, infinity)
        );
        assert!(exp_or_zero(f32::NAN).is_nan());
        assert_eq!(
            (exp_or_zero(0.0), exp_or_zero(-87.1), exp_or_zero(-infinity)),
            (1.0, 0.0, 0.0)
        );
        assert_eq!((sigmoid(88.0), sigmoid(1e30)), (1.0, 1.0));
        assert_eq!((expm1(infinity), expm1(-infinity)), (infinity, -1.0));
        assert_eq!(
            (
                sigmoid(infinity),
                sigmoid(-infinity),
                sigmoid(-1e5),
                sigmoid(-35.0)
            ),
            (1.0, 0.0, 0.0, 0.0)
        );
        assert_eq!(
            (tanh(infinity), tanh(-infinity), tanh(-0.0).to_bits()),
            (1.0, -1.0, (-0.0f32).to_bits())
        );
        assert_eq!(
            (softplus(infinity), softplus(-infinity), softplus(1e20)),
            (infinity, 0.0, 1e20)
        );
        assert_eq!((erf(infinity), erf(-infinity)), (1.0, -1.0));
        assert_eq!((gelu_by_tanh(-1000.0), gelu_by_tanh(1000.0)), (0.0, 1000.0));
    }
}
