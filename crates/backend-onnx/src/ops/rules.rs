//! Which operators are computed, and under which conditions.
//!
//! An operator that has no row here is refused by its name, an attribute that its row does not list by the
//! attribute's. Where tract computes something wrongly, the row narrows what is admitted, or another implementation
//! takes its place; the reason stands beside it. `docs/onnx.md` has the table for readers.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use oip_types::ServiceError;
use tensor_core::Quoted;
use tract_onnx::{
    Onnx,
    model::{OnnxOpRegister, ParsingContext},
    pb::NodeProto,
    tract_hir::internal::*,
};

use super::{
    attributes::Attributes,
    cast, conditions as when, elementwise,
    guard::{Check, Guard, Guarded, Widening},
    lookup,
    output::Output,
    quantize, reduce,
    types::Types,
};
use crate::ml;

/// The versions of ONNX's own operator set that models may use.
pub(crate) const OPSETS: std::ops::RangeInclusive<i64> = 1..=23;

/// Makes an operator from a node, as tract's own functions do.
type Build = fn(&ParsingContext<'_>, &NodeProto) -> TractResult<Box<dyn InferenceOp>>;

/// A condition on a node by itself: says why it is refused.
type Condition = fn(Attributes<'_>, opset: i64) -> Result<(), String>;

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
    domain: &'static str,
    name: &'static str,
    /// The operator set it came with.
    since: i64,
    attributes: &'static [&'static str],
    outputs: Outputs,
    condition: Option<Condition>,
    check: Option<Check>,
    guard: Guard,
    /// What computes it here, `None` for tract's own.
    own: Option<Build>,
    /// What computes it for some types.
    instead: Option<(Types, Build)>,
}

/// An operator that tract computes for any type.
const fn op(name: &'static str) -> Rule {
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
        instead: None,
    }
}

/// An operator of the `ai.onnx.ml` set, all of which are computed here.
const fn ml(name: &'static str, build: Build) -> Rule {
    Rule {
        domain: "ai.onnx.ml",
        own: Some(build),
        ..op(name)
    }
}

impl Rule {
    const fn since(mut self, opset: i64) -> Self {
        self.since = opset;
        self
    }

    const fn takes(mut self, attributes: &'static [&'static str]) -> Self {
        self.attributes = attributes;
        self
    }

    const fn gives(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }

    const fn of(mut self, types: Types) -> Self {
        self.guard.types = types;
        self
    }

    /// The types are those of another input than the first.
    const fn by_input(mut self, index: usize) -> Self {
        self.guard.typed_input = index;
        self
    }

    /// FP16 is computed in FP32, as ONNX Runtime does.
    const fn wide(mut self) -> Self {
        self.guard.widening = Widening::Half;
        self
    }

    /// FP32 is computed in FP64.
    const fn single(mut self) -> Self {
        self.guard.widening = Widening::Single;
        self
    }

    const fn when(mut self, condition: Condition) -> Self {
        self.condition = Some(condition);
        self
    }

    const fn given(mut self, check: Check) -> Self {
        self.check = Some(check);
        self
    }

    const fn own(mut self, build: Build) -> Self {
        self.own = Some(build);
        self
    }

    const fn instead(mut self, types: Types, build: Build) -> Self {
        self.instead = Some((types, build));
        self
    }
}

const FLOATS: Types = Types::FLOATS;
const SHORT_FLOATS: Types = Types::SHORT_FLOATS;
const NUMBERS: Types = Types::NUMBERS;
const FIXED: Types = Types::FIXED;
const ALL: Types = Types::ALL;
/// What matrix products are computed for.
const FACTORS: Types = FLOATS.and(Types::I32);
/// What a reduction of integers is computed for here.
const WHOLE: Types = Types::INTEGERS.and(Types::BOOL);

/// Before operator set 7, operators of two inputs broadcast only when told to, and then as they do now.
const LEGACY: &[&str] = &["broadcast"];
const AXIS: &[&str] = &["axis"];
const ALPHA: &[&str] = &["alpha"];
const WINDOW: &[&str] = &["output_datatype", "periodic"];
const REDUCE: &[&str] = &["axes", "keepdims", "noop_with_empty_axes"];
const ARG: &[&str] = &["axis", "keepdims", "select_last_index"];
const CONV: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
];

