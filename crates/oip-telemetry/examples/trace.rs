//! Sends the trace of one request to an OpenTelemetry collector, and prints whether it was accepted.
//!
//! ```sh
//! cargo run --package oip-telemetry --example trace -- http://127.0.0.1:4318
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::{Duration, SystemTime};

use oip_telemetry::{CollectorConfig, Endpoint, Exporter, ExporterConfig, Kind, Sampler, Span, SpanId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("which collector?")?;
    let exporter = Exporter::start(ExporterConfig::new(CollectorConfig::new(Endpoint::parse(&url)?)))?;

    let trace = Sampler::new(1.0).decide(None).ok_or("every request is traced")?;
    let (start, end) = (SystemTime::now(), SystemTime::now() + Duration::from_millis(3));
    let mut request = Span::new(trace, SpanId::random(), "infer", start, end);
    request.kind = Kind::Server;
    println!("trace {trace}");
    exporter.export(vec![request]);

    exporter.finish(Duration::from_secs(10));
    println!("{} sent, {} given up", exporter.sent(), exporter.dropped());
    Ok(())
}
