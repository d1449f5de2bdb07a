//! Running quick models on the transports' threads: the option, and how many threads that takes.

use std::{num::NonZeroUsize, thread, time::Duration};

use clap::Args;
use oip_engine::InPlace;
use serde::Deserialize;

use crate::units::HumanDuration;

/// Where models run.
#[derive(Clone, Copy, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct InPlaceOptions {
    /// Models whose runs are measured to take at most about this long run on the thread that their request is on, where
    /// nothing in the request can make a run longer; 0s hands every request to a thread of its model [default: 100us]
    #[arg(long, env = "OIP_IN_PLACE_TIME", hide_env = true, value_name = "TIME")]
    pub(crate) in_place_time: Option<HumanDuration>,
}

impl InPlaceOptions {
    /// These options, and `other`'s where these say nothing.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            in_place_time: self.in_place_time.or(other.in_place_time),
        }
    }

    /// What the engine is told.
    pub(crate) fn resolve(self) -> Option<InPlace> {
        let limit = self.in_place_time.map_or(DEFAULT_LIMIT, |time| time.0);
        let is_wanted = !limit.is_zero();
        is_wanted.then(|| InPlace::new(limit, processors(), || Box::pin(tokio::task::yield_now())))
    }
}

/// About what two wake-ups of other threads and the way between them cost.
const DEFAULT_LIMIT: Duration = Duration::from_micros(100);

/// Threads of a transport's runtime: one more than may be in models at a time, so that a model that broke its promise to come
/// back soon does not take all of them.
pub(crate) fn transport_threads() -> usize {
    processors() + 1
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
