//! Hostile and good clients for the running server, and what they measure of it from outside.
//!
//! The attacks are defined once, in [`rows`]. The server's tests run them at a small size; the program of this crate runs them
//! with the server's default options (`cargo xtask attack`) and mixed over a long time (`cargo xtask soak`).
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

mod beside;
pub mod grpc;
pub mod http1;
pub mod models;
pub mod protobuf;
pub mod rows;
mod server;

use std::{future::Future, io, panic::resume_unwind, thread};

use tokio::{runtime::Builder, task::LocalSet};

pub use beside::{Beside, Seen, budget_used};
pub use rows::{Scale, Tally};
pub use server::{Server, Target, signal, workers};

/// Runs an attack, or anything that its connections need, on this thread.
///
/// # Errors
/// If the system gives no runtime.
pub fn run<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(LocalSet::new().block_on(&runtime, future))
}

/// Makes an attack and runs it on a thread with this nice value: 0 is the priority of everybody else, 19 the lowest. Attackers have
/// machines of their own, so their work should not take the processors of the server and of its good clients.
///
/// # Errors
/// If the system gives no runtime.
pub fn run_in_background<F>(nice: i32, attack: impl FnOnce() -> F + Send) -> io::Result<F::Output>
where
    F: Future<Output: Send>,
{
    thread::scope(|scope| {
        let attacking = scope.spawn(|| {
            // On Linux this is a thread's matter, elsewhere the whole process's.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::nice(nice);
            run(attack())
        });
        attacking.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
