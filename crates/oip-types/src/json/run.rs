//! The fast path: runs of ordinary numbers such as `1.25,-3,0.5,` are parsed in a tight loop.
//!
//! The fast path accepts only numbers that it is certain to parse correctly: without exponent, at most
//! [`WINDOW`] bytes long, well inside the datatype's range, followed by a comma and enough further input. It
//! stops before any other value. The full parser in `data` then reads that value or reports the error, and
//! calls the fast path again.

use tensor_core::{bf16, f16};

/// A datatype whose ordinary numbers have a fast path.
pub(super) trait Run: Sized {
    /// Parses numbers of `bytes` from offset `at` and appends them to `out` until it holds `limit`. Returns
    /// the offset after the last comma consumed.
    fn read_run(bytes: &[u8], at: usize, out: &mut Vec<Self>, limit: usize) -> usize;
}

macro_rules! integer_runs {
    ($($type:ty)*) => {$(
        impl Run for $type {
            fn read_run(bytes: &[u8], at: usize, out: &mut Vec<Self>, limit: usize) -> usize {
                run(bytes, at, out, limit, false, |text| {
                    let magnitude = text.integer()? as i64;
                    Self::try_from(if text.negative { -magnitude } else { magnitude }).ok()
                })
            }
        }
    )*};
}

integer_runs!(u8 u16 u32 u64 i8 i16 i32 i64);

macro_rules! float_runs {
    ($($type:ty, $convert:expr;)*) => {$(
        impl Run for $type {
            fn read_run(bytes: &[u8], at: usize, out: &mut Vec<Self>, limit: usize) -> usize {
                run(bytes, at, out, limit, true, |text| text.decimal().and_then($convert))
            }
        }
    )*};
}

float_runs! {
    f16, |decimal| decimal.to_f64().map(f16::from_f64).filter(|value| value.is_finite());
    bf16, |decimal| decimal.to_f64().map(bf16::from_f64).filter(|value| value.is_finite());
    f32, Decimal::to_f32;
    f64, Decimal::to_f64;
}

/// Booleans are the literals `true` and `false`; there is no fast path for them.
impl Run for bool {
    fn read_run(_: &[u8], at: usize, _: &mut Vec<Self>, _: usize) -> usize {
        at
    }
}

/// Parses values followed by commas.
///
/// Finds the commas and points of a whole block first. The bounds of a number then do not depend on parsing
/// the previous one, and the processor can work on several numbers at once.
#[inline(always)]
fn run<T>(
    bytes: &[u8],
    mut at: usize,
    out: &mut Vec<T>,
    limit: usize,
    has_points: bool,
    read: impl Fn(Text<'_>) -> Option<T>,
) -> usize {
    // Includes the `WINDOW` bytes before the block, so that a full window precedes every comma.
    while let Some(around) = at.checked_sub(WINDOW).and_then(|from| bytes.get(from..))
        && let Some(around) = around.first_chunk::<{ WINDOW + BLOCK }>()
        && let Some(block) = around.last_chunk::<BLOCK>()
        && out.len() + BLOCK <= limit
    {
        let mut commas = places(block, b',');
        let mut points = if has_points { places(block, b'.') } else { 0 };
        let mut start = 0;
        while commas != 0 {
            let end = commas.trailing_zeros() as usize % BLOCK;
            let point = points.trailing_zeros() as usize;
            commas &= commas - 1;
            points &= !0 << end;
            let window = around[end..].first_chunk();
            let text = window.and_then(|window| Text::new(window, end - start, end.wrapping_sub(point + 1)));
            let Some(value) = text.and_then(&read) else {
                return at + start;
            };
            out.push(value);
            start = end + 1;
        }
        if start == 0 {
            // No comma within a block: not a list of ordinary numbers.
            break;
        }
        at += start;
    }
    at
}

/// Number of bytes that are searched for commas and points at once, with one bit of a mask for each byte.
const BLOCK: usize = 64;

/// Maximum length of an ordinary number.
const WINDOW: usize = 24;

/// Returns a bit mask of the positions of `wanted` in a block; the first byte is the lowest bit.
#[inline(always)]
fn places(block: &[u8; BLOCK], wanted: u8) -> u64 {
    // This loop compiles to 16-byte compares; a `map` over arrays may compile to one call per byte.
    let mut equal = [0; BLOCK];
    for (equal, byte) in equal.iter_mut().zip(block) {
        *equal = u8::from(*byte == wanted);
    }
    equal
        .as_chunks::<8>()
        .0
        .iter()
        .enumerate()
        .fold(0, |places, (index, eight)| {
            // Packs eight bytes of 0 or 1 into eight bits.
            let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            places | gathered << (8 * index)
        })
}

/// The characters before a comma.
#[derive(Clone, Copy)]
struct Text<'a> {
    /// The number, right-aligned; to its left are the characters before the number.
    window: &'a [u8; WINDOW],
    negative: bool,
    /// Number of characters without the sign.
    len: usize,
    /// Number of characters after the point; more than `len` when there is no point.
    fraction: usize,
}

