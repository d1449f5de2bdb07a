//! The operator `Det`: determinants of square matrices.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{Unsupported, ensure_input},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, tensor},
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `Det`.
pub fn determinant(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Determinant))
}

#[derive(Debug)]
struct Determinant;

impl Kernel for Determinant {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        if input.element_type != ElementType::F32 {
            bail!(Unsupported::Anywhere("is supported for FP32 only".to_owned()));
        }
        ensure!(input.rank() >= 2, "a matrix of {} dimensions", input.rank());
        let outer = input.shape[..input.rank() - 2].iter().copied();
        Ok(vec![Fact::new(ElementType::F32, outer)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        let (outer, matrix) = shape.split_at(shape.len() - 2);
        let size = matrix[0];
        ensure_input!(matrix[1] == size, "matrices of {matrix:?} are not square");
        let mut made = vec![1.0; outer.iter().product()];
        let mut pace = Pace::default();
        let matrices = elements::<f32>(&inputs[0])?.chunks_exact((size * size).max(1));
        for (made, matrix) in made.iter_mut().zip(matrices) {
            *made = of(&mut pace.copy(matrix)?, size, &mut pace)?;
        }
        Ok(smallvec![tensor(outer, made)?])
    }
}

/// Computes a determinant by Gaussian elimination with partial pivoting.
fn of(matrix: &mut [f32], size: usize, pace: &mut Pace) -> Result<f32> {
    let mut product = 1.0;
    for at in 0..size {
        pace.spend((size - at) as u64)?;
        let largest = (at..size).max_by(|&a, &b| {
            let [a, b] = [a, b].map(|row| matrix[row * size + at].abs());
            a.total_cmp(&b)
        });
        let pivot = largest.unwrap_or(at);
        if pivot != at {
            let (upper, lower) = matrix.split_at_mut(pivot * size);
            upper[at * size..][..size].swap_with_slice(&mut lower[..size]);
            product = -product;
        }
        let first = matrix[at * size + at];
        product *= first;
        // Continues with the next column instead of returning 0, since later elements may be NaN.
        if first == 0.0 {
            continue;
        }
        let (upper, lower) = matrix.split_at_mut((at + 1) * size);
        let row = &upper[at * size..];
        for other in lower.chunks_exact_mut(size) {
            pace.spend((size - at) as u64)?;
            let factor = other[at] / first;
            other[at..]
                .iter_mut()
                .zip(&row[at..])
                .for_each(|(x, above)| *x -= factor * above);
        }
    }
    Ok(product)
}
