use std::sync::Arc;

use oip_service::RequestIds;

use super::{access_log::AccessLog, load_report::Load, totals::Totals, traces::Traces};
use crate::platforms::Aliases;

/// The settings for all requests.
pub(crate) struct Traffic {
    /// None where nobody can ask for them.
    pub(crate) totals: Option<Arc<Totals>>,
    pub(crate) log: Option<AccessLog>,
    /// None unless there is a collector for them.
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) request_ids: RequestIds,
    /// Applied first: what a path stands for is what is counted.
    pub(crate) aliases: Aliases,
    /// The load report, for clients that ask for one.
    pub(crate) load: Box<dyn Fn() -> Load + Send + Sync>,
}
