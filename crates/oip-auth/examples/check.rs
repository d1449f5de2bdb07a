//! Reads an identity table and prints its error, if any.
//!
//! ```sh
//! cargo run --package oip-auth --example check -- identities.toml
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use oip_auth::Guard;
use oip_service::CpuPool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which table?")?;
    let guard = Guard::with_table(&path, CpuPool::default())?;
    println!("{path} is fine");
    // A server does this periodically. If a table is invalid, the previous one stays in use.
    println!("changed meanwhile: {}", guard.reload()?);
    Ok(())
}