impl<'a> Text<'a> {
    /// Creates the text of the last `len` characters of `window`; `fraction` of them come after the point.
    #[inline(always)]
    fn new(window: &'a [u8; WINDOW], mut len: usize, fraction: usize) -> Option<Self> {
        let mut first = *window.get(WINDOW.checked_sub(len)?)?;
        if first <= b' ' {
            // JSON's white space does not include form feed.
            let spaces = window[WINDOW - len..].iter();
            len -= spaces
                .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
                .count();
            first = *window.get(WINDOW - len)?;
        }
        let negative = first == b'-';
        len -= usize::from(negative);
        Some(Self {
            window,
            negative,
            len,
            fraction,
        })
    }

    /// Parses an integer of at most 16 digits without leading zeros.
    #[inline(always)]
    fn integer(self) -> Option<u64> {
        let value = value_of(self.last_sixteen() & LAST.get(self.len)?)?;
        (value >= MIN_OF_LEN[self.len]).then_some(value)
    }

    /// Parses digits with an optional point between them.
    #[inline(always)]
    fn decimal(self) -> Option<Decimal> {
        if self.fraction >= self.len {
            let mantissa = self.integer()?;
            return Some(Decimal {
                negative: self.negative,
                mantissa,
                fraction_digits: 0,
            });
        }
        let (digits, fraction) = (self.len - 1, self.fraction);
        // There must be at least one digit on each side of the point.
        if fraction.wrapping_sub(1) >= digits.wrapping_sub(1) {
            return None;
        }
        // Up to fifteen digits and the point fit into sixteen characters.
        let mantissa = if digits < 16 {
            joined(self.last_sixteen(), fraction, digits)?
        } else {
            let tail = value_of(self.last_sixteen() & LAST[8])?;
            let head = joined(self.sixteen_before_eight(), fraction.checked_sub(8)?, digits - 8)?;
            head.checked_mul(100_000_000)?.checked_add(tail)?
        };
        let leading_zero = fraction + 1 < digits && self.window[WINDOW - self.len] == b'0';
        let fits = !leading_zero && mantissa <= i64::MAX as u64;
        fits.then_some(Decimal {
            negative: self.negative,
            mantissa,
            fraction_digits: fraction,
        })
    }

    /// Returns the values of the last sixteen characters, 0 to 9 each; other values mean the character is not
    /// a digit.
    #[inline(always)]
    fn last_sixteen(self) -> u128 {
        digit_values(self.window.last_chunk())
    }

    /// Returns the values of the sixteen characters before the last eight, like [`Self::last_sixteen`].
    #[inline(always)]
    fn sixteen_before_eight(self) -> u128 {
        digit_values(self.window.first_chunk())
    }
}

#[inline(always)]
fn digit_values(characters: Option<&[u8; 16]>) -> u128 {
    characters.map_or(0, |characters| u128::from_le_bytes(*characters)) ^ u128::from_ne_bytes([b'0'; 16])
}

/// Combines `digits` digits into a number; `fraction` of them come after the point.
#[inline(always)]
fn joined(values: u128, fraction: usize, digits: usize) -> Option<u64> {
    // Removes the point: the fraction comes from `values`, and the integer part from `moved`, where it is
    // shifted by one character.
    let moved = values << 8;
    let digits_only = moved ^ ((moved ^ values) & LAST[fraction]);
    value_of(digits_only & LAST[digits])
}

/// For each count, a mask of the last `count` of sixteen characters.
const LAST: [u128; 17] = {
    let mut masks = [0; 17];
    let mut count = 1;
    while count <= 16 {
        masks[count] = !0 << (128 - 8 * count);
        count += 1;
    }
    masks
};

/// The smallest number with each count of digits. The entry for zero digits exceeds every value, so that the
/// empty string is rejected.
const MIN_OF_LEN: [u64; 17] = {
    let mut least = [u64::MAX; 17];
    least[1] = 0;
    let mut count = 2;
    while count <= 16 {
        least[count] = 10u64.pow(count as u32 - 1);
        count += 1;
    }
    least
};

