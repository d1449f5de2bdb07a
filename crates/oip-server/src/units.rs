//! Durations and sizes as people write them.

use std::{fmt, str::FromStr, time::Duration};

use oip_types::model_config::parse_size;
use serde::{Deserialize, Deserializer, de::Error};

/// A time such as `30s`, `500ms` or `2min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HumanDuration(pub(crate) Duration);

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|error| format!("{error}; write it as 30s, 500ms or 2min"))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// A number of bytes such as `64MiB`, `512KiB` or `1000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_size(text)
            .map(Self)
            .ok_or_else(|| "expected a number of bytes, such as 64MiB, 512KiB or 1000".to_owned())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS
            .iter()
            .find(|(_, bytes)| self.0.is_multiple_of(*bytes) && self.0 > 0);
        let (unit, bytes) = unit.unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

macro_rules! deserialize_from_str {
    ($($type:ty)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

deserialize_from_str!(HumanDuration ByteSize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_as_they_are_written() {
        for text in ["64MiB", "512KiB", "1000B", "2GiB", "0B"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        assert_eq!("7".parse(), Ok(ByteSize(7)));
        for text in ["", "MiB", "1.5MiB", "-1", "1MB", "99999999999GiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!("1m 30s".parse(), Ok(HumanDuration(Duration::from_secs(90))));
        assert!("30".parse::<HumanDuration>().unwrap_err().contains("30s"));
    }
}
