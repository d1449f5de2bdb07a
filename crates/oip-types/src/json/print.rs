//! Prints numbers as JSON, in the shortest form that reads back as the same value.

use std::hint::select_unpredictable;

use tensor_core::{Element, bf16, f16};

/// Buffer size for any number, with slack for the wide stores that write it.
pub(super) const ROOM: usize = 48;

/// An element type that has a JSON form.
///
/// Printing has two steps, each of which runs over a whole block of elements. The processor overlaps the
/// iterations of two short loops better than those of one long loop.
pub(super) trait JsonPrint: Element {
    /// The result of the first step of printing, which the second step writes.
    type FirstStep: Copy + Default;

    /// Typical length in characters, comma included; used to reserve capacity.
    const TYPICAL_LEN: usize;

    /// Runs the first step of printing.
    fn prepare(self) -> Self::FirstStep;

    /// Writes the element at the start of `out` and returns its length in characters; `None` for NaN and the
    /// infinities, which JSON cannot express.
    fn print(prepared: Self::FirstStep, out: &mut [u8; ROOM]) -> Option<usize>;
}

/// Implements the first step as a no-op.
macro_rules! prepared_as_it_is {
    () => {
        type FirstStep = Self;

        #[inline]
        fn prepare(self) -> Self {
            self
        }
    };
}

macro_rules! print_integers {
    ($($type:ty, $typical_len:literal;)*) => {$(
        impl JsonPrint for $type {
            prepared_as_it_is!();

            const TYPICAL_LEN: usize = $typical_len;

            #[inline]
            fn print(value: Self, out: &mut [u8; ROOM]) -> Option<usize> {
                #[allow(unused_comparisons, reason = "half of the types have no sign")]
                let negative = value < 0;
                #[allow(clippy::unnecessary_cast, reason = "one of the types is the widest")]
                let magnitude = value.abs_diff(0) as u64;
                if magnitude >= 100_000_000 {
                    return Some(copy(itoa::Buffer::new().format(value), out));
                }
                let digits = eight_digits(magnitude as u32);
                // Setting bit 56 keeps one digit for the number 0.
                let leading_zeros = (digits | 1 << 56).trailing_zeros() / 8;
                out[0] = b'-';
                put(out, usize::from(negative), &((digits | ASCII_ZEROS) >> (8 * leading_zeros)).to_le_bytes());
                Some(usize::from(negative) + 8 - leading_zeros as usize)
            }
        }
    )*};
}

print_integers! { u8, 4; u16, 6; u32, 8; u64, 8; i8, 5; i16, 7; i32, 8; i64, 8; }

impl JsonPrint for bool {
    prepared_as_it_is!();

    const TYPICAL_LEN: usize = 6;

    #[inline]
    fn print(value: Self, out: &mut [u8; ROOM]) -> Option<usize> {
        Some(copy(if value { "true" } else { "false" }, out))
    }
}

impl JsonPrint for f64 {
    prepared_as_it_is!();

    const TYPICAL_LEN: usize = 20;

    #[inline]
    fn print(value: Self, out: &mut [u8; ROOM]) -> Option<usize> {
        value
            .is_finite()
            .then(|| copy(zmij::Buffer::new().format_finite(value), out))
    }
}

impl JsonPrint for f32 {
    /// The digits are zero if the value needs the slow path.
    type FirstStep = (Self, Digits);

    const TYPICAL_LEN: usize = 12;

    #[inline]
    fn prepare(self) -> Self::FirstStep {
        (self, Digits::of(self).unwrap_or_default())
    }

    #[inline(always)]
    fn print((value, digits): Self::FirstStep, out: &mut [u8; ROOM]) -> Option<usize> {
        if digits.digits != 0 {
            return Some(digits.write(value.is_sign_negative(), out));
        }
        value
            .is_finite()
            .then(|| copy(zmij::Buffer::new().format_finite(value), out))
    }
}

macro_rules! print_narrow_floats {
    ($($type:ty)*) => {$(
        /// Prints the value as an `f32`.
        impl JsonPrint for $type {
            type FirstStep = <f32 as JsonPrint>::FirstStep;

            const TYPICAL_LEN: usize = f32::TYPICAL_LEN;

            #[inline]
            fn prepare(self) -> Self::FirstStep {
                self.to_f32().prepare()
            }

            #[inline]
            fn print(prepared: Self::FirstStep, out: &mut [u8; ROOM]) -> Option<usize> {
                f32::print(prepared, out)
            }
        }
    )*};
}

print_narrow_floats!(f16 bf16);

/// The shortest digits of an `f32` between about 1e-5 and 1e9.
///
/// An `f32` has 24 bits of mantissa and an `f64` has 53, so the shortest decimal that rounds to an `f32` can
/// be found in `f64` arithmetic. The value is scaled by a power of ten such that half the gap to its
/// neighbours is 5 to 50. Then every `f32` has a multiple of 10 within that gap, and at most one multiple of
/// 100. A multiple of 100 is the shortest decimal if there is one; otherwise the nearest multiple of 10 is.
/// The scaling error is at most 2e-7; values closer than that to a boundary are left to `zmij`.
#[derive(Clone, Copy, Default)]
pub(super) struct Digits {
    /// Nine digits, the first one nonzero.
    digits: u32,
    /// The power of ten of the first digit.
    exponent: i32,
}

