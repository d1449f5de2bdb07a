//! Changes under load: models are loaded and unloaded, and their processes are killed.

use std::{
    fmt, fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;
use attack_kit::{
    Server, Target,
    http1::{Http, HttpResponse, SMALL_ECHO, infer_path},
    models, run, signal,
};

/// The model that is loaded and unloaded.
const CHANGING: &str = "changing_echo";

/// Adds the `CHANGING` model to a repository.
pub(super) fn write(repository: &Path) -> Result<()> {
    let folder = repository.join(CHANGING).join("1");
    fs::create_dir_all(&folder)?;
    let echo = repository.join(models::ECHO).join("1/model.onnx");
    fs::copy(echo, folder.join("model.onnx"))?;
    Ok(())
}

/// The changes made, and their effect on clients.
#[derive(Default)]
pub(super) struct ChangeReport {
    loads: u64,
    kills: u64,
    answered: u64,
    refused: u64,
    /// Requests to a killed process that failed with 500, as docs/reliability.md allows.
    cut: u64,
    /// Number of responses that the changes do not explain.
    pub(super) wrong: u64,
    examples: Vec<String>,
    longest_absence: Duration,
}

impl fmt::Display for ChangeReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} loads and unloads, {} kills of model processes: {} requests answered, {} told to come again, {} cut by a kill, {} wrong; a killed model was back within {:?}",
            self.loads, self.kills, self.answered, self.refused, self.cut, self.wrong, self.longest_absence
        )?;
        for example in &self.examples {
            write!(formatter, "\n  wrong: {example}")?;
        }
        Ok(())
    }
}

/// The thread that makes the changes.
pub(super) struct Changes {
    is_done: Arc<AtomicBool>,
    thread: JoinHandle<ChangeReport>,
}

impl Changes {
    pub(super) fn start(server: &Server) -> Self {
        let is_done = Arc::<AtomicBool>::default();
        let (target, pid) = (server.target(), server.pid());
        let thread = thread::spawn({
            let is_done = is_done.clone();
            move || {
                let mut changed = ChangeReport::default();
                while !is_done.load(Ordering::Relaxed) {
                    changed.turn(target, pid);
                    thread::sleep(Duration::from_millis(500));
                }
                changed
            }
        });
        Self { is_done, thread }
    }

    pub(super) fn end(self) -> ChangeReport {
        self.is_done.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

impl ChangeReport {
    fn turn(&mut self, target: Target, server: u32) {
        for change in ["unload", "load"] {
            let path = format!("/v2/repository/models/{CHANGING}/{change}");
            match post(target, &path, "{}") {
                Ok(answer) if answer.status == 200 => self.loads += 1,
                other => self.count(&[], &format!("{change}: "), other),
            }
            // Between unload and load the model is missing: 400 or 404.
            let answer = post(target, &infer_path(CHANGING), SMALL_ECHO);
            self.count(&[400, 404], "", answer);
        }
        for worker in attack_kit::workers(server) {
            if signal(worker, "KILL").is_ok() {
                self.kills += 1;
            }
        }
        let start = Instant::now();
        loop {
            let answer = post(target, &infer_path(models::ISOLATED), SMALL_ECHO);
            let is_back = answer.as_ref().is_ok_and(|answer| answer.status == 200);
            if answer.as_ref().is_ok_and(|answer| answer.status == 500) {
                self.cut += 1;
            } else {
                self.count(&[], "", answer);
            }
            if is_back || start.elapsed() > Duration::from_secs(30) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.longest_absence = self.longest_absence.max(start.elapsed());
    }

    fn count(&mut self, expected: &[u16], what: &str, answer: std::io::Result<HttpResponse>) {
        match answer {
            Ok(answer) if answer.status == 200 => self.answered += 1,
            Ok(answer) if [429, 503].contains(&answer.status) => self.refused += 1,
            Ok(answer) if expected.contains(&answer.status) => {}
            Ok(answer) => self.note(format!("{what}{} {}", answer.status, answer.text())),
            Err(error) => self.note(format!("{what}{error}")),
        }
    }

    fn note(&mut self, example: String) {
        self.wrong += 1;
        if self.examples.len() < 5 {
            self.examples.push(example);
        }
    }
}

fn post(target: Target, path: &str, body: &str) -> std::io::Result<HttpResponse> {
    run(async {
        let mut http = Http::connect(target.http).await?;
        http.post(path, "", body.as_bytes()).await?;
        http.receive().await
    })?
}
