//! Reads an identity table and prints the error in it, if any.
//!
//! ```sh
//! cargo run --package oip-auth --example check -- identities.toml
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use oip_auth::Guard;
use oip_resources::CpuPool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which table?")?;
    let guard = Guard::with_table(&path, CpuPool::default())?;
    println!("{path} is fine");
    // A server calls `reload` periodically. If a table is invalid, the previous table stays in use.
    println!("changed meanwhile: {}", guard.reload()?);
    Ok(())
}
