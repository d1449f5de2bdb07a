//! A row of the table of operators.

use onnx_graph::operators::NEWEST;
use tract_hir::internal::*;

use super::{
    attributes::Attributes,
    guard::{Check, Choice, Guard, Widening},
    numbers::{Arithmetic, Integers},
    types::Types,
};
use crate::{building::BuildContext, faults::Limit, lowered::OnnxNode};

/// Makes an operator from a node.
pub(super) type Build = fn(&BuildContext, &OnnxNode) -> TractResult<Box<dyn InferenceOp>>;

/// A condition on a node by itself: says why it is refused.
pub(super) type Condition = fn(Attributes<'_>, opset: i64) -> Result<(), Limit>;

/// How many outputs a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outputs {
    /// So many, wanted or not.
    Exactly(usize),
    /// One, and more if they are wanted.
    Optional,
    /// As many as the node names.
    AsNamed,
}

/// A row of the table.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub(super) domain: &'static str,
    pub(super) name: &'static str,
    /// The operator set it came with.
    pub(super) since: i64,
    pub(super) attributes: &'static [&'static str],
    pub(super) outputs: Outputs,
    pub(super) condition: Option<Condition>,
    pub(super) check: Option<Check>,
    pub(super) guard: Guard,
    /// What computes it, and checks everything itself.
    pub(super) own: Option<Build>,
    /// What computes it behind the guard: an operator of tract, or one of ours.
    pub(super) inner: Option<Build>,
    /// What computes it for some types.
    pub(super) instead: Option<(Types, Build)>,
    /// The inputs that one number is read of; tract reads past the end of those without any.
    pub(super) scalars: &'static [usize],
    /// Which other nodes that also computes.
    pub(super) instead_if: Option<Choice>,
    /// What it does with integers.
    pub(super) integers: Integers,
}

/// An operator of any type.
pub(super) const fn op(name: &'static str) -> Rule {
    Rule {
        domain: "",
        name,
        since: 1,
        attributes: &[],
        outputs: Outputs::Exactly(1),
        condition: None,
        check: None,
        guard: Guard {
            types: Types::ALL,
            typed_input: 0,
            widening: Widening::None,
        },
        own: None,
        inner: None,
        instead: None,
        scalars: &[],
        instead_if: None,
        integers: Integers {
            sizing: &[],
            is_shape: false,
            arithmetic: None,
        },
    }
}

/// An operator of the `ai.onnx.ml` set, all of which are computed here.
pub(super) const fn ml(name: &'static str, build: Build) -> Rule {
    Rule {
        domain: "ai.onnx.ml",
        own: Some(build),
        ..op(name)
    }
}

/// An operator of ONNX Runtime's own.
pub(super) const fn contributed(name: &'static str, build: Build) -> Rule {
    Rule {
        domain: "com.microsoft",
        own: Some(build),
        ..op(name)
    }
}

/// An operator that no file has.
pub(super) const fn inner(name: &'static str, build: Build) -> Rule {
    Rule {
        domain: NEWEST,
        own: Some(build),
        ..op(name)
    }
}

impl Rule {
    pub(super) const fn since(mut self, opset: i64) -> Self {
        self.since = opset;
        self
    }

    pub(super) const fn takes(mut self, attributes: &'static [&'static str]) -> Self {
        self.attributes = attributes;
        self
    }

    pub(super) const fn gives(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }

    pub(super) const fn of(mut self, types: Types) -> Self {
        self.guard.types = types;
        self
    }

    /// The types are those of another input than the first.
    pub(super) const fn by_input(mut self, index: usize) -> Self {
        self.guard.typed_input = index;
        self
    }

    /// FP16 is computed in FP32, as ONNX Runtime does.
    pub(super) const fn wide(mut self) -> Self {
        self.guard.widening = Widening::Half;
        self
    }

    /// These inputs are single numbers.
    pub(super) const fn scalars(mut self, places: &'static [usize]) -> Self {
        self.scalars = places;
        self
    }

    /// These inputs hold axes, positions, counts or lengths.
    pub(super) const fn sized_by(mut self, inputs: &'static [usize]) -> Self {
        self.integers.sizing = inputs;
        self
    }

    /// This input holds all sizes of a value.
    pub(super) const fn shaped_by(mut self, inputs: &'static [usize]) -> Self {
        self.integers.is_shape = true;
        self.sized_by(inputs)
    }

    /// It computes new sizes where its inputs are sizes.
    pub(super) const fn counts(mut self, arithmetic: Arithmetic) -> Self {
        self.integers.arithmetic = Some(arithmetic);
        self
    }

    /// BOOL is computed as bytes.
    pub(super) const fn bytes(mut self) -> Self {
        self.guard.widening = Widening::Truth;
        self
    }

    /// What computes it instead for some types does so too for these nodes.
    pub(super) const fn also_if(mut self, choice: Choice) -> Self {
        self.instead_if = Some(choice);
        self
    }

    pub(super) const fn when(mut self, condition: Condition) -> Self {
        self.condition = Some(condition);
        self
    }

    pub(super) const fn given(mut self, check: Check) -> Self {
        self.check = Some(check);
        self
    }

    pub(super) const fn own(mut self, build: Build) -> Self {
        self.own = Some(build);
        self
    }

    pub(super) const fn by(mut self, build: Build) -> Self {
        self.inner = Some(build);
        self
    }

    pub(super) const fn instead(mut self, types: Types, build: Build) -> Self {
        self.instead = Some((types, build));
        self
    }
}
