//! Operators that stand in for parts of ONNX Runtime's own.

use tract_hir::{
    internal::*,
    tract_core::ops::{change_axes::AxisOp, math::mul},
};

use super::attributes::Attributes;
use crate::{building::BuildContext, faults::Limit, lowered::OnnxNode};

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
/// already stays. With `is_query`, all are multiplied with `scale`, or else with the inverse root of how many a head has.
pub(crate) fn split_heads(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    Ok(expand(SplitHeads {
        heads: attributes.int("num_heads", 1),
        scale: (attributes.int("is_query", 0) != 0).then(|| attributes.float("scale", 0.0)),
    }))
}

#[derive(Clone, Debug)]
struct SplitHeads {
    heads: i64,
    scale: Option<f32>,
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
                [_, _, _, _] => shape,
                other => bail!(Limit(format!(
                    "is not supported with inputs of {} dimensions",
                    other.len()
                ))),
            };
            s.equals(&outputs[0].shape, shape)
        })
    }

    fn wire(&self, name: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let shape = model.outlet_fact(inputs[0])?.shape.to_tvec();
        let mut wire: TVec<OutletId> = inputs.into();
        if let [_, _, numbers] = &*shape {
            let width = self.width(numbers)?;
            let split = AxisOp::Reshape(
                2,
                tvec![numbers.clone()],
                tvec![self.heads.to_dim(), width.to_dim()],
            );
            wire = model.wire_node(format!("{name}.split"), split, &wire)?;
            wire = model.wire_node(format!("{name}.heads"), AxisOp::Move(2, 1), &wire)?;
        }
        if let Some(scale) = self.scale {
            let fact = model.outlet_fact(wire[0])?;
            let width = fact.shape[3].to_i64()?;
            let scale = if scale == 0.0 {
                1.0 / (width as f32).sqrt()
            } else {
                scale
            };
            let scale = tensor0(scale).cast_to_dt(fact.datum_type)?.into_owned();
            let scale = scale.into_shape(&[1, 1, 1, 1])?;
            let scale = model.add_const(format!("{name}.scale"), scale)?;
            wire = model.wire_node(format!("{name}.scaled"), mul(), &[wire[0], scale])?;
        }
        Ok(wire)
    }
}
