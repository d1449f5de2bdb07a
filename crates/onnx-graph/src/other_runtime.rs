//! The operators that ONNX Runtime supports on CPUs, so that error messages do not suggest ONNX Runtime for
//! operators that it also lacks.
//!
//! The lists are those of ONNX Runtime 1.31 (`get_all_opkernel_def`).

use std::{collections::BTreeMap, ops::RangeInclusive};

use crate::{
    proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, canonical_domain},
    structure,
};

/// The newest version of ONNX's operator set that ONNX Runtime 1.31 reads.
const NEWEST_OPSET: i64 = 26;

/// Describes the first node whose operator ONNX Runtime lacks, if any.
#[must_use]
pub fn missing(model: &ModelProto) -> Option<String> {
    let opsets: BTreeMap<&str, i64> = imports(&model.opset_import);
    let in_functions = model.functions.iter().find_map(|function| {
        let opsets = imports(&function.opset_import);
        missing_of(&function.node, model, &opsets)
    });
    let graph = model.graph.as_ref();
    in_functions.or_else(|| missing_of(&graph?.node, model, &opsets))
}

fn imports(imports: &[OperatorSetIdProto]) -> BTreeMap<&str, i64> {
    let versions = imports.iter();
    versions
        .map(|import| (canonical_domain(&import.domain), import.version))
        .collect()
}

fn missing_of(nodes: &[NodeProto], model: &ModelProto, opsets: &BTreeMap<&str, i64>) -> Option<String> {
    nodes.iter().find_map(|node| {
        let domain = canonical_domain(&node.domain);
        let is_function = model
            .functions
            .iter()
            .any(|function| function.name == node.op_type && canonical_domain(&function.domain) == domain);
        let opset = opsets.get(domain).copied().unwrap_or(0);
        if !is_function && !has(domain, &node.op_type, opset) {
            return Some(structure::label(node));
        }
        let mut inner = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
        inner.find_map(|graph: &GraphProto| missing_of(&graph.node, model, opsets))
    })
}

/// Returns whether ONNX Runtime has an operator in this version of its set.
#[must_use]
pub fn has(domain: &str, op_type: &str, opset: i64) -> bool {
    match domain {
        "" => versions(op_type).is_some_and(|versions| versions.contains(&opset)),
        "ai.onnx.ml" => ML.binary_search(&op_type).is_ok() && (op_type != "TreeEnsemble" || opset >= 5),
        // The list omits operators that ONNX Runtime supports only on devices other than CPUs.
        "com.microsoft" => OWN.binary_search(&op_type).is_ok(),
        _ => false,
    }
}

/// Returns whether ONNX Runtime supports an attribute that the built-in runtime's table lacks.
#[must_use]
pub fn has_attribute(domain: &str, op_type: &str, attribute: &str) -> bool {
    // ONNX Runtime's contrib operators have many attributes that the table lacks.
    matches!(
        (domain, op_type, attribute),
        ("com.microsoft", ..)
            | ("", "GRU", "activation_alpha" | "activation_beta")
            | ("", "Constant", "sparse_value")
            | ("", "Cast" | "CastLike", "round_mode")
            | ("", "Scan", "directions")
    )
}

/// Returns whether ONNX Runtime reads an operator set version that is too new for the built-in runtime's
/// table.
#[must_use]
pub fn reads(domain: &str, opset: i64) -> bool {
    domain.is_empty() && (1..=NEWEST_OPSET).contains(&opset)
}

fn versions(op_type: &str) -> Option<RangeInclusive<i64>> {
    let mut sets = SINCE.iter();
    let (first, _) = sets.find(|(_, names)| names.binary_search(&op_type).is_ok())?;
    // The last operator set that has the operator under this name: two operators were renamed.
    let last = match op_type {
        "Scatter" => 10,
        "Upsample" => 9,
        _ => NEWEST_OPSET,
    };
    Some(*first..=last)
}

