//! The operators `Transpose` and `Gather`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::shape::texts;
use crate::{least_work::BYTES, shape::moved_axis::transpose};
use onnx_tensor::{
    axis::axis,
    cancelling::{PART, Pace},
    faults::ensure_input,
    input_check::within,
    integers::integers,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    shapes::zeros,
    size, split,
};

/// Builds the operator `Gather`.
pub fn gather(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Gather(Attributes(node).int("axis", 0))))
}

/// Builds the operator `Transpose`.
pub fn transpose_of(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Transpose(Attributes(node).ints("perm").to_vec())))
}

/// `Transpose` with this permutation. An empty permutation reverses the axes.
///
/// ```
/// use onnx_kernels::shape::Transpose;
/// use onnx_tensor::{operator::Compute, prelude::*};
///
/// let matrix = Tensor::matrix(&[[1i64, 2], [3, 4]]).into_arc();
/// let outputs = Transpose(vec![1, 0]).run(&mut smallvec![matrix])?;
/// assert_eq!(*outputs[0], Tensor::matrix(&[[1i64, 3], [2, 4]]));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Transpose(pub Vec<i64>);

impl Transpose {
    fn order(&self, rank: usize) -> Result<ShortVec<usize>> {
        let order: ShortVec<usize> = match self.0.is_empty() {
            true => (0..rank).rev().collect(),
            false => self.0.iter().map(|&axis| axis as usize).collect(),
        };
        ensure_input!(
            order.len() == rank && order.iter().all(|&axis| axis < rank),
            "an order of {} axes for {rank} dimensions",
            order.len()
        );
        Ok(order)
    }
}

impl Compute for Transpose {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let order = self.order(input.rank())?;
        let shape = order.iter().map(|&axis| input.shape[axis]);
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        texts::moved(inputs, |inputs| {
            let input = &inputs[0];
            let order = self.order(input.rank())?;
            Ok(smallvec![Arc::new(reordered(input, input.shape(), &order)?)])
        })
    }
}

/// Permutes the axes of a value that is viewed with the shape `shape`. `order` contains each axis once.
pub(crate) fn reordered(input: &Tensor, shape: &[usize], order: &[usize]) -> Result<Tensor> {
    let wanted: ShortVec<usize> = order.iter().map(|&axis| shape[axis]).collect();
    size::admit_shape(input.element_type(), &wanted)?;
    let mut made = Tensor::unset_of(input.element_type(), &wanted)?;
    if made.is_empty() {
        return Ok(made);
    }
    // Merges axes that stay adjacent into one.
    let mut groups: ShortVec<(usize, usize)> = smallvec![];
    for &axis in order {
        match groups.last_mut() {
            Some((first, count)) if *first + *count == axis => *count += 1,
            _ => groups.push((axis, 1)),
        }
    }
    let size = input.element_type().size_of();
    let mut strides: ShortVec<usize> = smallvec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    let mut axes: ShortVec<Axis> = groups
        .iter()
        .map(|&(first, count)| Axis {
            count: product(&shape[first..first + count]),
            step: strides[first + count - 1] * size,
        })
        .filter(|axis| axis.count > 1)
        .collect();
    // Trailing axes that keep their position are copied as one block.
    let bytes = match axes.last() {
        Some(last) if last.step == size => {
            let bytes = last.count * size;
            axes.pop();
            bytes
        }
        _ => size,
    };
    moved(input.as_bytes()?, made.as_bytes_mut()?, &axes, bytes)?;
    Ok(made)
}

fn product(dims: &[usize]) -> usize {
    dims.iter().product()
}

/// An axis of the result, and its stride in bytes in the source.
#[derive(Clone, Copy, Debug)]
struct Axis {
    count: usize,
    step: usize,
}

