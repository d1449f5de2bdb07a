//! Maps a file and prints its first bytes: only their page is read, whatever the file's size.
//!
//! ```sh
//! cargo run --package tensor-mmap --example first_bytes -- weights.safetensors
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::fs::File;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let file = File::open(path)?;
    // SAFETY: the user of this example does not change the file while it is mapped.
    #[expect(unsafe_code, reason = "what the crate is for")]
    let bytes = unsafe { tensor_mmap::map(&file)? };
    println!("{} bytes, first {:?}", bytes.len(), &bytes[..bytes.len().min(16)]);
    Ok(())
}
