//! Parsers of sizes and durations for clap.

#[cfg(feature = "client")]
use std::time::Duration;

use oip_types::ByteSize;

/// Parses a positive size with a unit as in Hugging Face's libraries: GB is 10^9, GiB is 2^30.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let parsed = text.trim().parse().ok();
    parsed
        .filter(|ByteSize(bytes)| *bytes > 0)
        .map(|ByteSize(bytes)| bytes)
        .ok_or_else(|| "expected a size such as 5GB, 512MiB or 1000000".to_owned())
}

/// Parses a duration with a unit, or in seconds.
#[cfg(feature = "client")]
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text
        .parse()
        .map_err(|error: oip_types::HumanDurationError| error.to_string());
    parsed.map(|oip_types::HumanDuration(time)| time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_are_above_0() {
        for (text, bytes) in [("5GB", 5_000_000_000), (" 5 gib", 5 << 30), ("7", 7), ("3B", 3)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GB", "0", "0MB", "-1", "5G", "1.5GB", "99999999999TB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[cfg(feature = "client")]
    #[test]
    fn times_have_units_or_are_seconds() {
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert!(duration("5 parsecs").unwrap_err().contains("write it as"));
    }
}
