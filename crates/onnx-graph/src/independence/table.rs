//! Maps each operator to the rule by which rows propagate through it. The table of `onnx_operators` marks the
//! operators that always keep rows independent, always mix them, or are random. This module lists a function
//! for each of the others.

use onnx_operators::{Rows, operator};

use super::{
    concatenation, constants, control, elementwise, indexing, layers, ml,
    node::{Follow, Node, RuleResult},
    products, reduced, shapes, windows,
};
use crate::proto::canonical_domain;

/// How rows propagate through an operator.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// Calls this function if any input has rows. Otherwise, all requests share the outputs, as they share
    /// the inputs.
    By(fn(&mut Node<'_>) -> RuleResult),
    /// Always calls this function: the operator may be random.
    Always(fn(&mut Node<'_>) -> RuleResult),
    /// Calls this function, which also analyzes the subgraphs of the node.
    Inner(fn(&mut Node<'_>, &mut dyn Follow) -> RuleResult),
}

use Rule::{Always, By, Inner};

/// Returns the rule for an operator; `None` for an unknown operator.
pub(super) fn rule(domain: &str, name: &str) -> Option<Rule> {
    let domain = canonical_domain(domain);
    match operator(domain, name)?.rows {
        Rows::Elementwise => Some(By(elementwise::broadcast)),
        Rows::Mixed => Some(By(shapes::needs_no_rows)),
        Rows::Random => Some(Always(layers::random)),
        Rows::ByRule => by_rule(domain, name),
    }
}

/// Returns the rule of an operator that keeps rows independent only with some attributes or inputs.
fn by_rule(domain: &str, name: &str) -> Option<Rule> {
    let rules = match domain {
        "" => ONNX,
        "ai.onnx.ml" => ML,
        "com.microsoft" => CONTRIBUTED,
        _ => return None,
    };
    let (rule, _) = rules.iter().find(|(_, names)| names.contains(&name))?;
    Some(*rule)
}

/// Rules with the names of their operators. `KERNELS` of `onnx-run` has the same form, but neither table
/// follows from the other: operators with one kernel may have several rules, and vice versa.
type Rules = &'static [(Rule, &'static [&'static str])];

const ONNX: Rules = &[
    (By(elementwise::onto_first), &["PRelu"]),
    // The inputs of `Clip` after the first are scalar bounds.
    (By(elementwise::first), &["Clip"]),
    (By(elementwise::cast_like), &["CastLike"]),
    (By(elementwise::identity), &["Identity"]),
    (Always(elementwise::dropout), &["Dropout"]),
    (By(elementwise::quantize), &["DequantizeLinear", "QuantizeLinear"]),
    (By(constants::constant), &["Constant"]),
    (By(shapes::shape), &["Shape"]),
    (By(shapes::size), &["Size"]),
    (By(shapes::reshape), &["Reshape"]),
    (By(shapes::flatten), &["Flatten"]),
    (By(shapes::squeeze), &["Squeeze"]),
    (By(shapes::unsqueeze), &["Unsqueeze"]),
    (By(shapes::transpose), &["Transpose"]),
    (By(shapes::expand), &["Expand"]),
    (By(shapes::tile), &["Tile"]),
    (By(shapes::constant_of_shape), &["ConstantOfShape"]),
    (By(shapes::range), &["Range"]),
    (By(shapes::non_zero), &["NonZero"]),
    (By(indexing::gather), &["Gather"]),
    (
        By(indexing::along_axis),
        &["GatherElements", "Scatter", "ScatterElements"],
    ),
    (By(indexing::gather_nd), &["GatherND"]),
    (By(indexing::scatter_nd), &["ScatterND"]),
    (By(indexing::slice), &["Slice"]),
    (By(concatenation::concat), &["Concat"]),
    (By(concatenation::split), &["Split"]),
    (By(indexing::pad), &["Pad"]),
    (By(indexing::one_hot), &["OneHot"]),
    (By(indexing::top_k), &["TopK"]),
    (By(indexing::compress), &["Compress"]),
    (By(indexing::reverse_sequence), &["ReverseSequence"]),
    (By(reduced::softmax), &["Hardmax", "LogSoftmax", "Softmax"]),
    (By(reduced::lp_normalization), &["LpNormalization"]),
    (By(reduced::cum_sum), &["CumSum"]),
    (
        By(reduced::layer_normalization),
        &[
            "LayerNormalization",
            "RMSNormalization",
            "SimplifiedLayerNormalization",
        ],
    ),
    (
        By(reduced::mean_variance_normalization),
        &["MeanVarianceNormalization"],
    ),
    (
        By(reduced::reduce),
        &[
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
        ],
    ),
    (By(reduced::arg), &["ArgMax", "ArgMin"]),
    (By(reduced::trilu), &["Trilu"]),
    (By(reduced::determinant), &["Det"]),
    (By(products::mat_mul), &["MatMul"]),
    (By(products::integer_mat_mul), &["MatMulInteger"]),
    (By(products::quantized_mat_mul), &["QLinearMatMul"]),
    (By(products::gemm), &["Gemm"]),
    (By(products::einsum), &["Einsum"]),
    (By(windows::conv), &["Conv", "ConvInteger"]),
    (By(windows::quantized_conv), &["QLinearConv"]),
    (By(windows::pool), &["AveragePool", "LpPool", "MaxPool"]),
    (
        By(windows::global_pool),
        &["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"],
    ),
    (By(windows::conv_transpose), &["ConvTranspose"]),
    (
        By(windows::normalization),
        &["GroupNormalization", "InstanceNormalization", "LRN"],
    ),
    (Always(windows::batch_normalization), &["BatchNormalization"]),
    (By(windows::depth_to_space), &["DepthToSpace", "SpaceToDepth"]),
    (By(windows::resize), &["Resize", "Upsample"]),
    (By(windows::max_unpool), &["MaxUnpool"]),
    (By(windows::grid_sample), &["GridSample"]),
    (By(windows::affine_grid), &["AffineGrid"]),
    (By(windows::col_2_im), &["Col2Im"]),
    (By(layers::deform_conv), &["DeformConv"]),
    (By(windows::stft), &["STFT"]),
    (By(windows::dft), &["DFT"]),
    (By(layers::recurrent), &["GRU", "LSTM", "RNN"]),
    (By(layers::scaled_together), &["DynamicQuantizeLinear"]),
    (By(layers::attention), &["Attention"]),
    (By(layers::rotary), &["RotaryEmbedding"]),
    (By(layers::tensor_scatter), &["TensorScatter"]),
    (By(ml::tf_idf), &["TfIdfVectorizer"]),
    (By(ml::string_normalizer), &["StringNormalizer"]),
    (By(ml::padded_to_longest), &["StringSplit"]),
    (Inner(control::branch), &["If"]),
    (Inner(control::looped), &["Loop"]),
    (Inner(control::scan), &["Scan"]),
    (By(control::sequence_empty), &["SequenceEmpty"]),
    (By(control::sequence_construct), &["SequenceConstruct"]),
    (By(control::sequence_insert), &["SequenceInsert"]),
    (By(control::sequence_at), &["SequenceAt"]),
    (By(control::sequence_erase), &["SequenceErase"]),
    (By(control::sequence_length), &["SequenceLength"]),
    (By(control::concat_from_sequence), &["ConcatFromSequence"]),
    (By(control::split_to_sequence), &["SplitToSequence"]),
];

const ML: Rules = &[
    (
        By(ml::classifier),
        &["LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"],
    ),
    (
        By(ml::regressor),
        &[
            "LinearRegressor",
            "SVMRegressor",
            "TreeEnsemble",
            "TreeEnsembleRegressor",
        ],
    ),
    (By(ml::by_feature), &["Imputer", "Normalizer", "Scaler"]),
    (By(ml::extractor), &["ArrayFeatureExtractor"]),
    (By(ml::one_hot_encoder), &["OneHotEncoder"]),
    (By(ml::vectorizer), &["FeatureVectorizer"]),
];

const CONTRIBUTED: Rules = &[
    (
        By(elementwise::onto_first),
        &[
            "BiasAdd",
            "BiasGelu",
            "FastGelu",
            "FusedGelu",
            "Gelu",
            "QuickGelu",
        ],
    ),
    (By(layers::halved), &["BiasSplitGelu"]),
    (By(elementwise::first), &["QLinearLeakyRelu", "QLinearSigmoid"]),
    (By(elementwise::quantize), &["DequantizeLinear", "QuantizeLinear"]),
    (By(elementwise::quantized_pair), &["QLinearAdd", "QLinearMul"]),
    (
        By(layers::scaled_together),
        &["DynamicQuantizeLSTM", "DynamicQuantizeMatMul"],
    ),
    (By(products::integer_mat_mul), &["MatMulIntegerToFloat"]),
    (By(products::quantized_gemm), &["QGemm"]),
    (By(elementwise::quantized_choice), &["QLinearWhere"]),
    (By(reduced::quantized_softmax), &["QLinearSoftmax"]),
    (By(reduced::trilu), &["Trilu"]),
    (By(shapes::range), &["Range"]),
    (By(windows::grid_sample), &["GridSample"]),
    (By(windows::channels_last_pool), &["NhwcMaxPool"]),
    (By(windows::fused_conv), &["FusedConv"]),
    (By(windows::pool), &["QLinearAveragePool"]),
    (By(windows::global_pool), &["QLinearGlobalAveragePool"]),
    (By(concatenation::quantized_concat), &["QLinearConcat"]),
    (By(layers::quantized_attention), &["QAttention"]),
    (By(products::fused_mat_mul), &["FusedMatMul", "TransposeMatMul"]),
    (By(products::gemm), &["FusedGemm"]),
    (By(products::packed_mat_mul), &["MatMulNBits"]),
    (By(products::four_bit_mat_mul), &["MatMulBnb4"]),
    (By(layers::experts), &["MoE", "QMoE"]),
    (By(layers::linear_attention), &["LinearAttention"]),
    (By(layers::causal_conv), &["CausalConvWithState"]),
    (By(layers::packed_gather), &["GatherBlockQuantized"]),
    (By(layers::contributed_attention), &["Attention"]),
    (By(layers::multi_head_attention), &["MultiHeadAttention"]),
    (
        By(layers::decoder_attention),
        &["DecoderMaskedMultiHeadAttention"],
    ),
    (By(layers::grouped_attention), &["GroupQueryAttention"]),
    (By(layers::contributed_rotary), &["RotaryEmbedding"]),
    (
        By(layers::embed_layer_normalization),
        &["EmbedLayerNormalization"],
    ),
    (
        By(reduced::skip_layer_normalization),
        &["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"],
    ),
    (By(ml::padded_to_longest), &["Tokenizer"]),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_operators::{NEWEST, operators};

    use super::*;

    #[test]
    fn each_operator_has_a_function_or_needs_none() {
        for row in operators().filter(|row| row.domain != NEWEST) {
            let has_function = by_rule(row.domain, row.name).is_some();
            assert_eq!(row.rows == Rows::ByRule, has_function, "{}", row.full_name());
        }
    }

    #[test]
    fn each_function_is_one_of_an_operator() {
        for (domain, rules) in [("", ONNX), ("ai.onnx.ml", ML), ("com.microsoft", CONTRIBUTED)] {
            let names: Vec<&str> = rules
                .iter()
                .flat_map(|(_, names)| names.iter().copied())
                .collect();
            for (at, name) in names.iter().enumerate() {
                assert!(operator(domain, name).is_some(), "{domain}/{name}");
                assert!(!names[..at].contains(name), "{domain}/{name} has two");
            }
        }
    }
}
