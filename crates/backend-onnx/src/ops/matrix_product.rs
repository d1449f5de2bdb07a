//! Products of rows with a constant matrix, with what follows them.

use std::sync::Arc;

use onnx_gemm::{IndirectGemm, copy_line, pack_rows};
use tract_hir::internal::*;

use super::{
    activation::Activation,
    elements::{elements, filled, tensor},
    kernel::{Fact, Kernel},
};
use crate::cancelling::Pace;

/// Rows times a matrix. Its inputs are the rows, the matrix, and what is added, if something is.
#[derive(Debug)]
pub(super) struct MatrixProduct {
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// One for each column.
    pub(super) bias: Vec<f32>,
    pub(super) activation: Option<Activation>,
    /// Of the result.
    pub(super) shape: TVec<usize>,
}

/// The matrix as a constant of the plan, of weights that stand together for each column.
pub(super) fn matrix(columns: usize, weights: &[f32]) -> TractResult<Tensor> {
    let depth = weights.len() / columns.max(1);
    tensor(&[depth, columns], turned(columns, weights))
}

/// Turns a matrix of `rows` rows, which become columns.
pub(super) fn turned(rows: usize, matrix: &[f32]) -> Vec<f32> {
    let columns = matrix.len() / rows.max(1);
    let mut made: Vec<f32> = Vec::with_capacity(matrix.len());
    for column in 0..columns {
        made.extend(matrix.iter().skip(column).step_by(columns));
    }
    made
}

impl Kernel for MatrixProduct {
    fn name(&self) -> &'static str {
        "MatrixProduct"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        Ok(vec![Fact::new(
            inputs[0].datum_type,
            self.shape.iter().map(ToDim::to_dim),
        )])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let Self { rows, depth, .. } = *self;
        let columns = self.bias.len();
        let given = elements::<f32>(&inputs[0])?;
        let matrix = elements::<f32>(&inputs[1])?;
        let added = inputs.get(2).map(|added| elements::<f32>(added)).transpose()?;
        ensure!(
            given.len() == rows * depth
                && matrix.len() == depth * columns
                && added.is_none_or(|added| added.len() == rows * columns),
            "a product of {} numbers, not {}",
            given.len(),
            rows * depth
        );
        let offsets: Vec<usize> = (0..depth).map(|term| term * columns).collect();
        let compute = |output: &mut [f32]| {
            IndirectGemm {
                rows,
                weights: &pack_rows(rows, given),
                bias: &vec![0.0; rows],
                values: matrix,
                offsets: &offsets,
                columns,
                pace: &mut Pace::default(),
                take: |first, count, sums: &mut [f32], stride| {
                    let bias = &self.bias[first..first + count];
                    for (row, sums) in sums.chunks_exact_mut(stride).take(rows).enumerate() {
                        let sums = &mut sums[..count];
                        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += *bias);
                        if let Some(added) = added {
                            let added = &added[row * columns + first..][..count];
                            sums.iter_mut().zip(added).for_each(|(sum, added)| *sum += *added);
                        }
                    }
                    if let Some(activation) = &self.activation {
                        activation.apply(&mut sums[..(rows - 1) * stride + count]);
                    }
                    for (row, sums) in sums.chunks_exact(stride).take(rows).enumerate() {
                        copy_line(&sums[..count], &mut output[row * columns + first..][..count]);
                    }
                },
            }
            .run()
        };
        Ok(tvec![filled(&self.shape, compute)?])
    }
}
