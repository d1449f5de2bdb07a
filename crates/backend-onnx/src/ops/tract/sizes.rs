//! Numbers beside sizes. tract counts with sizes as expressions of symbols, and makes expressions of numbers that meet them by way of 32
//! bits: of the largest INT64, which stands for "to the end" in files, it makes -1.

use tract_hir::{
    infer::rules::*,
    internal::*,
    ops::binary::wire_rank_broadcast,
    tract_core::ops::binary::{BinMiniOp, TypedBinOp},
};

use super::rewired::Rewire;
use crate::{
    faults::{BadInput, Limit},
    ops::elements::{elements, tensor},
    size,
};

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

/// A division, in which sizes are rounded towards zero as ONNX has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quotient;

impl Rewire for Quotient {
    fn wire<E: Expansion>(
        &self,
        operator: &E,
        prefix: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let inputs = alike(prefix, model, inputs)?;
        let is_of_sizes = model.outlet_fact(inputs[0])?.datum_type == DatumType::TDim
            && model.outlet_fact(inputs[1])?.datum_type == DatumType::TDim;
        if !is_of_sizes {
            return operator.wire(prefix, model, &inputs);
        }
        let inputs = wire_rank_broadcast(prefix, model, &inputs)?;
        model.wire_node(prefix, DivSizes, &inputs)
    }
}

/// Divides sizes. tract rounds them down, and moves multiples of the divisor out of a fraction by that rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DivSizes;

impl Op for DivSizes {
    fn name(&self) -> StaticName {
        "DivSizes".into()
    }

    op_as_typed_op!();
}

impl EvalOp for DivSizes {
    op_out_of_plan!();

    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let shapes = [inputs[0].shape(), inputs[1].shape()];
        let shape = tract_core::broadcast::multi_broadcast(&shapes)?;
        let sizes = |input: &TValue| -> TractResult<tract_ndarray::ArrayD<TDim>> {
            let sizes = elements::<TDim>(input)?
                .iter()
                .map(|size| size.eval(context.symbols));
            let sizes = tract_ndarray::ArrayD::from_shape_vec(input.shape(), sizes.collect())?;
            let sizes = sizes
                .broadcast(&*shape)
                .context("sizes that do not fit together")?;
            Ok(sizes.to_owned())
        };
        let (dividends, divisors) = (sizes(&inputs[0])?, sizes(&inputs[1])?);
        let quotients = dividends.iter().zip(&divisors).map(|(a, b)| quotient(a, b));
        Ok(tvec![
            tensor(&shape, quotients.collect::<TractResult<_>>()?)?.into_tvalue()
        ])
    }
}

impl TypedOp for DivSizes {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let shapes = [&*inputs[0].shape, &*inputs[1].shape];
        Ok(tvec![
            DatumType::TDim.fact(tract_core::broadcast::multi_broadcast(&shapes)?)
        ])
    }

    as_op!();
}

/// A quotient that is rounded towards zero. Of what may be below zero, the parts above and below it are divided for themselves.
fn quotient(dividend: &TDim, divisor: &TDim) -> TractResult<TDim> {
    let Ok(divisor) = divisor.to_i64() else {
        bail!(Limit("divides by a size that is free".to_owned()));
    };
    if divisor == 0 {
        bail!(BadInput("an integer would be divided by zero".to_owned()));
    }
    if let Ok(dividend) = dividend.to_i64() {
        return Ok(dividend.wrapping_div(divisor).to_dim());
    }
    let opposite = TDim::Val(0) - dividend;
    let part = |dim: &TDim| dim.clone() / divisor.unsigned_abs();
    let quotient = if dividend.prove_positive_or_zero() {
        part(dividend)
    } else if opposite.prove_positive_or_zero() {
        TDim::Val(0) - part(&opposite)
    } else {
        part(&dividend.clone().maxi(TDim::Val(0))) - part(&opposite.maxi(TDim::Val(0)))
    };
    size::admit_expression(&quotient)?;
    Ok(if divisor < 0 {
        TDim::Val(0) - quotient
    } else {
        quotient
    })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn quotients_of_sizes_are_rounded_towards_zero_whatever_the_size_is() {
        let scope = SymbolScope::default();
        let symbol = scope.sym("n");
        let size = || symbol.to_dim();
        for dividend in [
            size(),
            size() - 9,
            size() * 3 - 7,
            TDim::Val(5) - size(),
            (size() - 4) * 2 + 1,
        ] {
            for divisor in [1i64, 2, 3, 7, -1, -2, -5] {
                let quotient = quotient(&dividend, &divisor.to_dim()).unwrap();
                // What follows from it is rearranged too.
                let after = quotient.clone() * 2 + 1;
                for n in 0..30 {
                    let values = SymbolValues::default().with(&symbol, n);
                    let expected = dividend.eval_to_i64(&values).unwrap() / divisor;
                    let found = [&quotient, &after].map(|dim| dim.eval(&values).to_i64().unwrap());
                    assert_eq!(
                        found,
                        [expected, expected * 2 + 1],
                        "({dividend}) / {divisor} of {n}"
                    );
                    assert_eq!(quotient.eval_to_i64(&values).unwrap(), expected);
                }
            }
        }
    }

    #[test]
    fn quotients_without_a_number_are_refused() {
        let size = SymbolScope::default().sym("n").to_dim();
        let refused = |a: &TDim, b: &TDim| quotient(a, b).unwrap_err();
        assert!(refused(&size, &TDim::Val(0)).downcast_ref::<BadInput>().is_some());
        assert!(refused(&TDim::Val(1), &size).downcast_ref::<Limit>().is_some());
        assert_eq!(
            quotient(&i64::MIN.to_dim(), &TDim::Val(-1)).unwrap(),
            i64::MIN.to_dim()
        );
        // Each step doubles the expression.
        let mut doubled = size;
        let ended = (0..10).find_map(|_| match quotient(&(doubled.clone() - 9), &TDim::Val(2)) {
            Ok(next) => {
                doubled = next;
                None
            }
            Err(error) => Some(error),
        });
        assert!(ended.unwrap().downcast_ref::<Limit>().is_some());
    }
}
