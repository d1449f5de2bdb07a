//! Operators of tract's whose types and shapes are inferred as tract does, and which become others in a graph whose types are known.

use std::fmt::Debug;

use tract_hir::{infer::rules::*, internal::*};

/// What an operator becomes.
pub(super) trait Rewire: Clone + Debug + Send + Sync + 'static {
    /// As [`Expansion::wire`], which does it where nothing else is wanted.
    fn wire<E: Expansion>(
        &self,
        operator: &E,
        prefix: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>>;
}

/// An operator, and what it becomes.
#[derive(Clone, Debug)]
pub(super) struct Rewired<E, R>(pub(super) E, pub(super) R);

impl<E: Expansion + Clone, R: Rewire> Expansion for Rewired<E, R> {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    fn validation(&self) -> Validation {
        self.0.validation()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        self.0.rules(solver, inputs, outputs)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        self.1.wire(&self.0, prefix, model, inputs)
    }
}
