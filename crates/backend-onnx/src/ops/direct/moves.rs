//! The same elements at other places.

use std::sync::Arc;

use tract_hir::internal::*;

use super::compute::{Compute, integers};
use crate::{
    cancelling::Pace,
    faults::ensure_input,
    input_check::within,
    ops::{axis::axis, moved_axis::transpose},
    size,
};

/// A tensor of zeros to write over, once there is memory for it.
pub(super) fn empty(datum_type: DatumType, shape: &[usize]) -> TractResult<Tensor> {
    size::admit_shape(datum_type, shape)?;
    Tensor::zero_dt(datum_type, shape)
}

fn product(dims: &[usize]) -> usize {
    dims.iter().product()
}

#[derive(Debug)]
pub(super) struct Transpose(pub(super) Vec<i64>);

impl Compute for Transpose {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let input = &inputs[0];
        let rank = input.rank();
        if !input.datum_type().is_copy() {
            return Ok(None);
        }
        let order: TVec<usize> = match self.0.is_empty() {
            true => (0..rank).rev().collect(),
            false => self.0.iter().map(|&axis| axis as usize).collect(),
        };
        ensure_input!(
            order.len() == rank && order.iter().all(|&axis| axis < rank),
            "an order of {} axes for {rank} dimensions",
            order.len()
        );
        // Axes that stay together are one.
        let shape = input.shape();
        let mut groups: TVec<(usize, usize)> = tvec![];
        for &axis in &order {
            match groups.last_mut() {
                Some((first, count)) if *first + *count == axis => *count += 1,
                _ => groups.push((axis, 1)),
            }
        }
        let wanted: TVec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let mut made = empty(input.datum_type(), &wanted)?;
        if made.len() == 0 {
            return Ok(Some(tvec![Arc::new(made)]));
        }
        let size = input.datum_type().size_of();
        let mut strides: TVec<usize> = tvec![1; rank];
        for axis in (0..rank.saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        let mut axes: Vec<Axis> = groups
            .iter()
            .map(|&(first, count)| Axis {
                count: product(&shape[first..first + count]),
                step: strides[first + count - 1] * size,
            })
            .filter(|axis| axis.count > 1)
            .collect();
        // What stays at the end is moved as one.
        let bytes = match axes.pop_if(|axis| axis.step == size) {
            Some(last) => last.count * size,
            None => size,
        };
        moved(input.as_bytes(), made.as_bytes_mut(), &axes, bytes)?;
        Ok(Some(tvec![Arc::new(made)]))
    }
}

/// An axis of a result, and how far apart in bytes the elements along it are where they come from.
#[derive(Clone, Copy, Debug)]
struct Axis {
    count: usize,
    step: usize,
}

/// Writes blocks of `bytes`, the outermost axis first.
fn moved(from: &[u8], to: &mut [u8], axes: &[Axis], bytes: usize) -> TractResult<()> {
    let (outer, inner) = match axes {
        // A plain matrix, turned.
        [outer @ .., columns, rows]
            if columns.step == bytes
                && rows.step == columns.count * bytes
                && matches!(bytes, 1 | 2 | 4 | 8 | 16) =>
        {
            (outer, &axes[axes.len() - 2..])
        }
        [outer @ .., _] => (outer, &axes[axes.len() - 1..]),
        [] => (&[][..], &[][..]),
    };
    let inner_bytes = inner.iter().map(|axis| axis.count).product::<usize>() * bytes;
    let mut pace = Pace::default();
    let mut place: TVec<usize> = tvec![0; outer.len()];
    for to in to.chunks_exact_mut(inner_bytes.max(1)) {
        pace.spend(inner_bytes as u64 / 8 + 1)?;
        let first: usize = place.iter().zip(outer).map(|(at, axis)| at * axis.step).sum();
        let from = &from[first..];
        match inner {
            [columns, rows] => {
                let (rows, columns) = (rows.count, columns.count);
                let from = &from[..rows * columns * bytes];
                match bytes {
                    1 => transpose::<1>(from, to, rows, columns),
                    2 => transpose::<2>(from, to, rows, columns),
                    4 => transpose::<4>(from, to, rows, columns),
                    8 => transpose::<8>(from, to, rows, columns),
                    _ => transpose::<16>(from, to, rows, columns),
                }
            }
            [axis] => line(from, to, axis.step, bytes),
            _ => to.copy_from_slice(&from[..to.len()]),
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

/// Copies blocks that stand `step` bytes apart.
fn line(from: &[u8], to: &mut [u8], step: usize, bytes: usize) {
    fn each<const BYTES: usize>(from: &[u8], to: &mut [u8], step: usize) {
        for (at, to) in to.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            if let Some(block) = from.get(at * step..).and_then(|from| from.first_chunk::<BYTES>()) {
                *to = *block;
            }
        }
    }
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

#[derive(Debug)]
pub(super) struct Concat(pub(super) i64);

impl Compute for Concat {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let first = &inputs[0];
        let datum_type = first.datum_type();
        if !datum_type.is_copy() {
            return Ok(None);
        }
        let axis = axis(self.0, first.rank())?;
        let mut shape: TVec<usize> = first.shape().into();
        for input in &inputs[1..] {
            let other = input.shape();
            let fits = other.len() == shape.len()
                && (0..shape.len()).all(|at| at == axis || other[at] == shape[at])
                && input.datum_type() == datum_type;
            ensure_input!(fits, "{:?} and {other:?} along axis {axis}", first.shape());
            shape[axis] += other[axis];
        }
        let mut made = empty(datum_type, &shape)?;
        if made.len() == 0 {
            return Ok(Some(tvec![Arc::new(made)]));
        }
        let inner = product(&shape[axis + 1..]) * datum_type.size_of();
        let row = shape[axis] * inner;
        let mut begin = 0;
        for input in inputs.iter() {
            let width = input.shape()[axis] * inner;
            if width == 0 {
                continue;
            }
            let rows = made.as_bytes_mut().chunks_exact_mut(row);
            for (to, from) in rows.zip(input.as_bytes().chunks_exact(width)) {
                to[begin..begin + width].copy_from_slice(from);
            }
            begin += width;
        }
        Ok(Some(tvec![Arc::new(made)]))
    }
}

#[derive(Debug)]
pub(super) struct Gather(pub(super) i64);

impl Compute for Gather {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let [from, places] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if !from.datum_type().is_copy() {
            return Ok(None);
        }
        let axis = axis(self.0, from.rank())?;
        let indices = integers(places)?;
        let shape = from.shape();
        let size = shape[axis];
        let mut wanted: TVec<usize> = shape[..axis].into();
        wanted.extend(places.shape().iter().copied());
        wanted.extend(shape[axis + 1..].iter().copied());
        let mut made = empty(from.datum_type(), &wanted)?;
        let mut offsets = Vec::with_capacity(indices.len());
        for index in indices {
            offsets.push(within(index, size)? as usize);
        }
        let inner = product(&shape[axis + 1..]) * from.datum_type().size_of();
        if made.len() == 0 {
            return Ok(Some(tvec![Arc::new(made)]));
        }
        let mut pace = Pace::default();
        let blocks = from.as_bytes().chunks_exact(size * inner);
        for (from, to) in blocks.zip(made.as_bytes_mut().chunks_exact_mut(offsets.len() * inner)) {
            pace.spend(to.len() as u64 / 8 + 1)?;
            for (&place, to) in offsets.iter().zip(to.chunks_exact_mut(inner)) {
                to.copy_from_slice(&from[place * inner..][..inner]);
            }
        }
        Ok(Some(tvec![Arc::new(made)]))
    }
}
