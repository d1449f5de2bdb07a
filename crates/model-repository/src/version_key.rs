//! Defines the order of a model's versions.

use std::cmp::Ordering;

/// A sort key for versions. Names come first, in lexical order, then numbers by value.
///
/// ```
/// use model_repository::VersionKey;
///
/// assert!(VersionKey::new("10") > VersionKey::new("9"));
/// assert!(VersionKey::new("2") > VersionKey::new("experimental"));
/// ```
///
/// Numbers may have any length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionKey(String);

impl VersionKey {
    /// Creates the key of a version.
    #[must_use]
    pub fn new(version: &str) -> Self {
        Self(version.to_owned())
    }

    /// Returns the version.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the digits without leading zeros, if the version is a number.
    fn number(&self) -> Option<&str> {
        let is_number = !self.0.is_empty() && self.0.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| self.0.trim_start_matches('0'))
    }
}

impl Ord for VersionKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_value = match (self.number(), other.number()) {
            (Some(this), Some(that)) => this.len().cmp(&that.len()).then_with(|| this.cmp(that)),
            (Some(_), None) => Ordering::Greater,
            (None, Some(_)) => Ordering::Less,
            (None, None) => Ordering::Equal,
        };
        by_value.then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for VersionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_above_names_and_count_by_value() {
        let mut versions = [
            "v10",
            "2",
            "10",
            "experimental",
            "01",
            "1",
            "99999999999999999999999",
            "v9",
            "0",
        ]
        .map(VersionKey::new);
        versions.sort();
        let sorted: Vec<&str> = versions.iter().map(VersionKey::as_str).collect();
        assert_eq!(
            sorted,
            [
                "experimental",
                "v10",
                "v9",
                "0",
                "01",
                "1",
                "2",
                "10",
                "99999999999999999999999"
            ]
        );
    }
}
