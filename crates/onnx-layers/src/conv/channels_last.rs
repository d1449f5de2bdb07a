//! FP32 convolutions of channels-last images (NHWC), which replace several `Conv` in a row.
//!
//! The channels of a pixel are contiguous, so that a convolution is a product whose rows are read where they
//! are: no image is copied, and whole vectors of channels are loaded and stored whatever the width of the image.

use std::sync::Arc;

use onnx_kernels::elementwise::{Activation, activation_of};
use onnx_tensor::{
    elements::elements,
    node::{Attributes, Node},
    operator::{Compute, Fact},
    packs::{Order, Packs},
    prelude::*,
    size,
};

use crate::conv::{
    packed_channels::Filters,
    pixel_products::Convolution,
    pixel_segments::{Copied, InPlace},
    windows::{Shape, expect_bias},
};

/// Builds the operator `ChannelsLastConv`: `Conv` in two dimensions, whose result has the channels last, and
/// whose image has them first (`from_first`) or last.
pub fn channels_last_conv(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(Box::new(ChannelsLastConv {
        shape: Shape::of(attributes)?,
        from_first: attributes.int("from_first", 0) != 0,
        kept: None,
        activation: None,
    }))
}

#[derive(Debug)]
struct ChannelsLastConv {
    shape: Shape,
    /// Whether the image has its channels first. Its pixels are then copied, which few channels are worth.
    from_first: bool,
    /// Shape of constant weights, and their packed values.
    kept: Option<(ShortVec<usize>, Arc<Filters>)>,
    activation: Option<Activation>,
}

/// Moves the channels of an image's dimensions from the last to the second position.
fn first<T: Copy>(dims: &[T]) -> Result<[T; 4]> {
    match *dims {
        [batch, height, width, channels] => Ok([batch, channels, height, width]),
        _ => bail!("an image of {} dimensions", dims.len()),
    }
}

/// Moves the channels of an image's dimensions from the second to the last position.
fn last<T: Copy>(dims: &[T]) -> Result<[T; 4]> {
    match *dims {
        [batch, channels, height, width] => Ok([batch, height, width, channels]),
        _ => bail!("an image of {} dimensions", dims.len()),
    }
}

impl ChannelsLastConv {
    /// Returns the dimensions of an image in the order of `Conv`.
    fn given<T: Copy>(&self, dims: &[T]) -> Result<ShortVec<T>> {
        Ok(match self.from_first {
            true => dims.into(),
            false => first(dims)?.as_slice().into(),
        })
    }
}

impl Compute for ChannelsLastConv {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [image, weights, bias @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        let shape = self.shape.dims(&self.given(&image.shape)?, &weights.shape)?;
        expect_bias(bias.first(), &weights.shape[0])?;
        let shape = shape.map(|shape| last(&shape)).transpose()?;
        Ok(shape.map(|shape| vec![Fact::new(image.element_type, shape)]))
    }

    fn follow(&mut self, next: &dyn Compute) -> bool {
        let activation = activation_of(next).filter(|_| self.activation.is_none());
        let is_free = activation.is_some();
        self.activation = self.activation.take().or(activation);
        is_free
    }

