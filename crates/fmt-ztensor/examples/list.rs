//! Lists the tensors of a file: names, dtypes, shapes.
//!
//! ```sh
//! cargo run --package fmt-ztensor --example list -- model.zt
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use fmt_core::TensorReader;
use fmt_ztensor::ZtensorReader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let reader = ZtensorReader::from_path(path)?;
    for entry in reader.entries() {
        println!("{} {}{}", entry.name, entry.dtype, entry.shape);
    }
    Ok(())
}
