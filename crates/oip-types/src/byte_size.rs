//! Human-readable byte sizes for options and configurations.

use std::{error::Error, fmt, str::FromStr};

/// A byte size such as `64MiB`, `1GB` or `1000`. KiB, MiB, GiB and TiB (or Ki, Mi, Gi and Ti) are powers of
/// 1024; KB, MB, GB and TB are powers of 1000.
///
/// It is displayed in the largest unit that represents it exactly; `{:#}` puts a space before the unit, for
/// use in a sentence.
///
/// ```
/// use oip_types::ByteSize;
///
/// assert_eq!("512KiB".parse(), Ok(ByteSize(512 << 10)));
/// assert_eq!("1000".parse(), Ok(ByteSize(1000)));
/// assert_eq!(ByteSize(1 << 20).to_string(), "1MiB");
/// assert_eq!(format!("{:#}, {:#}", ByteSize(1 << 20), ByteSize(1000)), "1 MiB, 1000 bytes");
/// assert_eq!("1MB".parse(), Ok(ByteSize(1_000_000)));
/// assert!("1.5MB".parse::<ByteSize>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// The units with their powers of two, largest first.
const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Accepted units in upper case. A unit that is a suffix of a longer unit comes after the longer one.
const READ: [(&str, u64); 14] = [
    ("TIB", 1 << 40),
    ("GIB", 1 << 30),
    ("MIB", 1 << 20),
    ("KIB", 1 << 10),
    // Kubernetes writes binary units without the B.
    ("TI", 1 << 40),
    ("GI", 1 << 30),
    ("MI", 1 << 20),
    ("KI", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let capitals = text.to_ascii_uppercase();
        let split = READ
            .into_iter()
            .find_map(|(unit, bytes)| Some((capitals.strip_suffix(unit)?, bytes)));
        let (number, unit) = split.ok_or(ByteSizeError)?;
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
        /// A string with a unit, or a plain number of bytes.
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum StringOrNumber {
            Text(String),
            Number(u64),
        }
        match <StringOrNumber as serde::Deserialize>::deserialize(deserializer) {
            Ok(StringOrNumber::Text(text)) => text.parse().map_err(serde::de::Error::custom),
            Ok(StringOrNumber::Number(bytes)) => Ok(Self(bytes)),
            Err(_) => Err(serde::de::Error::custom(ByteSizeError)),
        }
    }
}

/// The error for a string that is not a byte size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ByteSizeError;

impl fmt::Display for ByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a number of bytes, such as 64MiB, 1GB or 1000")
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
        for (text, bytes) in [
            ("1GB", 1_000_000_000),
            ("5 kb", 5000),
            ("64mib", 64 << 20),
            ("1TiB", 1 << 40),
            ("1Gi", 1 << 30),
            ("512Mi", 512 << 20),
            ("8 ki", 8 << 10),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "MiB", "1.5MiB", "-1", "1M", "99999999999GiB", "1 G B"] {
            assert_eq!(text.parse::<ByteSize>(), Err(ByteSizeError), "{text}");
        }
    }
}
