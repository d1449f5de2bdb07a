//! A row of the table of operators.

use onnx_graph::operators::NEWEST;
use onnx_tensor::prelude::*;

use crate::operators::{
    guard::{Guard, Widening},
    numbers::Integers,
    types::Types,
};
use onnx_tensor::node::Attributes;
use onnx_tensor::{faults::Limit, node::Node, operator::Compute};

/// What is known of the inputs of a node that are given: the value of each that is a constant.
pub(crate) type Constants<'c> = &'c [Option<Arc<Tensor>>];

/// Makes an operator by the attributes of its node.
pub(crate) type OfNode = fn(&Node) -> Result<Box<dyn Compute>>;

/// Makes an operator by the attributes of its node and by constants among its inputs.
pub(crate) type OfConstants = fn(&Node, Constants<'_>) -> Result<Box<dyn Compute>>;

/// What makes the operator of a node.
#[derive(Clone, Copy)]
pub(crate) enum Build {
    /// By its attributes.
    Node(OfNode),
    /// By constants among its inputs, too.
    Constants(OfConstants),
    /// The nodes around it run it: it has graphs within, or works on sequences.
    Control,
}

/// A condition on a node by itself: says why it is refused.
pub(crate) type Condition = fn(Attributes<'_>, opset: i64) -> Result<(), Limit>;

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
    pub(crate) domain: &'static str,
    pub(crate) name: &'static str,
    /// The operator set it came with.
    pub(crate) since: i64,
    pub(crate) attributes: &'static [&'static str],
    pub(crate) outputs: Outputs,
    pub(crate) condition: Option<Condition>,
    pub(crate) guard: Guard,
    pub(crate) build: Build,
    /// Whether it checks the types of its inputs itself.
    pub(crate) checks_types: bool,
    /// The inputs that one number is read of.
    pub(crate) scalars: &'static [usize],
    /// What it does with integers.
    pub(crate) integers: Integers,
}

/// An operator of any type.
pub(crate) const fn op(name: &'static str) -> Rule {
    Rule {
        domain: "",
        name,
        since: 1,
        attributes: &[],
        outputs: Outputs::Exactly(1),
        condition: None,
        guard: Guard {
            types: Types::ALL,
            typed_input: 0,
            widening: Widening::None,
        },
        build: Build::Control,
        checks_types: false,
        scalars: &[],
        integers: Integers {
            sizing: &[],
            is_shape: false,
        },
    }
}

/// An operator of the `ai.onnx.ml` set, all of which are computed here.
pub(crate) const fn ml(name: &'static str, build: OfNode) -> Rule {
    Rule {
        domain: "ai.onnx.ml",
        build: Build::Node(build),
        checks_types: true,
        ..op(name)
    }
}

/// An operator of ONNX Runtime's own.
pub(crate) const fn contributed(name: &'static str, build: OfNode) -> Rule {
    Rule {
        domain: "com.microsoft",
        build: Build::Node(build),
        checks_types: true,
        ..op(name)
    }
}

/// An operator that no file has.
pub(crate) const fn inner(name: &'static str, build: OfNode) -> Rule {
    Rule {
        domain: NEWEST,
        build: Build::Node(build),
        checks_types: true,
        ..op(name)
    }
}

impl Rule {
    pub(crate) const fn since(mut self, opset: i64) -> Self {
        self.since = opset;
        self
    }

    pub(crate) const fn takes(mut self, attributes: &'static [&'static str]) -> Self {
        self.attributes = attributes;
        self
    }

    pub(crate) const fn gives(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }

    pub(crate) const fn of(mut self, types: Types) -> Self {
        self.guard.types = types;
        self
    }

    /// The types are those of another input than the first.
    pub(crate) const fn by_input(mut self, index: usize) -> Self {
        self.guard.typed_input = index;
        self
    }

    /// FP16 is computed in FP32, as ONNX Runtime does.
    pub(crate) const fn wide(mut self) -> Self {
        self.guard.widening = Widening::Half;
        self
    }

    /// These inputs are single numbers.
    pub(crate) const fn scalars(mut self, places: &'static [usize]) -> Self {
        self.scalars = places;
        self
    }

    /// These inputs hold axes, positions, counts or lengths.
    pub(crate) const fn sized_by(mut self, inputs: &'static [usize]) -> Self {
        self.integers.sizing = inputs;
        self
    }

    /// This input holds all sizes of a value.
    pub(crate) const fn shaped_by(mut self, inputs: &'static [usize]) -> Self {
        self.integers.is_shape = true;
        self.sized_by(inputs)
    }

    /// BOOL is computed as bytes.
    pub(crate) const fn bytes(mut self) -> Self {
        self.guard.widening = Widening::Truth;
        self
    }

    pub(crate) const fn when(mut self, condition: Condition) -> Self {
        self.condition = Some(condition);
        self
    }

    /// What computes it, and checks the types of its inputs itself.
    pub(crate) const fn own(mut self, build: OfNode) -> Self {
        self.checks_types = true;
        self.by(build)
    }

    pub(crate) const fn by(mut self, build: OfNode) -> Self {
        self.build = Build::Node(build);
        self
    }

    /// Nodes around it run it.
    pub(crate) const fn control(mut self) -> Self {
        self.checks_types = true;
        self
    }

    /// What computes it, made with the constants among its inputs.
    pub(crate) const fn with(mut self, build: OfConstants) -> Self {
        self.build = Build::Constants(build);
        self
    }
}
