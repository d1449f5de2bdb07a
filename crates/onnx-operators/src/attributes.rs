//! The types of operator attributes, and the range of their integers.

use self::AttributeType::{Float, Floats, Graph, Int, Ints, String, Strings, Tensor, TypeProto};

/// The type of an attribute. The discriminants are the file format's type codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum AttributeType {
    /// The attribute is an FP32 number.
    Float = 1,
    /// The attribute is a 64-bit integer.
    Int = 2,
    /// The attribute is a string.
    String = 3,
    /// The attribute is a tensor.
    Tensor = 4,
    /// The attribute is a subgraph.
    Graph = 5,
    /// The attribute is a list of FP32 numbers.
    Floats = 6,
    /// The attribute is a list of 64-bit integers.
    Ints = 7,
    /// The attribute is a list of strings.
    Strings = 8,
    /// The attribute is a type declaration, such as that of an optional value.
    TypeProto = 13,
}

impl AttributeType {
    /// Returns the type's name in the file format, such as `INTS`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Float => "FLOAT",
            Int => "INT",
            String => "STRING",
            Tensor => "TENSOR",
            Graph => "GRAPH",
            Floats => "FLOATS",
            Ints => "INTS",
            Strings => "STRINGS",
            TypeProto => "TYPE_PROTO",
        }
    }
}

/// Returns the type of an attribute by the names of operator and attribute, as ONNX and ONNX Runtime define
/// it; `None` for an unknown attribute.
///
/// ```
/// use onnx_operators::{AttributeType, attribute_type};
///
/// assert_eq!(attribute_type("LeakyRelu", "alpha"), Some(AttributeType::Float));
/// assert_eq!(attribute_type("LeakyRelu", "slope"), None);
/// ```
#[must_use]
pub fn attribute_type(op_type: &str, attribute: &str) -> Option<AttributeType> {
    Some(match (op_type, attribute) {
        (
            "LSTM" | "GRU" | "RNN" | "AttnLSTM" | "DynamicQuantizeLSTM",
            "activation_alpha" | "activation_beta",
        )
        | ("Scaler", "scale") => Floats,
        ("Dropout" | "MurmurHash3", "seed") | ("TreeEnsemble", "aggregate_function" | "post_transform") => {
            Int
        }
        ("MatMulBnb4", "quant_type") => Int,
        ("Optional", "type") => TypeProto,
        ("Pad", "value") => Float,
        ("TreeEnsemble", "nodes_hitrates" | "nodes_modes") => Tensor,
        (_, name) => usual(name)?,
    })
}

