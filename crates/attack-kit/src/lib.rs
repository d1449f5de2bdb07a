//! Hostile and well-behaved clients for a running server, and measurements of its process from outside.
//!
//! The attacks are defined in [`rows`]. The server's tests run them at a small size; this crate's program
//! runs them against default options (`cargo xtask attack`) and mixed over a long time (`cargo xtask soak`).
//!
//! ```no_run
//! use std::path::Path;
//!
//! use attack_kit::{Scale, Server, Tally, models, rows, run};
//!
//! # fn main() -> anyhow::Result<()> {
//! let repository = tempfile::tempdir()?;
//! models::write(repository.path(), Scale::SMALL.request)?;
//! let options = Scale::SMALL.options();
//! let options: Vec<&str> = options.iter().map(String::as_str).collect();
//! let server = Server::start(Path::new("target/debug/oip-server"), repository.path(), &options, 3 << 30)?;
//! let tally = Tally::default();
//! run(rows::gzip_crowd(server.target(), Scale::SMALL, tally.clone()))?;
//! println!("{tally}, at most {} bytes", server.peak()?);
//! # Ok(())
//! # }
//! ```

pub mod grpc;
pub mod http1;
pub mod models;
pub mod protobuf;
pub mod rows;
mod server;
mod well_behaved;

use std::{future::Future, io, panic::resume_unwind, thread};

use tokio::{runtime::Builder, task::LocalSet};

pub use rows::{Scale, Tally};
pub use server::{Server, Target, signal, workers};
pub use well_behaved::{ClientResults, WellBehavedClients, budget_used};

/// Runs a future on a single-threaded runtime on this thread.
///
/// # Errors
/// When the runtime cannot be created.
pub fn run<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(LocalSet::new().block_on(&runtime, future))
}

/// Runs an attack on a thread with this nice value, from 0 (normal priority) to 19 (lowest). Real attackers
/// have their own machines, so their work should not take CPU from the server and the well-behaved clients.
///
/// # Errors
/// When the runtime cannot be created.
pub fn run_in_background<F>(nice: i32, attack: impl FnOnce() -> F + Send) -> io::Result<F::Output>
where
    F: Future<Output: Send>,
{
    thread::scope(|scope| {
        let attacking = scope.spawn(|| {
            // On Linux the nice value belongs to the thread, elsewhere to the process.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::nice(nice);
            run(attack())
        });
        attacking.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
