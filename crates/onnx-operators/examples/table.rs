//! Prints the table's entries for operators: `cargo run -p onnx-operators --example table Conv Slice
//! com.microsoft/FusedConv`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use onnx_operators::{operator, schema_of};

fn main() {
    for full_name in std::env::args().skip(1) {
        let (domain, name) = full_name.rsplit_once('/').unwrap_or(("", &full_name));
        let Some(row) = operator(domain, name) else {
            println!("{full_name}: no row");
            continue;
        };
        println!("{full_name}: {:?} since operator set {}", row.runs, row.since);
        println!("  attributes: {}", row.attributes.join(", "));
        if let Some(types) = row.types {
            println!("  types of input {}: {types}", row.typed_input);
        }
        println!("  rows: {:?}", row.rows);
        for (since, least, most) in schema_of(domain, name).map_or(&[][..], |schema| schema.inputs) {
            println!("  from operator set {since}: {least} to {most} inputs");
        }
    }
}
