//! Rules for operators on images and signals: axis 0 is the batch, axis 1 the channels, all others are
//! spatial.

use super::{
    constants::float,
    elementwise::onto,
    node::{Node, RuleResult, like, one},
    size::{Bounds, Size},
    value::{Item, Origin, Reason, Value},
};

/// Returns the first input, whose rows must lie along axis 0.
fn images(node: &Node<'_>) -> Result<(Value, Vec<Size>), Reason> {
    let (value, dims) = (node.input(0)?.clone(), node.dims(0)?);
    if dims.len() < 2 {
        return node.refuse("takes a batch of images");
    }
    for axis in 1..dims.len() {
        node.keep_off(&value, axis)?;
    }
    Ok((value, dims))
}

pub(super) fn conv(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    convolved(node, 1)
}

/// Propagates rows through `FusedConv`, which adds a tensor to the convolution.
pub(super) fn fused_conv(node: &mut Node<'_>) -> RuleResult {
    node.require_same_input(1)?;
    node.require_same_input(2)?;
    if node.input(0)?.row_axis().is_some() && node.optional(3)?.is_some_and(Value::is_same) {
        return node.refuse("adds a tensor without rows");
    }
    let mut results = convolved(node, 1)?;
    if let (Some(Item::Tensor(result)), Some(added)) = (results.first().cloned(), node.optional(3)?.cloned())
    {
        results = one(onto(node, &result, &added)?)?;
    }
    Ok(results)
}

/// Propagates rows through a pool whose channels are the last axis.
pub(super) fn channels_last_pool(node: &mut Node<'_>) -> RuleResult {
    let (value, mut dims) = images(node)?;
    let last = dims.len() - 1;
    for dim in dims.iter_mut().take(last).skip(1) {
        *dim = node.symbols.dim();
    }
    one(like(&value, dims))
}

/// Propagates rows through a quantized convolution: scales and zero points come before and after the weights.
pub(super) fn quantized_conv(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    convolved(node, 3)
}

fn convolved(node: &mut Node<'_>, weights: usize) -> RuleResult {
    let (value, dims) = images(node)?;
    let weights = node.dims(weights)?;
    let kernel: Vec<Size> = weights.get(2..).unwrap_or_default().to_vec();
    if weights.len() != dims.len() {
        return node.refuse("has weights of another number of dimensions");
    }
    let mut target = vec![dims[0].clone(), weights[0].clone()];
    target.extend(places(node, &dims[2..], &kernel));
    one(like(&value, target))
}

pub(super) fn pool(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    if node.int("channels_last", 0) != 0 {
        return node.refuse("has its channels last");
    }
    let (value, dims) = images(node)?;
    let kernel: Vec<Size> = node
        .ints("kernel_shape")
        .iter()
        .copied()
        .map(Size::number)
        .collect();
    if kernel.len() + 2 != dims.len() {
        return node.refuse("has a window of another number of dimensions");
    }
    let mut target = dims[..2].to_vec();
    target.extend(places(node, &dims[2..], &kernel));
    let result = Item::Tensor(like(&value, target));
    // The indices of a max pool count from the start of the batch.
    match node.has_output(1) && value.row_axis().is_some() {
        true => node.refuse("gives indices into the whole batch"),
        false => Ok(vec![result]),
    }
}

