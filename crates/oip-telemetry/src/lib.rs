//! Observability for inference servers: metrics, the access log, traces and the log of the process.
//!
//! - Metrics are [`Family`]s. One function writes them, for Prometheus ([`prometheus::page`]) or for a
//!   collector (`MetricFamily::collect`).
//! - `requests` (feature `requests`) is a layer around all others: it repeats request ids, counts sizes and
//!   failures, writes the access log, and converts the stages of a request to [`Span`]s.
//! - `logging` (feature `logging`) writes the log's lines from a thread, with bounded length and number, and
//!   lets clients change its levels.
//! - `Process` (feature `process`) has the metrics of this process, on Linux.
//! - The feature `otlp`, which is on by default, sends traces and metrics to an OpenTelemetry collector, over
//!   OTLP/HTTP with protobuf. `ExportSettings` reads its settings and OpenTelemetry's environment variables.
//!
//! A [`Sampler`] decides from a request's head whether to trace the request: by the caller's `traceparent`,
//! or by a ratio. Traced requests are passed to an `Exporter` as [`Span`]s when they end. The exporter has
//! a bounded queue and a thread: requests never wait for the collector, and spans that do not fit are dropped
//! and counted. A `MetricsExporter` pushes metrics periodically from a thread.
//!
//! ```
//! use std::time::SystemTime;
//!
//! use oip_telemetry::{CollectorConfig, Endpoint, Exporter, ExporterConfig, Kind, Parent, Sampler, Span, SpanId};
//!
//! let parent = Parent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
//! let trace = Sampler::new(0.0).decide(parent.as_ref()).expect("the caller's flag counts, not the ratio");
//! assert_eq!(trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
//!
//! let now = SystemTime::now();
//! let mut span = Span::new(trace, SpanId::random(), "infer", now, now);
//! span.parent = parent.map(|parent| parent.span);
//! span.kind = Kind::Server;
//!
//! // No collector listens at this address, which delays nothing.
//! let endpoint = Endpoint::parse("http://127.0.0.1:9").expect("it is a URL");
//! let exporter = Exporter::start(ExporterConfig::new(CollectorConfig::new(endpoint)))?;
//! exporter.export(vec![span]);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod endpoint;
#[cfg(feature = "otlp")]
mod exporter;
mod families;
mod ids;
#[cfg(feature = "logging")]
pub mod logging;
#[cfg(feature = "otlp")]
mod message;
#[cfg(feature = "otlp")]
mod metric_message;
#[cfg(feature = "otlp")]
mod metrics;
#[cfg(feature = "otlp")]
mod post;
#[cfg(all(feature = "process", target_os = "linux"))]
mod process;
pub mod prometheus;
#[cfg(feature = "requests")]
pub mod requests;
mod sampler;
#[cfg(feature = "otlp")]
mod settings;
mod span;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "otlp")]
pub use collector::CollectorConfig;
#[cfg(feature = "otlp")]
pub use endpoint::{Authorities, Endpoint, EndpointError, read_pairs};
#[cfg(feature = "otlp")]
pub use exporter::{Exporter, ExporterConfig};
pub use families::{Families, Family, MetricKind, Number, Samples};
pub use ids::{Parent, SpanId, TraceId};
#[cfg(feature = "otlp")]
pub use metrics::{MetricFamily, MetricsConfig, MetricsExporter, Sample, SampleValue};
#[cfg(all(feature = "process", target_os = "linux"))]
pub use process::Process;
pub use sampler::Sampler;
#[cfg(feature = "otlp")]
pub use settings::{ExportConfigs, ExportSettings, SettingsError, TraceConfig};
pub use span::{Kind, Span, Value};
