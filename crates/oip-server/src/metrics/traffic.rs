//! Counters of all requests, including those that reach no model.

use super::families::{Families, Family};
use crate::traffic::{BOUNDS, Sizes, Totals, Transport};

const TRANSPORTS: [Transport; 2] = [Transport::Http, Transport::Grpc];

/// Writes the counters of all requests.
pub(super) fn write(text: &mut Families<'_>, totals: &Totals) {
    let mut running = text.family(&RUNNING);
    for transport in TRANSPORTS {
        running.add(&[("transport", transport.name())], totals.running(transport));
    }
    for (family, sizes) in [
        (
            REQUEST_BYTES,
            Totals::requests as fn(&Totals, Transport) -> &Sizes,
        ),
        (ANSWER_BYTES, Totals::answers),
    ] {
        let mut samples = text.family(&family);
        for transport in TRANSPORTS {
            let sizes = sizes(totals, transport);
            samples.add_histogram(
                &[("transport", transport.name())],
                BOUNDS.map(|bytes| bytes as f64),
                &sizes.counts(),
                sizes.sum() as f64,
            );
        }
    }
    let mut failures = text.family(&FAILURES);
    for ((transport, route, code), count) in totals.failures() {
        let code = code.to_string();
        let labels = [
            ("transport", transport.name()),
            ("route", route),
            ("code", code.as_str()),
        ];
        failures.add(&labels, count);
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
