//! Runs every attack at full size against a server with default options, first alone and then together with
//! others, alongside well-behaved clients.

use std::{
    panic::resume_unwind,
    path::PathBuf,
    sync::Barrier,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use attack_kit::{
    Scale, Server, Tally, WellBehavedClients, budget_used, models,
    rows::{self, Kind, Row},
    run_in_background,
};
use clap::Args;
use tokio::time::timeout;

use crate::promise::{self, Violations};

/// Options of the attacks.
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
    /// The attackers' nice value, from 0 to 19; with 0 they compete with the server for CPU time
    #[arg(long, default_value_t = 10)]
    nice: i32,
    /// MiB of memory above which the server is killed, so that the machine survives
    #[arg(long, default_value_t = 3072, value_name = "MIB")]
    ceiling: usize,
}

/// How long well-behaved clients are measured before an attack.
const QUIET: Duration = Duration::from_secs(3);
/// How long the server may take to release its budget after an attack.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs all attacks and prints a line for each; returns false when any violated a guarantee.
pub(crate) fn run(options: &Options) -> Result<bool> {
    println!("{}", promise::text());
    println!(
        "| attack | answers | most above idle | slowest sign of life (a sleeping thread woke too late by) | good clients' \
         rate | refused, failed, not live | budget after | promise |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let wanted = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only));
    let mut is_good = true;
    for row in rows::all().iter().filter(|row| wanted(&row.name)) {
        is_good &= attack(options, &row.name, std::slice::from_ref(row))?;
    }
    for (name, kinds) in [
        ("all large ones at once", &[Kind::Large][..]),
        ("all large ones and crowds at once", &[Kind::Large, Kind::Crowd]),
    ] {
        if wanted(name) {
            let mut rows = rows::all();
            rows.retain(|row| kinds.contains(&row.kind));
            is_good &= attack(options, name, &rows)?;
        }
    }
    println!("the promise was {}", if is_good { "held" } else { "broken" });
    Ok(is_good)
}

/// Runs the attacks `rows` together against a new server, and prints their line of the table.
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
    let mut beside = WellBehavedClients::start(server.target(), Duration::ZERO);
    // Warms up connections and threads, so that their memory is not attributed to the attack.
    sleep(Duration::from_millis(500));
    beside.take();
    sleep(QUIET);
    let before = beside.take();
    let tally = Tally::default();
    let idle = attack_together(options, rows, &server, &mut beside, &tally)?;
    let during = beside.take();
    drop(beside);
    let budget = settled_budget(&server);
    let peak = server.peak().map(|peak| peak.saturating_sub(idle));

    let share = during.rate() / before.rate();
    let mut broken = Violations::default();
    broken.memory(peak.as_ref().ok().copied());
    broken.clients(&during);
    if !rows.iter().any(|row| row.kind == Kind::Flood) {
        broken.share(share);
    }
    broken.unless(budget.as_ref().is_ok_and(|used| *used == 0), "budget");
    let peak = peak.map_or_else(|error| format!("{error:#}"), |peak| format!("{} MiB", peak >> 20));
    let budget = budget.map_or_else(|_| "-".to_owned(), |used| used.to_string());
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "| {name} | {tally} | {peak} | {:.0} ms ({:.0}); before {:.0} ms ({:.0}) | {:.0} of {:.0} a second ({:.0} %) | {}, \
         {}, {} | {budget} | {broken} |",
        milliseconds(during.slowest_live),
        milliseconds(during.slowest_wake),
        milliseconds(before.slowest_live),
        milliseconds(before.slowest_wake),
        during.rate(),
        before.rate(),
        share * 100.0,
        during.refused,
        during.failed,
        during.not_live,
    );
    Ok(broken.is_empty())
}

/// Runs each attack on its own thread, all starting at the same moment. At that moment, resets the server's
/// peak memory and the clients' results, and reads the server's memory, which is returned.
fn attack_together(
    options: &Options,
    rows: &[Row],
    server: &Server,
    beside: &mut WellBehavedClients,
    tally: &Tally,
) -> Result<usize> {
    let target = server.target();
    let (are_made, begin) = (Barrier::new(rows.len() + 1), Barrier::new(rows.len() + 1));
    let attack = |row: &Row| {
        run_in_background(options.nice, || {
            let attack = (row.start)(target, Scale::FULL, tally.clone());
            are_made.wait();
            begin.wait();
            // Dropping the attack closes its remaining connections.
            async { drop(timeout(Duration::from_secs(options.seconds), attack).await) }
        })
    };
    thread::scope(|scope| {
        let attackers: Vec<_> = rows.iter().map(|row| scope.spawn(move || attack(row))).collect();
        are_made.wait();
        let idle = server.reset_peak().and_then(|()| server.resident());
        beside.take();
        begin.wait();
        for attacker in attackers {
            attacker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        idle
    })
}

/// Waits for the server to release its budget after all clients have disconnected, and returns the bytes in
/// use: zero, or the bytes that are still in use at the timeout.
fn settled_budget(server: &Server) -> Result<u64> {
    let start = Instant::now();
    loop {
        let used = budget_used(server.target().http).context("asking for metrics")?;
        if used == 0 || start.elapsed() > PATIENCE {
            return Ok(used);
        }
        sleep(Duration::from_millis(20));
    }
}
