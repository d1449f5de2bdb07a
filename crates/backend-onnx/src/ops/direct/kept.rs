//! Values that stay as they are.

use std::sync::Arc;

use tract_hir::internal::*;

use super::compute::empty;
use crate::{
    faults::ensure_input,
    lowered::OnnxNode,
    ops::{
        attributes::Attributes,
        elements::elements,
        kernel::{Compute, Fact},
    },
};

/// `Dropout`.
pub(crate) fn dropout(node: &OnnxNode) -> TractResult<Box<dyn Compute>> {
    Ok(Box::new(Dropout::of(node)))
}

/// `Identity`.
pub(crate) fn identity(_: &OnnxNode) -> TractResult<Box<dyn Compute>> {
    Ok(Box::new(Identity))
}

#[derive(Debug)]
pub(super) struct Identity;

impl Compute for Identity {
    fn outputs(&self, inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        Ok(Some(vec![input.clone()]))
    }

    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<TVec<Arc<Tensor>>> {
        Ok(tvec![inputs.swap_remove(0)])
    }
}

/// `Dropout` outside of training: nothing is dropped.
#[derive(Debug)]
pub(super) struct Dropout {
    gives_mask: bool,
    /// Where the input stands that says whether it trains.
    training: Option<usize>,
}

impl Dropout {
    pub(super) fn of(node: &OnnxNode) -> Self {
        let attributes = Attributes(node);
        Self {
            gives_mask: node.output.len() > 1,
            training: attributes.position(2),
        }
    }
}

impl Compute for Dropout {
    fn outputs(&self, inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        let input = inputs.first().context("expected an input")?;
        let mut outputs = vec![input.with(input.datum_type)];
        if self.gives_mask {
            outputs.push(input.with(DatumType::Bool));
        }
        Ok(Some(outputs))
    }

    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<TVec<Arc<Tensor>>> {
        if let Some(training) = self.training.and_then(|place| inputs.get(place)) {
            let is_training = *elements::<bool>(training)? != [false];
            ensure_input!(
                !is_training,
                "training mode is not supported; export the model for inference"
            );
        }
        let mut outputs = tvec![inputs.swap_remove(0)];
        if self.gives_mask {
            let mut mask = empty(DatumType::Bool, outputs[0].shape())?;
            mask.try_as_plain_ram_mut()?.as_slice_mut::<bool>()?.fill(true);
            outputs.push(Arc::new(mask));
        }
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        faults::BadInput,
        ops::direct::texts::tests::{run, texts},
    };

    #[test]
    fn values_stay_and_masks_keep_everything() {
        let words = texts(&[2], &["a", "b"]);
        assert_eq!(run(&Identity, std::slice::from_ref(&words)).unwrap(), [words]);
        let dropout = Dropout {
            gives_mask: true,
            training: Some(1),
        };
        let numbers = tensor1(&[f32::INFINITY, -0.0]);
        let kept = run(&dropout, &[numbers.clone(), tensor0(false)]).unwrap();
        assert_eq!(kept, [numbers.clone(), tensor1(&[true, true])]);
        let error = run(&dropout, &[numbers, tensor0(true)]).unwrap_err();
        assert!(error.is::<BadInput>(), "{error}");
    }
}
