//! The types of operator attributes in ONNX and ONNX Runtime. An attribute of another type would be ignored.

use tensor_core::Quoted;

use crate::{
    Error,
    proto::{
        GraphProto, NodeProto,
        attribute_proto::AttributeType::{
            self, Float, Floats, Graph, Int, Ints, String, Strings, Tensor, TypeProto,
        },
        canonical_domain,
    },
    structure,
};

/// Checks that the attributes of all nodes, including those of subgraphs, have the types that their operators
/// define.
///
/// `is_known(domain, operator, attribute)` returns whether the runtime reads the attribute. Unknown
/// attributes are refused by name later.
pub(crate) fn check_types(graph: &GraphProto, is_known: fn(&str, &str, &str) -> bool) -> Result<(), Error> {
    for node in &graph.node {
        let domain = canonical_domain(&node.domain);
        for attribute in &node.attribute {
            let found = attribute.r#type();
            let expected = attribute_type(&node.op_type, &attribute.name);
            if let Some(expected) = expected.filter(|&expected| expected != found)
                && is_known(domain, &node.op_type, &attribute.name)
            {
                return Err(mismatch(node, &attribute.name, expected, found));
            }
            attribute
                .g
                .iter()
                .try_for_each(|graph| check_types(graph, is_known))?;
        }
    }
    Ok(())
}

fn mismatch(node: &NodeProto, attribute: &str, expected: AttributeType, found: AttributeType) -> Error {
    let (expected, found) = (expected.as_str_name(), found.as_str_name());
    let reason = format!(
        "the type of attribute {} is {found}, expected {expected}",
        Quoted(attribute)
    );
    Error::invalid(reason).within(structure::label(node))
}

/// Returns the type of an attribute, `None` if it is not in the table.
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

/// Returns the type that an attribute has in all operators that [`attribute_type`] does not list.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::proto::AttributeProto;

    #[test]
    fn nothing_is_said_of_operators_that_are_not_there() {
        let with_text = |op_type: &str| GraphProto {
            node: vec![NodeProto {
                op_type: op_type.to_owned(),
                attribute: vec![AttributeProto {
                    name: "bias".to_owned(),
                    r#type: String as i32,
                    ..AttributeProto::default()
                }],
                ..NodeProto::default()
            }],
            ..GraphProto::default()
        };
        let is_known = |_: &str, op_type: &str, _: &str| op_type != "ImageScaler";
        assert!(check_types(&with_text("LRN"), is_known).is_err());
        assert!(check_types(&with_text("ImageScaler"), is_known).is_ok());
    }

    /// The schemas of ONNX's and ONNX Runtime's operators, one operator per line, from
    /// `get_all_operator_schema` and `get_all_schemas_with_history` of their packages; each attribute has its
    /// newest type.
    const SCHEMAS: &str = include_str!("../../tests/fixtures/attribute_types.txt");

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
                assert_eq!(found.as_str_name(), wanted, "{operator} {attribute}");
                count += 1;
            }
        }
        assert!(count > 500, "{count}");
    }

    /// `DynamicQuantizeLSTM` ends like `LSTM` and has the same list attributes.
    #[test]
    fn lists_of_a_quantized_layer_are_lists() {
        let graph = |op_type: &str, r#type: AttributeType| GraphProto {
            node: vec![NodeProto {
                op_type: op_type.to_owned(),
                domain: "com.microsoft".to_owned(),
                attribute: vec![AttributeProto {
                    name: "activation_alpha".to_owned(),
                    r#type: r#type as i32,
                    ..AttributeProto::default()
                }],
                ..NodeProto::default()
            }],
            ..GraphProto::default()
        };
        assert!(check_types(&graph("DynamicQuantizeLSTM", Floats), |_, _, _| true).is_ok());
        assert!(check_types(&graph("DynamicQuantizeLSTM", Float), |_, _, _| true).is_err());
    }

    #[test]
    fn nothing_is_said_of_attributes_that_the_operator_has_not() {
        let graph = GraphProto {
            node: vec![NodeProto {
                op_type: "Relu".to_owned(),
                attribute: vec![AttributeProto {
                    name: "alpha".to_owned(),
                    r#type: Int as i32,
                    ..AttributeProto::default()
                }],
                ..NodeProto::default()
            }],
            ..GraphProto::default()
        };
        // It is refused by name later.
        assert!(check_types(&graph, |_, _, attribute| attribute != "alpha").is_ok());
    }
}
