//! Scans JSON numbers and converts them to floats and exact integers.

/// A JSON number as written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<'a> {
    text: &'a str,
    /// Whether the number has neither a point nor an exponent.
    is_plain: bool,
}

impl<'a> Number<'a> {
    /// Scans a number at the start of `text`.
    ///
    /// The error is the position of the first byte that breaks the grammar.
    pub(crate) fn scan(text: &'a str) -> Result<Self, usize> {
        let bytes = text.as_bytes();
        let start = usize::from(bytes.first() == Some(&b'-'));
        let integer_end = digits(bytes, start)?;
        if integer_end > start + 1 && bytes[start] == b'0' {
            return Err(start + 1);
        }
        let mut at = integer_end;
        if bytes.get(at) == Some(&b'.') {
            at = digits(bytes, at + 1)?;
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            let sign = bytes.get(at + 1).filter(|byte| matches!(byte, b'+' | b'-'));
            at = digits(bytes, at + 1 + usize::from(sign.is_some()))?;
        }
        Ok(Self {
            text: &text[..at],
            is_plain: at == integer_end,
        })
    }

    /// Returns the number as written.
    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns whether the number has neither a point nor an exponent.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Returns the nearest `f64`; infinite when it is out of range.
    pub(crate) fn to_f64(self) -> f64 {
        // Rust's float grammar includes JSON's.
        self.text.parse().unwrap_or(f64::NAN)
    }

    /// Returns the nearest `f32`; infinite when it is out of range.
    pub(crate) fn to_f32(self) -> f32 {
        self.text.parse().unwrap_or(f32::NAN)
    }

    /// Returns the number as an exact integer, for example 12 for both `12` and `1.20e1`. Returns `None` if
    /// the number has a fraction or is far too large for 64 bits.
    pub(crate) fn to_integer(self) -> Option<i128> {
        /// Maximum number of digits of a 64-bit integer.
        const MAX_INTEGER_DIGITS: i64 = 20;
        if self.is_plain {
            return self.text.parse().ok();
        }
        let (mantissa, exponent) = self.text.split_once(['e', 'E']).unwrap_or((self.text, "0"));
        let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [integer, fraction].concat();
        let unsigned = digits.trim_start_matches('-').trim_start_matches('0');
        let significant = unsigned.trim_end_matches('0');
        if significant.is_empty() {
            return Some(0);
        }
        // The value is `significant` followed by `zeros` zeros. If the exponent overflows `i64`, the integer
        // is out of range.
        let dropped = (unsigned.len() - significant.len()) as i64;
        let zeros = exponent
            .parse::<i64>()
            .ok()?
            .checked_add(dropped - fraction.len() as i64)?;
        if zeros < 0 || zeros.checked_add(significant.len() as i64)? > MAX_INTEGER_DIGITS {
            return None;
        }
        let value = significant.parse::<i128>().ok()? * 10i128.pow(zeros as u32);
        Some(if integer.starts_with('-') { -value } else { value })
    }
}

