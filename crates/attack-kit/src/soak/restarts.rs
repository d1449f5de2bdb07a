//! Restarts a server with SIGTERM under HTTP and gRPC load: every accepted request gets its response.

use std::{
    cell::{Cell, RefCell},
    fmt, fs,
    path::Path,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use attack_kit::{
    Server, Target,
    grpc::{FramedMessage, Grpc, Method},
    http1::{Http, SMALL_ECHO, infer_path},
    models::{self, ECHO},
    protobuf::infer,
    run as run_clients,
};
use tokio::{task::JoinSet, time::sleep};

/// The outcomes of requests to a server that restarts.
#[derive(Default)]
pub(super) struct Restarts {
    count: u32,
    answered: u64,
    /// Successful requests that were sent after the signal.
    answered_late: u64,
    refused: u64,
    not_taken: u64,
    lost: Vec<String>,
    bad_ends: Vec<String>,
    longest_drain: Duration,
}

impl Restarts {
    pub(super) fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.bad_ends.is_empty()
    }
}

impl fmt::Display for Restarts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} restarts under load: {} requests answered, {} of them sent after the signal, {} refused by \
             a response, {} not taken, {} lost, {} bad ends; the longest drain took {:?}",
            self.count,
            self.answered,
            self.answered_late,
            self.refused,
            self.not_taken,
            self.lost.len(),
            self.bad_ends.len(),
            self.longest_drain
        )?;
        for what in self.lost.iter().chain(&self.bad_ends).take(10) {
            write!(formatter, "\n  {what}")?;
        }
        Ok(())
    }
}

/// Number of clients per transport.
const CLIENTS: usize = 4;

/// Restarts a server `count` times, spread over `time`. With a shutdown delay, clients stop halfway through
/// the delay, like clients behind a load balancer, and until then every request must succeed.
pub(super) fn run(
    program: &Path,
    ceiling: usize,
    time: Duration,
    count: u32,
    delay_of: impl Fn(u32) -> Duration,
) -> Result<Restarts> {
    let repository = tempfile::tempdir()?;
    models::write(repository.path(), 1 << 20)?;
    // Requests wait a little to be batched, so that many are in progress when the signal arrives.
    let config = "max_batch_size: 64\ndynamic_batching { max_queue_delay_microseconds: 20000 }\n";
    fs::write(repository.path().join(ECHO).join("config.pbtxt"), config)?;
    let restarts = Rc::new(RefCell::new(Restarts::default()));
    let start = Instant::now();
    for number in 0..count {
        let delay = delay_of(number);
        let shown = format!("{}ms", delay.as_millis());
        let options = ["--log", "off", "--shutdown-delay", &shown];
        let server = Server::start(program, repository.path(), &options, ceiling)?;
        restart(&server, &restarts, delay)?;
        let due = start + time.mul_f64(f64::from(number + 1) / f64::from(count));
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(restarts.take())
}

/// The state shared by the clients of one server.
#[derive(Clone)]
struct SharedState {
    restarts: Rc<RefCell<Restarts>>,
    /// When the signal was sent.
    signalled: Rc<Cell<Option<Instant>>>,
    /// How long the server still accepts requests after the signal.
    delay: Duration,
}

impl SharedState {
    /// Returns whether clients have been redirected: half of the delay has passed since the signal.
    fn is_out(&self) -> bool {
        let signalled = self.signalled.get();
        signalled.is_some_and(|signalled| signalled.elapsed() >= self.delay / 2)
    }

    /// Counts a response to a request sent at `sent`.
    fn count_answered(&self, sent: Instant) {
        let mut restarts = self.restarts.borrow_mut();
        restarts.answered += 1;
        restarts.answered_late += u64::from(self.signalled.get().is_some_and(|signalled| sent > signalled));
    }

    /// Counts a request without a response. If the request was sent after the signal, the server may not have
    /// accepted it.
    fn count_unanswered(&self, sent: Instant, what: &str) {
        let mut restarts = self.restarts.borrow_mut();
        match self.signalled.get() {
            Some(signalled) if sent >= signalled + self.delay => restarts.not_taken += 1,
            Some(signalled) => restarts.lost.push(format!(
                "{what}, sent {:?} before the signal or {:?} after it, with a delay of {:?}",
                signalled.saturating_duration_since(sent),
                sent.saturating_duration_since(signalled),
                self.delay
            )),
            None => restarts.lost.push(format!("{what}, before there was a signal")),
        }
    }
}

/// Loads a server with requests, sends SIGTERM, and waits for its exit.
fn restart(server: &Server, restarts: &Rc<RefCell<Restarts>>, delay: Duration) -> Result<()> {
    let shared = SharedState {
        restarts: restarts.clone(),
        signalled: Rc::default(),
        delay,
    };
    let target = server.target();
    run_clients(async {
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn_local(over_http(target, shared.clone()));
            clients.spawn_local(over_grpc(target, shared.clone()));
        }
        sleep(Duration::from_millis(fastrand::u64(100..600))).await;
        shared.signalled.set(Some(Instant::now()));
        server.signal("TERM")?;
        while clients.join_next().await.is_some() {}
        anyhow::Ok(())
    })??;
    let exit = server.wait(Duration::from_secs(60))?;
    let mut restarts = restarts.borrow_mut();
    let drain = shared
        .signalled
        .get()
        .map_or(Duration::ZERO, |start| start.elapsed().saturating_sub(delay));
    restarts.longest_drain = restarts.longest_drain.max(drain);
    restarts.count += 1;
    if !exit.success() {
        restarts.bad_ends.push(format!("ended with {exit}"));
    }
    Ok(())
}