/// The table, by name.
static RULES: &[Rule] = &[
    op("Abs").of(NUMBERS),
    op("Acos").of(FLOATS).wide(),
    op("Acosh").since(9).of(FLOATS).wide(),
    op("Add").takes(LEGACY).of(NUMBERS),
    op("And").takes(LEGACY).of(Types::BOOL),
    op("ArgMax")
        .takes(ARG)
        .of(FLOATS.and(Types::SIGNED).and(Types::U8).and(Types::U16)),
    op("ArgMin")
        .takes(ARG)
        .of(FLOATS.and(Types::SIGNED).and(Types::U8).and(Types::U16)),
    op("Asin").of(FLOATS).wide(),
    op("Asinh").since(9).of(FLOATS).wide(),
    op("Atan").of(FLOATS).wide(),
    op("Atanh").since(9).of(FLOATS).wide(),
    op("AveragePool")
        .takes(&[
            "auto_pad",
            "ceil_mode",
            "count_include_pad",
            "dilations",
            "kernel_shape",
            "pads",
            "strides",
        ])
        .of(FLOATS)
        .wide()
        .when(when::average_pool),
    op("BatchNormalization")
        .gives(Outputs::Optional)
        .takes(&["epsilon", "is_test", "momentum", "spatial", "training_mode"])
        .of(FLOATS)
        .wide()
        .when(when::batch_normalization),
    op("BitwiseAnd").since(18).of(Types::INTEGERS),
    op("BitwiseNot").since(18).of(Types::INTEGERS),
    op("BitwiseOr").since(18).of(Types::INTEGERS),
    op("BitwiseXor").since(18).of(Types::INTEGERS),
    op("BlackmanWindow").since(17).takes(WINDOW),
    // tract turns INT64 into symbolic dimensions, by way of 32 bits. Dimensions stay symbolic.
    op("Cast").takes(&["saturate", "to"]).instead(ALL, cast::cast),
    op("CastLike").since(15).takes(&["saturate"]).own(cast::cast_like),
    op("Ceil").of(FLOATS),
    op("Celu").since(12).takes(ALPHA).of(Types::F32).when(when::celu),
    op("Clip").takes(&["max", "min"]).of(NUMBERS),
    op("Concat").takes(AXIS),
    op("Constant").takes(&[
        "value",
        "value_float",
        "value_floats",
        "value_int",
        "value_ints",
        "value_string",
        "value_strings",
    ]),
    op("ConstantOfShape").since(9).takes(&["value"]),
    op("Conv").takes(CONV).of(FLOATS).wide(),
    op("ConvInteger").since(10).takes(CONV),
    op("ConvTranspose")
        .takes(&[
            "auto_pad",
            "dilations",
            "group",
            "kernel_shape",
            "output_padding",
            "output_shape",
            "pads",
            "strides",
        ])
        .of(FLOATS)
        .wide()
        .when(when::conv_transpose),
    op("Cos").of(FLOATS).wide(),
    op("Cosh").since(9).of(FLOATS).wide(),
    op("CumSum")
        .since(11)
        .takes(&["exclusive", "reverse"])
        .of(NUMBERS),
    op("DFT")
        .since(17)
        .takes(&["axis", "inverse", "onesided"])
        .of(FLOATS)
        .when(when::dft)
        .single(),
    op("DepthToSpace").takes(&["blocksize", "mode"]).of(FIXED),
    op("DequantizeLinear")
        .since(10)
        .takes(&["axis", "block_size"])
        .when(when::not_blocked)
        .own(quantize::dequantize),
    op("Div").takes(LEGACY).of(NUMBERS),
    op("Dropout")
        .gives(Outputs::Optional)
        .takes(&["is_test", "ratio", "seed"])
        .when(when::dropout)
        .given(when::dropout_inputs),
    op("DynamicQuantizeLinear")
        .gives(Outputs::Exactly(3))
        .since(11)
        .own(quantize::quantize_dynamically),
    op("Einsum")
        .since(12)
        .takes(&["equation"])
        .of(FACTORS)
        .wide()
        .when(when::einsum),
    op("Elu").takes(ALPHA).of(FLOATS).wide(),
    op("Equal").takes(LEGACY).of(NUMBERS.and(Types::STRING)),
    op("Erf").since(9).of(SHORT_FLOATS).wide(),
    op("Exp").of(FLOATS).wide(),
    op("Expand").since(8),
    op("EyeLike").since(9).takes(&["dtype", "k"]),
    op("Flatten").takes(AXIS),
    op("Floor").of(FLOATS),
    op("GRU")
        .gives(Outputs::Optional)
        .takes(&[
            "activations",
            "clip",
            "direction",
            "hidden_size",
            "layout",
            "linear_before_reset",
        ])
        .of(Types::F32)
        .when(when::recurrent)
        .given(when::recurrent_inputs),
    op("Gather").takes(AXIS),
    op("GatherElements").since(11).takes(AXIS),
    op("GatherND").since(11).takes(&["batch_dims"]),
    op("Gelu")
        .since(20)
        .takes(&["approximate"])
        .of(SHORT_FLOATS)
        .wide(),
    op("Gemm")
        .takes(&["alpha", "beta", "broadcast", "transA", "transB"])
        .of(SHORT_FLOATS)
        .wide(),
    op("GlobalAveragePool").of(FLOATS).wide(),
    op("GlobalMaxPool").of(FLOATS),
    op("Greater").takes(LEGACY).of(NUMBERS),
    op("GreaterOrEqual").since(12).of(NUMBERS),
    op("GridSample")
        .since(16)
        .takes(&["align_corners", "mode", "padding_mode"])
        .of(FLOATS)
        .wide()
        .given(when::grid_sample),
    op("GroupNormalization")
        .since(18)
        .takes(&["epsilon", "num_groups", "stash_type"])
        .of(FLOATS)
        .wide(),
    op("HammingWindow").since(17).takes(WINDOW),
    op("HannWindow").since(17).takes(WINDOW),
    op("HardSigmoid").takes(&["alpha", "beta"]).of(FLOATS).wide(),
    op("HardSwish")
        .since(14)
        .of(FLOATS)
        .wide()
        .instead(Types::F64, elementwise::double),
    op("Hardmax").takes(AXIS).of(FLOATS),
    op("Identity"),
    op("If")
        .gives(Outputs::AsNamed)
        .takes(&["else_branch", "then_branch"]),
    op("InstanceNormalization").takes(&["epsilon"]).of(FLOATS).wide(),
    op("IsInf")
        .since(10)
        .takes(&["detect_negative", "detect_positive"])
        .of(FLOATS),
    op("IsNaN").since(9).of(FLOATS),
    op("LRN")
        .takes(&["alpha", "beta", "bias", "size"])
        .of(FLOATS)
        .wide()
        .when(when::lrn),
    op("LSTM")
        .gives(Outputs::Optional)
        .takes(&[
            "activations",
            "clip",
            "direction",
            "hidden_size",
            "input_forget",
            "layout",
        ])
        .of(Types::F32)
        .when(when::recurrent)
        .given(when::recurrent_inputs),
    op("LayerNormalization")
        .gives(Outputs::Optional)
        .since(17)
        .takes(&["axis", "epsilon", "stash_type"])
        .of(FLOATS)
        .wide(),
    op("LeakyRelu")
        .takes(ALPHA)
        .of(FLOATS)
        .wide()
        .instead(Types::F64, elementwise::double),
    op("Less").takes(LEGACY).of(NUMBERS),
    op("LessOrEqual").since(12).of(NUMBERS),
    op("Log").of(FLOATS).wide(),
    op("LogSoftmax").takes(AXIS).own(elementwise::log_softmax),
    op("LpNormalization").takes(&["axis", "p"]).of(FLOATS).wide(),
    op("MatMul").of(FACTORS).wide(),
    op("MatMulInteger").since(10),
    op("Max").of(NUMBERS),
    op("MaxPool")
        .gives(Outputs::Optional)
        .takes(&[
            "auto_pad",
            "ceil_mode",
            "dilations",
            "kernel_shape",
            "pads",
            "storage_order",
            "strides",
        ])
        .of(FLOATS.and(Types::I8).and(Types::U8))
        .when(when::pool),
    op("Mean").of(FLOATS).wide(),
    op("MeanVarianceNormalization")
        .since(9)
        .takes(&["axes"])
        .of(FLOATS)
        .wide(),
    op("MelWeightMatrix").since(17).takes(&["output_datatype"]),
    op("Min").of(NUMBERS),
    op("Mish").since(18).of(FLOATS).wide(),
    op("Mod").since(10).takes(&["fmod"]).own(elementwise::remainder),
    op("Mul").takes(LEGACY).of(NUMBERS),
    op("Neg").of(FLOATS.and(Types::SIGNED)),
    op("NonMaxSuppression")
        .since(10)
        .takes(&["center_point_box"])
        .when(when::non_max_suppression),
    op("NonZero").since(9).of(FIXED).given(when::not_scalar),
    op("Not").of(Types::BOOL),
    op("OneHot").since(9).takes(AXIS).own(lookup::one_hot),
    op("Or").takes(LEGACY).of(Types::BOOL),
    op("PRelu").of(FLOATS),
    op("Pad")
        .takes(&["mode", "pads", "value"])
        .of(NUMBERS)
        .when(when::pad)
        .given(when::pads),
    op("Pow").takes(LEGACY).of(FLOATS).wide().given(when::pow),
    op("QLinearConv").since(10).takes(CONV).given(when::q_linear_conv),
    op("QLinearMatMul").since(10).given(when::q_linear_mat_mul),
    op("QuantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "saturate"])
        .when(when::not_blocked)
        .own(quantize::quantize),
    op("RNN")
        .gives(Outputs::Optional)
        .takes(&["activations", "clip", "direction", "hidden_size", "layout"])
        .of(Types::F32)
        .when(when::recurrent)
        .given(when::recurrent_inputs),
    op("Range").since(11).of(NUMBERS),
    op("Reciprocal").of(FLOATS).wide(),
    op("ReduceL1")
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .instead(WHOLE, reduce::reduce),
    op("ReduceL2").takes(REDUCE).of(FLOATS).wide(),
    op("ReduceLogSum").takes(REDUCE).of(FLOATS).wide(),
    op("ReduceLogSumExp").takes(REDUCE).of(FLOATS).wide(),
    op("ReduceMax")
        .takes(REDUCE)
        .of(FIXED)
        .instead(WHOLE, reduce::reduce),
    op("ReduceMean")
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .instead(WHOLE, reduce::reduce),
    op("ReduceMin")
        .takes(REDUCE)
        .of(FIXED)
        .instead(WHOLE, reduce::reduce),
    op("ReduceProd")
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .instead(WHOLE, reduce::reduce),
    op("ReduceSum")
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .instead(WHOLE, reduce::reduce),
    op("ReduceSumSquare")
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .instead(WHOLE, reduce::reduce),
    op("Relu").of(FLOATS.and(Types::SIGNED)),
    op("Reshape").since(5).takes(&["allowzero"]),
    op("Resize")
        .since(11)
        .takes(&[
            "antialias",
            "axes",
            "coordinate_transformation_mode",
            "cubic_coeff_a",
            "exclude_outside",
            "extrapolation_value",
            "keep_aspect_ratio_policy",
            "mode",
            "nearest_mode",
        ])
        .wide()
        .given(when::resize),
    op("Round")
        .since(11)
        .of(FLOATS)
        .instead(Types::F64, elementwise::double),
    op("STFT").since(17).takes(&["onesided"]).of(FLOATS).single(),
    op("Scan").since(9).gives(Outputs::AsNamed).takes(&[
        "body",
        "num_scan_inputs",
        "scan_input_axes",
        "scan_input_directions",
        "scan_output_axes",
        "scan_output_directions",
    ]),
    op("Scatter").takes(AXIS).of(NUMBERS),
    op("ScatterElements")
        .since(11)
        .takes(&["axis", "reduction"])
        .of(NUMBERS),
    op("ScatterND").since(11).takes(&["reduction"]).of(NUMBERS),
    op("Selu").takes(&["alpha", "gamma"]).of(FLOATS).wide(),
    op("Shape").takes(&["end", "start"]),
    op("Shrink").since(9).takes(&["bias", "lambd"]).of(FLOATS).wide(),
    op("Sigmoid")
        .of(FLOATS)
        .wide()
        .instead(Types::F64, elementwise::double),
    op("Sign").since(9).of(FLOATS.and(Types::SIGNED)),
    op("Sin").of(FLOATS).wide(),
    op("Sinh").since(9).of(FLOATS).wide(),
    op("Size"),
    op("Slice").takes(&["axes", "ends", "starts"]),
    op("Softmax").takes(AXIS).of(FLOATS).wide(),
    op("Softplus").of(FLOATS).wide(),
    op("Softsign").of(FLOATS).wide(),
    op("SpaceToDepth").takes(&["blocksize"]).of(FIXED),
    op("Split")
        .gives(Outputs::AsNamed)
        .takes(&["axis", "num_outputs", "split"]),
    op("Sqrt").of(FLOATS).wide(),
    op("Squeeze").takes(&["axes"]),
    op("Sub").takes(LEGACY).of(NUMBERS),
    op("Sum").of(FLOATS).wide(),
    op("Tan").of(FLOATS).wide(),
    op("Tanh").of(FLOATS).wide(),
    op("ThresholdedRelu").since(10).takes(ALPHA).of(FLOATS).wide(),
    op("Tile").since(6).of(FIXED),
    op("TopK")
        .gives(Outputs::Exactly(2))
        .since(10)
        .takes(&["axis", "largest", "sorted"])
        .of(NUMBERS),
    op("Transpose").takes(&["perm"]),
    op("Trilu").since(14).takes(&["upper"]).of(FIXED),
    op("Unsqueeze").takes(&["axes"]),
    op("Where").since(9).by_input(1),
    op("Xor").takes(LEGACY).of(Types::BOOL),
    ml("ArrayFeatureExtractor", ml::extractor),
    ml("Binarizer", ml::binarizer).takes(&["threshold"]),
    ml("FeatureVectorizer", ml::vectorizer).takes(&["inputdimensions"]),
    ml("Imputer", ml::imputer).takes(&[
        "imputed_value_floats",
        "imputed_value_int64s",
        "replaced_value_float",
        "replaced_value_int64",
    ]),
    ml("LabelEncoder", ml::label_encoder).takes(&[
        "classes_strings",
        "default_float",
        "default_int64",
        "default_string",
        "default_tensor",
        "keys_floats",
        "keys_int64s",
        "keys_strings",
        "keys_tensor",
        "values_floats",
        "values_int64s",
        "values_strings",
        "values_tensor",
    ]),
    ml("LinearClassifier", ml::linear_classifier)
        .gives(Outputs::Exactly(2))
        .takes(&[
            "classlabels_ints",
            "classlabels_strings",
            "coefficients",
            "intercepts",
            "multi_class",
            "post_transform",
        ]),
    ml("LinearRegressor", ml::linear_regressor).takes(&[
        "coefficients",
        "intercepts",
        "post_transform",
        "targets",
    ]),
    ml("Normalizer", ml::normalizer).takes(&["norm"]),
    ml("OneHotEncoder", ml::one_hot).takes(&["cats_int64s", "cats_strings", "zeros"]),
    ml("SVMClassifier", ml::svm_classifier)
        .gives(Outputs::Exactly(2))
        .takes(&[
            "classlabels_ints",
            "classlabels_strings",
            "coefficients",
            "kernel_params",
            "kernel_type",
            "post_transform",
            "prob_a",
            "prob_b",
            "rho",
            "support_vectors",
            "vectors_per_class",
        ]),
    ml("SVMRegressor", ml::svm_regressor).takes(&[
        "coefficients",
        "kernel_params",
        "kernel_type",
        "n_supports",
        "one_class",
        "post_transform",
        "rho",
        "support_vectors",
    ]),
    ml("Scaler", ml::scaler).takes(&["offset", "scale"]),
    ml("TreeEnsembleClassifier", ml::tree_classifier)
        .gives(Outputs::Exactly(2))
        .takes(&[
            "base_values",
            "base_values_as_tensor",
            "class_ids",
            "class_nodeids",
            "class_treeids",
            "class_weights",
            "class_weights_as_tensor",
            "classlabels_int64s",
            "classlabels_strings",
            "nodes_falsenodeids",
            "nodes_featureids",
            "nodes_hitrates",
            "nodes_hitrates_as_tensor",
            "nodes_missing_value_tracks_true",
            "nodes_modes",
            "nodes_nodeids",
            "nodes_treeids",
            "nodes_truenodeids",
            "nodes_values",
            "nodes_values_as_tensor",
            "post_transform",
        ]),
    ml("TreeEnsembleRegressor", ml::tree_regressor).takes(&[
        "aggregate_function",
        "base_values",
        "base_values_as_tensor",
        "n_targets",
        "nodes_falsenodeids",
        "nodes_featureids",
        "nodes_hitrates",
        "nodes_hitrates_as_tensor",
        "nodes_missing_value_tracks_true",
        "nodes_modes",
        "nodes_nodeids",
        "nodes_treeids",
        "nodes_truenodeids",
        "nodes_values",
        "nodes_values_as_tensor",
        "post_transform",
        "target_ids",
        "target_nodeids",
        "target_treeids",
        "target_weights",
        "target_weights_as_tensor",
    ]),
];

/// The table by registered name.
static BY_NAME: LazyLock<HashMap<String, &'static Rule>> = LazyLock::new(|| {
    RULES
        .iter()
        .map(|rule| (registered_name(rule.domain, rule.name), rule))
        .collect()
});

