//! The operator `MaxUnpool`: writes maxima to the indices that `MaxPool` returned, and zeros elsewhere.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{BadInput, Unsupported, ensure_input},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `MaxUnpool`.
pub fn max_unpool(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let windows = attributes.ints("kernel_shape").to_vec();
    let or = |name: &str, count: usize, default: i64| match attributes.ints(name) {
        [] => vec![default; count],
        given => given.to_vec(),
    };
    let strides = or("strides", windows.len(), 1);
    let pads = or("pads", 2 * windows.len(), 0);
    let is_small = |number: &i64| (0..1 << 24).contains(number);
    ensure!(
        strides.len() == windows.len()
            && pads.len() == 2 * windows.len()
            && windows.iter().chain(&strides).chain(&pads).all(is_small),
        "kernel_shape is {windows:?}, strides {strides:?} and pads {pads:?}, expected numbers for the same axes"
    );
    Ok(kernel(MaxUnpool {
        windows,
        strides,
        pads,
    }))
}

#[derive(Debug)]
struct MaxUnpool {
    windows: Vec<i64>,
    strides: Vec<i64>,
    pads: Vec<i64>,
}

impl Kernel for MaxUnpool {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, places, sizes @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        if input.element_type != ElementType::F32 {
            bail!(Unsupported::Anywhere("is supported for FP32 only".to_owned()));
        }
        ensure!(
            input.rank() == self.windows.len() + 2 && places.rank() == input.rank(),
            "windows of {} dimensions in an image of {}",
            self.windows.len(),
            input.rank()
        );
        let mut output = input.with(ElementType::F32);
        match sizes.first() {
            Some(sizes) => {
                let sizes = sizes.dims().unwrap_or_else(|| vec![Dim::unknown(); input.rank()]);
                ensure!(
                    sizes.len() == input.rank(),
                    "a size of {} dimensions",
                    sizes.len()
                );
                output.shape = sizes.into_iter().collect();
            }
            None => {
                let rank = self.windows.len();
                for (axis, dim) in output.shape[2..].iter_mut().enumerate() {
                    let fixed = self.windows[axis] - self.pads[axis] - self.pads[rank + axis];
                    *dim = (*dim - 1) * self.strides[axis] + fixed;
                }
            }
        }
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let facts = Fact::of_values(inputs);
        let shape = self.outputs(&facts)?.remove(0).shape;
        let shape: ShortVec<usize> = shape
            .iter()
            .map(|dim| {
                dim.to_usize()
                    .ok_or_else(|| BadInput(format!("a dimension of {dim}")).into())
            })
            .collect::<Result<_>>()?;
        ensure_input!(
            inputs[1].shape() == inputs[0].shape(),
            "indices have the shape {:?}, expected that of the numbers, {:?}",
            inputs[1].shape(),
            inputs[0].shape()
        );
        let mut made = vec![0.0f32; shape.iter().product()];
        let count = made.len();
        let (numbers, places) = (elements::<f32>(&inputs[0])?, elements::<i64>(&inputs[1])?);
        let mut pace = Pace::default();
        for (numbers, places) in numbers.chunks(PART).zip(places.chunks(PART)) {
            pace.spend(numbers.len() as u64)?;
            for (&x, &place) in numbers.iter().zip(places) {
                let to = usize::try_from(place).ok().and_then(|place| made.get_mut(place));
                let Some(to) = to else {
                    bail!(BadInput(format!(
                        "index {place} is outside of an image of {count} numbers"
                    )));
                };
                *to = x;
            }
        }
        Ok(smallvec![tensor(&shape, made)?])
    }
}
