//! State that the components of the server share during startup.

use std::time::Instant;

use super::runtimes::Runtimes;
use crate::telemetry::Log;

/// State that every component of the server may use during startup.
pub(super) struct StartContext<'a> {
    pub(super) runtimes: &'a Runtimes,
    pub(super) log: &'a Log,
    /// When the program started.
    pub(super) begun: Instant,
}
