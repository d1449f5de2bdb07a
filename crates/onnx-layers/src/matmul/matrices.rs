//! Broadcasts the batch dimensions of matrix products.

use onnx_tensor::prelude::*;

/// The sizes of a matrix product by NumPy's rules.
pub(crate) struct Sizes<D> {
    /// Batch dimensions of both factors, which broadcast.
    pub(crate) outer: [ShortVec<D>; 2],
    pub(crate) rows: D,
    pub(crate) depth: [D; 2],
    pub(crate) columns: D,
    pub(crate) shape: ShortVec<D>,
}

pub(crate) fn sizes<D: Size>(a: &[D], b: &[D]) -> Result<Sizes<D>> {
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
    let outer = [ShortVec::from(before_a), ShortVec::from(before_b)];
    let mut shape: ShortVec<D> = onnx_tensor::shapes::broadcast(&[&outer[0][..], &outer[1][..]])?;
    shape.extend(rows.cloned());
    shape.extend(columns.cloned());
    Ok(Sizes {
        outer,
        rows: rows.cloned().unwrap_or_else(|| D::of(1)),
        depth: [depth_a.clone(), depth_b.clone()],
        columns: columns.cloned().unwrap_or_else(|| D::of(1)),
        shape,
    })
}

/// Returns the indices of the two factors' matrices for each of the `results` result matrices.
pub(crate) fn matrices(
    outer: &[ShortVec<usize>; 2],
    results: usize,
) -> impl Iterator<Item = [usize; 2]> + use<> {
    let rank = outer.iter().map(ShortVec::len).max().unwrap_or(0);
    let padded = outer.each_ref().map(|dims| {
        let mut padded: ShortVec<usize> = smallvec![1; rank - dims.len()];
        padded.extend(dims.iter().copied());
        padded
    });
    let shape: ShortVec<usize> = (0..rank)
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
