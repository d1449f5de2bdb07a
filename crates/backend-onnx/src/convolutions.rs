//! How a model's convolutions of images are computed: by tract's direct convolution, or as products of matrices.
//!
//! The direct one is quicker where few numbers make one, as in the first layers of most networks, and takes up to twice as long
//! where many do. tract can only be told for all of a plan.

use tract_hir::{
    prelude::{DatumType, TypedModel},
    tract_core::ops::{cnn::Conv, nn::DataFormat},
};

/// Numbers of the input for one of the output, up to which the direct convolution is quicker.
const FEW: usize = 64;

/// tract takes the direct convolution up to so many numbers, and from this width on.
const MOST: usize = 576;
const LEAST_WIDTH: usize = 128;

/// Whether most of what tract would compute directly is better computed as products.
pub(crate) fn are_better_as_products(model: &TypedModel) -> bool {
    let (mut few, mut many) = (0.0, 0.0);
    for node in model.nodes() {
        let Some(conv) = node.op_as::<Conv>() else {
            continue;
        };
        let spec = &conv.pool_spec;
        let input = model.outlet_fact(node.inputs[0]).ok();
        let shape = input.filter(|fact| fact.datum_type == DatumType::F32);
        let Some(shape) = shape.and_then(|fact| fact.shape.as_concrete()) else {
            continue;
        };
        let volume: usize = spec.kernel_shape.iter().product();
        let numbers = volume.saturating_mul(spec.input_channels);
        let is_direct =
            conv.group == 1 && spec.data_format == DataFormat::NCHW && spec.kernel_shape.len() == 2;
        if !is_direct || volume < 2 || numbers > MOST {
            continue;
        }
        let Ok(output) = spec.output_shape(shape) else {
            continue;
        };
        if output.hw_dims().last().is_none_or(|&width| width < LEAST_WIDTH) {
            continue;
        }
        let places: f64 = output.hw_dims().iter().map(|&size| size as f64).product();
        let work = places * numbers as f64 * spec.output_channels as f64;
        *(if numbers <= FEW { &mut few } else { &mut many }) += work;
    }
    many > few
}
