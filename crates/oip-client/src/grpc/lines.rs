//! The connections with regions of a client.

use super::transport::{Client, Watched};
use crate::shared_memory::pool::Pool;

/// Connections with regions.
pub(super) type Connections = Pool<Line>;

/// One connection, and the generated client over it.
pub(super) struct Line {
    pub(super) transport: Watched,
    pub(super) client: Client,
}
