use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use crate::load::{
    control::{Action, Control, Task},
    files::Snapshot,
    lifecycle::{Cause, Lifecycle},
    repositories::Names,
};

/// A thread that looks at the repository from time to time; it ends when this is dropped.
pub(crate) struct Poller {
    _stop: SyncSender<()>,
}

impl Poller {
    /// Starts to look.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        lifecycle: Arc<Lifecycle>,
        control: Arc<Control>,
        interval: Duration,
    ) -> io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let look = move || {
            let mut view = View::default();
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                for (model, action) in view.look(&lifecycle, |model| control.is_busy(model)) {
                    if control.submit(Task::new(model, action, None)).is_err() {
                        return;
                    }
                }
            }
        };
        thread::Builder::new().name("poll".to_owned()).spawn(look)?;
        Ok(Self { _stop: stop })
    }
}

/// What was seen the last time. A change counts once it was seen twice in the same form: what is still being copied
/// changes, and a folder that is replaced is gone for a moment.
#[derive(Default)]
struct View {
    changed: BTreeMap<String, Snapshot>,
    gone: BTreeSet<String>,
}

impl View {
    fn look(&mut self, lifecycle: &Lifecycle, is_busy: impl Fn(&str) -> bool) -> Vec<(String, Action)> {
        lifecycle.repository.refresh(None);
        let Names { names, unread } = lifecycle.repository.names();
        for (repository, error) in &unread {
            tracing::warn!(repository, %error, "a model repository cannot be read; what runs goes on");
        }
        let mut actions = Vec::new();
        let mut changed = BTreeMap::new();
        for name in &names {
            if is_busy(name) {
                continue;
            }
            match lifecycle.changed(name) {
                Ok(None) => {}
                Ok(Some(snapshot)) if self.changed.get(name) == Some(&snapshot) => {
                    let cause = Cause::Repository;
                    actions.push((name.clone(), Action::Load { config: None, cause }));
                }
                Ok(Some(snapshot)) => drop(changed.insert(name.clone(), snapshot)),
                Err(error) => tracing::debug!(model = name, %error, "a model's folder cannot be looked at"),
            }
        }
        let mut gone = BTreeSet::new();
        for name in lifecycle.known_names() {
            // What a repository has that cannot be read is not known to be gone.
            if names.binary_search(&name).is_ok() || is_busy(&name) || !unread.is_empty() {
                continue;
            }
            if self.gone.contains(&name) {
                let (forget, with_steps) = (true, false);
                actions.push((name, Action::Unload { forget, with_steps }));
            } else {
                gone.insert(name);
            }
        }
        (self.changed, self.gone) = (changed, gone);
        actions
    }
}
