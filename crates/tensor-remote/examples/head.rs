//! Prints the size of a remote file and its first bytes, without fetching the rest.
//!
//! ```sh
//! cargo run --package tensor-remote --example head -- https://HOST/model.safetensors
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use fmt_core::ByteSource;
use tensor_remote::{RemoteOptions, open};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("which file?")?;
    let source = open(&url, &RemoteOptions::default())?;
    let first = source.read(0..source.len().min(16))?;
    println!("{} bytes, the first are {:?}", source.len(), &first[..]);
    Ok(())
}
