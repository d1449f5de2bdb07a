//! The states that a version of a model goes through.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model_repository::VersionKey;
use oip_types::ModelState;

use crate::{generation::Generation, versions::served_version::ServedVersion};

/// Versions from oldest to newest; a model without versions has one entry, `None`.
pub(super) type Versions = BTreeMap<Option<VersionKey>, Entry>;

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) state: State,
    /// The reason why the version is not ready, or why the last attempt to replace it failed.
    pub(super) reason: String,
    pub(super) cost: Option<LoadCost>,
    /// Whether the server's readiness waits for this version.
    pub(super) is_waited_for: bool,
}

/// The state of a version. While it is ready, the version is in service.
#[derive(Clone)]
pub(super) enum State {
    Loading,
    Ready(Arc<ServedVersion>),
    Unloading {
        /// The generation of the version that is ending; a later load of the same version has a different
        /// generation.
        generation: Generation,
        /// Whether to remove the entry once the version has ended.
        forget: bool,
    },
    Unloaded,
    Failed,
}

impl Entry {
    pub(super) fn new(state: State, reason: impl Into<String>, is_waited_for: bool) -> Self {
        Self {
            state,
            reason: reason.into(),
            cost: None,
            is_waited_for,
        }
    }

    /// Returns the state and its reason.
    pub(super) fn status(&self) -> (ModelState, String) {
        match &self.state {
            State::Loading => (ModelState::Loading, String::new()),
            State::Ready(served) => match served.unavailable() {
                None => (ModelState::Ready, self.reason.clone()),
                Some(reason) => (ModelState::Unavailable, reason),
            },
            State::Unloading { .. } => (ModelState::Unloading, String::new()),
            State::Unloaded | State::Failed => (ModelState::Unavailable, self.reason.clone()),
        }
    }

    pub(super) fn served(&self) -> Option<&Arc<ServedVersion>> {
        match &self.state {
            State::Ready(served) => Some(served),
            _ => None,
        }
    }
}

/// The duration and memory of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadCost {
    pub(crate) time: Duration,
    /// See [`ModelStatus`](super::status::ModelStatus).
    pub(crate) memory: Option<u64>,
}
