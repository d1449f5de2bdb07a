//! Runs a server with the measured models, each in its own directory, and loads them on request.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::client::{Client, Response};
use crate::served::free_address;

/// A running server. Dropping this value ends the server.
pub(super) struct Server {
    process: Child,
    pub(super) address: String,
    log: PathBuf,
}

/// Timeout for starting, for loading and for a request.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

impl Server {
    /// Starts a server without loading any model.
    pub(super) fn start(program: &Path, library: &Path, models: &Path, name: &str) -> Result<Self> {
        let log = models.with_file_name(format!("{name}.log"));
        let address = free_address()?;
        let file = File::create(&log)?;
        let process = Command::new(program)
            .arg(models)
            .args(["--address", &address, "--model-control-mode", "explicit"])
            .args(["--max-request-size", "256MiB", "--memory-budget", "2GiB"])
            .arg("--onnxruntime")
            .arg(library)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let mut server = Self {
            process,
            address,
            log,
        };
        let begun = Instant::now();
        while !server.is_live() {
            if let Some(status) = server.process.try_wait()? {
                bail!("the server ended: {status}: {}", server.last_words());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "the server does not answer after {PATIENCE:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    pub(super) fn client(&self) -> Result<Client> {
        Client::connect(&self.address, PATIENCE)
    }

    pub(super) fn is_live(&self) -> bool {
        let live = |mut client: Client| client.ask("GET", "/v2/health/live", "");
        self.client()
            .and_then(live)
            .is_ok_and(|response| response.status == 200)
    }

    /// Loads a model. The inner error is the reason that the server reports.
    pub(super) fn load(&self, model: &str) -> Result<Result<(), String>> {
        let path = format!("/v2/repository/models/{model}/load");
        let response = self.client()?.ask("POST", &path, "{}")?;
        Ok(said(&response))
    }

    /// Loads a model with `config` instead of the configuration in its directory.
    pub(super) fn load_with(&self, model: &str, config: &serde_json::Value) -> Result<Result<(), String>> {
        let path = format!("/v2/repository/models/{model}/load");
        let body = json!({"parameters": {"config": config.to_string()}}).to_string();
        let response = self.client()?.ask("POST", &path, &body)?;
        Ok(said(&response))
    }

    /// Unloads a model, and waits until it is unloaded.
    pub(super) fn unload(&self, model: &str) -> Result<()> {
        let path = format!("/v2/repository/models/{model}/unload");
        let response = self.client()?.ask("POST", &path, "{}")?;
        ensure!(response.status == 200, "unloading {model}: {}", response.reason());
        thread::sleep(Duration::from_millis(300));
        Ok(())
    }

    /// Returns the providers and devices that a loaded model runs on.
    pub(super) fn placement(&self, model: &str) -> Result<String> {
        let response = self
            .client()?
            .ask("GET", &format!("/v2/models/{model}/config"), "")?;
        let config: serde_json::Value = serde_json::from_slice(&response.body)?;
        let shown = &config["parameters"]["execution_providers"]["string_value"];
        Ok(shown.as_str().unwrap_or("not said").to_owned())
    }

    pub(super) fn metrics(&self) -> Result<String> {
        let response = self.client()?.ask("GET", "/metrics", "")?;
        Ok(String::from_utf8_lossy(&response.body).into_owned())
    }

    /// Returns the ids of the server's worker processes.
    pub(super) fn workers(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id()));
        let tasks = tasks.into_iter().flatten().flatten();
        let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<String> = children.collect();
        let words = children.iter().flat_map(|text| text.split_whitespace());
        words.filter_map(|word| word.parse().ok()).collect()
    }

    /// Returns the log lines that contain `words`.
    pub(super) fn log_with(&self, words: &str) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains(words))
            .map(str::to_owned)
            .collect()
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().last().unwrap_or_default().to_owned()
    }
}

fn said(response: &Response) -> Result<(), String> {
    match response.status {
        200 => Ok(()),
        status => Err(format!("{status}: {}", response.reason())),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(Some(_))) {
            return;
        }
        let id = self.process.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if matches!(self.process.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
