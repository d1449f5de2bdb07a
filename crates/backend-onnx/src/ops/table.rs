//! The operators that are computed, and under which conditions. `docs/onnx.md` has the table for readers.

use super::{
    affine_grid, attention, attention_mask, cast, coarse, columns, conditions as when, conv_transpose,
    counting, cum_sum, determinant, dft,
    direct::{
        self, blocks, clip, compare, einsum, fill, functions, heads, integer_products, integer_windows, kept,
        moves, pairs, parts, pools, products, reductions, views, windows,
    },
    elementwise, eye_like, grid_sample, grouped_attention, hardmax, indexed, local_normalization, lookup,
    lp_pool, max_unpool, mel, non_max_suppression, non_zero, normalize, packed_product, packed_rows, pad,
    pieces_of_text, power, prelu, quantize, quantized_pair, random, recurrent, resize, roi_align, rotary,
    rule::{Outputs, Rule, contributed, inner, ml, op},
    sequences, softmax, stft, text, tokenizer, top_k,
    types::Types,
    unique, whole,
};
use crate::ml;

const FLOATS: Types = Types::FLOATS;
const SHORT_FLOATS: Types = Types::SHORT_FLOATS;
const NUMBERS: Types = Types::NUMBERS;
const FIXED: Types = Types::FIXED;
const ALL: Types = Types::ALL;
/// What matrix products are computed for.
const FACTORS: Types = FLOATS.and(Types::I32);
const WIDE: Types = Types::I64.and(Types::U32).and(Types::U64);
/// Whole numbers that powers are computed of.
const POWERS: Types = Types::I32.and(Types::I64);
/// Before operator set 7, operators of two inputs broadcast only when told to, and then as they do now.
const LEGACY: &[&str] = &["broadcast"];
const AXIS: &[&str] = &["axis"];
const ALPHA: &[&str] = &["alpha"];
const LSTM: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
    "layout",
];
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
pub(super) static RULES: &[Rule] = &[
    op("Abs").of(NUMBERS).by(functions::function),
    op("Acos").of(FLOATS).wide().by(functions::function),
    op("Acosh").since(9).of(FLOATS).wide().by(functions::function),
    op("Add").takes(LEGACY).of(NUMBERS).by(pairs::pair),
    op("AffineGrid")
        .shaped_by(&[1])
        .since(20)
        .takes(&["align_corners"])
        .own(affine_grid::affine_grid),
    op("And").takes(LEGACY).of(Types::BOOL).by(pairs::pair),
    op("ArgMax")
        .takes(ARG)
        .of(FLOATS.and(Types::SIGNED).and(Types::U8).and(Types::U16))
        .by(reductions::argument),
    op("ArgMin")
        .takes(ARG)
        .of(FLOATS.and(Types::SIGNED).and(Types::U8).and(Types::U16))
        .by(reductions::argument),
    op("Asin").of(FLOATS).wide().by(functions::function),
    op("Asinh").since(9).of(FLOATS).wide().by(functions::function),
    op("Atan").of(FLOATS).wide().by(functions::function),
    op("Atanh").since(9).of(FLOATS).wide().by(functions::function),
    op("Attention")
        .since(23)
        .gives(Outputs::Optional)
        .takes(&[
            "is_causal",
            "kv_num_heads",
            "q_num_heads",
            "qk_matmul_output_mode",
            "scale",
            "softcap",
            "softmax_precision",
        ])
        .own(attention::attention),
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
        .when(when::pool)
        .by(pools::average_pool),
    op("BatchNormalization")
        .gives(Outputs::Optional)
        .takes(&["epsilon", "is_test", "momentum", "spatial", "training_mode"])
        .of(FLOATS)
        .wide()
        .when(when::batch_normalization)
        .with(direct::batch_normalization::batch_normalization),
    op("Bernoulli")
        .since(15)
        .takes(&["dtype", "seed"])
        .own(random::random),
    op("BitShift")
        .since(11)
        .takes(&["direction"])
        .own(power::bit_shift),
    op("BitwiseAnd").since(18).of(Types::INTEGERS).by(whole::bits),
    op("BitwiseNot").since(18).of(Types::INTEGERS).by(whole::function),
    op("BitwiseOr").since(18).of(Types::INTEGERS).by(whole::bits),
    op("BitwiseXor").since(18).of(Types::INTEGERS).by(whole::bits),
    op("BlackmanWindow")
        .sized_by(&[0])
        .scalars(&[0])
        .since(17)
        .takes(WINDOW)
        .by(mel::window),
    // tract turns INT64 into symbolic dimensions, by way of 32 bits. Dimensions stay symbolic.
    op("Cast").takes(&["saturate", "to"]).by(cast::cast),
    op("CastLike").since(15).takes(&["saturate"]).own(cast::cast_like),
    op("Ceil").of(FLOATS).wide().by(functions::function),
    op("Celu")
        .since(12)
        .takes(ALPHA)
        .of(FLOATS)
        .wide()
        .by(functions::function),
    op("Clip")
        .takes(&["max", "min"])
        .of(NUMBERS)
        .wide()
        .with(clip::clip_of),
    op("Col2Im")
        .sized_by(&[1, 2])
        .since(18)
        .takes(&["dilations", "pads", "strides"])
        .own(columns::col_2_im),
    op("Compress").since(9).takes(AXIS).own(sequences::compress),
    op("Concat").takes(AXIS).own(parts::concat),
    op("ConcatFromSequence")
        .since(11)
        .takes(&["axis", "new_axis"])
        .control(),
    op("Constant").takes(&[
        "value",
        "value_float",
        "value_floats",
        "value_int",
        "value_ints",
        "value_string",
        "value_strings",
    ]),
    op("ConstantOfShape")
        .shaped_by(&[0])
        .since(9)
        .takes(&["value"])
        .by(fill::constant_of_shape),
    op("Conv").takes(CONV).of(FLOATS).wide().by(windows::conv),
    op("ConvInteger")
        .since(10)
        .takes(CONV)
        .with(integer_windows::conv_integer),
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
        .by(conv_transpose::conv_transpose),
    op("Cos").of(FLOATS).wide().by(functions::function),
    op("Cosh").since(9).of(FLOATS).wide().by(functions::function),
    op("CumSum")
        .sized_by(&[1])
        .since(11)
        .takes(&["exclusive", "reverse"])
        .own(cum_sum::cum_sum),
    op("DFT")
        .sized_by(&[1, 2])
        .since(17)
        .takes(&["axis", "inverse", "onesided"])
        .of(FLOATS)
        .when(when::dft)
        .own(dft::dft),
    op("DepthToSpace")
        .takes(&["blocksize", "mode"])
        .of(FIXED)
        .by(blocks::blocks),
    op("DequantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "output_dtype"])
        .when(when::to_fp32)
        .own(quantize::dequantize),
    op("Det").since(11).own(determinant::determinant),
    op("Div").takes(LEGACY).of(NUMBERS).by(pairs::pair),
    op("Dropout")
        .scalars(&[1, 2])
        .gives(Outputs::Optional)
        .takes(&["is_test", "ratio", "seed"])
        .when(when::dropout)
        .by(kept::dropout),
    op("DynamicQuantizeLinear")
        .gives(Outputs::Exactly(3))
        .since(11)
        .own(quantize::quantize_dynamically),
    op("Einsum")
        .since(12)
        .takes(&["equation"])
        .of(FACTORS.and(Types::I64))
        .wide()
        .when(when::einsum)
        .by(einsum::einsum),
    op("Elu").takes(ALPHA).of(FLOATS).wide().by(functions::function),
    op("Equal").takes(LEGACY).of(ALL).by(compare::compare),
    op("Erf").since(9).of(SHORT_FLOATS).wide().by(functions::function),
    op("Exp").of(FLOATS).wide().by(functions::function),
    op("Expand").shaped_by(&[1]).since(8).by(fill::expand),
    op("EyeLike")
        .since(9)
        .takes(&["dtype", "k"])
        .by(eye_like::eye_like),
    op("Flatten").takes(AXIS).by(views::flatten),
    op("Floor").of(FLOATS).wide().by(functions::function),
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
        .when(when::recurrent)
        .own(recurrent::recurrent),
    op("Gather").takes(AXIS).by(moves::gather),
    op("GatherElements").since(11).takes(AXIS).by(indexed::taken),
    op("GatherND").since(11).takes(&["batch_dims"]).by(indexed::taken),
    op("Gelu")
        .since(20)
        .takes(&["approximate"])
        .of(SHORT_FLOATS)
        .wide()
        .by(functions::function),
    op("Gemm")
        .takes(&["alpha", "beta", "broadcast", "transA", "transB"])
        .of(FLOATS)
        .wide()
        .by(products::gemm_of),
    op("GlobalAveragePool")
        .of(FLOATS)
        .wide()
        .by(reductions::global_pool),
    op("GlobalLpPool")
        .since(2)
        .takes(&["p"])
        .own(lp_pool::global_lp_pool),
    op("GlobalMaxPool").of(FLOATS).by(reductions::global_pool),
    op("Greater").takes(LEGACY).of(NUMBERS).by(compare::compare),
    op("GreaterOrEqual").since(12).of(NUMBERS).by(compare::compare),
    op("GridSample")
        .since(16)
        .takes(&["align_corners", "mode", "padding_mode"])
        .own(grid_sample::grid_sample),
    op("GroupNormalization")
        .since(18)
        .takes(&["epsilon", "num_groups", "stash_type"])
        .of(FLOATS)
        .wide()
        .by(normalize::normalize),
    op("HammingWindow")
        .sized_by(&[0])
        .scalars(&[0])
        .since(17)
        .takes(WINDOW)
        .by(mel::window),
    op("HannWindow")
        .sized_by(&[0])
        .scalars(&[0])
        .since(17)
        .takes(WINDOW)
        .by(mel::window),
    op("HardSigmoid")
        .takes(&["alpha", "beta"])
        .of(FLOATS)
        .wide()
        .by(functions::function),
    op("HardSwish")
        .since(14)
        .of(FLOATS)
        .wide()
        .by(functions::function),
    op("Hardmax").takes(AXIS).own(hardmax::hardmax),
    op("Identity").by(kept::identity),
    op("If")
        .gives(Outputs::AsNamed)
        .takes(&["else_branch", "then_branch"]),
    op("InstanceNormalization")
        .takes(&["epsilon"])
        .of(FLOATS)
        .wide()
        .by(normalize::normalize),
    op("IsInf")
        .since(10)
        .takes(&["detect_negative", "detect_positive"])
        .of(FLOATS)
        .by(functions::truth),
    op("IsNaN").since(9).of(FLOATS).by(functions::truth),
    op("LRN")
        .takes(&["alpha", "beta", "bias", "size"])
        .of(FLOATS)
        .wide()
        .when(when::lrn)
        .by(local_normalization::lrn),
    op("LSTM")
        .gives(Outputs::Optional)
        .takes(LSTM)
        .when(when::recurrent)
        .own(recurrent::recurrent),
    op("LayerNormalization")
        .gives(Outputs::Optional)
        .since(17)
        .takes(&["axis", "epsilon", "stash_type"])
        .of(FLOATS)
        .wide()
        .by(normalize::normalize),
    op("LeakyRelu")
        .takes(ALPHA)
        .of(FLOATS)
        .wide()
        .by(functions::function),
    op("Less").takes(LEGACY).of(NUMBERS).by(compare::compare),
    op("LessOrEqual").since(12).of(NUMBERS).by(compare::compare),
    op("Log").of(FLOATS).wide().by(functions::function),
    op("LogSoftmax")
        .takes(AXIS)
        .of(FLOATS)
        .wide()
        .by(softmax::softmax),
    op("Loop")
        .since(1)
        .takes(&["body"])
        .gives(Outputs::AsNamed)
        .control(),
    op("LpNormalization")
        .takes(&["axis", "p"])
        .of(FLOATS)
        .wide()
        .by(local_normalization::lp),
    op("LpPool")
        .since(2)
        .takes(&[
            "auto_pad",
            "ceil_mode",
            "dilations",
            "kernel_shape",
            "p",
            "pads",
            "strides",
        ])
        .own(lp_pool::lp_pool),
    op("MatMul").of(FACTORS.and(WIDE)).wide().by(products::mat_mul),
    op("MatMulInteger")
        .since(10)
        .with(integer_products::mat_mul_integer),
    op("Max").of(NUMBERS).wide().by(pairs::pair),
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
        .when(when::pool)
        .by(pools::max_pool),
    op("MaxUnpool")
        .shaped_by(&[2])
        .since(9)
        .takes(&["kernel_shape", "pads", "strides"])
        .own(max_unpool::max_unpool),
    op("Mean").of(FLOATS).wide().by(power::mean),
    op("MeanVarianceNormalization")
        .since(9)
        .takes(&["axes"])
        .of(FLOATS)
        .wide()
        .by(normalize::normalize),
    op("MelWeightMatrix")
        .sized_by(&[0, 1, 2])
        .scalars(&[0, 1, 2, 3, 4])
        .since(17)
        .takes(&["output_datatype"])
        .by(mel::weights),
    op("Min").of(NUMBERS).wide().by(pairs::pair),
    op("Mish").since(18).of(FLOATS).wide().by(functions::function),
    op("Mod").since(10).takes(&["fmod"]).own(elementwise::remainder),
    op("Mul").takes(LEGACY).of(NUMBERS).by(pairs::pair),
    op("Neg").of(FLOATS.and(Types::SIGNED)).by(functions::function),
    op("NonMaxSuppression")
        .since(10)
        .takes(&["center_point_box"])
        .own(non_max_suppression::non_max_suppression),
    op("NonZero")
        .since(9)
        .of(FIXED)
        .given(when::not_scalar)
        .by(non_zero::non_zero),
    op("Not").of(Types::BOOL).by(functions::truth),
    op("OneHot")
        .sized_by(&[1])
        .since(9)
        .takes(AXIS)
        .own(lookup::one_hot),
    op("Optional").since(15).takes(&["type"]).control(),
    op("OptionalGetElement").since(15).control(),
    op("OptionalHasElement").since(15).control(),
    op("Or").takes(LEGACY).of(Types::BOOL).by(pairs::pair),
    op("PRelu").of(NUMBERS).wide().by(prelu::prelu),
    op("Pad")
        .sized_by(&[1, 3])
        .takes(&["mode", "pads", "paddings", "value"])
        .own(pad::pad),
    op("Pow")
        .takes(LEGACY)
        .of(FLOATS.and(POWERS))
        .wide()
        .by(power::power),
    op("QLinearConv")
        .since(10)
        .takes(CONV)
        .given(when::q_linear_conv)
        .with(integer_windows::q_linear_conv),
    op("QLinearMatMul")
        .since(10)
        .given(when::q_linear_mat_mul)
        .with(integer_products::q_linear_mat_mul),
    op("QuantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "output_dtype", "precision", "saturate"])
        .when(when::not_blocked)
        .own(quantize::quantize),
    op("RMSNormalization")
        .since(23)
        .takes(&["axis", "epsilon", "stash_type"])
        .of(FLOATS)
        .wide()
        .by(normalize::normalize),
    op("RNN")
        .gives(Outputs::Optional)
        .takes(&[
            "activation_alpha",
            "activation_beta",
            "activations",
            "clip",
            "direction",
            "hidden_size",
            "layout",
        ])
        .when(when::recurrent)
        .own(recurrent::recurrent),
    op("RandomNormal")
        .takes(&["dtype", "mean", "scale", "seed", "shape"])
        .own(random::random),
    op("RandomNormalLike")
        .takes(&["dtype", "mean", "scale", "seed"])
        .own(random::random),
    op("RandomUniform")
        .takes(&["dtype", "high", "low", "seed", "shape"])
        .own(random::random),
    op("RandomUniformLike")
        .takes(&["dtype", "high", "low", "seed"])
        .own(random::random),
    op("Range").since(11).own(counting::range),
    op("Reciprocal").of(FLOATS).wide().by(functions::function),
    op("ReduceL1")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reductions::reduce),
    op("ReduceL2")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reductions::reduce),
    op("ReduceLogSum")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reductions::reduce),
    op("ReduceLogSumExp")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reductions::reduce),
    op("ReduceMax")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(FIXED)
        .wide()
        .by(reductions::reduce),
    op("ReduceMean")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reductions::reduce),
    op("ReduceMin")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(FIXED)
        .wide()
        .by(reductions::reduce),
    op("ReduceProd")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reductions::reduce),
    op("ReduceSum")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reductions::reduce),
    op("ReduceSumSquare")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reductions::reduce),
    op("RegexFullMatch")
        .since(20)
        .takes(&["pattern"])
        .own(pieces_of_text::regex_full_match),
    op("Relu")
        .of(FLOATS.and(Types::SIGNED))
        .wide()
        .by(functions::function),
    op("Reshape")
        .shaped_by(&[1])
        .since(5)
        .takes(&["allowzero"])
        .by(views::reshape),
    op("Resize")
        .shaped_by(&[3])
        .since(10)
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
        .own(resize::resize),
    op("ReverseSequence")
        .sized_by(&[1])
        .since(10)
        .takes(&["batch_axis", "time_axis"])
        .own(sequences::reverse_sequence),
    op("RoiAlign")
        .since(10)
        .takes(&[
            "coordinate_transformation_mode",
            "mode",
            "output_height",
            "output_width",
            "sampling_ratio",
            "spatial_scale",
        ])
        .own(roi_align::roi_align),
    op("RotaryEmbedding")
        .since(23)
        .takes(&["interleaved", "num_heads", "rotary_embedding_dim"])
        .own(rotary::rotary_embedding),
    op("Round").since(11).of(FLOATS).wide().by(functions::function),
    op("STFT")
        .sized_by(&[1, 3])
        .since(17)
        .takes(&["onesided"])
        .own(stft::stft),
    op("Scan").since(9).gives(Outputs::AsNamed).control().takes(&[
        "body",
        "num_scan_inputs",
        "scan_input_axes",
        "scan_input_directions",
        "scan_output_axes",
        "scan_output_directions",
    ]),
    op("Scatter").takes(AXIS).bytes().by(indexed::scatter),
    op("ScatterElements")
        .since(11)
        .takes(&["axis", "reduction"])
        .bytes()
        .by(indexed::scatter),
    op("ScatterND")
        .since(11)
        .takes(&["reduction"])
        .bytes()
        .by(indexed::scatter),
    op("Selu")
        .takes(&["alpha", "gamma"])
        .of(FLOATS)
        .wide()
        .by(functions::function),
    op("SequenceAt").since(11).control(),
    op("SequenceConstruct").since(11).control(),
    op("SequenceEmpty").since(11).takes(&["dtype"]).control(),
    op("SequenceErase").since(11).control(),
    op("SequenceInsert").since(11).control(),
    op("SequenceLength").since(11).control(),
    op("Shape").takes(&["end", "start"]).by(views::shape),
    op("Shrink")
        .since(9)
        .takes(&["bias", "lambd"])
        .of(NUMBERS)
        .wide()
        .by(functions::function),
    op("Sigmoid").of(FLOATS).wide().by(functions::function),
    op("Sign").since(9).of(NUMBERS).wide().by(functions::function),
    op("Sin").of(FLOATS).wide().by(functions::function),
    op("Sinh").since(9).of(FLOATS).wide().by(functions::function),
    op("Size").by(views::size),
    op("Slice")
        .sized_by(&[3])
        .takes(&["axes", "ends", "starts"])
        .own(direct::slice::slice),
    op("Softmax").takes(AXIS).of(FLOATS).wide().by(softmax::softmax),
    op("Softplus").of(FLOATS).wide().by(functions::function),
    op("Softsign").of(FLOATS).wide().by(functions::function),
    op("SpaceToDepth")
        .takes(&["blocksize"])
        .of(FIXED)
        .by(blocks::blocks),
    op("Split")
        .sized_by(&[1])
        .gives(Outputs::AsNamed)
        .takes(&["axis", "num_outputs", "split"])
        .by(parts::split),
    op("SplitToSequence")
        .since(11)
        .takes(&["axis", "keepdims"])
        .control(),
    op("Sqrt").of(FLOATS).wide().by(functions::function),
    op("Squeeze").sized_by(&[1]).takes(&["axes"]).by(views::squeeze),
    op("StringConcat").since(20).own(pieces_of_text::string_concat),
    op("StringNormalizer")
        .since(10)
        .takes(&["case_change_action", "is_case_sensitive", "locale", "stopwords"])
        .own(text::string_normalizer),
    op("StringSplit")
        .since(20)
        .gives(Outputs::Exactly(2))
        .takes(&["delimiter", "maxsplit"])
        .own(pieces_of_text::string_split),
    op("Sub").takes(LEGACY).of(NUMBERS).by(pairs::pair),
    op("Sum").of(FLOATS).wide().by(pairs::pair),
    op("Tan").of(FLOATS).wide().by(functions::function),
    op("Tanh").of(FLOATS).wide().by(functions::function),
    op("TfIdfVectorizer")
        .since(9)
        .takes(&[
            "max_gram_length",
            "max_skip_count",
            "min_gram_length",
            "mode",
            "ngram_counts",
            "ngram_indexes",
            "pool_int64s",
            "pool_strings",
            "weights",
        ])
        .own(text::tf_idf),
    op("ThresholdedRelu")
        .since(10)
        .takes(ALPHA)
        .of(FLOATS)
        .wide()
        .by(functions::function),
    op("Tile").shaped_by(&[1]).since(6).by(fill::tile),
    op("TopK")
        .sized_by(&[1])
        .scalars(&[1])
        .gives(Outputs::Exactly(2))
        .takes(&["axis", "k", "largest", "sorted"])
        .of(NUMBERS)
        .wide()
        .when(when::top_k)
        .by(top_k::top_k),
    op("Transpose").takes(&["perm"]).by(moves::transpose_of),
    op("Trilu").since(14).takes(&["upper"]).own(counting::trilu),
    op("Unique")
        .since(11)
        .gives(Outputs::Exactly(4))
        .takes(&["axis", "sorted"])
        .own(unique::unique),
    op("Unsqueeze")
        .sized_by(&[1])
        .takes(&["axes"])
        .by(views::unsqueeze),
    op("Upsample")
        .since(7)
        .takes(&["mode", "scales"])
        .own(resize::resize),
    op("Where").since(9).by_input(1).by(fill::condition),
    op("Xor").takes(LEGACY).of(Types::BOOL).by(pairs::pair),
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
    ml("TreeEnsemble", ml::tree_ensemble).since(5).takes(&[
        "aggregate_function",
        "leaf_targetids",
        "leaf_weights",
        "membership_values",
        "n_targets",
        "nodes_falseleafs",
        "nodes_falsenodeids",
        "nodes_featureids",
        "nodes_hitrates",
        "nodes_missing_value_tracks_true",
        "nodes_modes",
        "nodes_splits",
        "nodes_trueleafs",
        "nodes_truenodeids",
        "post_transform",
        "tree_roots",
    ]),
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
    contributed("DynamicQuantizeLSTM", recurrent::recurrent)
        .gives(Outputs::Optional)
        .takes(LSTM)
        .when(when::recurrent),
    contributed("GatherBlockQuantized", packed_rows::packed_rows).takes(&[
        "bits",
        "block_size",
        "gather_axis",
        "quantize_axis",
    ]),
    contributed("GroupQueryAttention", grouped_attention::grouped_attention)
        .gives(Outputs::Exactly(3))
        .takes(&[
            "causal",
            "do_rotary",
            "k_quant_type",
            "kv_cache_bit_width",
            "kv_num_heads",
            "local_window_size",
            "num_heads",
            "qk_output",
            "rotary_interleaved",
            "scale",
            "smooth_softmax",
            "softcap",
            "v_quant_type",
        ]),
    contributed("MatMulNBits", packed_product::packed_product).takes(&[
        "K",
        "N",
        "accuracy_level",
        "bits",
        "block_size",
        "weight_prepacked",
    ]),
    contributed("QLinearAdd", quantized_pair::quantized_pair),
    contributed("QLinearMul", quantized_pair::quantized_pair),
    contributed("RotaryEmbedding", rotary::rotary_embedding).takes(&[
        "interleaved",
        "is_packed_batching",
        "num_heads",
        "rotary_embedding_dim",
        "scale",
    ]),
    contributed("Tokenizer", tokenizer::tokenizer).takes(&[
        "mark",
        "mincharnum",
        "pad_value",
        "separators",
        "stopwords",
        "tokenexp",
    ]),
    inner("AttentionMask", attention_mask::attention_mask).takes(&["mask_filter_value"]),
    inner("CausalMask", attention_mask::causal_mask),
    inner("CoarseSigmoid", coarse::coarse),
    inner("CoarseTanh", coarse::coarse),
    inner("GatherBlockQuantized", packed_rows::packed_rows).takes(&[
        "bits",
        "block_size",
        "gather_axis",
        "quantize_axis",
    ]),
    inner("Ranked", heads::ranked).takes(&["input", "least", "most"]),
    inner("Requantize", quantize::requantize).takes(&["axis"]),
    inner("SameShape", heads::same_shape),
    inner("SplitHeads", heads::split_heads).takes(&["num_heads", "part", "scale"]),
    inner("TransposeLast", heads::transpose_last),
];
