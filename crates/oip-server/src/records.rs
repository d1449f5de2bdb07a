//! The records of requests: the access log, captured requests, and exports to a collector.

use std::{path::Path, sync::Arc, time::Duration};

use oip_capture::{Recorder, RecorderConfig};
use oip_telemetry::requests::{AccessLog, Traces};

use crate::{
    failure::Failure,
    options::AccessLogConfig,
    otlp::{ExportConfig, Exports},
};

/// The settings of all records of requests.
pub(crate) struct RecordConfig {
    /// The access log, if enabled.
    pub(crate) access_log: Option<AccessLogConfig>,
    /// The recorder's configuration, if recording is enabled.
    pub(crate) capture: Option<RecorderConfig>,
    pub(crate) exports: ExportConfig,
}

/// The running writers. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Records {
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) recorder: Option<Recorder>,
    /// Traces; `None` without a collector.
    pub(crate) traces: Option<Traces>,
    pub(crate) exports: Arc<Exports>,
}

impl RecordConfig {
    /// Opens the files and starts the writers.
    pub(crate) fn start(self) -> Result<Records, Failure> {
        let (exports, traces) = Exports::start(self.exports)?;
        Ok(Records {
            access_log: self.access_log.map(start_access_log).transpose()?,
            recorder: self.capture.map(start_recorder).transpose()?,
            traces,
            exports: Arc::new(exports),
        })
    }
}

fn start_access_log(config: AccessLogConfig) -> Result<AccessLog, Failure> {
    let AccessLogConfig { format, file } = config;
    AccessLog::start(format, file.clone()).map_err(|error| {
        let file = file.as_deref().unwrap_or(Path::new("standard error"));
        Failure::run(format!(
            "the access log cannot be written to {}: {error} (--access-log-file sets another file)",
            file.display()
        ))
    })
}

/// Opens the directory and starts the recorder.
fn start_recorder(config: RecorderConfig) -> Result<Recorder, Failure> {
    let (folder, rate) = (config.folder.display().to_string(), config.rate);
    let recorder = Recorder::start(config).map_err(|error| Failure::run(format!("capture: {error}")))?;
    tracing::info!(folder, rate, "requests and responses are recorded");
    Ok(recorder)
}

impl Records {
    /// Flushes all queues. Takes at most a few seconds.
    pub(crate) fn finish(&self) {
        if let Some(access_log) = &self.access_log {
            access_log.flush(Duration::from_millis(500));
        }
        if let Some(recorder) = &self.recorder {
            recorder.finish(Duration::from_secs(1));
        }
        self.exports.finish();
    }
}
