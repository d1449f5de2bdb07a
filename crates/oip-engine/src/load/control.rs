//! The queue of loads and unloads, from clients and from polling, and the threads that perform them.

use std::{
    collections::{BTreeSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use futures_channel::oneshot;
use oip_types::{ErrorCode, ServiceError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    config::ModelControl,
    load::lifecycle::{Cause, Lifecycle},
    run::threads::STACK_SIZE,
};

/// Loads and unloads models on a few threads, which exist only while there is work. Tasks for one model run
/// in the order of arrival.
pub(crate) struct Control {
    lifecycle: Arc<Lifecycle>,
    work: Mutex<Work>,
    /// Notified when no task is left.
    idle: Condvar,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Task>,
    /// Models with a running task.
    busy: BTreeSet<String>,
    threads: usize,
    is_closed: bool,
}

impl Work {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.busy.is_empty()
    }
}

/// A load or unload of a model.
pub(crate) struct Task {
    model: String,
    action: Action,
    /// Sends the result of the task to the client that waits for it.
    reply: Option<oneshot::Sender<Result<(), ServiceError>>>,
    /// The models that the pipeline runs; `None` until they are looked up.
    steps: Option<Vec<String>>,
}

/// The action of a task.
pub(crate) enum Action {
    Load {
        config: Option<String>,
        cause: Cause,
    },
    Unload {
        forget: bool,
        /// Whether to also unload the models that were loaded only as steps of this pipeline.
        with_steps: bool,
    },
}

impl Control {
    /// Maximum number of queued tasks.
    const CAPACITY: usize = 1024;

    pub(crate) fn new(lifecycle: Arc<Lifecycle>) -> Arc<Self> {
        Arc::new(Self {
            lifecycle,
            work: Mutex::default(),
            idle: Condvar::new(),
        })
    }

    /// Queues a task.
    ///
    /// # Errors
    /// [`ErrorCode::Unavailable`] after [`Control::close`]; [`ErrorCode::Overloaded`] if the queue is full.
    pub(crate) fn submit(self: &Arc<Self>, task: Task) -> Result<(), ServiceError> {
        let mut work = self.lock();
        if work.is_closed {
            return Err(shutting_down());
        }
        if task.reply.is_some() && work.waiting.len() >= Self::CAPACITY {
            let message = "too many models wait to be loaded and unloaded; try again later";
            return Err(ServiceError::new(ErrorCode::Overloaded, message));
        }
        work.waiting.push_back(task);
        if work.threads < self.lifecycle.config.parallel_loads.max(1) {
            work.threads += 1;
            drop(work);
            self.start_thread();
        }
        Ok(())
    }

    fn start_thread(self: &Arc<Self>) {
        let this = self.clone();
        let builder = thread::Builder::new()
            .name("control".to_owned())
            .stack_size(STACK_SIZE);
        if let Err(error) = builder.spawn(move || this.run()) {
            tracing::error!(%error, "cannot start a thread to load models");
            let mut work = self.lock();
            work.threads -= 1;
            // Existing threads take the task. If there are none, all waiting tasks are abandoned.
            let abandoned = if work.threads == 0 {
                std::mem::take(&mut work.waiting)
            } else {
                VecDeque::new()
            };
            drop(work);
            self.idle.notify_all();
            for task in abandoned {
                let reason = format!("cannot start a thread to load it: {}", error.kind());
                self.lifecycle.registry.fail(&task.model, &reason, true);
                task.answer(Err(ServiceError::new(ErrorCode::Unavailable, reason)));
            }
        }
    }

    /// Runs tasks until none is left.
    fn run(self: &Arc<Self>) {
        while let Some(task) = self.next() {
            let Some(mut task) = self.put_behind_steps(task) else {
                continue;
            };
            let reply = task.reply.take();
            let (model, lifecycle) = (task.model.clone(), &self.lifecycle);
            let done = catch_unwind(AssertUnwindSafe(|| match task.action {
                Action::Load { config, cause } => lifecycle.load(&task.model, config, cause),
                Action::Unload { forget, with_steps } => {
                    let steps = lifecycle.unload(&task.model, forget)?;
                    for step in steps.into_iter().filter(|_| with_steps) {
                        let action = Action::Unload { forget, with_steps };
                        self.submit(Task::new(step, action, None))?;
                    }
                    Ok(())
                }
            }));
            let done = done.unwrap_or_else(|_| {
                // A panic here is a bug of the engine. The panic must not block the model's next load or the
                // server's readiness.
                lifecycle
                    .registry
                    .fail(&model, "the server panicked while loading it", true);
                Err(ServiceError::internal("the server panicked while loading it"))
            });
            self.lock().busy.remove(&model);
            if let Some(reply) = reply {
                // The caller may have stopped waiting.
                let _ = reply.send(done);
            }
        }
    }

    /// Returns the task if it can run now. In explicit mode, loads the missing steps of a pipeline first:
    /// their loads are queued before the pipeline's own load.
    fn put_behind_steps(self: &Arc<Self>, mut task: Task) -> Option<Task> {
        let Action::Load { config, cause } = &task.action else {
            return Some(task);
        };
        if task.steps.is_some() {
            return Some(task);
        }
        if matches!(cause, Cause::Request | Cause::Step) {
            // A panic of the upstream is handled like a store that does not respond.
            let refresh = || self.lifecycle.repository.refresh(Some(&task.model));
            let _ = catch_unwind(AssertUnwindSafe(refresh));
        }
        // If reading the configuration panics here, loading the model panics too and reports the panic.
        let steps = catch_unwind(AssertUnwindSafe(|| {
            self.lifecycle.steps(&task.model, config.as_deref())
        }));
        let steps = steps.unwrap_or_default();
        if steps.is_empty() {
            return Some(task);
        }
        if matches!(self.lifecycle.config.control, ModelControl::Explicit { .. }) {
            let is_missing = |step: &&String| {
                **step != task.model && !self.lifecycle.registry.has_ready(step) && !self.is_busy(step)
            };
            for step in steps.iter().filter(is_missing) {
                let action = Action::Load {
                    config: None,
                    cause: Cause::Step,
                };
                // If the queue is closed, the check below refuses the task.
                let _ = self.submit(Task::new(step.clone(), action, None));
            }
        }
        let mut work = self.lock();
        work.busy.remove(&task.model);
        task.steps = Some(steps);
        if work.is_closed {
            drop(work);
            task.answer(Err(shutting_down()));
        } else {
            // The task stays ahead of later tasks for the same model.
            let later = work.waiting.iter().position(|later| later.model == task.model);
            let place = later.unwrap_or(work.waiting.len());
            work.waiting.insert(place, task);
        }
        None
    }

    /// Takes the oldest task whose model and steps are not busy. A task for a busy model is taken when the
    /// running task for that model ends.
    fn next(&self) -> Option<Task> {
        let mut work = self.lock();
        let is_free = |index: usize, task: &Task| {
            let mut earlier = work.waiting.iter().take(index);
            !work.busy.contains(&task.model) && !earlier.any(|earlier| earlier.model == task.model)
        };
        let is_waiting = |model: &String| work.waiting.iter().any(|task| task.model == *model);
        let has_steps = |task: &Task| {
            let mut steps = task.steps.iter().flatten().filter(|step| **step != task.model);
            !steps.any(|step| work.busy.contains(step) || is_waiting(step))
        };
        let free = work
            .waiting
            .iter()
            .enumerate()
            .position(|(index, task)| is_free(index, task) && has_steps(task));
        // Pipelines that contain each other would wait forever. Loading the first of them reports the cycle.
        let free = free.or_else(|| {
            let nobody_works = work.busy.is_empty() && !work.waiting.is_empty();
            nobody_works.then_some(0)
        });
        let task = free.and_then(|index| work.waiting.remove(index));
        match &task {
            Some(task) => drop(work.busy.insert(task.model.clone())),
            None => work.threads -= 1,
        }
        if work.is_idle() {
            self.idle.notify_all();
        }
        task
    }

    /// Blocks until no task is left.
    pub(crate) fn wait_until_idle(&self) {
        self.idle.wait_while(&mut self.lock(), |work| !work.is_idle());
    }

    /// Returns whether a task for a model is queued or running.
    pub(crate) fn is_busy(&self, model: &str) -> bool {
        let work = self.lock();
        work.busy.contains(model) || work.waiting.iter().any(|task| task.model == model)
    }

    /// Refuses further tasks, and abandons the tasks that are still queued.
    pub(crate) fn close(&self) {
        let mut work = self.lock();
        work.is_closed = true;
        let given_up = std::mem::take(&mut work.waiting);
        drop(work);
        self.idle.notify_all();
        for task in given_up {
            task.answer(Err(shutting_down()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock()
    }
}

fn shutting_down() -> ServiceError {
    ServiceError::new(ErrorCode::Unavailable, "the server is shutting down")
}

impl Task {
    pub(crate) fn new(
        model: String,
        action: Action,
        reply: Option<oneshot::Sender<Result<(), ServiceError>>>,
    ) -> Self {
        Self {
            model,
            action,
            reply,
            steps: None,
        }
    }

    fn answer(self, result: Result<(), ServiceError>) {
        if let Some(reply) = self.reply {
            let _ = reply.send(result);
        }
    }
}
