//! Passes file descriptors of client memory, received over Unix sockets, from the listener to both
//! transports.

use axum::http::Extensions;
use oip_listen::Descriptors;
use oip_service::ConnectionRegion;

/// Returns access to the descriptors that came with a request to register memory for the connection.
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
