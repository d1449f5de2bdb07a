//! Products of matrices of whole numbers, and which matrices are multiplied where factors have more than two dimensions.

use std::sync::Arc;

use tract_hir::internal::*;

use super::{
    elements::{Element, elements, tensor},
    kernel::{Fact, Kernel, kernel},
};
use crate::{
    building::BuildContext,
    cancelling::Pace,
    faults::{BadInput, ensure_input},
    lowered::OnnxNode,
};

/// `MatMul` of whole numbers that tract does not multiply. Sums wrap around, as ONNX Runtime's do.
pub(crate) fn whole_product(_: &BuildContext, _: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    Ok(kernel(WholeProduct))
}

#[derive(Debug)]
struct WholeProduct;

impl Kernel for WholeProduct {
    fn name(&self) -> &'static str {
        "MatMul"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [a, b] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(a.datum_type == b.datum_type, "factors of different types");
        let sizes = sizes(&a.shape, &b.shape)?;
        Ok(vec![Fact::new(a.datum_type, sizes.shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        Ok(tvec![match inputs[0].datum_type() {
            DatumType::I64 => product(inputs, |sum: i64, a, b| sum.wrapping_add(a.wrapping_mul(b)))?,
            DatumType::U32 => product(inputs, |sum: u32, a, b| sum.wrapping_add(a.wrapping_mul(b)))?,
            _ => product(inputs, |sum: u64, a, b| sum.wrapping_add(a.wrapping_mul(b)))?,
        }])
    }
}

fn product<T: Element + Copy + Default>(
    inputs: &[Arc<Tensor>],
    add: impl Fn(T, T, T) -> T,
) -> TractResult<Tensor> {
    let sizes = sizes(inputs[0].shape(), inputs[1].shape()).map_err(|error| BadInput(error.to_string()))?;
    let (rows, columns, [depth, depth_b]) = (sizes.rows, sizes.columns, sizes.depth);
    ensure_input!(depth == depth_b, "rows of {depth} and columns of {depth_b}");
    let count: usize = sizes.shape.iter().product();
    let mut made = vec![T::default(); count];
    if count > 0 && depth > 0 {
        let (a, b) = (elements::<T>(&inputs[0])?, elements::<T>(&inputs[1])?);
        let mut pace = Pace::default();
        let matrices = matrices(&sizes.outer, count / (rows * columns));
        for ([first, second], sums) in matrices.zip(made.chunks_exact_mut(rows * columns)) {
            let a = a[first * rows * depth..][..rows * depth].chunks_exact(depth);
            let b = &b[second * depth * columns..][..depth * columns];
            for (a, sums) in a.zip(sums.chunks_exact_mut(columns)) {
                pace.spend((depth * columns) as u64)?;
                for (&a, b) in a.iter().zip(b.chunks_exact(columns)) {
                    sums.iter_mut()
                        .zip(b)
                        .for_each(|(sum, &b)| *sum = add(*sum, a, b));
                }
            }
        }
    }
    tensor(&sizes.shape, made)
}

/// The sizes of a product as NumPy has them.
pub(super) struct Sizes<D> {
    /// Of the dimensions before the matrices', which are repeated as needed.
    pub(super) outer: [TVec<D>; 2],
    pub(super) rows: D,
    pub(super) depth: [D; 2],
    pub(super) columns: D,
    pub(super) shape: TVec<D>,
}

pub(super) fn sizes<D: DimLike>(a: &[D], b: &[D]) -> TractResult<Sizes<D>> {
    let (Some((depth_a, before_a)), Some(_)) = (a.split_last(), b.last()) else {
        bail!("a product of numbers, not of matrices");
    };
    let (columns, depth_b, before_b) = match b {
        [depth] => (None, depth, &[][..]),
        [before @ .., depth, columns] => (Some(columns), depth, before),
        [] => bail!("a number, not a matrix"),
    };
    let (rows, before_a) = match before_a.split_last() {
        Some((rows, before)) => (Some(rows), before),
        None => (None, &[][..]),
    };
    let outer = [TVec::from(before_a), TVec::from(before_b)];
    let mut shape: TVec<D> = tract_core::broadcast::multi_broadcast(&[&outer[0][..], &outer[1][..]])?;
    shape.extend(rows.cloned());
    shape.extend(columns.cloned());
    Ok(Sizes {
        outer,
        rows: rows.cloned().unwrap_or_else(D::one),
        depth: [depth_a.clone(), depth_b.clone()],
        columns: columns.cloned().unwrap_or_else(D::one),
        shape,
    })
}

/// For each result, which matrices of the factors it is made of.
pub(super) fn matrices(outer: &[TVec<usize>; 2], results: usize) -> impl Iterator<Item = [usize; 2]> + use<> {
    let rank = outer.iter().map(TVec::len).max().unwrap_or(0);
    let padded = outer.each_ref().map(|dims| {
        let mut padded: TVec<usize> = tvec![1; rank - dims.len()];
        padded.extend(dims.iter().copied());
        padded
    });
    let shape: TVec<usize> = (0..rank)
        .map(|axis| match padded[0][axis] {
            1 => padded[1][axis],
            size => size,
        })
        .collect();
    (0..results).map(move |result| {
        padded.each_ref().map(|dims| {
            let (mut left, mut index, mut stride) = (result, 0, 1);
            for axis in (0..rank).rev() {
                let at = left % shape[axis];
                left /= shape[axis];
                index += if dims[axis] == 1 { 0 } else { at * stride };
                stride *= dims[axis];
            }
            index
        })
    })
}
