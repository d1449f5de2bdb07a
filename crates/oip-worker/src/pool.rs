//! The workers of one model: as many as there are requests at once, replaced when they die.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::sys::signal::{SigSet, Signal};
use oip_service::{AnswerSink, CancelToken, ModelDefaults};
use oip_types::{ErrorCode, InferOutput, ModelMetadata, ServiceError};

use crate::{
    calls::Work,
    process::{Recipe, StartError, TICK, Worker},
    protocol::About,
};

/// Workers that may die in a row before there is a pause.
const CRASHES: u32 = 5;

/// The pauses: the first, doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The workers of one model.
///
/// A thread of its own, the supervisor, starts them: all that is known of a worker's parent is kept in one place, and
/// Linux ends a child with the *thread* that started it, which therefore must live as long as the model.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    about: About,
}

struct Shared {
    recipe: Recipe,
    state: Mutex<State>,
    /// For requests: there may be an idle worker, or a reason to wait no longer.
    freed: Condvar,
    /// For the supervisor: something is to be done.
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// The one that was used last is taken first: its memory is warm.
    idle: Vec<Worker>,
    /// Idle or at work.
    living: usize,
    /// How many there are to be: never less than were needed at once.
    wanted: usize,
    /// Requests that wait for a worker.
    waiting: usize,
    /// Deaths since the last answer, and how the last one was.
    crashes: u32,
    last_death: String,
    /// Until then none is started.
    pause: Option<Instant>,
    is_closed: bool,
}

