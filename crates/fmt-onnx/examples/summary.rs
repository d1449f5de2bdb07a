//! Prints the inputs, outputs and operators of an ONNX model, without running it.
//!
//! ```sh
//! cargo run --package fmt-onnx --example summary -- model.onnx
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{path::Path, sync::Arc};

use fmt_core::{FileSource, ReadOptions};
use fmt_onnx::OnnxReader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let source = FileSource::open(Path::new(&path))?;
    let reader = OnnxReader::open(Arc::new(source), &ReadOptions::default())?;
    let summary = reader.summary();
    println!("{}, written by {}", summary.graph, summary.producer);
    for input in &summary.inputs {
        println!("takes {input:?}");
    }
    for output in &summary.outputs {
        println!("gives {output:?}");
    }
    for ((domain, name), count) in &summary.operators {
        println!("{count:>6} {domain} {name}");
    }
    Ok(())
}
