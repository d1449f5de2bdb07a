//! Products of matrices.

use std::{borrow::Cow, sync::Arc};

use tract_hir::internal::*;

use super::compute::Compute;
use crate::{
    cancelling::Pace,
    faults::{BadInput, ensure_input},
    ops::{
        attributes::Attributes,
        elements::{elements, filled},
        matrices::{matrices, sizes},
        matrix_product::turned,
        products::{self, InParts, copy_line},
    },
    size,
};

/// `MatMul` of FP32.
#[derive(Debug)]
pub(super) struct MatMul;

impl Compute for MatMul {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let [a, b] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if a.datum_type() != DatumType::F32 || b.datum_type() != DatumType::F32 {
            return Ok(None);
        }
        let mut sizes = sizes(a.shape(), b.shape()).map_err(|error| BadInput(error.to_string()))?;
        let [depth, depth_b] = sizes.depth;
        ensure_input!(depth == depth_b, "rows of {depth} and columns of {depth_b}");
        size::admit_shape(DatumType::F32, &sizes.shape)?;
        let columns = sizes.columns;
        let count: usize = sizes.shape.iter().product();
        // All rows meet one matrix.
        if sizes.outer[1].iter().all(|&dim| dim == 1) && count > 0 && columns > 0 {
            sizes.rows = count / columns;
            sizes.outer[0].clear();
            sizes.outer[1].clear();
        }
        let rows = sizes.rows;
        let (a, b) = (elements::<f32>(a)?, elements::<f32>(b)?);
        let made = filled(&sizes.shape, |made: &mut [f32]| {
            if count == 0 || depth == 0 {
                return Ok(());
            }
            let matrices = matrices(&sizes.outer, count / (rows * columns));
            for ([first, second], made) in matrices.zip(made.chunks_exact_mut(rows * columns)) {
                let a = &a[first * rows * depth..][..rows * depth];
                let b = &b[second * depth * columns..][..depth * columns];
                multiply(a, b, [rows, depth, columns], made)?;
            }
            Ok(())
        })?;
        Ok(Some(tvec![Arc::new(made)]))
    }
}

/// Writes the product of two matrices.
fn multiply(a: &[f32], b: &[f32], [rows, depth, columns]: [usize; 3], made: &mut [f32]) -> TractResult<()> {
    let offsets: Vec<usize> = (0..depth).map(|term| term * columns).collect();
    let packed = match rows {
        1 => {
            let mut two = a.to_vec();
            two.resize(2 * depth, 0.0);
            products::packed(2, &two)
        }
        rows => products::packed(rows, a),
    };
    InParts {
        rows,
        weights: &packed,
        values: b,
        offsets: &offsets,
        columns,
    }
    .run(&mut Pace::default(), &mut |row, first, sums: &[f32]| {
        copy_line(sums, &mut made[row * columns + first..][..sums.len()]);
    })
}

/// `Gemm` of FP32.
#[derive(Debug)]
pub(super) struct Gemm {
    alpha: f32,
    beta: f32,
    turns_a: bool,
    turns_b: bool,
    /// The second factor, turned, where it is a constant that has to be.
    turned: Option<Vec<f32>>,
}

impl Gemm {
    pub(super) fn of(attributes: Attributes<'_>, constants: &[Option<Arc<Tensor>>]) -> TractResult<Self> {
        let turns_b = attributes.int("transB", 0) != 0;
        let turned = match constants.get(1) {
            Some(Some(b)) if turns_b && b.datum_type() == DatumType::F32 && b.rank() == 2 => {
                Some(turned(b.shape()[0], elements::<f32>(b)?))
            }
            _ => None,
        };
        Ok(Self {
            alpha: attributes.float("alpha", 1.0),
            beta: attributes.float("beta", 1.0),
            turns_a: attributes.int("transA", 0) != 0,
            turns_b,
            turned,
        })
    }
}

impl Compute for Gemm {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let is_known = inputs.iter().all(|input| input.datum_type() == DatumType::F32);
        // With a factor of 0 an infinity is not a number, or nothing is.
        if !is_known || self.alpha == 0.0 || a.rank() != 2 || b.rank() != 2 {
            return Ok(None);
        }
        let sides = |tensor: &Tensor, is_turned: bool| match is_turned {
            true => [tensor.shape()[1], tensor.shape()[0]],
            false => [tensor.shape()[0], tensor.shape()[1]],
        };
        let [rows, depth] = sides(a, self.turns_a);
        let [other_depth, columns] = sides(b, self.turns_b);
        ensure_input!(
            depth == other_depth,
            "a depth of {depth} and one of {other_depth}"
        );
        let shape = [rows, columns];
        size::admit_shape(DatumType::F32, &shape)?;
        let mut factors = [
            Cow::Borrowed(elements::<f32>(a)?),
            Cow::Borrowed(elements::<f32>(b)?),
        ];
        if self.turns_a {
            factors[0] = Cow::Owned(turned(depth, &factors[0]));
        }
        if let Some(turned) = &self.turned {
            factors[1] = Cow::Borrowed(turned);
        } else if self.turns_b {
            factors[1] = Cow::Owned(turned(columns, &factors[1]));
        }
        let added = match inputs.get(2).filter(|_| self.beta != 0.0) {
            Some(added) => {
                let wide = added.broadcast_to_shape(&shape);
                ensure_input!(
                    wide.is_ok(),
                    "what is added to {rows} by {columns} has the shape {:?}",
                    added.shape()
                );
                Some(wide?)
            }
            None => None,
        };
        let made = filled(&shape, |made: &mut [f32]| {
            if !made.is_empty() && depth > 0 {
                multiply(&factors[0], &factors[1], [rows, depth, columns], made)?;
            }
            if self.alpha != 1.0 {
                made.iter_mut().for_each(|sum| *sum *= self.alpha);
            }
            if let Some(added) = &added {
                let added = elements::<f32>(added)?;
                made.iter_mut()
                    .zip(added)
                    .for_each(|(sum, added)| *sum += self.beta * added);
            }
            Ok(())
        })?;
        Ok(Some(tvec![Arc::new(made)]))
    }
}