/// Combines sixteen digits into a number, the first in the lowest byte; `None` when one is not a digit.
#[inline(always)]
fn value_of(digits: u128) -> Option<u64> {
    let (high, low) = (digits as u64, (digits >> 64) as u64);
    // A byte that is not a digit has its high nibble set, either as is or after adding six.
    let above_nine = |digits: u64| digits | digits.wrapping_add(0x0606_0606_0606_0606);
    if (above_nine(high) | above_nine(low)) & 0xf0f0_f0f0_f0f0_f0f0 != 0 {
        return None;
    }
    Some(value_of_eight(high) * 100_000_000 + value_of_eight(low))
}

/// Combines eight digits into a number.
#[inline(always)]
fn value_of_eight(digits: u64) -> u64 {
    // Combines adjacent digits into pairs, then the four pairs, each with its power of ten.
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let odd = (pairs & PAIRS).wrapping_mul(1_000_000 << 32 | 100);
    let even = (pairs >> 16 & PAIRS).wrapping_mul(10_000 << 32 | 1);
    odd.wrapping_add(even) >> 32
}

/// A decimal number that fits a window.
#[derive(Clone, Copy)]
struct Decimal {
    negative: bool,
    /// All digits as one integer, within `i64`.
    mantissa: u64,
    /// Number of digits after the point.
    fraction_digits: usize,
}

impl Decimal {
    /// Returns the nearest `f64`; `None` when that takes more than one rounding.
    #[inline(always)]
    fn to_f64(self) -> Option<f64> {
        const EXACT: u64 = 1 << f64::MANTISSA_DIGITS;
        // Mantissa and power are exact, so the division rounds once.
        let value = self.mantissa as i64 as f64 / POWERS_OF_TEN.get(self.fraction_digits)?;
        (self.mantissa <= EXACT).then_some(if self.negative { -value } else { value })
    }

    /// Returns the nearest `f32`; `None` when `f64` arithmetic cannot decide which `f32` is nearest.
    #[inline(always)]
    fn to_f32(self) -> Option<f32> {
        /// The mantissa bits of an `f64` that an `f32` lacks, and their midpoint, which is halfway between
        /// two `f32`s.
        const DROPPED: u64 = (1 << 29) - 1;
        const HALFWAY: u64 = 1 << 28;
        // Three roundings give an error of at most two units in the last place. The result still rounds to
        // the right f32 unless it is next to the midpoint of two f32s. The range is far from the largest f32
        // and from subnormals.
        let near = self.mantissa as i64 as f64 * NEGATIVE_POWERS_OF_TEN.get(self.fraction_digits)?;
        let far_from_middle = (near.to_bits() & DROPPED).abs_diff(HALFWAY) > 4;
        let value = near as f32;
        (far_from_middle || self.mantissa == 0)
            .then(|| f32::from_bits(value.to_bits() | u32::from(self.negative) << 31))
    }
}

