//! Powers of FP32 numbers. They are computed in FP64 and then rounded, with vector instructions where there are wide
//! vectors.

use onnx_tensor::{prelude::*, shapes};

use crate::elementwise::binary::{Side, met};

/// Raises FP32 numbers to FP32 powers; the tensors broadcast. Each power depends on its own elements only.
///
/// # Errors
/// Fails if the shapes do not match, if an element type is not FP32, or if the request is cancelled.
pub(crate) fn singles(bases: &Tensor, exponents: &Tensor) -> Result<Tensor> {
    /// Number of powers between two checks for ones that have to be computed separately.
    const TOGETHER: usize = 256;
    let shape = shapes::broadcast(&[bases.shape(), exponents.shape()])?;
    let arch = pulp::Arch::new();
    met(bases, exponents, &shape, &|bases, exponents, made: &mut [f32]| {
        for (first, made) in (0..).step_by(TOGETHER).zip(made.chunks_mut(TOGETHER)) {
            let [bases, exponents] = [bases, exponents].map(|side| side.part(first, made.len()));
            arch.dispatch(Powers {
                bases,
                exponents,
                made,
            });
        }
    })
}

/// Raises a number to a power. The usual exponents are multiplications, as in ONNX Runtime.
pub(crate) fn raised(base: f64, exponent: f64) -> f64 {
    match exponent {
        2.0 => base * base,
        3.0 => base * base * base,
        _ => base.powf(exponent),
    }
}

struct Powers<'v> {
    bases: Side<'v, f32>,
    exponents: Side<'v, f32>,
    made: &'v mut [f32],
}

impl pulp::WithSimd for Powers<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self {
            bases,
            exponents,
            made,
        } = self;
        let exact = |base: f32, exponent: f32| raised(base.into(), exponent.into()) as f32;
        // All processors with wide vectors have fused multiply-add.
        if S::F32_LANES < 8 {
            for (at, power) in made.iter_mut().enumerate() {
                *power = exact(*bases.at(at), *exponents.at(at));
            }
            return;
        }
        // Has a bit for each reason why a power has to be computed separately.
        let mut others = 0;
        let mut each = |power: &mut f32, base: f32, exponent: f32| {
            let (approximate, is_usual) = usual(base.into(), exponent.into());
            *power = approximate as f32;
            others |= u64::from(!is_usual);
        };
        match (bases, exponents) {
            (Side::Each(bases), Side::Same(&exponent)) => {
                let pairs = made.iter_mut().zip(bases);
                pairs.for_each(|(power, base)| each(power, *base, exponent));
            }
            (Side::Same(&base), Side::Each(exponents)) => {
                let pairs = made.iter_mut().zip(exponents);
                pairs.for_each(|(power, exponent)| each(power, base, *exponent));
            }
            (Side::Each(bases), Side::Each(exponents)) => {
                let pairs = made.iter_mut().zip(bases.iter().zip(exponents));
                pairs.for_each(|(power, (base, exponent))| each(power, *base, *exponent));
            }
            (Side::Same(&base), Side::Same(&exponent)) => made.fill(exact(base, exponent)),
        }
        if others == 0 {
            return;
        }
        for (at, power) in made.iter_mut().enumerate() {
            let (base, exponent) = (*bases.at(at), *exponents.at(at));
            if !usual(base.into(), exponent.into()).1 {
                *power = exact(base, exponent);
            }
        }
    }
}

