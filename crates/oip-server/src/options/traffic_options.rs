//! Options of the access log.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use oip_telemetry::requests::AccessLogFormat;
use serde::Deserialize;

use super::merge::merged;
use crate::failure::Failure;

/// Options of the access log.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct TrafficOptions {
    /// Whether a line is written for each request, once its response is sent [default: off]
    #[arg(long, value_name = "FORM")]
    pub(crate) access_log: Option<AccessLogForm>,

    /// The file that these lines are appended to; SIGHUP reopens it [default: standard error]
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log_file: Option<PathBuf>,
}

merged!(TrafficOptions: access_log access_log_file);

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

/// The access log's settings.
pub(crate) struct AccessLogConfig {
    pub(crate) format: AccessLogFormat,
    /// The file that lines are appended to; `None` for standard error.
    pub(crate) file: Option<PathBuf>,
}

impl TrafficOptions {
    /// Returns the access log's settings, if it is enabled.
    pub(super) fn resolve(self) -> Result<Option<AccessLogConfig>, Failure> {
        let file = self.access_log_file;
        let format = match self.access_log.unwrap_or(AccessLogForm::Off) {
            AccessLogForm::Off if file.is_some() => {
                return Err(Failure::usage(
                    "--access-log-file needs --access-log=text or json",
                ));
            }
            AccessLogForm::Off => return Ok(None),
            AccessLogForm::Text => AccessLogFormat::Text,
            AccessLogForm::Json => AccessLogFormat::Json,
        };
        Ok(Some(AccessLogConfig { format, file }))
    }
}
