//! `BatchNormalization`: a factor and an offset for each channel. Those of constants are made once, for convolutions before
//! them to take over; those that are computed, as some are that were quantized, are made in each run.

use std::sync::Arc;

use tract_hir::{internal::*, ops::math};

use super::{
    attributes::Attributes,
    elements::{Real, elements, tensor, with_real},
    kernel::{Fact, Kernel, typed},
    wiring::{Wiring, facts, wired},
};
use crate::{building::BuildContext, faults::ensure_input, lowered::OnnxNode};

/// `BatchNormalization` of FP32 or FP64.
pub(crate) fn batch_normalization(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    Ok(wired(BatchNormalization::of(Attributes(node))))
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BatchNormalization {
    epsilon: f64,
}

/// The factor and the offset of each channel.
pub(crate) type Channels = Vec<(f64, f64)>;

impl Wiring for BatchNormalization {
    fn name(&self) -> &'static str {
        "BatchNormalization"
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let facts = facts(model, inputs)?;
        self.outputs(&facts)?;
        let parameters: Option<Vec<Arc<Tensor>>> =
            facts[1..].iter().map(|fact| fact.constant.clone()).collect();
        let Some(parameters) = parameters else {
            return model.wire_node(prefix, typed(*self), inputs);
        };
        let channels = parameters[0].len();
        let is_known = facts[0].shape[1].to_usize().is_ok_and(|found| found == channels);
        ensure!(
            is_known,
            "{channels} parameters for {} channels",
            facts[0].shape[1]
        );
        let channels = self.channels(&parameters, channels)?;
        let mut shape = vec![1; facts[0].rank()];
        shape[1] = channels.len();
        let [factors, offsets] = with_real!(facts[0].datum_type, T => {
            let factors: Vec<T> = channels.iter().map(|&(factor, _)| T::of(factor)).collect();
            let offsets: Vec<T> = channels.iter().map(|&(_, offset)| T::of(offset)).collect();
            [tensor(&shape, factors)?, tensor(&shape, offsets)?]
        });
        let factors = model.add_const(format!("{prefix}.factors"), factors)?;
        let offsets = model.add_const(format!("{prefix}.offsets"), offsets)?;
        let scaled = model.wire_node(format!("{prefix}.scaled"), math::mul(), &[factors, inputs[0]])?[0];
        model.wire_node(prefix, math::add(), &[offsets, scaled])
    }
}

impl BatchNormalization {
    pub(super) fn of(attributes: Attributes<'_>) -> Self {
        Self {
            epsilon: f64::from(attributes.float("epsilon", 1e-5)),
        }
    }

    pub(super) fn channels(&self, parameters: &[Arc<Tensor>], count: usize) -> TractResult<Channels> {
        let mut lists = Vec::with_capacity(4);
        for parameter in parameters {
            ensure_input!(
                parameter.len() == count,
                "{} parameters of a BatchNormalization of {count} channels",
                parameter.len()
            );
            lists.push(elements::<f64>(&*parameter.cast_to::<f64>()?)?.to_vec());
        }
        let of_channel = |channel: usize| {
            let [scale, bias, mean, variance] = [0, 1, 2, 3].map(|index: usize| lists[index][channel]);
            let factor = scale / (variance + self.epsilon).sqrt();
            (factor, bias - mean * factor)
        };
        Ok((0..count).map(of_channel).collect())
    }
}

/// The factors and offsets of a node's channels.
pub(crate) fn channels(
    attributes: Attributes<'_>,
    parameters: &[Arc<Tensor>],
    count: usize,
) -> TractResult<Channels> {
    BatchNormalization::of(attributes).channels(parameters, count)
}

impl Kernel for BatchNormalization {
    fn name(&self) -> &'static str {
        "BatchNormalization"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        ensure!(inputs.len() == 5, "expected 5 inputs, found {}", inputs.len());
        ensure!(inputs[0].rank() >= 2, "expected channels");
        let is_list = |parameter: &Fact| parameter.rank() == 1 && parameter.datum_type.is_float();
        ensure!(
            inputs[1..].iter().all(is_list),
            "expected a number for each channel"
        );
        Ok(vec![inputs[0].with(inputs[0].datum_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let shape = inputs[0].shape();
        let channels = self.channels(&inputs[1..], shape[1])?;
        let width = shape[2..].iter().product::<usize>().max(1);
        macro_rules! normalized {
            ($T:ty) => {{
                let lines = elements::<$T>(&inputs[0])?.chunks_exact(width);
                let mut values: Vec<$T> = Vec::with_capacity(inputs[0].len());
                for (line, &(factor, offset)) in lines.zip(channels.iter().cycle()) {
                    let (factor, offset) = (factor as $T, offset as $T);
                    values.extend(line.iter().map(|x| x * factor + offset));
                }
                tensor(shape, values)?
            }};
        }
        Ok(tvec![match inputs[0].datum_type() {
            DatumType::F64 => normalized!(f64),
            _ => normalized!(f32),
        }])
    }
}
