//! Attacks on a running server with an eighth of its default limits: it survives, its memory stays within the
//! bound of docs/reliability.md, and well-behaved clients succeed.

mod bodies;
mod codes;
mod decoding;
mod floods;
mod readers;
mod shared_memory;
mod streams;

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use attack_kit::{
    ClientResults, Scale, Server, Tally, Target, WellBehavedClients, budget_used,
    http1::{Http, SMALL_ECHO, infer_path},
    models, run,
};

/// How long the server may take, on a busy machine, to release memory of disconnected clients.
const PATIENCE: Duration = Duration::from_secs(120);
/// Memory in bytes above which the server is killed, so that a failing test does not take down the machine.
const CEILING: usize = 2 << 30;

/// A running server with the limits of [`Scale::SMALL`], and its models.
struct TestServer {
    server: Server,
    _repository: tempfile::TempDir,
}

impl TestServer {
    fn start(options: &[&str]) -> Self {
        let repository = tempfile::tempdir().unwrap();
        models::write(repository.path(), Scale::SMALL.request).unwrap();
        let limits = Scale::SMALL.options();
        let mut arguments: Vec<&str> = limits.iter().map(String::as_str).collect();
        arguments.extend(["--log", "off"]);
        arguments.extend(options);
        let program = Path::new(env!("CARGO_BIN_EXE_oip-server"));
        let server = Server::start(program, repository.path(), &arguments, CEILING).unwrap();
        let attacked = Self {
            server,
            _repository: repository,
        };
        // The first requests are sent before the attack, because memory that they retain is not due to it.
        attacked.assert_serves();
        attacked
    }

    fn target(&self) -> Target {
        self.server.target()
    }

    /// Runs an attack for at most `longest`, and checks the guarantees during and after it; returns its
    /// responses and the results of well-behaved clients.
    fn survives<F: Future<Output = ()>>(
        &self,
        name: &str,
        longest: Duration,
        attack: impl FnOnce(Target, Scale, Tally) -> F,
    ) -> (Tally, ClientResults) {
        let tally = Tally::default();
        let idle = self.server.resident().unwrap();
        self.server.reset_peak().unwrap();
        let mut beside = WellBehavedClients::start(self.target(), Duration::from_millis(50));
        run(async {
            let attack = attack(self.target(), Scale::SMALL, tally.clone());
            // Dropping the attack closes its remaining connections.
            let _ = tokio::time::timeout(longest, attack).await;
        })
        .unwrap();
        let peak = self
            .server
            .peak()
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let taken = peak.saturating_sub(idle);
        assert!(
            taken <= Scale::SMALL.bound(),
            "{name}: {} MiB were taken, {} are promised",
            taken >> 20,
            Scale::SMALL.bound() >> 20
        );
        let seen = beside.take();
        drop(beside);
        assert_eq!((seen.failed, seen.not_live), (0, 0), "{name}: {seen:?}");
        self.assert_settles(name);
        self.assert_serves();
        (tally, seen)
    }

    /// Waits until the budget is fully released after all clients have disconnected.
    fn assert_settles(&self, name: &str) {
        let start = Instant::now();
        loop {
            let used = budget_used(self.target().http).unwrap();
            if used == 0 {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{name}: {used} bytes of the budget are still used"
            );
            sleep(Duration::from_millis(20));
        }
    }

    fn assert_serves(&self) {
        let answer = run(async {
            let mut http = Http::connect(self.target().http).await?;
            http.post(&infer_path(models::ECHO), "", SMALL_ECHO.as_bytes())
                .await?;
            http.receive().await
        });
        let answer = answer.unwrap().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.text().contains(r#""data":[1,2,3,4]"#), "{}", answer.text());
    }
}
