//! Request traces and metrics for an OpenTelemetry collector, over OTLP/HTTP with protobuf.
//!
//! A [`Sampler`] decides from a request's head whether to trace the request: by the caller's `traceparent`,
//! or by a ratio. Traced requests are passed to an [`Exporter`] as [`Span`]s when they end. The exporter has
//! a bounded queue and a thread: requests never wait for the collector, and spans that do not fit are dropped
//! and counted. A [`MetricsExporter`] pushes metrics periodically from a thread.
//!
//! ```
//! use std::time::SystemTime;
//!
//! use oip_telemetry::{Endpoint, Exporter, ExporterConfig, Kind, Parent, Sampler, Span, SpanId};
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
//! let exporter = Exporter::start(ExporterConfig::new(endpoint))?;
//! exporter.export(vec![span]);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

mod endpoint;
mod exporter;
mod ids;
mod message;
mod metric_message;
mod metrics;
mod post;
mod sampler;
mod span;
#[cfg(feature = "testing")]
pub mod testing;

pub use endpoint::{Authorities, Endpoint, EndpointError, read_pairs};
pub use exporter::{Exporter, ExporterConfig};
pub use ids::{Parent, SpanId, TraceId};
pub use metrics::{MetricFamily, MetricKind, MetricsConfig, MetricsExporter, Sample, SampleValue};
pub use sampler::Sampler;
pub use span::{Kind, Span, Value};
