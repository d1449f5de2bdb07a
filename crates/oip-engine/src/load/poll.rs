//! Polls the repositories for added, changed and removed models.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use model_repository::{ModelNames, PassedOver, Snapshot};

use crate::load::{
    control::{Action, Control, Task},
    lifecycle::{Cause, Lifecycle},
};

/// A thread that polls the repository. Dropping the value ends the thread.
pub(crate) struct Poller {
    _stop: SyncSender<()>,
}

impl Poller {
    /// Starts polling.
    ///
    /// # Errors
    /// The system could not start a thread.
    pub(crate) fn start(
        lifecycle: Arc<Lifecycle>,
        control: Arc<Control>,
        interval: Duration,
    ) -> io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let look = move || {
            let mut view = View::default();
            view.note_passed_over(&lifecycle);
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                // A panic in a store or a reader must not end polling.
                let look = || view.look(&lifecycle, |model| control.is_busy(model));
                let Ok(actions) = catch_unwind(AssertUnwindSafe(look)) else {
                    tracing::error!(
                        "the server panicked while it looked for changed models; it will look again"
                    );
                    continue;
                };
                for (model, action) in actions {
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

/// The changes that the last poll found. A change takes effect once two polls see the same files: a copy in
/// progress keeps changing, and a directory that is being replaced is missing for a moment.
#[derive(Default)]
struct View {
    changed: BTreeMap<String, Snapshot>,
    gone: BTreeSet<String>,
    /// Models that cannot be listed, such as a model in two repositories, with the reason.
    failing: BTreeMap<String, String>,
    /// Models in `failing` whose reason is recorded in the registry.
    shown: BTreeSet<String>,
    /// Unused files that were already logged.
    passed_over: BTreeSet<PassedOver>,
}

impl View {
    fn look(&mut self, lifecycle: &Lifecycle, is_busy: impl Fn(&str) -> bool) -> Vec<(String, Action)> {
        lifecycle.repository.refresh(None);
        for PassedOver { file, advice, .. } in self.note_passed_over(lifecycle) {
            tracing::warn!(file, advice, "a file is not served");
        }
        let ModelNames { names, unread, .. } = lifecycle.repository.names();
        for (repository, error) in &unread {
            tracing::warn!(repository, %error, "a model repository cannot be read; running models continue");
        }
        let mut actions = Vec::new();
        let (mut changed, mut failing, mut shown) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let load = |name: &str| {
            let cause = Cause::Poll;
            (name.to_owned(), Action::Load { config: None, cause })
        };
        for name in &names {
            if is_busy(name) {
                shown.extend(self.shown.take(name));
                continue;
            }
            match lifecycle.changed(name) {
                // The error is resolved: load the version that is in the directory.
                Ok(None) if self.shown.contains(name) => actions.push(load(name)),
                Ok(None) => {}
                Ok(Some(snapshot)) if self.changed.get(name) == Some(&snapshot) => actions.push(load(name)),
                Ok(Some(snapshot)) => drop(changed.insert(name.clone(), snapshot)),
                Err(error) => {
                    let reason = error.to_string();
                    if lifecycle.registry.shows(name, &reason) {
                        shown.insert(name.clone());
                    } else if self.failing.get(name) == Some(&reason) {
                        // Loading the model will fail and record the reason.
                        shown.insert(name.clone());
                        actions.push(load(name));
                    } else {
                        failing.insert(name.clone(), reason);
                    }
                }
            }
        }
        let mut gone = BTreeSet::new();
        for name in lifecycle.known_names() {
            // Models of an unreadable repository may still exist.
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
        (self.failing, self.shown) = (failing, shown);
        actions
    }

    /// Records the unused files, and returns those that the previous poll did not find.
    fn note_passed_over(&mut self, lifecycle: &Lifecycle) -> Vec<PassedOver> {
        let found: BTreeSet<_> = lifecycle.repository.passed_over().into_iter().collect();
        let new = found.difference(&self.passed_over).cloned().collect();
        self.passed_over = found;
        new
    }
}
