//! Operators that stand in for parts of ONNX Runtime's own.

use tract_onnx::{
    model::ParsingContext, pb::NodeProto, tract_core::ops::change_axes::AxisOp, tract_hir::internal::*,
};

/// The last two dimensions the other way round, however many there are.
pub(crate) fn transpose_last(_: &ParsingContext<'_>, _: &NodeProto) -> TractResult<Box<dyn InferenceOp>> {
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
