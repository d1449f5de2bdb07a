//! How a model's convolutions of images are computed: by tract's direct convolution, or as products of matrices.
//!
//! The direct one is quicker where few numbers make one, as in the first layers of most networks, and takes up to twice as long
//! where many do. tract can only be told for all of a plan.

use tract_hir::{
    prelude::{DatumType, TractError, TractResult, TypedModel},
    tract_core::ops::{
        cnn::{Conv, PaddingSpec, PoolSpec},
        nn::DataFormat,
    },
};

use crate::faults::Limit;

/// Numbers of the input for one of the output, up to which the direct convolution is quicker.
const FEW: usize = 64;

/// tract takes the direct convolution up to so many numbers, and from this width on.
const MOST: usize = 576;
const LEAST_WIDTH: usize = 128;

/// Entries of tract's lists for a convolution: for the places where other parts of a window lie in the padding, one list each of what
/// lies in the image.
const MAX_ENTRIES: usize = 1 << 24;

/// Refuses a convolution whose windows are so large, with so much padding, that tract's lists of their parts take gigabytes.
pub(crate) fn admit(model: &TypedModel) -> TractResult<()> {
    for node in model.nodes() {
        let Some(conv) = node.op_as::<Conv>() else {
            continue;
        };
        if entries(&conv.pool_spec) > MAX_ENTRIES {
            let error = Limit("has windows that are too large, with too much padding".to_owned());
            return Err(TractError::from(error).context(node.name.clone()));
        }
    }
    Ok(())
}

fn entries(spec: &PoolSpec) -> usize {
    let dilations = spec.dilations();
    let axes = spec.kernel_shape.iter().zip(&*dilations).enumerate();
    let each = axes.map(|(axis, (&size, &dilation))| {
        let padding = match &spec.padding {
            PaddingSpec::Valid => 0,
            PaddingSpec::Explicit(before, after) | PaddingSpec::ExplicitOnnxPool(before, after, _) => {
                before[axis].saturating_add(after[axis])
            }
            PaddingSpec::SameUpper | PaddingSpec::SameLower => size.saturating_mul(dilation),
        };
        // Parts of a window go into the padding one by one, on both sides.
        let lists = padding.min(size.saturating_mul(2)).saturating_add(1);
        lists.saturating_mul(size)
    });
    each.fold(1, usize::saturating_mul)
}

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

#[cfg(test)]
mod tests {
    use tract_hir::internal::tvec;

    use super::*;

    fn spec(size: usize, padding: PaddingSpec) -> PoolSpec {
        PoolSpec {
            data_format: DataFormat::NCHW,
            kernel_shape: tvec![size, size],
            padding,
            dilations: None,
            strides: None,
            input_channels: 1,
            output_channels: 1,
        }
    }

    #[test]
    fn lists_are_counted_by_windows_and_padding() {
        let padded = |by: usize| PaddingSpec::Explicit(tvec![by, by], tvec![by, by]);
        assert_eq!(entries(&spec(3, PaddingSpec::Valid)), 9);
        assert_eq!(entries(&spec(3, padded(1))), 81);
        assert_eq!(entries(&spec(3, padded(1000))), 21 * 21);
        assert!(entries(&spec(31, PaddingSpec::SameUpper)) < MAX_ENTRIES);
        assert!(entries(&spec(479, PaddingSpec::Valid)) < MAX_ENTRIES);
        assert!(entries(&spec(479, padded(239))) > MAX_ENTRIES);
        assert_eq!(entries(&spec(usize::MAX, padded(usize::MAX))), usize::MAX);
    }
}