impl Digits {
    #[inline]
    fn of(value: f32) -> Option<Self> {
        const MARGIN: f64 = 1e-6;
        let bits = value.to_bits() & 0x7fff_ffff;
        let scale = SCALES.get(((bits >> 23) as usize).wrapping_sub(SCALES_FROM))?;
        let scaled = f64::from(f32::from_bits(bits)) * scale.factor;
        // The gap below a power of two is half the gap above it.
        let is_power_of_two = bits & 0x007f_ffff == 0;
        let half_gap = if is_power_of_two {
            scale.half_gap / 2.0
        } else {
            scale.half_gap
        };

        let (hundreds, tens) = (round(scaled * 0.01), round(scaled * 0.1));
        let distance = (hundreds * 100.0 - scaled).abs();
        let too_close_to_tell = (distance - half_gap).abs() <= MARGIN;
        let tens_is_out = (tens * 10.0 - scaled).abs() >= half_gap - MARGIN;
        let is_hundred = distance < half_gap;
        if too_close_to_tell || tens_is_out || (is_power_of_two && !is_hundred) {
            return None;
        }
        let digits = select_unpredictable(is_hundred, integer(hundreds * 10.0), integer(tens));
        // Pads the digits, of which there are seven to nine, to nine.
        let (short, shorter) = (digits < 100_000_000, digits < 10_000_000);
        let digits = select_unpredictable(short, digits.wrapping_mul(10), digits);
        let digits = select_unpredictable(shorter, digits.wrapping_mul(10), digits);
        let shift = i32::from(short) + i32::from(shorter);
        Some(Self {
            digits,
            exponent: 9 - scale.exponent - shift,
        })
    }

    #[inline(always)]
    fn write(self, negative: bool, out: &mut [u8; ROOM]) -> usize {
        let first = self.digits / 100_000_000;
        let others = eight_digits(self.digits % 100_000_000);
        // The last digit of the number is in the highest byte.
        let trailing_zeros = others.swap_bytes().trailing_zeros() / 8;
        let significant = 9 - trailing_zeros as usize;
        let text = u128::from(first) | u128::from(others) << 8 | u128::from_ne_bytes([b'0'; 16]);
        out[0] = b'-';
        let start = usize::from(negative);
        if self.exponent < 0 {
            put(out, start, b"0.000000");
            let at = start + (1 - self.exponent) as usize;
            put(out, at, &text.to_le_bytes());
            return at + significant;
        }
        let integer_digits = self.exponent as usize + 1;
        if integer_digits < 8 {
            // Writes all digits shifted by one, then overwrites the front with the digits before the point.
            put(out, start + 1, &text.to_le_bytes());
            let (digits, point) = (text as u64, 8 * integer_digits);
            let before = (1 << point) - 1;
            let behind = digits << 8 & !before << 8;
            put(
                out,
                start,
                &(digits & before | u64::from(b'.') << point | behind).to_le_bytes(),
            );
        } else {
            put(out, start, &text.to_le_bytes());
            put(out, start + integer_digits, b".");
            put(
                out,
                start + integer_digits + 1,
                &(text >> (8 * integer_digits)).to_le_bytes(),
            );
        }
        start + 1 + significant.max(integer_digits + 1)
    }
}

/// Adding this number to a smaller one rounds the sum to an integer, since no mantissa bits are left for a
/// fraction.
const NO_FRACTION: f64 = (1u64 << 52) as f64;

/// Rounds a non-negative number below 2^51 to the nearest integer.
#[inline]
fn round(value: f64) -> f64 {
    (value + NO_FRACTION) - NO_FRACTION
}

/// Converts an integral value below 2^32 to an integer.
#[inline]
fn integer(value: f64) -> u32 {
    (value + NO_FRACTION).to_bits() as u32
}

/// The scaling for one binary exponent.
#[derive(Clone, Copy)]
struct Scale {
    /// The power of ten that values are multiplied by, and its exponent.
    factor: f64,
    exponent: i32,
    /// Half the gap between neighbouring values after scaling: at least 5, less than 50.
    half_gap: f64,
}

/// The biased exponent of the first of [`SCALES`]: 2^-17, about 7.6e-6.
const SCALES_FROM: usize = 110;

/// Scalings by biased exponent of an `f32`, starting at [`SCALES_FROM`], for values below 2^29 (about 5.4e8).
const SCALES: [Scale; 46] = {
    let mut scales = [Scale {
        factor: 1.0,
        exponent: 0,
        half_gap: 0.0,
    }; 46];
    // Half a unit in the last place of a mantissa of 24 bits.
    let mut half_gap = 1.0 / (1u64 << (127 - SCALES_FROM + 24)) as f64;
    let mut index = 0;
    while index < scales.len() {
        let scale = &mut scales[index];
        while half_gap * scale.factor < 5.0 {
            scale.factor *= 10.0;
            scale.exponent += 1;
        }
        scale.half_gap = half_gap * scale.factor;
        half_gap *= 2.0;
        index += 1;
    }
    scales
};

