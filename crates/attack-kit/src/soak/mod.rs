//! A long mix of well-behaved and hostile clients, loads, kills and restarts: no request may be lost, and the
//! server's memory, threads and descriptors may not grow.

mod changes;
mod restarts;

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use attack_kit::{
    ClientResults, Scale, Server, Tally, WellBehavedClients, budget_used, models,
    rows::{self, Row},
    run_in_background,
};
use clap::Args;
use tokio::time::timeout;

use changes::Changes;

use crate::promise::{self, Violations};

/// Options of the soak test.
#[derive(Args)]
pub(crate) struct Options {
    /// The program of the server
    #[arg(long)]
    server: PathBuf,
    /// Run only attacks whose names contain this, or one of these
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Duration in minutes
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Number of times that a second server is restarted under load
    #[arg(long, default_value_t = 100)]
    restarts: u32,
    /// The shutdown delay in milliseconds of every second restart
    #[arg(long, default_value_t = 500, value_name = "MS")]
    shutdown_delay: u64,
    /// Run only the restarts, each with the delay, and no attacks
    #[arg(long)]
    only_restarts: bool,
    /// MiB of memory above which the server is killed, so that the machine survives
    #[arg(long, default_value_t = 3072, value_name = "MIB")]
    ceiling: usize,
}

/// Duration of each attack.
const TURN: Duration = Duration::from_secs(5);
/// The attackers' nice value, which gives them a lower priority than the server.
const NICE: i32 = 10;
/// How long the server may take to release its budget after an attack.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the whole mix and prints the summary; returns false when a request was lost or a measurement grew.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let time = Duration::from_secs(60 * options.minutes);
    let program = options.server.clone();
    let ceiling = options.ceiling << 20;
    let count = options.restarts;
    let delay = Duration::from_millis(options.shutdown_delay);
    if options.only_restarts {
        let restarts = restarts::run(&program, ceiling, Duration::ZERO, count, |_| delay)?;
        println!("each with a delay of {delay:?}: {restarts}");
        return Ok(restarts.is_clean());
    }
    // Every second restart has the delay.
    let delay = move |number| if number % 2 == 0 { delay } else { Duration::ZERO };
    let restarts = thread::spawn(move || restarts::run(&program, ceiling, time, count, delay));

    let repository = tempfile::tempdir()?;
    let server = start_server(&options.server, repository.path(), ceiling)?;
    let idle = server.resident()?;
    let mut beside = WellBehavedClients::start(server.target(), Duration::from_millis(5));
    let changes = Changes::start(&server);
    let attacks = Attacks::run(&server, &chosen_rows(&options.only)?, &mut beside, time)?;
    drop(beside);
    let changed = changes.end();
    wait_until_quiet(&server)?;
    let peak = server.peak()?.saturating_sub(idle);
    server.signal("TERM")?;
    let exit = server.wait(PATIENCE)?;
    let restarts = restarts
        .join()
        .map_err(|_| anyhow::anyhow!("the restarts panicked"))??;

    println!("{}; nothing grows", promise::text());
    attacks.print();
    println!("{changed}");
    println!("{restarts}");
    println!(
        "most memory above the idle server: {} MiB; ended with {exit}",
        peak >> 20
    );
    let mut broken = Violations::default();
    broken.memory(Some(peak));
    add_clients(&mut broken, &attacks.good);
    broken.unless(report(&attacks.samples), "nothing grows");
    broken.unless(changed.wrong == 0, "loads under requests");
    broken.unless(restarts.is_clean(), "restarts");
    broken.unless(exit.success(), "exit");
    println!("the promise: {broken}");
    Ok(broken.is_empty())
}

/// Attacks on a server, and the measurements during them.
struct Attacks {
    start: Instant,
    tally: Tally,
    /// The results of well-behaved clients during each attack, with its name.
    good: Vec<(String, ClientResults)>,
    /// One sample after each round of attacks.
    samples: Vec<Sample>,
}

impl Attacks {
    /// Runs the attacks `rows` one after the other, in rounds, for `time`.
    fn run(server: &Server, rows: &[Row], beside: &mut WellBehavedClients, time: Duration) -> Result<Self> {
        let mut attacks = Self {
            start: Instant::now(),
            tally: Tally::default(),
            good: Vec::new(),
            samples: Vec::new(),
        };
        while attacks.start.elapsed() < time {
            for row in rows {
                run_in_background(NICE, || {
                    let attack = (row.start)(server.target(), Scale::FULL, attacks.tally.clone());
                    async { drop(timeout(TURN, attack).await) }
                })?;
                attacks.good.push((row.name.clone(), beside.take()));
                if attacks.start.elapsed() >= time {
                    break;
                }
            }
            wait_until_quiet(server)?;
            attacks.samples.push(Sample::of(server)?);
        }
        Ok(attacks)
    }

