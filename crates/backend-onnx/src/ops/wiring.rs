//! Operators that become a few of tract's. Their outputs are inferred by wiring those into a graph of their own.

use std::{fmt, sync::Arc};

use tract_hir::internal::*;

use super::kernel::{Fact, known};
use crate::faults::Limit;

/// An operator as a part of a typed graph.
pub(crate) trait Wiring: fmt::Debug + Send + Sync + 'static {
    /// The operator's name.
    fn name(&self) -> &'static str;

    /// The number of outputs.
    fn output_count(&self) -> usize {
        1
    }

    /// The inputs, of those that are given, whose values decide what the operator becomes.
    fn needs_values(&self) -> &[usize] {
        &[]
    }

    /// The outputs, where they can be computed without wiring.
    fn told(&self, _inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        Ok(None)
    }

    /// Adds the part to a graph and says where its outputs are. The values of [`needs_values`](Self::needs_values) are constants there.
    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>>;
}

/// Wraps it for a graph whose types are not known yet.
pub(crate) fn wired(wiring: impl Wiring) -> Box<dyn InferenceOp> {
    Box::new(WiredOp(Arc::new(wiring)))
}

/// What is known of an input of a graph.
pub(crate) fn fact(model: &TypedModel, outlet: OutletId) -> TractResult<Fact> {
    Ok(Fact::of(model.outlet_fact(outlet)?))
}

/// The same of several.
pub(crate) fn facts(model: &TypedModel, outlets: &[OutletId]) -> TractResult<Vec<Fact>> {
    outlets.iter().map(|&outlet| fact(model, outlet)).collect()
}

#[derive(Clone, Debug)]
struct WiredOp(Arc<dyn Wiring>);

impl WiredOp {
    /// A graph of the part alone, for inputs of these facts.
    fn alone(&self, inputs: &[Fact]) -> TractResult<TypedModel> {
        let mut model = TypedModel::default();
        let mut sources = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            let fact = match &input.constant {
                Some(constant) => TypedFact::try_from(constant.clone())?,
                None => input.datum_type.fact(input.shape.iter()),
            };
            sources.push(model.add_source(format!("input-{index}"), fact)?);
        }
        let outputs = self.0.wire("alone", &mut model, &sources)?;
        model.select_output_outlets(&outputs)?;
        Ok(model)
    }

    /// The outputs of the part alone.
    fn found(&self, inputs: &[Fact]) -> TractResult<Vec<InferenceFact>> {
        let model = self.alone(inputs)?;
        let outputs = model.outputs.iter();
        outputs
            .map(|outlet| Ok(InferenceFact::from(model.outlet_fact(*outlet)?)))
            .collect()
    }
}

impl Op for WiredOp {
    fn name(&self) -> StaticName {
        self.0.name().into()
    }

    not_a_typed_op!();
}

impl PartialEq for WiredOp {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for WiredOp {}

impl EvalOp for WiredOp {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let values: Vec<Arc<Tensor>> = inputs
            .iter()
            .map(|input| input.clone().into_arc_tensor())
            .collect();
        SimplePlan::new(self.alone(&Fact::of_values(&values))?)?.run(inputs)
    }
}

impl InferenceOp for WiredOp {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        let facts: Option<Vec<Fact>> = inputs.iter().map(|fact| known(fact)).collect();
        let mut inferred: TVec<InferenceFact> = outputs.into_iter().cloned().collect();
        let is_given = |facts: &Vec<Fact>, place: usize| {
            let fact: Option<&Fact> = facts.get(place);
            fact.is_none_or(|fact| fact.constant.is_some())
        };
        let facts = facts.filter(|facts| self.0.needs_values().iter().all(|&place| is_given(facts, place)));
        if let Some(mut facts) = facts {
            // tract would compute what follows from constants.
            const LARGE: usize = 16;
            for (place, fact) in facts.iter_mut().enumerate() {
                let is_large = fact.constant.as_ref().is_some_and(|value| value.len() > LARGE);
                if is_large && !self.0.needs_values().contains(&place) {
                    fact.constant = None;
                }
            }
            let outputs = match self.0.told(&facts)? {
                Some(outputs) => outputs
                    .into_iter()
                    .map(|fact| InferenceFact::dt_shape(fact.datum_type, fact.shape))
                    .collect(),
                None => self.found(&facts)?,
            };
            for (inferred, found) in inferred.iter_mut().zip(&outputs) {
                inferred.unify_with(found)?;
            }
        }
        let inputs = inputs.into_iter().cloned().collect();
        Ok((inputs, inferred, observed.into_iter().cloned().collect()))
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(self.0.output_count())
    }

    fn to_typed(
        &self,
        _source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        for &place in self.0.needs_values() {
            if let Some(&input) = inputs.get(place)
                && target.outlet_fact(input)?.konst.is_none()
            {
                bail!(Limit(format!(
                    "needs the value of input {place} before the model runs"
                )));
            }
        }
        self.0.wire(&node.name, target, &inputs)
    }

    as_op!();
}
