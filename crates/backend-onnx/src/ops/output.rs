use tract_hir::internal::*;

use super::kernel::{known, numbers};

/// Stands before each output of a model: gives dimensions that tract carries symbolically as numbers, and everything
/// else unchanged, in the memory where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output;

impl Op for Output {
    fn name(&self) -> StaticName {
        "Output".into()
    }

    op_as_typed_op!();
}

impl EvalOp for Output {
    op_out_of_plan!();

    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        inputs
            .into_iter()
            .map(|input| Ok(numbers(input, context.symbols)?.into_tvalue()))
            .collect()
    }
}

impl TypedOp for Output {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(inputs
            .iter()
            .map(|fact| plain(fact.datum_type).fact(fact.shape.clone()))
            .collect())
    }

    as_op!();
}

impl InferenceOp for Output {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        let mut inferred: TVec<InferenceFact> = outputs.into_iter().cloned().collect();
        for (inferred, input) in inferred.iter_mut().zip(&inputs) {
            if let Some(fact) = known(input) {
                inferred.unify_with(&InferenceFact::dt_shape(plain(fact.datum_type), fact.shape))?;
            }
        }
        let inputs = inputs.into_iter().cloned().collect();
        Ok((inputs, inferred, observed.into_iter().cloned().collect()))
    }

    fn to_typed(
        &self,
        _source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        target.wire_node(&*node.name, self.clone(), &[mapping[&node.inputs[0]]])
    }

    as_op!();
}

fn plain(datum_type: DatumType) -> DatumType {
    match datum_type {
        DatumType::TDim => DatumType::I64,
        other => other,
    }
}