/// Returns the number of window positions along each spatial axis.
fn places(node: &mut Node<'_>, dims: &[Size], kernel: &[Size]) -> Vec<Size> {
    let at = |name: &str, index: usize, default: i64| node.ints(name).get(index).copied().unwrap_or(default);
    let windows: Vec<[i64; 6]> = (0..dims.len())
        .map(|axis| {
            let padding = match node.text("auto_pad", "NOTSET").as_str() {
                "SAME_UPPER" | "SAME_LOWER" => SAME,
                "VALID" => 0,
                _ => EXPLICIT,
            };
            [
                at("strides", axis, 1),
                at("dilations", axis, 1),
                at("pads", axis, 0),
                at("pads", axis + dims.len(), 0),
                node.int("ceil_mode", 0),
                padding,
            ]
        })
        .collect();
    let is_pool = node.proto.op_type.ends_with("Pool");
    let mut places = Vec::with_capacity(dims.len());
    for ((dim, kernel), window) in dims.iter().zip(kernel).zip(windows) {
        let [_, dilation, before, after, _, padding] = window;
        let known = match (dim.as_number(), kernel.as_number()) {
            // ONNX Runtime ignores dilations when it pads pools.
            _ if is_pool && padding == SAME && dilation != 1 => None,
            (Some(length), Some(kernel)) => count(length, kernel, window),
            (None, Some(kernel)) if keeps(kernel, window) => {
                places.push(dim.clone());
                continue;
            }
            _ => None,
        };
        let of_symbols = |node: &mut Node<'_>| {
            let mut arguments = vec![dim.clone(), kernel.clone()];
            arguments.extend(window.map(Size::number));
            let bounds = Bounds {
                // A window that does not fit is an error, except in pools, whose output is then empty.
                is_positive: !is_pool && node.symbols.is_positive(dim),
                most: [before, after]
                    .iter()
                    .map(|pad| u128::from(pad.unsigned_abs()))
                    .fold(node.symbols.most(dim), u128::saturating_add),
            };
            node.symbols.bounded_dim_of("window", arguments, bounds)
        };
        let place = known.map(Size::number).or_else(|| of_symbols(node));
        places.push(place.unwrap_or_else(|| node.symbols.dim()));
    }
    places
}

/// Returns whether the output along an axis has the size of the input, for inputs of any size.
fn keeps(kernel: i64, [stride, dilation, before, after, _, padding]: [i64; 6]) -> bool {
    let reach = kernel
        .checked_sub(1)
        .and_then(|kernel| kernel.checked_mul(dilation));
    stride == 1 && (padding == SAME || padding == EXPLICIT && before.checked_add(after) == reach)
}

const SAME: i64 = 1;
const EXPLICIT: i64 = 2;

fn count(
    length: i64,
    kernel: i64,
    [stride, dilation, before, after, ceil, padding]: [i64; 6],
) -> Option<i64> {
    if stride < 1 || dilation < 1 || kernel < 1 {
        return None;
    }
    if padding == SAME {
        return length.checked_add(stride - 1)?.checked_div(stride);
    }
    let pads = if padding == EXPLICIT {
        before.checked_add(after)?
    } else {
        0
    };
    let reach = kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    let free = length.checked_add(pads)?.checked_sub(reach)?;
    // Runtimes disagree on whether a last window that begins in the padding counts.
    if free < 0 || ceil != 0 && free.checked_rem(stride)? != 0 {
        return None;
    }
    free.checked_div(stride)?.checked_add(1)
}

pub(super) fn global_pool(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    if node.int("channels_last", 0) != 0 {
        return node.refuse("has its channels last");
    }
    let (value, dims) = images(node)?;
    let mut target = dims[..2].to_vec();
    target.resize(dims.len(), Size::number(1));
    one(like(&value, target))
}

pub(super) fn conv_transpose(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let (value, dims) = images(node)?;
    let channels = node.dims(1)?.get(1).cloned();
    let group = Size::number(node.int("group", 1));
    let channels = channels.and_then(|channels| node.symbols.product(&channels, &group));
    let mut target = vec![dims[0].clone()];
    target.push(channels.unwrap_or_else(|| node.symbols.dim()));
    let kernel = node.dims(1)?;
    for (axis, dim) in dims.iter().enumerate().skip(2) {
        let place = match (dim.as_number(), kernel.get(axis).and_then(Size::as_number)) {
            (Some(length), Some(kernel)) => spread(node, axis - 2, dims.len() - 2, length, kernel),
            _ => None,
        };
        target.push(place.map_or_else(|| node.symbols.dim(), Size::number));
    }
    one(like(&value, target))
}