/// ONNX's operators, grouped by the first operator set in which ONNX Runtime supports them, which is often
/// later than ONNX's.
const SINCE: &[(i64, &[&str])] = &[
    (
        1,
        &[
            "Affine",
            "ArgMax",
            "ArgMin",
            "Constant",
            "Conv",
            "ConvTranspose",
            "Crop",
            "DepthToSpace",
            "DynamicSlice",
            "Flatten",
            "Gather",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "Hardmax",
            "Identity",
            "If",
            "ImageScaler",
            "LRN",
            "LayerNormalization",
            "LogSoftmax",
            "Loop",
            "LpNormalization",
            "MatMul",
            "MaxPool",
            "MaxRoiPool",
            "Not",
            "ParametricSoftplus",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
            "Reshape",
            "Scale",
            "ScaledTanh",
            "Shape",
            "SimplifiedLayerNormalization",
            "Size",
            "Slice",
            "Softmax",
            "Softplus",
            "Softsign",
            "SpaceToDepth",
            "Squeeze",
            "TopK",
            "Transpose",
            "Unsqueeze",
        ],
    ),
    (2, &["GlobalLpPool", "LpPool", "Pad", "Split"]),
    (4, &["Concat"]),
    (
        6,
        &[
            "Abs",
            "Cast",
            "Ceil",
            "Clip",
            "Elu",
            "Exp",
            "Floor",
            "HardSigmoid",
            "InstanceNormalization",
            "LeakyRelu",
            "Log",
            "Max",
            "Mean",
            "Min",
            "Neg",
            "Reciprocal",
            "Relu",
            "Selu",
            "Sigmoid",
            "Sqrt",
            "Sum",
            "Tanh",
            "Tile",
        ],
    ),
    (
        7,
        &[
            "Acos",
            "Add",
            "And",
            "Asin",
            "Atan",
            "AveragePool",
            "BatchNormalization",
            "Cos",
            "Div",
            "Dropout",
            "Equal",
            "GRU",
            "Gemm",
            "Greater",
            "LSTM",
            "Less",
            "Mul",
            "Multinomial",
            "Or",
            "PRelu",
            "Pow",
            "RNN",
            "Sin",
            "Sub",
            "Tan",
            "Upsample",
            "Xor",
        ],
    ),
    (8, &["Expand", "Scan"]),
    (
        9,
        &[
            "Acosh",
            "Asinh",
            "Atanh",
            "Compress",
            "ConstantOfShape",
            "Cosh",
            "Erf",
            "EyeLike",
            "IsNaN",
            "MaxUnpool",
            "MeanVarianceNormalization",
            "NonZero",
            "OneHot",
            "Scatter",
            "Shrink",
            "Sign",
            "Sinh",
            "TfIdfVectorizer",
            "Where",
        ],
    ),
    (
        10,
        &[
            "ConvInteger",
            "DequantizeLinear",
            "IsInf",
            "MatMulInteger",
            "Mod",
            "NonMaxSuppression",
            "QLinearConv",
            "QLinearMatMul",
            "QuantizeLinear",
            "Resize",
            "ReverseSequence",
            "RoiAlign",
            "StringNormalizer",
            "ThresholdedRelu",
        ],
    ),
    (
        11,
        &[
            "BitShift",
            "ConcatFromSequence",
            "CumSum",
            "Det",
            "DynamicQuantizeLinear",
            "GatherElements",
            "GatherND",
            "Range",
            "Round",
            "ScatterElements",
            "ScatterND",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SplitToSequence",
            "Unique",
        ],
    ),
    (
        12,
        &[
            "Celu",
            "Einsum",
            "GreaterOrEqual",
            "LessOrEqual",
            "NegativeLogLikelihoodLoss",
            "SoftmaxCrossEntropyLoss",
        ],
    ),
    (14, &["HardSwish", "Trilu"]),
    (
        15,
        &[
            "Bernoulli",
            "CastLike",
            "Optional",
            "OptionalGetElement",
            "OptionalHasElement",
        ],
    ),
    (16, &["GridSample"]),
    (
        17,
        &[
            "BlackmanWindow",
            "DFT",
            "HammingWindow",
            "HannWindow",
            "MelWeightMatrix",
            "STFT",
            "SequenceMap",
        ],
    ),
    (
        18,
        &[
            "BitwiseAnd",
            "BitwiseNot",
            "BitwiseOr",
            "BitwiseXor",
            "CenterCropPad",
            "Col2Im",
            "GroupNormalization",
            "Mish",
        ],
    ),
    (19, &["DeformConv"]),
    (
        20,
        &[
            "AffineGrid",
            "Gelu",
            "RegexFullMatch",
            "StringConcat",
            "StringSplit",
        ],
    ),
    (23, &["Attention", "RMSNormalization", "RotaryEmbedding"]),
    (24, &["Swish", "TensorScatter"]),
    (26, &["BitCast", "CumProd"]),
];

/// The operators of `ai.onnx.ml` that ONNX Runtime supports.
const ML: &[&str] = &[
    "ArrayFeatureExtractor",
    "Binarizer",
    "CastMap",
    "CategoryMapper",
    "DictVectorizer",
    "FeatureVectorizer",
    "Imputer",
    "LabelEncoder",
    "LinearClassifier",
    "LinearRegressor",
    "Normalizer",
    "OneHotEncoder",
    "SVMClassifier",
    "SVMRegressor",
    "Scaler",
    "TreeEnsemble",
    "TreeEnsembleClassifier",
    "TreeEnsembleRegressor",
    "ZipMap",
];

