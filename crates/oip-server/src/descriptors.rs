//! Raises the limit on file descriptors.

use std::io::stderr;

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// Raises the soft limit on descriptors to the hard limit.
///
/// Shells and service managers usually set the soft limit to 1024, for programs that use `select`.
/// Connections, models and shared memory regions need one descriptor each.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If raising the limit fails, the server works with fewer descriptors, and reports when they are used up.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Number of descriptors for the default number of connections, plus models, regions and timers.
const USUAL: u64 = 16 << 10;

/// Makes the kernel allocate a descriptor table of [`USUAL`] entries at once, at 9 bytes per entry. Must be
/// called before threads start.
///
/// The kernel doubles the table when it is full. In a single-threaded process, doubling is immediate. With
/// several threads, each doubling waits for an RCU grace period, which takes about 20 ms while many clients
/// connect.
pub(crate) fn make_room() {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(USUAL);
    let last = USUAL.min(most).saturating_sub(1);
    // Opens and closes a descriptor with a high number. On failure, the table grows on demand.
    let _ = i32::try_from(last).map(|last| fcntl_dupfd_cloexec(stderr(), last));
}
