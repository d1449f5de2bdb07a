use std::sync::Arc;

use tract_hir::internal::*;

use super::{
    attributes::Attributes,
    kernel::{Fact, known},
    numbers::{self, Integers},
    types::Types,
};
use crate::{
    cancelling,
    faults::{Limit, Unsupported},
    lowered::OnnxNode,
    size,
};

/// A condition on a node and its inputs, those that are given: says why they are refused.
pub(crate) type Check = fn(Attributes<'_>, &[Fact]) -> Result<(), Limit>;

/// Whether a node with these inputs, those that are given, is computed by what is there instead of tract's.
pub(crate) type Choice = fn(Attributes<'_>, &[Fact]) -> bool;

/// Rules for an operator beyond those that it checks itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    /// The element types that are computed right.
    pub(crate) types: Types,
    /// Which input has that type.
    pub(crate) typed_input: usize,
    /// What is computed in higher precision and rounded at the end, where tract's own is not accurate enough.
    pub(crate) widening: Widening,
}

/// Which floats are computed as which others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Widening {
    None,
    /// FP16 in FP32.
    Half,
    /// BOOL in UINT8.
    Truth,
}

impl Widening {
    /// The type that a type is computed in, if it is another.
    fn of(self, datum_type: DatumType) -> Option<DatumType> {
        match (self, datum_type) {
            (Self::Half, DatumType::F16) => Some(DatumType::F32),
            (Self::Truth, DatumType::Bool) => Some(DatumType::U8),
            _ => None,
        }
    }
}

/// An operator behind a guard: one of tract's or one of ours.
#[derive(Clone, Debug)]
pub(crate) struct Guarded {
    pub(crate) inner: Box<dyn InferenceOp>,
    pub(crate) guard: Guard,
    pub(crate) check: Option<(Check, Arc<OnnxNode>)>,
    /// What computes the node instead, for some types.
    pub(crate) instead: Option<(Types, Box<dyn InferenceOp>)>,
    /// Which other nodes that also computes. It gives the same types and shapes.
    pub(crate) instead_if: Option<(Choice, Arc<OnnxNode>)>,
    /// The inputs that are single numbers.
    pub(crate) scalars: Vec<usize>,
    /// What it does with integers, and the inputs that hold sizes, counted among those that are given.
    pub(crate) integers: (Integers, Vec<usize>),
}

impl Guarded {
    /// Looks at the numbers of constants before anything is computed with them.
    fn admit_numbers(&self, constants: &[Option<&Tensor>], has_sizes: bool) -> TractResult<()> {
        let (integers, sizing) = &self.integers;
        numbers::admit(*integers, sizing, constants, has_sizes)
    }

    /// The type that inputs of this one are computed in, if it is another.
    pub(crate) fn wide(&self, datum_type: DatumType) -> Option<DatumType> {
        self.guard.widening.of(datum_type)
    }

    /// What computes a node with these inputs.
    pub(crate) fn chosen(&self, inputs: &[Fact]) -> &dyn InferenceOp {
        self.instead(inputs).unwrap_or(&*self.inner)
    }

    /// Whether a node with these inputs is computed, and what it would not be computed for.
    pub(crate) fn admit(&self, inputs: &[Fact]) -> TractResult<()> {
        let constants: TVec<Option<&Tensor>> = inputs.iter().map(|fact| fact.constant.as_deref()).collect();
        let has_sizes = inputs.iter().any(|fact| fact.datum_type == DatumType::TDim);
        self.admit_numbers(&constants, has_sizes)?;
        let guard = &self.guard;
        for &place in &self.scalars {
            has_number(inputs.get(place).map_or(&[][..], |fact| &*fact.shape))?;
        }
        self.admit_type(inputs.get(guard.typed_input).map(|input| input.datum_type))?;
        match &self.check {
            Some((check, node)) => Ok(check(Attributes(node), inputs)?),
            None => Ok(()),
        }
    }

