//! Options of the access log.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Deserialize;

/// Options of the access log.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct TrafficOptions {
    /// Whether a line is written for each request, once its response is sent [default: off]
    #[arg(long, env = "OIP_ACCESS_LOG", hide_env = true, value_name = "FORM")]
    pub(crate) access_log: Option<AccessLogForm>,

    /// The file that these lines are appended to; SIGHUP reopens it [default: standard error]
    #[arg(long, env = "OIP_ACCESS_LOG_FILE", hide_env = true, value_name = "FILE")]
    pub(crate) access_log_file: Option<PathBuf>,
}

impl TrafficOptions {
    /// Merges these options with `other`. Options set in `self` take precedence.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            access_log: self.access_log.or(other.access_log),
            access_log_file: self.access_log_file.or(other.access_log_file),
        }
    }
}

/// The form of access log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AccessLogForm {
    /// Not at all
    Off,
    /// For people
    Text,
    /// One JSON object per line
    Json,
}
