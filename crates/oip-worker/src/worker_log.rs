//! What a worker writes to standard output and error: for the server's log, and for why it died.

use std::{
    io::{self, BufRead, BufReader, PipeReader, Read},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Lines of one worker that are logged at most: a model that prints must not fill the disk.
const MAX_LINES: usize = 1000;

/// Bytes of one line.
const MAX_LINE: u64 = 1024;

/// Listens to one worker.
pub(crate) struct WorkerLog(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    hint: Option<&'static str>,
    have_ended: bool,
}

impl WorkerLog {
    /// Reads lines on a thread of its own until the worker is gone, and then calls `on_end`.
    pub(crate) fn listen(
        said: PipeReader,
        model: &str,
        pid: u32,
        on_end: impl Fn() + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let listening = {
            let (shared, model) = (shared.clone(), model.to_owned());
            move || {
                let mut lines = BufReader::new(said);
                for count in 0.. {
                    let Some(line) = next_line(&mut lines).filter(|line| !line.is_empty()) else {
                        break;
                    };
                    let line = String::from_utf8_lossy(&line);
                    let line = line.trim();
                    if let Some(hint) = hint(line) {
                        shared.lock().hint = Some(hint);
                    }
                    match count {
                        0..MAX_LINES if !line.is_empty() => {
                            tracing::info!(model, pid, line, "a worker said something");
                        }
                        MAX_LINES => {
                            tracing::warn!(model, pid, "a worker says more, which is not logged any more");
                        }
                        _ => {}
                    }
                }
                shared.lock().have_ended = true;
                shared.changed.notify_all();
                on_end();
            }
        };
        // Without the thread the output is lost, and a worker that prints much waits for ever: it counts as hanging.
        let builder = thread::Builder::new()
            .name("worker-log".to_owned())
            .stack_size(128 << 10);
        if builder.spawn(listening).is_err() {
            shared.lock().have_ended = true;
        }
        Self(shared)
    }

    /// Whether nothing will be said any more.
    pub(crate) fn have_ended(&self) -> bool {
        self.0.lock().have_ended
    }

    /// Waits until all is heard; not for ever, since a process that the worker started may go on.
    pub(crate) fn wait_for_the_last(&self, patience: Duration) {
        let ended = |state: &mut State| !state.have_ended;
        let waited = self.0.changed.wait_timeout_while(self.0.lock(), patience, ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// What the output says about why it died. The lines are a model's and may lie, so these are ours.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        self.0.lock().hint
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next line, or as much of it as is kept; none after a failure, empty at the end.
fn next_line(lines: &mut BufReader<PipeReader>) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).ok()?;
    if line.len() as u64 == MAX_LINE && !line.ends_with(b"\n") {
        skip_line(lines).ok()?;
    }
    Some(line)
}

fn skip_line(lines: &mut BufReader<PipeReader>) -> io::Result<()> {
    loop {
        let part = lines.fill_buf()?;
        let end = part.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(part.len(), |end| end + 1);
        let is_over = end.is_some() || part.is_empty();
        lines.consume(count);
        if is_over {
            return Ok(());
        }
    }
}

/// What Rust and C++ print before they abort.
fn hint(line: &str) -> Option<&'static str> {
    let known = [
        ("has overflowed its stack", "out of its stack"),
        ("memory allocation of ", "out of memory"),
        ("bad_alloc", "out of memory"),
    ];
    let found = known.into_iter().find(|(words, _)| line.contains(words));
    found.map(|(_, meaning)| meaning)
}
