//! Lists the tensors of a file: names, dtypes, shapes.
//!
//! ```sh
//! cargo run --package fmt-btf --example list -- model.btf
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use fmt_btf::BtfReader;
use fmt_core::TensorReader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let reader = BtfReader::from_path(path)?;
    for entry in reader.entries() {
        println!("{} {}{}", entry.name, entry.dtype, entry.shape);
    }
    Ok(())
}
