//! Lanes: threads of their own for work, and others for connections that keep the server busy, so that neither holds up those
//! who only ask whether the server is well.

use std::{cell::Cell, thread, time::Duration};

use tokio::{runtime::Handle, time::sleep};

/// The runtimes that connections go to once they have something to do. They need timers and sockets; when one ends, so do the
/// connections that it has.
///
/// Connections are accepted on the runtime that [`serve`](crate::serve) is called on. Those of HTTP/1 stay there while they send
/// no other requests than GET and HEAD (one that begins with something else goes to `work` at once), so that a server which is asked whether it lives answers at once, however much it has to
/// do. Those of HTTP/2 stay until they are busy: their server is best called on the runtime of `work` itself.
#[derive(Clone, Debug)]
pub struct Lanes {
    work: Handle,
    busy: Handle,
    shares_processors: bool,
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Lane {
    /// Where it was accepted.
    Front,
    Work,
    Busy,
}

impl Lanes {
    /// `work` runs connections with requests, and `busy` those of them that have more to read than is read at a time, until
    /// that was a second ago. Where the threads of `busy` have a lower priority, such connections hold up nobody else.
    #[must_use]
    pub fn new(work: Handle, busy: Handle) -> Self {
        Self {
            work,
            busy,
            shares_processors: false,
        }
    }

    /// The same where `work` has more threads than there are processors. The system would let one of them have the processor for
    /// milliseconds, which all connections that are on the other one wait for; so they take turns by themselves, after a few connections each.
    #[must_use]
    pub fn sharing_processors(self) -> Self {
        Self {
            shares_processors: true,
            ..self
        }
    }

    /// A connection has had its turn on the current thread.
    pub(crate) fn turn_is_over(&self, lane: Lane) {
        /// Turns of connections until another thread may have the processor.
        const TURNS: u32 = 8;
        thread_local!(static TURN: Cell<u32> = const { Cell::new(0) });
        if self.shares_processors && lane == Lane::Work {
            let turn = TURN.get().wrapping_add(1);
            TURN.set(turn);
            if turn.is_multiple_of(TURNS) {
                thread::yield_now();
            }
        }
    }

    /// Wakes a thread of each lane now and then, for ever; to be run on the runtime that connections are accepted on.
    ///
    /// A runtime's sockets and timers are looked at by a thread that has nothing else to do. One that goes from there into work
    /// that does not end leaves nobody, until another thread is woken.
    pub async fn keep_awake(self) {
        const INTERVAL: Duration = Duration::from_secs(1);
        loop {
            sleep(INTERVAL).await;
            for runtime in [&self.work, &self.busy] {
                drop(runtime.spawn(async {}));
            }
        }
    }

    /// A lane's runtime, if it is not the current one.
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
