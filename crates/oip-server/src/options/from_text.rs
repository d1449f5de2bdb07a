//! Deserializes values of the configuration file that are strings, such as permissions.

use std::{fmt::Display, str::FromStr};

use serde::{Deserialize, Deserializer, de::Error};

/// Deserializes a value from a string.
pub(super) fn from_text<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(Error::custom)
}
