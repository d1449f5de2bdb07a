//! The workers of one model. The number of workers grows with the number of concurrent requests. Workers that
//! exit are replaced.

use std::{
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::sys::signal::{SigSet, Signal};
use oip_model::{CancelToken, Capabilities, Outputs, ResponseSink};
#[cfg(target_os = "linux")]
use oip_model::{NoOtherModels, Outcome, RestOfRun};
use oip_types::{ErrorCode, ModelMetadata, ServiceError};
#[cfg(target_os = "linux")]
use oip_types::{InferOutput, InferRequest, ParameterValue};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    calls::Work,
    messages::About,
    process::{Recipe, StartError, Taker, Worker},
    protocol::{Broken, TICK},
};

/// Number of consecutive crashes after which new workers are delayed.
const CRASHES: u32 = 5;

/// The first pause after repeated crashes. Each further pause is twice as long, up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The workers of one model.
///
/// A separate thread, the supervisor, starts the workers. Linux kills a child together with the *thread* that
/// started it, so this thread must live as long as the model.
pub(crate) struct Pool {
    shared: Arc<SharedPool>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    about: About,
}

struct SharedPool {
    recipe: Recipe,
    state: Mutex<State>,
    /// Notifies waiting requests that a worker is idle, or that waiting longer is pointless.
    freed: Condvar,
    /// Notifies the supervisor that there is work.
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// Idle workers. The most recently used worker is used first, because its memory is likely to be in the
    /// CPU's caches.
    idle: Vec<Worker>,
    /// Number of workers, idle or busy.
    living: usize,
    /// Target number of workers: the largest number that has been needed at the same time.
    wanted: usize,
    /// Number of requests that are waiting for a worker.
    waiting: usize,
    /// Number of crashes since the last response. `last_death` describes how the last worker ended.
    crashes: u32,
    last_death: String,
    /// No worker is started before this time.
    pause: Option<Instant>,
    is_closed: bool,
}

impl Pool {
    /// Starts the first worker and waits until it has loaded the model or failed.
    pub(crate) fn start(recipe: Recipe, deadline: Option<Instant>) -> Result<Self, ServiceError> {
        let shared = Arc::new(SharedPool {
            recipe,
            state: Mutex::new(State {
                wanted: 1,
                ..State::default()
            }),
            freed: Condvar::new(),
            work: Condvar::new(),
        });
        let (sender, receiver) = mpsc::sync_channel(1);
        let supervising = {
            let shared = shared.clone();
            move || {
                ignore_signals_that_end();
                let first = shared.start(None, deadline);
                let first = first.map(|(worker, about)| {
                    let mut state = shared.lock();
                    state.living += 1;
                    state.idle.push(worker);
                    about
                });
                let about = first.as_ref().ok().cloned();
                // If the receiver was dropped, the model is no longer needed.
                let is_heard = sender.send(first).is_ok();
                if let Some(about) = about.filter(|_| is_heard) {
                    shared.supervise(&about);
                }
                // Before this thread ends, it ends all idle workers.
                let mut idle = std::mem::take(&mut shared.lock().idle);
                idle.iter_mut().for_each(Worker::dismiss);
                drop(idle);
            }
        };
        let builder = thread::Builder::new()
            .name("workers".to_owned())
            .stack_size(256 << 10);
        let supervisor = builder.spawn(supervising).map_err(|error| {
            ServiceError::internal(format!(
                "cannot start a thread that supervises its process: {error}"
            ))
        })?;
        let first = receiver.recv().unwrap_or(Err(StartError::GivenUp));
        let about = first.map_err(|error| match error {
            StartError::Refused(error) => error,
            StartError::Died(how) => {
                ServiceError::internal(format!("a separate process was started, but {how}"))
            }
            StartError::GivenUp => ServiceError::new(
                ErrorCode::DeadlineExceeded,
                "its process did not load it in the time for loading",
            ),
        })?;
        Ok(Self {
            shared,
            supervisor: Mutex::new(Some(supervisor)),
            about,
        })
    }

    pub(crate) fn metadata(&self) -> &ModelMetadata {
        &self.about.metadata
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.about.capabilities.clone()
    }

    /// Ends all workers.
    pub(crate) fn end(&self) {
        self.shared.lock().is_closed = true;
        self.shared.work.notify_one();
        let supervisor = self.supervisor.lock().take();
        if let Some(supervisor) = supervisor {
            let _ = supervisor.join();
        }
    }

