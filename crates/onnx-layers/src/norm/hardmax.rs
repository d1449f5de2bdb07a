//! The operator `Hardmax`: 1 at the first maximum along an axis, 0 elsewhere.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::Unsupported,
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `Hardmax` for FP32 and FP64, for all operator sets.
pub fn hardmax(node: &Node) -> Result<Box<dyn Compute>> {
    let coerces = node.opset < 13;
    Ok(kernel(Hardmax {
        axis: Attributes(node).int("axis", if coerces { 1 } else { -1 }),
        coerces,
    }))
}

#[derive(Debug)]
struct Hardmax {
    axis: i64,
    /// Whether the maximum is taken over `axis` and all later axes together, as in operator sets before 13.
    coerces: bool,
}

impl Kernel for Hardmax {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        if !inputs[0].element_type.is_float() {
            bail!(Unsupported::Anywhere("is supported for floats only".to_owned()));
        }
        let rank = inputs[0].rank() as i64;
        let end = if self.coerces { rank + 1 } else { rank.max(1) };
        ensure!(
            (-rank..end).contains(&self.axis),
            "axis {} of rank {rank}",
            self.axis
        );
        Ok(vec![inputs[0].with(inputs[0].element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        let from_end = if self.axis < 0 { shape.len() as i64 } else { 0 };
        let axis = usize::try_from(self.axis + from_end)?.min(shape.len());
        let (count, inner): (usize, usize) = match (self.coerces, shape.get(axis)) {
            (true, _) | (_, None) => (shape[axis..].iter().product(), 1),
            (false, Some(&dim)) => (dim, shape[axis + 1..].iter().product()),
        };
        Ok(smallvec![match inputs[0].element_type() {
            ElementType::F64 => tensor(
                shape,
                chosen(elements::<f64>(&inputs[0])?, count, inner, [0.0, 1.0])?
            )?,
            _ => tensor(
                shape,
                chosen(elements::<f32>(&inputs[0])?, count, inner, [0.0, 1.0])?
            )?,
        }])
    }
}

/// Writes 1 for the first maximum of `count` elements that are `inner` apart, and 0 for the others.
fn chosen<T: Copy + PartialOrd>(
    values: &[T],
    count: usize,
    inner: usize,
    [zero, one]: [T; 2],
) -> Result<Vec<T>> {
    let mut pace = Pace::default();
    let mut chosen = vec![zero; values.len()];
    let size = (count * inner).max(1);
    for (values, chosen) in values.chunks_exact(size).zip(chosen.chunks_exact_mut(size)) {
        for lane in 0..inner {
            // NaN is chosen only if all elements are NaN.
            let is_number = |at: usize| values[at].partial_cmp(&values[at]).is_some();
            let mut best = lane;
            for first in (0..count).step_by(PART) {
                let end = count.min(first + PART);
                pace.spend((end - first) as u64)?;
                for at in (first..end).map(|index| index * inner + lane) {
                    if values[at] > values[best] || (is_number(at) && !is_number(best)) {
                        best = at;
                    }
                }
            }
            chosen[best] = one;
        }
    }
    Ok(chosen)
}