const ASCII_ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);

/// Returns the eight decimal digits of a number below 100,000,000, the first in the lowest byte.
#[inline(always)]
fn eight_digits(value: u32) -> u64 {
    // Splits into halves, quarters, digits; each step divides all lanes at once by multiplication.
    let value = u64::from(value);
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | (fours - hundreds * 100) << 16;
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (twos - tens * 10) << 8
}

/// Copies `N` bytes to offset `at` in the buffer. `N` is constant, so this compiles to a single store.
#[inline(always)]
fn put<const N: usize>(out: &mut [u8; ROOM], at: usize, bytes: &[u8; N]) {
    out[at..at + N].copy_from_slice(bytes);
}

#[inline]
fn copy(text: &str, out: &mut [u8; ROOM]) -> usize {
    out[..text.len()].copy_from_slice(text.as_bytes());
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn print<T: JsonPrint>(value: T) -> String {
        let mut out = [b'x'; ROOM];
        let len = T::print(value.prepare(), &mut out).unwrap();
        String::from_utf8(out[..len].to_vec()).unwrap()
    }

    fn significant_digits(text: &str) -> usize {
        let mantissa: String = text
            .split(['e', 'E'])
            .next()
            .unwrap()
            .chars()
            .filter(char::is_ascii_digit)
            .collect();
        mantissa.trim_start_matches('0').trim_end_matches('0').len()
    }

    /// Checks that the output parses back to `value`, has as few digits as the standard library's, and is
    /// valid JSON.
    fn check_f32(value: f32) {
        let text = print(value);
        assert_eq!(text.parse::<f32>().unwrap().to_bits(), value.to_bits(), "{text}");
        assert_eq!(
            significant_digits(&text),
            significant_digits(&format!("{value:e}")),
            "{text}"
        );
        assert!(serde_json::from_str::<f64>(&text).is_ok(), "{text}");
    }

    #[test]
    fn forms() {
        for (value, text) in [
            (0.0f32, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (0.1, "0.1"),
            (0.3, "0.3"),
            (255.0, "255.0"),
            (123456790.0, "123456790.0"),
            (16777216.0, "16777216.0"),
            (0.00001, "0.00001"),
            (1.1754944e-38, "1.1754944e-38"),
            (33554432.0, "33554432.0"),
            (9.536_743e-7, "9.536743e-7"),
        ] {
            assert_eq!(print(value), text);
        }
        assert_eq!(print(f16::from_f32(0.1)), "0.099975586");
        assert_eq!(print(0.1f64), "0.1");
        assert_eq!(f32::print(f32::NAN.prepare(), &mut [0; ROOM]), None);
        assert_eq!(f64::print(f64::INFINITY, &mut [0; ROOM]), None);
    }

    #[test]
    fn every_kind_of_f32_in_steps() {
        for bits in (0..=u32::MAX).step_by(20_011) {
            let value = f32::from_bits(bits);
            if value.is_finite() {
                check_f32(value);
            }
        }
    }

    #[test]
    fn values_around_powers_of_two_and_ten() {
        let twos = (-149..128).map(|exponent| 2f32.powi(exponent));
        let tens = (-45..39).map(|exponent| format!("1e{exponent}").parse::<f32>().unwrap());
        for value in twos.chain(tens) {
            for near in [value.next_down(), value, value.next_up(), -value] {
                check_f32(near);
            }
        }
    }

    #[test]
    fn integers_of_every_length() {
        for exponent in 0..20 {
            for value in [
                10u64.pow(exponent) - 1,
                10u64.pow(exponent),
                10u64.pow(exponent) + 7,
            ] {
                assert_eq!(print(value), value.to_string());
                if let Ok(value) = i64::try_from(value) {
                    assert_eq!(print(-value), (-value).to_string());
                }
            }
        }
        assert_eq!(print(u64::MAX), u64::MAX.to_string());
        assert_eq!(print(i64::MIN), i64::MIN.to_string());
        assert_eq!(
            [print(i8::MIN), print(i16::MIN), print(0u8), print(u8::MAX)],
            ["-128", "-32768", "0", "255"]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn ordinary_floats(exponent in 100u32..160, mantissa in 0u32..1 << 23) {
            check_f32(f32::from_bits(exponent << 23 | mantissa));
        }

        #[test]
        fn short_decimals(digits in 0u32..100_000_000, exponent in -12i32..4) {
            check_f32(format!("{digits}e{exponent}").parse().unwrap());
        }

        #[test]
        fn eight_digits_are_the_digits(value in 0u32..100_000_000) {
            let text: String = eight_digits(value).to_le_bytes().iter().map(ToString::to_string).collect();
            prop_assert_eq!(text, format!("{value:08}"));
        }
    }
}
