//! Good and hostile clients, loads, kills and restarts over a long time: nothing may be lost and nothing may grow.

use anyhow::Result;
use clap::Args;

/// What runs, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// Minutes
    #[arg(long, default_value_t = 30)]
    minutes: u64,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    Ok(options.minutes > 0)
}
