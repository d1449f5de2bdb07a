//! `ReverseSequence` and `Compress`: what depends on lengths or choices that come with a request.

use std::sync::{Arc, OnceLock};

use tract_onnx::{model::ParsingContext, pb::NodeProto, tract_hir::internal::*};

use super::{
    attributes::Attributes,
    elements::elements,
    kernel::{Fact, Kernel, kernel},
    picked::{Places, picked_of},
};
use crate::faults::BadInput;

/// `ReverseSequence`: the first elements of each row, as many as its length says, the other way round.
pub(crate) fn reverse_sequence(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let (time, batch) = (attributes.int("time_axis", 0), attributes.int("batch_axis", 1));
    ensure!(
        matches!((time, batch), (0, 1) | (1, 0)),
        "the time and the batch are not the first two axes"
    );
    Ok(kernel(ReverseSequence {
        batch_first: batch == 0,
    }))
}

#[derive(Debug)]
struct ReverseSequence {
    batch_first: bool,
}

impl Kernel for ReverseSequence {
    fn name(&self) -> &'static str {
        "ReverseSequence"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [input, lengths] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(
            input.rank() >= 2 && lengths.rank() == 1,
            "expected two dimensions and a list of lengths"
        );
        Ok(vec![input.with(input.datum_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let shape = inputs[0].shape();
        let (steps, batch) = match self.batch_first {
            true => (shape[1], shape[0]),
            false => (shape[0], shape[1]),
        };
        let lengths = inputs[1].cast_to::<i64>()?;
        let lengths = elements::<i64>(&lengths)?;
        if lengths.len() != batch {
            bail!(BadInput(format!(
                "{} lengths for {batch} sequences",
                lengths.len()
            )));
        }
        if let Some(length) = lengths
            .iter()
            .find(|&&length| length < 0 || length > steps as i64)
        {
            bail!(BadInput(format!(
                "a length of {length} of sequences that are {steps} long"
            )));
        }
        let place = |row: usize, step: usize| match self.batch_first {
            true => row * steps + step,
            false => step * batch + row,
        };
        if inputs[0].len() == 0 {
            return Ok(tvec![(*inputs[0]).clone()]);
        }
        let mut from = vec![0; steps * batch];
        for (row, &length) in lengths.iter().enumerate() {
            let length = length as usize;
            for step in 0..steps {
                let source = if step < length { length - 1 - step } else { step };
                from[place(row, step)] = place(row, source);
            }
        }
        let flat: TVec<usize> = std::iter::once(steps * batch)
            .chain(shape[2..].iter().copied())
            .collect();
        let reversed = picked_of(&inputs[0], &flat, 0, Places::List(&from))?;
        Ok(tvec![reversed.into_shape(shape)?])
    }
}

/// `Compress`: the elements of an axis, or of all, for which a condition holds.
pub(crate) fn compress(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    Ok(kernel(Compress {
        axis: attributes.has("axis").then(|| attributes.int("axis", 0)),
        scope: context.template.symbols.clone(),
        count: OnceLock::new(),
    }))
}

#[derive(Debug)]
struct Compress {
    /// `None` for all elements in order.
    axis: Option<i64>,
    scope: SymbolScope,
    /// What the number of elements is called.
    count: OnceLock<Symbol>,
}

impl Compress {
    fn axis(&self, rank: usize) -> TractResult<Option<usize>> {
        let Some(axis) = self.axis else {
            return Ok(None);
        };
        let from_start = if axis < 0 { axis + rank as i64 } else { axis };
        let axis = usize::try_from(from_start).ok().filter(|&axis| axis < rank);
        Ok(Some(
            axis.with_context(|| format!("axis {from_start} of rank {rank}"))?,
        ))
    }
}

impl Kernel for Compress {
    fn name(&self) -> &'static str {
        "Compress"
    }

    fn names_sizes(&self) -> bool {
        true
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [input, condition] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(condition.rank() == 1, "expected a list of conditions");
        let count = self
            .count
            .get_or_init(|| self.scope.new_with_prefix("compressed"));
        let shape = match self.axis(input.rank())? {
            None => tvec![count.to_dim()],
            Some(axis) => {
                let mut shape = input.shape.clone();
                shape[axis] = count.to_dim();
                shape
            }
        };
        Ok(vec![Fact::new(input.datum_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let input = &inputs[0];
        let count = [input.len()];
        let (shape, axis) = match self.axis(input.rank())? {
            Some(axis) => (input.shape(), axis),
            None => (&count[..], 0),
        };
        let wanted = elements::<bool>(&inputs[1])?;
        let last = wanted.iter().rposition(|wanted| *wanted);
        if let Some(place) = last.filter(|&place| place >= shape[axis]) {
            bail!(BadInput(format!(
                "condition {place} is true in a dimension of {}",
                shape[axis]
            )));
        }
        // A list is quicker where many blocks are picked from, and then it is smaller than they are.
        if shape[..axis].iter().product::<usize>() < 2 {
            return Ok(tvec![picked_of(input, shape, axis, Places::Where(wanted))?]);
        }
        let places = wanted.iter().enumerate().filter(|(_, wanted)| **wanted);
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        Ok(tvec![picked_of(input, shape, axis, Places::List(&places))?])
    }
}