    /// Whether a node is computed for values of these types.
    pub(crate) fn admit_types(&self, inputs: &[Arc<Tensor>]) -> TractResult<()> {
        self.admit_type(inputs.get(self.guard.typed_input).map(|input| input.datum_type()))
    }

    fn admit_type(&self, found: Option<DatumType>) -> TractResult<()> {
        let Some(found) = found.filter(|&found| !self.guard.types.contains(found)) else {
            return Ok(());
        };
        let name = crate::dtype::from_tract(found).map_or("this type", |datatype| datatype.name());
        Err(Unsupported::Anywhere(format!("is not supported for {name}")).into())
    }

    /// What computes a node with these inputs.
    fn instead(&self, inputs: &[Fact]) -> Option<&dyn InferenceOp> {
        let types: TVec<DatumType> = inputs.iter().map(|fact| fact.datum_type).collect();
        let is_chosen = |(choice, node): &(Choice, Arc<OnnxNode>)| choice(Attributes(node), inputs);
        let is_for = self.is_for(&types) || self.instead_if.as_ref().is_some_and(is_chosen);
        let (_, op) = self.instead.as_ref().filter(|_| is_for)?;
        Some(&**op)
    }

    fn is_for(&self, types: &[DatumType]) -> bool {
        let is_in = |(set, _): &(Types, _)| {
            types
                .get(self.guard.typed_input)
                .is_some_and(|&datum_type| set.contains(datum_type))
        };
        self.instead.as_ref().is_some_and(is_in)
    }
}

/// Refuses what has no elements where a number is read.
fn has_number(shape: &[TDim]) -> Result<(), Limit> {
    match shape.iter().any(|dim| *dim == TDim::Val(0)) {
        true => Err(Limit(
            "has an input without elements where a single number is expected".to_owned(),
        )),
        false => Ok(()),
    }
}

impl Guarded {
    /// Translates the operator so that it computes in higher precision.
    fn widened(
        &self,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        use tract_core::ops::cast::cast;
        let widening = self.guard.widening;
        let mut wide = mapping.clone();
        let mut facts = Vec::with_capacity(node.inputs.len());
        for (index, input) in node.inputs.iter().enumerate() {
            let fact = target.outlet_fact(mapping[input])?.clone();
            let wider = widening.of(fact.datum_type);
            facts.push(Fact {
                datum_type: wider.unwrap_or(fact.datum_type),
                ..Fact::of(&fact)
            });
            let Some(wider) = wider else {
                continue;
            };
            let name = format!("{}.wide-{index}", node.name);
            let outlet = match fact.konst {
                // Operators that need constants must see them as such.
                Some(constant) => target.add_const(name, constant.cast_to_dt(wider)?.into_owned())?,
                None => target.wire_node(name, cast(wider), &[mapping[input]])?[0],
            };
            wide.insert(*input, outlet);
        }
        let mut node = node.clone();
        let mut narrow = Vec::with_capacity(node.outputs.len());
        for output in &mut node.outputs {
            let datum_type = output.fact.datum_type.concretize();
            let wider = datum_type.and_then(|datum_type| widening.of(datum_type));
            if let Some(wider) = wider {
                output.fact.datum_type = wider.into();
            }
            narrow.push(datum_type.filter(|_| wider.is_some()));
        }
        let name = node.name.clone();
        node.name.push_str(".widened");
        let op = self.instead(&facts).unwrap_or(&*self.inner);
        let mut outputs = op.to_typed(source, &node, target, &wide)?;
        for (index, (output, narrow)) in outputs.iter_mut().zip(narrow).enumerate() {
            if let Some(narrow) = narrow {
                *output = target.wire_node(format!("{name}.narrow-{index}"), cast(narrow), &[*output])?[0];
            }
        }
        Ok(outputs)
    }
}

impl Op for Guarded {
    fn name(&self) -> StaticName {
        self.inner.name()
    }

    fn mints_runtime_symbols(&self) -> bool {
        self.inner.mints_runtime_symbols()
    }

    not_a_typed_op!();
}

