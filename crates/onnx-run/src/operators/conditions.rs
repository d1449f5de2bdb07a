//! Conditions on single nodes: refuses combinations of attributes that are unsupported, or on which
//! implementations disagree.

use onnx_tensor::prelude::*;

use onnx_tensor::faults::Limit;
use onnx_tensor::node::Attributes;

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

type Verdict = Result<(), Limit>;

fn refuse<T>(reason: impl Into<String>) -> Result<T, Limit> {
    Err(Limit(reason.into()))
}

/// Refuses automatic padding together with dilation or with rounding up, where implementations disagree.
fn pool(node: Attributes<'_>, _: i64) -> Verdict {
    let is_automatic = matches!(
        node.text("auto_pad", "NOTSET"),
        "SAME_UPPER" | "SAME_LOWER" | "VALID"
    );
    let is_padded = node.text("auto_pad", "NOTSET").starts_with("SAME");
    if is_padded && node.ints("dilations").iter().any(|&dilation| dilation != 1) {
        return refuse("automatic padding of a dilated window is not supported");
    }
    // If the stride exceeds the window size by more than 1, ONNX's formula gives negative padding, which some
    // runtimes accept and others refuse.
    let mut steps = node.ints("kernel_shape").iter().zip(node.ints("strides"));
    if is_padded && steps.any(|(&size, &stride)| stride.saturating_sub(size) > 1) {
        return refuse("automatic padding is not supported where places between windows are left out");
    }
    if is_automatic && node.int("ceil_mode", 0) != 0 {
        return refuse("ceil_mode together with auto_pad is not supported");
    }
    Ok(())
}

fn batch_normalization(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("spatial", 1) != 1 {
        return refuse("parameters for each element ('spatial' = 0) are not supported");
    }
    // All optional outputs belong to the training mode, which is refused when the model is loaded.
    if (1..5).any(|output| node.has_output(output)) {
        return refuse("has outputs that only training gives; export the model for inference");
    }
    Ok(())
}

fn dft(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("inverse", 0) != 0 && node.int("onesided", 0) != 0 {
        return refuse("an inverse one-sided transform is not supported");
    }
    Ok(())
}

fn dropout(node: Attributes<'_>, opset: i64) -> Verdict {
    if opset < 7 && node.int("is_test", 0) == 0 {
        return refuse("training mode is not supported; export the model for inference");
    }
    // Operator sets before 12 do not define the output `mask` outside of training.
    if opset < 12 && node.has_output(1) {
        return refuse("the output 'mask' is not supported before operator set 12");
    }
    Ok(())
}

/// Refuses an invalid equation.
fn einsum(node: Attributes<'_>, _: i64) -> Verdict {
    let equation = node.text("equation", "").replace(' ', "");
    let (inputs, output) = equation.split_once("->").unwrap_or((&equation, ""));
    let is_term = |term: &str| {
        let letters = term.replacen("...", "", 1);
        letters.chars().all(|letter| letter.is_ascii_alphabetic())
    };
    let is_given = |letter: char| letter == '.' || inputs.contains(letter);
    let is_unique = |letter: char| letter == '.' || output.matches(letter).count() == 1;
    let has_dots = equation.contains("->") && inputs.contains("...") && !output.contains("...");
    if !inputs.split(',').chain([output]).all(is_term)
        || !output.chars().all(|letter| is_given(letter) && is_unique(letter))
        || has_dots
    {
        return refuse("the equation is malformed, or its output has other indices than its inputs");
    }
    match onnx_layers::matmul::einsum_output(&equation) {
        Some(_) => Ok(()),
        None => refuse("an equation without '->' and with capital letters is not supported"),
    }
}

fn not_blocked(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("block_size", 0) != 0 {
        return refuse("blocked quantization is not supported");
    }
    if !matches!(node.int("precision", 0), 0 | 1) {
        return refuse("is supported in the precision of FP32 only");
    }
    Ok(())
}

/// Refuses output types other than FP32, the type in which the results are computed.
fn to_fp32(node: Attributes<'_>, _: i64) -> Verdict {
    match node.int("output_dtype", 0) {
        0 | 1 => Ok(()),
        code => refuse(format!("a result of the type {code} is not supported")),
    }
}

/// Checks the count `k`: an attribute before operator set 10, an input from operator set 10 on.
fn top_k(node: Attributes<'_>, opset: i64) -> Verdict {
    match (opset < 10, node.has("k"), node.has_input(1)) {
        (true, true, false) | (false, false, true) => Ok(()),
        (true, ..) => refuse("needs its count as the attribute 'k' before operator set 10"),
        (false, ..) => refuse("needs its count as the second input from operator set 10 on"),
    }
}

/// Refuses unknown activation functions, and `clip` except for LSTM.
fn recurrent(node: Attributes<'_>, _: i64) -> Verdict {
    let directions = match node.text("direction", "forward") {
        "forward" | "reverse" => 1,
        "bidirectional" => 2,
        _ => return refuse("the direction must be 'forward', 'reverse' or 'bidirectional'"),
    };
    let is_lstm = node.0.op_type.ends_with("LSTM");
    if node.has("clip") && !is_lstm {
        return refuse("the attribute 'clip' is supported for LSTM only");
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
    if !given.is_empty() && (given.len() != functions * directions || !given.iter().all(is_known)) {
        return refuse("the activations are not those of ONNX, or not one for each function");
    }
    Ok(())
}

/// Returns whether a permutation names each axis once.
pub(crate) fn is_order(perm: &[i64]) -> bool {
    let mut order = perm.to_vec();
    order.sort_unstable();
    order.iter().zip(0..).all(|(&axis, place)| axis == place)
}