/// tract's own operators.
static TRACT: LazyLock<OnnxOpRegister> = LazyLock::new(|| tract_onnx::onnx().op_register);

/// The name under which tract finds an operator; it knows nothing of domains.
pub(crate) fn registered_name(domain: &str, op_type: &str) -> String {
    match domain {
        "" => op_type.to_owned(),
        domain => format!("{domain}/{op_type}"),
    }
}

/// A reader of models that builds what the table has, and nothing else.
pub(crate) fn onnx() -> Onnx {
    let mut op_register = OnnxOpRegister::default();
    for name in BY_NAME.keys() {
        op_register.0.insert(name.clone(), build);
    }
    op_register
        .0
        .insert(OUTPUT.to_owned(), |_, _| Ok((Box::new(Output), vec![])));
    Onnx {
        op_register,
        // What a file says of values in between is not passed on.
        ignore_value_info: true,
        ..Onnx::default()
    }
}

/// The registered name of what stands before each output of a model.
pub(crate) const OUTPUT: &str = "Output";

/// How many outputs an operator has, `None` for unknown ones.
pub(crate) fn outputs(domain: &str, op_type: &str) -> Option<Outputs> {
    BY_NAME
        .get(&registered_name(domain, op_type))
        .map(|rule| rule.outputs)
}

