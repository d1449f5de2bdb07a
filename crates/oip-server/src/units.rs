//! Durations and sizes as people write them.

use std::{fmt, str::FromStr, time::Duration};

pub(crate) use oip_types::ByteSize;
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

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_they_are_written() {
        assert_eq!("1m 30s".parse(), Ok(HumanDuration(Duration::from_secs(90))));
        assert!("30".parse::<HumanDuration>().unwrap_err().contains("30s"));
    }
}
