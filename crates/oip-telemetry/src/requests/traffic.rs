//! Settings shared by all requests.

use std::{fmt, sync::Arc};

use oip_service::{RequestIds, route::Aliases};

use super::{access_log::AccessLog, load_report::Load, spans::Traces, totals::Totals};

/// Settings for observing requests, which all connections share. The default records nothing.
#[non_exhaustive]
pub struct Traffic {
    /// The counters of requests; `None` if they are not counted.
    pub totals: Option<Arc<Totals>>,
    /// The access log. Requests without an id then get one.
    pub access_log: Option<AccessLog>,
    /// Traces; `None` without a collector.
    pub traces: Option<Traces>,
    /// Aliases of paths. Aliases are replaced before any other processing, so that a request to an alias is
    /// counted under its target.
    pub aliases: Aliases,
    /// Returns the load, for clients that request a load report; `None` if there are no reports.
    pub load: Option<Box<dyn Fn() -> Load + Send + Sync>>,
    pub(super) request_ids: RequestIds,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            totals: None,
            access_log: None,
            traces: None,
            aliases: Aliases::default(),
            load: None,
            request_ids: RequestIds::new(),
        }
    }
}

impl Traffic {
    /// Returns the settings with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic").finish_non_exhaustive()
    }
}
