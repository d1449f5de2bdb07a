//! Defines a row of the operator table.

use crate::{NEWEST, Types};

/// An operator, described as data.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Operator {
    /// The domain of the operator set that contains the operator: `""` for ONNX's own, `ai.onnx.ml`,
    /// `com.microsoft`, or [`NEWEST`].
    pub domain: &'static str,
    /// The operator's name, without its domain.
    pub name: &'static str,
    /// The version of the first supported operator set.
    pub since: i64,
    /// Whether optimizers also write the operator into files with earlier operator sets; such nodes are
    /// rewritten.
    pub is_written_earlier: bool,
    /// The names of the attributes that are read, in all versions of the operator set. See
    /// [`schema_of`](crate::schema_of) for the operator sets that define each attribute.
    pub attributes: &'static [&'static str],
    /// How many outputs a node has.
    pub outputs: Outputs,
    /// The supported element types of the input [`typed_input`](Self::typed_input). With `None`, the kernel
    /// checks the types itself.
    pub types: Option<Types>,
    /// The index of the input that [`types`](Self::types) restricts.
    pub typed_input: usize,
    /// The supported element types of other inputs, by index. The kernel checks the types of unlisted inputs.
    pub input_types: &'static [(usize, Types)],
    /// The inputs that must have the element type of the input [`typed_input`](Self::typed_input).
    pub alike_inputs: &'static [usize],
    /// The type in which elements are computed.
    pub computed: Computed,
    /// The indices of the inputs from which a single number is read.
    pub scalars: &'static [usize],
    /// The indices of the inputs that contain sizes, axes, indices or counts, which must fit into 32 bits.
    pub sizing_inputs: &'static [usize],
    /// Whether a sizing input contains all dimensions of one value, so that their product is limited as well.
    pub is_shape: bool,
    /// The range of inputs whose values determine the sizes of outputs: the first index, and the index after
    /// the last.
    pub shaping_inputs: (usize, usize),
    /// Whether the sizes of outputs depend on the elements of any input.
    pub has_unknown_sizes: bool,
    /// How the built-in runtime runs the operator, if it does.
    pub runs: Runs,
    /// How the operator treats the rows of a batch.
    pub rows: Rows,
}

/// How many outputs a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// Always this number of outputs.
    Exactly(usize),
    /// As many outputs as the node names, at least one.
    Optional,
    /// As many outputs as the node names.
    AsNamed,
}

/// The type in which elements are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computed {
    /// Elements are computed in the type of the inputs.
    AsGiven,
    /// FP32 for inputs of FP16, as in ONNX Runtime; the type of the inputs for all other types.
    HalfInSingle,
    /// UINT8 for inputs of BOOL; the type of the inputs for all other types.
    TruthInBytes,
}

/// How the built-in runtime runs an operator, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// A kernel of the built-in runtime runs the operator.
    Kernel,
    /// The built-in runtime itself runs the operator: subgraphs, sequences, optional values, constants.
    Steps,
    /// The built-in runtime replaces the operator with other operators.
    Rewritten,
    /// Only other runtimes support the operator. Its row still lists its properties.
    Elsewhere,
}

/// How an operator treats the rows of a batch: whether row i of its outputs depends only on row i of its
/// inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The operator keeps rows independent: each output element is computed from the elements at the same
    /// index of the broadcast inputs.
    Elementwise,
    /// The operator mixes rows, or nothing is known about it.
    Mixed,
    /// The operator is random: outputs differ even for equal inputs.
    Random,
    /// Whether rows stay independent depends on attributes, shapes and axes. The code of the proof has a rule
    /// for the operator; without a rule, the proof fails.
    ByRule,
}

impl Operator {
    /// Returns the name that the built-in runtime and the documentation use: with its domain as a prefix,
    /// except for ONNX's own domain.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.domain {
            "" => self.name.to_owned(),
            domain => format!("{domain}/{}", self.name),
        }
    }

    /// Returns whether the built-in runtime supports the operator in version `opset` of its operator set,
    /// with a kernel or by replacement.
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

    /// Sets the index of the input whose types the field `types` restricts.
    pub(crate) const fn typed_by(mut self, index: usize) -> Self {
        self.typed_input = index;
        self
    }

    /// Sets the supported types of other inputs, by index.
    pub(crate) const fn with_inputs(mut self, types: &'static [(usize, Types)]) -> Self {
        self.input_types = types;
        self
    }

    /// Requires the typed input's element type for the inputs at these indices.
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

    /// Marks inputs that contain axes, indices, counts or lengths.
    pub(crate) const fn sized_by(mut self, inputs: &'static [usize]) -> Self {
        self.sizing_inputs = inputs;
        self
    }

    /// Marks an input that contains all dimensions of a value.
    pub(crate) const fn shaped_by(mut self, inputs: &'static [usize]) -> Self {
        self.is_shape = true;
        self.sized_by(inputs)
    }

    /// Sets the range of inputs whose values determine the sizes of outputs.
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

    /// Marks an operator that the built-in runtime itself runs, without a kernel.
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

/// Creates a row for an operator of ONNX's own set.
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

/// Creates a row for an operator of the `ai.onnx.ml` set.
pub(crate) const fn ml(name: &'static str) -> Operator {
    Operator {
        domain: "ai.onnx.ml",
        ..op(name)
    }
}

/// Creates a row for one of ONNX Runtime's own operators.
pub(crate) const fn contributed(name: &'static str) -> Operator {
    Operator {
        domain: "com.microsoft",
        ..op(name)
    }
}

/// Creates a row for an operator that only occurs in rewritten graphs.
pub(crate) const fn inner(name: &'static str) -> Operator {
    Operator {
        domain: NEWEST,
        ..op(name)
    }
}
