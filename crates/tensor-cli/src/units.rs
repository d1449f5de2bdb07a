//! Sizes and times as people write them.

#[cfg(feature = "client")]
use std::time::Duration;

/// A number of bytes, with a unit as Hugging Face's libraries read it: GB is 10^9, GiB is 2^30.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("KIB", 1 << 10),
        ("MIB", 1 << 20),
        ("GIB", 1 << 30),
        ("TIB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
        ("", 1),
    ];
    let upper = text.to_ascii_uppercase();
    let split = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((upper.strip_suffix(unit)?, *bytes)));
    let parsed = split.and_then(|(number, unit)| number.trim().parse::<u64>().ok()?.checked_mul(unit));
    parsed
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "expected a size such as 5GB, 512MiB or 1000000".to_owned())
}

/// Reads a time with a unit, or seconds.
#[cfg(feature = "client")]
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.trim().parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| "expected seconds from 0".to_owned());
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it as 30s, 500ms, 2min or 30 (seconds)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("5GB", 5_000_000_000),
            ("5 gib", 5 << 30),
            ("7", 7),
            ("3B", 3),
            ("1MB", 1_000_000),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GB", "0", "-1", "5G", "1.5GB", "99999999999TB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[cfg(feature = "client")]
    #[test]
    fn times_have_units_or_are_seconds() {
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        for wrong in ["", "x", "-1", "inf", "5 parsecs"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
