//! Conditions on single nodes. Each says why it is there: mostly, what tract 0.23.9 computes otherwise than ONNX
//! Runtime or ONNX's text have it.

use tract_hir::internal::*;

use super::{attributes::Attributes, axis, kernel::Fact};
use crate::faults::Limit;

type Verdict = Result<(), Limit>;

fn refuse<T>(reason: impl Into<String>) -> Result<T, Limit> {
    Err(Limit(reason.into()))
}

/// Dilated windows with automatic padding, and rounding up together with it, are where implementations disagree.
pub(super) fn pool(node: Attributes<'_>, _: i64) -> Verdict {
    let is_automatic = matches!(
        node.text("auto_pad", "NOTSET"),
        "SAME_UPPER" | "SAME_LOWER" | "VALID"
    );
    let is_padded = node.text("auto_pad", "NOTSET").starts_with("SAME");
    if is_padded && node.ints("dilations").iter().any(|&dilation| dilation != 1) {
        return refuse("automatic padding of a dilated window is not supported");
    }
    // ONNX's formula gives negative numbers there, which some runtimes take and others refuse.
    let mut steps = node.ints("kernel_shape").iter().zip(node.ints("strides"));
    if is_padded && steps.any(|(&size, &stride)| stride.saturating_sub(size) > 1) {
        return refuse("automatic padding is not supported where places between windows are left out");
    }
    if is_automatic && node.int("ceil_mode", 0) != 0 {
        return refuse("ceil_mode together with auto_pad is not supported");
    }
    Ok(())
}

pub(super) fn batch_normalization(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("spatial", 1) != 1 {
        return refuse("parameters for each element ('spatial' = 0) are not supported");
    }
    // What trains was refused; other outputs belong to it.
    if (1..5).any(|output| node.has_output(output)) {
        return refuse("has outputs that only training gives; export the model for inference");
    }
    Ok(())
}

pub(super) fn dft(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("inverse", 0) != 0 && node.int("onesided", 0) != 0 {
        return refuse("an inverse one-sided transform is not supported");
    }
    Ok(())
}

pub(super) fn dropout(node: Attributes<'_>, opset: i64) -> Verdict {
    if opset < 7 && node.int("is_test", 0) == 0 {
        return refuse("training mode is not supported; export the model for inference");
    }
    // It was not said then what it holds outside of training.
    if opset < 12 && node.has_output(1) {
        return refuse("the output 'mask' is not supported before operator set 12");
    }
    Ok(())
}

pub(super) fn dropout_inputs(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let training = node.position(2).and_then(|place| inputs.get(place));
    match training.map(Fact::integers) {
        None => Ok(()),
        Some(Some(training)) if training == [0] => Ok(()),
        Some(_) => refuse("training mode is not supported; export the model for inference"),
    }
}

/// Whether an equation makes sense.
pub(super) fn einsum(node: Attributes<'_>, _: i64) -> Verdict {
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
    match einsum_output(&equation) {
        Some(_) => Ok(()),
        None => refuse("an equation without '->' and with capital letters is not supported"),
    }
}

/// The indices of an equation's output. Those that it does not tell are the ones that stand only once, in the order of letters;
/// implementations disagree where capital letters stand.
pub(super) fn einsum_output(equation: &str) -> Option<String> {
    let equation = equation.replace(' ', "");
    if let Some((_, output)) = equation.split_once("->") {
        return Some(output.to_owned());
    }
    if equation.contains(|letter: char| letter.is_ascii_uppercase()) {
        return None;
    }
    let once = ('a'..='z').filter(|letter| equation.matches(*letter).count() == 1);
    let others = if equation.contains("...") { "..." } else { "" };
    Some(others.chars().chain(once).collect())
}

/// tract panics at constants that are outside of an axis.
pub(super) fn indices(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let [data, indices, ..] = inputs else {
        return Ok(());
    };
    let axis = axis::find(node.int("axis", 0), data.rank());
    let Some(dim) = axis.and_then(|axis| data.shape[axis].to_i64().ok()) else {
        return Ok(());
    };
    let indices = indices.integers().unwrap_or_default();
    match indices.iter().find(|&&index| !(-dim..dim).contains(&index)) {
        Some(index) => refuse(format!("the index {index} is outside of a dimension of {dim}")),
        None => Ok(()),
    }
}

