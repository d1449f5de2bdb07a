//! Pools connections that have shared memory regions, and decides when using a region pays off.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use oip_types::InferRequest;
use parking_lot::{Mutex, MutexGuard};

use super::region::{Region, input_bytes};
use crate::{TensorForm, connect, settings::Settings};

/// Size of inputs or outputs from which shared memory is cheaper than the socket, in bytes.
pub(crate) const PAYS: u64 = 64 << 10;

/// Granularity of region sizes in bytes, so that similar requests can share a region.
const STEP: u64 = 1 << 20;

/// Number of models whose output sizes are recorded.
const MODELS: usize = 256;

/// A pool of connections with regions.
pub(crate) struct Pool<C> {
    state: Mutex<State<C>>,
}

struct State<C> {
    /// Idle connections, the most recently used last.
    idle: Vec<(PooledRegion<C>, Instant)>,
    /// Until this time, regions of at least this size in bytes are not requested.
    paused: Option<(Instant, u64)>,
    /// The size of the largest response of each model, in bytes.
    outputs: BTreeMap<String, u64>,
}

/// A connection and its region.
pub(crate) struct PooledRegion<C> {
    pub(crate) connection: C,
    pub(crate) region: Region,
}

/// The shared memory that a request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Size of the inputs in bytes.
    pub(crate) inputs: u64,
    /// Size of the region in bytes.
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
    /// Plans a request's region, if shared memory pays off and the server may support it.
    pub(crate) fn plan(&self, request: &InferRequest, settings: &Settings) -> Option<Plan> {
        if settings.form != TensorForm::Raw || settings.compression.is_some() {
            return None;
        }
        let inputs = input_bytes(request)?;
        let state = self.state();
        // An unknown model may return as much data as it receives.
        let outputs = state.outputs.get(request.model().name());
        let outputs = outputs.copied().unwrap_or(inputs);
        let whole = inputs.checked_add(outputs)?;
        let region = whole.checked_next_multiple_of(STEP)?;
        let is_paused = state
            .paused
            .is_some_and(|(until, least)| region >= least && Instant::now() < until);
        (inputs.max(outputs) >= PAYS && !is_paused).then_some(Plan { inputs, region })
    }

    /// Records the size of a response.
    pub(crate) fn note_outputs(&self, request: &InferRequest, bytes: u64) {
        let mut state = self.state();
        let name = request.model().name();
        if let Some(known) = state.outputs.get_mut(name) {
            *known = bytes.max(*known);
        } else if state.outputs.len() < MODELS {
            state.outputs.insert(name.to_owned(), bytes);
        }
    }

    /// Stops requesting regions of at least `least` bytes for the duration of `pause`.
    pub(crate) fn pause(&self, pause: Duration, least: u64) {
        let mut state = self.state();
        state.paused = Instant::now().checked_add(pause).map(|until| (until, least));
    }

    /// Returns the idle connection with the smallest region that is large enough. If all regions are too
    /// small, closes the most recently used idle connection to make way for a larger region.
    pub(crate) fn take(&self, bytes: u64) -> Option<PooledRegion<C>> {
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
                // Close connections outside the lock.
                drop(state);
                drop(closed);
                None
            }
        }
    }

    /// Returns a connection to the pool.
    pub(crate) fn keep(&self, shared: PooledRegion<C>) {
        self.state().idle.push((shared, Instant::now()));
    }

    /// Closes connections that cannot be reused.
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
        self.state.lock()
    }
}
