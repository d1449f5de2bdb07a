//! The records of requests: the access log, captured requests and traces.

use std::{sync::Arc, time::Duration};

use oip_capture::{Recorder, RecorderConfig};

use super::{access_log::AccessLog, traces::Traces};
use crate::{
    failure::Failure,
    options::{AccessLogConfig, otlp::TraceConfig},
};

/// The settings of all records of requests.
pub(crate) struct RecordConfig {
    /// The access log, if enabled.
    pub(crate) access_log: Option<AccessLogConfig>,
    /// The recorder's configuration, if recording is enabled.
    pub(crate) capture: Option<RecorderConfig>,
    /// Trace export, if enabled.
    pub(crate) traces: Option<TraceConfig>,
}

/// The running writers. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Records {
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) recorder: Option<Recorder>,
    /// The exporter of traces; `None` without a collector.
    pub(crate) traces: Option<Arc<Traces>>,
}

impl RecordConfig {
    /// Opens the files and starts the writers.
    pub(crate) fn start(self) -> Result<Records, Failure> {
        let traces = self.traces.map(TraceConfig::start).transpose()?;
        Ok(Records {
            access_log: self.access_log.map(AccessLog::start).transpose()?,
            recorder: self.capture.map(start_recorder).transpose()?,
            traces: traces.map(Arc::new),
        })
    }
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
        if let Some(traces) = &self.traces {
            traces.finish(Duration::from_secs(1));
        }
    }
}