/// Returns the type that an attribute of this name has in all operators except those listed in
/// [`attribute_type`].
fn usual(attribute: &str) -> Option<AttributeType> {
    Some(match attribute {
        "K"
        | "N"
        | "accuracy_level"
        | "align_corners"
        | "allowzero"
        | "antialias"
        | "axis"
        | "batch_axis"
        | "batch_dims"
        | "bits"
        | "block_size"
        | "blocksize"
        | "broadcast"
        | "causal"
        | "ceil_mode"
        | "center_point_box"
        | "channels_last"
        | "chunk_size"
        | "count_include_pad"
        | "default_int64"
        | "detect_negative"
        | "detect_positive"
        | "dilation"
        | "do_rotary"
        | "dtype"
        | "end"
        | "exclude_outside"
        | "exclusive"
        | "expert_weight_bits"
        | "fc1_expert_weight_bits"
        | "fc2_expert_weight_bits"
        | "fc3_expert_weight_bits"
        | "fmod"
        | "gather_axis"
        | "group"
        | "hidden_size"
        | "ignore_index"
        | "input_channel_offset"
        | "input_channels"
        | "input_forget"
        | "interleaved"
        | "inverse"
        | "is_case_sensitive"
        | "is_causal"
        | "is_packed_batching"
        | "is_test"
        | "k"
        | "keepdims"
        | "kv_cache_bit_width"
        | "kv_num_heads"
        | "largest"
        | "layout"
        | "linear_before_reset"
        | "local_window_size"
        | "mark"
        | "max_gram_length"
        | "max_skip_count"
        | "maxsplit"
        | "min_gram_length"
        | "mincharnum"
        | "multi_class"
        | "n_supports"
        | "n_targets"
        | "ndim"
        | "new_axis"
        | "noop_with_empty_axes"
        | "normalize_routing_weights"
        | "num_groups"
        | "num_heads"
        | "num_outputs"
        | "num_scan_inputs"
        | "offset_group"
        | "one_class"
        | "onesided"
        | "output_datatype"
        | "output_dtype"
        | "output_height"
        | "output_qk"
        | "output_width"
        | "p"
        | "past_present_share_buffer"
        | "periodic"
        | "precision"
        | "q_num_heads"
        | "qk_matmul_output_mode"
        | "qk_output"
        | "quantize_axis"
        | "replaced_value_int64"
        | "reverse"
        | "rotary_embedding_dim"
        | "rotary_interleaved"
        | "sampling_ratio"
        | "saturate"
        | "select_last_index"
        | "size"
        | "smooth_softmax"
        | "softmax_precision"
        | "sorted"
        | "spatial"
        | "start"
        | "stash_type"
        | "state_channels_last"
        | "state_length"
        | "state_update_capacity"
        | "state_window"
        | "storage_order"
        | "swiglu_fusion"
        | "swiglu_limit_after_activation"
        | "targets"
        | "time_axis"
        | "to"
        | "training_mode"
        | "transA"
        | "transB"
        | "upper"
        | "use_sparse_mixer"
        | "value_int"
        | "weight_prepacked"
        | "weights_prepacked"
        | "zeros" => Int,
        "axes"
        | "cats_int64s"
        | "class_ids"
        | "class_nodeids"
        | "class_treeids"
        | "classlabels_int64s"
        | "classlabels_ints"
        | "dilations"
        | "ends"
        | "imputed_value_int64s"
        | "inputdimensions"
        | "kernel_shape"
        | "keys_int64s"
        | "leaf_targetids"
        | "ngram_counts"
        | "ngram_indexes"
        | "nodes_falseleafs"
        | "nodes_falsenodeids"
        | "nodes_featureids"
        | "nodes_missing_value_tracks_true"
        | "nodes_nodeids"
        | "nodes_treeids"
        | "nodes_trueleafs"
        | "nodes_truenodeids"
        | "output_padding"
        | "output_shape"
        | "paddings"
        | "pads"
        | "perm"
        | "pool_int64s"
        | "scan_input_axes"
        | "scan_input_directions"
        | "scan_output_axes"
        | "scan_output_directions"
        | "shape"
        | "split"
        | "starts"
        | "strides"
        | "target_ids"
        | "target_nodeids"
        | "target_treeids"
        | "tree_roots"
        | "value_ints"
        | "values_int64s"
        | "vectors_per_class" => Ints,
        "activation_alpha"
        | "activation_beta"
        | "alpha"
        | "beta"
        | "bias"
        | "clip"
        | "cubic_coeff_a"
        | "default_float"
        | "epsilon"
        | "extrapolation_value"
        | "gamma"
        | "high"
        | "lambd"
        | "low"
        | "mask_filter_value"
        | "max"
        | "mean"
        | "min"
        | "momentum"
        | "ratio"
        | "replaced_value_float"
        | "scale"
        | "seed"
        | "softcap"
        | "spatial_scale"
        | "swiglu_limit"
        | "threshold"
        | "value_float" => Float,
        "base_values"
        | "class_weights"
        | "coefficients"
        | "imputed_value_floats"
        | "intercepts"
        | "kernel_params"
        | "keys_floats"
        | "nodes_hitrates"
        | "nodes_values"
        | "offset"
        | "prob_a"
        | "prob_b"
        | "rho"
        | "scales"
        | "support_vectors"
        | "target_weights"
        | "value_floats"
        | "values_floats"
        | "weights" => Floats,
        "activation"
        | "activation_type"
        | "aggregate_function"
        | "approximate"
        | "auto_pad"
        | "case_change_action"
        | "coordinate_transformation_mode"
        | "default_string"
        | "delimiter"
        | "direction"
        | "equation"
        | "k_quant_type"
        | "keep_aspect_ratio_policy"
        | "kernel_type"
        | "locale"
        | "mode"
        | "nearest_mode"
        | "norm"
        | "pad_value"
        | "padding_mode"
        | "pattern"
        | "post_transform"
        | "quant_type"
        | "reduction"
        | "tokenexp"
        | "update_rule"
        | "v_quant_type"
        | "value_string" => String,
        "activations"
        | "cats_strings"
        | "classes_strings"
        | "classlabels_strings"
        | "keys_strings"
        | "nodes_modes"
        | "pool_strings"
        | "separators"
        | "stopwords"
        | "value_strings"
        | "values_strings" => Strings,
        "base_values_as_tensor"
        | "class_weights_as_tensor"
        | "default_tensor"
        | "keys_tensor"
        | "leaf_weights"
        | "membership_values"
        | "nodes_hitrates_as_tensor"
        | "nodes_splits"
        | "nodes_values_as_tensor"
        | "target_weights_as_tensor"
        | "value"
        | "values_tensor" => Tensor,
        "body" | "else_branch" | "then_branch" => Graph,
        _ => return None,
    })
}

/// Returns whether the integers of an attribute may exceed 32 bits, because they are data, or bounds that are
/// clamped. Integers of all other attributes are sizes, axes, indices and counts of 32 bits.
#[must_use]
pub fn holds_any_number(attribute: &str) -> bool {
    let is_bound = matches!(attribute, "start" | "starts" | "end" | "ends");
    let is_data = matches!(
        attribute,
        "value_int" | "value_ints" | "seed" | "classlabels_ints"
    );
    is_bound || is_data || attribute.contains("int64") || attribute.ends_with("ids")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// The attribute types of ONNX's and ONNX Runtime's own operators, one operator per line, as their
    /// packages list them (`get_all_operator_schema`, `get_all_schemas_with_history`). If versions of an
    /// operator differ in the type of an attribute, the newest type applies.
    const SCHEMAS: &str = include_str!("../tests/fixtures/attribute_types.txt");

    #[test]
    fn types_are_those_of_the_schemas() {
        let mut count = 0;
        for line in SCHEMAS.lines() {
            let (operator, attributes) = line.split_once(' ').unwrap();
            let (_, op_type) = operator.rsplit_once('/').unwrap_or(("", operator));
            for (attribute, wanted) in attributes.split(' ').filter_map(|pair| pair.split_once(':')) {
                let Some(found) = attribute_type(op_type, attribute) else {
                    continue;
                };
                assert_eq!(found.name(), wanted, "{operator} {attribute}");
                count += 1;
            }
        }
        assert!(count > 500, "{count}");
    }

    #[test]
    fn every_attribute_of_the_table_has_a_type() {
        for operator in crate::operators().filter(|operator| operator.domain != crate::NEWEST) {
            for attribute in operator.attributes {
                let name = operator.name;
                assert!(attribute_type(name, attribute).is_some(), "{name} {attribute}");
            }
        }
    }
}
