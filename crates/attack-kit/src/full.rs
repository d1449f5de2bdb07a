//! Every attack in full size against a server with default options, one after the other and all at once, with good clients
//! beside it.

use std::{
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use attack_kit::{
    Beside, Scale, Seen, Server, Tally, budget_used, models,
    rows::{self, Row},
    run as run_attack,
};
use clap::Args;
use tokio::{task::JoinSet, time::timeout};

/// What is attacked, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// The program of the server
    #[arg(long)]
    server: PathBuf,
    /// Run only attacks whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Seconds that each attack may last
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// MiB of memory above which the server is killed, so that the machine survives
    #[arg(long, default_value_t = 3072, value_name = "MIB")]
    ceiling: usize,
}

/// How long the good clients are measured before an attack.
const QUIET: Duration = Duration::from_secs(3);
/// How long the server may take after an attack to give back what it counts.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs all attacks and prints a line for each; false when any broke a promise.
pub(crate) fn run(options: &Options) -> Result<bool> {
    println!(
        "the most memory above the idle server may be {} MiB",
        Scale::FULL.bound() >> 20
    );
    println!(
        "| attack | answers | peak above idle | slowest sign of life | good clients' rate | failed | budget after |"
    );
    println!("|---|---|---|---|---|---|---|");
    let wanted = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only));
    let mut is_good = true;
    for row in rows::all().iter().filter(|row| wanted(&row.name)) {
        is_good &= attack(options, &row.name, std::slice::from_ref(row))?;
    }
    if wanted("all of them at once") {
        let mut rows = rows::all();
        rows.retain(|row| !row.is_flood);
        is_good &= attack(options, "all of them at once", &rows)?;
    }
    Ok(is_good)
}

/// Runs these attacks together against a new server, and prints the line.
fn attack(options: &Options, name: &str, rows: &[Row]) -> Result<bool> {
    let repository = tempfile::tempdir()?;
    models::write(repository.path(), Scale::FULL.request)?;
    let mut arguments = vec!["--log", "off"];
    arguments.extend(rows.iter().flat_map(|row| row.options));
    let server = Server::start(
        &options.server,
        repository.path(),
        &arguments,
        options.ceiling << 20,
    )?;
    let target = server.target();
    let mut beside = Beside::start(target, Duration::ZERO);
    // Warm connections and threads are not the attack's doing.
    sleep(Duration::from_millis(500));
    beside.take();
    sleep(QUIET);
    let before = beside.take();
    let tally = Tally::default();
    let prepared: Vec<_> = rows
        .iter()
        .map(|row| (row.start)(target, Scale::FULL, tally.clone()))
        .collect();
    server.reset_peak()?;
    let idle = server.resident()?;
    beside.take();

    run_attack(async {
        let mut attacks = JoinSet::new();
        for attack in prepared {
            attacks.spawn_local(attack);
        }
        // Whatever still holds connections then leaves.
        let all = async { while attacks.join_next().await.is_some() {} };
        let _ = timeout(Duration::from_secs(options.seconds), all).await;
    })?;
    let during = beside.take();
    let budget = settled_budget(&server);
    drop(beside);
    let peak = server.peak().map(|peak| peak.saturating_sub(idle));
    let keeps_rate = !rows.iter().any(|row| row.is_flood);
    let verdict = report(name, &tally, peak, before, during, budget, keeps_rate);
    Ok(verdict)
}

/// The budget in use once the clients have left: zero, or what is left when patience ends.
fn settled_budget(server: &Server) -> Result<u64> {
    let start = Instant::now();
    loop {
        let used = budget_used(server.target().http).context("asking for metrics")?;
        // The good clients beside use some of it.
        if used < 4096 || start.elapsed() > PATIENCE {
            return Ok(used);
        }
        sleep(Duration::from_millis(20));
    }
}

fn report(
    name: &str,
    tally: &Tally,
    peak: Result<usize>,
    before: Seen,
    during: Seen,
    budget: Result<u64>,
    keeps_rate: bool,
) -> bool {
    let share = during.rate() / before.rate();
    let is_good = peak.as_ref().is_ok_and(|peak| *peak <= Scale::FULL.bound())
        && budget.as_ref().is_ok_and(|used| *used < 4096)
        && during.not_live == 0
        && during.failed == 0
        && (share >= 0.5 || !keeps_rate);
    let peak = peak.map_or_else(|error| format!("{error:#}"), |peak| format!("{} MiB", peak >> 20));
    let budget = budget.map_or_else(|_| "-".to_owned(), |used| used.to_string());
    println!(
        "| {name} | {tally} | {peak} | {:.0} ms (before: {:.0} ms) | {:.0} of {:.0} a second ({:.0} %) | {} refused, {} failed, {} not live | {budget} |{}",
        during.slowest_live.as_secs_f64() * 1e3,
        before.slowest_live.as_secs_f64() * 1e3,
        during.rate(),
        before.rate(),
        share * 100.0,
        during.refused,
        during.failed,
        during.not_live,
        if is_good { "" } else { " **broken**" },
    );
    is_good
}