    /// Runs a request in an idle worker, or in the next worker that becomes idle. If the model sends several
    /// responses, they are passed to `answers`, and `None` is returned.
    pub(crate) fn infer(
        &self,
        work: Work<'_>,
        answers: Option<&mut dyn ResponseSink>,
    ) -> Result<Option<Outputs>, ServiceError> {
        let mut worker = self.shared.take(work.cancel)?;
        let others = &mut |worker| self.shared.make_idle(self.shared.lock(), worker);
        let taker = answers.map(|answers| Taker { answers, others });
        match worker.infer(work, taker) {
            Ok(answer) => {
                self.shared.give_back(worker);
                answer
            }
            Err(broken) => Err(self.lost(worker, broken, work.cancel)),
        }
    }

    /// Removes a worker whose connection broke, and returns the error for its request.
    fn lost(&self, worker: Worker, broken: Broken, cancel: &CancelToken) -> ServiceError {
        let was_given_up = matches!(broken, Broken::GivenUp);
        if was_given_up && worker.can_leave() {
            return nobody_waits(cancel);
        }
        let (pid, is_first) = (worker.pid(), worker.is_first_to_count());
        let cause = worker.bury(broken);
        let model = &self.about.metadata.name;
        tracing::warn!(model, pid, cause, "a worker died, and its request is lost");
        let mut state = self.shared.lock();
        state.living -= usize::from(is_first);
        if was_given_up {
            // A single impatient client may be the cause. The end of this worker therefore does not count as
            // a crash, which would delay other clients.
            self.shared.work.notify_one();
            return nobody_waits(cancel);
        }
        if is_first {
            state.note_crash(cause.clone());
        }
        drop(state);
        self.shared.work.notify_one();
        self.shared.freed.notify_all();
        ServiceError::internal(format!(
            "its process died: {cause}. This request is lost, the next one will be tried by a new process"
        ))
    }
}

/// Methods that start runs on a thread that must not block for long.
#[cfg(target_os = "linux")]
impl Pool {
    /// Sends a small request to an idle worker, and waits at most `patience` for the response. A thread that
    /// may block does the remaining work: the whole request if no worker is idle, further waiting, or finding
    /// out how the worker ended.
    pub(crate) fn begin(
        self: &Arc<Self>,
        request: InferRequest,
        cancel: &CancelToken,
        patience: Duration,
    ) -> Result<Outcome, ServiceError> {
        let until = Instant::now() + patience;
        let pool = self.clone();
        let idle = is_small(&request).then(|| self.shared.take_idle());
        let Some(worker) = idle.flatten() else {
            return Ok(Outcome::Unfinished(RestOfRun::new(move |cancel, others| {
                one_response(pool.infer(Work::alone(&request, cancel, others), None)?)
            })));
        };
        let mut run = OpenRun {
            pool,
            worker: Some(worker),
        };
        let sent = match run.with(|worker| worker.send(&request, &[], cancel)) {
            Ok(Ok(sent)) => sent,
            Ok(Err(error)) => {
                run.end();
                return Err(error);
            }
            Err(broken) => return Ok(run.fail_later(broken)),
        };
        if !run
            .with(|worker| Ok(worker.has_answer_by(until)))
            .unwrap_or(false)
        {
            return Ok(Outcome::Unfinished(RestOfRun::new(move |cancel, others| {
                let work = Work::alone(&request, cancel, others);
                match run.with(|worker| worker.receive(work, sent, None)) {
                    Ok(answer) => {
                        run.end();
                        one_response(answer?)
                    }
                    Err(broken) => Err(run.fail(broken, cancel)),
                }
            })));
        }
        let work = Work::alone(&request, cancel, &NoOtherModels);
        match run.with(|worker| worker.receive(work, sent, None)) {
            Ok(answer) => {
                run.end();
                Ok(one_response(answer?)?.into())
            }
            Err(broken) => Ok(run.fail_later(broken)),
        }
    }
}

/// Returns the response to a single request.
#[cfg(target_os = "linux")]
fn one_response(answer: Option<Outputs>) -> Result<Vec<InferOutput>, ServiceError> {
    answer.map_or(Outcome::Streamed, Outcome::Outputs).into_outputs()
}

/// Returns whether a request fits the socket buffer, so that it can be sent to an idle worker without
/// blocking.
#[cfg(target_os = "linux")]
fn is_small(request: &InferRequest) -> bool {
    const MOST: usize = 48 << 10;
    /// Estimated JSON bytes of a tensor or parameter, apart from its name.
    const EACH: usize = 256;
    let inputs = request.inputs.iter();
    let inputs = inputs.map(|input| {
        input.name.len()
            + input.value.raw().len()
            + 24 * input.value.shape().rank()
            + EACH * (1 + input.parameters.len())
    });
    let outputs = request.outputs.iter();
    let outputs = outputs.map(|output| output.name.len() + EACH * (1 + output.parameters.len()));
    let parameters = request.parameters.iter().map(|(name, value)| {
        // A byte can take six bytes in JSON.
        let text = if let ParameterValue::String(text) = value {
            6 * text.len()
        } else {
            0
        };
        6 * name.len() + text + EACH
    });
    let id = request.id.as_ref().map_or(0, |id| 6 * id.len());
    inputs
        .chain(outputs)
        .chain(parameters)
        .fold(id, usize::saturating_add)
        <= MOST
}

