//! A server process observed from outside: its addresses, memory, threads and descriptors.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

/// The server's addresses.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The HTTP address.
    pub http: SocketAddr,
    /// The gRPC address.
    pub grpc: SocketAddr,
}

/// A running server. A thread samples the server's memory and kills the server above a ceiling, so that a
/// successful attack does not take down the machine. Dropping the value kills the server.
pub struct Server {
    child: Arc<Mutex<Child>>,
    pid: u32,
    target: Target,
    peak: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    is_done: Arc<AtomicBool>,
}

impl Server {
    /// Starts the program and waits until its models are loaded. The server is killed when its memory exceeds
    /// `ceiling`.
    ///
    /// # Errors
    /// When the program cannot be started, or exits before its models are loaded.
    pub fn start(program: &Path, repository: &Path, options: &[&str], ceiling: usize) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .arg("--model-repository")
            .arg(repository)
            .args(["--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0"])
            .args(options)
            .env_remove("ORT_DYLIB_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let pid = child.id();
        let mut stdout = BufReader::new(child.stdout.take().context("the server has no output")?);
        let target = match started_target(&mut stdout) {
            Ok(target) => target,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        let server = Self {
            child: Arc::new(Mutex::new(child)),
            pid,
            target,
            peak: Arc::default(),
            is_over: Arc::default(),
            is_done: Arc::default(),
        };
        server.watch(ceiling);
        // Drains the server's later output, so that writing it does not block or fail.
        thread::spawn(move || {
            let mut line = String::new();
            while stdout.read_line(&mut line).is_ok_and(|read| read > 0) {
                line.clear();
            }
        });
        Ok(server)
    }

    /// Samples the server's memory every 10 ms until the server is dropped. Kills the server above `ceiling`
    /// bytes.
    fn watch(&self, ceiling: usize) {
        let (child, peak) = (self.child.clone(), self.peak.clone());
        let (is_over, is_done) = (self.is_over.clone(), self.is_done.clone());
        let pid = self.pid;
        thread::spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                if let Ok(resident) = status(pid, "VmRSS") {
                    peak.fetch_max(resident, Ordering::Relaxed);
                    if resident > ceiling {
                        is_over.store(true, Ordering::Relaxed);
                        let _ = child.lock().map(|mut child| child.kill());
                        return;
                    }
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
    }

    /// Returns the server's addresses.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    /// Returns the server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the server's resident memory in bytes.
    ///
    /// # Errors
    /// When the process has exited.
    pub fn resident(&self) -> Result<usize> {
        status(self.pid, "VmRSS")
    }

    /// Returns the peak resident memory since the start, or since [`Server::reset_peak`].
    ///
    /// # Errors
    /// When the process has exited.
    pub fn peak(&self) -> Result<usize> {
        if self.is_over.load(Ordering::Relaxed) {
            bail!(
                "killed at {} MiB, since it was above the ceiling",
                self.peak.load(Ordering::Relaxed) >> 20
            );
        }
        let recorded = status(self.pid, "VmHWM")?;
        Ok(recorded.max(self.peak.load(Ordering::Relaxed)))
    }

    /// Resets [`Server::peak`] to the current memory.
    ///
    /// # Errors
    /// When the system does not allow resetting the value.
    pub fn reset_peak(&self) -> Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5").context("resetting the peak")?;
        self.peak.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the server's number of threads.
    ///
    /// # Errors
    /// When the process has exited.
    pub fn threads(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/task", self.pid))?.count())
    }

    /// Returns the server's number of open descriptors.
    ///
    /// # Errors
    /// When the process has exited.
    pub fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// Returns whether the process is running.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.child
            .lock()
            .is_ok_and(|mut child| matches!(child.try_wait(), Ok(None)))
    }

    /// Sends the signal `name`, which is written without `SIG`.
    ///
    /// # Errors
    /// When the process has exited.
    pub fn signal(&self, name: &str) -> Result<()> {
        signal(self.pid, name)
    }

    /// Waits until the process exits, without sending it a signal.
    ///
    /// # Errors
    /// When the process does not exit within `patience`.
    pub fn wait(&self, patience: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            let ended = self.child.lock().ok().map(|mut child| child.try_wait());
            if let Some(Some(status)) = ended.transpose()? {
                return Ok(status);
            }
            ensure!(start.elapsed() < patience, "the server did not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        if let Ok(mut child) = self.child.lock() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads a server's output until its models are loaded, and returns the addresses in it.
fn started_target(stdout: &mut impl BufRead) -> Result<Target> {
    let mut wait_for = |text: &str| -> Result<String> {
        loop {
            let mut line = String::new();
            ensure!(
                stdout.read_line(&mut line)? > 0,
                "the server ended while it started"
            );
            if line.contains(text) {
                return Ok(line);
            }
        }
    };
    let address = |line: String| -> Result<SocketAddr> {
        let text = line.trim().rsplit(' ').next().unwrap_or_default();
        text.trim_start_matches("http://")
            .parse()
            .with_context(|| format!("reading the address in {line:?}"))
    };
    let http = address(wait_for("HTTP")?)?;
    let grpc = address(wait_for("gRPC")?)?;
    wait_for(" after ")?;
    Ok(Target { http, grpc })
}

/// Returns the child processes of a process: a server's isolated models.
#[must_use]
pub fn workers(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = |line: String| -> Vec<u32> {
        line.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    children.flat_map(pids).collect()
}

/// Sends a signal to a process.
///
/// # Errors
/// When the process has exited.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    let sent = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .stderr(Stdio::null())
        .status()?;
    ensure!(sent.success(), "there is no process {pid}");
    Ok(())
}

/// Returns a value of `/proc/PID/status` in bytes.
fn status(pid: u32, line: &str) -> Result<usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("the server is gone")?;
    let found = text.lines().find_map(|found| found.strip_prefix(line));
    let kib = found.context("the server has ended")?;
    let kib = kib.trim_start_matches(':').trim().trim_end_matches(" kB");
    Ok(kib.parse::<usize>()? << 10)
}
