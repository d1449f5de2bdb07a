//! Settings shared by all requests.

use std::sync::Arc;

use oip_service::RequestIds;

use super::{load_report::Load, platforms::Aliases, records::Records, totals::Totals};

/// Settings shared by all requests.
pub(crate) struct Traffic {
    /// The counters of requests; `None` if metrics are disabled.
    pub(crate) totals: Option<Arc<Totals>>,
    pub(crate) records: Records,
    pub(crate) request_ids: RequestIds,
    /// Aliases of paths. Aliases are replaced before any other processing, so that a request to an alias is
    /// counted under its target.
    pub(crate) aliases: Aliases,
    /// Returns the load, for clients that request a load report.
    pub(crate) load: Box<dyn Fn() -> Load + Send + Sync>,
}
