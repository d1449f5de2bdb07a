//! `cargo xtask simulate`: simulates a burst from zero to many requests per second, and computes how many
//! requests are served until autoscalers have started enough replicas. This is arithmetic with measured
//! figures, not a measurement; see docs/deploy/scaling.md.

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use clap::Args;

/// The burst, the replicas, and how they are started.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Requests per second of the burst, from its first moment
    #[arg(long, default_value_t = 10_000.0)]
    rate: f64,
    /// CPU time of the server per request, in microseconds
    #[arg(long, default_value_t = 2_000.0)]
    cost: f64,
    /// CPUs of a replica
    #[arg(long, default_value_t = 2.0)]
    cores: f64,
    /// Number of replicas before the burst; 0 is possible only with Knative and KEDA
    #[arg(long, default_value_t = 2)]
    replicas: usize,
    /// Maximum number of replicas
    #[arg(long, default_value_t = 20)]
    most: usize,
    /// Seconds from the decision to add a replica to its first request: scheduling, container, loading, the
    /// readiness probe
    #[arg(long, default_value_t = 4.0)]
    start: f64,
    /// Maximum number of requests waiting at a replica (--queue-size); more are refused
    #[arg(long, default_value_t = 256.0)]
    queue: f64,
    /// Number of running or waiting requests per replica that autoscalers aim for
    #[arg(long, default_value_t = 8.0)]
    target: f64,
    /// Simulated seconds
    #[arg(long, default_value_t = 300.0)]
    seconds: f64,
}

/// The autoscaler that sets the number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Autoscaler {
    /// `HorizontalPodAutoscaler` by CPU usage, at 70 %.
    Processors,
    /// `HorizontalPodAutoscaler` by `oip_requests_running` of the last 30 s, as with KEDA.
    Running,
    /// Knative: by requests of the last 6 s, including those that it buffers itself.
    Knative,
}

impl Autoscaler {
    const ALL: [Self; 3] = [Self::Processors, Self::Running, Self::Knative];

    fn name(self) -> &'static str {
        match self {
            Self::Processors => "HPA by processors (70 %)",
            Self::Running => "KEDA by oip_requests_running",
            Self::Knative => "Knative by concurrency",
        }
    }

    /// Returns the seconds between two decisions.
    fn period(self) -> f64 {
        match self {
            Self::Processors | Self::Running => 15.0,
            Self::Knative => 2.0,
        }
    }

    /// Returns the length of the averaging window, and the minimum age of the values in it, in seconds.
    fn window(self) -> (f64, f64) {
        match self {
            Self::Processors => (15.0, 15.0),
            Self::Running => (30.0, 0.0),
            Self::Knative => (6.0, 0.0),
        }
    }

    /// Returns the number of requests that the autoscaler buffers while there is no replica.
    fn holds(self) -> f64 {
        match self {
            Self::Processors | Self::Running => 0.0,
            Self::Knative => 10_000.0,
        }
    }
}

/// Length of a simulation step in seconds.
const STEP: f64 = 0.1;

/// The outcome of the burst.
#[derive(Debug, Default)]
struct Outcome {
    arrived: f64,
    served: f64,
    refused: f64,
    waiting: f64,
    /// Time at which the last request was refused.
    last_refused: f64,
    /// The longest time that a request waited, in seconds.
    longest: f64,
    replicas: usize,
    /// The number of replicas after each change, with the time.
    changes: Vec<(f64, usize)>,
}

fn simulate(options: &Options, autoscaler: Autoscaler) -> Outcome {
    let mut outcome = Outcome {
        replicas: options.replicas,
        ..Outcome::default()
    };
    // Times at which new replicas will be ready.
    let mut coming: VecDeque<f64> = VecDeque::new();
    // For each step, the fraction of CPUs in use and the number of running or waiting requests.
    let (mut busy, mut running) = (Vec::new(), Vec::new());
    let steps = (options.seconds / STEP).round() as usize;
    for step in 0..steps {
        let now = step as f64 * STEP;
        while coming.front().is_some_and(|ready| *ready <= now) {
            coming.pop_front();
            outcome.replicas += 1;
            outcome.changes.push((now, outcome.replicas));
        }
        let part = outcome.serve(options, autoscaler, now);
        busy.push(part);
        running.push(outcome.waiting + part * outcome.replicas as f64 * options.cores);

        // The simulated burst begins right after a decision, so the first decision is a whole period later.
        let every = (autoscaler.period() / STEP).round() as usize;
        if (step + 1) % every != 0 {
            continue;
        }
        let (window, age) = autoscaler.window();
        let mean = |values: &[f64]| {
            let end = values.len().saturating_sub((age / STEP) as usize);
            let count = (window / STEP) as usize;
            // Values from before the burst count as zero.
            values[end.saturating_sub(count)..end].iter().sum::<f64>() / count as f64
        };
        let known = outcome.replicas + coming.len();
        let wanted = match autoscaler {
            Autoscaler::Processors => (outcome.replicas as f64 * mean(&busy) / 0.7).ceil(),
            // If there are no replicas, KEDA itself starts the first replica at its next poll.
            Autoscaler::Running if known == 0 => 1.0,
            Autoscaler::Running | Autoscaler::Knative => (mean(&running) / options.target).ceil(),
        };
        // By default, a HorizontalPodAutoscaler at most doubles the number of replicas, or adds four if that
        // is more. Knative may start all replicas at once.
        let at_once = match autoscaler {
            Autoscaler::Processors | Autoscaler::Running => (known * 2).max(known + 4),
            Autoscaler::Knative => options.most,
        };
        let wanted = (wanted as usize).min(at_once).min(options.most);
        for _ in known..wanted {
            coming.push_back(now + STEP + options.start);
        }
    }
    outcome
}

