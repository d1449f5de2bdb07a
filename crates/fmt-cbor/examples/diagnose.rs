//! Prints a CBOR file in diagnostic notation.
//!
//! ```sh
//! cargo run --package fmt-cbor --example diagnose -- value.cbor
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use fmt_cbor::CborValue;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    println!("{}", CborValue::from_cbor(std::fs::read(path)?)?);
    Ok(())
}
