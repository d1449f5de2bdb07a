//! FP32 convolutions of channels-last images (NHWC), which replace several `Conv` in a row.
//!
//! The channels of a pixel are contiguous, so that a convolution is a product whose rows are read where they
//! are: no image is copied, and whole vectors of channels are loaded and stored whatever the width of the image.

use std::{any::Any, sync::Arc};

use onnx_gemm::ChannelFilter;
use onnx_kernels::elementwise::{Activation, activation_of, is_sum};
use onnx_tensor::{
    elements::elements,
    node::{Attributes, Node},
    operator::{Compute, Fact, Wiring},
    packs::{Order, Packs},
    prelude::*,
    room, size,
};

use crate::conv::{
    filtered_pixels::Filtered,
    packed_channels::Filters,
    pixel_products::Convolution,
    pixel_segments::{Copied, InPlace},
    windows::{Shape, Sizes, expect_bias},
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
        addition: None,
        product: None,
    }))
}

/// Results of a depthwise convolution of at least this number of bytes are computed a part at a time, when the
/// convolution of single pixels after it needs them. Smaller ones stay in the caches.
const LARGE: usize = 1 << 17;

/// The same is done up to this number of channels. A part of more has few pixels, for which the weights of the
/// product are read too often.
const MOST_CHANNELS: usize = 512;

#[derive(Debug)]
struct ChannelsLastConv {
    shape: Shape,
    /// Whether the image has its channels first, of which there are few.
    from_first: bool,
    /// Shape of constant weights, and their packed values.
    kept: Option<(ShortVec<usize>, Arc<Filters>)>,
    activation: Option<Activation>,
    addition: Option<Addition>,
    /// The convolution of single pixels that follows this one, which is depthwise.
    product: Option<Box<Product>>,
}

/// The sum of a convolution's result and another tensor.
#[derive(Debug)]
struct Addition {
    operator: Box<dyn Compute>,
    /// The index of the result among the inputs of `operator`.
    place: usize,
    /// The index of the other tensor among the inputs of the convolution.
    index: usize,
    /// The name of the sum.
    label: String,
    activation: Option<Activation>,
}

impl Addition {
    /// Returns the operator's inputs in order.
    fn inputs<T: Clone>(&self, made: T, other: &T) -> [T; 2] {
        match self.place {
            0 => [made, other.clone()],
            _ => [other.clone(), made],
        }
    }
}

/// A convolution of the result of another one.
#[derive(Debug)]
struct Product {
    convolution: ChannelsLastConv,
    /// The number of inputs of the first convolution. The inputs of this one, except the first, follow them.
    first: usize,
    label: String,
}

/// The image of a convolution.
enum Source<'s> {
    Tensor(&'s Tensor),
    Filtered(&'s Filtered<'s>, [usize; 4]),
}

impl Source<'_> {
    fn shape(&self) -> &[usize] {
        match self {
            Self::Tensor(tensor) => tensor.shape(),
            Self::Filtered(_, shape) => shape,
        }
    }
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

/// Checks the size of a value that is not a result of the node, and reserves memory for it.
fn ask_for(shape: &[usize]) -> Result<()> {
    let bytes = size::admit_size(ElementType::F32, shape)?;
    room::ask_for_more(bytes)?;
    size::admit_now(bytes)
}

impl ChannelsLastConv {
    /// Returns the dimensions of an image in the order of `Conv`.
    fn given<T: Copy>(&self, dims: &[T]) -> Result<ShortVec<T>> {
        Ok(match self.from_first {
            true => dims.into(),
            false => first(dims)?.as_slice().into(),
        })
    }

    /// Returns whether the weights are those of a convolution of single pixels in one group.
    fn is_of_pixels(&self) -> bool {
        let kept = self.kept.as_ref();
        !self.from_first
            && self.shape.groups == 1
            && kept.is_some_and(|(shape, filters)| {
                shape[2..] == [1, 1] && matches!(**filters, Filters::Dense(_))
            })
    }

    /// Returns the filters of a depthwise convolution.
    fn filter(&self) -> Option<(&[usize], &ChannelFilter)> {
        match self.kept.as_ref().map(|(shape, filters)| (shape, &**filters)) {
            Some((shape, Filters::Depthwise(filter))) => Some((shape, filter)),
            _ => None,
        }
    }

