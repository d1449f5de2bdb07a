use std::{
    collections::{BTreeSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use futures_channel::oneshot;
use oip_types::{ErrorCode, ServiceError};

use crate::{
    instances::STACK_SIZE,
    lifecycle::{Cause, Lifecycle},
};

/// Carries out loading and unloading on a few threads, which are there while there is something to do. What concerns
/// one model is done in the order in which it came.
pub(crate) struct Control {
    lifecycle: Arc<Lifecycle>,
    work: Mutex<Work>,
    /// Nothing is left to do.
    idle: Condvar,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Task>,
    /// Models that a thread is working on.
    busy: BTreeSet<String>,
    threads: usize,
    is_closed: bool,
}

impl Work {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.busy.is_empty()
    }
}

/// Something to do with a model.
pub(crate) struct Task {
    pub(crate) model: String,
    pub(crate) action: Action,
    /// Who waits for the end of it.
    pub(crate) reply: Option<oneshot::Sender<Result<(), ServiceError>>>,
}

/// What to do.
pub(crate) enum Action {
    Load { config: Option<String>, cause: Cause },
    Unload { forget: bool },
}

impl Control {
    /// Requests that may wait.
    const CAPACITY: usize = 1024;

    pub(crate) fn new(lifecycle: Arc<Lifecycle>) -> Arc<Self> {
        Arc::new(Self {
            lifecycle,
            work: Mutex::default(),
            idle: Condvar::new(),
        })
    }

    /// Has something done when its turn comes.
    ///
    /// # Errors
    /// [`ErrorCode::Unavailable`] once it is closed; [`ErrorCode::Overloaded`] when too many requests wait.
    pub(crate) fn submit(self: &Arc<Self>, task: Task) -> Result<(), ServiceError> {
        let mut work = self.lock();
        if work.is_closed {
            return Err(ServiceError::new(
                ErrorCode::Unavailable,
                "the server is shutting down",
            ));
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
            tracing::error!(%error, "the system gave no thread to load models");
            let mut work = self.lock();
            work.threads -= 1;
            // Threads that are there go on with it. If there are none, nobody does.
            let abandoned = if work.threads == 0 {
                std::mem::take(&mut work.waiting)
            } else {
                VecDeque::new()
            };
            drop(work);
            self.idle.notify_all();
            for task in abandoned {
                let reason = format!("the system gave no thread to load it: {}", error.kind());
                self.lifecycle.registry.fail(&task.model, &reason, true);
                task.answer(Err(ServiceError::new(ErrorCode::Unavailable, reason)));
            }
        }
    }

    /// Does what waits, and ends when nothing does.
    fn run(&self) {
        while let Some(mut task) = self.next() {
            let reply = task.reply.take();
            let (model, lifecycle) = (task.model.clone(), &self.lifecycle);
            let done = catch_unwind(AssertUnwindSafe(|| match task.action {
                Action::Load { config, cause } => lifecycle.load(&task.model, config, cause),
                Action::Unload { forget } => lifecycle.unload(&task.model, forget),
            }));
            let done = done.unwrap_or_else(|_| {
                // A bug. It must not keep the model from being loaded again, nor the server from getting ready.
                lifecycle
                    .registry
                    .fail(&model, "the server panicked while loading it", true);
                Err(ServiceError::internal("the server panicked while loading it"))
            });
            self.lock().busy.remove(&model);
            if let Some(reply) = reply {
                // Nobody may wait any more.
                let _ = reply.send(done);
            }
        }
    }

    /// Takes what waits longest and concerns a model that nobody works on. What concerns another is taken by whoever
    /// works on that, when it is done.
    fn next(&self) -> Option<Task> {
        let mut work = self.lock();
        let free = work
            .waiting
            .iter()
            .position(|task| !work.busy.contains(&task.model));
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

    /// Waits until there is nothing to do.
    pub(crate) fn wait_until_idle(&self) {
        let idle = self.idle.wait_while(self.lock(), |work| !work.is_idle());
        drop(idle.unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether something is being done with a model, or waits to be.
    pub(crate) fn is_busy(&self, model: &str) -> bool {
        let work = self.lock();
        work.busy.contains(model) || work.waiting.iter().any(|task| task.model == model)
    }

    /// Takes nothing more, and gives up what waits.
    pub(crate) fn close(&self) {
        let mut work = self.lock();
        work.is_closed = true;
        let given_up = std::mem::take(&mut work.waiting);
        drop(work);
        self.idle.notify_all();
        for task in given_up {
            task.answer(Err(ServiceError::new(
                ErrorCode::Unavailable,
                "the server is shutting down",
            )));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task {
    fn answer(self, result: Result<(), ServiceError>) {
        if let Some(reply) = self.reply {
            let _ = reply.send(result);
        }
    }
}
