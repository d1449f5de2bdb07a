//! A row of the table.

use crate::{NEWEST, Types};

/// An operator, as far as it is data.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Operator {
    /// The domain of its operator set: `""` for ONNX's own, `ai.onnx.ml`, `com.microsoft`, or [`NEWEST`].
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The first operator set in which it is computed.
    pub since: i64,
    /// Whether optimizers write it into files of earlier operator sets too, which are rewritten.
    pub is_written_earlier: bool,
    /// The attributes that are read, in all versions together. [`schema_of`](crate::schema_of) has the operator sets of each.
    pub attributes: &'static [&'static str],
    /// How many outputs a node has.
    pub outputs: Outputs,
    /// The element types that are computed, of the input [`typed_input`](Self::typed_input). `None`: its kernel checks types itself.
    pub types: Option<Types>,
    /// The input that has one of [`types`](Self::types).
    pub typed_input: usize,
    /// The element types that other inputs may have, by index. The kernel checks those of inputs that are not listed.
    pub input_types: &'static [(usize, Types)],
    /// The inputs that have the element type of the input [`typed_input`](Self::typed_input).
    pub alike_inputs: &'static [usize],
    /// The type that elements are computed in.
    pub computed: Computed,
    /// The inputs of which a single number is read.
    pub scalars: &'static [usize],
    /// The inputs with sizes, axes, indices or counts, which must fit 32 bits.
    pub sizing_inputs: &'static [usize],
    /// Whether the numbers of a sizing input are the sizes of one value, which are multiplied.
    pub is_shape: bool,
    /// The inputs whose values decide the sizes of outputs, from the first to before the last.
    pub shaping_inputs: (usize, usize),
    /// Whether the sizes of outputs depend on the elements of any input.
    pub has_unknown_sizes: bool,
    /// What computes it.
    pub runs: Runs,
    /// What it does with the rows of a batch.
    pub rows: Rows,
}

/// How many outputs a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// Always this many.
    Exactly(usize),
    /// One, and more if they are named.
    Optional,
    /// As many as the node names.
    AsNamed,
}

/// The type that elements are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computed {
    /// Their own.
    AsGiven,
    /// FP32 for FP16, as ONNX Runtime does; all others in their own.
    HalfInSingle,
    /// UINT8 for BOOL; all others in their own.
    TruthInBytes,
}

/// What computes an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// A kernel of the built-in runtime.
    Kernel,
    /// The built-in runtime itself: inner graphs, sequences, optional values, constants.
    Steps,
    /// Other operators, by which the built-in runtime replaces it.
    Rewritten,
    /// Only other runtimes. The row says what is known of it nevertheless.
    Elsewhere,
}

/// What an operator does with the rows of a batch: whether row i of its outputs needs row i of its inputs only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Keeps them: an element is computed from those at its own index of the inputs, which are broadcast.
    Elementwise,
    /// Mixes them, or nothing is proven.
    Mixed,
    /// Is random: differs even for equal inputs.
    Random,
    /// Depends on attributes, shapes and axes. A rule in code decides, where there is one.
    ByRule,
}

impl Operator {
    /// The name by which the built-in runtime and the documentation call it: with its domain before it, unless that is ONNX's own.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.domain {
            "" => self.name.to_owned(),
            domain => format!("{domain}/{}", self.name),
        }
    }

    /// Whether the built-in runtime computes it in a version of its operator set, by itself or by other operators.
    #[must_use]
    pub fn is_built_in(&self, opset: i64) -> bool {
        self.runs != Runs::Elsewhere && (self.since <= opset || self.is_written_earlier)
    }

    pub(crate) const fn since(mut self, opset: i64) -> Self {
        self.since = opset;
        self
    }

    pub(crate) const fn written_earlier(mut self) -> Self {
        self.is_written_earlier = true;
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
        self.types = Some(types);
        self
    }

    /// The types are those of another input than the first.
    pub(crate) const fn typed_by(mut self, index: usize) -> Self {
        self.typed_input = index;
        self
    }

    /// Inputs at these indices have one of these types.
    pub(crate) const fn with_inputs(mut self, types: &'static [(usize, Types)]) -> Self {
        self.input_types = types;
        self
    }

    /// Inputs at these indices have the type of the one that the types are those of.
    pub(crate) const fn alike(mut self, inputs: &'static [usize]) -> Self {
        self.alike_inputs = inputs;
        self
    }

    pub(crate) const fn in_fp32(mut self) -> Self {
        self.computed = Computed::HalfInSingle;
        self
    }

    pub(crate) const fn in_bytes(mut self) -> Self {
        self.computed = Computed::TruthInBytes;
        self
    }

    pub(crate) const fn scalars(mut self, inputs: &'static [usize]) -> Self {
        self.scalars = inputs;
        self
    }

    /// These inputs hold axes, indices, counts or lengths.
    pub(crate) const fn sized_by(mut self, inputs: &'static [usize]) -> Self {
        self.sizing_inputs = inputs;
        self
    }

    /// This input holds all sizes of a value.
    pub(crate) const fn shaped_by(mut self, inputs: &'static [usize]) -> Self {
        self.is_shape = true;
        self.sized_by(inputs)
    }

    /// The sizes of outputs follow from the values of these inputs.
    pub(crate) const fn sizes_from(mut self, first: usize, end: usize) -> Self {
        self.shaping_inputs = (first, end);
        self
    }

    pub(crate) const fn sizes_unknown(mut self) -> Self {
        self.has_unknown_sizes = true;
        self
    }

    pub(crate) const fn elementwise(mut self) -> Self {
        self.rows = Rows::Elementwise;
        self
    }

    pub(crate) const fn mixing(mut self) -> Self {
        self.rows = Rows::Mixed;
        self
    }

    pub(crate) const fn random(mut self) -> Self {
        self.rows = Rows::Random;
        self
    }

    /// The steps of the runtime run it.
    pub(crate) const fn by_steps(mut self) -> Self {
        self.runs = Runs::Steps;
        self
    }

    pub(crate) const fn rewritten(mut self) -> Self {
        self.runs = Runs::Rewritten;
        self
    }

    pub(crate) const fn elsewhere(mut self) -> Self {
        self.runs = Runs::Elsewhere;
        self
    }
}

/// An operator of ONNX's own set.
pub(crate) const fn op(name: &'static str) -> Operator {
    Operator {
        domain: "",
        name,
        since: 1,
        is_written_earlier: false,
        attributes: &[],
        outputs: Outputs::Exactly(1),
        types: None,
        typed_input: 0,
        input_types: &[],
        alike_inputs: &[],
        computed: Computed::AsGiven,
        scalars: &[],
        sizing_inputs: &[],
        is_shape: false,
        shaping_inputs: (0, 0),
        has_unknown_sizes: false,
        runs: Runs::Kernel,
        rows: Rows::ByRule,
    }
}

/// An operator of the `ai.onnx.ml` set.
pub(crate) const fn ml(name: &'static str) -> Operator {
    Operator {
        domain: "ai.onnx.ml",
        ..op(name)
    }
}

/// An operator of ONNX Runtime's own.
pub(crate) const fn contributed(name: &'static str) -> Operator {
    Operator {
        domain: "com.microsoft",
        ..op(name)
    }
}

/// An operator that no file has.
pub(crate) const fn inner(name: &'static str) -> Operator {
    Operator {
        domain: NEWEST,
        ..op(name)
    }
}
