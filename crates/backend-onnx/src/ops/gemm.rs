//! `Gemm` of FP64, whose factors are FP32 in tract, and those whose product counts nothing, which tract does not compute: the product
//! of two matrices, and what is added to it.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    tract_ndarray::{ArrayView2, ArrayViewMut2, Axis, LinalgScalar, linalg::general_mat_mul},
    tract_num_traits::AsPrimitive,
};

use super::{
    attributes::Attributes,
    elements::{Element, elements, tensor},
    kernel::{Fact, Kernel, kernel},
};
use crate::{building::BuildContext, cancelling::Pace, faults::ensure_input, lowered::OnnxNode};

/// Whether the product counts nothing, but makes no number of an infinity.
pub(super) fn is_of_nothing(attributes: Attributes<'_>, inputs: &[Fact]) -> bool {
    attributes.float("alpha", 1.0) == 0.0 && inputs[0].datum_type == DatumType::F32
}

/// The operator, for FP32 and FP64.
pub(crate) fn gemm(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    Ok(kernel(Gemm {
        alpha: attributes.float("alpha", 1.0).into(),
        beta: attributes.float("beta", 1.0).into(),
        turns_a: attributes.int("transA", 0) != 0,
        turns_b: attributes.int("transB", 0) != 0,
    }))
}

#[derive(Debug)]
struct Gemm {
    alpha: f64,
    beta: f64,
    turns_a: bool,
    turns_b: bool,
}

/// Rows and columns of a factor as it is multiplied.
fn sides<T: Clone>(shape: &[T], is_turned: bool) -> TractResult<[T; 2]> {
    match (shape, is_turned) {
        ([rows, columns], false) | ([columns, rows], true) => Ok([rows.clone(), columns.clone()]),
        _ => bail!("expected a matrix, found {} dimensions", shape.len()),
    }
}

impl Kernel for Gemm {
    fn name(&self) -> &'static str {
        "Gemm"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [a, b, added @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        let [rows, depth] = sides(&a.shape, self.turns_a)?;
        let [other_depth, columns] = sides(&b.shape, self.turns_b)?;
        let is_certain = depth.to_i64().is_ok() && other_depth.to_i64().is_ok();
        ensure!(
            depth == other_depth || !is_certain,
            "a depth of {depth} and one of {other_depth}"
        );
        if let [added] = added {
            ensure!(added.rank() <= 2, "what is added has {} dimensions", added.rank());
        }
        Ok(vec![Fact::new(a.datum_type, [rows, columns])])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        match inputs[0].datum_type() {
            DatumType::F64 => self.product::<f64>(inputs),
            _ => self.product::<f32>(inputs),
        }
    }
}

/// Multiplications of one part.
const PART: usize = if cfg!(test) { 1 << 12 } else { 1 << 27 };

/// Rows of one part, for which the other factor is put in order once.
const LEAST_ROWS: usize = 16;

impl Gemm {
    fn product<T: Element + LinalgScalar>(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>>
    where
        f64: AsPrimitive<T>,
    {
        let (alpha, beta): (T, T) = (self.alpha.as_(), self.beta.as_());
        let [rows, depth] = sides(inputs[0].shape(), self.turns_a)?;
        let [other_depth, columns] = sides(inputs[1].shape(), self.turns_b)?;
        ensure_input!(
            depth == other_depth,
            "a depth of {depth} and one of {other_depth}"
        );
        let mut product = match inputs.get(2) {
            Some(added) => {
                let wide = added.broadcast_to_shape(&[rows, columns]);
                let shape = added.shape();
                ensure_input!(
                    wide.is_ok(),
                    "what is added to {rows} by {columns} has the shape {shape:?}"
                );
                elements::<T>(&wide?)?.to_vec()
            }
            None => vec![T::zero(); rows * columns],
        };
        let view = |tensor, is_turned: bool| -> TractResult<ArrayView2<'_, T>> {
            let [rows, columns] = sides(Tensor::shape(tensor), false)?;
            let view = ArrayView2::from_shape([rows, columns], elements::<T>(tensor)?)?;
            Ok(if is_turned { view.reversed_axes() } else { view })
        };
        let (a, b) = (view(&inputs[0], self.turns_a)?, view(&inputs[1], self.turns_b)?);
        let mut sums = ArrayViewMut2::from_shape([rows, columns], &mut product)?;
        // So many rows at a time that a request that is cancelled ends soon.
        let work = depth.saturating_mul(columns).max(1);
        let together = (PART / work).max(LEAST_ROWS);
        let mut pace = Pace::default();
        let parts = a.axis_chunks_iter(Axis(0), together);
        for (a, mut sums) in parts.zip(sums.axis_chunks_iter_mut(Axis(0), together)) {
            pace.spend((work * a.nrows()) as u64 / 8 + 1)?;
            if self.alpha == 0.0 {
                // A product with infinities is no number then either.
                let product = a.dot(&b).mapv(|sum| sum * alpha);
                match beta == T::zero() {
                    true => sums.assign(&product),
                    false => sums.zip_mut_with(&product, |sum, product| *sum = *sum * beta + *product),
                }
            } else {
                general_mat_mul(alpha, &a, &b, beta, &mut sums);
            }
        }
        Ok(tvec![tensor(&[rows, columns], product)?])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::cancelling::{Cancelled, while_cancelled};

    /// Of so many rows and columns that it is computed in parts.
    #[test]
    fn products_in_parts_end_with_their_request() {
        let gemm = Gemm {
            alpha: 2.0,
            beta: 1.0,
            turns_a: false,
            turns_b: false,
        };
        let (rows, depth, columns) = (LEAST_ROWS + 3, 2, 1 << 17);
        let numbers = |count: usize| (0..count).map(|at| (at % 7) as f64).collect::<Vec<f64>>();
        let [a, b] = [[rows, depth], [depth, columns]];
        let inputs = [a, b, [rows, 1]].map(|shape| {
            let count = shape.iter().product();
            Arc::new(tensor(&shape, numbers(count)).unwrap())
        });
        let product = gemm.run(&inputs).unwrap();
        let product = elements::<f64>(&product[0]).unwrap();
        for (row, column) in [(0, 0), (3, 5), (LEAST_ROWS, 9), (rows - 1, columns - 1)] {
            let at = |row: usize, width: usize, column: usize| ((row * width + column) % 7) as f64;
            let terms = (0..depth).map(|term| at(row, depth, term) * at(term, columns, column));
            let expected = 2.0 * terms.sum::<f64>() + at(row, 1, 0);
            assert_eq!(product[row * columns + column], expected, "{row}, {column}");
        }
        assert!(
            while_cancelled(|| gemm.run(&inputs))
                .unwrap_err()
                .is::<Cancelled>()
        );
    }
}
