//! The threads of a model: as many as it has instances, and one for each request that goes on after its instance was given to others.

use std::{
    cell::Cell,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::run::instances::{STACK_SIZE, Shared, thread_name};

/// Requests that go on beside those in instances. From then on each keeps its instance until its end.
const MOST_BESIDE: usize = 256;

/// Threads beyond the instances that wait for work, rather than being started anew for each request.
const MOST_SPARE: usize = 4;

/// The threads of one version of a model.
pub(crate) struct Threads {
    instances: usize,
    /// Called first on each.
    on_thread: fn(),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handles: Vec<JoinHandle<()>>,
    /// Threads that take requests out of the queue or have an instance.
    serving: usize,
    /// Those that go on with a request without an instance.
    beside: usize,
    /// Threads that there ever were.
    started: usize,
}

/// What a thread has.
#[derive(Default)]
pub(crate) struct Held {
    /// Its instance, also after a panic.
    pub(crate) slot: Cell<Option<usize>>,
    /// Whether it goes on with a request whose instance it has given back.
    pub(crate) is_beside: Cell<bool>,
}

impl Threads {
    pub(crate) fn new(instances: usize, on_thread: fn()) -> Self {
        Self {
            instances,
            on_thread,
            state: Mutex::default(),
        }
    }

    /// Starts a thread for each instance.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let mut state = self.lock();
        (0..self.instances).try_for_each(|_| self.spawn(&mut state, shared))
    }

    fn spawn(&self, state: &mut State, shared: &Arc<Shared>) -> io::Result<()> {
        let name = thread_name("run", &shared.metadata.name, state.started);
        let builder = thread::Builder::new().name(name).stack_size(STACK_SIZE);
        let (on_thread, shared) = (self.on_thread, shared.clone());
        state.handles.push(builder.spawn(move || {
            on_thread();
            shared.serve();
        })?);
        state.started += 1;
        state.serving += 1;
        Ok(())
    }

    /// A thread goes on with a request without its instance, for which there is another thread then. Returns whether it may.
    pub(crate) fn leave(&self, shared: &Arc<Shared>) -> bool {
        let mut state = self.lock();
        if state.beside >= MOST_BESIDE {
            return false;
        }
        state.handles.retain(|handle| !handle.is_finished());
        if state.serving <= self.instances && self.spawn(&mut state, shared).is_err() {
            return false;
        }
        state.serving -= 1;
        state.beside += 1;
        true
    }

    /// A thread that has left is done. Returns whether it is still needed.
    pub(crate) fn come_back(&self) -> bool {
        let mut state = self.lock();
        state.beside -= 1;
        let is_needed = state.serving < self.instances + MOST_SPARE;
        state.serving += usize::from(is_needed);
        is_needed
    }

    /// Waits until then for all threads to end, and returns whether they did.
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        let mut all = true;
        loop {
            // Those that end may have started others.
            let handles = std::mem::take(&mut self.lock().handles);
            if handles.is_empty() {
                return all;
            }
            for handle in handles {
                // There is no join with a time limit. A thread that hangs in its model is left behind.
                while !handle.is_finished() && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(1));
                }
                all &= handle.is_finished() && handle.join().is_ok();
            }
        }
    }

    /// Updates are atomic, so lock poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
