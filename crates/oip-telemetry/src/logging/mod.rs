//! The log of the process: lines on standard error that never delay the program, and levels that clients may
//! change while it runs.
//!
//! ```
//! use std::time::Duration;
//!
//! use oip_telemetry::logging::{LogControl, LogFormat, LogWriter, parse_levels};
//! use tracing_subscriber::{Layer, layer::SubscriberExt, registry};
//!
//! let writer = LogWriter::start(LogFormat::Text, "my_server", None);
//! let levels = parse_levels("info,oip_engine=debug").unwrap();
//! // A service with logging (`oip_service::ExtendedService`) passes clients' changes to `control`.
//! let (control, filter) = LogControl::new(levels);
//! let layer = tracing_subscriber::fmt::layer().with_writer(writer.clone()).with_filter(filter);
//! tracing::subscriber::with_default(registry().with(layer), || tracing::info!("listening"));
//! writer.flush(Duration::from_millis(500));
//! assert_eq!(writer.dropped().count(), 0);
//! ```

mod control;
mod writer;

pub use self::{
    control::{LogControl, LogFilter, parse_levels},
    writer::{DroppedLines, Line, LogFormat, LogTail, LogWriter},
};
