//! Sine, cosine and inverse trigonometric functions of FP32, in loops that are vectorized.
//!
//! The polynomials are those of the Cephes library (S. L. Moshier). Results differ from the exact ones by at most
//! three units in the last place; near a zero of sine and cosine, by at most 1e-7. A result depends on its own
//! element only.

use std::f32::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4, PI};

use crate::elementwise::vector::each;

/// Replaces each value with its arc tangent.
pub(crate) fn atan(values: &mut [f32]) {
    /// The tangents of three eighths and of one eighth of pi.
    const LARGE: f32 = 2.414_213_7;
    const SMALL: f32 = 0.414_213_57;
    each!(
        values,
        [] | x | {
            let size = x.abs();
            let (above, below, start) = if size > LARGE {
                (-1.0, size, FRAC_PI_2)
            } else if size > SMALL {
                (size - 1.0, size + 1.0, FRAC_PI_4)
            } else {
                (size, 1.0, 0.0)
            };
            let y = above / below;
            let square = y * y;
            let tail = ((8.053_744_5e-2 * square - 1.387_768_6e-1) * square + 1.997_771_1e-1) * square
                - 3.333_295e-1;
            (start + (tail * square * y + y)).copysign(x)
        }
    );
}

/// Replaces each value with its arc sine; NaN outside of -1 to 1.
pub(crate) fn asin(values: &mut [f32]) {
    each!(
        values,
        [] | x | {
            let (size, [part, _]) = (x.abs(), asin_parts(x));
            let sine = if size > 0.5 { FRAC_PI_2 - 2.0 * part } else { part };
            sine.copysign(x)
        }
    );
}

/// Replaces each value with its arc cosine; NaN outside of -1 to 1.
pub(crate) fn acos(values: &mut [f32]) {
    each!(
        values,
        [] | x | {
            let [part, sign] = asin_parts(x);
            let outside = if x > 0.0 { 2.0 * part } else { PI - 2.0 * part };
            if x.abs() > 0.5 {
                outside
            } else {
                FRAC_PI_2 - sign * part
            }
        }
    );
}

/// Returns the arc sine of `|x|` up to 0.5, and above, that of the square root of `(1 - |x|) / 2`; and the sign
/// of `x`.
#[inline(always)]
fn asin_parts(x: f32) -> [f32; 2] {
    let size = x.abs();
    let square = if size > 0.5 {
        0.5 * (1.0 - size)
    } else {
        size * size
    };
    let root = if size > 0.5 { square.sqrt() } else { size };
    let tail = ((4.216_32e-2 * square + 2.418_131e-2) * square + 4.547_002_6e-2) * square + 7.495_300_3e-2;
    let tail = tail * square + 1.666_675_2e-1;
    [tail * square * root + root, 1.0f32.copysign(x)]
}

/// Values up to this size lose no digits when a multiple of pi is subtracted.
const REDUCED: f32 = 8192.0;

/// Replaces each value with its sine.
pub(crate) fn sin(values: &mut [f32]) {
    waves(values, 0, f32::sin);
}

/// Replaces each value with its cosine.
pub(crate) fn cos(values: &mut [f32]) {
    waves(values, 1, f32::cos);
}

/// Replaces each value with its sine, shifted by `quarters` quarters of a period. `exact` computes values that
/// are larger than [`REDUCED`].
fn waves(values: &mut [f32], quarters: u32, exact: fn(f32) -> f32) {
    const PART: usize = 256;
    let mut given = [0.0; PART];
    for values in values.chunks_mut(PART) {
        let given = &mut given[..values.len()];
        given.copy_from_slice(values);
        pulp::Arch::new().dispatch(Waves { values, quarters });
        let is_reduced = |x: f32| x.abs() <= REDUCED;
        if !given.iter().fold(true, |all, x| all & is_reduced(*x)) {
            let others = values.iter_mut().zip(given).filter(|(_, x)| !is_reduced(**x));
            others.for_each(|(value, x)| *value = exact(*x));
        }
    }
}

