//! Limit and table of file descriptors.

use std::io::stderr;

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// Raises the soft limit to the hard limit.
///
/// Shells and service managers usually leave it at 1024 for programs that use `select`. Connections, models
/// and shared memory regions need a descriptor each.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Otherwise the limit stays lower, and errors report when it is reached.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Descriptors for the default number of connections, and for models, regions and timers.
const USUAL: u64 = 16 << 10;

/// Lets the kernel allocate its descriptor table now, 9 bytes per descriptor. Call before there are threads.
///
/// The kernel doubles a full table. In a process with several threads, this stops the allocating thread for
/// an RCU grace period, some 20 ms while many clients connect.
pub(crate) fn make_room() {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(USUAL);
    let last = USUAL.min(most).saturating_sub(1);
    // A descriptor with a high number, closed at once. On failure the table grows on demand.
    let _ = i32::try_from(last).map(|last| fcntl_dupfd_cloexec(stderr(), last));
}
