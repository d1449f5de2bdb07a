//! Conditions on single nodes. Each says why it is there: mostly, what tract 0.23.9 computes otherwise than ONNX
//! Runtime or ONNX's text have it.

use tract_onnx::tract_hir::internal::*;

use super::{attributes::Attributes, kernel::Fact};
use crate::input_check;

type Verdict = Result<(), String>;

fn refuse<T>(reason: impl Into<String>) -> Result<T, String> {
    Err(reason.into())
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
    if is_automatic && node.int("ceil_mode", 0) != 0 {
        return refuse("ceil_mode together with auto_pad is not supported");
    }
    Ok(())
}

/// tract divides by the wrong count where a window reaches beyond the padding.
pub(super) fn average_pool(node: Attributes<'_>, opset: i64) -> Verdict {
    if node.int("ceil_mode", 0) != 0 && node.int("count_include_pad", 0) != 0 {
        return refuse("ceil_mode together with count_include_pad is not supported");
    }
    pool(node, opset)
}

pub(super) fn batch_normalization(node: Attributes<'_>, opset: i64) -> Verdict {
    let is_training = node.int("training_mode", 0) != 0 || (opset < 7 && node.int("is_test", 0) == 0);
    if is_training || (1..5).any(|output| node.has_output(output)) {
        return refuse("training mode is not supported; export the model for inference");
    }
    Ok(())
}

