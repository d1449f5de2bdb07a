//! Numbers of bytes as people write them, in options and configurations.

use std::{error::Error, fmt, str::FromStr};

/// A number of bytes such as `64MiB`, `2 GiB` or `1000`.
///
/// Printed, it has the largest unit that is exact; with `{:#}` as it stands in a sentence.
///
/// ```
/// use oip_types::ByteSize;
///
/// assert_eq!("512KiB".parse(), Ok(ByteSize(512 << 10)));
/// assert_eq!("1000".parse(), Ok(ByteSize(1000)));
/// assert_eq!(ByteSize(1 << 20).to_string(), "1MiB");
/// assert_eq!(format!("{:#}, {:#}", ByteSize(1 << 20), ByteSize(1000)), "1 MiB, 1000 bytes");
/// assert!("1MB".parse::<ByteSize>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// The units with their powers of two, largest first.
const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let with_unit = |(unit, bits): (&str, u32)| Some((text.strip_suffix(unit)?, 1u64 << bits));
        let (number, unit) = UNITS
            .into_iter()
            .find_map(with_unit)
            .unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
        let number = number.trim().parse::<u64>().ok();
        let bytes = number.and_then(|number| number.checked_mul(unit));
        bytes.map(Self).ok_or(ByteSizeError)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, bits): &(&str, u32)| self.0 > 0 && self.0.trailing_zeros() >= *bits;
        match (UNITS.into_iter().find(fits), f.alternate()) {
            (Some((unit, bits)), false) => write!(f, "{}{unit}", self.0 >> bits),
            (Some((unit, bits)), true) => write!(f, "{} {unit}", self.0 >> bits),
            (None, false) => write!(f, "{}B", self.0),
            (None, true) => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(feature = "rest")]
impl<'de> serde::Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A text that is not a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ByteSizeError;

impl fmt::Display for ByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a number of bytes, such as 64MiB, 512KiB or 1000")
    }
}

impl Error for ByteSizeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_written() {
        for text in ["64MiB", "512KiB", "1000B", "2GiB", "0B"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        assert_eq!("7".parse(), Ok(ByteSize(7)));
        assert_eq!("2 GiB".parse(), Ok(ByteSize(2 << 30)));
        for text in ["", "MiB", "1.5MiB", "-1", "1MB", "99999999999GiB"] {
            assert_eq!(text.parse::<ByteSize>(), Err(ByteSizeError), "{text}");
        }
    }
}
