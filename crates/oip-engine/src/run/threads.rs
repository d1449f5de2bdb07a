//! The threads of a model: at most one for each instance, started when requests wait and ended when idle, and one for each request
//! that goes on after its instance was given to others.

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
pub(crate) const MOST_SPARE: usize = 4;

/// How long a thread waits for work before it ends.
pub(crate) const MAX_IDLE: Duration = Duration::from_secs(10);

/// The threads of one version of a model. Its queue counts those that take work.
pub(crate) struct Threads {
    model: String,
    /// Called first on each.
    on_thread: fn(),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handles: Vec<JoinHandle<()>>,
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
    pub(crate) fn new(model: String, on_thread: fn()) -> Self {
        Self {
            model,
            on_thread,
            state: Mutex::default(),
        }
    }

    /// Starts a thread that calls `serve`.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub(crate) fn start(&self, serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.lock();
        state.handles.retain(|handle| !handle.is_finished());
        let name = thread_name("run", &self.model, state.started);
        let builder = thread::Builder::new().name(name).stack_size(STACK_SIZE);
        let on_thread = self.on_thread;
        state.handles.push(builder.spawn(move || {
            on_thread();
            serve();
        })?);
        state.started += 1;
        Ok(())
    }

    /// Lets a thread go on with a request without its instance. Returns whether it may.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.lock();
        let may_leave = state.beside < MOST_BESIDE;
        state.beside += usize::from(may_leave);
        may_leave
    }

    /// Notes that a thread that has left is done with its request.
    pub(crate) fn come_back(&self) {
        self.lock().beside -= 1;
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