/// Checks what can be seen of a node by itself. `opset` is the version of its operator set, if the file imports it.
pub(crate) fn check(
    node: &NodeProto,
    domain: &str,
    op_type: &str,
    opset: Option<i64>,
) -> Result<(), ServiceError> {
    let refused = |reason: String| ServiceError::invalid(reason);
    let versions = match domain {
        "" => OPSETS,
        "ai.onnx.ml" => 1..=5,
        _ => {
            let domain = Quoted(domain);
            return Err(refused(format!(
                "operators of the domain {domain} are not supported"
            )));
        }
    };
    let opset = opset.ok_or_else(|| refused("the file does not import the operator's set".to_owned()))?;
    if !versions.contains(&opset) {
        let (first, last) = versions.into_inner();
        let set = if domain.is_empty() { "ONNX" } else { domain };
        return Err(refused(format!(
            "version {opset} of the {set} operators is not supported; export with a version from {first} to {last}"
        )));
    }
    let rule = BY_NAME
        .get(&registered_name(domain, op_type))
        .filter(|rule| rule.since <= opset);
    let rule = rule.ok_or_else(|| refused(format!("the operator is not supported in version {opset}")))?;
    for attribute in &node.attribute {
        if !rule.attributes.contains(&attribute.name.as_str()) {
            let name = Quoted(&attribute.name);
            return Err(refused(format!("the attribute {name} is not supported")));
        }
    }
    rule.condition.map_or(Ok(()), |condition| {
        condition(Attributes(node), opset).map_err(refused)
    })
}

