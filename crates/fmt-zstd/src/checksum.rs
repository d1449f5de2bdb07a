//! Checksums of blobs, and the strings that represent them in files.

use std::fmt;

use fmt_core::{Error, ErrorKind};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3Default;

use crate::rules::CHECKSUMS;

/// The algorithm of a checksum.
///
/// ```
/// use fmt_zstd::{ChecksumKind, Hasher};
/// let mut hasher = Hasher::new(ChecksumKind::Crc32c);
/// hasher.update(b"123456789");
/// assert_eq!(hasher.finish().to_string(), "crc32c:0xE3069283");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChecksumKind {
    /// CRC-32C (Castagnoli): detects damage, almost for free on CPUs with an instruction for it.
    Crc32c,
    /// SHA-256: also detects tampering, if the index itself can be trusted. SHA-256 is about ten times slower
    /// than CRC-32C.
    Sha256,
    /// 64-bit XXH3: detects damage, fast on any CPU.
    Xxh3,
}

/// The value of a checksum, either parsed from a file or computed.
///
/// ```
/// use fmt_zstd::Claim;
/// assert_eq!(Claim::parse("crc32c:0xE3069283"), Claim::Crc32c(0xE306_9283));
/// assert_eq!(Claim::parse("md5:00"), Claim::Unknown);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// CRC-32C.
    Crc32c(u32),
    /// SHA-256, boxed because few tensors have such a checksum.
    Sha256(Box<[u8; 32]>),
    /// 64-bit XXH3.
    Xxh3(u64),
    /// A checksum of an unknown kind, which is not an error.
    Unknown,
}

impl Claim {
    /// Creates a placeholder of this kind whose string has the same length as that of a real checksum.
    #[must_use]
    pub fn blank(kind: ChecksumKind) -> Self {
        match kind {
            ChecksumKind::Crc32c => Self::Crc32c(0),
            ChecksumKind::Sha256 => Self::Sha256(Box::default()),
            ChecksumKind::Xxh3 => Self::Xxh3(0),
        }
    }

    /// Parses a string like `crc32c:0x1234ABCD` or `sha256:...`, with digits in either case. Any other string
    /// gives [`Claim::Unknown`].
    #[must_use]
    pub fn parse(text: &str) -> Self {
        fn digits(text: &str) -> Option<&str> {
            let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
            let digits = digits.unwrap_or(text);
            digits
                .bytes()
                .all(|byte| byte.is_ascii_hexdigit())
                .then_some(digits)
        }
        let known = match text.split_once(':') {
            Some(("crc32c", hex)) => {
                let hex = digits(hex).filter(|hex| (1..=8).contains(&hex.len()));
                let value = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
                value.map(Self::Crc32c)
            }
            Some(("sha256", hex)) => {
                let value = digits(hex).and_then(|hex| sha256_of(hex.as_bytes()));
                value.map(|value| Self::Sha256(Box::new(value)))
            }
            _ => None,
        };
        known.unwrap_or(Self::Unknown)
    }

    /// Parses a string in the strict form: `xxh3:` or `sha256:` followed by all of its hexadecimal digits, in
    /// lower case.
    ///
    /// # Errors
    /// Returns the expected form, if the string is ill-formed.
    pub fn parse_digest(text: &str) -> Result<Self, &'static str> {
        let is_lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let expected = "an algorithm, a colon, and lower-case hexadecimal digits";
        let (algorithm, hex) = text.split_once(':').ok_or(expected)?;
        if algorithm.is_empty() || hex.is_empty() || !hex.bytes().all(is_lower) {
            return Err(expected);
        }
        match algorithm {
            "xxh3" if hex.len() == 16 => u64::from_str_radix(hex, 16).map(Self::Xxh3).map_err(|_| expected),
            "xxh3" => Err("xxh3: and 16 hexadecimal digits"),
            "sha256" => {
                let value = sha256_of(hex.as_bytes()).ok_or("sha256: and 64 hexadecimal digits")?;
                Ok(Self::Sha256(Box::new(value)))
            }
            _ => Ok(Self::Unknown),
        }
    }

    /// Returns the length of the string from [`fmt::Display`].
    #[must_use]
    pub fn text_len(&self) -> usize {
        match self {
            Self::Crc32c(_) => 9 + 8,
            Self::Sha256(_) => 7 + 64,
            Self::Xxh3(_) => 5 + 16,
            Self::Unknown => 0,
        }
    }

    /// Appends the string from [`fmt::Display`].
    pub fn push_to(&self, text: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let digit = |value: u32| DIGITS[(value & 15) as usize];
        match self {
            Self::Crc32c(value) => {
                text.extend_from_slice(b"crc32c:0x");
                text.extend((0..8).rev().map(|place| digit(value >> (4 * place))));
            }
            Self::Sha256(value) => {
                text.extend_from_slice(b"sha256:");
                let digits = value.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                text.extend(digits.map(|value| digit(value.into()).to_ascii_lowercase()));
            }
            Self::Xxh3(value) => text.extend_from_slice(format!("xxh3:{value:016x}").as_bytes()),
            Self::Unknown => {}
        }
    }

    /// Returns a hasher for this kind; `None` if the kind is unknown.
    #[must_use]
    pub fn hasher(&self) -> Option<Hasher> {
        Some(Hasher::new(match self {
            Self::Crc32c(_) => ChecksumKind::Crc32c,
            Self::Sha256(_) => ChecksumKind::Sha256,
            Self::Xxh3(_) => ChecksumKind::Xxh3,
            Self::Unknown => return None,
        }))
    }

    /// Compares the checksum `computed` from the data with this checksum.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when they differ.
    pub fn check(&self, computed: &Self) -> Result<(), Error> {
        if self == computed {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Corrupt, "the checksum of the data").rule(CHECKSUMS);
        Err(error.expected(self).found(computed))
    }
}

