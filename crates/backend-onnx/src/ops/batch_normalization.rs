//! `BatchNormalization` whose parameters are computed, as those that were quantized are. tract takes constants only.

use std::sync::Arc;

use tract_onnx::{model::ParsingContext, pb::NodeProto, tract_hir::internal::*};

use super::{
    attributes::Attributes,
    elements::{elements, tensor},
    kernel::{Fact, Kernel, kernel},
};
use crate::faults::ensure_input;

/// Whether tract has not all of the parameters as constants.
pub(crate) fn is_computed(_: Attributes<'_>, inputs: &[Fact]) -> bool {
    inputs[1..].iter().any(|parameter| parameter.constant.is_none())
}

/// `BatchNormalization` of FP32 or FP64.
pub(crate) fn batch_normalization(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<Box<dyn InferenceOp>> {
    let epsilon = f64::from(Attributes(node).float("epsilon", 1e-5));
    Ok(kernel(BatchNormalization { epsilon }))
}

#[derive(Debug)]
struct BatchNormalization {
    epsilon: f64,
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
        let mut parameters = Vec::with_capacity(4);
        for parameter in &inputs[1..] {
            ensure_input!(
                parameter.len() == shape[1],
                "{} parameters of a BatchNormalization of {} channels",
                parameter.len(),
                shape[1]
            );
            parameters.push(elements::<f64>(&*parameter.cast_to::<f64>()?)?.to_vec());
        }
        let of_channel = |channel: usize| {
            let [scale, bias, mean, variance] = [0, 1, 2, 3].map(|index: usize| parameters[index][channel]);
            let factor = scale / (variance + self.epsilon).sqrt();
            (factor, bias - mean * factor)
        };
        let channels: Vec<(f64, f64)> = (0..shape[1]).map(of_channel).collect();
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