/// Builds any operator of the table.
fn build(context: &ParsingContext<'_>, node: &NodeProto) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let rule = BY_NAME.get(&node.op_type).context("no rule")?;
    if let Some(own) = rule.own {
        return Ok((own(context, node)?, vec![]));
    }
    let tract = TRACT.0.get(&node.op_type).context("tract does not have it")?;
    let (inner, closures) = tract(context, node)?;
    if matches!(rule.name, "Constant" | "Identity") {
        return Ok((inner, closures));
    }
    let instead = rule
        .instead
        .map(|(types, build)| Ok((types, build(context, node)?)));
    let guarded = Guarded {
        inner,
        guard: rule.guard,
        check: rule.check.map(|check| (check, Arc::new(node.clone()))),
        instead: instead.transpose().map_err(|error: TractError| error)?,
    };
    Ok((Box::new(guarded), closures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_each_operator_once() {
        assert!(RULES.is_sorted_by(|a, b| (a.domain, a.name) < (b.domain, b.name)));
        assert_eq!(BY_NAME.len(), RULES.len());
    }

    #[test]
    fn what_is_not_computed_here_tract_has() {
        for rule in RULES.iter().filter(|rule| rule.own.is_none()) {
            assert!(TRACT.0.contains_key(rule.name), "{}", rule.name);
        }
    }
}