    fn take_over(&mut self, constants: &[Option<Arc<Tensor>>], packs: &mut Packs) -> Result<Option<usize>> {
        let Some(Some(weights)) = constants.get(1) else {
            return Ok(None);
        };
        let (groups, from_first) = (self.shape.groups, self.from_first);
        let bytes = Filters::bytes(weights.shape(), groups);
        let order = Order::ChannelsLast { groups, from_first };
        let filters = packs.shared(&[weights], order, bytes, || {
            Filters::packed(weights, groups, from_first)
        })?;
        self.kept = filters.map(|filters| (weights.shape().into(), filters));
        Ok(self.kept.as_ref().map(|_| 1))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let (shape, filters) = match &self.kept {
            Some((shape, filters)) => (shape.clone(), filters.clone()),
            None => {
                size::admit_now(Filters::bytes(inputs[1].shape(), self.shape.groups))?;
                let filters = Filters::packed(&inputs[1], self.shape.groups, self.from_first)?;
                (inputs[1].shape().into(), Arc::new(filters))
            }
        };
        let image = &inputs[0];
        let sizes = self.shape.sizes(&self.given(image.shape())?, &shape)?;
        let bias = match inputs.get(2) {
            Some(bias) => elements::<f32>(bias)?.to_vec(),
            None => vec![0.0; shape[0]],
        };
        let convolution = Convolution::new(
            sizes.plane().context("an image of two dimensions")?,
            last(&sizes.shape)?,
            &bias,
            self.activation.as_ref(),
        );
        let made = match (&*filters, self.from_first) {
            // All pixels are padding.
            _ if image.is_empty() => convolution.bias_alone(),
            (Filters::Depthwise(filter), _) => convolution.filtered(filter, elements(image)?),
            (Filters::Dense(channels), true) => convolution.product(channels, &Copied(elements(image)?)),
            (Filters::Dense(channels), false) => convolution.product(channels, &InPlace(elements(image)?)),
        };
        Ok(smallvec![made?.into_arc()])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::conv::conv;
    use onnx_tensor::{
        elements::tensor,
        testing::{node, with_text},
    };

    /// Returns small integers, so that sums are exact in any order.
    fn numbers(shape: &[usize], seed: usize) -> Arc<Tensor> {
        let count: usize = shape.iter().product();
        let numbers = (0..count).map(|at| ((at * 7919 + seed) % 17) as f32 - 8.0);
        tensor(shape, numbers.collect()).unwrap().into_arc()
    }

    /// Moves the channels of an image to the end.
    fn turned(image: &Tensor) -> Arc<Tensor> {
        let shape = last(image.shape()).unwrap();
        let [batch, height, width, channels] = shape;
        let from = elements::<f32>(image).unwrap();
        let mut made = Vec::with_capacity(from.len());
        for batch in 0..batch {
            for pixel in 0..height * width {
                let place = |channel: usize| (batch * channels + channel) * height * width + pixel;
                made.extend((0..channels).map(|channel| from[place(channel)]));
            }
        }
        tensor(&shape, made).unwrap().into_arc()
    }

    fn run(op: &dyn Compute, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let facts = op.outputs(&Fact::of_values(inputs))?.unwrap();
        let made = op.run(&mut inputs.into())?.remove(0);
        let shape: ShortVec<Dim> = made.shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(shape, facts[0].shape);
        Ok(made)
    }

    /// Compares the result with that of `Conv`, with and without constant weights.
    fn check(node: &Node, image: &[usize], weights: &[usize], is_from_first: bool) -> Option<()> {
        let [x, w, bias] = [numbers(image, 1), numbers(weights, 2), numbers(&weights[..1], 3)];
        // A window that is larger than the image is refused by both.
        let expected = run(&*conv(node).unwrap(), &[x.clone(), w.clone(), bias.clone()]).ok()?;
        let mut node = node.clone();
        node.attribute.push(onnx_tensor::node::Attribute {
            name: "from_first".to_owned(),
            i: is_from_first.into(),
            ..Default::default()
        });
        let x = if is_from_first { x } else { turned(&x) };
        let mut op = channels_last_conv(&node).unwrap();
        let found = run(&*op, &[x.clone(), w.clone(), bias.clone()]).unwrap();
        assert_eq!(found, turned(&expected), "{node:?} of {image:?} and {weights:?}");
        let mut packs = Packs::beside(1 << 20);
        let taken = op.take_over(&[None, Some(w.clone()), None], &mut packs).unwrap();
        assert_eq!(taken, Some(1));
        assert_eq!(
            op.run(&mut smallvec![x, numbers(&[0], 0), bias]).unwrap()[0],
            found
        );
        Some(())
    }

    #[test]
    fn results_are_those_of_channels_that_come_first() {
        let cases: [([usize; 4], [usize; 4], i64); 12] = [
            ([1, 4, 9, 7], [6, 4, 3, 2], 1),
            ([2, 3, 11, 20], [5, 3, 3, 3], 1),
            ([2, 8, 6, 5], [6, 4, 1, 1], 2),
            ([1, 20, 13, 12], [33, 20, 1, 1], 1),
            ([2, 5, 9, 6], [5, 1, 3, 3], 5),
            ([1, 19, 7, 8], [19, 1, 5, 5], 19),
            ([1, 3, 12, 11], [4, 3, 7, 7], 1),
            ([1, 2, 1, 300], [3, 2, 1, 9], 1),
            ([0, 3, 5, 6], [8, 3, 2, 2], 1),
            ([1, 2, 1, 1], [8, 2, 1, 1], 1),
            ([1, 3, 2, 3], [4, 3, 2, 1], 1),
            ([2, 1, 3, 2], [4, 1, 2, 3], 1),
        ];
        let mut count = 0;
        for (image, weights, group) in cases {
            for stride in 1..3 {
                for dilation in 1..3 {
                    for pad in 0..3 {
                        let lists = [
                            ("strides", vec![stride; 2]),
                            ("dilations", vec![dilation; 2]),
                            ("pads", vec![pad, pad + 1, 2 * pad, pad]),
                        ];
                        let node = node("Conv", &lists, &[("group", group)], 1);
                        count += usize::from(check(&node, &image, &weights, false).is_some());
                        if group == 1 {
                            check(&node, &image, &weights, true);
                        }
                    }
                }
            }
        }
        assert!(count > 80, "{count} cases");
    }

    #[test]
    fn parts_of_large_images_fit_together() {
        for (image, weights, group, strides) in [
            ([1, 3, 40, 230], [8, 3, 3, 3], 1, [2, 2]),
            ([2, 1, 11, 131], [4, 1, 5, 5], 1, [1, 1]),
            ([1, 8, 40, 160], [8, 1, 3, 3], 8, [1, 1]),
            ([1, 200, 9, 160], [200, 1, 5, 5], 200, [2, 1]),
            ([1, 100, 9, 90], [100, 1, 3, 3], 100, [2, 1]),
            ([1, 20, 12, 130], [33, 20, 3, 3], 1, [2, 1]),
            // Weights in several ranges of output channels.
            ([2, 70, 5, 6], [230, 70, 3, 3], 1, [1, 1]),
        ] {
            let pad = weights[2] as i64 / 2;
            let lists = [("strides", Vec::from(strides)), ("pads", vec![pad; 4])];
            let node = node("Conv", &lists, &[("group", group)], 1);
            check(&node, &image, &weights, group == 1 && image[1] < 4).unwrap();
        }
    }

    #[test]
    fn images_without_pixels_are_padding() {
        let node = node("Conv", &[("pads", vec![1, 1, 1, 1])], &[], 1);
        check(&node, &[1, 2, 0, 3], &[4, 2, 2, 3], false).unwrap();
        check(&node, &[1, 2, 0, 3], &[4, 2, 2, 3], true).unwrap();
    }

    #[test]
    fn automatic_padding_is_that_of_the_pixels() {
        let node = with_text(
            node("Conv", &[("strides", vec![2; 2])], &[], 1),
            "auto_pad",
            "SAME_UPPER",
        );
        check(&node, &[1, 5, 6, 9], &[4, 5, 3, 3], false).unwrap();
    }

    #[test]
    fn images_of_other_channels_are_refused_in_the_order_of_conv() {
        let node = node("Conv", &[], &[], 1);
        let op = channels_last_conv(&node).unwrap();
        let inputs = [numbers(&[1, 6, 6, 3], 1), numbers(&[4, 2, 3, 3], 2)];
        let error = run(&*op, &inputs).unwrap_err();
        assert_eq!(error.to_string(), "takes images of 2 channels, not of 3");
    }
}
