//! The operator `BatchNormalization`: a scale and an offset per channel, computed once for constant
//! parameters.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{
    least_work::ELEMENTS,
    norm::channels::{BatchNormalization as Parameters, Channels},
};
use onnx_tensor::operator::Constants;
use onnx_tensor::{
    elements::with_real,
    faults::ensure_input,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel},
    packs::Packs,
    split,
};

/// Builds the operator `BatchNormalization`.
pub fn batch_normalization(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(BatchNormalization {
        parameters: Parameters::of(Attributes(node)),
        channels: None,
    }))
}

#[derive(Debug)]
pub(crate) struct BatchNormalization {
    parameters: Parameters,
    channels: Option<Channels>,
}

impl Compute for BatchNormalization {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let (count, channels) = (inputs[1].shape.first(), inputs[0].shape.get(1));
        if let Some((Some(count), Some(channels))) =
            count.zip(channels).map(|(a, b)| (a.to_i64(), b.to_i64()))
        {
            ensure_input!(count == channels, "{count} parameters for {channels} channels");
        }
        self.parameters.outputs(inputs).map(Some)
    }

    fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<Option<usize>> {
        let given: Option<Vec<Arc<Tensor>>> = constants.iter().skip(1).cloned().collect();
        if let Some(given) = given.filter(|given| given.len() == 4)
            && packs.admit(size_of::<(f64, f64)>() as u64 * given[0].len() as u64)
        {
            self.channels = Some(self.parameters.channels(&given, given[0].len())?);
        }
        Ok(None)
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let computed;
        let channels = match &self.channels {
            Some(channels) => channels,
            None => {
                computed = self.parameters.channels(&inputs[1..], inputs[0].shape()[1])?;
                &computed
            }
        };
        let mut made = inputs.swap_remove(0).own()?;
        let width = made.shape()[2..].iter().product::<usize>();
        if !made.is_empty() {
            with_real!(made.element_type(), T => {
                let values = made.as_slice_mut::<T>()?;
                let work = [values.len() as u64, ELEMENTS];
                split::lines(values, width, work, |first, values, pace| {
                    let channels = channels.iter().cycle().skip(first % channels.len().max(1));
                    for (line, &(factor, offset)) in values.chunks_exact_mut(width).zip(channels) {
                        let (factor, offset) = (factor as T, offset as T);
                        pace.over(line, |line| line.iter_mut().for_each(|x| *x = *x * factor + offset))?;
                    }
                    Ok(())
                })?;
            });
        }
        Ok(smallvec![Arc::new(made)])
    }
}
