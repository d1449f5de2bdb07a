//! Numbers beside sizes. tract counts with sizes as expressions of symbols, and makes expressions of numbers that meet them by way of 32
//! bits: of the largest INT64, which stands for "to the end" in files, it makes -1.

use tract_hir::{
    infer::rules::*,
    internal::*,
    ops::binary::wire_rank_broadcast,
    tract_core::ops::binary::{BinMiniOp, TypedBinOp},
};

use super::rewired::Rewire;
use crate::ops::elements::{elements, tensor};

/// INT64 as sizes.
pub(in crate::ops) fn to_sizes(numbers: &Tensor) -> TractResult<Tensor> {
    let sizes = elements::<i64>(numbers)?.iter().map(ToDim::to_dim);
    tensor(numbers.shape(), sizes.collect())
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ToSizes;

impl Op for ToSizes {
    fn name(&self) -> StaticName {
        "ToSizes".into()
    }

    op_as_typed_op!();
}

impl EvalOp for ToSizes {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        Ok(tvec![to_sizes(&inputs[0])?.into_tvalue()])
    }
}

impl TypedOp for ToSizes {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec![DatumType::TDim.fact(inputs[0].shape.clone())])
    }

    as_op!();
}

/// INT64 as sizes, whatever it is.
pub(super) fn sizes(prefix: &str, model: &mut TypedModel, numbers: OutletId) -> TractResult<OutletId> {
    let name = model.unique_name(format!("{prefix}.sizes"));
    match &model.outlet_fact(numbers)?.konst {
        Some(constant) => {
            let sizes = to_sizes(constant)?;
            model.add_const(name, sizes)
        }
        None => Ok(model.wire_node(name, ToSizes, &[numbers])?[0]),
    }
}

/// Inputs of one operator: where sizes are among them, INT64 become sizes too.
pub(super) fn alike(
    prefix: &str,
    model: &mut TypedModel,
    inputs: &[OutletId],
) -> TractResult<TVec<OutletId>> {
    let types: Vec<DatumType> = inputs
        .iter()
        .map(|&input| Ok(model.outlet_fact(input)?.datum_type))
        .collect::<TractResult<_>>()?;
    if !types.contains(&DatumType::TDim) {
        return Ok(inputs.into());
    }
    let alike = inputs
        .iter()
        .zip(types)
        .map(|(&input, datum_type)| match datum_type {
            DatumType::I64 => sizes(prefix, model, input),
            _ => Ok(input),
        });
    alike.collect()
}

/// Inputs are made alike: those of INT64 become sizes where one of them is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alike;

impl Rewire for Alike {
    fn wire<E: Expansion>(
        &self,
        operator: &E,
        prefix: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let inputs = alike(prefix, model, inputs)?;
        operator.wire(prefix, model, &inputs)
    }
}

/// A function of two values, applied to any number of them from the first on.
#[derive(Clone, Debug)]
pub(super) struct List(pub(super) Box<dyn BinMiniOp>);

impl Expansion for List {
    fn name(&self) -> StaticName {
        format!("{}List", self.0.name()).into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_output_arity(outputs, 1)?;
        let types = inputs.iter().map(|input| (&input.datum_type).bex());
        s.given_all(types, move |s, types: Vec<DatumType>| {
            let datum_type = DatumType::super_type_for(&types)
                .with_context(|| format!("the inputs have the types {types:?}"))?;
            s.equals(&outputs[0].datum_type, datum_type)
        })?;
        let shapes = inputs.iter().map(|input| &input.shape);
        s.given_all(shapes, move |s, shapes: Vec<TVec<TDim>>| {
            let shape = tract_hir::tract_core::broadcast::multi_broadcast(&shapes)?;
            s.equals(&outputs[0].shape, ShapeFactoid::from(shape))
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let inputs = alike(prefix, model, inputs)?;
        let Some((&first, others)) = inputs.split_first() else {
            bail!("expected an input");
        };
        let mut wire = first;
        for (index, &other) in others.iter().enumerate() {
            let pair = wire_rank_broadcast(format!("{prefix}.{index}"), model, &[wire, other])?;
            let op = TypedBinOp(self.0.clone(), None);
            wire = model.wire_node(format!("{prefix}.{index}"), op, &pair)?[0];
        }
        Ok(tvec![wire])
    }
}
