//! What the parts of the server share while it starts.

use std::time::Instant;

use super::runtimes::Runtimes;
use crate::telemetry::Log;

/// What every part of the server may use while it starts.
pub(super) struct StartContext<'a> {
    pub(super) runtimes: &'a Runtimes,
    pub(super) log: &'a Log,
    /// When the program started.
    pub(super) begun: Instant,
}
