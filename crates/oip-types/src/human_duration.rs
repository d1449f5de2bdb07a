//! Human-readable durations for options and configurations.

use std::{error::Error, fmt, str::FromStr, time::Duration};

/// A duration such as `30s`, `500ms` or `2min`; a plain number is in seconds.
///
/// ```
/// use std::time::Duration;
///
/// use oip_types::HumanDuration;
///
/// assert_eq!("500ms".parse(), Ok(HumanDuration(Duration::from_millis(500))));
/// assert_eq!("1m 30s".parse(), Ok(HumanDuration(Duration::from_secs(90))));
/// assert_eq!("0.5".parse(), Ok(HumanDuration(Duration::from_millis(500))));
/// assert!("soon".parse::<HumanDuration>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

impl FromStr for HumanDuration {
    type Err = HumanDurationError;

    fn from_str(text: &str) -> Result<Self, HumanDurationError> {
        let fail = |message: String| HumanDurationError { message };
        if let Ok(seconds) = text.trim().parse::<f64>() {
            return Duration::try_from_secs_f64(seconds)
                .map(Self)
                .map_err(|_| fail(format!("expected a number of seconds from 0, found '{text}'")));
        }
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|error| fail(format!("{error}; write it as 30s, 500ms, 2min or 30 (seconds)")))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

#[cfg(feature = "rest")]
impl<'de> serde::Deserialize<'de> for HumanDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;

        /// A string with a unit, or a plain number of seconds.
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum StringOrNumber {
            Text(String),
            Number(f64),
        }
        let text = match <StringOrNumber as serde::Deserialize>::deserialize(deserializer) {
            Ok(StringOrNumber::Text(text)) => text,
            Ok(StringOrNumber::Number(seconds)) => seconds.to_string(),
            Err(_) => {
                return Err(D::Error::custom(
                    "expected a time, such as \"30s\" or 30 (seconds)",
                ));
            }
        };
        text.parse().map_err(D::Error::custom)
    }
}

/// The error for a string that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HumanDurationError {
    message: String,
}

impl fmt::Display for HumanDurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for HumanDurationError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_they_are_written() {
        for (text, time) in [
            ("1m 30s", Duration::from_secs(90)),
            ("5", Duration::from_secs(5)),
            ("0.25", Duration::from_millis(250)),
            ("2min", Duration::from_secs(120)),
        ] {
            assert_eq!(text.parse(), Ok(HumanDuration(time)), "{text}");
        }
        assert_eq!(HumanDuration(Duration::from_secs(90)).to_string(), "1m 30s");
        for wrong in ["30x", "", "x", "-1", "NaN", "inf", "1e300", "5 parsecs"] {
            assert!(wrong.parse::<HumanDuration>().is_err(), "{wrong}");
        }
        let error = "30x".parse::<HumanDuration>().unwrap_err();
        assert!(error.to_string().contains("500ms"));
    }
}
