//! File descriptors: as many as the process may have.

use std::io::stderr;

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// Raises the limit that counts to the one that it may be raised to.
///
/// Shells and service managers leave it at 1024 as a rule, for programs that use `select`. Connections, models and
/// regions of shared memory need one descriptor each.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Without it the server has fewer descriptors, and says so where one is missing.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Connections by default, and models, regions and timers beside them.
const USUAL: u64 = 16 << 10;

/// Lets the system make room for the usual number of descriptors now: 9 bytes each. To be called before there are threads.
///
/// It doubles its table when that is full. With one thread that takes no time, with several each doubling stops the one that
/// wanted a descriptor until all processors have come by: some 20 ms while a crowd connects.
pub(crate) fn make_room() {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(USUAL);
    let last = USUAL.min(most).saturating_sub(1);
    // A descriptor with a high number, closed at once. Without it the table grows when it has to.
    let _ = i32::try_from(last).map(|last| fcntl_dupfd_cloexec(stderr(), last));
}
