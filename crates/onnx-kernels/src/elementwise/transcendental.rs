//! Vectorizable FP32 functions: they have no branches or calls, so that the compiler vectorizes loops over
//! them. All functions propagate NaN, and are exact at infinities and where intermediate values overflow.
//! Elsewhere, the errors are a few ULP.
//!
//! `FUSED` is whether to compute with fused multiply-add, which the processor must have to be fast. A tensor is
//! computed with one value of it, so a result depends on its own element only, not on the element's position.
//!
//! The polynomials were fitted for this file to the smallest relative error over the given interval, except that of
//! [`ln`].

/// Computes `a * b + c`.
#[inline(always)]
fn add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    match FUSED {
        true => a.mul_add(b, c),
        false => a * b + c,
    }
}

/// Computes `e^x`.
#[inline(always)]
pub fn exp<const FUSED: bool>(x: f32) -> f32 {
    let (power, rest) = split::<FUSED>(x);
    scale(1.0 + expm1_near_zero::<FUSED>(rest), power)
}

/// Computes `e^x` for `x <= 0`, or 0 for `x` below -87, where the result is close to the smallest normal number.
#[inline(always)]
pub fn exp_or_zero<const FUSED: bool>(x: f32) -> f32 {
    let bounded = if x < -87.0 { -87.0 } else { x };
    let (power, rest) = split_bounded::<FUSED>(bounded);
    let power_of_two = f32::from_bits((power.wrapping_add(127) as u32) << 23);
    let made = (1.0 + expm1_near_zero::<FUSED>(rest)) * power_of_two;
    if x < -87.0 { 0.0 } else { made }
}

/// Computes `e^x - 1`, which is also accurate near zero.
#[inline(always)]
pub fn expm1<const FUSED: bool>(x: f32) -> f32 {
    // Below -40, the result is -1. Subnormal numbers are avoided: they take many times as long.
    let x = if x < -40.0 { -40.0 } else { x };
    let (power, rest) = split::<FUSED>(x);
    // Multiplies by half of the power twice: 2^128 is not an FP32 value although the product may be.
    let (first, second) = halves(power);
    let tail = expm1_near_zero::<FUSED>(rest);
    // If the power is small, the terms cancel exactly; if it is large, the second term dominates.
    let exact = first * second * tail + (first * second - 1.0);
    let large = (tail + 1.0) * first * second;
    if x > 64.0 { large } else { exact }
}

/// Splits `x = power * ln 2 + rest` with `|rest| <= ln 2 / 2`. `x` is clamped to values for which `e^x` is
/// just outside of the range of FP32.
#[inline(always)]
fn split<const FUSED: bool>(x: f32) -> (i32, f32) {
    // Comparisons with NaN are false, so NaN stays NaN.
    let x = if x > 89.0 { 89.0 } else { x };
    split_bounded::<FUSED>(if x < -104.0 { -104.0 } else { x })
}

/// Splits `x` like [`split`], without clamping it.
#[inline(always)]
fn split_bounded<const FUSED: bool>(x: f32) -> (i32, f32) {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // 1.5 * 2^23: adding it moves the integer part into the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let rounded = add::<FUSED>(x, std::f32::consts::LOG2_E, ROUND);
    let power = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let whole = rounded - ROUND;
    let rest = add::<FUSED>(-whole, LN_2_HIGH, x);
    (power, add::<FUSED>(-whole, LN_2_LOW, rest))
}

/// Computes `e^r - 1` for `|r| <= ln 2 / 2`.
#[inline(always)]
fn expm1_near_zero<const FUSED: bool>(r: f32) -> f32 {
    const TERMS: [f32; 6] = [
        0.5,
        0.166_666_67,
        0.041_666_36,
        0.008_333_389,
        0.001_394_062_9,
        0.000_198_459_95,
    ];
    add::<FUSED>(r * r, polynomial::<FUSED, _>(&TERMS, r), r)
}

