//! Operators that stand in for parts of ONNX Runtime's own.

use std::ops::RangeInclusive;

use tract_hir::{
    internal::*,
    tract_core::ops::{
        array::Slice,
        change_axes::AxisOp,
        math::{add, mul},
    },
};

use super::attributes::Attributes;
use crate::{
    building::BuildContext,
    faults::{Limit, Unsupported},
    lowered::OnnxNode,
};

/// The last two dimensions the other way round, however many there are.
pub(crate) fn transpose_last(_: &BuildContext, _: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    Ok(expand(TransposeLast))
}

#[derive(Clone, Debug)]
struct TransposeLast;

impl Expansion for TransposeLast {
    fn name(&self) -> StaticName {
        "TransposeLast".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.given(&inputs[0].shape, move |s, mut shape| {
            let rank = shape.len();
            ensure!(rank >= 2, "a matrix of {rank} dimensions");
            shape.swap(rank - 2, rank - 1);
            s.equals(&outputs[0].shape, shape)
        })
    }

    fn wire(&self, name: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let rank = model.outlet_fact(inputs[0])?.rank();
        ensure!(rank >= 2, "a matrix of {rank} dimensions");
        model.wire_node(name, AxisOp::Move(rank - 2, rank - 1), inputs)
    }
}

/// From rows of numbers to as many heads: `batch`, rows, numbers becomes `batch`, heads, rows, numbers of a head. What has heads
/// already stays. Part 0, queries, is multiplied with `scale`, or else with the inverse root of how many numbers a head has.
///
/// A second input is a bias of queries, keys and values beside each other, of which rows get their part. Keys and values that have heads
/// already get none, as in ONNX Runtime.
pub(crate) fn split_heads(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let part = match attributes.int("part", 0) {
        0 => Part::Queries {
            scale: attributes.float("scale", 0.0),
        },
        1 => Part::Keys,
        _ => Part::Values,
    };
    Ok(expand(SplitHeads {
        heads: attributes.int("num_heads", 1),
        part,
    }))
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Queries { scale: f32 },
    Keys,
    Values,
}

#[derive(Clone, Debug)]
struct SplitHeads {
    heads: i64,
    part: Part,
}

impl SplitHeads {
    /// How many numbers a head has, where they are not apart yet.
    fn width(&self, dim: &TDim) -> TractResult<i64> {
        let width = dim
            .to_i64()
            .ok()
            .filter(|dim| self.heads > 0 && dim % self.heads == 0);
        let width = width.map(|dim| dim / self.heads);
        width.ok_or_else(|| Limit("needs rows whose length is known and fits its heads".to_owned()).into())
    }

    /// The part of a bias that is for rows of so many numbers.
    fn part_of_bias(&self, bias: &TypedFact, numbers: &TDim) -> TractResult<Slice> {
        ensure!(
            bias.rank() == 1,
            "the bias has {} dimensions, expected 1",
            bias.rank()
        );
        let (Ok(length), Ok(numbers)) = (bias.shape[0].to_usize(), numbers.to_usize()) else {
            bail!(Limit("needs a bias and rows whose lengths are known".to_owned()));
        };
        let start = match self.part {
            Part::Queries { .. } => Some(0),
            Part::Keys => Some(numbers),
            Part::Values => length.checked_sub(numbers),
        };
        let end = start.and_then(|start| start.checked_add(numbers));
        match (start, end) {
            (Some(start), Some(end)) if end <= length => Ok(Slice::new(0, start, end)),
            _ => bail!("the bias has {length} numbers, too few for rows of {numbers}"),
        }
    }
}

impl Expansion for SplitHeads {
    fn name(&self) -> StaticName {
        "SplitHeads".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.given(&inputs[0].shape, move |s, shape| {
            let shape = match &*shape {
                [batch, rows, numbers] => tvec![
                    batch.clone(),
                    self.heads.to_dim(),
                    rows.clone(),
                    self.width(numbers)?.to_dim()
                ],
                [_, heads, _, _] => {
                    ensure!(
                        heads.to_i64().is_ok_and(|heads| heads == self.heads) || heads.to_i64().is_err(),
                        "{heads} heads where num_heads is {}",
                        self.heads
                    );
                    shape
                }
                other => bail!(Unsupported::Here(format!(
                    "is not supported with inputs of {} dimensions",
                    other.len()
                ))),
            };
            s.equals(&outputs[0].shape, shape)
        })
    }