/// A worker that runs a request. Dropping the value kills the worker, because its next message would belong
/// to the old request.
#[cfg(target_os = "linux")]
struct OpenRun {
    pool: Arc<Pool>,
    worker: Option<Worker>,
}

#[cfg(target_os = "linux")]
impl OpenRun {
    fn with<T>(&mut self, step: impl FnOnce(&mut Worker) -> Result<T, Broken>) -> Result<T, Broken> {
        match &mut self.worker {
            Some(worker) => step(worker),
            None => Err(Broken::Ended),
        }
    }

    /// Ends the run successfully and makes the worker idle.
    fn end(mut self) {
        if let Some(worker) = self.worker.take() {
            self.pool.shared.give_back(worker);
        }
    }

    /// Leaves it to another thread to find out how the worker ended.
    fn fail_later(self, broken: Broken) -> Outcome {
        Outcome::Unfinished(RestOfRun::new(move |cancel, _| Err(self.fail(broken, cancel))))
    }

    /// Removes the worker, and returns the error for the request.
    fn fail(mut self, broken: Broken, cancel: &CancelToken) -> ServiceError {
        match self.worker.take() {
            Some(worker) => self.pool.lost(worker, broken, cancel),
            None => ServiceError::internal("its process died"),
        }
    }
}

#[cfg(target_os = "linux")]
impl Drop for OpenRun {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            let is_first = worker.is_first_to_count();
            worker.bury(Broken::GivenUp);
            self.pool.shared.lock().living -= usize::from(is_first);
            self.pool.shared.work.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
    }
}

impl SharedPool {
    /// Waits for an idle worker.
    fn take(&self, cancel: &CancelToken) -> Result<Worker, ServiceError> {
        let mut state = self.lock();
        state.waiting += 1;
        let taken = loop {
            if let Some(worker) = state.idle.pop() {
                if !worker.has_ended() {
                    break Ok(worker);
                }
                state = self.bury_idle(state, worker);
                continue;
            }
            let now = Instant::now();
            if let Some(pause) = state.pause.filter(|pause| state.living == 0 && *pause > now) {
                break Err(state.paused(pause - now));
            }
            if cancel.is_cancelled() {
                break Err(nobody_waits(cancel));
            }
            // All living workers are busy, so each waiting request needs another worker.
            state.wanted = state.wanted.max(state.living + state.waiting);
            self.work.notify_one();
            self.freed.wait_for(&mut state, TICK);
        };
        state.waiting -= 1;
        taken
    }

    /// Returns a worker to the pool after a successful request.
    fn give_back(&self, worker: Worker) {
        let mut state = self.lock();
        state.crashes = 0;
        state.pause = None;
        if worker.is_beside() {
            drop(state);
            return worker.put_aside();
        }
        self.make_idle(state, worker);
    }

    /// Makes `worker` available for the next request.
    fn make_idle(&self, mut state: MutexGuard<'_, State>, worker: Worker) {
        state.idle.push(worker);
        if state.waiting > 0 {
            self.freed.notify_one();
        }
    }

    /// Removes an idle worker that has exited; no request is lost. The lock is released while the exit status
    /// of the worker is collected.
    fn bury_idle<'s>(&'s self, mut state: MutexGuard<'s, State>, worker: Worker) -> MutexGuard<'s, State> {
        if !worker.is_first_to_count() {
            // The crash was already counted by the thread of another request that ran in this process.
            return state;
        }
        state.living -= 1;
        drop(state);
        let (model, pid) = (&self.recipe.source.name, worker.pid());
        let cause = worker.bury(Broken::Ended);
        tracing::warn!(model, pid, cause, "an idle worker died");
        let mut state = self.lock();
        state.note_crash(cause);
        state
    }

    /// Takes an idle worker without waiting. Returns `None` if there is none or if it has exited.
    #[cfg(target_os = "linux")]
    fn take_idle(&self) -> Option<Worker> {
        let mut state = self.lock();
        let worker = state.idle.pop()?;
        if worker.has_ended() {
            state.idle.push(worker);
            return None;
        }
        Some(worker)
    }

