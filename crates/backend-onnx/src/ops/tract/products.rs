//! Products of matrices.

use tract_hir::{
    infer::rules::*,
    internal::*,
    ops::{math, matmul::MatMulInference},
    tract_core::ops::{
        change_axes::{AxisOp, wire_rank_broadcast, wire_with_rank_broadcast},
        einsum::EinSum,
    },
};

use super::Built;
use crate::{
    building::BuildContext,
    faults::{Limit, Misfit, Refusal},
    lowered::OnnxNode,
    ops::{
        attributes::Attributes,
        conditions,
        wiring::{Wiring, fact, wired},
    },
};

/// `MatMul`.
pub(in crate::ops) fn product(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(Product))
}

/// tract has no product of two vectors.
#[derive(Clone, Debug)]
struct Product;

const MATRICES: MatMulInference = MatMulInference {
    a_trans: false,
    b_trans: false,
    c_trans: false,
};

impl Expansion for Product {
    fn name(&self) -> StaticName {
        "MatMul".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2)?;
        check_output_arity(outputs, 1)?;
        s.given_2(&inputs[0].rank, &inputs[1].rank, move |s, first, second| {
            if (first, second) != (1, 1) {
                return MATRICES.rules(s, inputs, outputs);
            }
            s.equals(&outputs[0].datum_type, &inputs[0].datum_type)?;
            s.equals(&outputs[0].rank, 0)
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let [first, second] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let [first, second] = [fact(model, *first)?, fact(model, *second)?];
        if (first.rank(), second.rank()) != (1, 1) {
            return MATRICES.wire(prefix, model, inputs);
        }
        same_terms([&first.shape[0], &second.shape[0]])?;
        let product = EinSum::new("k,k->".parse()?, first.datum_type);
        model.wire_node(prefix, product, inputs)
    }
}

/// `Gemm` of FP32.
pub(in crate::ops) fn gemm(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    Ok(wired(Gemm {
        alpha: attributes.float("alpha", 1.0),
        beta: attributes.float("beta", 1.0),
        turns_a: attributes.int("transA", 0) != 0,
        turns_b: attributes.int("transB", 0) != 0,
    }))
}

#[derive(Debug)]
struct Gemm {
    alpha: f32,
    beta: f32,
    turns_a: bool,
    turns_b: bool,
}

impl Wiring for Gemm {
    fn name(&self) -> &'static str {
        "Gemm"
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let (Some(&a), Some(&b)) = (inputs.first(), inputs.get(1)) else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        let (a_fact, b_fact) = (fact(model, a)?, fact(model, b)?);
        if (a_fact.rank(), b_fact.rank()) != (2, 2) {
            bail!(Refusal(format!(
                "multiplies tensors of {} and {} dimensions, expected matrices",
                a_fact.rank(),
                b_fact.rank()
            )));
        }
        let depths = [
            &a_fact.shape[usize::from(!self.turns_a)],
            &b_fact.shape[usize::from(self.turns_b)],
        ];
        same_terms(depths)?;
        if a_fact.datum_type != b_fact.datum_type {
            bail!(Refusal("multiplies factors of different types".to_owned()));
        }
        let axes = AxesMapping::for_numpy_matmul(2, self.turns_a, self.turns_b, false)?;
        let product = EinSum::new(axes, a_fact.datum_type);
        let mut wire = model.wire_node(format!("{prefix}.product"), product, &[a, b])?[0];
        if self.alpha != 1.0 {
            wire = self.scaled(&format!("{prefix}.alpha"), model, wire, self.alpha)?;
        }
        if let Some(&added) = inputs.get(2).filter(|_| self.beta != 0.0) {
            let mut added = added;
            if self.beta != 1.0 {
                added = self.scaled(&format!("{prefix}.beta"), model, added, self.beta)?;
            }
            let [product, sum] = [fact(model, wire)?, fact(model, added)?];
            is_stretched(&sum.shape, &product.shape)?;
            wire = wire_with_rank_broadcast(format!("{prefix}.sum"), model, math::add(), &[wire, added])?[0];
        }
        Ok(tvec![wire])
    }
}

/// Refuses factors whose sums have different numbers of terms. tract repeats a single one.
fn same_terms([first, second]: [&TDim; 2]) -> TractResult<()> {
    match [first.to_i64(), second.to_i64()] {
        [Ok(first), Ok(second)] if first != second => bail!(Misfit::Factors(first - second)),
        _ => Ok(()),
    }
}

/// Refuses what cannot be brought to a shape by repeating it; tract would repeat either of the two.
fn is_stretched(from: &[TDim], to: &[TDim]) -> TractResult<()> {
    if from.len() > to.len() {
        bail!(Refusal(format!("adds {} dimensions to {}", from.len(), to.len())));
    }
    for (from, to) in from.iter().rev().zip(to.iter().rev()) {
        match (from.to_i64(), to.to_i64()) {
            _ if from.is_one() || from == to => {}
            (Ok(from), Ok(to)) => bail!(Misfit::Sizes(from, to)),
            _ => bail!(Limit(format!("adds a dimension of {from} to one of {to}"))),
        }
    }
    Ok(())
}

