//! Converts a tensor file. The source's format is detected from its content, the target's from its name.
//!
//! ```sh
//! cargo run --package tensor-files --example convert -- model.safetensors model.zt
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::path::Path;

use tensor_files::{ConvertOptions, convert, format_of_path, open};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("from which file to which?".into());
    };
    let reader = open(Path::new(&from), &Default::default())?;
    let format = format_of_path(Path::new(&to)).ok_or("no format has files with such a name")?;
    // Content that the target cannot hold is an error.
    convert(&*reader, format, Path::new(&to), &ConvertOptions::default())?;
    println!(
        "{} tensors of {} are in {to}",
        reader.entries().len(),
        reader.format()
    );
    Ok(())
}