/// Windows of even size reach further to one side; tract takes the other.
pub(super) fn lrn(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("size", 0) % 2 == 0 {
        return refuse("an even size is not supported");
    }
    Ok(())
}

pub(super) fn not_blocked(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("block_size", 0) != 0 {
        return refuse("blocked quantization is not supported");
    }
    if !matches!(node.int("precision", 0), 0 | 1) {
        return refuse("is supported in the precision of FP32 only");
    }
    Ok(())
}

/// FP16 is FP32 here.
pub(super) fn to_fp32(node: Attributes<'_>, _: i64) -> Verdict {
    match node.int("output_dtype", 0) {
        0 | 1 => Ok(()),
        code => refuse(format!("a result of the type {code} is not supported")),
    }
}

/// tract says that a scalar has no coordinates, ONNX Runtime that it has one.
pub(super) fn not_scalar(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    if inputs[0].rank() == 0 {
        return refuse("is not supported for scalars");
    }
    Ok(())
}

/// tract gives nothing for an image that is smaller than the window; there is no such image to ONNX Runtime. Images of other channels
/// than the weights have are refused by tract too, without a word of why.
pub(super) fn window(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let [image, weights, ..] = inputs else {
        return refuse("has too few inputs");
    };
    let channels = |fact: &Fact| fact.shape.get(1).and_then(|dim| dim.to_i64().ok());
    if let (Some(found), Some(taken)) = (channels(image), channels(weights)) {
        let expected = taken.saturating_mul(node.int("group", 1));
        if found != expected {
            return refuse(format!("takes images of {expected} channels, not of {found}"));
        }
    }
    let (sizes, windows) = (image.shape.get(2..), weights.shape.get(2..));
    let (Some(sizes), Some(windows)) = (sizes, windows) else {
        return Ok(());
    };
    if node.text("auto_pad", "NOTSET").starts_with("SAME") {
        return Ok(());
    }
    let pads = node.ints("pads");
    for (axis, (size, window)) in sizes.iter().zip(windows).enumerate() {
        let (Ok(size), Ok(window)) = (size.to_i64(), window.to_i64()) else {
            continue;
        };
        let pad = |place: usize| pads.get(place).copied().unwrap_or(0);
        let padded = size
            .saturating_add(pad(axis))
            .saturating_add(pad(axis + sizes.len()));
        let dilation = node.ints("dilations").get(axis).copied().unwrap_or(1);
        let reach = window.saturating_sub(1).saturating_mul(dilation);
        if padded <= reach {
            return refuse(format!(
                "a window of {window} reaches beyond a dimension of {size}"
            ));
        }
    }
    Ok(())
}

/// tract multiplies sizes without looking whether the product fits: 4 times 2^62 would be nothing.
pub(super) fn tile(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let [data, repeats, ..] = inputs else {
        return Ok(());
    };
    for (dim, repeat) in data.shape.iter().zip(repeats.integers().unwrap_or_default()) {
        if repeat < 0 {
            return refuse(format!("{repeat} repetitions of a dimension"));
        }
        if dim.to_i64().is_ok_and(|dim| dim.checked_mul(repeat).is_none()) {
            return refuse(format!(
                "{repeat} repetitions of a dimension of {dim} are more than can be counted"
            ));
        }
    }
    Ok(())
}

/// The count was an attribute before it was an input.
pub(super) fn top_k(node: Attributes<'_>, opset: i64) -> Verdict {
    match (opset < 10, node.has("k"), node.has_input(1)) {
        (true, true, false) | (false, false, true) => Ok(()),
        (true, ..) => refuse("needs its count as the attribute 'k' before operator set 10"),
        (false, ..) => refuse("needs its count as the second input from operator set 10 on"),
    }
}

/// tract mixes up the signs.
pub(super) fn q_linear_conv(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let [x, _, _, w, ..] = inputs else {
        return refuse("has too few inputs");
    };
    if x.datum_type == DatumType::I8 && w.datum_type == DatumType::U8 {
        return refuse("INT8 inputs with UINT8 weights are not supported");
    }
    Ok(())
}

