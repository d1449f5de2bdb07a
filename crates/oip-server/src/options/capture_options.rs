//! Settings for recording requests and responses.

use std::path::PathBuf;

use oip_capture::RecorderConfig;
use serde::Deserialize;

use oip_types::ByteSize;

use crate::failure::Failure;

/// The recording settings of the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct CaptureOptions {
    /// The directory to record in; `None` disables recording.
    pub(crate) capture: Option<PathBuf>,

    /// The fraction of requests to record, from 0 to 1.
    pub(crate) capture_rate: Option<f64>,

    /// Name patterns of models to record, with the wildcard `*`; empty for all.
    pub(crate) capture_models: Vec<String>,

    /// Maximum size of the directory with recordings.
    pub(crate) capture_limit: Option<ByteSize>,
}

impl CaptureOptions {
    /// Returns the recorder's configuration, if recording is enabled.
    pub(crate) fn resolve(self) -> Result<Option<RecorderConfig>, Failure> {
        let Some(folder) = self.capture else {
            for (option, is_given) in [
                ("capture-rate", self.capture_rate.is_some()),
                ("capture-models", !self.capture_models.is_empty()),
                ("capture-limit", self.capture_limit.is_some()),
            ] {
                if is_given {
                    return Err(Failure::usage(format!(
                        "the configuration file: {option} needs capture, the directory that requests are recorded in"
                    )));
                }
            }
            return Ok(None);
        };
        let rate = self.capture_rate.unwrap_or(0.01);
        if !(0.0..=1.0).contains(&rate) {
            return Err(Failure::usage(format!(
                "the configuration file: capture-rate: expected a number from 0 to 1, found {rate}"
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