/// Copies blocks of `bytes` bytes in the order of the result's axes, which `axes` lists from the outermost
/// on.
fn moved(from: &[u8], to: &mut [u8], axes: &[Axis], bytes: usize) -> Result<()> {
    let (outer, inner) = match axes {
        // The last two axes are transposed like a matrix.
        [outer @ .., columns, rows]
            if columns.step == bytes
                && rows.step >= columns.count * bytes
                && rows.step % bytes == 0
                && matches!(bytes, 1 | 2 | 4 | 8 | 16) =>
        {
            (outer, &axes[axes.len() - 2..])
        }
        [outer @ .., _] => (outer, &axes[axes.len() - 1..]),
        [] => (&[][..], &[][..]),
    };
    let inner_bytes = inner.iter().map(|axis| axis.count).product::<usize>() * bytes;
    let work = [to.len() as u64, BYTES];
    if let ([], [_, rows]) = (outer, inner) {
        let sizes = [rows.count, rows.step / bytes];
        return split::lines(to, rows.count * bytes, work, |first, to, pace| {
            turned(from, to, (sizes, first, bytes), pace)
        });
    }
    split::lines(to, inner_bytes, work, |first, to, pace| {
        blocks(from, to, (outer, inner), [first, bytes, inner_bytes], pace)
    })
}

/// Copies the blocks of the inner axes, starting at index `first`.
fn blocks(
    from: &[u8],
    to: &mut [u8],
    (outer, inner): (&[Axis], &[Axis]),
    [first, bytes, inner_bytes]: [usize; 3],
    pace: &mut Pace,
) -> Result<()> {
    let mut place: ShortVec<usize> = smallvec![0; outer.len()];
    let mut left = first;
    for (at, axis) in place.iter_mut().zip(outer).rev() {
        *at = left % axis.count;
        left /= axis.count;
    }
    for to in to.chunks_exact_mut(inner_bytes.max(1)) {
        let first: usize = place.iter().zip(outer).map(|(at, axis)| at * axis.step).sum();
        let from = &from[first..];
        match inner {
            [_, rows] => turned(from, to, ([rows.count, rows.step / bytes], 0, bytes), pace)?,
            [axis] => line(from, to, axis.step, bytes, pace)?,
            _ => pace.copy_bytes(&from[..to.len()], to)?,
        }
        for (at, axis) in place.iter_mut().zip(outer).rev() {
            *at += 1;
            if *at < axis.count {
                break;
            }
            *at = 0;
        }
    }
    Ok(())
}

/// Transposes the columns of a matrix starting at `first`, as many as fit into `to`. `sizes` are the number of
/// rows, and the distance between two rows in blocks.
fn turned(
    from: &[u8],
    to: &mut [u8],
    (sizes, first, bytes): ([usize; 2], usize, usize),
    pace: &mut Pace,
) -> Result<()> {
    match bytes {
        1 => transpose::<1>(from, to, sizes, first, pace),
        2 => transpose::<2>(from, to, sizes, first, pace),
        4 => transpose::<4>(from, to, sizes, first, pace),
        8 => transpose::<8>(from, to, sizes, first, pace),
        _ => transpose::<16>(from, to, sizes, first, pace),
    }
}

