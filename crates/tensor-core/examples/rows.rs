//! Creates a tensor, takes some of its rows without copying, and shows errors.
//!
//! ```sh
//! cargo run --package tensor-core --example rows
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use tensor_core::Tensor;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tensor = Tensor::from_vec([3, 2], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    println!("{tensor}");
    let last = tensor.rows(2..3)?;
    println!("the last row, in place: {last}");
    if let Err(error) = Tensor::from_vec([3, 2], vec![1.0f32]) {
        println!("refused: {error}");
    }
    Ok(())
}
