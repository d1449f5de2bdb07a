//! Values that are repeated along axes before a product. tract leaves the repetition out, as if the other factor had it too: where a column
//! is repeated to the length of `x`, it multiplies `x` by the column as it was.

use std::collections::HashMap;

use tract_hir::{
    internal::*,
    tract_core::ops::{
        array::{MultiBroadcastTo, Tile},
        einsum::EinSum,
    },
};

/// Hides repetitions from tract in graphs with products.
pub(super) fn keep(model: &mut TypedModel) -> TractResult<()> {
    if !model.nodes().iter().any(TypedNode::op_is::<EinSum>) {
        return Ok(());
    }
    for id in 0..model.nodes().len() {
        let node = model.node(id);
        let op: Box<dyn TypedOp> = if let Some(op) = node.op_as::<MultiBroadcastTo>() {
            Box::new(Repeated(op.clone()))
        } else if let Some(op) = node.op_as::<Tile>() {
            Box::new(Repeated(op.clone()))
        } else {
            continue;
        };
        let output = &node.outputs[0].fact;
        // tract removes an operator that repeats nothing.
        if model.outlet_fact(node.inputs[0])?.shape != output.shape {
            model.node_mut(id).op = op;
        }
    }
    Ok(())
}

/// An operator that tract does not know, and so does not simplify.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Repeated<O>(O);

impl<O: TypedOp + Clone + Eq> Op for Repeated<O> {
    fn name(&self) -> StaticName {
        "Repeated".into()
    }

    op_as_typed_op!();
}

impl<O: TypedOp + Clone + Eq> EvalOp for Repeated<O> {
    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        self.0.eval_out_of_plan(inputs)
    }

    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.0.eval(context, inputs)
    }
}

impl<O: TypedOp + Clone + Eq> TypedOp for Repeated<O> {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.0.output_facts(inputs)
    }

    fn set_symbols(
        &self,
        source: &TypedModel,
        node: &TypedNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
        subs: &HashMap<Symbol, TDim>,
    ) -> TractResult<TVec<OutletId>> {
        self.0.set_symbols(source, node, target, mapping, subs)
    }

    as_op!();
}
