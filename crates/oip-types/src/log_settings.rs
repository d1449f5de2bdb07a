//! Settings of the logging extension.

use std::{collections::BTreeMap, fmt};

use tensor_core::QuotedName;

/// Settings of the logging extension, by name: `log_info`, `log_verbose_level` and so on.
pub type LogSettings = BTreeMap<String, LogSetting>;

/// The value of a log setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "rest",
    derive(serde::Serialize, serde::Deserialize),
    serde(untagged)
)]
pub enum LogSetting {
    /// A switch, such as `log_info`.
    Bool(bool),
    /// A level, such as `log_verbose_level`.
    Uint32(u32),
    /// A name, such as `log_format`.
    String(String),
}

impl fmt::Display for LogSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Uint32(value) => value.fmt(f),
            Self::String(value) => QuotedName(value).fmt(f),
        }
    }
}
