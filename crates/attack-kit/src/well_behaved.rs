//! Runs well-behaved clients during an attack, and measures their success rate and the latency of liveness
//! checks.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::{runtime::Builder, task::LocalSet, time::sleep};

use crate::{
    grpc::{FramedMessage, Grpc, Method},
    http1::{Http, SMALL_ECHO, infer_path},
    models::ECHO,
    protobuf::infer,
    server::Target,
};

/// The results of the well-behaved clients over a period.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientResults {
    /// Number of requests with a correct response.
    pub right: u64,
    /// Number of requests that the server refused with the advice to retry later.
    pub refused: u64,
    /// Number of requests that failed otherwise, or got a wrong response.
    pub failed: u64,
    /// Maximum latency of a liveness check, including connecting.
    pub slowest_live: Duration,
    /// Maximum wake-up delay of a sleeping thread in this process. It shows how much of
    /// [`ClientResults::slowest_live`] may be due to the machine rather than the server.
    pub slowest_wake: Duration,
    /// Number of liveness checks that failed.
    pub not_live: u64,
    /// Length of the period.
    pub time: Duration,
}

impl ClientResults {
    /// Returns the number of correct responses per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.right as f64 / self.time.as_secs_f64()
    }
}

#[derive(Default)]
struct Counts {
    is_done: AtomicBool,
    right: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    slowest_live: AtomicU64,
    slowest_wake: AtomicU64,
    not_live: AtomicU64,
}

/// Two HTTP and two gRPC clients that send small inferences sequentially, one client that checks liveness
/// every 10 ms, and a thread that only sleeps. All stop on drop.
pub struct WellBehavedClients {
    counts: Arc<Counts>,
    since: Instant,
    threads: Vec<JoinHandle<()>>,
}

impl WellBehavedClients {
    /// Starts the clients; each pauses for `pause` after every request.
    #[must_use]
    pub fn start(target: Target, pause: Duration) -> Self {
        let counts = Arc::<Counts>::default();
        let threads = vec![
            thread::spawn({
                let counts = counts.clone();
                move || clients(target, pause, &counts)
            }),
            thread::spawn({
                let counts = counts.clone();
                move || ask_whether_live(target.http, &counts)
            }),
            thread::spawn({
                let counts = counts.clone();
                move || sleep_and_wake(&counts)
            }),
        ];
        Self {
            counts,
            since: Instant::now(),
            threads,
        }
    }

    /// Returns the results since the start or the last call of this method.
    pub fn take(&mut self) -> ClientResults {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let seen = ClientResults {
            right: take(&self.counts.right),
            refused: take(&self.counts.refused),
            failed: take(&self.counts.failed),
            slowest_live: Duration::from_nanos(take(&self.counts.slowest_live)),
            slowest_wake: Duration::from_nanos(take(&self.counts.slowest_wake)),
            not_live: take(&self.counts.not_live),
            time: self.since.elapsed(),
        };
        self.since = Instant::now();
        seen
    }
}

impl Drop for WellBehavedClients {
    fn drop(&mut self) {
        self.counts.is_done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

enum Outcome {
    Right,
    Refused,
    Failed,
}

impl Counts {
    fn add(&self, outcome: &Outcome) {
        let count = match outcome {
            Outcome::Right => &self.right,
            Outcome::Refused => &self.refused,
            Outcome::Failed => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }
}

fn clients(target: Target, pause: Duration, counts: &Arc<Counts>) {
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
        return;
    };
    let local = LocalSet::new();
    for _ in 0..2 {
        local.spawn_local(over_http(target.http, pause, counts.clone()));
        local.spawn_local(over_grpc(target.grpc, pause, counts.clone()));
    }
    let counts = counts.clone();
    local.block_on(&runtime, async move {
        while !counts.is_done() {
            sleep(Duration::from_millis(20)).await;
        }
    });
}

async fn over_http(address: SocketAddr, pause: Duration, counts: Arc<Counts>) {
    let mut connection = None;
    while !counts.is_done() {
        let outcome = match connection.take() {
            None => match Http::connect(address).await {
                Ok(http) => {
                    connection = Some(http);
                    continue;
                }
                Err(_) => Outcome::Failed,
            },
            Some(mut http) => {
                let sent = http.post(&infer_path(ECHO), "", SMALL_ECHO.as_bytes()).await;
                match (sent, http.receive().await) {
                    (Ok(()), Ok(answer)) => {
                        let keeps = answer.header("connection") != Some("close");
                        connection = keeps.then_some(http);
                        match answer.status {
                            200 if answer.text().contains(r#""data":[1,2,3,4]"#) => Outcome::Right,
                            429 | 503 => Outcome::Refused,
                            _ => Outcome::Failed,
                        }
                    }
                    _ => Outcome::Failed,
                }
            }
        };
        pause_after(&outcome, pause, &counts).await;
    }
}

async fn over_grpc(address: SocketAddr, pause: Duration, counts: Arc<Counts>) {
    let message = FramedMessage::plain(&infer(ECHO, Some(("x", &[1, 2, 3, 4]))));
    let mut connection = None;
    while !counts.is_done() {
        let outcome = match &connection {
            None => match Grpc::connect(address).await {
                Ok(grpc) => {
                    connection = Some(grpc);
                    continue;
                }
                Err(_) => Outcome::Failed,
            },
            Some(grpc) => match grpc.call(Method::Unary, &message).await {
                Ok(answer) => match answer.code {
                    0 if answer.body.ends_with(&[1, 2, 3, 4]) => Outcome::Right,
                    8 | 14 => Outcome::Refused,
                    _ => Outcome::Failed,
                },
                Err(_) => {
                    connection = None;
                    Outcome::Failed
                }
            },
        };
        pause_after(&outcome, pause, &counts).await;
    }
}

/// Counts the outcome, then pauses for `pause`, or longer after a failure.
async fn pause_after(outcome: &Outcome, pause: Duration, counts: &Counts) {
    counts.add(outcome);
    match outcome {
        Outcome::Right if pause.is_zero() => {}
        Outcome::Right => sleep(pause).await,
        _ => sleep(pause.max(Duration::from_millis(20))).await,
    }
}

fn ask_whether_live(address: SocketAddr, counts: &Counts) {
    while !counts.is_done() {
        let start = Instant::now();
        if !matches!(is_live(address), Ok(true)) {
            counts.not_live.fetch_add(1, Ordering::Relaxed);
        }
        let time = start.elapsed().as_nanos() as u64;
        counts.slowest_live.fetch_max(time, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Measures how late the system wakes a sleeping thread.
fn sleep_and_wake(counts: &Counts) {
    const SLEEP: Duration = Duration::from_millis(2);
    while !counts.is_done() {
        let start = Instant::now();
        thread::sleep(SLEEP);
        let late = start.elapsed().saturating_sub(SLEEP).as_nanos() as u64;
        counts.slowest_wake.fetch_max(late, Ordering::Relaxed);
    }
}

fn is_live(address: SocketAddr) -> std::io::Result<bool> {
    let patience = Duration::from_secs(30);
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

/// Returns the bytes of the memory budget in use, from the server's metrics.
///
/// # Errors
/// When the server does not respond.
pub fn budget_used(address: SocketAddr) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("oip_memory_budget_used_bytes "));
    let used = line.ok_or_else(|| anyhow::anyhow!("the metrics do not show the budget"))?;
    Ok(used.parse::<f64>()? as u64)
}
