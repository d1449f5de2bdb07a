//! Connections with regions that wait for their next request, and whether it pays to use one.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use oip_types::InferRequest;

use super::region::{Region, input_bytes};
use crate::{TensorForm, connect, settings::Settings};

/// Bytes of inputs, or of outputs, from which shared memory is cheaper than the socket.
pub(crate) const PAYS: u64 = 64 << 10;

/// Regions have a multiple of so many bytes, so that those of similar requests are the same.
const STEP: u64 = 1 << 20;

/// Models whose outputs are remembered.
const MODELS: usize = 256;

/// Connections with regions.
pub(crate) struct Pool<C> {
    state: Mutex<State<C>>,
}

struct State<C> {
    /// The last used at the end.
    idle: Vec<(Shared<C>, Instant)>,
    /// Until when no region of so many bytes or more is asked for.
    paused: Option<(Instant, u64)>,
    /// The bytes of the largest answer of each model.
    outputs: BTreeMap<String, u64>,
}

/// A connection and its region.
pub(crate) struct Shared<C> {
    pub(crate) connection: C,
    pub(crate) region: Region,
}

/// What a request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Bytes of inputs.
    pub(crate) inputs: u64,
    /// Bytes of the region.
    pub(crate) region: u64,
}

impl<C> Default for Pool<C> {
    fn default() -> Self {
        let state = State {
            idle: Vec::new(),
            paused: None,
            outputs: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
        }
    }
}

impl<C> fmt::Debug for Pool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("idle", &self.state().idle.len())
            .finish()
    }
}

impl<C> Pool<C> {
    /// What a request needs, if shared memory pays and the server may offer it.
    pub(crate) fn plan(&self, request: &InferRequest, settings: &Settings) -> Option<Plan> {
        if settings.form != TensorForm::Raw || settings.compression.is_some() {
            return None;
        }
        let inputs = input_bytes(request)?;
        let state = self.state();
        // A model that was never asked may answer with as much as it gets.
        let outputs = state.outputs.get(request.model().name());
        let outputs = outputs.copied().unwrap_or(inputs);
        let whole = inputs.checked_add(outputs)?;
        let region = whole.checked_next_multiple_of(STEP)?;
        let is_paused = state
            .paused
            .is_some_and(|(until, least)| region >= least && Instant::now() < until);
        (inputs.max(outputs) >= PAYS && !is_paused).then_some(Plan { inputs, region })
    }

    /// Notes how large an answer was.
    pub(crate) fn note_outputs(&self, request: &InferRequest, bytes: u64) {
        let mut state = self.state();
        let name = request.model().name();
        if let Some(known) = state.outputs.get_mut(name) {
            *known = bytes.max(*known);
        } else if state.outputs.len() < MODELS {
            state.outputs.insert(name.to_owned(), bytes);
        }
    }

    /// Asks for no region of so many bytes or more for a while.
    pub(crate) fn pause(&self, pause: Duration, least: u64) {
        let mut state = self.state();
        state.paused = Instant::now().checked_add(pause).map(|until| (until, least));
    }

    /// Returns the smallest region that is large enough, of those that were used not long ago. If all are too
    /// small, one is given up for a larger one.
    pub(crate) fn take(&self, bytes: u64) -> Option<Shared<C>> {
        let mut state = self.state();
        let old = state
            .idle
            .partition_point(|(_, since)| since.elapsed() > connect::IDLE);
        let mut closed: Vec<_> = state.idle.drain(..old).collect();
        let fitting = state.idle.iter().enumerate();
        let fitting = fitting.filter(|(_, (shared, _))| shared.region.len() >= bytes);
        let found =
            fitting.min_by_key(|(index, (shared, _))| (shared.region.len(), std::cmp::Reverse(*index)));
        let found = found.map(|(index, _)| index);
        match found {
            Some(index) => {
                let (shared, _) = state.idle.remove(index);
                drop(state);
                Some(shared)
            }
            None => {
                closed.extend(state.idle.pop());
                // Closed without the lock.
                drop(state);
                drop(closed);
                None
            }
        }
    }

    /// Keeps a connection for later requests.
    pub(crate) fn keep(&self, shared: Shared<C>) {
        self.state().idle.push((shared, Instant::now()));
    }

    /// Closes those that cannot be used again.
    pub(crate) fn close(&self, is_over: impl Fn(&C) -> bool) {
        let mut state = self.state();
        let closed: Vec<_> = state
            .idle
            .extract_if(.., |(shared, _)| is_over(&shared.connection))
            .collect();
        drop(state);
        drop(closed);
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        // Each change is complete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
