//! What is written about requests, besides the log: the access log, recorded requests and traces.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use oip_capture::{Recorder, RecorderConfig};

use super::{access_log::AccessLog, options::AccessLogForm, traces::Traces};
use crate::{capture_options, failure::Failure, otlp::TraceConfig};

/// The settings of everything that is written about requests.
pub(crate) struct RecordConfig {
    pub(crate) access_log: AccessLogForm,
    /// The access log's file; `None` for standard error.
    pub(crate) access_log_file: Option<PathBuf>,
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
    /// `None` without a collector.
    pub(crate) traces: Option<Arc<Traces>>,
}

impl RecordConfig {
    /// Opens the files and starts the writers.
    pub(crate) fn start(self) -> Result<Records, Failure> {
        let file = self.access_log_file;
        let access_log = AccessLog::start(self.access_log, file.clone()).map_err(|error| {
            let file = file.as_deref().unwrap_or(Path::new("standard error"));
            Failure::run(format!(
                "the access log cannot be written to {}: {error} (--access-log-file takes another file)",
                file.display()
            ))
        })?;
        let traces = self.traces.map(TraceConfig::start).transpose()?;
        Ok(Records {
            access_log,
            recorder: self.capture.map(capture_options::start).transpose()?,
            traces: traces.map(Arc::new),
        })
    }
}

impl Records {
    /// Writes and sends what is queued, within seconds.
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