fn sha256_of(hex: &[u8]) -> Option<[u8; 32]> {
    let mut value = [0; 32];
    if hex.len() != 64 {
        return None;
    }
    for (byte, pair) in value.iter_mut().zip(hex.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(value)
}

/// Formats the checksum as in files: CRC-32C as in the reference implementation, SHA-256 as in `sha256sum`.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.push_to(&mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

/// A checksum computation in progress.
#[derive(Clone)]
pub struct Hasher(pub(crate) State);

#[derive(Clone)]
pub(crate) enum State {
    Crc32c(u32),
    // Boxed, because the state of SHA-256 takes 112 bytes instead of 4, and most files use another kind.
    Sha256(Box<Sha256>),
    Xxh3(Box<Xxh3Default>),
}

impl Hasher {
    /// Creates a hasher that has not hashed any bytes.
    #[must_use]
    pub fn new(kind: ChecksumKind) -> Self {
        Self(match kind {
            ChecksumKind::Crc32c => State::Crc32c(0),
            ChecksumKind::Sha256 => State::Sha256(Box::default()),
            ChecksumKind::Xxh3 => State::Xxh3(Box::default()),
        })
    }

    /// Hashes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Crc32c(value) => *value = crc32c::crc32c_append(*value, bytes),
            State::Sha256(state) => state.update(bytes),
            State::Xxh3(state) => state.update(bytes),
        }
    }

    /// Returns the checksum of all bytes that were hashed.
    #[must_use]
    pub fn finish(self) -> Claim {
        match self.0 {
            State::Crc32c(value) => Claim::Crc32c(value),
            State::Sha256(state) => Claim::Sha256(Box::new((*state).finalize().into())),
            State::Xxh3(state) => Claim::Xxh3(state.digest()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computed(kind: ChecksumKind, bytes: &[u8]) -> Claim {
        let mut hasher = Hasher::new(kind);
        bytes.chunks(3).for_each(|chunk| hasher.update(chunk));
        hasher.finish()
    }

    /// Tests the check values from the published specifications.
    #[test]
    fn known_checksums() {
        assert_eq!(
            computed(ChecksumKind::Crc32c, b"123456789").to_string(),
            "crc32c:0xE3069283"
        );
        assert_eq!(
            computed(ChecksumKind::Sha256, b"abc").to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn claims_of_every_form() {
        for text in [
            "crc32c:0xE3069283",
            "crc32c:e3069283",
            "crc32c:0Xe3069283",
            "crc32c:0xe3069283",
        ] {
            assert_eq!(Claim::parse(text), Claim::Crc32c(0xe306_9283), "{text}");
        }
        assert_eq!(Claim::parse("crc32c:0x1"), Claim::Crc32c(1));
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sha256 = computed(ChecksumKind::Sha256, b"abc");
        assert_eq!(Claim::parse(&format!("sha256:{digits}")), sha256);
        assert_eq!(
            Claim::parse(&format!("sha256:0x{}", digits.to_uppercase())),
            sha256
        );
        for text in [
            "crc32c:",
            "crc32c:0x",
            "crc32c:xyz",
            "crc32c:123456789",
            "crc32c:+1",
            "sha256:",
            "sha256:zz",
            "crc32c: 1",
            &format!("sha256:{}", &digits[1..]),
            &format!("sha256:{digits}0"),
            &format!("sha256:é{}", &digits[2..]),
        ] {
            assert_eq!(Claim::parse(text), Claim::Unknown, "{text}");
        }
        for text in ["md5:00", "", "CRC32C:00000000", "crc32c", "xxh3:1"] {
            assert_eq!(Claim::parse(text), Claim::Unknown, "{text}");
        }
    }
}