/// tract ignores the output shape's part in the padding, and panics at automatic padding.
pub(super) fn conv_transpose(node: Attributes<'_>, _: i64) -> Verdict {
    if node.has("output_shape") {
        return refuse("the attribute 'output_shape' is not supported; export with pads and output_padding");
    }
    if node.text("auto_pad", "NOTSET").starts_with("SAME") {
        return refuse("automatic padding is not supported; export with pads");
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

pub(super) fn dropout_inputs(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    match inputs.get(2).map(Fact::integers) {
        None => Ok(()),
        Some(Some(training)) if training == [0] => Ok(()),
        Some(_) => refuse("training mode is not supported; export the model for inference"),
    }
}

/// tract takes an equation without an output for one with all of the inputs' indices in it.
pub(super) fn einsum(node: Attributes<'_>, _: i64) -> Verdict {
    if !node.text("equation", "").contains("->") {
        return refuse("an equation without '->' is not supported");
    }
    Ok(())
}

/// tract takes the border's samples otherwise, and panics at cubic interpolation of volumes.
pub(super) fn grid_sample(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    if !node.text("mode", "linear").ends_with("cubic") {
        return Ok(());
    }
    if node.text("padding_mode", "zeros") == "border" || inputs[0].rank() != 4 {
        return refuse("cubic interpolation with border padding, or of volumes, is not supported");
    }
    Ok(())
}

/// Windows of even size reach further to one side; tract takes the other.
pub(super) fn lrn(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("size", 0) % 2 == 0 {
        return refuse("an even size is not supported");
    }
    Ok(())
}

/// Without a limit ONNX selects nothing, tract everything.
pub(super) fn non_max_suppression(node: Attributes<'_>, _: i64) -> Verdict {
    if !node.has_input(2) {
        return refuse("the input 'max_output_boxes_per_class' is needed");
    }
    Ok(())
}

pub(super) fn not_blocked(node: Attributes<'_>, _: i64) -> Verdict {
    if node.int("block_size", 0) != 0 {
        return refuse("blocked quantization is not supported");
    }
    Ok(())
}

/// tract says that a scalar has no coordinates, ONNX Runtime that it has one.
pub(super) fn not_scalar(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    if inputs[0].rank() == 0 {
        return refuse("is not supported for scalars");
    }
    Ok(())
}

pub(super) fn pad(node: Attributes<'_>, _: i64) -> Verdict {
    match node.text("mode", "constant") {
        "constant" | "reflect" | "edge" if node.ints("pads").iter().all(|&pad| pad >= 0) => Ok(()),
        "constant" | "reflect" | "edge" => refuse(NEGATIVE_PADS),
        _ => refuse("only the modes 'constant', 'reflect' and 'edge' are supported"),
    }
}

pub(super) fn pads(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    match inputs.get(1).and_then(Fact::integers) {
        Some(pads) if pads.iter().any(|&pad| pad < 0) => refuse(NEGATIVE_PADS),
        _ => Ok(()),
    }
}

/// tract panics at them.
const NEGATIVE_PADS: &str = "negative pads are not supported; use Slice";

/// tract computes powers in the base's type.
pub(super) fn pow(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    match inputs {
        [base, exponent] if base.datum_type == exponent.datum_type => Ok(()),
        [base, exponent] if base.datum_type.is_float() && exponent.constant.is_some() => Ok(()),
        _ => refuse("a base and an exponent of different types are not supported"),
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

/// A range of constants is computed when the model is loaded, at once and whole.
pub(super) fn range(_: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let numbers: Option<Vec<f64>> = inputs.iter().map(Fact::number).collect();
    match numbers.as_deref() {
        Some(&[start, limit, step]) => input_check::range_fits(start, limit, step),
        _ => Ok(()),
    }
}

/// Only what is common: exporters write no other functions, and no limits.
pub(super) fn recurrent(node: Attributes<'_>, _: i64) -> Verdict {
    let directions = match node.text("direction", "forward") {
        "forward" | "reverse" => 1,
        "bidirectional" => 2,
        _ => return refuse("the direction must be 'forward', 'reverse' or 'bidirectional'"),
    };
    if node.has("clip") || node.int("input_forget", 0) != 0 {
        return refuse("the attributes 'clip' and 'input_forget' are not supported");
    }
    let functions = match node.0.op_type.as_str() {
        "LSTM" => 3,
        "GRU" => 2,
        _ => 1,
    };
    let given = node
        .get("activations")
        .map_or(&[][..], |attribute| &attribute.strings);
    let is_known = |name: &Vec<u8>| {
        std::str::from_utf8(name).is_ok_and(|name| super::recurrent::Activation::of(name).is_some())
    };
    if !given.is_empty() && (given.len() != functions * directions || !given.iter().all(is_known)) {
        return refuse("only the activations Sigmoid, Tanh and Relu are supported, one for each function");
    }
    Ok(())
}

/// How an output's place is turned into an input's place differs between implementations where the scales do not
/// lead to whole dimensions, or to dimensions of 1; integers are rounded differently too.
pub(super) fn resize(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let mode = node.text("mode", "nearest");
    if mode != "nearest" && !inputs[0].datum_type.is_float() {
        return refuse("interpolation of integers is not supported");
    }
    let scales = node
        .position(2)
        .and_then(|position| inputs.get(position)?.floats());
    let scales = scales.filter(|scales| !scales.is_empty());
    let given = scales.as_deref().unwrap_or(&[]);
    let is_whole = given.iter().all(|scale| scale.fract() == 0.0);
    let shrinks = given.iter().any(|&scale| scale < 1.0);
    let transformation = node.text("coordinate_transformation_mode", "half_pixel");
    let is_supported = match transformation {
        "half_pixel" | "asymmetric" | "tf_half_pixel_for_nn" => true,
        "align_corners" => is_whole,
        "pytorch_half_pixel" => mode == "nearest" || !shrinks,
        "half_pixel_symmetric" => mode == "linear",
        "tf_crop_and_resize" => mode != "cubic" && scales.is_none(),
        _ => false,
    };
    if is_supported {
        return Ok(());
    }
    refuse(format!(
        "'{mode}' interpolation with the coordinate transformation '{transformation}' is not supported for these \
         scales or sizes"
    ))
}

/// Without axes, the number of dimensions depends on the sizes: a plan for all sizes cannot know it.
pub(super) fn squeeze(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let is_free = inputs[0].shape.iter().any(|dim| dim.to_i64().is_err());
    if !node.has("axes") && inputs.len() < 2 && is_free {
        return refuse("without axes, dimensions must be fixed");
    }
    Ok(())
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