impl Gemm {
    fn scaled(
        &self,
        prefix: &str,
        model: &mut TypedModel,
        value: OutletId,
        factor: f32,
    ) -> TractResult<OutletId> {
        let known = fact(model, value)?;
        let factor = tensor0(factor).cast_to_dt(known.datum_type)?.into_owned();
        let factor = model.add_const(
            format!("{prefix}.factor"),
            factor.broadcast_into_rank(known.rank())?,
        )?;
        Ok(model.wire_node(prefix, math::mul(), &[factor, value])?[0])
    }
}

/// `MatMulInteger`.
pub(in crate::ops) fn integer_product(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    Ok(wired(IntegerProduct {
        zero_points: [attributes.position(2), attributes.position(3)],
    }))
}

#[derive(Debug)]
struct IntegerProduct {
    /// Which inputs these are, for both factors.
    zero_points: [Option<usize>; 2],
}

impl Wiring for IntegerProduct {
    fn name(&self) -> &'static str {
        "MatMulInteger"
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let zero = model.add_const(format!("{prefix}.zero"), tensor0(0i32))?;
        let one = model.add_const(format!("{prefix}.one"), tensor0(1.0f32))?;
        let [a, b] = self
            .zero_points
            .map(|place| place.map_or(zero, |place| inputs[place]));
        let scales = [(a, one), (b, one), (zero, one)];
        quantized_product(prefix, model, [inputs[0], inputs[1]], scales, DatumType::I32)
    }
}

/// `QLinearMatMul`.
pub(in crate::ops) fn q_linear_product(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(wired(QLinearProduct))
}

#[derive(Debug)]
struct QLinearProduct;

impl Wiring for QLinearProduct {
    fn name(&self) -> &'static str {
        "QLinearMatMul"
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let &[a, a_scale, a_zero, b, b_scale, b_zero, scale, zero] = inputs else {
            bail!("expected 8 inputs, found {}", inputs.len());
        };
        let result = fact(model, zero)?.datum_type;
        let scales = [(a_zero, a_scale), (b_zero, b_scale), (zero, scale)];
        quantized_product(prefix, model, [a, b], scales, result)
    }
}

/// A product of factors with zero points and scales, brought to those of the result.
fn quantized_product(
    prefix: &str,
    model: &mut TypedModel,
    factors: [OutletId; 2],
    scales: [(OutletId, OutletId); 3],
    result: DatumType,
) -> TractResult<TVec<OutletId>> {
    // A vector is a matrix of one row, or of one column behind; the result does not have that axis.
    let mut matrices = factors;
    let mut is_vector = [false; 2];
    for (side, factor) in matrices.iter_mut().enumerate() {
        match fact(model, *factor)?.rank() {
            0 => bail!(Refusal(
                "multiplies a number, expected a vector or matrices".to_owned()
            )),
            1 => {
                is_vector[side] = true;
                let name = format!("{prefix}.matrix-{side}");
                *factor = model.wire_node(name, AxisOp::Add(side), &[*factor])?[0];
            }
            _ => {}
        }
    }
    let mut inputs = wire_rank_broadcast(prefix, model, &matrices)?;
    let rank = fact(model, inputs[0])?.rank();
    let shapes = [fact(model, inputs[0])?.shape, fact(model, inputs[1])?.shape];
    same_terms([&shapes[0][rank - 1], &shapes[1][rank - 2]])?;
    if let Some((a, b)) = conditions::unequal_batches(&shapes[0], &shapes[1]) {
        bail!(Misfit::Sizes(a, b));
    }
    inputs.push(model.add_const(format!("{prefix}.bias"), tensor0(0i32))?);
    inputs.extend(scales.iter().flat_map(|&(zero, scale)| [zero, scale]));
    let mut ranks = Vec::with_capacity(inputs.len());
    for &input in &inputs {
        ranks.push(fact(model, input)?.rank());
    }
    let mut axes = AxesMapping::disconnected_for_ranks(&ranks, &[rank])?
        .renaming((InOut::In(0), rank - 2), 'm')?
        .linking('m', (InOut::Out(0), rank - 2))?
        .renaming((InOut::In(1), rank - 1), 'n')?
        .linking('n', (InOut::Out(0), rank - 1))?
        .renaming((InOut::In(0), rank - 1), 'k')?
        .linking('k', (InOut::In(1), rank - 2))?;
    for axis in 0..rank - 2 {
        axes = axes
            .linking((InOut::In(0), axis), (InOut::In(1), axis))?
            .linking((InOut::In(0), axis), (InOut::Out(0), axis))?;
    }
    // Lists are by rows of the first factor, by columns of the second one.
    for (place, &rank) in ranks.iter().enumerate().skip(2) {
        let side = if matches!(place, 5 | 6) { 'n' } else { 'm' };
        match rank {
            0 => {}
            1 => axes = axes.linking(side, (InOut::In(place), 0))?,
            other => bail!(Refusal(format!(
                "has a scale or zero point of {other} dimensions"
            ))),
        }
    }
    let product = EinSum {
        axes,
        operating_dt: DatumType::I32,
        q_params: Some(result),
    };
    let [is_row, is_column] = is_vector;
    if !is_row && !is_column {
        return model.wire_node(prefix, product, &inputs);
    }
    let mut made = model.wire_node(format!("{prefix}.product"), product, &inputs)?[0];
    if is_column {
        made = model.wire_node(format!("{prefix}.without-column"), AxisOp::Rm(rank - 1), &[made])?[0];
    }
    if is_row {
        made = model.wire_node(format!("{prefix}.without-row"), AxisOp::Rm(rank - 2), &[made])?[0];
    }
    Ok(tvec![made])
}
