//! Options for recording requests and their answers.

use std::path::PathBuf;

use clap::Args;
use oip_capture::{Recorder, RecorderConfig};
use serde::Deserialize;

use oip_types::ByteSize;

use crate::failure::Failure;

/// Options for recording requests and their answers.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct CaptureOptions {
    /// A folder to record requests and their answers in, as tensor files; `tensor replay` sends them again. They contain the
    /// data of clients [default: nothing is recorded]
    #[arg(long, env = "OIP_CAPTURE", hide_env = true, value_name = "DIR")]
    pub(crate) capture: Option<PathBuf>,

    /// The fraction of requests that is recorded, from 0 to 1 [default: 0.01]
    #[arg(long, env = "OIP_CAPTURE_RATE", hide_env = true, value_name = "RATE")]
    pub(crate) capture_rate: Option<f64>,

    /// Models whose requests are recorded; * stands for any text. May be given several times, or with commas [default: all]
    #[arg(
        long,
        env = "OIP_CAPTURE_MODELS",
        hide_env = true,
        value_name = "PATTERN",
        value_delimiter = ','
    )]
    pub(crate) capture_models: Vec<String>,

    /// Largest size of that folder, beyond which nothing more is recorded [default: 1GiB]
    #[arg(long, env = "OIP_CAPTURE_LIMIT", hide_env = true, value_name = "SIZE")]
    pub(crate) capture_limit: Option<ByteSize>,
}

impl CaptureOptions {
    /// These options, and `other`'s where these say nothing.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            capture: self.capture.or(other.capture),
            capture_rate: self.capture_rate.or(other.capture_rate),
            capture_models: if self.capture_models.is_empty() {
                other.capture_models
            } else {
                self.capture_models
            },
            capture_limit: self.capture_limit.or(other.capture_limit),
        }
    }

    /// The settings of the recorder, if requests are recorded.
    pub(crate) fn resolve(self) -> Result<Option<RecorderConfig>, Failure> {
        let Some(folder) = self.capture else {
            for (option, is_given) in [
                ("--capture-rate", self.capture_rate.is_some()),
                ("--capture-models", !self.capture_models.is_empty()),
                ("--capture-limit", self.capture_limit.is_some()),
            ] {
                if is_given {
                    return Err(Failure::usage(format!(
                        "{option} needs --capture, the folder that requests are recorded in"
                    )));
                }
            }
            return Ok(None);
        };
        let rate = self.capture_rate.unwrap_or(0.01);
        if !(0.0..=1.0).contains(&rate) {
            return Err(Failure::usage(format!(
                "--capture-rate: expected a number from 0 to 1, found {rate}"
            )));
        }
        Ok(Some(RecorderConfig::new(folder).with(|config| {
            config.rate = rate;
            config.models = self.capture_models;
            if let Some(ByteSize(limit)) = self.capture_limit {
                config.limit = limit;
            }
        })))
    }
}

/// Opens the folder.
pub(crate) fn start(config: RecorderConfig) -> Result<Recorder, Failure> {
    let (folder, rate) = (config.folder.display().to_string(), config.rate);
    let recorder = Recorder::start(config).map_err(|error| Failure::run(format!("--capture: {error}")))?;
    tracing::info!(folder, rate, "requests and answers are recorded");
    Ok(recorder)
}
