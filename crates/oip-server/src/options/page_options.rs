//! Options of the metrics page and the console.

use clap::Args;
use oip_console::LogTail;
use serde::Deserialize;

use super::merge::merged;

/// Options of the pages that show the server's work.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct PageOptions {
    /// Whether the HTTP port shows metrics for Prometheus, at /metrics [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_metrics: Option<bool>,

    /// Whether browsers get a console at / on the HTTP port [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_console: Option<bool>,

    /// Whether the console shows the log's last lines, to every client that reaches the port [default: true
    /// on a loopback address; with --admin-address, if that is one]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) allow_console_log: Option<bool>,
}

merged!(PageOptions: allow_metrics allow_console allow_console_log);

/// The pages that are served.
pub(crate) struct PageConfig {
    /// Whether `/metrics` is served.
    pub(crate) metrics: bool,
    /// Whether the console is served at `/`.
    pub(crate) console: bool,
}

/// Number of log lines that the console can show.
const CONSOLE_LOG_LINES: usize = 500;

impl PageOptions {
    /// Returns the buffer of recent log lines, if the console may show them. `is_local` specifies whether
    /// only this machine can reach the console.
    pub(super) fn log_tail(&self, is_local: bool) -> Option<LogTail> {
        let is_shown = self.allow_console.unwrap_or(true) && self.allow_console_log.unwrap_or(is_local);
        is_shown.then(|| LogTail::new(CONSOLE_LOG_LINES))
    }

    /// Returns which pages are served.
    pub(super) fn resolve(&self) -> PageConfig {
        PageConfig {
            metrics: self.allow_metrics.unwrap_or(true),
            console: self.allow_console.unwrap_or(true),
        }
    }
}