pub(crate) fn run(options: &Options) -> Result<()> {
    for (name, number) in [
        ("--rate", options.rate),
        ("--cost", options.cost),
        ("--cores", options.cores),
        ("--target", options.target),
        ("--seconds", options.seconds),
    ] {
        ensure!(
            number > 0.0 && number.is_finite(),
            "{name}: expected a number above 0, found {number}"
        );
    }
    ensure!(
        options.seconds <= 1e5,
        "--seconds: expected at most a day, found {}",
        options.seconds
    );
    let per_replica = options.cores * 1e6 / options.cost;
    println!(
        "{} requests/s of {} us; a replica of {} processors takes {per_replica:.0}/s, so {:.1} are needed; {} before, {} at most",
        options.rate,
        options.cost,
        options.cores,
        options.rate / per_replica,
        options.replicas,
        options.most
    );
    let titles = [
        "replicas",
        "until none refused",
        "refused",
        "of all",
        "longest wait",
    ];
    println!(
        "{:<32}{}",
        "",
        titles.map(|title| format!("{title:>20}")).concat()
    );
    for autoscaler in Autoscaler::ALL {
        if options.replicas == 0 && autoscaler == Autoscaler::Processors {
            println!("{:<32}{:>20}", autoscaler.name(), "never fewer than 1");
            continue;
        }
        simulate(options, autoscaler).print(autoscaler.name(), options.seconds);
    }
    Ok(())
}

impl Outcome {
    /// Simulates the requests of the step at time `now`. Returns the fraction of CPUs in use.
    fn serve(&mut self, options: &Options, autoscaler: Autoscaler, now: f64) -> f64 {
        let per_replica = options.cores * 1e6 / options.cost;
        let replicas = self.replicas as f64;
        let (arrived, capacity) = (options.rate * STEP, replicas * per_replica * STEP);
        let served = capacity.min(self.waiting + arrived);
        let left = self.waiting + arrived - served;
        let room = (options.queue * replicas).max(if self.replicas == 0 {
            autoscaler.holds()
        } else {
            0.0
        });
        let refused = (left - room).max(0.0);
        self.waiting = left - refused;
        self.arrived += arrived;
        self.served += served;
        self.refused += refused;
        if refused > 0.0 {
            self.last_refused = now + STEP;
        }
        if capacity > 0.0 {
            self.longest = self.longest.max(self.waiting / capacity * STEP);
        }
        if capacity > 0.0 { served / capacity } else { 0.0 }
    }

    /// Prints the outcome for an autoscaler, after `seconds` of simulation.
    fn print(&self, autoscaler: &str, seconds: f64) {
        let until = match self.last_refused + 2.0 * STEP > seconds {
            true => "never".to_owned(),
            false => format!("{:.1} s", self.last_refused),
        };
        println!(
            "{autoscaler:<32}{:>20}{until:>20}{:>20.0}{:>19.1}%{:>18.2} s",
            self.replicas,
            self.refused,
            self.refused / self.arrived * 100.0,
            self.longest
        );
        let changes = self.changes.chunk_by(|(one, _), (other, _)| one == other);
        let last = changes.filter_map(<[_]>::last);
        let shown: Vec<String> = last
            .map(|(time, count)| format!("{count} at {time:.0} s"))
            .collect();
        println!(
            "  {}",
            if shown.is_empty() {
                "no change".to_owned()
            } else {
                shown.join(", ")
            }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Options = Options {
        rate: 10_000.0,
        cost: 2_000.0,
        cores: 2.0,
        replicas: 2,
        most: 20,
        start: 4.0,
        queue: 256.0,
        target: 8.0,
        seconds: 300.0,
    };

    #[test]
    fn no_request_is_lost_and_none_is_made_up() {
        for autoscaler in Autoscaler::ALL {
            for replicas in [0, 1, 20] {
                let outcome = simulate(&Options { replicas, ..CASE }, autoscaler);
                let sum = outcome.served + outcome.refused + outcome.waiting;
                assert!((sum - outcome.arrived).abs() < 1e-3, "{autoscaler:?} {outcome:?}");
                assert!(outcome.replicas <= 20 && outcome.longest.is_finite());
            }
        }
    }

    #[test]
    fn enough_replicas_refuse_nothing_and_faster_signals_refuse_less() {
        let enough = simulate(&Options { replicas: 10, ..CASE }, Autoscaler::Running);
        assert_eq!(enough.refused, 0.0);
        let refused = |autoscaler| simulate(&CASE, autoscaler).refused;
        assert!(refused(Autoscaler::Knative) < refused(Autoscaler::Running));
        assert!(refused(Autoscaler::Running) <= refused(Autoscaler::Processors));
        // One replica is enough for a cheap model.
        let cheap = Options { cost: 40.0, ..CASE };
        assert_eq!(
            simulate(&Options { replicas: 1, ..cheap }, Autoscaler::Running).refused,
            0.0
        );
        // Two replicas serve 2000 of 10,000 requests per second until the first decision at 15 s and the
        // start of new replicas 4 s later; 512 requests wait.
        let first = simulate(
            &Options {
                seconds: 15.0,
                ..CASE
            },
            Autoscaler::Running,
        );
        assert!(
            (first.refused - (8_000.0 * 15.0 - 512.0)).abs() < 1.0,
            "{first:?}"
        );
        assert!((first.longest - 0.256).abs() < 1e-6, "{first:?}");
    }
}
