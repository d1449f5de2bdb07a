//! Lanes: threads of their own for work, and others for connections that keep the server busy, so that neither holds up those
//! who only ask whether the server is well.

use tokio::{join, runtime::Handle};

use crate::spare::keep_one_asleep;

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
        Self { work, busy }
    }

    /// Lets one thread of each lane sleep while the others keep up, for ever, if it has several; to be run on the runtime that
    /// connections are accepted on.
    ///
    /// A lane is best given one thread more than there are processors: nobody shares a processor then, and where a thread goes
    /// into work that does not end, the one that slept takes its place within some 125 milliseconds.
    pub async fn keep_awake(self) {
        join!(keep_one_asleep(&self.work), keep_one_asleep(&self.busy));
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
