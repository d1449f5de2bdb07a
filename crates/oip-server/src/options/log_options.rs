//! Options of the log.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use oip_console::LogTail;
use oip_telemetry::logging;
use serde::Deserialize;

use super::merge::merged;

/// The default log levels.
pub(crate) const DEFAULT_LOG: &str = "info";

/// Options of the log.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct LogOptions {
    /// How the log is written [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// What is logged: a level, or levels by target such as `info,oip_engine=debug` [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

merged!(LogOptions: log_format log);

/// How the log is written.
#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// The log's settings.
#[derive(Clone)]
pub(crate) struct LogConfig {
    /// The levels.
    pub(crate) filter: String,
    pub(crate) format: logging::LogFormat,
    /// The configuration file, if it determines the levels.
    pub(crate) file: Option<PathBuf>,
    /// Recent lines, if the console may show them.
    pub(crate) tail: Option<LogTail>,
}

impl LogOptions {
    /// Returns the levels.
    pub(crate) fn filter(&self) -> String {
        self.log.clone().unwrap_or_else(|| DEFAULT_LOG.to_owned())
    }

    /// Returns the log's settings. `file` is the configuration file, if it determines the levels.
    pub(super) fn resolve(self, file: Option<PathBuf>, tail: Option<LogTail>) -> LogConfig {
        LogConfig {
            filter: self.filter(),
            format: match self.log_format.unwrap_or(LogFormat::Text) {
                LogFormat::Text => logging::LogFormat::Text,
                LogFormat::Json => logging::LogFormat::Json,
            },
            file,
            tail,
        }
    }
}