/// Powers of ten, all exact.
const POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// Negative powers of ten, each the nearest `f64`.
const NEGATIVE_POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15,
    1e-16, 1e-17, 1e-18, 1e-19, 1e-20, 1e-21, 1e-22,
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the numbers that the fast path accepted, and the unparsed end of the body.
    fn taken<T: Run>(body: &str) -> (Vec<T>, String) {
        let around = format!("{:WINDOW$}{body}{:BLOCK$}", "", "");
        let mut out = Vec::new();
        let end = T::read_run(around.as_bytes(), WINDOW, &mut out, 1000);
        (out, around[end..].trim_end().to_owned())
    }

    /// If the fast path accepts `text`, checks the result against the standard library's parser.
    fn check<T: Run + std::str::FromStr + Copy>(text: &str, bits: impl Fn(T) -> u64) {
        let (out, rest) = taken::<T>(&format!("{text},"));
        match out[..] {
            [value] => {
                let expected = text.parse::<T>().unwrap_or_else(|_| panic!("{text} was taken"));
                assert_eq!(bits(value), bits(expected), "{text}");
                assert_eq!(rest, "");
            }
            _ => assert_eq!(rest, format!("{text},")),
        }
    }

    fn check_floats(text: &str) {
        check::<f32>(text, |value| value.to_bits().into());
        check::<f64>(text, f64::to_bits);
    }

    #[test]
    fn the_loop_stops_in_front_of_what_it_does_not_take() {
        for (body, values, rest) in [
            ("1,2, -3,1]", vec![1i16, 2, -3], "1]"),
            ("70000,1]", vec![], "70000,1]"),
            ("5,1.0,", vec![5], "1.0,"),
            ("5,01,", vec![5], "01,"),
            ("5,-,", vec![5], "-,"),
            ("5,-01,", vec![5], "-01,"),
            ("5,,", vec![5], ","),
            ("5, ,", vec![5], " ,"),
            ("5,6 ,", vec![5], "6 ,"),
            ("5, \n\t 6,7", vec![5, 6], "7"),
            ("5,\u{c}6,7", vec![5], "\u{c}6,7"),
            ("5,12345678901234567,", vec![5], "12345678901234567,"),
            (
                "5,                                  6,",
                vec![5],
                "                                  6,",
            ),
        ] {
            assert_eq!(taken::<i16>(body), (values, rest.to_owned()), "{body}");
        }
        for rest in [
            "1.,", "-.5,", "1e5,", "NaN,", "00.5,", "--1,", "]", "1.2.3,", "1.5x,", ".,", "-,", "1.-5,",
            "1:,", "1/,",
        ] {
            assert_eq!(taken::<f32>(rest), (vec![], rest.to_owned()));
            assert_eq!(taken::<f64>(rest), (vec![], rest.to_owned()));
        }
        assert_eq!(taken::<u8>("255,-1,"), (vec![255], "-1,".to_owned()));
        assert_eq!(
            taken::<f16>("0.5,65520,"),
            (vec![f16::from_f32(0.5)], "65520,".to_owned())
        );
        let zeros = taken::<f32>("-0,-0.0,").0;
        assert_eq!(
            zeros.iter().map(|zero| zero.to_bits()).collect::<Vec<_>>(),
            [1 << 31; 2]
        );
    }

    /// Guards the comparisons below, which would also hold for a fast path that accepts nothing.
    #[test]
    fn ordinary_numbers_are_taken() {
        let floats = "0.5,-12.25,100,0.10000000149011612,-0.0012345678104,1234567.875,99999999.5,3.0,";
        assert_eq!(
            taken::<f32>(floats).0,
            [0.5, -12.25, 100.0, 0.1, -0.001_234_567_8, 1_234_567.9, 1e8, 3.0],
        );
        assert_eq!(taken::<f64>("0.1,2,-123456.789,").0, [0.1, 2.0, -123_456.789]);
        assert_eq!(
            taken::<i64>("-1234567890123456,0,").0,
            [-1_234_567_890_123_456, 0]
        );
        let many: Vec<f32> = (0..500).map(|index| index as f32 * 0.37).collect();
        let body: String = many.iter().map(|value| format!("{value}, ")).collect();
        assert_eq!(taken::<f32>(&body), (many, String::new()));
    }

    #[test]
    fn the_limit_is_kept() {
        let body = format!("{:WINDOW$}{}", "", "7,".repeat(1000));
        for limit in [0, 10, 63, 64, 65, 200] {
            let mut out = Vec::new();
            u8::read_run(body.as_bytes(), WINDOW, &mut out, limit);
            assert!(
                out.len() <= limit && out.len() + BLOCK > limit,
                "{limit}: {}",
                out.len()
            );
        }
    }

    #[test]
    fn hard_floats_round_right() {
        for text in [
            "0.1",
            "0.10000000149011612",
            "16777217",
            "16777216.5",
            "16777217.0000001",
            "8388609.5",
            "0.000000000000000000000000000000000000011754943",
            "9007199254740993",
            "0.3",
            "0.0",
            "0.00000000000000001",
            "1.000000059604644775390625",
            "0.500000029802322387",
            "33554434.99999999999",
        ] {
            check_floats(text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn any_float_that_is_taken_is_right(bits: u32, digits in 0usize..20) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            check_floats(&format!("{value}"));
            check_floats(&format!("{}", f64::from(value)));
            check_floats(&format!("{value:.digits$}"));
        }

        #[test]
        fn values_next_to_the_middle_of_two_f32_round_right(exponent in 100u32..150, mantissa in 0u32..1 << 23, nudge in -9i64..=9) {
            let value = f32::from_bits(exponent << 23 | mantissa);
            let middle = (f64::from(value) + f64::from(value.next_up())) / 2.0;
            let near = f64::from_bits((middle.to_bits() as i64 + nudge) as u64);
            check_floats(&format!("{near}"));
            check_floats(&format!("{near:.16}"));
        }

        #[test]
        fn any_decimal_that_is_taken_is_right(text in "-?(0|[1-9][0-9]{0,9})(\\.[0-9]{1,25})?") {
            check_floats(&text);
            check::<i64>(&text, |value| value as u64);
            // The standard library rejects a sign on unsigned integers, even `-0`.
            if text != "-0" {
                check::<u16>(&text, u64::from);
            }
        }
    }
}
