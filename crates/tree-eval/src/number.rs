//! The number types for comparing features and summing scores.

use std::{
    fmt::Debug,
    ops::{AddAssign, Div, Neg},
};

/// A number type of features and scores: `f32` or `f64`.
pub trait Number:
    Copy + Debug + PartialOrd + AddAssign + Neg<Output = Self> + Div<Output = Self> + Send + Sync + 'static
{
    /// The number 0.
    const ZERO: Self;
    /// The value NaN, which represents a missing feature.
    const NAN: Self;

    /// Converts to the nearest number of this type.
    fn from_f64(value: f64) -> Self;
    /// Converts to `f64`, without rounding.
    fn to_f64(self) -> f64;
    /// Converts to the nearest `f32`.
    fn to_f32(self) -> f32;
    /// Returns whether the number is NaN, which represents a missing feature.
    fn is_missing(self) -> bool;
    /// Returns the next smaller number.
    fn next_down(self) -> Self;

    /// Returns the number `t` for which `x <= t` has the same result as `x <= threshold`, for every `x` of
    /// this type.
    #[must_use]
    fn at_most(threshold: f64) -> Self {
        let nearest = Self::from_f64(threshold);
        match nearest.to_f64() > threshold {
            true => nearest.next_down(),
            false => nearest,
        }
    }

    /// Returns the number `t` for which `x <= t` has the same result as `x < threshold`, for every `x` of
    /// this type.
    #[must_use]
    fn below(threshold: f64) -> Self {
        let nearest = Self::from_f64(threshold);
        match nearest.to_f64() < threshold {
            true => nearest,
            // No number is below negative infinity, and comparisons with NaN are false.
            false if threshold == f64::NEG_INFINITY => Self::NAN,
            false => nearest.next_down(),
        }
    }
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            const ZERO: Self = 0.0;
            const NAN: Self = Self::NAN;

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_f64(self) -> f64 {
                self.into()
            }

            fn to_f32(self) -> f32 {
                self as f32
            }

            fn is_missing(self) -> bool {
                self.is_nan()
            }

            fn next_down(self) -> Self {
                self.next_down()
            }
        }
    };
}
number!(f32);
number!(f64);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rounded_thresholds_say_the_same(x in any::<f32>(), threshold in any::<f64>()) {
            prop_assert_eq!(x <= f32::at_most(threshold), f64::from(x) <= threshold);
            prop_assert_eq!(x <= f32::below(threshold), f64::from(x) < threshold);
            let x = f64::from(x);
            prop_assert_eq!(x <= f64::at_most(threshold), x <= threshold);
            prop_assert_eq!(x <= f64::below(threshold), x < threshold);
        }

        #[test]
        fn thresholds_that_are_met_say_the_same(x in any::<f32>(), bits in -2i32..3) {
            let threshold = f64::from(f32::from_bits(x.to_bits().wrapping_add_signed(bits)));
            prop_assert_eq!(x <= f32::at_most(threshold), f64::from(x) <= threshold);
            prop_assert_eq!(x <= f32::below(threshold), f64::from(x) < threshold);
        }
    }

    #[test]
    fn the_ends_say_the_same() {
        let ends = [
            f64::NEG_INFINITY,
            f64::MIN,
            f64::from(f32::MIN),
            -0.0,
            0.0,
            f64::from(f32::from_bits(1)),
            f64::MIN_POSITIVE,
            f64::from(f32::MAX),
            f64::MAX,
            f64::INFINITY,
            f64::NAN,
        ];
        for threshold in ends {
            for x in ends {
                assert_eq!(x <= f64::at_most(threshold), x <= threshold, "{x} <= {threshold}");
                assert_eq!(x <= f64::below(threshold), x < threshold, "{x} < {threshold}");
                let x = x as f32;
                let wide = f64::from(x);
                assert_eq!(
                    x <= f32::at_most(threshold),
                    wide <= threshold,
                    "{x} <= {threshold}"
                );
                assert_eq!(x <= f32::below(threshold), wide < threshold, "{x} < {threshold}");
            }
        }
    }
}