    /// Runs the supervisor: starts missing workers and removes workers that exited while idle.
    fn supervise(self: &Arc<Self>, about: &About) {
        let model = &self.recipe.source.name;
        let mut state = self.lock();
        while !state.is_closed {
            while let Some(worker) = state.take_dead() {
                state = self.bury_idle(state, worker);
            }
            let now = Instant::now();
            let pause = state
                .pause
                .map_or(Duration::ZERO, |pause| pause.saturating_duration_since(now));
            let is_missing = state.living < state.wanted;
            if is_missing && pause.is_zero() {
                drop(state);
                let deadline = self.recipe.patience.map(|patience| Instant::now() + patience);
                let started = self.start(Some(about), deadline);
                state = self.lock();
                match started {
                    Ok((worker, _)) => {
                        tracing::info!(model, pid = worker.pid(), "a new worker is ready");
                        state.living += 1;
                        state.idle.push(worker);
                    }
                    Err(_) if state.is_closed => {}
                    Err(error) => {
                        let cause = match error {
                            StartError::Refused(error) => {
                                format!("it could not load the model again: {error}")
                            }
                            StartError::Died(how) => how,
                            StartError::GivenUp => "it took too long to load the model".to_owned(),
                        };
                        tracing::warn!(model, cause, "a worker could not be started");
                        state.note_crash(cause);
                    }
                }
                self.freed.notify_all();
                continue;
            }
            // A worker that closed its standard error is about to exit, so the supervisor checks again soon.
            let is_ending = state.idle.iter().any(Worker::is_ending);
            let patience = match (is_ending, is_missing) {
                (true, _) => TICK,
                (false, true) => pause,
                (false, false) => Duration::from_secs(3600),
            };
            self.work.wait_for(&mut state, patience);
        }
    }

    /// Starts a worker. Its description of the model must equal `known`, the description by the first worker.
    fn start(
        self: &Arc<Self>,
        known: Option<&About>,
        deadline: Option<Instant>,
    ) -> Result<(Worker, About), StartError> {
        let on_end = {
            let shared = Arc::downgrade(self);
            move || {
                if let Some(shared) = shared.upgrade() {
                    // Taking the lock ensures that the supervisor either has seen that the worker is ending,
                    // or is already waiting.
                    let _state = shared.lock();
                    shared.work.notify_one();
                }
            }
        };
        let mut go_on =
            || deadline.is_none_or(|deadline| Instant::now() < deadline) && !self.lock().is_closed;
        let (worker, about) = Worker::start(&self.recipe, on_end, &mut go_on)?;
        match known.is_none_or(|known| *known == about) {
            true => Ok((worker, about)),
            false => Err(StartError::Died(
                "it describes the model differently than before".to_owned(),
            )),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Removes and returns an idle worker that has exited.
    fn take_dead(&mut self) -> Option<Worker> {
        let dead = self.idle.iter().position(Worker::has_ended)?;
        Some(self.idle.remove(dead))
    }

    fn note_crash(&mut self, how: String) {
        self.crashes = self.crashes.saturating_add(1);
        self.last_death = how;
        self.pause = pause_after(self.crashes).map(|pause| Instant::now() + pause);
    }

    /// Returns the error for a request during a pause.
    fn paused(&self, left: Duration) -> ServiceError {
        // The duration is rounded up, so that the message never says "in 0 s".
        let seconds = left.as_secs() + 1;
        let message = format!(
            "its process died {} times in a row, most recently: {}. The next attempt is in {seconds} s",
            self.crashes, self.last_death
        );
        ServiceError::new(ErrorCode::Unavailable, message).retry_after(Duration::from_secs(seconds))
    }
}

/// Returns the pause after `crashes` consecutive crashes; `None` if there is no pause.
fn pause_after(crashes: u32) -> Option<Duration> {
    let doublings = crashes.checked_sub(CRASHES)?;
    let pause = FIRST_PAUSE.saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX));
    Some(pause.min(LONGEST_PAUSE))
}

fn nobody_waits(cancel: &CancelToken) -> ServiceError {
    match cancel.is_expired() {
        true => ServiceError::new(
            ErrorCode::DeadlineExceeded,
            "the deadline passed before its process answered",
        ),
        false => ServiceError::new(ErrorCode::Cancelled, "the request was cancelled"),
    }
}

/// Blocks signals that end the server, because workers inherit the signal mask of the thread that starts
/// them. A service manager stops a service by sending a signal to all of its processes, but workers must run
/// until the server has drained.
fn ignore_signals_that_end() {
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];
    let set: SigSet = signals.into_iter().collect();
    if let Err(error) = set.thread_block() {
        tracing::debug!(%error, "workers receive signals that are meant for the server");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_the_fifth_death_on() {
        let seconds = |crashes| pause_after(crashes).map(|pause| pause.as_secs());
        assert_eq!([0, 1, 4].map(seconds), [None; 3]);
        assert_eq!(
            [5, 6, 7, 9, 10, 40, u32::MAX].map(seconds),
            [1, 2, 4, 16, 30, 30, 30].map(Some)
        );
    }
}
