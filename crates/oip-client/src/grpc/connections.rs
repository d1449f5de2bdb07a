//! Connections with shared memory regions, over gRPC.

use super::transport::{Client, Http2Client};
use crate::shared_memory::pool::Pool;

/// The pool of connections with regions.
pub(super) type Connections = Pool<GrpcConnection>;

/// A connection and the generated client over it.
pub(super) struct GrpcConnection {
    pub(super) transport: Http2Client,
    pub(super) client: Client,
}
