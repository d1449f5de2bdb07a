//! Durations and sizes as people write them.

use std::{fmt, str::FromStr, time::Duration};

pub(crate) use oip_types::ByteSize;
use serde::{Deserialize, Deserializer, de::Error};

/// A time such as `30s`, `500ms` or `2min`; a plain number counts seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HumanDuration(pub(crate) Duration);

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(seconds) = text.trim().parse::<f64>() {
            return Duration::try_from_secs_f64(seconds)
                .map(Self)
                .map_err(|_| format!("expected a number of seconds from 0, found '{text}'"));
        }
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|error| format!("{error}; write it as 30s, 500ms, 2min or 30 (seconds)"))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A text with a unit, or a plain number of seconds.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Number(f64),
        }
        let text = match Written::deserialize(deserializer) {
            Ok(Written::Text(text)) => text,
            Ok(Written::Number(seconds)) => seconds.to_string(),
            Err(_) => {
                return Err(D::Error::custom(
                    "expected a time, such as \"30s\" or 30 (seconds)",
                ));
            }
        };
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_they_are_written() {
        assert_eq!("1m 30s".parse(), Ok(HumanDuration(Duration::from_secs(90))));
        assert_eq!("5".parse(), Ok(HumanDuration(Duration::from_secs(5))));
        assert_eq!("0.25".parse(), Ok(HumanDuration(Duration::from_millis(250))));
        for wrong in ["30x", "", "-1", "NaN", "inf", "1e300"] {
            assert!(wrong.parse::<HumanDuration>().is_err(), "{wrong}");
        }
        assert!("30x".parse::<HumanDuration>().unwrap_err().contains("500ms"));
    }
}