/// Returns the output size of a transposed convolution along an axis.
fn spread(node: &Node<'_>, axis: usize, axes: usize, length: i64, kernel: i64) -> Option<i64> {
    let at = |name: &str, index: usize, default: i64| node.ints(name).get(index).copied().unwrap_or(default);
    match node.ints("output_shape") {
        [] => {}
        wanted if wanted.len() == axes => return wanted.get(axis).copied(),
        _ => return None,
    }
    let (stride, dilation) = (at("strides", axis, 1), at("dilations", axis, 1));
    let full = match node.text("auto_pad", "NOTSET").as_str() {
        // Runtimes disagree about the output size if the window is smaller than the stride.
        "SAME_UPPER" | "SAME_LOWER"
            if kernel.checked_sub(1)?.checked_mul(dilation)? >= stride.checked_sub(1)? =>
        {
            return length.checked_mul(stride);
        }
        "SAME_UPPER" | "SAME_LOWER" => return None,
        "VALID" => 0,
        _ => at("pads", axis, 0).checked_add(at("pads", axis + axes, 0))?,
    };
    let reach = kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    let steps = length.checked_sub(1)?.checked_mul(stride)?;
    let whole = steps
        .checked_add(reach)?
        .checked_add(at("output_padding", axis, 0))?;
    whole.checked_sub(full)
}

/// Propagates rows through max unpooling, whose indices count from the start of the batch.
pub(super) fn max_unpool(node: &mut Node<'_>) -> RuleResult {
    node.refuse("takes indices into the whole batch")
}

/// Propagates rows through a normalization per image or with stored statistics, which keeps the shape.
pub(super) fn normalization(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let (value, dims) = images(node)?;
    one(like(&value, dims))
}

pub(super) fn batch_normalization(node: &mut Node<'_>) -> RuleResult {
    let outputs = (1..node.proto.output.len())
        .filter(|index| node.has_output(*index))
        .count();
    let is_old = node.opset < 7 && node.int("is_test", 0) == 0;
    if node.int("training_mode", 0) != 0 || outputs > 0 || is_old {
        return node.refuse("takes statistics of the whole batch");
    }
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    match value.origin {
        Origin::Rows(0) | Origin::Same => one(like(&value, dims)),
        Origin::Rows(axis) => node.refuse(format_args!("has its rows on axis {axis}")),
        Origin::Count => node.refuse_count(),
    }
}

/// Propagates rows through operators that move blocks of `blocksize` by `blocksize` pixels into channels, or
/// back.
pub(super) fn depth_to_space(node: &mut Node<'_>) -> RuleResult {
    let (value, dims) = images(node)?;
    let size = Size::number(node.int("blocksize", 1));
    let is_to_space = node.proto.op_type == "DepthToSpace";
    let square = node.symbols.product(&size, &size).unwrap_or_else(|| size.clone());
    let mut target = vec![dims[0].clone()];
    for (axis, dim) in dims.iter().enumerate().skip(1) {
        let changed = match (axis, is_to_space) {
            (1, true) => dim.over(&square),
            (1, false) => node.symbols.product(dim, &square),
            (_, true) => node.symbols.product(dim, &size),
            (_, false) => dim.over(&size),
        };
        target.push(changed.unwrap_or_else(|| node.symbols.dim()));
    }
    one(like(&value, target))
}

/// Propagates rows through a resize whose scales or sizes leave the row axis unchanged.
pub(super) fn resize(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let dims = node.dims(0)?;
    let first = if node.opset < 11 { 1 } else { 2 };
    if node.text("coordinate_transformation_mode", "") == "tf_crop_and_resize" {
        return node.refuse("crops, perhaps along the axis of the rows");
    }
    let axes = match node.ints("axes") {
        [] => (0..dims.len()).collect(),
        axes => node.axes(axes, dims.len())?,
    };
    let scales = match node.attribute("scales") {
        Some(scales) => {
            let scales = scales.floats.clone();
            let float = |scale: f32| Some(float(f64::from(scale), node.symbols));
            Some(scales.into_iter().map(float).collect())
        }
        None => given(node, first)?,
    };
    let sizes = given(node, first + 1)?;
    let is_fitted = node.text("keep_aspect_ratio_policy", "stretch") != "stretch";
    let mut target = dims.clone();
    let lists: (Elements, Elements) = (scales, sizes);
    for (index, axis) in axes.into_iter().enumerate() {
        let (is_kept, new) = match &lists {
            (Some(scales), _) if scales.len() > index => {
                // A scale that is known here is the same for all requests.
                let Some(scale) = &scales[index] else {
                    return node.refuse_count();
                };
                let scale = node.symbols.as_float(scale);
                let whole = scale.filter(|scale| (1..1024).contains(scale)).map(Size::number);
                let dim = whole.and_then(|scale| node.symbols.product(&dims[axis], &scale));
                (scale == Some(1), dim)
            }
            (_, Some(sizes)) if sizes.len() > index => {
                let size = sizes[index].clone();
                let is_kept = size.as_ref() == Some(&dims[axis]) && !is_fitted;
                if !is_kept && size.as_ref().is_none_or(Size::has_rows) {
                    return node.refuse_count();
                }
                (is_kept, size.filter(|_| !is_fitted))
            }
            _ => return node.refuse("has sizes that are not known"),
        };
        if is_kept {
            continue;
        }
        node.keep_off(&value, axis)?;
        target[axis] = new.unwrap_or_else(|| node.symbols.dim());
    }
    one(like(&value, target))
}

