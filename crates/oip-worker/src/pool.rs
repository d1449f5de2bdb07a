//! The workers of one model: as many as there are requests at once, replaced when they die.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::sys::signal::{SigSet, Signal};
use oip_service::{AnswerSink, CancelToken, JoinedAnswer, ModelDefaults, RowIndependence};
#[cfg(target_os = "linux")]
use oip_service::{Begun, NoOtherModels};
use oip_types::{ErrorCode, ModelMetadata, ServiceError};
#[cfg(target_os = "linux")]
use oip_types::{InferRequest, ParameterValue};

use crate::{
    calls::Work,
    process::{Recipe, StartError, Taker, Worker},
    protocol::{About, Broken, TICK},
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
        self.about.defaults.clone()
    }

    pub(crate) fn runtime(&self) -> Option<&str> {
        self.about.runtime.as_deref()
    }

    pub(crate) fn row_independence(&self) -> RowIndependence {
        self.about.rows.clone()
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
    ) -> Result<Option<JoinedAnswer>, ServiceError> {
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

    /// Buries a worker, and returns what its request is answered with.
    fn lost(&self, worker: Worker, broken: Broken, cancel: &CancelToken) -> ServiceError {
        let was_given_up = matches!(broken, Broken::GivenUp);
        if was_given_up && worker.can_leave() {
            return nobody_waits(cancel);
        }
        let (pid, is_first) = (worker.pid(), worker.is_first_to_count());
        let cause = worker.bury(broken);
        let model = &self.about.metadata.name;
        tracing::warn!(model, pid, cause, "a worker is gone, and its request with it");
        let mut state = self.shared.lock();
        state.living -= usize::from(is_first);
        if was_given_up {
            // One impatient client may be the reason, which must not cost the others.
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
            "its process is gone: {cause}. This request is lost, the next one will be tried by a new process"
        ))
    }
}

/// Runs that are begun on a thread that has little time.
#[cfg(target_os = "linux")]
impl Pool {
    /// Sends a small request to an idle worker, and waits for its answer for so long. What is left is done by who has more time: the
    /// whole of it if there is no idle worker, waiting on, or finding out how the worker ended.
    pub(crate) fn begin(
        self: &Arc<Self>,
        request: InferRequest,
        cancel: &CancelToken,
        patience: Duration,
    ) -> Begun {
        let until = Instant::now() + patience;
        let pool = self.clone();
        let idle = is_small(&request).then(|| self.shared.take_idle());
        let Some(worker) = idle.flatten() else {
            return Begun::Unfinished(Box::new(move |cancel, others| {
                let request = &request;
                let work = Work {
                    request,
                    cancel,
                    others,
                };
                Ok(one_answer(pool.infer(work, None)?)?.outputs)
            }));
        };
        let mut run = OpenRun {
            pool,
            worker: Some(worker),
        };
        let sent = match run.with(|worker| worker.send(&request, cancel)) {
            Ok(Ok(sent)) => sent,
            Ok(Err(error)) => {
                run.end();
                return Begun::Done(Err(error));
            }
            Err(broken) => {
                return Begun::Unfinished(Box::new(move |cancel, _| Err(run.fail(broken, cancel))));
            }
        };
        if !run
            .with(|worker| Ok(worker.has_answer_by(until)))
            .unwrap_or(false)
        {
            return Begun::Unfinished(Box::new(move |cancel, others| {
                let request = &request;
                let work = Work {
                    request,
                    cancel,
                    others,
                };
                match run.with(|worker| worker.receive(work, sent, None)) {
                    Ok(answer) => {
                        run.end();
                        Ok(one_answer(answer?)?.outputs)
                    }
                    Err(broken) => Err(run.fail(broken, cancel)),
                }
            }));
        }
        let work = Work {
            request: &request,
            cancel,
            others: &NoOtherModels::default(),
        };
        match run.with(|worker| worker.receive(work, sent, None)) {
            Ok(answer) => {
                run.end();
                let outputs = answer.and_then(one_answer).map(|answer| answer.outputs);
                Begun::Done(outputs)
            }
            Err(broken) => Begun::Unfinished(Box::new(move |cancel, _| Err(run.fail(broken, cancel)))),
        }
    }
}

/// The one answer to a request.
pub(crate) fn one_answer(answer: Option<JoinedAnswer>) -> Result<JoinedAnswer, ServiceError> {
    answer.ok_or_else(|| ServiceError::internal("its process gave no answer"))
}

/// Whether a request can be sent to an idle worker without waiting for it to read: the system holds so much for it.
#[cfg(target_os = "linux")]
fn is_small(request: &InferRequest) -> bool {
    const MOST: usize = 48 << 10;
    /// For what JSON says of a tensor or a parameter besides its name.
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
        // JSON may take six bytes for one.
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

/// A worker that has a request. If this is dropped, it is ended: nobody knows what it will say next.
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

    /// The request is answered.
    fn end(mut self) {
        if let Some(worker) = self.worker.take() {
            self.pool.shared.give_back(worker);
        }
    }

    /// The worker is of no use any more.
    fn fail(mut self, broken: Broken, cancel: &CancelToken) -> ServiceError {
        match self.worker.take() {
            Some(worker) => self.pool.lost(worker, broken, cancel),
            None => ServiceError::internal("its process is gone"),
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

impl Shared {
    /// An idle worker, as soon as there is one.
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

    /// A worker is idle again, and alive.
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

    /// A worker takes the next request.
    fn make_idle(&self, mut state: MutexGuard<'_, State>, worker: Worker) {
        state.idle.push(worker);
        if state.waiting > 0 {
            self.freed.notify_one();
        }
    }

    /// An idle worker has ended: nobody's request is lost. Nobody waits for the lock while it is found out why.
    fn bury_idle<'s>(&'s self, mut state: MutexGuard<'s, State>, worker: Worker) -> MutexGuard<'s, State> {
        if !worker.is_first_to_count() {
            // Another request of its process is lost, and the thread that ran it has counted the process.
            return state;
        }
        state.living -= 1;
        drop(state);
        let (model, pid) = (&self.recipe.source.name, worker.pid());
        let cause = worker.bury(Broken::Ended);
        tracing::warn!(model, pid, cause, "an idle worker is gone");
        let mut state = self.lock();
        state.note_crash(cause);
        state
    }

    /// An idle worker, if there is one that lives: nobody is waited for.
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

    /// The supervisor's life: starts what is missing and finds what died while it was idle.
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
            // A worker that closed its standard error is about to end; all others are notified.
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
    /// An idle worker that has ended.
    fn take_dead(&mut self) -> Option<Worker> {
        let dead = self.idle.iter().position(Worker::has_ended)?;
        Some(self.idle.remove(dead))
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