#[inline(always)]
fn polynomial<const FUSED: bool, const N: usize>(terms: &[f32; N], x: f32) -> f32 {
    let mut sum = terms[N - 1];
    let mut index = N - 1;
    while index > 0 {
        index -= 1;
        sum = add::<FUSED>(sum, x, terms[index]);
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
fn log1p_of_fraction<const FUSED: bool>(x: f32) -> f32 {
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
    2.0 * s * polynomial::<FUSED, _>(&TERMS, square)
}

/// Computes `1 / (1 + e^-x)`, or 0 if that is below 2^-50. Results are factors of others, as in `x * sigmoid(x)` and
/// gates of channels, and arithmetic with products below 2^-126 is slow.
#[inline(always)]
pub fn sigmoid<const FUSED: bool>(x: f32) -> f32 {
    const LEAST: f32 = -50.0 * std::f32::consts::LN_2;
    // Above 87, the exponential is a subnormal number, and the result is 1.
    let bounded = if x > 87.0 { 87.0 } else { x };
    let sigmoid = 1.0 / (1.0 + exp::<FUSED>(-bounded));
    if x < LEAST { 0.0 } else { sigmoid }
}

/// Computes the hyperbolic tangent.
#[inline(always)]
pub fn tanh<const FUSED: bool>(x: f32) -> f32 {
    let magnitude = x.abs();
    // For 10 and above, the hyperbolic tangent is 1 in FP32.
    let magnitude = if magnitude > 10.0 { 10.0 } else { magnitude };
    let grown = expm1::<FUSED>(2.0 * magnitude);
    (grown / (grown + 2.0)).copysign(x)
}

/// Computes `ln(1 + e^x)`.
#[inline(always)]
pub fn softplus<const FUSED: bool>(x: f32) -> f32 {
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + log1p_of_fraction::<FUSED>(exp::<FUSED>(-x.abs()))
}

/// Computes `x tanh(ln(1 + e^x))`.
#[inline(always)]
pub fn mish<const FUSED: bool>(x: f32) -> f32 {
    let grown = exp::<FUSED>(if x > 20.0 { 20.0 } else { x });
    let ratio = grown * (grown + 2.0);
    x * (ratio / (ratio + 2.0))
}

/// Computes the error function.
#[inline(always)]
pub fn erf<const FUSED: bool>(x: f32) -> f32 {
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
    let near = x * polynomial::<FUSED, _>(&NEAR, x * x);
    let bounded = if magnitude > 4.2 { 4.2 } else { magnitude };
    let t = 1.0 / (1.0 + 0.5 * bounded);
    let far = 1.0 - exp::<FUSED>(-bounded * bounded) * t * polynomial::<FUSED, _>(&FAR, t);
    if magnitude < 1.0 { near } else { far.copysign(x) }
}

/// Computes GELU: `x` times the cumulative normal distribution.
#[inline(always)]
pub fn gelu<const FUSED: bool>(x: f32) -> f32 {
    0.5 * x * (1.0 + erf::<FUSED>(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Computes GELU with the tanh approximation.
#[inline(always)]
pub fn gelu_by_tanh<const FUSED: bool>(x: f32) -> f32 {
    let inner = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    // (1 + tanh(u)) / 2 is a sigmoid.
    x * sigmoid::<FUSED>(2.0 * inner)
}

/// Computes the natural logarithm: minus infinity at 0, and NaN below.
///
/// The polynomial is that of the Cephes library (S. L. Moshier).
#[inline(always)]
pub fn ln<const FUSED: bool>(x: f32) -> f32 {
    const TERMS: [f32; 9] = [
        0.333_333_3,
        -0.249_999_94,
        0.200_007_14,
        -0.166_680_57,
        0.142_493_23,
        -0.124_201_41,
        0.116_769_984,
        -0.115_146_1,
        0.070_376_836,
    ];
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Subnormal numbers have no exponent of their own.
    let is_small = x < f32::MIN_POSITIVE;
    let bits = if is_small { x * 8_388_608.0 } else { x }.to_bits();
    let power = (bits >> 23) as i32 - if is_small { 150 } else { 127 };
    let mantissa = f32::from_bits(bits & 0x7f_ffff | 0x3f80_0000);
    let is_large = mantissa > std::f32::consts::SQRT_2;
    let power = (if is_large { power + 1 } else { power }) as f32;
    let rest = if is_large { 0.5 * mantissa } else { mantissa } - 1.0;
    let square = rest * rest;
    let tail = polynomial::<FUSED, _>(&TERMS, rest) * rest * square;
    let tail = add::<FUSED>(-0.5, square, add::<FUSED>(power, LN_2_LOW, tail));
    let logarithm = add::<FUSED>(power, LN_2_HIGH, rest + tail);
    let finite = if x == 0.0 { f32::NEG_INFINITY } else { logarithm };
    let positive = if x < 0.0 { f32::NAN } else { finite };
    // Infinity and NaN.
    if x.is_nan() || x == f32::INFINITY {
        x
    } else {
        positive
    }
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
        expect_errors_are_a_few_units_in_the_last_place::<false>();
        expect_errors_are_a_few_units_in_the_last_place::<true>();
    }

    fn expect_errors_are_a_few_units_in_the_last_place<const FUSED: bool>() {
        assert!(worst(exp::<FUSED>, f64::exp, -87.0..88.7) < 2.0);
        assert!(worst(exp_or_zero::<FUSED>, f64::exp, -87.0..0.0) < 2.0);
        assert!(worst(expm1::<FUSED>, f64::exp_m1, -110.0..88.7) < 4.0);
        assert!(worst(expm1::<FUSED>, f64::exp_m1, -0.5..0.5) < 3.0);
        assert!(worst(sigmoid::<FUSED>, |x| 1.0 / (1.0 + (-x).exp()), -34.6..87.0) < 3.0);
        assert!(worst(tanh::<FUSED>, f64::tanh, -12.0..12.0) < 4.0);
        assert!(worst(tanh::<FUSED>, f64::tanh, -0.01..0.01) < 3.0);
        assert!(worst(ln::<FUSED>, f64::ln, 1e-3..4.0) < 2.0);
        assert!(worst(ln::<FUSED>, f64::ln, 1e-38..1e38) < 2.0);
        assert!(worst(ln::<FUSED>, f64::ln, 1e-45..1e-37) < 2.0);
        let softplus_exact = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        assert!(worst(softplus::<FUSED>, softplus_exact, -80.0..100.0) < 4.0);
        assert!(
            worst(
                mish::<FUSED>,
                |x| x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh(),
                -20.0..40.0
            ) < 8.0
        );
    }

    #[test]
    fn erf_is_exact_at_known_points() {
        expect_erf_is_exact_at_known_points::<false>();
        expect_erf_is_exact_at_known_points::<true>();
    }

    fn expect_erf_is_exact_at_known_points<const FUSED: bool>() {
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
                let found = f64::from(erf::<FUSED>(sign * x as f32));
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
        expect_ends_are_as_in_mathematics::<false>();
        expect_ends_are_as_in_mathematics::<true>();
    }

    fn expect_ends_are_as_in_mathematics<const FUSED: bool>() {
        for function in [
            exp::<FUSED>,
            ln::<FUSED>,
            expm1::<FUSED>,
            sigmoid::<FUSED>,
            tanh::<FUSED>,
            softplus::<FUSED>,
            mish::<FUSED>,
            erf::<FUSED>,
            gelu::<FUSED>,
            gelu_by_tanh::<FUSED>,
        ] {
            assert!(function(f32::NAN).is_nan());
        }
        let infinity = f32::INFINITY;
        assert!(
            ln::<FUSED>(-1.0).is_nan() && ln::<FUSED>(-infinity).is_nan() && ln::<FUSED>(-1e-40).is_nan()
        );
        assert_eq!(
            [0.0, -0.0, 1.0, infinity].map(ln::<FUSED>),
            [-infinity, -infinity, 0.0, infinity]
        );
        assert_eq!(
            (
                exp::<FUSED>(infinity),
                exp::<FUSED>(-infinity),
                exp::<FUSED>(89.5)
            ),
            (infinity, 0.0, infinity)
        );
        assert!(exp_or_zero::<FUSED>(f32::NAN).is_nan());
        assert_eq!(
            (
                exp_or_zero::<FUSED>(0.0),
                exp_or_zero::<FUSED>(-87.1),
                exp_or_zero::<FUSED>(-infinity)
            ),
            (1.0, 0.0, 0.0)
        );
        assert_eq!((sigmoid::<FUSED>(88.0), sigmoid::<FUSED>(1e30)), (1.0, 1.0));
        assert_eq!(
            (expm1::<FUSED>(infinity), expm1::<FUSED>(-infinity)),
            (infinity, -1.0)
        );
        assert_eq!(
            (
                sigmoid::<FUSED>(infinity),
                sigmoid::<FUSED>(-infinity),
                sigmoid::<FUSED>(-1e5),
                sigmoid::<FUSED>(-35.0)
            ),
            (1.0, 0.0, 0.0, 0.0)
        );
        assert_eq!(
            (
                tanh::<FUSED>(infinity),
                tanh::<FUSED>(-infinity),
                tanh::<FUSED>(-0.0).to_bits()
            ),
            (1.0, -1.0, (-0.0f32).to_bits())
        );
        assert_eq!(
            (
                softplus::<FUSED>(infinity),
                softplus::<FUSED>(-infinity),
                softplus::<FUSED>(1e20)
            ),
            (infinity, 0.0, 1e20)
        );
        assert_eq!((erf::<FUSED>(infinity), erf::<FUSED>(-infinity)), (1.0, -1.0));
        assert_eq!(
            (gelu_by_tanh::<FUSED>(-1000.0), gelu_by_tanh::<FUSED>(1000.0)),
            (0.0, 1000.0)
        );
    }
}