/// Sends requests over persistent connections until the server accepts no more.
async fn over_http(target: Target, shared: SharedState) {
    while let Ok(mut http) = Http::connect(target.http).await {
        loop {
            let begun = Instant::now();
            if http
                .post(&infer_path(ECHO), "", SMALL_ECHO.as_bytes())
                .await
                .is_err()
            {
                break;
            }
            let sent = Instant::now();
            let Ok(answer) = http.receive().await else {
                shared.count_unanswered(sent, "HTTP: closed without a response");
                break;
            };
            match answer.status {
                200 => shared.count_answered(begun),
                503 => shared.restarts.borrow_mut().refused += 1,
                status => {
                    let lost = format!("HTTP: {status} {}", answer.text());
                    shared.restarts.borrow_mut().lost.push(lost);
                }
            }
            let is_out = !shared.delay.is_zero() && shared.is_out();
            if is_out || answer.header("connection") == Some("close") {
                break;
            }
        }
        if shared.is_out() {
            return;
        }
    }
}

/// Sends requests over gRPC until the server accepts no more.
async fn over_grpc(target: Target, shared: SharedState) {
    let message = FramedMessage::plain(&infer(ECHO, Some(("x", &[1, 2, 3, 4]))));
    let Ok(grpc) = Grpc::connect(target.grpc).await else {
        return;
    };
    loop {
        let sent = Instant::now();
        match grpc.call(Method::Unary, &message).await {
            Ok(answer) => {
                match answer.code {
                    0 => shared.count_answered(sent),
                    14 => shared.restarts.borrow_mut().refused += 1,
                    code => {
                        let lost = format!("gRPC: {code} {}", answer.message);
                        shared.restarts.borrow_mut().lost.push(lost);
                    }
                }
                if !shared.delay.is_zero() && shared.is_out() {
                    return;
                }
            }
            Err(error) => {
                // After GOAWAY, streams that the server has not accepted are refused explicitly.
                let refused = error.downcast_ref::<h2::Error>().is_some_and(|error| {
                    error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM)
                });
                match refused && shared.delay.is_zero() && shared.signalled.get().is_some() {
                    true => shared.restarts.borrow_mut().not_taken += 1,
                    false => shared.count_unanswered(sent, &format!("gRPC: {error:#}")),
                }
                return;
            }
        }
    }
}
