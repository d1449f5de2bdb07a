//! File descriptors: as many as the process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