/// Copies blocks that are `step` bytes apart.
fn line(from: &[u8], to: &mut [u8], step: usize, bytes: usize, pace: &mut Pace) -> Result<()> {
    /// Copies every second block.
    fn second<const BYTES: usize>(from: &[u8], to: &mut [u8]) {
        let (to, (pairs, rest)) = (
            to.as_chunks_mut::<BYTES>().0,
            from.as_chunks::<BYTES>().0.as_chunks::<2>(),
        );
        to.iter_mut().zip(pairs).for_each(|(to, [from, _])| *to = *from);
        if let (Some(to), Some(from)) = (to.get_mut(pairs.len()), rest.first()) {
            *to = *from;
        }
    }
    fn each<const BYTES: usize>(from: &[u8], to: &mut [u8], step: usize) {
        if step == 2 * BYTES {
            return second::<BYTES>(from, to);
        }
        for (at, to) in to.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            if let Some(block) = from.get(at * step..).and_then(|from| from.first_chunk::<BYTES>()) {
                *to = *block;
            }
        }
    }
    if bytes > PART {
        for (at, to) in to.chunks_exact_mut(bytes).enumerate() {
            pace.copy_bytes(&from[at * step..][..bytes], to)?;
        }
        return Ok(());
    }
    let together = PART / bytes;
    for (part, to) in to.chunks_mut(together * bytes).enumerate() {
        pace.spend(to.len() as u64 / 8 + 1)?;
        let from = &from[part * together * step..];
        match bytes {
            1 => each::<1>(from, to, step),
            2 => each::<2>(from, to, step),
            4 => each::<4>(from, to, step),
            8 => each::<8>(from, to, step),
            bytes => {
                for (at, to) in to.chunks_exact_mut(bytes).enumerate() {
                    to.copy_from_slice(&from[at * step..][..bytes]);
                }
            }
        }
    }
    Ok(())
}

/// `Gather` along this axis.
#[derive(Debug)]
pub(crate) struct Gather(pub(crate) i64);

/// Returns the shape of the gathered result.
fn gathered<D: Clone>(data: &[D], axis: usize, indices: &[D]) -> ShortVec<D> {
    let parts = [&data[..axis], indices, &data[axis + 1..]];
    parts.into_iter().flatten().cloned().collect()
}