/// Returns the end of the digits that start at `at`; fails without at least one digit.
fn digits(bytes: &[u8], at: usize) -> Result<usize, usize> {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest.iter().take_while(|byte| byte.is_ascii_digit()).count() {
        0 => Err(at),
        count => Ok(at + count),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(text: &str) -> Number<'_> {
        let number = Number::scan(text).unwrap_or_else(|at| panic!("{text} at {at}"));
        assert_eq!(number.text(), text);
        number
    }

    #[test]
    fn the_grammar_is_jsons() {
        for (text, valid) in [
            ("", 0),
            ("-", 1),
            ("+1", 0),
            (".5", 0),
            ("01", 1),
            ("-01", 2),
            ("1.", 2),
            ("1.e5", 2),
            ("1e", 2),
            ("1e+", 3),
            ("x", 0),
            ("-x", 1),
            ("Infinity", 0),
        ] {
            assert_eq!(
                Number::scan(text).map(|number| number.text()),
                Err(valid),
                "{text}"
            );
        }
        for (text, number) in [
            ("0,", "0"),
            ("-0.50]", "-0.50"),
            ("1e5 ", "1e5"),
            ("12E-3x", "12E-3"),
            ("0.1.2", "0.1"),
        ] {
            assert_eq!(Number::scan(text).unwrap().text(), number);
        }
    }

    #[test]
    fn integers_are_exact() {
        for (text, value) in [
            ("9007199254740993", 9_007_199_254_740_993),
            ("-9223372036854775808", i64::MIN.into()),
            ("18446744073709551615", u64::MAX.into()),
            ("18446744073709551616", u64::MAX as i128 + 1),
            ("3.0", 3),
            ("1.20e1", 12),
            ("1e3", 1000),
            ("-0", 0),
            ("0.0e99", 0),
            ("1200e-2", 12),
            ("9007199254740993.0", 9_007_199_254_740_993),
            ("0.00012e5", 12),
        ] {
            assert_eq!(scan(text).to_integer(), Some(value), "{text}");
        }
        for text in [
            "1.5",
            "1e-1",
            "1e30",
            "1234567890123456789012345678901234567890",
            "1e999999999999999999999",
            "12e-2",
        ] {
            assert_eq!(scan(text).to_integer(), None, "{text}");
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
            "1.17549435e-38",
            "1e-45",
            "7e-46",
            "3.4028235e38",
            "3.4028236e38",
            "1e39",
            "340282356779733661637539395458142568447",
            "8388609.5",
            "0.000000000000000000000000000000000000011754943",
            "2.2250738585072011e-308",
            "1e23",
            "9007199254740993",
            "1.7976931348623159e308",
            "0",
            "-0.0",
            "0e5",
            "1.00000005960464477539062500000000000000000000000001",
            "123456789012345678901234567890e-20",
        ] {
            assert_eq!(
                scan(text).to_f32().to_bits(),
                text.parse::<f32>().unwrap().to_bits(),
                "{text}"
            );
            assert_eq!(
                scan(text).to_f64().to_bits(),
                text.parse::<f64>().unwrap().to_bits(),
                "{text}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn every_f32_reads_back(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            for text in [format!("{value:?}"), format!("{value:e}"), format!("{:?}", f64::from(value)), format!("{value:.3}")] {
                prop_assert_eq!(scan(&text).to_f32().to_bits(), text.parse::<f32>().unwrap().to_bits(), "{}", text);
            }
        }

        #[test]
        fn values_next_to_the_middle_of_two_f32_round_right(bits: u32, nudge in -3i64..=3) {
            let value = f32::from_bits(bits & 0x7fff_ffff);
            prop_assume!(value.is_finite() && value != f32::MAX);
            let middle = (f64::from(value) + f64::from(value.next_up())) / 2.0;
            let near = f64::from_bits((middle.to_bits() as i64 + nudge) as u64);
            for text in [format!("{near:?}"), format!("{near:.25e}"), format!("{near:.17e}")] {
                prop_assert_eq!(scan(&text).to_f32().to_bits(), text.parse::<f32>().unwrap().to_bits(), "{}", text);
            }
        }

        #[test]
        fn every_f64_reads_back(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            for text in [format!("{value:?}"), format!("{value:e}"), format!("{value:.5}")] {
                prop_assert_eq!(scan(&text).to_f64().to_bits(), text.parse::<f64>().unwrap().to_bits(), "{}", text);
            }
        }

        #[test]
        fn any_decimal_reads_as_the_standard_library_reads_it(text in "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?") {
            prop_assert_eq!(scan(&text).to_f32().to_bits(), text.parse::<f32>().unwrap().to_bits());
            prop_assert_eq!(scan(&text).to_f64().to_bits(), text.parse::<f64>().unwrap().to_bits());
        }

        #[test]
        fn any_integer_reads_back(value: i64, unsigned: u64) {
            prop_assert_eq!(scan(&value.to_string()).to_integer(), Some(value.into()));
            prop_assert_eq!(scan(&unsigned.to_string()).to_integer(), Some(unsigned.into()));
        }
    }
}
