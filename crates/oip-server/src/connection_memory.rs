//! Turns descriptors that clients pass over Unix sockets into memory regions, for both transports.

use axum::http::Extensions;
use oip_listen::Descriptors;
use oip_service::ConnectionRegion;

/// Returns the rule that accepts descriptors only with requests that register a connection's memory.
pub(crate) fn descriptors() -> Descriptors {
    const REGISTER: &[&str] = &[
        oip_http::REGISTER_CONNECTION_MEMORY,
        oip_grpc::REGISTER_CONNECTION_MEMORY,
    ];
    Descriptors::new(REGISTER, |descriptor| {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectionRegion::new(descriptor));
        extensions
    })
}
