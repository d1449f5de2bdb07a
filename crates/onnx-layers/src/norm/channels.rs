//! Computes the scale and offset per channel of `BatchNormalization`: once if the parameters are constants,
//! so that a preceding convolution can absorb them. If other nodes compute the parameters, for example by
//! dequantization, the scale and offset are computed in each run.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::cancelling::{PART, Pace};
use onnx_tensor::faults::ensure_input;
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel},
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchNormalization {
    epsilon: f64,
}

/// The scale and offset of each channel.
pub type Channels = Vec<(f64, f64)>;

impl BatchNormalization {
    pub(crate) fn of(attributes: Attributes<'_>) -> Self {
        Self {
            epsilon: f64::from(attributes.float("epsilon", 1e-5)),
        }
    }

    pub(crate) fn channels(&self, parameters: &[Arc<Tensor>], count: usize) -> Result<Channels> {
        let mut lists = Vec::with_capacity(4);
        for parameter in parameters {
            ensure_input!(
                parameter.len() == count,
                "{} parameters of a BatchNormalization of {count} channels",
                parameter.len()
            );
            lists.push(parameter.cast_to::<f64>()?);
        }
        let lists = lists.iter().map(|list| elements::<f64>(list));
        let lists = lists.collect::<Result<Vec<&[f64]>>>()?;
        let of_channel = |channel: usize| {
            let [scale, bias, mean, variance] = [0, 1, 2, 3].map(|index: usize| lists[index][channel]);
            let factor = scale / (variance + self.epsilon).sqrt();
            (factor, bias - mean * factor)
        };
        Pace::default().indices(count, of_channel)
    }
}

/// Computes the scale and offset of each of a node's `count` channels.
pub fn channels(attributes: Attributes<'_>, parameters: &[Arc<Tensor>], count: usize) -> Result<Channels> {
    BatchNormalization::of(attributes).channels(parameters, count)
}

impl Kernel for BatchNormalization {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        ensure!(inputs.len() == 5, "expected 5 inputs, found {}", inputs.len());
        ensure!(inputs[0].rank() >= 2, "expected channels");
        let is_list = |parameter: &Fact| parameter.rank() == 1 && parameter.element_type.is_float();
        ensure!(
            inputs[1..].iter().all(is_list),
            "expected a number for each channel"
        );
        Ok(vec![inputs[0].with(inputs[0].element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        let channels = self.channels(&inputs[1..], shape[1])?;
        let width = shape[2..].iter().product::<usize>().max(1);
        macro_rules! normalized {
            ($T:ty) => {{
                let lines = elements::<$T>(&inputs[0])?.chunks_exact(width);
                let mut values: Vec<$T> = Vec::with_capacity(inputs[0].len());
                let mut pace = Pace::default();
                for (line, &(factor, offset)) in lines.zip(channels.iter().cycle()) {
                    let (factor, offset) = (factor as $T, offset as $T);
                    for part in line.chunks(PART) {
                        pace.spend(part.len() as u64)?;
                        values.extend(part.iter().map(|x| x * factor + offset));
                    }
                }
                tensor(shape, values)?
            }};
        }
        Ok(smallvec![match inputs[0].element_type() {
            ElementType::F64 => normalized!(f64),
            _ => normalized!(f32),
        }])
    }
}
