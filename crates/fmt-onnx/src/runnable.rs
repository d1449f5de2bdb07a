//! Whether Tensorferry's server can run a model, as far as its operators say.

use std::fmt::Write as _;

use crate::Summary;

/// The operators that `oip-server` computes itself, and the operator set since which it does. docs/onnx.md has under which
/// conditions, and is checked against the server's own table by a test.
const OPERATORS: &[(&str, u64)] = &[
    ("Abs", 1),
    ("Acos", 1),
    ("Acosh", 9),
    ("Add", 1),
    ("AffineGrid", 20),
    ("And", 1),
    ("ArgMax", 1),
    ("ArgMin", 1),
    ("Asin", 1),
    ("Asinh", 9),
    ("Atan", 1),
    ("Atanh", 9),
    ("Attention", 23),
    ("AveragePool", 1),
    ("BatchNormalization", 1),
    ("Bernoulli", 15),
    ("BitShift", 11),
    ("BitwiseAnd", 18),
    ("BitwiseNot", 18),
    ("BitwiseOr", 18),
    ("BitwiseXor", 18),
    ("BlackmanWindow", 17),
    ("Cast", 1),
    ("CastLike", 15),
    ("Ceil", 1),
    ("Celu", 12),
    ("CenterCropPad", 18),
    ("Clip", 1),
    ("Col2Im", 18),
    ("Compress", 9),
    ("Concat", 1),
    ("ConcatFromSequence", 11),
    ("Constant", 1),
    ("ConstantOfShape", 9),
    ("Conv", 1),
    ("ConvInteger", 10),
    ("ConvTranspose", 1),
    ("Cos", 1),
    ("Cosh", 9),
    ("CumSum", 11),
    ("DFT", 17),
    ("DeformConv", 19),
    ("DepthToSpace", 1),
    ("DequantizeLinear", 10),
    ("Det", 11),
    ("Div", 1),
    ("Dropout", 1),
    ("DynamicQuantizeLinear", 11),
    ("Einsum", 12),
    ("Elu", 1),
    ("Equal", 1),
    ("Erf", 9),
    ("Exp", 1),
    ("Expand", 8),
    ("EyeLike", 9),
    ("Flatten", 1),
    ("Floor", 1),
    ("GRU", 1),
    ("Gather", 1),
    ("GatherElements", 11),
    ("GatherND", 11),
    ("Gelu", 20),
    ("Gemm", 1),
    ("GlobalAveragePool", 1),
    ("GlobalLpPool", 2),
    ("GlobalMaxPool", 1),
    ("Greater", 1),
    ("GreaterOrEqual", 12),
    ("GridSample", 16),
    ("GroupNormalization", 18),
    ("HammingWindow", 17),
    ("HannWindow", 17),
    ("HardSigmoid", 1),
    ("HardSwish", 14),
    ("Hardmax", 1),
    ("Identity", 1),
    ("If", 1),
    ("InstanceNormalization", 1),
    ("IsInf", 10),
    ("IsNaN", 9),
    ("LRN", 1),
    ("LSTM", 1),
    ("LayerNormalization", 17),
    ("LeakyRelu", 1),
    ("Less", 1),
    ("LessOrEqual", 12),
    ("Log", 1),
    ("LogSoftmax", 1),
    ("Loop", 1),
    ("LpNormalization", 1),
    ("LpPool", 2),
    ("MatMul", 1),
    ("MatMulInteger", 10),
    ("Max", 1),
    ("MaxPool", 1),
    ("MaxUnpool", 9),
    ("Mean", 1),
    ("MeanVarianceNormalization", 9),
    ("MelWeightMatrix", 17),
    ("Min", 1),
    ("Mish", 18),
    ("Mod", 10),
    ("Mul", 1),
    ("Neg", 1),
    ("NegativeLogLikelihoodLoss", 12),
    ("NonMaxSuppression", 10),
    ("NonZero", 9),
    ("Not", 1),
    ("OneHot", 9),
    ("Optional", 15),
    ("OptionalGetElement", 15),
    ("OptionalHasElement", 15),
    ("Or", 1),
    ("PRelu", 1),
    ("Pad", 1),
    ("Pow", 1),
    ("QLinearConv", 10),
    ("QLinearMatMul", 10),
    ("QuantizeLinear", 10),
    ("RMSNormalization", 23),
    ("RNN", 1),
    ("RandomNormal", 1),
    ("RandomNormalLike", 1),
    ("RandomUniform", 1),
    ("RandomUniformLike", 1),
    ("Range", 11),
    ("Reciprocal", 1),
    ("ReduceL1", 1),
    ("ReduceL2", 1),
    ("ReduceLogSum", 1),
    ("ReduceLogSumExp", 1),
    ("ReduceMax", 1),
    ("ReduceMean", 1),
    ("ReduceMin", 1),
    ("ReduceProd", 1),
    ("ReduceSum", 1),
    ("ReduceSumSquare", 1),
    ("RegexFullMatch", 20),
    ("Relu", 1),
    ("Reshape", 5),
    ("Resize", 10),
    ("ReverseSequence", 10),
    ("RoiAlign", 10),
    ("RotaryEmbedding", 23),
    ("Round", 11),
    ("STFT", 17),
    ("Scan", 9),
    ("Scatter", 1),
    ("ScatterElements", 11),
    ("ScatterND", 11),
    ("Selu", 1),
    ("SequenceAt", 11),
    ("SequenceConstruct", 11),
    ("SequenceEmpty", 11),
    ("SequenceErase", 11),
    ("SequenceInsert", 11),
    ("SequenceLength", 11),
    ("Shape", 1),
    ("Shrink", 9),
    ("Sigmoid", 1),
    ("Sign", 9),
    ("Sin", 1),
    ("Sinh", 9),
    ("Size", 1),
    ("Slice", 1),
    ("Softmax", 1),
    ("SoftmaxCrossEntropyLoss", 12),
    ("Softplus", 1),
    ("Softsign", 1),
    ("SpaceToDepth", 1),
    ("Split", 1),
    ("SplitToSequence", 11),
    ("Sqrt", 1),
    ("Squeeze", 1),
    ("StringConcat", 20),
    ("StringNormalizer", 10),
    ("StringSplit", 20),
    ("Sub", 1),
    ("Sum", 1),
    ("Tan", 1),
    ("Tanh", 1),
    ("TensorScatter", 24),
    ("TfIdfVectorizer", 9),
    ("ThresholdedRelu", 10),
    ("Tile", 6),
    ("TopK", 1),
    ("Transpose", 1),
    ("Trilu", 14),
    ("Unique", 11),
    ("Unsqueeze", 1),
    ("Upsample", 7),
    ("Where", 9),
    ("Xor", 1),
    ("ai.onnx.ml/ArrayFeatureExtractor", 1),
    ("ai.onnx.ml/Binarizer", 1),
    ("ai.onnx.ml/FeatureVectorizer", 1),
    ("ai.onnx.ml/Imputer", 1),
    ("ai.onnx.ml/LabelEncoder", 1),
    ("ai.onnx.ml/LinearClassifier", 1),
    ("ai.onnx.ml/LinearRegressor", 1),
    ("ai.onnx.ml/Normalizer", 1),
    ("ai.onnx.ml/OneHotEncoder", 1),
    ("ai.onnx.ml/SVMClassifier", 1),
    ("ai.onnx.ml/SVMRegressor", 1),
    ("ai.onnx.ml/Scaler", 1),
    ("ai.onnx.ml/TreeEnsemble", 5),
    ("ai.onnx.ml/TreeEnsembleClassifier", 1),
    ("ai.onnx.ml/TreeEnsembleRegressor", 1),
    ("com.microsoft/CausalConvWithState", 1),
    ("com.microsoft/DynamicQuantizeLSTM", 1),
    ("com.microsoft/GatherBlockQuantized", 1),
    ("com.microsoft/GroupQueryAttention", 1),
    ("com.microsoft/LinearAttention", 1),
    ("com.microsoft/MatMulBnb4", 1),
    ("com.microsoft/MatMulNBits", 1),
    ("com.microsoft/MoE", 1),
    ("com.microsoft/QLinearAdd", 1),
    ("com.microsoft/QLinearMul", 1),
    ("com.microsoft/QMoE", 1),
    ("com.microsoft/RotaryEmbedding", 1),
    ("com.microsoft/Tokenizer", 1),
];

