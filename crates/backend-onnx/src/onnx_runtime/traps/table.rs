//! The operators of ONNX Runtime that crash the process on some values, as `cargo xtask zoo --extremes` finds
//! them in versions 1.31 and 1.32.

use onnx_graph::proto::{AttributeProto, NodeProto, canonical_domain};

pub(super) const MICROSOFT: &str = "com.microsoft";

/// Maximum rank of a tensor.
const MAX_RANK: i64 = 32;

/// Maximum number of samples per cell of `RoiAlign`, in one direction.
const MAX_SAMPLES: i64 = 1 << 16;

/// Maximum number of targets of a regressor. Each row takes memory for all targets, regardless of the file's
/// size.
const MAX_TARGETS: i64 = 1 << 20;

/// The valid column counts of one `FeatureVectorizer` input. ONNX Runtime sums the counts of all inputs.
const MOST_COLUMNS: std::ops::RangeInclusive<i64> = 0..=1 << 31;

/// A requirement on an input, without which the operator crashes the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The input is non-empty.
    Elements,
    /// The input is an integer above 0.
    Positive,
}

/// How the rewrite handles a node of an operator.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// No value is known to crash the operator, so the node is left unchanged.
    None,
    /// Integer division: traps on the smallest integer divided by -1, and on division by 0.
    Division,
    /// The inputs at these indices have requirements, which guards or input checks enforce.
    Needs(Vec<(usize, Need)>),
    /// The model is refused if the input at this index is a constant scalar 0: ONNX Runtime divides sizes by
    /// that input when it loads the model.
    NoZeroConstant(usize),
    /// The model is refused: the file has this error, which crashes ONNX Runtime.
    Refused(&'static str),
    /// The model needs a separate process, for this reason: no safe rewrite is known.
    Process(&'static str),
}

/// Returns the rule for a node.
#[expect(clippy::match_same_arms, reason = "a table, by domain")]
pub(super) fn rule(node: &NodeProto) -> Rule {
    let elements =
        |indices: &[usize]| Rule::Needs(indices.iter().map(|&index| (index, Need::Elements)).collect());
    let all = || elements(&Vec::from_iter(0..node.input.len()));
    let attribute = |name: &str| node.attribute.iter().find(|attribute| attribute.name == name);
    let int = |name: &str| attribute(name).map(integer);
    match (canonical_domain(&node.domain), node.op_type.as_str()) {
        ("", "Div") => Rule::Division,
        // With `fmod` set, `Mod` is computed in floating point, which does not trap.
        ("", "Mod") if int("fmod").unwrap_or(0) == 0 => Rule::Division,
        ("", "Unique") if int("axis").is_some() => elements(&[0]),
        // With an empty kernel, these operators divide by zero or hang.
        ("", "Conv") | (MICROSOFT, "FusedConv" | "NhwcConv" | "NhwcFusedConv") => elements(&[1]),
        ("", "ConvTranspose") | (MICROSOFT, "ConvTransposeWithDynamicPads") => elements(&[0, 1]),
        ("", "RoiAlign") if int("sampling_ratio").is_some_and(|ratio| ratio > MAX_SAMPLES) => {
            Rule::Refused("'sampling_ratio' is above 65536")
        }
        // These operators read nonexistent pixels of an empty image. An empty list of regions is safe.
        ("", "RoiAlign" | "InstanceNormalization") => elements(&[0]),
        ("", "STFT") => Rule::Needs(vec![
            (0, Need::Elements),
            (1, Need::Positive),
            (2, Need::Elements),
            (3, Need::Positive),
        ]),
        ("" | MICROSOFT, "QLinearConv") => elements(&[1, 2, 3, 4, 5, 6, 7]),
        ("", "LSTM" | "GRU" | "RNN") | (MICROSOFT, "DynamicQuantizeLSTM") => elements(&[0]),
        ("", "Scan") => all(),
        ("", "Attention")
            if ["q_num_heads", "kv_num_heads"]
                .into_iter()
                .any(|name| !heads(int(name))) =>
        {
            Rule::Refused("a number of heads is 0 or less")
        }
        // Past keys and values may be empty: a decoder's first step has none.
        ("", "Attention") => elements(&[0, 1, 2]),
        ("", "QuantizeLinear" | "DequantizeLinear") if int("block_size").unwrap_or(0) != 0 => {
            elements(&[0, 1])
        }
        (
            MICROSOFT,
            "MultiHeadAttention"
            | "DecoderMaskedMultiHeadAttention"
            | "GroupQueryAttention"
            | "LinearAttention",
        ) => elements(&[0, 1, 2]),
        (
            MICROSOFT,
            "Attention" | "QAttention" | "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization",
        ) => elements(&[0, 1]),
        (MICROSOFT, "RotaryEmbedding") => elements(&[0]),
        ("ai.onnx.ml", "LinearRegressor" | "TreeEnsemble" | "TreeEnsembleRegressor")
            if ["targets", "n_targets"]
                .into_iter()
                .any(|name| int(name).is_some_and(|count| count > MAX_TARGETS)) =>
        {
            Rule::Refused("it has more than 1048576 targets")
        }
        ("ai.onnx.ml", "LinearClassifier" | "SVMClassifier" | "TreeEnsembleClassifier")
            if attribute("post_transform").is_some_and(|transform| *transform.s == *b"PROBIT")
                && has_one_score(node) =>
        {
            Rule::Refused("PROBIT of one score leaves the other class uninitialized")
        }
        ("", "Split")
            if int("num_outputs").is_some_and(|count| usize::try_from(count) != Ok(node.output.len())) =>
        {
            Rule::Refused("'num_outputs' is not the number of its outputs")
        }
        ("", "SplitToSequence") => Rule::NoZeroConstant(1),
        ("ai.onnx.ml", "FeatureVectorizer")
            if attribute("inputdimensions")
                .is_some_and(|widths| widths.ints.iter().any(|width| !MOST_COLUMNS.contains(width))) =>
        {
            Rule::Refused("'inputdimensions' has a number below 0 or above 2^31")
        }
        (MICROSOFT, "MoE" | "WordConvEmbedding") | ("ai.onnx.ml", "FeatureVectorizer") => all(),
        ("", "GatherND") if !(0..MAX_RANK).contains(&int("batch_dims").unwrap_or(0)) => {
            Rule::Refused("'batch_dims' is not from 0 to 31")
        }
        (MICROSOFT, "Inverse") => Rule::Process("a matrix that is not square crashes the process"),
        (MICROSOFT, "AttnLSTM") => Rule::Process("requests crash the process"),
        (MICROSOFT, other) if !TRIED.contains(&other) => {
            Rule::Process("it is unknown which values crash the process for this operator")
        }
        ("" | "ai.onnx.ml" | MICROSOFT, _) => Rule::None,
        // Other domains of ONNX Runtime, for its optimizer and for training. Operators in any other domain
        // are functions defined in the file.
        (domain, _) if domain.starts_with("com.m") || domain.starts_with("ai.onnx.") => {
            Rule::Process("it is unknown which values crash the process for operators of this domain")
        }
        _ => Rule::None,
    }
}

/// Returns whether a head count is absent, or positive within 32 bits.
fn heads(count: Option<i64>) -> bool {
    count.is_none_or(|count| (1..=i64::from(i32::MAX)).contains(&count))
}

/// Returns whether a classifier computes one score for two classes.
fn has_one_score(node: &NodeProto) -> bool {
    let ints = |name: &str| {
        let found = node.attribute.iter().find(|attribute| attribute.name == name);
        found.map_or(&[][..], |attribute| &attribute.ints)
    };
    let floats = |name: &str| {
        let found = node.attribute.iter().find(|attribute| attribute.name == name);
        found.map_or(0, |attribute| attribute.floats.len())
    };
    match node.op_type.as_str() {
        "LinearClassifier" => floats("intercepts") <= 1,
        "TreeEnsembleClassifier" => ints("class_ids").windows(2).all(|pair| pair[0] == pair[1]),
        // For two classes, an SVM returns one vote per row, or two probabilities.
        _ => {
            let strings = node
                .attribute
                .iter()
                .map(|attribute| attribute.strings.len())
                .max();
            ints("classlabels_ints").len().max(strings.unwrap_or(0)) <= 2 && floats("prob_a") == 0
        }
    }
}

/// Returns whether a node has a rule other than [`Rule::None`].
pub(super) fn may_trap(node: &NodeProto) -> bool {
    rule(node) != Rule::None
}

fn integer(attribute: &AttributeProto) -> i64 {
    attribute.i
}

/// ONNX Runtime's own operators for which `cargo xtask zoo --extremes` finds no value that crashes the
/// process.
const TRIED: &[&str] = &[
    "BiasGelu",
    "CDist",
    "CausalConvWithState",
    "CropAndResize",
    "DequantizeLinear",
    "DynamicQuantizeMatMul",
    "DynamicTimeWarping",
    "EmbedLayerNormalization",
    "ExpandDims",
    "FastGelu",
    "FusedGemm",
    "FusedMatMul",
    "GatherBlockQuantized",
    "GatherND",
    "Gelu",
    "GridSample",
    "MatMulBnb4",
    "MatMulInteger16",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "MaxpoolWithMask",
    "MurmurHash3",
    "NGramRepeatBlock",
    "NhwcMaxPool",
    "Pad",
    "QEmbedLayerNormalization",
    "QGemm",
    "QLinearAdd",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearGlobalAveragePool",
    "QLinearLeakyRelu",
    "QLinearMul",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QLinearWhere",
    "QuantizeLinear",
    "QuickGelu",
    "Range",
    "Tokenizer",
    "TransposeMatMul",
    "Trilu",
    "UnfoldTensor",
    "Unique",
];