impl Compute for Gather {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [from, indices] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let axis = axis(self.0, from.rank())?;
        let shape = gathered(&from.shape, axis, &indices.shape);
        Ok(Some(vec![Fact::new(from.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        texts::moved(inputs, |inputs| {
            let [from, places] = &**inputs else {
                bail!("expected 2 inputs, found {}", inputs.len());
            };
            let axis = axis(self.0, from.rank())?;
            let shape = from.shape();
            let size = shape[axis];
            let mut made = zeros(from.element_type(), &gathered(shape, axis, places.shape()))?;
            let mut pace = Pace::default();
            let mut offsets = integers(places)?;
            for offsets in offsets.chunks_mut(PART) {
                pace.spend(offsets.len() as u64)?;
                for offset in offsets {
                    *offset = within(*offset, size)?;
                }
            }
            let inner = product(&shape[axis + 1..]) * from.element_type().size_of();
            if made.is_empty() {
                return Ok(smallvec![Arc::new(made)]);
            }
            let blocks = from.as_bytes()?.chunks_exact(size * inner);
            for (from, to) in blocks.zip(made.as_bytes_mut()?.chunks_exact_mut(offsets.len() * inner)) {
                taken(from, &offsets, inner, to, &mut pace)?;
            }
            Ok(smallvec![Arc::new(made)])
        })
    }
}

/// Copies the blocks of `bytes` bytes at the indices `places`.
fn taken(from: &[u8], places: &[i64], bytes: usize, to: &mut [u8], pace: &mut Pace) -> Result<()> {
    fn each<const BYTES: usize>(from: &[u8], places: &[i64], to: &mut [u8]) {
        let from = from.as_chunks::<BYTES>().0;
        for (&place, to) in places.iter().zip(to.as_chunks_mut::<BYTES>().0) {
            *to = from[place as usize];
        }
    }
    if bytes > PART {
        for (&place, to) in places.iter().zip(to.chunks_exact_mut(bytes)) {
            pace.copy_bytes(&from[place as usize * bytes..][..bytes], to)?;
        }
        return Ok(());
    }
    let together = PART / bytes;
    for (places, to) in places.chunks(together).zip(to.chunks_mut(together * bytes)) {
        pace.spend((places.len() + to.len() / 8) as u64)?;
        match bytes {
            1 => each::<1>(from, places, to),
            2 => each::<2>(from, places, to),
            4 => each::<4>(from, places, to),
            8 => each::<8>(from, places, to),
            bytes => {
                for (&place, to) in places.iter().zip(to.chunks_exact_mut(bytes)) {
                    to.copy_from_slice(&from[place as usize * bytes..][..bytes]);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::shape::texts::tests::{run, texts};
    use onnx_tensor::faults::{BadInput, Refusal};

    fn one(compute: &dyn Compute, inputs: &[Tensor]) -> Tensor {
        run(compute, inputs).unwrap().remove(0)
    }

    #[test]
    fn axes_are_put_in_any_order() {
        let value = onnx_tensor::testing::cube(&[[[1u16, 2, 3], [4, 5, 6]]]);
        let turned = one(&Transpose(vec![]), std::slice::from_ref(&value));
        assert_eq!(
            turned,
            onnx_tensor::testing::cube(&[[[1u16], [4]], [[2], [5]], [[3], [6]]])
        );
        let moved = one(&Transpose(vec![1, 0, 2]), std::slice::from_ref(&value));
        assert_eq!(moved, onnx_tensor::testing::cube(&[[[1u16, 2, 3]], [[4, 5, 6]]]));
        let words = one(&Transpose(vec![1, 0]), &[texts(&[2, 2], &["a", "b", "c", "d"])]);
        assert_eq!(words, texts(&[2, 2], &["a", "c", "b", "d"]));
        assert_eq!(
            one(&Transpose(vec![]), &[Tensor::scalar(true)]),
            Tensor::scalar(true)
        );
        let nothing = Tensor::zero::<f16>(&[0, 3]).unwrap();
        assert_eq!(one(&Transpose(vec![]), &[nothing]).shape(), [3, 0]);
        let error = run(&Transpose(vec![1, 0]), &[value]).unwrap_err();
        assert!(error.is::<BadInput>(), "{error}");
    }

    #[test]
    fn places_of_an_axis_are_taken() {
        let table = Tensor::matrix(&[[1.0f64, 2.0, 3.0], [4.0, 5.0, 6.0]]);
        let found = one(&Gather(0), &[table.clone(), Tensor::scalar(-1i64)]);
        assert_eq!(found, Tensor::vector(&[4.0f64, 5.0, 6.0]));
        let found = one(
            &Gather(-1),
            &[table.clone(), Tensor::matrix(&[[2i32, 0], [-3, 1]])],
        );
        let expected = onnx_tensor::testing::cube(&[[[3.0f64, 1.0], [1.0, 2.0]], [[6.0, 4.0], [4.0, 5.0]]]);
        assert_eq!(found, expected);
        let words = texts(&[2, 2], &["a", "b", "c", "d"]);
        let found = one(&Gather(1), &[words, Tensor::vector(&[1i64])]);
        assert_eq!(found, texts(&[2, 1], &["b", "d"]));
        let truths = one(
            &Gather(0),
            &[Tensor::vector(&[true, false]), Tensor::vector(&[1i64, 0, 0])],
        );
        assert_eq!(truths, Tensor::vector(&[false, true, true]));
        let found = one(&Gather(0), &[table.clone(), Tensor::vector::<i64>(&[])]);
        assert_eq!(found.shape(), [0, 3]);
        for index in [2i64, -3] {
            let error = run(&Gather(0), &[table.clone(), Tensor::vector(&[index])]).unwrap_err();
            assert!(error.is::<BadInput>(), "{error}");
        }
        let nothing = Tensor::zero::<f32>(&[0, 3]).unwrap();
        assert!(run(&Gather(0), &[nothing, Tensor::scalar(0i64)]).is_err());
        assert!(
            run(&Gather(2), &[table, Tensor::scalar(0i64)])
                .unwrap_err()
                .is::<Refusal>()
        );
        let long = texts(&[1], &[&"x".repeat(1 << 20)]);
        assert!(
            run(&Gather(0), &[long, Tensor::vector(&vec![0i64; 8192])])
                .unwrap_err()
                .is::<BadInput>()
        );
    }
}