/// Computes a power with a relative error below 1e-12, without branches. Returns also whether the result is valid:
/// if the base is positive and finite, and the result is far from the ends of FP32, or in simple cases.
#[inline(always)]
fn usual(base: f64, exponent: f64) -> (f64, bool) {
    /// Coefficients of log2(m) / s in powers of s^2, where s = (m - 1) / (m + 1): 2 / ln 2 / (2 n + 1).
    const LOGARITHM: [f64; 9] = {
        let mut terms = [0.0; 9];
        let mut term = 0;
        while term < 9 {
            terms[term] = 2.0 * std::f64::consts::LOG2_E / (2 * term + 1) as f64;
            term += 1;
        }
        terms
    };
    /// Coefficients of the Taylor series of the exponential function.
    const EXPONENTIAL: [f64; 12] = {
        let mut terms = [1.0; 12];
        let mut term = 1;
        while term < 12 {
            terms[term] = terms[term - 1] / term as f64;
            term += 1;
        }
        terms
    };
    const ONE: u64 = 1.0f64.to_bits();
    const ROOT_OF_HALF: u64 = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    // 1.5 * 2^52: adding it moves the integer part into the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const MOST: f64 = 125.0;
    let bits = base.to_bits();
    // The mantissa is between the roots of 1/2 and of 2.
    let biased = bits.wrapping_add(ONE - ROOT_OF_HALF) >> 52;
    let mantissa = f64::from_bits(bits.wrapping_sub(biased.wrapping_sub(1023) << 52));
    let whole = f64::from(biased as i32 - 1023);
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let logarithm = s.mul_add(polynomial(&LOGARITHM, s * s), whole);
    let product = exponent * logarithm;
    let is_inside = product.abs() <= MOST;
    let bounded = if is_inside { product } else { 0.0 };
    let rounded = bounded + ROUND;
    let rest = (bounded - (rounded - ROUND)) * std::f64::consts::LN_2;
    let power_of_two = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    let power = polynomial(&EXPONENTIAL, rest) * power_of_two;
    let is_usual = (base > 0.0) & (base < f64::INFINITY) & is_inside;
    // Zeros are frequent results of ReLU.
    let is_zero = (bits == 0) & (exponent > 0.0);
    let power = if is_zero { 0.0 } else { power };
    let power = if exponent == 3.0 {
        base * base * base
    } else {
        power
    };
    let power = if exponent == 2.0 { base * base } else { power };
    (power, is_usual | is_zero | (exponent == 2.0) | (exponent == 3.0))
}

#[inline(always)]
fn polynomial<const N: usize>(terms: &[f64; N], x: f64) -> f64 {
    let mut sum = terms[N - 1];
    let mut index = N - 1;
    while index > 0 {
        index -= 1;
        sum = sum.mul_add(x, terms[index]);
    }
    sum
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::elements;

    fn expect_rounded(bases: &[f32], exponents: &[f32]) {
        let made = singles(&Tensor::vector(bases), &Tensor::vector(exponents)).unwrap();
        let made = elements::<f32>(&made).unwrap();
        let mut inexact = 0;
        for (at, &power) in made.iter().enumerate() {
            let of = |side: &[f32]| f64::from(side[at % side.len()]);
            let (base, exponent) = (of(bases), of(exponents));
            let wanted = raised(base, exponent) as f32;
            if power.to_bits() != wanted.to_bits() && !(power.is_nan() && wanted.is_nan()) {
                assert_eq!(
                    power.to_bits().abs_diff(wanted.to_bits()),
                    1,
                    "{base} {exponent}: {power}"
                );
                inexact += 1;
            }
        }
        assert!(inexact * 1000 <= made.len(), "{inexact} of {}", made.len());
    }

    #[test]
    fn powers_are_rounded_from_fp64() {
        let bases: Vec<f32> = (1..5000u16)
            .map(|at| (f32::from(at) * 0.618).powi(3) % 37.0)
            .collect();
        let exponents: Vec<f32> = (1..5000u16)
            .map(|at| (f32::from(at) * 0.414).powi(2) % 41.0 - 20.0)
            .collect();
        expect_rounded(&bases, &exponents);
        expect_rounded(&[2.5], &exponents);
        for exponent in [
            -3.0, -1.0, -0.5, 0.0, 0.1, 0.5, 1.0, 1.7, 2.0, 3.0, 4.0, 20.0, 100.0,
        ] {
            expect_rounded(&bases, &[exponent]);
            expect_rounded(&bases[..21], &[exponent]);
        }
        let exact = singles(
            &Tensor::vector(&[4.0f32, 2.0, 1e-40, 9.0]),
            &Tensor::vector(&[1.5f32, 10.0, 1.0, 0.5]),
        );
        assert_eq!(exact.unwrap(), Tensor::vector(&[8.0f32, 1024.0, 1e-40, 3.0]));
    }

    #[test]
    fn special_numbers_are_raised_as_in_c() {
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.0,
            -2.5,
            3.0,
            0.5,
            f32::MIN_POSITIVE,
            1e-45,
            f32::MAX,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        for exponent in special {
            expect_rounded(&special, &[exponent]);
            expect_rounded(&[exponent], &special);
            expect_rounded(&special, &[exponent; 14]);
        }
    }
}
