//! Lanes: separate threads for connections with work and for connections that keep the server busy, so that
//! neither kind of connection delays health checks.
//!
//! Under all attacks with large requests at once, good clients keep 34 % of their rate without the busy lane,
//! 41 % without the front, and at least 58 % with both (Xeon, 2 cores; one run without, three with both).

use tokio::{join, runtime::Handle};

use crate::spare::keep_one_asleep;

/// The runtimes that connections move to once they have work. Both runtimes need timers and I/O. When a
/// runtime ends, its connections end.
///
/// Connections are accepted on the runtime that calls [`serve`](crate::serve). HTTP/1 connections stay there
/// while they send only GET and HEAD requests, so that health checks are fast under load; a connection that
/// starts with another method moves to `work` immediately. HTTP/2 connections stay on the accepting runtime
/// until they are busy, so their listener is best served on the `work` runtime itself.
#[derive(Clone, Debug)]
pub struct Lanes {
    work: Handle,
    busy: Handle,
}

/// The lane of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Lane {
    /// The accepting runtime.
    Front,
    Work,
    Busy,
}

impl Lanes {
    /// Creates lanes. `work` runs connections with requests. `busy` runs connections that had more to read
    /// than one turn allows. A connection leaves `busy` one second after its last such turn. If the threads
    /// of `busy` have a lower priority, such connections do not delay other connections.
    #[must_use]
    pub fn new(work: Handle, busy: Handle) -> Self {
        Self { work, busy }
    }

    /// Parks one thread of each lane that has several threads, while its other threads keep up with the work.
    /// Never returns. Run this future on the accepting runtime.
    ///
    /// Give a lane one more thread than there are CPUs. Threads then do not share a CPU, and if a thread is
    /// blocked by long work, the parked thread replaces it within about 125 ms.
    pub async fn keep_awake(self) {
        join!(keep_one_asleep(&self.work), keep_one_asleep(&self.busy));
    }

    /// Returns a lane's runtime, unless it is the current one.
    pub(crate) fn runtime(&self, lane: Lane) -> Option<&Handle> {
        match lane {
            Lane::Front => None,
            Lane::Work => Some(&self.work),
            Lane::Busy => Some(&self.busy),
        }
    }
}

impl From<u8> for Lane {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Work,
            2 => Self::Busy,
            _ => Self::Front,
        }
    }
}
