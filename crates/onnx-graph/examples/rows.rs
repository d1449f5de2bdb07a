//! Prints the inputs and outputs of an ONNX model, and whether its rows are independent.
//!
//! ```sh
//! cargo run --package onnx-graph --example rows -- model.onnx
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use onnx_graph::{Port, Signature, independence, structure};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let model = onnx_graph::decode(&std::fs::read(path)?.into())?;
    structure::check(&model)?;
    let signature = Signature::of(&model)?;
    for input in &signature.inputs {
        println!("takes {}", described(input));
    }
    for output in &signature.outputs {
        println!("gives {}", described(output));
    }
    match independence::prove(&model, &signature.inputs) {
        Ok(rows) if rows.shared_inputs.is_empty() => println!("rows are independent"),
        Ok(rows) => println!("rows are independent but for {}", rows.shared_inputs.join(", ")),
        Err(reason) => println!("rows may depend on each other: {reason}"),
    }
    Ok(())
}

fn described(port: &Port) -> String {
    let dims = port.dims.as_ref().map(|dims| {
        let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
        dims.join(", ")
    });
    format!(
        "{} ({}[{}])",
        port.name,
        port.element_type,
        dims.unwrap_or("...".to_owned())
    )
}