    /// Prints the number of attacks, their responses and those of well-behaved clients.
    fn print(&self) {
        println!(
            "{} attacks in {} minutes: {}",
            self.good.len(),
            self.start.elapsed().as_secs() / 60,
            self.tally,
        );
        print_clients(&self.good);
    }
}

/// Writes the models of all attacks into `repository`, and starts a server that loads them.
fn start_server(program: &Path, repository: &Path, ceiling: usize) -> Result<Server> {
    models::write(repository, Scale::FULL.request)?;
    models::write_isolated(repository)?;
    changes::write(repository)?;
    let arguments = [
        "--log",
        "off",
        "--model-control-mode",
        "explicit",
        "--load-model",
        "*",
        "--system-shared-memory",
    ];
    Server::start(program, repository, &arguments, ceiling)
}

/// Adds the violations that well-behaved clients saw during each attack, and prints them.
fn add_clients(broken: &mut Violations, good: &[(String, ClientResults)]) {
    for (name, seen) in good {
        let mut beside = Violations::default();
        beside.clients(seen);
        if !beside.is_empty() {
            println!("next to {name}: {beside}: {seen:?}");
            broken.add(beside);
        }
    }
}

/// Returns the attacks whose name contains any of `only`, or all if it is empty.
fn chosen_rows(only: &[String]) -> Result<Vec<Row>> {
    let mut chosen = rows::all();
    if !only.is_empty() {
        chosen.retain(|row| only.iter().any(|only| row.name.contains(only)));
        ensure!(!chosen.is_empty(), "no attack's name contains any of {only:?}");
    }
    Ok(chosen)
}

/// Prints the results of the well-behaved clients during all attacks.
fn print_clients(good: &[(String, ClientResults)]) {
    let sum = |count: fn(&ClientResults) -> u64| good.iter().map(|(_, seen)| count(seen)).sum::<u64>();
    println!(
        "good clients: {} answered, {} told to come again, {} failed; {} times not live",
        sum(|seen| seen.right),
        sum(|seen| seen.refused),
        sum(|seen| seen.failed),
        sum(|seen| seen.not_live),
    );
    if let Some((name, seen)) = good.iter().max_by_key(|(_, seen)| seen.slowest_live) {
        println!(
            "slowest sign of life: {:?} next to: {name} (a sleeping thread woke {:?} too late)",
            seen.slowest_live, seen.slowest_wake
        );
    }
}

/// Waits until the attacks' memory is released, and until the threads that served the attacks have had time
/// to end.
fn wait_until_quiet(server: &Server) -> Result<()> {
    let start = Instant::now();
    // The well-behaved clients use some of the budget.
    while budget_used(server.target().http)? >= 1 << 20 {
        ensure!(
            start.elapsed() < PATIENCE,
            "the budget is not given back: {} bytes",
            budget_used(server.target().http)?
        );
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_secs(12));
    Ok(())
}

/// Measurements of the server in a quiet moment.
struct Sample {
    resident: usize,
    threads: usize,
    descriptors: usize,
}

impl Sample {
    fn of(server: &Server) -> Result<Self> {
        Ok(Self {
            resident: server.resident()? >> 20,
            threads: server.threads()?,
            descriptors: server.descriptors()?,
        })
    }
}

/// Prints the samples; returns false when the maximum of the last third exceeds that of the first third by
/// more than a tolerance.
fn report(samples: &[Sample]) -> bool {
    println!("| in quiet moments | first | median | most | last |");
    println!("|---|---|---|---|---|");
    let mut is_flat = true;
    for (name, values, slack) in [
        (
            "MiB resident",
            samples.iter().map(|sample| sample.resident).collect::<Vec<_>>(),
            64,
        ),
        (
            "threads",
            samples.iter().map(|sample| sample.threads).collect(),
            4,
        ),
        (
            "descriptors",
            samples.iter().map(|sample| sample.descriptors).collect(),
            8,
        ),
    ] {
        let mut sorted = values.clone();
        sorted.sort_unstable();
        let (Some(first), Some(last), Some(most)) = (values.first(), values.last(), sorted.last()) else {
            println!("| {name} | no samples |");
            return false;
        };
        println!(
            "| {name} | {first} | {} | {most} | {last} |",
            sorted[sorted.len() / 2]
        );
        let third = values.len().div_ceil(3);
        let most = |values: &[usize]| values.iter().copied().max().unwrap_or(0);
        is_flat &= most(&values[values.len() - third..]) <= most(&values[..third]) + slack;
    }
    is_flat
}