    fn wire(&self, name: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let shape = model.outlet_fact(inputs[0])?.shape.to_tvec();
        let mut wire = inputs[0];
        if let [_, _, numbers] = &*shape {
            let width = self.width(numbers)?;
            if let Some(&bias) = inputs.get(1) {
                let part = self.part_of_bias(model.outlet_fact(bias)?, numbers)?;
                let bias = model.wire_node(format!("{name}.part"), part, &[bias])?[0];
                let bias = model.wire_node(format!("{name}.row"), AxisOp::Add(0), &[bias])?[0];
                let bias = model.wire_node(format!("{name}.rows"), AxisOp::Add(0), &[bias])?[0];
                wire = model.wire_node(format!("{name}.biased"), add(), &[wire, bias])?[0];
            }
            let split = AxisOp::Reshape(
                2,
                tvec![numbers.clone()],
                tvec![self.heads.to_dim(), width.to_dim()],
            );
            wire = model.wire_node(format!("{name}.split"), split, &[wire])?[0];
            wire = model.wire_node(format!("{name}.heads"), AxisOp::Move(2, 1), &[wire])?[0];
        }
        if let Part::Queries { scale } = self.part {
            let fact = model.outlet_fact(wire)?;
            let width = fact.shape[3].to_i64()?;
            let scale = if scale == 0.0 {
                1.0 / (width as f32).sqrt()
            } else {
                scale
            };
            let scale = tensor0(scale).cast_to_dt(fact.datum_type)?.into_owned();
            let scale = scale.into_shape(&[1, 1, 1, 1])?;
            let scale = model.add_const(format!("{name}.scale"), scale)?;
            wire = model.wire_node(format!("{name}.scaled"), mul(), &[wire, scale])?[0];
        }
        Ok(tvec![wire])
    }
}

/// Passes a value on that has from `least` to `most` dimensions, and refuses others by the name of the `input` that they are.
pub(crate) fn ranked(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let bound = |name: &str| usize::try_from(attributes.int(name, 0)).unwrap_or(usize::MAX);
    Ok(expand(Ranked {
        input: attributes.text("input", "").to_owned(),
        ranks: bound("least")..=bound("most"),
    }))
}

#[derive(Clone, Debug)]
struct Ranked {
    input: String,
    ranks: RangeInclusive<usize>,
}

impl Expansion for Ranked {
    fn name(&self) -> StaticName {
        "Ranked".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].shape, &outputs[0].shape)?;
        s.given(&inputs[0].rank, move |_, rank| {
            let is_in_range = usize::try_from(rank).is_ok_and(|rank| self.ranks.contains(&rank));
            if !is_in_range {
                let (least, most) = (self.ranks.start(), self.ranks.end());
                let expected = match (least, most) {
                    (least, &usize::MAX) => format!("{least} or more"),
                    (least, most) if least == most => least.to_string(),
                    (least, most) => format!("{least} to {most}"),
                };
                bail!(Unsupported::Here(format!(
                    "the input {} has {rank} dimensions, only {expected} are supported",
                    self.input
                )));
            }
            Ok(())
        })
    }

    fn wire(&self, _: &str, _: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        Ok(inputs.into())
    }
}

/// Passes a sum on that has the shape of its first term, and refuses one that the other term made larger.
pub(crate) fn same_shape(_: &BuildContext, _: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    Ok(expand(SameShape))
}

#[derive(Clone, Debug)]
struct SameShape;

impl Expansion for SameShape {
    fn name(&self) -> StaticName {
        "SameShape".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].shape, &outputs[0].shape)?;
        s.given_2(&inputs[0].shape, &inputs[1].shape, |_, sum, input| {
            let is_known = |dim: &TDim| dim.to_i64().is_ok();
            let mut dims = sum.iter().zip(&input);
            let is_same = sum.len() == input.len()
                && dims.all(|(sum, input)| sum == input || !is_known(sum) || !is_known(input));
            if !is_same {
                bail!(Limit(format!(
                    "needs a skip that is not larger than its input, which has the shape {input:?} where the sum has {sum:?}"
                )));
            }
            Ok(())
        })
    }

    fn wire(&self, _: &str, _: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        Ok(tvec![inputs[0]])
    }
}
