//! The operators that are computed, and under which conditions. `docs/onnx.md` has the table for readers.

use onnx_kernels::{
    attention, conv, elementwise, gather, image, matmul, norm, pool, quant, random, reduce, rnn, shape,
    signal,
};
use onnx_ml::{self as ml, text};

use super::{
    conditions as when,
    rule::{Outputs, Rule, contributed, inner, ml, op},
    types::Types,
};

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
pub(crate) static RULES: &[Rule] = &[
    op("Abs").of(NUMBERS).by(elementwise::function),
    op("Acos").of(FLOATS).wide().by(elementwise::function),
    op("Acosh").since(9).of(FLOATS).wide().by(elementwise::function),
    op("Add").takes(LEGACY).of(NUMBERS).by(elementwise::pair),
    op("AffineGrid")
        .shaped_by(&[1])
        .since(20)
        .takes(&["align_corners"])
        .own(image::affine_grid),
    op("And").takes(LEGACY).of(Types::BOOL).by(elementwise::pair),
    op("ArgMax")
        .takes(ARG)
        .of(FLOATS.and(Types::SIGNED).and(Types::U8).and(Types::U16))
        .by(reduce::argument),
    op("ArgMin")
        .takes(ARG)
        .of(FLOATS.and(Types::SIGNED).and(Types::U8).and(Types::U16))
        .by(reduce::argument),
    op("Asin").of(FLOATS).wide().by(elementwise::function),
    op("Asinh").since(9).of(FLOATS).wide().by(elementwise::function),
    op("Atan").of(FLOATS).wide().by(elementwise::function),
    op("Atanh").since(9).of(FLOATS).wide().by(elementwise::function),
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
        .by(pool::averages),
    op("BatchNormalization")
        .gives(Outputs::Optional)
        .takes(&["epsilon", "is_test", "momentum", "spatial", "training_mode"])
        .of(FLOATS)
        .wide()
        .when(when::batch_normalization)
        .by(norm::batch_normalization),
    op("Bernoulli")
        .since(15)
        .takes(&["dtype", "seed"])
        .own(random::random),
    op("BitShift")
        .since(11)
        .takes(&["direction"])
        .own(elementwise::bit_shift),
    op("BitwiseAnd")
        .since(18)
        .of(Types::INTEGERS)
        .by(elementwise::bits),
    op("BitwiseNot")
        .since(18)
        .of(Types::INTEGERS)
        .by(elementwise::bitwise_not),
    op("BitwiseOr")
        .since(18)
        .of(Types::INTEGERS)
        .by(elementwise::bits),
    op("BitwiseXor")
        .since(18)
        .of(Types::INTEGERS)
        .by(elementwise::bits),
    op("BlackmanWindow")
        .sized_by(&[0])
        .scalars(&[0])
        .since(17)
        .takes(WINDOW)
        .by(signal::window),
    op("Cast").takes(&["saturate", "to"]).by(elementwise::cast),
    op("CastLike")
        .since(15)
        .takes(&["saturate"])
        .own(elementwise::cast_like),
    op("Ceil").of(FLOATS).wide().by(elementwise::function),
    op("Celu")
        .since(12)
        .takes(ALPHA)
        .of(FLOATS)
        .wide()
        .by(elementwise::function),
    op("CenterCropPad")
        .shaped_by(&[1])
        .since(18)
        .takes(&["axes"])
        .own(shape::center_crop_pad),
    op("Clip")
        .takes(&["max", "min"])
        .of(NUMBERS)
        .wide()
        .with(elementwise::clip_of),
    op("Col2Im")
        .sized_by(&[1, 2])
        .since(18)
        .takes(&["dilations", "pads", "strides"])
        .own(conv::col_2_im),
    op("Compress").since(9).takes(AXIS).own(gather::compress),
    op("Concat").takes(AXIS).own(shape::concat),
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
        .by(shape::constant_of_shape),
    op("Conv").takes(CONV).of(FLOATS).wide().by(conv::conv),
    op("ConvInteger").since(10).takes(CONV).by(conv::conv_integer),
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
        .by(conv::conv_transpose),
    op("Cos").of(FLOATS).wide().by(elementwise::function),
    op("Cosh").since(9).of(FLOATS).wide().by(elementwise::function),
    op("CumSum")
        .sized_by(&[1])
        .since(11)
        .takes(&["exclusive", "reverse"])
        .own(reduce::cum_sum),
    op("DFT")
        .sized_by(&[1, 2])
        .since(17)
        .takes(&["axis", "inverse", "onesided"])
        .of(FLOATS)
        .when(when::dft)
        .own(signal::dft),
    op("DeformConv")
        .since(19)
        .takes(&[
            "dilations",
            "group",
            "kernel_shape",
            "offset_group",
            "pads",
            "strides",
        ])
        .own(conv::deform_conv),
    op("DepthToSpace")
        .takes(&["blocksize", "mode"])
        .of(FIXED)
        .by(shape::blocks),
    op("DequantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "output_dtype"])
        .when(when::to_fp32)
        .own(quant::dequantize),
    op("Det").since(11).own(matmul::determinant),
    op("Div").takes(LEGACY).of(NUMBERS).by(elementwise::pair),
    op("Dropout")
        .scalars(&[1, 2])
        .gives(Outputs::Optional)
        .takes(&["is_test", "ratio", "seed"])
        .when(when::dropout)
        .by(shape::dropout),
    op("DynamicQuantizeLinear")
        .gives(Outputs::Exactly(3))
        .since(11)
        .own(quant::quantize_dynamically),
    op("Einsum")
        .since(12)
        .takes(&["equation"])
        .of(FACTORS.and(Types::I64))
        .wide()
        .when(when::einsum)
        .by(matmul::einsum),
    op("Elu").takes(ALPHA).of(FLOATS).wide().by(elementwise::function),
    op("Equal").takes(LEGACY).of(ALL).by(elementwise::compare),
    op("Erf")
        .since(9)
        .of(SHORT_FLOATS)
        .wide()
        .by(elementwise::function),
    op("Exp").of(FLOATS).wide().by(elementwise::function),
    op("Expand").shaped_by(&[1]).since(8).by(shape::expand),
    op("EyeLike").since(9).takes(&["dtype", "k"]).by(shape::eye_like),
    op("Flatten").takes(AXIS).by(shape::flatten),
    op("Floor").of(FLOATS).wide().by(elementwise::function),
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
        .own(rnn::recurrent),
    op("Gather").takes(AXIS).by(shape::gather),
    op("GatherElements").since(11).takes(AXIS).by(gather::taken),
    op("GatherND").since(11).takes(&["batch_dims"]).by(gather::taken),
    op("Gelu")
        .since(20)
        .takes(&["approximate"])
        .of(SHORT_FLOATS)
        .wide()
        .by(elementwise::function),
    op("Gemm")
        .takes(&["alpha", "beta", "broadcast", "transA", "transB"])
        .of(FLOATS)
        .wide()
        .by(matmul::gemm_of),
    op("GlobalAveragePool").of(FLOATS).wide().by(reduce::global_pool),
    op("GlobalLpPool")
        .since(2)
        .takes(&["p"])
        .own(pool::global_lp_pool),
    op("GlobalMaxPool").of(FLOATS).by(reduce::global_pool),
    op("Greater").takes(LEGACY).of(NUMBERS).by(elementwise::compare),
    op("GreaterOrEqual")
        .since(12)
        .of(NUMBERS)
        .by(elementwise::compare),
    op("GridSample")
        .since(16)
        .takes(&["align_corners", "mode", "padding_mode"])
        .own(image::grid_sample),
    op("GroupNormalization")
        .since(18)
        .takes(&["epsilon", "num_groups", "stash_type"])
        .of(FLOATS)
        .wide()
        .by(norm::normalize),
    op("HammingWindow")
        .sized_by(&[0])
        .scalars(&[0])
        .since(17)
        .takes(WINDOW)
        .by(signal::window),
    op("HannWindow")
        .sized_by(&[0])
        .scalars(&[0])
        .since(17)
        .takes(WINDOW)
        .by(signal::window),
    op("HardSigmoid")
        .takes(&["alpha", "beta"])
        .of(FLOATS)
        .wide()
        .by(elementwise::function),
    op("HardSwish")
        .since(14)
        .of(FLOATS)
        .wide()
        .by(elementwise::function),
    op("Hardmax").takes(AXIS).own(norm::hardmax),
    op("Identity").by(shape::identity),
    op("If")
        .gives(Outputs::AsNamed)
        .takes(&["else_branch", "then_branch"]),
    op("InstanceNormalization")
        .takes(&["epsilon"])
        .of(FLOATS)
        .wide()
        .by(norm::normalize),
    op("IsInf")
        .since(10)
        .takes(&["detect_negative", "detect_positive"])
        .of(FLOATS)
        .by(elementwise::truth),
    op("IsNaN").since(9).of(FLOATS).by(elementwise::truth),
    op("LRN")
        .takes(&["alpha", "beta", "bias", "size"])
        .of(FLOATS)
        .wide()
        .by(norm::lrn),
    op("LSTM")
        .gives(Outputs::Optional)
        .takes(LSTM)
        .when(when::recurrent)
        .own(rnn::recurrent),
    op("LayerNormalization")
        .gives(Outputs::Optional)
        .since(17)
        .takes(&["axis", "epsilon", "stash_type"])
        .of(FLOATS)
        .wide()
        .by(norm::normalize),
    op("LeakyRelu")
        .takes(ALPHA)
        .of(FLOATS)
        .wide()
        .by(elementwise::function),
    op("Less").takes(LEGACY).of(NUMBERS).by(elementwise::compare),
    op("LessOrEqual").since(12).of(NUMBERS).by(elementwise::compare),
    op("Log").of(FLOATS).wide().by(elementwise::function),
    op("LogSoftmax").takes(AXIS).of(FLOATS).wide().by(norm::softmax),
    op("Loop")
        .since(1)
        .takes(&["body"])
        .gives(Outputs::AsNamed)
        .control(),
    op("LpNormalization")
        .takes(&["axis", "p"])
        .of(FLOATS)
        .wide()
        .by(norm::lp),
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
        .own(pool::lp_pool),
    op("MatMul").of(FACTORS.and(WIDE)).wide().by(matmul::mat_mul),
    op("MatMulInteger").since(10).by(matmul::mat_mul_integer),
    op("Max").of(NUMBERS).wide().by(elementwise::pair),
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
        .by(pool::maxima),
    op("MaxUnpool")
        .shaped_by(&[2])
        .since(9)
        .takes(&["kernel_shape", "pads", "strides"])
        .own(pool::max_unpool),
    op("Mean").of(FLOATS).wide().by(elementwise::mean),
    op("MeanVarianceNormalization")
        .since(9)
        .takes(&["axes"])
        .of(FLOATS)
        .wide()
        .by(norm::normalize),
    op("MelWeightMatrix")
        .sized_by(&[0, 1, 2])
        .scalars(&[0, 1, 2, 3, 4])
        .since(17)
        .takes(&["output_datatype"])
        .by(signal::weights),
    op("Min").of(NUMBERS).wide().by(elementwise::pair),
    op("Mish").since(18).of(FLOATS).wide().by(elementwise::function),
    op("Mod").since(10).takes(&["fmod"]).own(elementwise::remainder),
    op("Mul").takes(LEGACY).of(NUMBERS).by(elementwise::pair),
    op("Neg").of(FLOATS.and(Types::SIGNED)).by(elementwise::function),
    op("NegativeLogLikelihoodLoss")
        .since(12)
        .takes(&["ignore_index", "reduction"])
        .own(norm::loss),
    op("NonMaxSuppression")
        .since(10)
        .takes(&["center_point_box"])
        .own(image::non_max_suppression),
    op("NonZero").since(9).of(FIXED).by(gather::non_zero),
    op("Not").of(Types::BOOL).by(elementwise::truth),
    op("OneHot")
        .sized_by(&[1])
        .since(9)
        .takes(AXIS)
        .own(gather::one_hot),
    op("Optional").since(15).takes(&["type"]).control(),
    op("OptionalGetElement").since(15).control(),
    op("OptionalHasElement").since(15).control(),
    op("Or").takes(LEGACY).of(Types::BOOL).by(elementwise::pair),
    op("PRelu").of(NUMBERS).wide().by(elementwise::prelu),
    op("Pad")
        .sized_by(&[1, 3])
        .takes(&["mode", "pads", "paddings", "value"])
        .own(shape::pad),
    op("Pow")
        .takes(LEGACY)
        .of(FLOATS.and(POWERS))
        .wide()
        .by(elementwise::power),
    op("QLinearConv").since(10).takes(CONV).by(conv::q_linear_conv),
    op("QLinearMatMul").since(10).by(matmul::q_linear_mat_mul),
    op("QuantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "output_dtype", "precision", "saturate"])
        .when(when::not_blocked)
        .own(quant::quantize),
    op("RMSNormalization")
        .since(23)
        .takes(&["axis", "epsilon", "stash_type"])
        .of(FLOATS)
        .wide()
        .by(norm::normalize),
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
        .own(rnn::recurrent),
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
    op("Range").since(11).own(shape::range),
    op("Reciprocal").of(FLOATS).wide().by(elementwise::function),
    op("ReduceL1")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reduce::reduce),
    op("ReduceL2")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reduce::reduce),
    op("ReduceLogSum")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reduce::reduce),
    op("ReduceLogSumExp")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reduce::reduce),
    op("ReduceMax")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(FIXED)
        .wide()
        .by(reduce::reduce),
    op("ReduceMean")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reduce::reduce),
    op("ReduceMin")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(FIXED)
        .wide()
        .by(reduce::reduce),
    op("ReduceProd")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reduce::reduce),
    op("ReduceSum")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reduce::reduce),
    op("ReduceSumSquare")
        .sized_by(&[1])
        .takes(REDUCE)
        .of(NUMBERS)
        .wide()
        .by(reduce::reduce),
    op("RegexFullMatch")
        .since(20)
        .takes(&["pattern"])
        .own(text::regex_full_match),
    op("Relu")
        .of(FLOATS.and(Types::SIGNED))
        .wide()
        .by(elementwise::function),
    op("Reshape")
        .shaped_by(&[1])
        .since(5)
        .takes(&["allowzero"])
        .by(shape::reshape),
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
        .own(image::resize),
    op("ReverseSequence")
        .sized_by(&[1])
        .since(10)
        .takes(&["batch_axis", "time_axis"])
        .own(gather::reverse_sequence),
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
        .own(image::roi_align),
    op("RotaryEmbedding")
        .since(23)
        .takes(&["interleaved", "num_heads", "rotary_embedding_dim"])
        .own(attention::rotary_embedding),
    op("Round").since(11).of(FLOATS).wide().by(elementwise::function),
    op("STFT")
        .sized_by(&[1, 3])
        .since(17)
        .takes(&["onesided"])
        .own(signal::stft),
    op("Scan").since(9).gives(Outputs::AsNamed).control().takes(&[
        "body",
        "num_scan_inputs",
        "scan_input_axes",
        "scan_input_directions",
        "scan_output_axes",
        "scan_output_directions",
    ]),
    op("Scatter").takes(AXIS).bytes().by(gather::scatter),
    op("ScatterElements")
        .since(11)
        .takes(&["axis", "reduction"])
        .bytes()
        .by(gather::scatter),
    op("ScatterND")
        .since(11)
        .takes(&["reduction"])
        .bytes()
        .by(gather::scatter),
    op("Selu")
        .takes(&["alpha", "gamma"])
        .of(FLOATS)
        .wide()
        .by(elementwise::function),
    op("SequenceAt").since(11).control(),
    op("SequenceConstruct").since(11).control(),
    op("SequenceEmpty").since(11).takes(&["dtype"]).control(),
    op("SequenceErase").since(11).control(),
    op("SequenceInsert").since(11).control(),
    op("SequenceLength").since(11).control(),
    op("Shape").takes(&["end", "start"]).by(shape::shape),
    op("Shrink")
        .since(9)
        .takes(&["bias", "lambd"])
        .of(NUMBERS)
        .wide()
        .by(elementwise::function),
    op("Sigmoid").of(FLOATS).wide().by(elementwise::function),
    op("Sign").since(9).of(NUMBERS).wide().by(elementwise::function),
    op("Sin").of(FLOATS).wide().by(elementwise::function),
    op("Sinh").since(9).of(FLOATS).wide().by(elementwise::function),
    op("Size").by(shape::size),
    op("Slice")
        .sized_by(&[3])
        .takes(&["axes", "ends", "starts"])
        .own(shape::slice),
    op("Softmax").takes(AXIS).of(FLOATS).wide().by(norm::softmax),
    op("SoftmaxCrossEntropyLoss")
        .since(12)
        .gives(Outputs::Optional)
        .takes(&["ignore_index", "reduction"])
        .own(norm::loss),
    op("Softplus").of(FLOATS).wide().by(elementwise::function),
    op("Softsign").of(FLOATS).wide().by(elementwise::function),
    op("SpaceToDepth")
        .takes(&["blocksize"])
        .of(FIXED)
        .by(shape::blocks),
    op("Split")
        .sized_by(&[1])
        .gives(Outputs::AsNamed)
        .takes(&["axis", "num_outputs", "split"])
        .by(shape::split),
    op("SplitToSequence")
        .since(11)
        .takes(&["axis", "keepdims"])
        .control(),
    op("Sqrt").of(FLOATS).wide().by(elementwise::function),
    op("Squeeze").sized_by(&[1]).takes(&["axes"]).by(shape::squeeze),
    op("StringConcat").since(20).own(text::string_concat),
    op("StringNormalizer")
        .since(10)
        .takes(&["case_change_action", "is_case_sensitive", "locale", "stopwords"])
        .own(text::string_normalizer),
    op("StringSplit")
        .since(20)
        .gives(Outputs::Exactly(2))
        .takes(&["delimiter", "maxsplit"])
        .own(text::string_split),
    op("Sub").takes(LEGACY).of(NUMBERS).by(elementwise::pair),
    op("Sum").of(FLOATS).wide().by(elementwise::pair),
    op("Tan").of(FLOATS).wide().by(elementwise::function),
    op("Tanh").of(FLOATS).wide().by(elementwise::function),
    op("TensorScatter")
        .since(24)
        .takes(&["axis", "mode"])
        .own(attention::tensor_scatter),
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
        .by(elementwise::function),
    op("Tile").shaped_by(&[1]).since(6).by(shape::tile),
    op("TopK")
        .sized_by(&[1])
        .scalars(&[1])
        .gives(Outputs::Exactly(2))
        .takes(&["axis", "k", "largest", "sorted"])
        .of(NUMBERS)
        .wide()
        .when(when::top_k)
        .by(gather::top_k),
    op("Transpose").takes(&["perm"]).by(shape::transpose_of),
    op("Trilu").since(14).takes(&["upper"]).own(shape::trilu),
    op("Unique")
        .since(11)
        .gives(Outputs::Exactly(4))
        .takes(&["axis", "sorted"])
        .own(gather::unique),
    op("Unsqueeze")
        .sized_by(&[1])
        .takes(&["axes"])
        .by(shape::unsqueeze),
    op("Upsample")
        .since(7)
        .takes(&["mode", "scales"])
        .own(image::resize),
    op("Where").since(9).by_input(1).by(shape::condition),
    op("Xor").takes(LEGACY).of(Types::BOOL).by(elementwise::pair),
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
    contributed("CausalConvWithState", attention::causal_conv)
        .gives(Outputs::Exactly(2))
        .takes(&[
            "activation",
            "channels_last",
            "dilation",
            "input_channel_offset",
            "input_channels",
            "ndim",
            "state_channels_last",
            "state_length",
            "state_update_capacity",
            "state_window",
        ]),
    contributed("DynamicQuantizeLSTM", rnn::recurrent)
        .gives(Outputs::Optional)
        .takes(LSTM)
        .when(when::recurrent),
    contributed("GatherBlockQuantized", quant::packed_rows).takes(&[
        "bits",
        "block_size",
        "gather_axis",
        "quantize_axis",
    ]),
    contributed("GroupQueryAttention", attention::grouped_attention)
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
    contributed("LinearAttention", attention::linear_attention)
        .gives(Outputs::Exactly(2))
        .takes(&[
            "chunk_size",
            "kv_num_heads",
            "q_num_heads",
            "scale",
            "state_window",
            "update_rule",
        ]),
    contributed("MatMulBnb4", matmul::four_bit_floats).takes(&[
        "K",
        "N",
        "block_size",
        "quant_type",
        "training_mode",
        "transB",
    ]),
    contributed("MatMulNBits", matmul::packed_product).takes(&[
        "K",
        "N",
        "accuracy_level",
        "bits",
        "block_size",
        "weight_prepacked",
    ]),
    contributed("MoE", matmul::experts).takes(&[
        "activation_alpha",
        "activation_beta",
        "activation_type",
        "k",
        "normalize_routing_weights",
        "swiglu_fusion",
        "swiglu_limit",
        "swiglu_limit_after_activation",
        "use_sparse_mixer",
    ]),
    contributed("QLinearAdd", quant::quantized_pair),
    contributed("QLinearMul", quant::quantized_pair),
    contributed("QMoE", matmul::packed_experts).takes(&[
        "accuracy_level",
        "activation_alpha",
        "activation_beta",
        "activation_type",
        "block_size",
        "expert_weight_bits",
        "fc1_expert_weight_bits",
        "fc2_expert_weight_bits",
        "fc3_expert_weight_bits",
        "k",
        "normalize_routing_weights",
        "quant_type",
        "swiglu_fusion",
        "swiglu_limit",
        "swiglu_limit_after_activation",
        "use_sparse_mixer",
        "weights_prepacked",
    ]),
    contributed("RotaryEmbedding", attention::rotary_embedding).takes(&[
        "interleaved",
        "is_packed_batching",
        "num_heads",
        "rotary_embedding_dim",
        "scale",
    ]),
    contributed("Tokenizer", text::tokenizer).takes(&[
        "mark",
        "mincharnum",
        "pad_value",
        "separators",
        "stopwords",
        "tokenexp",
    ]),
    inner("AttentionMask", attention::attention_mask).takes(&["mask_filter_value"]),
    inner("CachedRows", attention::cached_rows),
    inner("CausalMask", attention::causal_mask),
    inner("CoarseSigmoid", elementwise::coarse),
    inner("CoarseTanh", elementwise::coarse),
    inner("GatherBlockQuantized", quant::packed_rows).takes(&[
        "bits",
        "block_size",
        "gather_axis",
        "quantize_axis",
    ]),
    inner("Ranked", attention::ranked).takes(&["input", "least", "most"]),
    inner("Requantize", quant::requantize).takes(&["axis"]),
    inner("SameShape", attention::same_shape),
    inner("SplitHeads", attention::split_heads).takes(&["num_heads", "part", "scale"]),
    inner("TransposeLast", attention::transpose_last),
];
