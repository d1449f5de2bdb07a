//! Windows that move over images.

use std::sync::Arc;

use tract_hir::internal::*;
use tract_hir::ops::cnn::PaddingSpec;

use super::compute::Compute;
use crate::{
    faults::ensure_input,
    ops::{
        attributes::Attributes,
        convolution::{Convolution, Geometry, packed},
        elements::elements,
        kernel::Kernel,
        tract::Window,
    },
    size,
};

/// `Conv` of FP32 along one axis or two, with constant weights.
#[derive(Debug)]
pub(super) struct Conv {
    groups: usize,
    /// Height and width; a line is an image of one row.
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: PaddingSpec,
    /// Of the weights.
    shape: TVec<usize>,
    weights: Arc<Tensor>,
    bias: Option<Vec<f32>>,
}

/// Numbers of one axis or two as those of two.
fn plane(numbers: &[usize], one: usize) -> [usize; 2] {
    match numbers {
        [] => [one, one],
        &[width] => [one, width],
        numbers => [numbers[0], numbers[1]],
    }
}

impl Conv {
    pub(super) fn of(
        attributes: Attributes<'_>,
        constants: &[Option<Arc<Tensor>>],
    ) -> TractResult<Option<Self>> {
        let Some(Some(weights)) = constants.get(1) else {
            return Ok(None);
        };
        let bias = match constants.get(2) {
            Some(Some(bias)) if bias.datum_type() == DatumType::F32 => Some(elements::<f32>(bias)?.to_vec()),
            None => None,
            _ => return Ok(None),
        };
        let window = Window::of(attributes, false)?;
        let groups = usize::try_from(attributes.int("group", 1)).unwrap_or(0);
        let shape: TVec<usize> = weights.shape().into();
        let spatial = shape.len().saturating_sub(2);
        let fits = weights.datum_type() == DatumType::F32
            && (1..=2).contains(&spatial)
            && weights.len() > 0
            && groups > 0
            && shape[0].is_multiple_of(groups)
            && bias.as_ref().is_none_or(|bias| bias.len() == shape[0])
            && window
                .kernel
                .as_ref()
                .is_none_or(|kernel| kernel[..] == shape[2..])
            && [&window.strides, &window.dilations]
                .into_iter()
                .flatten()
                .all(|list| list.len() == spatial);
        if !fits {
            return Ok(None);
        }
        let kernel = plane(&shape[2..], 1);
        let geometry = Geometry {
            batch: 1,
            groups,
            channels: shape[1],
            rows: shape[0] / groups,
            input: [1, 1],
            output: [1, 1],
            kernel,
            strides: [1, 1],
            dilations: [1, 1],
            before: [0, 0],
        };
        Ok(Some(Self {
            groups,
            kernel,
            strides: plane(window.strides.as_deref().unwrap_or(&[]), 1),
            dilations: plane(window.dilations.as_deref().unwrap_or(&[]), 1),
            padding: window.padding,
            weights: Arc::new(packed(&geometry, elements::<f32>(weights)?)?),
            shape,
            bias,
        }))
    }

    /// The size of the result along an axis, and the padding before it.
    fn sizes(&self, axis: usize, size: usize) -> TractResult<[usize; 2]> {
        let reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1;
        let stride = self.strides[axis];
        let [before, after] = match &self.padding {
            PaddingSpec::Explicit(before, after) => [plane(before, 0)[axis], plane(after, 0)[axis]],
            PaddingSpec::SameUpper | PaddingSpec::SameLower => {
                let count = size.div_ceil(stride);
                let all = (count.saturating_sub(1) * stride + reach).saturating_sub(size);
                match &self.padding {
                    PaddingSpec::SameUpper => [all / 2, all - all / 2],
                    _ => [all - all / 2, all / 2],
                }
            }
            _ => [0, 0],
        };
        let padded = size + before + after;
        ensure_input!(
            padded >= reach,
            "a window of {reach} reaches beyond an image of {padded}, padding included"
        );
        Ok([(padded - reach) / stride + 1, before])
    }
}

impl Compute for Conv {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let image = &inputs[0];
        let given = image.shape();
        if image.datum_type() != DatumType::F32 || given.len() != self.shape.len() {
            return Ok(None);
        }
        let channels = self.shape[1] * self.groups;
        ensure_input!(
            given[1] == channels,
            "an image of {} channels, expected {channels}",
            given[1]
        );
        let input = plane(&given[2..], 1);
        if image.len() == 0 {
            return Ok(None);
        }
        let [height, width] = [self.sizes(0, input[0])?, self.sizes(1, input[1])?];
        let mut shape: TVec<usize> = tvec![given[0], self.shape[0]];
        shape.extend([height[0], width[0]].into_iter().skip(2 - (given.len() - 2)));
        size::admit_shape(DatumType::F32, &shape)?;
        let geometry = Geometry {
            batch: given[0],
            groups: self.groups,
            channels: self.shape[1],
            rows: self.shape[0] / self.groups,
            input,
            output: [height[0], width[0]],
            kernel: self.kernel,
            strides: self.strides,
            dilations: self.dilations,
            before: [height[1], width[1]],
        };
        let Some(layout) = geometry.layout() else {
            return Ok(None);
        };
        let bias = self.bias.clone().unwrap_or_else(|| vec![0.0; self.shape[0]]);
        let convolution = Convolution::new(geometry, layout, bias, None, &shape);
        let made = convolution.run(&[image.clone(), self.weights.clone()])?;
        Ok(Some(made.into_iter().map(Arc::new).collect()))
    }
}
