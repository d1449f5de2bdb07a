//! The report of a measurement, for users and programs.

use std::{collections::BTreeMap, io::Write, time::Duration};

use serde::Serialize;

use crate::{
    client::{
        chart::{self, micros as micros_text},
        measure::Measurement,
        options::Bench,
    },
    failure::Outcome,
    table,
};

/// The result of a measurement with its settings. `--json` prints it as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    url: String,
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// `raw` or `typed`.
    form: &'static str,
    /// `closed` or `open`.
    r#loop: &'static str,
    concurrency: u32,
    /// The requested rate in requests per second; `None` in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<f64>,
    warm_up_seconds: f64,
    seconds: f64,
    is_interrupted: bool,
    /// Number of responses.
    requests: u64,
    requests_per_second: f64,
    rows_per_request: u64,
    rows_per_second: f64,
    /// Number of failed requests by kind.
    errors: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
    /// Requests that were due but not sent when the measurement ended.
    unsent: u64,
    latency_us: Latency,
    /// Chart of the latencies, with `--plot`.
    #[serde(skip)]
    chart: Option<String>,
}

#[derive(Debug, Serialize)]
struct Latency {
    mean: f64,
    min: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p999: f64,
    max: f64,
}

impl Report {
    pub(super) fn new(options: &Bench, concurrency: u32, rows: u64, measured: Measurement) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let latency = &measured.latency;
        let quantile = |quantile| micros(latency.value_at_quantile(quantile));
        let requests = latency.len();
        let seconds = measured.elapsed.as_secs_f64();
        let per_second = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        let server = &options.server;
        Self {
            url: server.connection.url.clone(),
            model: server.model.clone(),
            version: server.version.clone(),
            form: if server.json_form { "typed" } else { "raw" },
            r#loop: if options.rate.is_some() { "open" } else { "closed" },
            concurrency,
            rate: options.rate,
            warm_up_seconds: options.warm_up.as_secs_f64(),
            seconds,
            is_interrupted: measured.is_interrupted,
            requests,
            requests_per_second: per_second(requests),
            rows_per_request: rows,
            rows_per_second: per_second(requests.saturating_mul(rows)),
            latency_us: Latency {
                mean: latency.mean() / 1e3,
                min: if requests == 0 { 0.0 } else { micros(latency.min()) },
                p50: quantile(0.5),
                p90: quantile(0.9),
                p99: quantile(0.99),
                p999: quantile(0.999),
                max: micros(latency.max()),
            },
            chart: options.plot.then(|| chart::of(latency)),
            errors: measured.errors,
            first_error: measured.first_error,
            unsent: measured.unsent,
        }
    }

    /// Returns whether there were responses and no errors.
    pub(super) fn is_clean(&self) -> bool {
        self.requests > 0 && self.errors.is_empty()
    }

    /// Returns the table of requests, rows and errors: names, counts and rates.
    fn counts(&self) -> Vec<[String; 3]> {
        let mut rows = vec![
            [
                "requests".to_owned(),
                self.requests.to_string(),
                format!("{:.1}/s", self.requests_per_second),
            ],
            [
                "rows".to_owned(),
                self.requests.saturating_mul(self.rows_per_request).to_string(),
                format!("{:.1}/s", self.rows_per_second),
            ],
        ];
        let errors: u64 = self.errors.values().sum();
        rows.push(["errors".to_owned(), errors.to_string(), String::new()]);
        for (kind, count) in &self.errors {
            rows.push([format!("  {kind}"), count.to_string(), String::new()]);
        }
        if self.unsent > 0 {
            rows.push([
                "due but not sent".to_owned(),
                self.unsent.to_string(),
                String::new(),
            ]);
        }
        rows
    }

    pub(super) fn print(&self, as_json: bool, out: &mut impl Write) -> Outcome {
        if as_json {
            serde_json::to_writer_pretty(&mut *out, self).map_err(std::io::Error::from)?;
            return Ok(writeln!(out)?);
        }
        let how = match self.rate {
            None => format!("{} at once", self.concurrency),
            Some(rate) => format!(
                "{} requests/s by the clock, at most {} at once",
                table::number(rate),
                self.concurrency
            ),
        };
        let seconds = |seconds: f64| format!("{:.1?}", Duration::from_secs_f64(seconds));
        writeln!(out, "{} {}: {how}, {} tensors", self.url, self.model, self.form)?;
        let after = seconds(self.warm_up_seconds);
        let ended = if self.is_interrupted {
            ", then interrupted"
        } else {
            ""
        };
        writeln!(
            out,
            "measured {}, after {after} of warm-up{ended}\n",
            seconds(self.seconds)
        )?;
        table::print(out, &self.counts(), &[1, 2])?;
        if let Some(error) = &self.first_error {
            writeln!(out, "the first error: {}", table::text(error))?;
        }
        if self.requests == 0 {
            return Ok(());
        }
        let Latency {
            mean,
            min,
            p50,
            p90,
            p99,
            p999,
            max,
        } = self.latency_us;
        let names = ["latency", "mean", "min", "p50", "p90", "p99", "p99.9", "max"].map(str::to_owned);
        let [mean, min, p50, p90, p99, p999, max] = [mean, min, p50, p90, p99, p999, max].map(micros_text);
        writeln!(out)?;
        let latencies = [names, [String::new(), mean, min, p50, p90, p99, p999, max]];
        table::print(out, &latencies, &[1, 2, 3, 4, 5, 6, 7])?;
        if let Some(chart) = &self.chart {
            write!(out, "\n{chart}")?;
        }
        Ok(())
    }
}
