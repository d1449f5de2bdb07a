//! The threads of a model: as many as it has instances, and one for each request that goes on after its instance was given to others.

use std::{
    cell::Cell,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Requests that go on beside those in instances. From then on each keeps its instance until its end.
const MOST_BESIDE: usize = 256;

/// Threads beyond the instances that wait for work, rather than being started anew for each request.
const MOST_SPARE: usize = 4;

/// The threads of one version of a model.
pub(crate) struct Threads {
    model: String,
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
    pub(crate) fn new(model: String, instances: usize, on_thread: fn()) -> Self {
        Self {
            model,
            instances,
            on_thread,
            state: Mutex::default(),
        }
    }

    /// Starts a thread for each instance, with what it does.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub(crate) fn start<F: FnOnce() + Send + 'static>(&self, serve: impl Fn() -> F) -> io::Result<()> {
        let mut state = self.lock();
        (0..self.instances).try_for_each(|_| self.spawn(&mut state, serve()))
    }

    fn spawn(&self, state: &mut State, serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let name = thread_name("run", &self.model, state.started);
        let builder = thread::Builder::new().name(name).stack_size(STACK_SIZE);
        let on_thread = self.on_thread;
        state.handles.push(builder.spawn(move || {
            on_thread();
            serve();
        })?);
        state.started += 1;
        state.serving += 1;
        Ok(())
    }

    /// A thread goes on with a request without its instance, for which there is another thread then, if need be one that `serve`s. Returns
    /// whether it may.
    pub(crate) fn leave(&self, serve: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.lock();
        if state.beside >= MOST_BESIDE {
            return false;
        }
        state.handles.retain(|handle| !handle.is_finished());
        if state.serving <= self.instances && self.spawn(&mut state, serve).is_err() {
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

/// Stack for threads that run code of models: graphs can be deep.
pub(crate) const STACK_SIZE: usize = 16 << 20;

/// A thread's name, within the 15 bytes that Linux keeps.
pub(crate) fn thread_name(task: &str, model: &str, index: usize) -> String {
    let model: String = model.chars().filter(char::is_ascii_graphic).take(6).collect();
    format!("{task}-{model}-{index}")
}