/// tract saturates where it should not.
pub(super) fn q_linear_mat_mul(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let [a, _, _, b, ..] = inputs else {
        return refuse("has too few inputs");
    };
    if a.datum_type == DatumType::I8 && b.datum_type == DatumType::U8 {
        return refuse("an INT8 matrix times a UINT8 matrix is not supported");
    }
    Ok(())
}

/// tract takes a single row for one that is repeated, and panics or multiplies what ONNX does not.
pub(super) fn product(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let [a, b, ..] = inputs else {
        return refuse("has too few inputs");
    };
    if let Some((a, b)) = unequal_batches(&a.shape, &b.shape) {
        return refuse(format!("multiplies {a} matrices with {b}"));
    }
    let terms = [a.shape.last(), b.shape.get(b.shape.len().saturating_sub(2))];
    match terms.map(|dim| dim.and_then(|dim| dim.to_i64().ok())) {
        [Some(a), Some(b)] if a != b => refuse(format!(
            "multiplies factors with {a} and {b} terms in the dimension that is summed over"
        )),
        _ => Ok(()),
    }
}

/// Numbers of matrices that two factors have in one dimension, where they are neither equal nor 1.
pub(super) fn unequal_batches(a: &[TDim], b: &[TDim]) -> Option<(i64, i64)> {
    let mut batches = a.iter().rev().skip(2).zip(b.iter().rev().skip(2));
    batches.find_map(|(a, b)| {
        let sizes = (a.to_i64().ok()?, b.to_i64().ok()?);
        (sizes.0 != sizes.1 && sizes.0 != 1 && sizes.1 != 1).then_some(sizes)
    })
}

/// Functions must be known, and limits are computed for LSTM only.
pub(super) fn recurrent(node: Attributes<'_>, _: i64) -> Verdict {
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
    let is_known = |name: &Vec<u8>| {
        std::str::from_utf8(name).is_ok_and(|name| super::gate_functions::Activation::of(name).is_some())
    };
    if !given.is_empty() && (given.len() != functions * directions || !given.iter().all(is_known)) {
        return refuse("the activations are not those of ONNX, or not one for each function");
    }
    Ok(())
}

/// Without axes, the number of dimensions depends on the sizes: a plan for all sizes cannot know it.
pub(super) fn squeeze(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let is_free = inputs[0].shape.iter().any(|dim| dim.to_i64().is_err());
    if !node.has("axes") && inputs.len() < 2 && is_free {
        return refuse("without axes, dimensions must be fixed");
    }
    Ok(())
}

/// Whether an order names each axis once. tract looks without end, and takes all memory, for the swaps that make another one.
pub(super) fn is_order(perm: &[i64]) -> bool {
    let mut order = perm.to_vec();
    order.sort_unstable();
    order.iter().zip(0..).all(|(&axis, place)| axis == place)
}

/// tract takes sizes that are not known for different from every number. What a comparison says for some sizes only must
/// not be decided for all; that no size is negative can be.
pub(super) fn comparison(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let [a, b] = inputs else {
        return refuse("expected 2 inputs");
    };
    let (Some(a), Some(b)) = (a.dims(), b.dims()) else {
        return Ok(());
    };
    let is_equality = node.0.op_type == "Equal";
    let is_free = |dim: &TDim| dim.to_i64().is_err();
    let is_decided = |a: &TDim, b: &TDim| match (is_free(a), is_free(b)) {
        (false, false) => true,
        (true, true) => is_equality && a == b,
        (true, false) => is_equality && b.to_i64().is_ok_and(|b| b < 0) && a.prove_positive_or_zero(),
        (false, true) => is_equality && a.to_i64().is_ok_and(|a| a < 0) && b.prove_positive_or_zero(),
    };
    // Element by element where there are as many, else each with each.
    let is_decided = match a.len() == b.len() {
        true => a.iter().zip(&b).all(|(a, b)| is_decided(a, b)),
        false => a.iter().all(|a| b.iter().all(|b| is_decided(a, b))),
    };
    match is_decided {
        true => Ok(()),
        false => refuse("compares sizes that are free"),
    }
}