/// The latest operator sets and the versions of the format that are known there.
const OPSETS: [(&str, u64); 2] = [("ai.onnx", 25), ("ai.onnx.ml", 5)];
const IR_VERSIONS: std::ops::RangeInclusive<u64> = 3..=13;
/// Operators that are named.
const NAMED: usize = 10;

/// What can be said without loading it.
pub(crate) fn verdict(summary: &Summary) -> String {
    let mut hindrances = Vec::new();
    if !IR_VERSIONS.contains(&summary.ir_version) {
        hindrances.push(format!("format version {}", summary.ir_version));
    }
    for (domain, latest) in OPSETS {
        let version = summary.opsets.get(domain).copied().unwrap_or(0);
        if version > latest {
            hindrances.push(format!("{domain} {version}"));
        }
    }
    let missing = summary.operators.keys().filter(|(domain, name)| {
        let full = if domain.is_empty() {
            name.clone()
        } else {
            format!("{domain}/{name}")
        };
        let set = if domain.is_empty() { "ai.onnx" } else { domain };
        let version = summary.opsets.get(set).copied().unwrap_or(1);
        let since = OPERATORS.iter().find(|(known, _)| *known == full);
        since.is_none_or(|(_, since)| version < *since)
    });
    let missing: Vec<_> = missing.collect();
    for (domain, name) in missing.iter().take(NAMED) {
        let slash = if domain.is_empty() { "" } else { "/" };
        hindrances.push(format!("{domain}{slash}{name}"));
    }
    if hindrances.is_empty() {
        return "all operators are among those that it computes itself; whether the model meets their conditions \
                shows when it is loaded"
            .to_owned();
    }
    let mut text = format!("not by itself, for {}", hindrances.join(", "));
    if missing.len() > NAMED {
        let _ = write!(text, " and {} more", missing.len() - NAMED);
    }
    text + "; on ONNX Runtime if that has them"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// The page is checked against the table of `backend-onnx`, and this list against the page.
    #[test]
    fn the_list_is_that_of_the_page() {
        let page = include_str!("../../../docs/onnx.md");
        let (_, table) = page.split_once("<!-- operators").unwrap();
        let (table, _) = table.split_once("<!-- end of operators").unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
        let operators: Vec<_> = rows
            .map(|row| {
                let mut cells = row.split('|').map(str::trim);
                let name = cells.nth(1).unwrap();
                (name, cells.next().unwrap().parse::<u64>().unwrap())
            })
            .collect();
        assert_eq!(OPERATORS, operators);
        let versions = format!(
            "IR version {} to {}, operator sets 1 to {} of ONNX and 1 to {} of `ai.onnx.ml`",
            IR_VERSIONS.start(),
            IR_VERSIONS.end(),
            OPSETS[0].1,
            OPSETS[1].1
        );
        assert!(page.contains(&versions), "{versions}");
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        let mut summary = Summary {
            ir_version: 8,
            opsets: [("ai.onnx".to_owned(), 17)].into(),
            ..Summary::default()
        };
        let mut add = |domain: &str, name: &str| {
            summary.operators.insert((domain.to_owned(), name.to_owned()), 1);
            verdict(&summary)
        };
        assert!(add("", "Conv").starts_with("all operators"));
        let text = add("com.microsoft", "FusedConv");
        assert!(
            text.contains("not by itself, for com.microsoft/FusedConv;"),
            "{text}"
        );
        for number in 0..20 {
            add("", &format!("Op{number:02}"));
        }
        assert!(verdict(&summary).contains("and 11 more"));
        summary.operators.clear();
        summary.opsets.insert("ai.onnx".to_owned(), 99);
        assert!(verdict(&summary).contains("ai.onnx 99"));
    }
}
