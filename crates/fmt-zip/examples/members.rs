//! Lists the files in a zip archive, and the positions of their bytes.
//!
//! ```sh
//! cargo run --package fmt-zip --example members -- arrays.npz
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use bytes::Bytes;
use fmt_core::ReadOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let archive = Bytes::from(std::fs::read(path)?);
    for member in fmt_zip::members(&archive, &ReadOptions::default())?.members {
        println!("{} {:?}, {} bytes", member.name, member.range, member.size);
    }
    Ok(())
}
