//! Memory that clients share with the server over Unix sockets, for both transports. Available only on Linux.

use oip_grpc::GrpcConfig;
use oip_http::HttpConfig;
use oip_listen::ConnectionLimits;

/// Allows clients to share memory, in regions of at most `max_bytes` each.
#[cfg(target_os = "linux")]
pub(super) fn allow(
    http: &mut HttpConfig,
    grpc: &mut GrpcConfig,
    connections: &mut ConnectionLimits,
    max_bytes: u64,
) {
    use std::sync::Arc;

    use axum::http::Extensions;
    use oip_listen::Descriptors;
    use oip_resources::ConnectionRegion;

    // Descriptors are accepted only with requests that register a connection's memory.
    const REGISTER: &[&str] = &[
        oip_http::REGISTER_CONNECTION_MEMORY,
        oip_grpc::REGISTER_CONNECTION_MEMORY,
    ];
    let regions = Arc::new(oip_shm::ConnectionRegions::new(&http.budget, max_bytes));
    http.connection_memory = Some(regions.clone());
    grpc.connection_memory = Some(regions);
    connections.descriptors = Some(Descriptors::new(REGISTER, |descriptor| {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectionRegion::new(descriptor));
        extensions
    }));
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allow(_: &mut HttpConfig, _: &mut GrpcConfig, _: &mut ConnectionLimits, _: u64) {}
