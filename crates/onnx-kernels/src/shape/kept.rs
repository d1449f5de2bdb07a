//! `Identity`, and `Dropout` for inference.

use std::sync::Arc;

use onnx_tensor::cancelling::Pace;
use onnx_tensor::prelude::*;

use onnx_tensor::{
    elements::elements,
    faults::Unsupported,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    shapes::zeros,
};

/// Builds the operator `Dropout`.
pub fn dropout(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Dropout::of(node)))
}

/// Builds the operator `Identity`.
pub fn identity(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Identity))
}

#[derive(Debug)]
pub(crate) struct Identity;

impl Compute for Identity {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        Ok(Some(vec![input.clone()]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        Ok(smallvec![inputs.swap_remove(0)])
    }
}

/// `Dropout` outside of training, which is the identity.
#[derive(Debug)]
pub(crate) struct Dropout {
    gives_mask: bool,
    /// Input index of `training_mode`.
    training: Option<usize>,
}

impl Dropout {
    pub(crate) fn of(node: &Node) -> Self {
        let attributes = Attributes(node);
        Self {
            gives_mask: node.output.len() > 1,
            training: attributes.position(2),
        }
    }
}

impl Compute for Dropout {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let training = self
            .training
            .and_then(|place| inputs.get(place)?.constant.as_ref());
        if let Some(training) = training {
            let is_training = *elements::<bool>(training)? != [false];
            if is_training {
                let reason = "training mode is not supported; export the model for inference";
                bail!(Unsupported::Here(reason.to_owned()));
            }
        }
        let mut outputs = vec![input.with(input.element_type)];
        if self.gives_mask {
            outputs.push(input.with(ElementType::Bool));
        }
        Ok(Some(outputs))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let mut outputs: ShortVec<Arc<Tensor>> = smallvec![inputs.swap_remove(0)];
        if self.gives_mask {
            let mut mask = zeros(ElementType::Bool, outputs[0].shape())?;
            Pace::default().over(mask.as_slice_mut::<bool>()?, |mask| mask.fill(true))?;
            outputs.push(Arc::new(mask));
        }
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::shape::texts::tests::{run, texts};

    #[test]
    fn values_stay_and_masks_keep_everything() {
        let words = texts(&[2], &["a", "b"]);
        assert_eq!(run(&Identity, std::slice::from_ref(&words)).unwrap(), [words]);
        let dropout = Dropout {
            gives_mask: true,
            training: Some(1),
        };
        let numbers = Tensor::vector(&[f32::INFINITY, -0.0]);
        let kept = run(&dropout, &[numbers.clone(), Tensor::scalar(false)]).unwrap();
        assert_eq!(kept, [numbers.clone(), Tensor::vector(&[true, true])]);
        let training = Fact::of_values(&[numbers, Tensor::scalar(true)].map(Arc::new));
        let error = dropout.outputs(&training).unwrap_err();
        assert!(error.is::<Unsupported>(), "{error}");
    }
}