/// The elements of an optional input; `None` if the input is absent.
type Elements = Option<Vec<Option<Size>>>;

/// Returns the elements of an optional input; an empty one counts as absent.
fn given(node: &mut Node<'_>, index: usize) -> Result<Elements, Reason> {
    if node.optional(index)?.is_none() {
        return Ok(None);
    }
    let elements = node.elements(index)?;
    Ok(Some(elements).filter(|elements| !elements.is_empty()))
}

/// Propagates rows through `GridSample`, which has one sampling grid per image.
pub(super) fn grid_sample(node: &mut Node<'_>) -> RuleResult {
    let (value, dims) = images(node)?;
    let grid = node.dims(1)?;
    let fits =
        node.input(1)?.origin == value.origin && grid.first() == dims.first() && grid.len() == dims.len();
    if !fits {
        return node.refuse("has a grid of other rows");
    }
    let target = [&dims[..2], &grid[1..grid.len() - 1]].concat();
    one(like(&value, target))
}

pub(super) fn affine_grid(node: &mut Node<'_>) -> RuleResult {
    let value = node.input(0)?.clone();
    let wanted: Option<Vec<Size>> = node.elements(1)?.into_iter().collect();
    let fits = |wanted: &Vec<Size>| match value.origin {
        Origin::Rows(0) => {
            wanted.len() > 2 && wanted[0].has_rows() && !wanted[1..].iter().any(Size::has_rows)
        }
        Origin::Same => wanted.len() > 2 && !wanted.iter().any(Size::has_rows),
        _ => false,
    };
    let Some(wanted) = wanted.filter(fits) else {
        return node.refuse("has sizes of other rows");
    };
    let spatial = i64::try_from(wanted.len() - 2).unwrap_or(0);
    let target = [&wanted[..1], &wanted[2..], &[Size::number(spatial)]].concat();
    one(like(&value, target))
}

/// Propagates rows through `Col2Im`, whose input has the axes batch, channels times window size, and window
/// positions.
pub(super) fn col_2_im(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let (value, dims) = images(node)?;
    let places = node.elements(1)?;
    let mut target = vec![dims[0].clone(), node.symbols.dim()];
    for place in places {
        target.push(place.unwrap_or_else(|| node.symbols.dim()));
    }
    one(like(&value, target))
}

/// Propagates rows through `STFT`, which turns signals (axis 0) of samples (axis 1) into frames of
/// frequencies.
pub(super) fn stft(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let (value, dims) = images(node)?;
    let target = vec![
        dims[0].clone(),
        node.symbols.dim(),
        node.symbols.dim(),
        Size::number(2),
    ];
    one(like(&value, target))
}

pub(super) fn dft(node: &mut Node<'_>) -> RuleResult {
    node.require_same(1)?;
    let value = node.input(0)?.clone();
    let mut target = node.dims(0)?;
    let axis = match node.opset {
        20.. => node
            .numbers(2, "axis", 20)?
            .and_then(|axes| axes.first().copied())
            .unwrap_or(-2),
        _ => node.int("axis", 1),
    };
    let axis = node.axis(axis, target.len())?;
    node.keep_off(&value, axis)?;
    let last = node.axis(-1, target.len())?;
    node.keep_off(&value, last)?;
    target[axis] = node.symbols.dim();
    target[last] = if node.int("onesided", 0) != 0 && node.int("inverse", 0) != 0 {
        Size::number(1)
    } else {
        Size::number(2)
    };
    one(like(&value, target))
}