/// The contrib operators (`com.microsoft`) that ONNX Runtime supports.
const OWN: &[&str] = &[
    "Attention",
    "AttnLSTM",
    "BeamSearch",
    "BiasGelu",
    "BifurcationDetector",
    "BranchwiseRMSNorm",
    "CDist",
    "CausalConvWithState",
    "ConvTransposeWithDynamicPads",
    "CropAndResize",
    "DecoderMaskedMultiHeadAttention",
    "DequantizeLinear",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "DynamicTimeWarping",
    "EmbedLayerNormalization",
    "EngramGate",
    "ExpandDims",
    "FastGelu",
    "FusedConv",
    "FusedGemm",
    "FusedMatMul",
    "GatedAdd",
    "GatedRMSNorm",
    "GatherBlockQuantized",
    "GatherND",
    "Gelu",
    "GreedySearch",
    "GridSample",
    "GroupQueryAttention",
    "HyperConnectionPostMix",
    "HyperConnectionPreMix",
    "Inverse",
    "LinearAttention",
    "LinearAttentionGate",
    "MRotaryEmbedding",
    "MatMulBnb4",
    "MatMulFpQ4",
    "MatMulInteger16",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "MaxpoolWithMask",
    "MoE",
    "MultiHeadAttention",
    "MurmurHash3",
    "NGramHashMapping",
    "NGramRepeatBlock",
    "NhwcMaxPool",
    "Pad",
    "QAttention",
    "QEmbedLayerNormalization",
    "QGemm",
    "QLinearAdd",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearConv",
    "QLinearGlobalAveragePool",
    "QLinearLeakyRelu",
    "QLinearMul",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QLinearWhere",
    "QMoE",
    "QuantizeLinear",
    "QuickGelu",
    "Range",
    "RotaryEmbedding",
    "SampleOp",
    "Sampling",
    "ScaledSiLU",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "SparseAttention",
    "SparseToDenseMatMul",
    "Tokenizer",
    "TransposeMatMul",
    "Trilu",
    "UnfoldTensor",
    "Unique",
    "VarlenNGramHashMapping",
    "WhisperBeamSearch",
    "WordConvEmbedding",
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_operators::NEWEST;

    use crate::proto::{AttributeProto, FunctionProto};

    use super::*;

    #[test]
    fn the_lists_are_in_order_and_name_each_operator_once() {
        let lists = SINCE.iter().map(|(_, names)| *names).chain([ML, OWN]);
        assert!(lists.into_iter().all(<[&str]>::is_sorted));
        let mut names: Vec<&str> = SINCE.iter().flat_map(|(_, names)| *names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn operators_are_there_from_their_first_version_on() {
        assert!(has("", "Unique", 17) && has("", "CenterCropPad", 18) && !has("", "CenterCropPad", 17));
        assert!(has("", "Add", 7) && !has("", "Add", 6) && !has("", "Frobnicate", 17));
        assert!(has("", "Upsample", 9) && !has("", "Upsample", 10));
        assert!(has("com.microsoft", "FusedMatMul", 1) && !has("com.microsoft", "GemmFloat8", 1));
        assert!(!has("org.example", "X", 1) && !has(NEWEST, "Add", 1));
    }

    #[test]
    fn every_graph_and_function_of_a_model_is_searched() {
        let node = |domain: &str, op_type: &str| NodeProto {
            domain: domain.to_owned(),
            op_type: op_type.to_owned(),
            output: vec!["y".to_owned()],
            ..NodeProto::default()
        };
        let import = |domain: &str, version| OperatorSetIdProto {
            domain: domain.to_owned(),
            version,
        };
        let model = |nodes: Vec<NodeProto>| ModelProto {
            opset_import: vec![import("", 17), import("own", 1)],
            graph: Some(GraphProto {
                node: nodes,
                ..GraphProto::default()
            }),
            functions: vec![FunctionProto {
                name: "F".to_owned(),
                domain: "own".to_owned(),
                opset_import: vec![import("", 6)],
                node: vec![node("", "Sigmoid")],
                ..FunctionProto::default()
            }],
            ..ModelProto::default()
        };
        assert_eq!(missing(&model(vec![node("", "Add"), node("own", "F")])), None);
        let mut older = model(vec![node("own", "F")]);
        older.functions[0].opset_import[0].version = 5;
        assert_eq!(missing(&older).unwrap(), "node 'y' (Sigmoid)");
        let mut branch = node("", "If");
        branch.attribute.push(AttributeProto {
            g: Some(GraphProto {
                node: vec![node("own", "G")],
                ..GraphProto::default()
            }),
            ..AttributeProto::default()
        });
        assert_eq!(missing(&model(vec![branch])).unwrap(), "node 'y' (G)");
    }
}
