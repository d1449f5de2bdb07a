//! Metrics of connections and HTTP/2 streams: the number of open, refused and evicted ones.

use oip_listen::{ConnectionCap, StreamCap};
use oip_telemetry::{Families, Family};

/// The limits on connections and streams of all addresses. Each limit keeps its own counters.
#[derive(Default)]
pub(crate) struct ConnectionCaps {
    pub(crate) connections: Vec<ConnectionCap>,
    pub(crate) streams: Vec<StreamCap>,
}

/// Writes the metrics of connections and streams.
pub(super) fn write(text: &mut Families<'_>, caps: &ConnectionCaps) {
    let connections: Vec<_> = caps.connections.iter().map(ConnectionCap::counts).collect();
    let streams: Vec<_> = caps.streams.iter().map(StreamCap::counts).collect();
    for (family, value) in [
        (
            CONNECTIONS,
            connections.iter().map(|counts| counts.open).sum::<u64>(),
        ),
        (
            EVICTED_CONNECTIONS,
            connections.iter().map(|counts| counts.evicted).sum(),
        ),
        (STREAMS, streams.iter().map(|counts| counts.open).sum()),
        (REFUSED_STREAMS, streams.iter().map(|counts| counts.refused).sum()),
        (EVICTED_STREAMS, streams.iter().map(|counts| counts.evicted).sum()),
        (UNREAD_STREAMS, streams.iter().map(|counts| counts.unread).sum()),
    ] {
        text.single(&family, value);
    }
}

const CONNECTIONS: Family = Family::gauge("oip_connections_open", "Open client connections.");

const EVICTED_CONNECTIONS: Family = Family::counter(
    "oip_connections_evicted_total",
    "Idle connections that were closed to make room for new ones.",
);

const STREAMS: Family = Family::gauge("oip_streams_open", "Open HTTP/2 streams; each gRPC call is one.");

const REFUSED_STREAMS: Family = Family::counter(
    "oip_streams_refused_total",
    "HTTP/2 streams that were refused with REFUSED_STREAM, because their number is limited.",
);

const EVICTED_STREAMS: Family = Family::counter(
    "oip_streams_evicted_total",
    "Streams that waited for their client and were closed to make room for others.",
);

const UNREAD_STREAMS: Family = Family::counter(
    "oip_streams_unread_total",
    "HTTP/2 streams that were reset because their client did not read its response.",
);