    /// Returns the facts of the result, without those of the convolution that follows.
    fn made(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let own = self.addition.as_ref().map_or(inputs.len(), |sum| sum.index);
        let [image, weights, bias @ ..] = &inputs[..own.min(inputs.len())] else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        let shape = self.shape.dims(&self.given(&image.shape)?, &weights.shape)?;
        expect_bias(bias.first(), &weights.shape[0])?;
        let Some(shape) = shape else {
            return Ok(None);
        };
        let made = Fact::new(image.element_type, last(&shape)?);
        match &self.addition {
            Some(sum) => {
                let inputs = sum.inputs(made, &inputs[sum.index]);
                let sums = sum.operator.outputs(&inputs);
                sums.with_context(|| sum.label.clone())
            }
            None => Ok(Some(vec![made])),
        }
    }

    /// Computes the result for the image `source`, which replaces the first of `inputs`.
    fn computed(&self, source: &Source<'_>, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let (shape, filters) = match &self.kept {
            Some((shape, filters)) => (shape.clone(), filters.clone()),
            None => {
                size::admit_now(Filters::bytes(inputs[1].shape(), self.shape.groups))?;
                let filters = Filters::packed(&inputs[1], self.shape.groups, self.from_first)?;
                (inputs[1].shape().into(), Arc::new(filters))
            }
        };
        let sizes = self.shape.sizes(&self.given(source.shape())?, &shape)?;
        let bias = self.bias(shape[0], inputs)?;
        let mut convolution = self.convolution(&sizes, &bias)?;
        let mut broadcast = None;
        if let Some(sum) = &self.addition {
            let addend = &inputs[sum.index];
            match *addend.shape() == last(&sizes.shape)? {
                true => convolution = convolution.plus(elements(addend)?, sum.activation.as_ref()),
                false => {
                    ask_for(&last(&sizes.shape)?)?;
                    broadcast = Some((sum, addend));
                }
            }
        }
        let made = match (source, &*filters) {
            (Source::Filtered(image, _), Filters::Dense(channels)) => {
                convolution.product(channels, *image)?
            }
            (Source::Filtered(..), Filters::Depthwise(_)) => bail!("expected a convolution of pixels"),
            // All pixels are padding.
            (Source::Tensor(image), _) if image.is_empty() => convolution.bias_alone()?,
            (Source::Tensor(image), Filters::Depthwise(filter)) => {
                convolution.filtered(filter, elements(image)?)?
            }
            (Source::Tensor(image), Filters::Dense(channels)) => match self.from_first {
                true => match convolution.product_of_lines(channels, elements(image)?)? {
                    Some(made) => made,
                    None => convolution.product(channels, &Copied(elements(image)?))?,
                },
                false => convolution.product(channels, &InPlace(elements(image)?))?,
            },
        };
        let Some((sum, addend)) = broadcast else {
            return Ok(made.into_arc());
        };
        let mut made = sum
            .operator
            .run(&mut ShortVec::from_iter(sum.inputs(made.into_arc(), addend)))?;
        let made = made.pop().context("a sum")?;
        match &sum.activation {
            Some(activation) => activation.replaced(made),
            None => Ok(made),
        }
    }

    fn bias(&self, rows: usize, inputs: &[Arc<Tensor>]) -> Result<Vec<f32>> {
        let is_bias = |index: usize| self.addition.as_ref().is_none_or(|sum| index < sum.index);
        match inputs.get(2).filter(|_| is_bias(2)) {
            Some(bias) => Ok(elements::<f32>(bias)?.to_vec()),
            None => Ok(vec![0.0; rows]),
        }
    }

    fn convolution<'c>(&'c self, sizes: &Sizes, bias: &'c [f32]) -> Result<Convolution<'c>> {
        let geometry = sizes.plane().context("an image of two dimensions")?;
        let activation = self.activation.as_ref();
        Ok(Convolution::new(geometry, last(&sizes.shape)?, bias, activation))
    }

    /// Computes this depthwise convolution and the one that follows.
    fn both(&self, product: &Product, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let (own, others) = inputs.split_at(product.first);
        let others: ShortVec<Arc<Tensor>> = own.iter().take(1).chain(others).cloned().collect();
        let image = &own[0];
        if let Some((weights, filter)) = self.filter() {
            let sizes = self.shape.sizes(&self.given(image.shape())?, weights)?;
            let shape = last(&sizes.shape)?;
            let bytes = shape
                .iter()
                .fold(size_of::<f32>(), |bytes, &size| bytes.saturating_mul(size));
            let is_large = bytes >= LARGE && shape[3] <= MOST_CHANNELS;
            if is_large && !image.is_empty() && product.convolution.shape.is_of_pixels(&first(&shape)?)? {
                let bias = self.bias(weights[0], own)?;
                let filtered = Filtered {
                    convolution: self.convolution(&sizes, &bias)?,
                    filter,
                    images: elements(image)?,
                };
                return product
                    .convolution
                    .computed(&Source::Filtered(&filtered, shape), &others);
            }
            ask_for(&shape)?;
        }
        let made = self.computed(&Source::Tensor(image), own)?;
        let result = product.convolution.computed(&Source::Tensor(&made), &others);
        made.release();
        result
    }
}

