//! Conditions on single nodes: refuses combinations of attributes that are unsupported, or on which
//! implementations disagree.

use onnx_graph::{Error as FileError, ErrorKind};
use onnx_tensor::node::Attributes;
use tensor_core::QuotedName;

use crate::invalid_node::invalid;

/// Checks a node in a version of its operator set, and returns the reason if it is refused.
pub(super) type Condition = fn(Attributes<'_>, opset: i64) -> Verdict;

/// The conditions, each with the full names of its operators.
pub(super) const CONDITIONS: &[(Condition, &[&str])] = &[
    (pool, &["AveragePool", "MaxPool"]),
    (batch_normalization, &["BatchNormalization"]),
    (dft, &["DFT"]),
    (to_fp32, &["DequantizeLinear"]),
    (dropout, &["Dropout"]),
    (einsum, &["Einsum"]),
    (
        recurrent,
        &["GRU", "LSTM", "RNN", "com.microsoft/DynamicQuantizeLSTM"],
    ),
    (not_blocked, &["QuantizeLinear"]),
    (top_k, &["TopK"]),
];

type Verdict = Result<(), FileError>;

/// Refuses a node that ONNX Runtime may support.
fn unsupported<T>(reason: impl Into<String>) -> Result<T, FileError> {
    Err(FileError::new(ErrorKind::Unsupported, reason))
}

/// Refuses automatic padding together with dilation or with rounding up, where implementations disagree.
fn pool(node: Attributes<'_>, _: i64) -> Verdict {
    let auto_pad = node.text("auto_pad", "NOTSET");
    let is_padded = auto_pad.starts_with("SAME");
    let is_automatic = matches!(auto_pad, "SAME_UPPER" | "SAME_LOWER" | "VALID");
    let (kernel, strides, dilations) = (
        node.ints("kernel_shape"),
        node.ints("strides"),
        node.ints("dilations"),
    );
    let way_out = "export the model with explicit 'pads'";
    if is_padded && dilations.iter().any(|&dilation| dilation != 1) {
        return unsupported(format!(
            "the attribute 'dilations' is {dilations:?} with the auto_pad {auto_pad}, only dilations of 1 are supported with \
             it; {way_out}"
        ));
    }
    // If the stride exceeds the window size by more than 1, ONNX's formula gives negative padding, which some
    // runtimes accept and others refuse.
    let mut steps = kernel.iter().zip(strides);
    if is_padded && steps.any(|(&size, &stride)| stride.saturating_sub(size) > 1) {
        return unsupported(format!(
            "the attribute 'strides' is {strides:?} with the auto_pad {auto_pad} and the kernel_shape {kernel:?}, expected \
             strides of at most 1 more than the kernel; {way_out}"
        ));
    }
    if is_automatic && node.int("ceil_mode", 0) != 0 {
        return unsupported(format!(
            "the attribute 'ceil_mode' is {} with the auto_pad {auto_pad}, only 0 is supported with it; {way_out}",
            node.int("ceil_mode", 0)
        ));
    }
    Ok(())
}

fn batch_normalization(node: Attributes<'_>, _: i64) -> Verdict {
    let spatial = node.int("spatial", 1);
    if spatial != 1 {
        return unsupported(format!(
            "the attribute 'spatial' is {spatial}, only 1 is supported, with one scale and bias per channel"
        ));
    }
    // All optional outputs belong to the training mode, which is refused when the model is loaded.
    if let Some(output) = (1..5).find(|&output| node.has_output(output)) {
        return unsupported(format!(
            "has the output {output}, which only training computes, expected output 0 alone; export the model for inference \
             (in PyTorch after `model.eval()`)"
        ));
    }
    Ok(())
}

fn dft(node: Attributes<'_>, _: i64) -> Verdict {
    match (node.int("inverse", 0), node.int("onesided", 0)) {
        (0, _) | (_, 0) => Ok(()),
        (inverse, onesided) => unsupported(format!(
            "the attribute 'inverse' is {inverse} and 'onesided' is {onesided}, only one of them may differ from 0; export an \
             inverse transform of all frequencies"
        )),
    }
}

fn dropout(node: Attributes<'_>, opset: i64) -> Verdict {
    let is_test = node.int("is_test", 0);
    if opset < 7 && is_test == 0 {
        return unsupported(
            "the attribute 'is_test' is 0, which is the training mode, expected 1; export the model for inference (in PyTorch \
             after `model.eval()`)",
        );
    }
    // Operator sets before 12 do not define the output `mask` outside of training.
    if opset < 12 && node.has_output(1) {
        return unsupported(format!(
            "the output 'mask' is used in operator set {opset}, which defines it for training only; export the model for \
             operator set 12 or newer"
        ));
    }
    Ok(())
}

/// Refuses an invalid equation.
fn einsum(node: Attributes<'_>, _: i64) -> Verdict {
    let given = QuotedName(node.text("equation", ""));
    let equation = node.text("equation", "").replace(' ', "");
    let (inputs, output) = equation.split_once("->").unwrap_or((&equation, ""));
    let is_term = |term: &str| {
        let letters = term.replacen("...", "", 1);
        letters.chars().all(|letter| letter.is_ascii_alphabetic())
    };
    let refused = |reason: &str| Err(invalid(format!("the attribute 'equation' is {given}, {reason}")));
    if !inputs.split(',').chain([output]).all(is_term) {
        return refused("expected letters, and at most one ellipsis in each term");
    }
    let mut letters = output.chars().filter(|&letter| letter != '.');
    if !letters.clone().all(|letter| inputs.contains(letter)) {
        return refused("expected an output whose indices are those of the inputs");
    }
    if !letters.all(|letter| output.matches(letter).count() == 1) {
        return refused("expected an output that has each index once");
    }
    if equation.contains("->") && inputs.contains("...") && !output.contains("...") {
        return refused("expected the ellipsis of the inputs in the output");
    }
    match onnx_layers::matmul::einsum_output(&equation) {
        Some(_) => Ok(()),
        None => unsupported(format!(
            "the attribute 'equation' is {given}, where the order of the output's indices is not defined, expected '->' where \
             there are capital letters; export the model with the output in the equation"
        )),
    }
}

fn not_blocked(node: Attributes<'_>, _: i64) -> Verdict {
    let block = node.int("block_size", 0);
    if block != 0 {
        return unsupported(format!(
            "the attribute 'block_size' is {block}, only 0 is supported, with one scale for all or one per index of an axis"
        ));
    }
    match node.int("precision", 0) {
        0 | 1 => Ok(()),
        code => unsupported(format!(
            "the attribute 'precision' is {}, only FLOAT is supported",
            type_name(code)
        )),
    }
}

/// Refuses output types other than FP32, the type in which the results are computed.
fn to_fp32(node: Attributes<'_>, _: i64) -> Verdict {
    match node.int("output_dtype", 0) {
        0 | 1 => Ok(()),
        code => unsupported(format!(
            "the attribute 'output_dtype' is {}, only FLOAT is supported; export the model with a Cast after the node",
            type_name(code)
        )),
    }
}

/// Returns ONNX's name of a type code.
fn type_name(code: i64) -> String {
    onnx_graph::ElementType::name_of_code(i32::try_from(code).unwrap_or(-1))
}

/// Checks the count `k`: an attribute before operator set 10, an input from operator set 10 on.
fn top_k(node: Attributes<'_>, opset: i64) -> Verdict {
    let expected = match (opset < 10, node.has("k"), node.has_input(1)) {
        (true, true, false) | (false, false, true) => return Ok(()),
        (true, ..) => "as the attribute 'k', not as input 1",
        (false, ..) => "as input 1, not as the attribute 'k'",
    };
    Err(invalid(format!(
        "has its count 'k' in another place than operator set {opset} defines, expected it {expected}"
    )))
}

/// Refuses unknown activation functions, and `clip` except for LSTM.
fn recurrent(node: Attributes<'_>, _: i64) -> Verdict {
    let directions = match node.text("direction", "forward") {
        "forward" | "reverse" => 1,
        "bidirectional" => 2,
        other => {
            return Err(invalid(format!(
                "the attribute 'direction' is {}, expected 'forward', 'reverse' or 'bidirectional'",
                QuotedName(other)
            )));
        }
    };
    let is_lstm = node.0.op_type.ends_with("LSTM");
    if node.has("clip") && !is_lstm {
        return unsupported("the attribute 'clip' is supported for LSTM only; export the model without it");
    }
    let functions = match node.0.op_type.as_str() {
        _ if is_lstm => 3,
        "GRU" => 2,
        _ => 1,
    };
    let given = node
        .get("activations")
        .map_or(&[][..], |attribute| &attribute.strings);
    let is_known = |name: &Vec<u8>| std::str::from_utf8(name).is_ok_and(onnx_layers::rnn::is_activation);
    if let Some(other) = given.iter().find(|&name| !is_known(name)) {
        return Err(invalid(format!(
            "the attribute 'activations' has {}, which is not one of ONNX's activation functions",
            QuotedName(&String::from_utf8_lossy(other))
        )));
    }
    let expected = functions * directions;
    if !given.is_empty() && given.len() != expected {
        return Err(invalid(format!(
            "the attribute 'activations' has {} functions, expected {expected}: {functions} for each of {directions} directions",
            given.len()
        )));
    }
    Ok(())
}

/// Returns whether a permutation names each axis once.
pub(crate) fn is_order(perm: &[i64]) -> bool {
    let mut order = perm.to_vec();
    order.sort_unstable();
    order.iter().zip(0..).all(|(&axis, place)| axis == place)
}
