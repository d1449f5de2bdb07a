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

/// tract runs backwards in the wrong order, and knows neither lengths of sequences nor anything but the defaults.
pub(super) fn recurrent(node: Attributes<'_>, _: i64) -> Verdict {
    if node.text("direction", "forward") != "forward" {
        return refuse("reverse and bidirectional layers are not supported, they would be computed wrongly");
    }
    if node.has_input(4) {
        return refuse(
            "the input 'sequence_lens' is not supported, it would be computed wrongly; pad or cut instead",
        );
    }
    if node.has("clip") || node.int("input_forget", 0) != 0 {
        return refuse("the attributes 'clip' and 'input_forget' are not supported");
    }
    let defaults: &[&[u8]] = match node.0.op_type.as_str() {
        "LSTM" => &[b"Sigmoid", b"Tanh", b"Tanh"],
        "GRU" => &[b"Sigmoid", b"Tanh"],
        _ => &[b"Tanh"],
    };
    let given = node
        .get("activations")
        .map_or(&[][..], |attribute| &attribute.strings);
    if !given.is_empty() && !given.iter().map(Vec::as_slice).eq(defaults.iter().copied()) {
        return refuse("only the default activations are supported");
    }
    Ok(())
}

/// tract makes up the state to begin with only for a batch that is known, and panics otherwise.
pub(super) fn recurrent_inputs(node: Attributes<'_>, inputs: &[Fact]) -> Verdict {
    let batch_axis = usize::from(node.int("layout", 0) == 0);
    let batch = inputs.first().and_then(|x| x.shape.get(batch_axis));
    let states: &[(usize, &str)] = match node.0.op_type.as_str() {
        "LSTM" => &[(5, "initial_h"), (6, "initial_c")],
        _ => &[(5, "initial_h")],
    };
    let missing = states.iter().find(|(input, _)| !node.has_input(*input));
    match (batch, missing) {
        (Some(batch), Some((_, state))) if batch.to_usize().is_err() => refuse(format!(
            "a free batch dimension is not supported without the input '{state}'; give it, or fix the batch"
        )),
        _ => Ok(()),
    }
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
