//! Counters of requests at the transports, including those that reach no model.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use super::transport::Transport;
use crate::families::{Families, Family};

/// Counters of both transports. The number of counters does not depend on clients.
#[derive(Debug, Default)]
pub struct Totals {
    http: OfTransport,
    grpc: OfTransport,
    /// Failed requests by transport, route and code.
    failures: Mutex<BTreeMap<(Transport, &'static str, u16), u64>>,
}

#[derive(Debug, Default)]
struct OfTransport {
    running: AtomicU64,
    requests: Sizes,
    answers: Sizes,
}

/// A histogram of body sizes.
#[derive(Debug, Default)]
struct Sizes {
    /// Non-cumulative counts: one for each of [`BOUNDS`], and one for larger bodies.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum: AtomicU64,
}

/// Bucket bounds in bytes: 256 to 256 MiB.
const BOUNDS: [u64; 11] = [
    1 << 8,
    1 << 10,
    1 << 12,
    1 << 14,
    1 << 16,
    1 << 18,
    1 << 20,
    1 << 22,
    1 << 24,
    1 << 26,
    1 << 28,
];

impl Totals {
    fn of(&self, transport: Transport) -> &OfTransport {
        match transport {
            Transport::Http => &self.http,
            Transport::Grpc => &self.grpc,
        }
    }

    /// Counts the start of an inference request.
    pub(super) fn begin(&self, transport: Transport) {
        self.of(transport).running.fetch_add(1, Relaxed);
    }

    /// Counts the end of an inference request: the last byte was sent, or the client disconnected.
    pub(super) fn end(&self, transport: Transport, bytes_in: u64, bytes_out: u64) {
        let of = self.of(transport);
        of.running.fetch_sub(1, Relaxed);
        of.requests.add(bytes_in);
        of.answers.add(bytes_out);
    }

    /// Counts a failed request of any kind.
    pub(super) fn failed(&self, transport: Transport, route: &'static str, code: u16) {
        let mut failures = self.failures.lock();
        *failures.entry((transport, route, code)).or_default() += 1;
    }

    /// Returns the number of inference requests in progress.
    pub fn running(&self, transport: Transport) -> u64 {
        self.of(transport).running.load(Relaxed)
    }

    /// Writes the metrics of all requests.
    pub fn write(&self, families: &mut Families<'_>) {
        let mut running = families.family(&RUNNING);
        for transport in Transport::ALL {
            running.add(&[("transport", transport.name())], self.running(transport));
        }
        self.write_sizes(families, &REQUEST_BYTES, |of| &of.requests);
        self.write_sizes(families, &ANSWER_BYTES, |of| &of.answers);
        let mut samples = families.family(&FAILURES);
        let failures = self.failures.lock();
        for ((transport, route, code), count) in &*failures {
            let code = code.to_string();
            let labels = [("transport", transport.name()), ("route", route), ("code", &code)];
            samples.add(&labels, *count);
        }
    }

    fn write_sizes(&self, families: &mut Families<'_>, family: &Family, of: fn(&OfTransport) -> &Sizes) {
        let mut samples = families.family(family);
        for transport in Transport::ALL {
            let sizes = of(self.of(transport));
            let (bounds, sum) = (BOUNDS.map(|bytes| bytes as f64), sizes.sum() as f64);
            samples.add_histogram(&[("transport", transport.name())], bounds, &sizes.counts(), sum);
        }
    }
}

impl Sizes {
    fn add(&self, bytes: u64) {
        let place = BOUNDS.partition_point(|bound| *bound < bytes);
        self.counts[place].fetch_add(1, Relaxed);
        self.sum.fetch_add(bytes, Relaxed);
    }

    /// Returns the non-cumulative bucket counts.
    fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Relaxed)).collect()
    }

    fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }
}

const RUNNING: Family = Family::gauge(
    "oip_requests_running",
    "Inference requests whose response is not completely sent; a gRPC stream is one.",
);

const REQUEST_BYTES: Family = Family::histogram(
    "oip_request_bytes",
    "Body sizes of inference requests, as received.",
);

const ANSWER_BYTES: Family = Family::histogram(
    "oip_answer_bytes",
    "Body sizes of responses to inference requests, as sent.",
);

const FAILURES: Family = Family::counter(
    "oip_request_failures_total",
    "Failed requests of all kinds, by route and status code.",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_the_range_that_they_belong_to() {
        let sizes = Sizes::default();
        for bytes in [0, 256, 257, 1 << 28, (1 << 28) + 1] {
            sizes.add(bytes);
        }
        let mut expected = vec![0; 12];
        (expected[0], expected[1], expected[10], expected[11]) = (2, 1, 1, 1);
        assert_eq!(sizes.counts(), expected);
        assert_eq!(sizes.sum(), 256 + 257 + (1 << 29) + 1);
    }
}