struct Waves<'v> {
    values: &'v mut [f32],
    quarters: u32,
}

impl pulp::WithSimd for Waves<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        /// Half of pi, in parts of few digits, whose multiples are exact.
        const HALF_PI: [f32; 3] = [1.570_312_5, 4.837_513e-4, 7.549_79e-8];
        /// Added to a small number, it rounds the number to an integer, which are the sum's last bits.
        const ROUND: f32 = 12_582_912.0;
        for value in self.values {
            let x = *value;
            let rounded = x * FRAC_2_PI + ROUND;
            let quarter = rounded.to_bits().wrapping_add(self.quarters);
            let count = rounded - ROUND;
            let x = x - count * HALF_PI[0] - count * HALF_PI[1] - count * HALF_PI[2];
            let square = x * x;
            let sine = (-1.951_529_6e-4 * square + 8.332_161e-3) * square - 1.666_665_5e-1;
            let cosine = (2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2;
            // The sum would lose the sign of zero.
            let sine = if square == 0.0 { x } else { sine * square * x + x };
            let cosine = cosine * square * square - 0.5 * square + 1.0;
            let wave = if quarter & 1 == 0 { sine } else { cosine };
            *value = if quarter & 2 == 0 { wave } else { -wave };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares results with those of FP64, with an error of at most three units in the last place, or
    /// `least`.
    fn check(name: &str, function: fn(&mut [f32]), exact: fn(f64) -> f64, range: f32, least: f64) {
        const COUNT: i32 = 200_000;
        let given: Vec<f32> = (-COUNT..=COUNT)
            .map(|at| range * (at as f32 / COUNT as f32))
            .collect();
        let mut found = given.clone();
        function(&mut found);
        for (x, found) in given.into_iter().zip(found) {
            let expected = exact(f64::from(x));
            let digit = f64::from((expected as f32).next_up() - expected as f32).abs();
            assert!(
                (f64::from(found) - expected).abs() <= (3.0 * digit).max(least),
                "{name} of {x}: {found}, expected {expected}"
            );
        }
        let mut nothing = [f32::NAN];
        function(&mut nothing);
        assert!(nothing[0].is_nan(), "{name}");
    }

    #[test]
    fn results_are_those_of_mathematics() {
        check("atan", atan, f64::atan, 1.0, 0.0);
        check("atan", atan, f64::atan, 1e6, 0.0);
        check("asin", asin, f64::asin, 1.0, 0.0);
        check("acos", acos, f64::acos, 1.0, 0.0);
        for range in [1.0, 100.0, 9000.0] {
            check("sin", sin, f64::sin, range, 1e-7);
            check("cos", cos, f64::cos, range, 1e-7);
        }
    }

    #[test]
    fn ends_are_exact() {
        let mut ends = [f32::INFINITY, f32::NEG_INFINITY, -0.0];
        atan(&mut ends);
        assert_eq!(ends, [FRAC_PI_2, -FRAC_PI_2, 0.0]);
        assert!(ends[2].is_sign_negative());
        let mut ends = [1.5, -1.0001, f32::INFINITY];
        asin(&mut ends);
        assert!(ends.iter().all(|end| end.is_nan()));
        let mut ends = [1.0, -1.0, 0.0];
        acos(&mut ends);
        assert_eq!(ends, [0.0, PI, FRAC_PI_2]);
        let mut ends = [f32::INFINITY, 1e30, -0.0];
        sin(&mut ends);
        assert!(ends[0].is_nan() && ends[1] == 1e30f32.sin());
        assert_eq!(ends[2].to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn elements_do_not_depend_on_each_other() {
        for function in [sin, cos] {
            let mut alone: Vec<f32> = (0u8..200).map(|at| f32::from(at) * 0.37 - 30.0).collect();
            let mut others = alone.clone();
            others.extend([f32::NAN, 9000.0, f32::INFINITY]);
            function(&mut alone);
            function(&mut others);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&alone), bits(&others[..alone.len()]));
            assert!(others[alone.len()].is_nan());
        }
    }
}
