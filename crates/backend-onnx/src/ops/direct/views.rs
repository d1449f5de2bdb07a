//! The same elements under other dimensions.

use std::sync::Arc;

use tract_hir::internal::*;

use super::compute::{Compute, integers, reshaped};
use crate::{
    faults::ensure_input,
    ops::{axis::axis, kernel::Fact},
};

#[derive(Debug)]
pub(super) struct Reshape {
    pub(super) allows_zero: bool,
}

impl Compute for Reshape {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let [input, wanted] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let wanted = integers(wanted)?;
        let (from, count) = (input.shape(), input.len());
        let mut shape: TVec<usize> = tvec![];
        let mut open = None;
        for (at, &size) in wanted.iter().enumerate() {
            shape.push(match size {
                0 if !self.allows_zero => {
                    ensure_input!(at < from.len(), "dimension {at} of {} is to be kept", from.len());
                    from[at]
                }
                -1 => {
                    ensure_input!(
                        open.is_none(),
                        "two dimensions are to follow from the others: {wanted:?}"
                    );
                    open = Some(at);
                    1
                }
                size => {
                    let size = usize::try_from(size).ok();
                    ensure_input!(size.is_some(), "dimensions {wanted:?} are wanted");
                    size.unwrap_or(0)
                }
            });
        }
        let known = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
        ensure_input!(known.is_some(), "dimensions {wanted:?} are wanted");
        let known = known.unwrap_or(0);
        if let Some(open) = open {
            ensure_input!(
                known > 0 && count.is_multiple_of(known),
                "{count} elements do not fill dimensions {wanted:?}"
            );
            shape[open] = count / known.max(1);
        } else {
            ensure_input!(
                known == count,
                "{count} elements, shaped {from:?}, do not fill dimensions {wanted:?}"
            );
        }
        Ok(Some(tvec![reshaped(inputs.swap_remove(0), &shape)?]))
    }
}

#[derive(Debug)]
pub(super) struct Flatten(pub(super) i64);

impl Compute for Flatten {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let shape = inputs[0].shape();
        let rank = shape.len() as i64;
        ensure_input!(
            (-rank..=rank).contains(&self.0),
            "axis {} of {rank} dimensions",
            self.0
        );
        let axis = if self.0 < 0 { self.0 + rank } else { self.0 } as usize;
        let shape = [shape[..axis].iter().product(), shape[axis..].iter().product()];
        Ok(Some(tvec![reshaped(inputs.swap_remove(0), &shape)?]))
    }
}

/// The axes are an attribute before operator set 13, an input since.
fn axes(given: &[i64], inputs: &[Arc<Tensor>]) -> TractResult<Vec<i64>> {
    match inputs.get(1) {
        Some(axes) => integers(axes),
        None => Ok(given.to_vec()),
    }
}

#[derive(Debug)]
pub(super) struct Unsqueeze(pub(super) Vec<i64>);

impl Compute for Unsqueeze {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let added = axes(&self.0, inputs)?;
        let rank = inputs[0].rank() + added.len();
        let mut places = vec![false; rank];
        for &place in &added {
            let place = axis(place, rank)?;
            ensure_input!(!places[place], "axes {added:?} name one twice");
            places[place] = true;
        }
        let mut dims = inputs[0].shape().iter();
        let shape: TVec<usize> = places
            .iter()
            .map(|&is_new| {
                if is_new {
                    1
                } else {
                    dims.next().copied().unwrap_or(1)
                }
            })
            .collect();
        Ok(Some(tvec![reshaped(inputs.swap_remove(0), &shape)?]))
    }
}

#[derive(Debug)]
pub(super) struct Squeeze(pub(super) Vec<i64>);

impl Compute for Squeeze {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let dropped = axes(&self.0, inputs)?;
        let shape = inputs[0].shape();
        let mut is_dropped: Vec<bool> = match dropped.is_empty() {
            true => shape.iter().map(|&size| size == 1).collect(),
            false => vec![false; shape.len()],
        };
        for &place in &dropped {
            let place = axis(place, shape.len())?;
            ensure_input!(
                shape[place] == 1,
                "axis {place} of {shape:?} has more than one element"
            );
            is_dropped[place] = true;
        }
        let kept = shape
            .iter()
            .zip(&is_dropped)
            .filter(|(_, is_dropped)| !**is_dropped);
        let shape: TVec<usize> = kept.map(|(&size, _)| size).collect();
        Ok(Some(tvec![reshaped(inputs.swap_remove(0), &shape)?]))
    }
}

#[derive(Debug)]
pub(super) struct Shape {
    pub(super) start: i64,
    pub(super) end: Option<i64>,
}

impl Shape {
    fn part<'d, D>(&self, shape: &'d [D]) -> &'d [D] {
        let rank = shape.len() as i64;
        let place = |at: i64| {
            let at = if at < 0 { at.saturating_add(rank) } else { at };
            at.clamp(0, rank) as usize
        };
        let (start, end) = (place(self.start), place(self.end.unwrap_or(rank)));
        shape.get(start..end).unwrap_or(&[])
    }
}

impl Compute for Shape {
    fn outputs(&self, inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        let dims = self.part(&inputs[0].shape).iter();
        let dims: Vec<Option<i64>> = dims.map(|dim| dim.to_i64().ok()).collect();
        let mut output = Fact::new(DatumType::I64, [dims.len().to_dim()]);
        let known: Option<Vec<i64>> = dims.iter().copied().collect();
        match known {
            Some(known) => output.constant = Some(Arc::new(tensor1(&known))),
            None => {
                let numbers = dims.iter().map(|dim| dim.map_or(f64::NAN, |dim| dim as f64));
                output.sizes = Some(Arc::new(tensor1(&numbers.collect::<Vec<f64>>())));
            }
        }
        Ok(Some(vec![output]))
    }

    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let dims = self.part(inputs[0].shape()).iter().map(|&dim| dim as i64);
        Ok(Some(tvec![Arc::new(tensor1(&dims.collect::<Vec<i64>>()))]))
    }
}