impl Pool {
    /// Starts the first worker and waits until it has loaded the model, or cannot.
    pub(crate) fn start(recipe: Recipe, deadline: Option<Instant>) -> Result<Self, ServiceError> {
        let shared = Arc::new(Shared {
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
                // When nobody listens the model is not wanted any more.
                let is_heard = sender.send(first).is_ok();
                if let Some(about) = about.filter(|_| is_heard) {
                    shared.supervise(&about);
                }
                // No worker outlives this thread.
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
                "the system gave no thread to look after its process: {error}"
            ))
        })?;
        let first = receiver.recv().unwrap_or(Err(StartError::GivenUp));
        let about = first.map_err(|error| match error {
            StartError::Refused(error) => error,
            StartError::Died(how) => {
                ServiceError::internal(format!("a process of its own was started, but {how}"))
            }
            StartError::GivenUp => ServiceError::new(
                ErrorCode::DeadlineExceeded,
                "its process had not loaded it when the time for loading was over",
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

    pub(crate) fn defaults(&self) -> ModelDefaults {
        self.about.defaults
    }

    /// Ends the workers.
    pub(crate) fn end(&self) {
        self.shared.lock().is_closed = true;
        self.shared.work.notify_one();
        let supervisor = self
            .supervisor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(supervisor) = supervisor {
            let _ = supervisor.join();
        }
    }

    /// Runs a request in a worker that is idle, or in the next one that is. `answers` takes those of a model that gives several;
    /// then there is no answer left to return.
    pub(crate) fn infer(
        &self,
        work: Work<'_>,
        answers: Option<&mut dyn AnswerSink>,
    ) -> Result<Option<Vec<InferOutput>>, ServiceError> {
        let mut worker = self.shared.take(work.cancel)?;
        let pid = worker.pid();
        let broken = match worker.infer(work, answers) {
            Ok(answer) => {
                let mut state = self.shared.lock();
                state.crashes = 0;
                state.pause = None;
                state.idle.push(worker);
                if state.waiting > 0 {
                    self.shared.freed.notify_one();
                }
                return answer;
            }
            Err(broken) => broken,
        };
        let death = worker.bury(broken);
        let cause = death.to_string();
        let model = &self.about.metadata.name;
        tracing::warn!(model, pid, cause, "a worker is gone, and its request with it");
        let mut state = self.shared.lock();
        state.living -= 1;
        if death.was_given_up() {
            // That may be the impatience of one client, for which the others are not to pay.
            self.shared.work.notify_one();
            return Err(nobody_waits(work.cancel));
        }
        state.note_crash(cause.clone());
        drop(state);
        self.shared.work.notify_one();
        self.shared.freed.notify_all();
        Err(ServiceError::internal(format!(
            "its process is gone: {cause}. This request is lost, the next one will be tried by a new process"
        )))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// An idle worker, as soon as there is one.
    fn take(&self, cancel: &CancelToken) -> Result<Worker, ServiceError> {
        let mut state = self.lock();
        state.waiting += 1;
        let taken = loop {
            if let Some(mut worker) = state.idle.pop() {
                if !worker.has_ended() {
                    break Ok(worker);
                }
                state.bury_idle(worker, &self.recipe.source.name);
                continue;
            }
            let now = Instant::now();
            if let Some(pause) = state.pause.filter(|pause| state.living == 0 && *pause > now) {
                break Err(state.paused(pause - now));
            }
            if cancel.is_cancelled() {
                break Err(nobody_waits(cancel));
            }
            // All that live are at work, or there would be an idle one.
            state.wanted = state.wanted.max(state.living + state.waiting);
            self.work.notify_one();
            state = self
                .freed
                .wait_timeout(state, TICK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        };
        state.waiting -= 1;
        taken
    }

    /// The supervisor's life: starts what is missing and finds what died while it was idle.
    fn supervise(self: &Arc<Self>, about: &About) {
        let model = &self.recipe.source.name;
        let mut state = self.lock();
        while !state.is_closed {
            for worker in std::mem::take(&mut state.idle) {
                state.keep_or_bury(worker, model);
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
            // What closed its standard error is about to end; everything else is told.
            let is_ending = state.idle.iter().any(Worker::is_ending);
            let patience = match (is_ending, is_missing) {
                (true, _) => TICK,
                (false, true) => pause,
                (false, false) => Duration::from_secs(3600),
            };
            state = self
                .work
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Starts a worker, which must be like the one before.
    fn start(
        self: &Arc<Self>,
        known: Option<&About>,
        deadline: Option<Instant>,
    ) -> Result<(Worker, About), StartError> {
        let on_end = {
            let shared = Arc::downgrade(self);
            move || {
                if let Some(shared) = shared.upgrade() {
                    // With the lock: the supervisor has either seen that the worker is ending, or waits by now.
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
                "it says something else of the model than before".to_owned(),
            )),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep_or_bury(&mut self, mut worker: Worker, model: &str) {
        match worker.has_ended() {
            false => self.idle.push(worker),
            true => self.bury_idle(worker, model),
        }
    }

    /// An idle worker has ended: nobody's request is lost.
    fn bury_idle(&mut self, worker: Worker, model: &str) {
        let pid = worker.pid();
        let cause = worker.bury(crate::protocol::Broken::Ended).to_string();
        tracing::warn!(model, pid, cause, "an idle worker is gone");
        self.living -= 1;
        self.note_crash(cause);
    }

    fn note_crash(&mut self, how: String) {
        self.crashes = self.crashes.saturating_add(1);
        self.last_death = how;
        self.pause = pause_after(self.crashes).map(|pause| Instant::now() + pause);
    }

    /// Why there is no worker now.
    fn paused(&self, left: Duration) -> ServiceError {
        // Never "in 0 s".
        let seconds = left.as_secs() + 1;
        let message = format!(
            "its process is gone {} times in a row, the last time like this: {}. It is tried again in {seconds} s",
            self.crashes, self.last_death
        );
        ServiceError::new(ErrorCode::Unavailable, message).retry_after(Duration::from_secs(seconds))
    }
}

/// How long to wait after so many deaths in a row.
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

/// Workers inherit what their parent's thread does not listen to. A service manager that ends a service sends its signal
/// to all of its processes, and workers are to go on until the server is done.
fn ignore_signals_that_end() {
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];
    let set: SigSet = signals.into_iter().collect();
    if let Err(error) = set.thread_block() {
        tracing::debug!(%error, "workers hear signals that are meant for the server");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md_04_pauses_double_from_the_fifth_death_on() {
        let seconds = |crashes| pause_after(crashes).map(|pause| pause.as_secs());
        assert_eq!([0, 1, 4].map(seconds), [None; 3]);
        assert_eq!(
            [5, 6, 7, 9, 10, 40, u32::MAX].map(seconds),
            [1, 2, 4, 16, 30, 30, 30].map(Some)
        );
    }
}