impl Compute for ChannelsLastConv {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let Some(product) = &self.product else {
            return self.made(inputs);
        };
        let (own, others) = inputs.split_at(product.first.min(inputs.len()));
        let Some(mut facts) = self.made(own)? else {
            return Ok(None);
        };
        facts.extend_from_slice(others);
        let outputs = product.convolution.outputs(&facts);
        outputs.with_context(|| product.label.clone())
    }

    fn follow(&mut self, next: &dyn Compute) -> bool {
        if let Some(product) = &mut self.product {
            return product.convolution.follow(next);
        }
        let last = match &mut self.addition {
            Some(sum) => &mut sum.activation,
            None => &mut self.activation,
        };
        if last.is_some() {
            return false;
        }
        *last = activation_of(next);
        last.is_some()
    }

    fn chain(&mut self, next: Box<dyn Compute>, wiring: Wiring<'_>) -> Option<Box<dyn Compute>> {
        if let Some(product) = &mut self.product {
            let inputs = wiring.inputs - product.first + 1;
            return product.convolution.chain(next, Wiring { inputs, ..wiring });
        }
        if self.addition.is_some() {
            return Some(next);
        }
        if is_sum(&*next) && wiring.others == 1 {
            self.addition = Some(Addition {
                operator: next,
                place: wiring.place,
                index: wiring.inputs,
                label: wiring.label.to_owned(),
                activation: None,
            });
            return None;
        }
        let is_product = |next: &dyn Any| next.downcast_ref::<Self>().is_some_and(Self::is_of_pixels);
        if wiring.place != 0 || self.filter().is_none() || !is_product(&*next) {
            return Some(next);
        }
        let next: Box<dyn Any> = next;
        self.product = next.downcast::<Self>().ok().map(|convolution| {
            Box::new(Product {
                convolution: *convolution,
                first: wiring.inputs,
                label: wiring.label.to_owned(),
            })
        });
        None
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
        let made = match &self.product {
            Some(product) => self.both(product, inputs)?,
            None => self.computed(&Source::Tensor(&inputs[0]), inputs)?,
        };
        Ok(smallvec![made])
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

    /// Returns a node whose image has the channels first, or last.
    fn from_first(node: &Node, is_from_first: bool) -> Node {
        let mut node = node.clone();
        node.attribute.push(onnx_tensor::node::Attribute {
            name: "from_first".to_owned(),
            i: is_from_first.into(),
            ..Default::default()
        });
        node
    }

    /// Compares the result with that of `Conv`, with and without constant weights.
    fn check(node: &Node, image: &[usize], weights: &[usize], is_from_first: bool) -> Option<()> {
        let [x, w, bias] = [numbers(image, 1), numbers(weights, 2), numbers(&weights[..1], 3)];
        // A window that is larger than the image is refused by both.
        let expected = run(&*conv(node).unwrap(), &[x.clone(), w.clone(), bias.clone()]).ok()?;
        let node = from_first(node, is_from_first);
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
                        // Lines and columns differ.
                        let lists = [
                            ("strides", vec![3 - stride, stride]),
                            ("dilations", vec![3 - dilation, dilation]),
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
            ([1, 3, 9, 110], [900, 3, 7, 7], 1, [2, 1]),
            // Windows that are copied: far apart, or of many terms.
            ([1, 3, 20, 310], [8, 3, 5, 5], 1, [1, 3]),
            ([1, 3, 20, 110], [8, 3, 11, 11], 1, [2, 2]),
        ] {
            let pad = weights[2] as i64 / 2;
            let lists = [("strides", Vec::from(strides)), ("pads", vec![pad; 4])];
            let node = node("Conv", &lists, &[("group", group)], 1);
            check(&node, &image, &weights, group == 1 && image[1] < 4).unwrap();
        }
    }

    #[test]
    fn whole_parts_of_lines_may_be_padding() {
        for pads in [vec![0, 250, 1, 0], vec![1, 0, 0, 250], vec![0, 130, 0, 131]] {
            let node = node("Conv", &[("pads", pads)], &[], 1);
            check(&node, &[1, 2, 4, 9], &[5, 2, 3, 3], true).unwrap();
        }
    }

    #[test]
    fn sums_of_an_image_with_the_channels_first_are_in_their_place() {
        let node = from_first(&node("Conv", &[("pads", vec![1; 4])], &[], 1), true);
        let (x, other) = (numbers(&[2, 3, 5, 130], 1), numbers(&[2, 5, 130, 20], 4));
        let (mut op, [w, b]) = packed(&node, &[20, 3, 3, 3], 3);
        assert!(op.chain(function("Add"), of(3, 0, 1)).is_none());
        let found = run(&*op, &[x.clone(), w, b, other.clone()]).unwrap();
        let (plain, [w, b]) = packed(&node, &[20, 3, 3, 3], 3);
        let made = run(&*plain, &[x, w, b]).unwrap();
        assert_eq!(found, sum([&made, &other]));
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

    /// A convolution of FP32 weights with packed weights, and the inputs that it takes in a run.
    fn packed(node: &Node, weights: &[usize], seed: usize) -> (Box<dyn Compute>, [Arc<Tensor>; 2]) {
        let (weights, bias) = (numbers(weights, seed), numbers(&weights[..1], seed + 1));
        let mut op = channels_last_conv(node).unwrap();
        let taken = op.take_over(&[None, Some(weights.clone()), None], &mut Packs::beside(1 << 20));
        assert_eq!(taken.unwrap(), Some(1));
        (op, [weights, bias])
    }

    fn function(name: &str) -> Box<dyn Compute> {
        let function = match name {
            "Add" => onnx_kernels::elementwise::pair,
            _ => onnx_kernels::elementwise::function,
        };
        function(&Node {
            op_type: name.to_owned(),
            opset: 18,
            ..node(name, &[], &[], 1)
        })
        .unwrap()
    }

    fn sum(values: [&Arc<Tensor>; 2]) -> Arc<Tensor> {
        let mut inputs = ShortVec::from_iter(values.map(Arc::clone));
        function("Add").run(&mut inputs).unwrap().remove(0)
    }

    fn relu(value: Arc<Tensor>) -> Arc<Tensor> {
        function("Relu").run(&mut smallvec![value]).unwrap().remove(0)
    }

    fn of(inputs: usize, place: usize, others: usize) -> Wiring<'static> {
        Wiring {
            inputs,
            place,
            others,
            label: "next",
        }
    }

    #[test]
    fn a_convolution_adds_another_tensor_between_two_functions() {
        let node = node("Conv", &[("pads", vec![1; 4])], &[], 1);
        for (weights, channels) in [([20, 6, 3, 3], 6), ([200, 100, 3, 3], 100)] {
            // Tensors of the same shape, and those that are broadcast or that the result is broadcast to.
            for other in [
                vec![2, 5, 6, weights[0]],
                vec![weights[0]],
                vec![1, 1, 1, 1],
                vec![3, 2, 5, 6, weights[0]],
            ] {
                for place in 0..2 {
                    let (mut op, [w, b]) = packed(&node, &weights, 3);
                    assert!(op.follow(&*function("Relu")));
                    assert!(op.chain(function("Add"), of(3, place, 1)).is_none());
                    assert!(op.follow(&*function("Relu")));
                    assert!(!op.follow(&*function("Relu")));
                    assert!(op.chain(function("Add"), of(4, 0, 1)).is_some());
                    let (x, other) = (numbers(&[2, 5, 6, channels], 1), numbers(&other, 4));
                    let found = run(&*op, &[x.clone(), w, b, other.clone()]).unwrap();
                    let (plain, [w, b]) = packed(&node, &weights, 3);
                    let made = relu(run(&*plain, &[x, w, b]).unwrap());
                    assert_eq!(found, relu(sum([&made, &other])));
                }
            }
        }
    }

    #[test]
    fn a_sum_of_three_tensors_is_not_part_of_a_convolution() {
        let (mut op, _) = packed(&node("Conv", &[], &[], 1), &[8, 4, 1, 1], 3);
        assert!(op.chain(function("Add"), of(3, 0, 2)).is_some());
    }

    #[test]
    fn a_depthwise_convolution_and_one_of_pixels_are_one() {
        // Small results, and those that are computed in parts: of whole lines, of parts of a line, and of several
        // images. A product with strides or padding needs the whole result.
        for (image, stride, [product_stride, product_pad]) in [
            ([1, 5, 6], 1, [1, 0]),
            ([2, 40, 41], 1, [1, 0]),
            ([1, 60, 70], 2, [1, 0]),
            ([3, 12, 130], 1, [1, 0]),
            ([1, 3, 700], 1, [1, 0]),
            ([1, 40, 41], 1, [2, 0]),
            ([1, 40, 41], 1, [1, 1]),
        ] {
            for channels in [24, 600] {
                if channels > 24 && image[1] * image[2] > 2000 {
                    continue;
                }
                let lists = [("pads", vec![1; 4]), ("strides", vec![stride; 2])];
                let filter = node("Conv", &lists, &[("group", channels)], 1);
                let lists = [
                    ("strides", vec![product_stride; 2]),
                    ("pads", vec![product_pad; 4]),
                ];
                let product = node("Conv", &lists, &[], 1);
                let channels = channels as usize;
                let [batch, height, width] = image;
                let x = numbers(&[batch, height, width, channels], 1);
                let (mut op, [w, b]) = packed(&filter, &[channels, 1, 3, 3], 2);
                assert!(op.follow(&*function("Relu")));
                let (next, [w2, b2]) = packed(&product, &[20, channels, 1, 1], 5);
                let made = relu(run(&*op, &[x.clone(), w.clone(), b.clone()]).unwrap());
                let made = run(&*next, &[made, w2.clone(), b2.clone()]).unwrap();
                let other = numbers(made.shape(), 7);
                let expected = relu(sum([&made, &other]));
                assert!(op.chain(next, of(3, 0, 2)).is_none());
                assert!(op.chain(function("Add"), of(5, 1, 1)).is_none());
                assert!(op.follow(&*function("Relu")));
                let found = run(&*op, &[x, w, b, w2, b2, other]).unwrap();
                assert_eq!(found, expected, "{image:?}");
            }
        }
    }

    /// A product with strides needs the whole result of the depthwise convolution, which is padding.
    #[test]
    fn a_value_between_two_fused_convolutions_is_within_the_limit() {
        let lists = [("pads", vec![1 << 16; 4])];
        let filter = node("Conv", &lists, &[("group", 16)], 1);
        let product = node("Conv", &[("strides", vec![1 << 16; 2])], &[], 1);
        let (mut op, [w, b]) = packed(&filter, &[16, 1, 3, 3], 2);
        let (next, [w2, b2]) = packed(&product, &[4, 16, 1, 1], 5);
        assert!(op.chain(next, of(3, 0, 2)).is_none());
        let error = run(&*op, &[numbers(&[1, 4, 4, 16], 1), w, b, w2, b2]).unwrap_err();
        assert!(error.to_string().contains("beyond the limit"), "{error}");
    }

    #[test]
    fn only_products_of_pixels_follow_a_depthwise_convolution() {
        let filter = || packed(&node("Conv", &[], &[("group", 8)], 1), &[8, 1, 3, 3], 2).0;
        let next = |weights, groups| packed(&node("Conv", &[], &[("group", groups)], 1), weights, 3).0;
        assert!(filter().chain(next(&[20, 8, 1, 1], 1), of(3, 0, 2)).is_none());
        assert!(filter().chain(next(&[20, 8, 3, 3], 1), of(3, 0, 2)).is_some());
        assert!(filter().chain(next(&[20, 4, 1, 1], 2), of(3, 0, 2)).is_some());
        assert!(filter().chain(next(&[8, 1, 1, 1], 8), of(3, 0, 2)).is_some());
        // The result is the product's bias.
        assert!(filter().chain(next(&[20, 8, 1, 1], 1), of(3, 2, 2)).is_some());
        let dense = packed(&node("Conv", &[], &[], 1), &[8, 4, 1, 1], 2).0;
        let mut dense = dense;
        assert!(dense.chain(next(&[20, 8, 1, 1], 1), of(3, 0, 2)).is_some());
    }
}
