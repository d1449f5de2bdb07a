//! Packs a weight matrix once and multiplies it with batches of input rows.
//!
//! ```sh
//! cargo run --package onnx-gemm --example weights
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use onnx_gemm::{Order, PackedMatrix, Unpaced};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (depth, columns) = (3, 2);
    let weights = PackedMatrix::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [depth, columns], Order::RowMajor);
    for rows in [1, 2] {
        let a = vec![1.0; rows * depth];
        let mut c = vec![0.0; rows * columns];
        weights.multiply(&a, &mut c, &mut Unpaced)?;
        println!("{rows} rows: {c:?}");
    }
    Ok(())
}
