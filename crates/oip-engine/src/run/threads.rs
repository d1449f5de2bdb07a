//! The threads of a model: at most one per instance, started for queued requests and ended when idle, plus
//! one for each request that continues after freeing its instance.

use std::{
    cell::Cell,
    io,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

/// Maximum number of requests that run without an instance. Above this number, a request keeps its instance
/// until the request ends.
const MOST_BESIDE: usize = 256;

/// The number of idle threads that are kept for reuse in addition to one per instance.
pub(crate) const MOST_SPARE: usize = 4;

/// How long an idle thread waits before it ends.
pub(crate) const MAX_IDLE: Duration = Duration::from_secs(10);

/// The threads of one version of a model. The queue counts those that take work.
pub(crate) struct Threads {
    model: String,
    /// Function that each thread calls first.
    on_thread: fn(),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handles: Vec<JoinHandle<()>>,
    /// The number of threads that run a request without an instance.
    beside: usize,
    /// The number of threads started so far.
    started: usize,
}

/// The instance of a thread, and whether the thread still holds it.
#[derive(Default)]
pub(crate) struct ThreadState {
    /// The thread's instance, kept across a panic.
    pub(crate) slot: Cell<Option<usize>>,
    /// Whether the thread runs a request whose instance it has freed.
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
    /// The system could not start a thread.
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

    /// Lets a thread continue a request without its instance. Returns false if [`MOST_BESIDE`] threads
    /// already do so.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.lock();
        let may_leave = state.beside < MOST_BESIDE;
        state.beside += usize::from(may_leave);
        may_leave
    }

    /// Records that a thread without an instance has finished its request.
    pub(crate) fn come_back(&self) {
        self.lock().beside -= 1;
    }

    /// Waits until `deadline` for all threads to end and returns whether they did.
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        let mut all = true;
        loop {
            // Threads that end may have started new ones.
            let handles = std::mem::take(&mut self.lock().handles);
            if handles.is_empty() {
                return all;
            }
            for handle in handles {
                // The standard library has no join with a timeout. A thread that hangs in its model is
                // abandoned.
                while !handle.is_finished() && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(1));
                }
                all &= handle.is_finished() && handle.join().is_ok();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The stack size of threads that run models: model graphs can be deeply nested.
pub(crate) const STACK_SIZE: usize = 16 << 20;

/// Returns a thread name within the 15 bytes that Linux keeps.
pub(crate) fn thread_name(task: &str, model: &str, index: usize) -> String {
    let model: String = model.chars().filter(char::is_ascii_graphic).take(6).collect();
    format!("{task}-{model}-{index}")
}