impl PartialEq for Guarded {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Eq for Guarded {}

impl EvalOp for Guarded {
    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.inner.eval(context, inputs)
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        {
            let constants: TVec<Option<&Tensor>> = inputs.iter().map(|input| Some(&**input)).collect();
            self.admit_numbers(&constants, false)?;
        }
        let types: Vec<DatumType> = inputs.iter().map(|input| input.datum_type()).collect();
        let values: Vec<Arc<Tensor>> = inputs
            .iter()
            .map(|input| input.clone().into_arc_tensor())
            .collect();
        if let Some(instead) = self.instead(&Fact::of_values(&values)) {
            return instead.eval_out_of_plan(inputs);
        }
        // What is constant is computed by the plan, in high precision, rather than here.
        if types
            .iter()
            .any(|&datum_type| self.guard.widening.of(datum_type).is_some())
        {
            return Ok(None);
        }
        self.inner.eval_out_of_plan(inputs)
    }

    fn state(&self, context: &EvalContext<'_>) -> TractResult<Option<Box<dyn OpState>>> {
        self.inner.state(context)
    }
}

impl InferenceOp for Guarded {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        cancelling::check_all()?;
        let constants: TVec<Option<Arc<Tensor>>> =
            inputs.iter().map(|fact| fact.value.concretize()).collect();
        let constants: TVec<Option<&Tensor>> = constants.iter().map(Option::as_deref).collect();
        let is_size = |fact: &&InferenceFact| fact.datum_type.concretize() == Some(DatumType::TDim);
        self.admit_numbers(&constants, inputs.iter().copied().any(|fact| is_size(&fact)))?;
        for &place in &self.scalars {
            let shape = inputs.get(place).and_then(|fact| fact.shape.concretize());
            has_number(shape.as_deref().unwrap_or(&[]))?;
        }
        let facts = inputs.iter().map(|fact| known(fact)).collect::<Option<Vec<_>>>();
        if facts.is_none()
            && self
                .instead
                .as_ref()
                .is_some_and(|(types, _)| *types != Types::NONE)
        {
            // The two may give different types: nothing can be said until it is known which it is.
            let same = |facts: TVec<&InferenceFact>| facts.into_iter().cloned().collect();
            return Ok((same(inputs), same(outputs), same(observed)));
        }
        if let Some(facts) = facts {
            self.admit(&facts)?;
            let types: Vec<DatumType> = facts.iter().map(|fact| fact.datum_type).collect();
            let is_for = self.is_for(&types);
            if let Some((_, instead)) = self.instead.as_mut().filter(|_| is_for) {
                return instead.infer_facts(inputs, outputs, observed);
            }
        }
        let facts = self.inner.infer_facts(inputs, outputs, observed)?;
        let of_constants = facts.0.iter().all(|fact| fact.value.concretize().is_some());
        for output in facts.1.iter().filter_map(known) {
            size::admit_planned(of_constants, output.datum_type, &output.shape)?;
        }
        Ok(facts)
    }

    fn observe_outlets(&self, model: &InferenceModel, node: &InferenceNode) -> TractResult<Vec<OutletId>> {
        self.inner.observe_outlets(model, node)
    }

    fn incorporate(
        &self,
        model: &InferenceModel,
        node: &InferenceNode,
    ) -> TractResult<Option<InferenceModelPatch>> {
        self.inner.incorporate(model, node)
    }

    fn nboutputs(&self) -> TractResult<usize> {
        self.inner.nboutputs()
    }

    fn to_typed(
        &self,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        cancelling::check_all()?;
        let mut facts = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            facts.push(Fact::of(target.outlet_fact(mapping[input])?));
        }
        self.admit(&facts)?;
        let types: Vec<DatumType> = facts.iter().map(|fact| fact.datum_type).collect();
        if let Some(instead) = self.instead(&facts) {
            return instead.to_typed(source, node, target, mapping);
        }
        if types
            .iter()
            .any(|&datum_type| self.guard.widening.of(datum_type).is_some())
        {
            return self.widened(source, node, target, mapping);
        }
        self.inner.to_typed(source, node, target, mapping)
    }

    as_op!();
}
