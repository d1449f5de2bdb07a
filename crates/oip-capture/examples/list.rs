//! Lists the requests that a server has recorded.
//!
//! ```sh
//! printf 'capture = "captured"\ncapture-rate = 0.01\n' > server.toml
//! oip-server models --config server.toml
//! cargo run --package oip-capture --example list -- captured
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::path::Path;

use oip_capture::Recording;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("which directory?")?;
    let recording = Recording::open(Path::new(&folder))?;
    for entry in recording.entries() {
        let request = recording.request(entry)?;
        println!("{} {} {}", entry.time(), entry.name(), entry.model());
        for input in &request.inputs {
            println!("  {}", input.name);
        }
    }
    println!("{} requests", recording.entries().len());
    Ok(())
}
