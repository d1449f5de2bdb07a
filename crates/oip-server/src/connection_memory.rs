//! The descriptors of memory that clients pass over Unix sockets, on their way from the listener to HTTP.

use axum::http::Extensions;
use oip_http::REGISTER_CONNECTION_MEMORY;
use oip_listen::Descriptors;
use oip_service::ConnectionRegion;

/// Descriptors that come with a request to register memory for the connection.
pub(crate) fn descriptors() -> Descriptors {
    Descriptors::new(REGISTER_CONNECTION_MEMORY, |descriptor| {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectionRegion::new(descriptor));
        extensions
    })
}
