//! Counters of requests at the transports, including those that reach no model.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::transport::Transport;

/// Counters of both transports. The number of counters does not depend on clients.
#[derive(Debug, Default)]
pub(crate) struct Totals {
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
pub(crate) struct Sizes {
    /// Non-cumulative counts: one for each of [`BOUNDS`], and one for larger bodies.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum: AtomicU64,
}

/// Bucket bounds in bytes: 256 to 256 MiB.
pub(crate) const BOUNDS: [u64; 11] = [
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
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry((transport, route, code)).or_default() += 1;
    }

    /// Returns the number of inference requests in progress.
    pub(crate) fn running(&self, transport: Transport) -> u64 {
        self.of(transport).running.load(Relaxed)
    }

    /// Returns the sizes of inference requests.
    pub(crate) fn requests(&self, transport: Transport) -> &Sizes {
        &self.of(transport).requests
    }

    /// Returns the sizes of responses to inference requests.
    pub(crate) fn answers(&self, transport: Transport) -> &Sizes {
        &self.of(transport).answers
    }

    /// Returns the number of failed requests by transport, route and code.
    pub(crate) fn failures(&self) -> Vec<((Transport, &'static str, u16), u64)> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.iter().map(|(key, count)| (*key, *count)).collect()
    }
}

impl Sizes {
    fn add(&self, bytes: u64) {
        let place = BOUNDS.partition_point(|bound| *bound < bytes);
        self.counts[place].fetch_add(1, Relaxed);
        self.sum.fetch_add(bytes, Relaxed);
    }

    /// Returns the non-cumulative bucket counts.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Relaxed)).collect()
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }
}

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
