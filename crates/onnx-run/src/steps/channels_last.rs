//! Moves the channels of images behind their pixels (NCHW to NHWC) in parts of a graph whose convolutions gain
//! more by this than the transposes around the part cost.
//!
//! A convolution of a channels-last image reads its pixels where they are. Element-wise nodes and nodes along axes
//! ([`moved_axes`](super::moved_axes)) between convolutions run on channels-last images as well.

use std::collections::{HashMap, HashSet};

use onnx_tensor::{
    node::{Attributes, Node},
    operator::Fact,
    prelude::*,
    time_limit,
};

use crate::steps::{
    body::Step,
    fusion_graph::StepWithNode,
    layout::{Elementwise, Space, TurnedConstants, remade},
    moved_axes::{DOMAIN, Moved, TO_FIRST, along_axes, int, ints},
    values::{Slot, Wires},
};

/// The reverse of [`TO_FIRST`].
const TO_LAST: [usize; 4] = [0, 2, 3, 1];

/// The number of multiplications of a convolution that are estimated to gain as much time as it takes to transpose
/// an element.
const PER_ELEMENT: f64 = 200.0;

/// The estimated gain of a depthwise convolution for each element of its result, in multiplications.
const DEPTHWISE: f64 = 150.0;

/// Convolutions of fewer output channels do not fill vectors.
const LEAST_CHANNELS: usize = 4;

/// Like [`LEAST_CHANNELS`], for the channels of one of several groups.
const LEAST_OF_GROUP: usize = 16;

/// Images of at most this number of channels are read by the convolution as they are, instead of transposed before it.
const FEW_CHANNELS: usize = 4;

/// Convolutions of larger windows are left as they are.
const MOST_TAPS: usize = 121;

/// Rewrites the steps of a graph. `fact` returns what is known about a value.
///
/// # Errors
/// Returns an error if memory is exhausted, or the time limit of the preparation has passed.
pub(crate) fn converted<'f>(
    steps: Vec<StepWithNode>,
    outputs: &[Slot],
    fact: impl Fn(Slot) -> Option<&'f Fact>,
    space: &mut Space<'_>,
) -> Result<Vec<StepWithNode>> {
    let is_convolution = |(_, node): &&StepWithNode| node.as_ref().is_some_and(|node| node.op_type == "Conv");
    if steps.iter().filter(is_convolution).count() < 2 {
        return Ok(steps);
    }
    let mut plan = Plan {
        images: HashMap::new(),
        constants: TurnedConstants::default(),
        parts: Vec::new(),
        changes: Vec::with_capacity(steps.len()),
        exits: HashSet::new(),
        fact,
    };
    for (step, node) in &steps {
        time_limit::check()?;
        let change = match (step, node) {
            (Step::Node(direct), Some(node)) => plan.change(node, &direct.wires, space)?,
            _ => None,
        };
        let read = match &change {
            // Inputs that are not replaced are read as they are.
            Some(change) => change.inputs.iter().flatten().copied().collect(),
            None => step.reads(),
        };
        read.into_iter().for_each(|slot| plan.leave(slot));
        plan.changes.push(change);
    }
    outputs.iter().for_each(|&slot| plan.leave(slot));
    plan.rewritten(steps, space)
}

/// A value that also exists, or can exist, as a channels-last image.
#[derive(Clone)]
struct Image {
    /// The channels-last image.
    last: Slot,
    part: usize,
    channels: usize,
    /// The number of pixels; relative to that of the image where the part begins, if sizes are unknown.
    pixels: f64,
    /// Whether the image is made by a Transpose.
    is_entry: bool,
}

impl Image {
    /// Returns the time of a Transpose of the image.
    fn cost(&self) -> f64 {
        PER_ELEMENT * self.channels as f64 * self.pixels
    }
}

/// The node that replaces a step.
struct Change {
    node: Node,
    inputs: Vec<Option<Slot>>,
    outputs: Vec<Slot>,
    part: usize,
    /// Images that are transposed before this node, unless they have been before.
    entries: Vec<Slot>,
}

/// Nodes that are converted together or not at all.
struct Part {
    parent: usize,
    gain: f64,
}

struct Plan<F> {
    /// Channels-last images by the slots of the values with the channels first.
    images: HashMap<Slot, Image>,
    constants: TurnedConstants,
    parts: Vec<Part>,
    changes: Vec<Option<Change>>,
    /// Values that other steps read with the channels first.
    exits: HashSet<Slot>,
    fact: F,
}

impl<'f, F: Fn(Slot) -> Option<&'f Fact>> Plan<F> {
    fn root(&mut self, part: usize) -> usize {
        let mut root = part;
        while self.parts[root].parent != root {
            let next = self.parts[root].parent;
            self.parts[root].parent = self.parts[next].parent;
            root = next;
        }
        root
    }

    fn join(&mut self, one: usize, other: usize) -> usize {
        let (one, other) = (self.root(one), self.root(other));
        if one != other {
            self.parts[other].parent = one;
            self.parts[one].gain += self.parts[other].gain;
        }
        one
    }

    fn new_part(&mut self) -> usize {
        let parent = self.parts.len();
        self.parts.push(Part { parent, gain: 0.0 });
        parent
    }

    fn add(&mut self, part: usize, gain: f64) {
        let root = self.root(part);
        self.parts[root].gain += gain;
    }

    /// Returns whether an image has a single pixel, so that its Transpose moves nothing.
    fn is_pixel(&self, slot: Slot) -> bool {
        (self.fact)(slot).is_some_and(|fact| matches!(&*fact.shape, [_, _, Dim::Known(1), Dim::Known(1)]))
    }

    /// Notes that a step reads the value in `slot` with the channels first.
    fn leave(&mut self, slot: Slot) {
        let Some(image) = self.images.get(&slot).filter(|image| !image.is_entry).cloned() else {
            return;
        };
        if self.exits.insert(slot) && !self.is_pixel(slot) {
            self.add(image.part, -image.cost());
        }
    }

    /// Returns the channels-last image of a value, which a Transpose makes if no node does.
    fn entered(&mut self, slot: Slot, channels: usize, space: &mut Space<'_>) -> Image {
        if let Some(image) = self.images.get(&slot) {
            return image.clone();
        }
        let image = Image {
            last: space.new_slot(),
            part: self.new_part(),
            channels,
            pixels: self.pixels(slot).unwrap_or(1.0),
            is_entry: true,
        };
        if !self.is_pixel(slot) {
            self.add(image.part, -image.cost());
        }
        self.images.insert(slot, image.clone());
        image
    }

    /// Returns how a node runs on channels-last images, if it does.
    fn change(&mut self, node: &Node, wires: &Wires, space: &mut Space<'_>) -> Result<Option<Change>> {
        if node.op_type == "Conv" {
            return Ok(self.convolution(node, wires, space));
        }
        let is_known = |slot: &&Slot| self.images.get(slot).is_some_and(|image| !image.is_entry);
        let Some(&source) = wires.inputs.iter().flatten().find(is_known) else {
            return Ok(None);
        };
        if wires.outputs.len() == 1
            && let Some(kind) = Elementwise::of(node).filter(|_| node.op_type != "Cast")
        {
            return self.elementwise(node, &kind, wires, &self.images[&source].clone(), space);
        }
        if wires.input(0) != Some(source) {
            return Ok(None);
        }
        Ok(along_axes(node, wires, space).map(|moved| self.followed(moved, wires, source, space)))
    }

    /// Adds the results of a node that runs on the channels-last image of `source`.
    fn followed(&mut self, moved: Moved, wires: &Wires, source: Slot, space: &mut Space<'_>) -> Change {
        let image = self.images[&source].clone();
        let mut inputs = moved.inputs;
        inputs[0] = Some(image.last);
        let outputs: Vec<Slot> = wires.outputs.iter().map(|_| space.new_slot()).collect();
        for (&output, &last) in wires.outputs.iter().zip(&outputs) {
            let made = Image {
                last,
                channels: self.channels(output).unwrap_or(image.channels),
                pixels: self.pixels(output).unwrap_or(image.pixels * moved.grows),
                ..image
            };
            self.images.insert(output, made);
        }
        Change {
            node: moved.node,
            inputs,
            outputs,
            part: image.part,
            entries: vec![],
        }
    }

    /// Returns the number of pixels of a value, if it is known.
    fn pixels(&self, slot: Slot) -> Option<f64> {
        let fact = (self.fact)(slot)?;
        let [height, width] = [2, 3].map(|axis| fact.shape.get(axis)?.to_usize());
        Some(height? as f64 * width? as f64)
    }

    /// Returns the number of channels of a value, if it is known.
    fn channels(&self, slot: Slot) -> Option<usize> {
        (self.fact)(slot)?.shape.get(1)?.to_usize()
    }

    /// Returns how a convolution with constant FP32 weights runs on a channels-last image, if that is fast.
    fn convolution(&mut self, node: &Node, wires: &Wires, space: &mut Space<'_>) -> Option<Change> {
        let (attributes, &[output]) = (Attributes(node), &*wires.outputs) else {
            return None;
        };
        let weights = space.constants.get(&wires.input(1)?)?.clone();
        let &[rows, of_group, height, width] = weights.shape() else {
            return None;
        };
        let groups = usize::try_from(attributes.int("group", 1)).ok()?;
        let fits = weights.element_type() == ElementType::F32
            && groups > 0
            && rows.is_multiple_of(groups)
            && ![rows, of_group, height, width].contains(&0)
            && height * width <= MOST_TAPS;
        let is_depthwise = [rows / groups.max(1), of_group] == [1, 1];
        let least = if groups == 1 {
            LEAST_CHANNELS
        } else {
            LEAST_OF_GROUP
        };
        let is_quick = match is_depthwise {
            true => {
                let fact = wires.outputs.first().and_then(|&slot| (self.fact)(slot));
                let columns = fact.and_then(|fact| fact.shape.get(3)?.to_usize());
                is_quick_filter([height, width], attributes, columns)
            }
            false => rows / groups >= least,
        };
        if !fits || !is_quick {
            return None;
        }
        let slot = wires.input(0)?;
        let channels = groups * of_group;
        let is_made = self.images.get(&slot).is_some_and(|image| !image.is_entry);
        let from_first = !is_made && groups == 1 && channels <= FEW_CHANNELS;
        let strides = attributes.ints("strides").iter();
        let shrinks: f64 = strides.map(|&stride| stride.max(1) as f64).product();
        let (input, part, pixels, entries) = if from_first {
            (slot, self.new_part(), 1.0, vec![])
        } else {
            let image = self.entered(slot, channels, space);
            (image.last, image.part, image.pixels, vec![slot])
        };
        let pixels = self.pixels(output).unwrap_or(pixels / shrinks);
        let gain = match is_depthwise {
            true => DEPTHWISE * channels as f64,
            false => weights.len() as f64,
        };
        self.add(part, gain * pixels);
        let last = space.new_slot();
        let image = Image {
            last,
            part,
            channels: rows,
            pixels,
            is_entry: false,
        };
        self.images.insert(output, image);
        let mut inputs = wires.inputs.clone();
        inputs[0] = Some(input);
        let mut attribute = node.attribute.clone();
        attribute.push(int("from_first", from_first.into()));
        Some(Change {
            node: Node {
                op_type: format!("{DOMAIN}/ChannelsLastConv"),
                domain: DOMAIN.to_owned(),
                opset: 1,
                attribute,
                ..node.clone()
            },
            inputs,
            outputs: vec![last],
            part,
            entries,
        })
    }

    /// Returns how an element-wise node runs on channels-last images, `source` among them, if all its inputs can
    /// have their channels last.
    fn elementwise(
        &mut self,
        node: &Node,
        kind: &Elementwise,
        wires: &Wires,
        source: &Image,
        space: &mut Space<'_>,
    ) -> Result<Option<Change>> {
        let Some(attribute) = kind.attributes(node, &TO_FIRST) else {
            return Ok(None);
        };
        let mut inputs = Vec::with_capacity(wires.inputs.len());
        let (mut parts, mut entries) = (vec![], vec![]);
        let (mut channels, mut pixels) = (0, source.pixels);
        for (place, slot) in wires.inputs.iter().enumerate() {
            let Some(slot) = *slot else {
                inputs.push(None);
                continue;
            };
            let image = self.images.get(&slot).cloned();
            let input = match image {
                Some(image) => {
                    parts.push(image.part);
                    entries.push(slot);
                    channels = match kind {
                        Elementwise::Joined => channels + image.channels,
                        _ => image.channels.max(channels),
                    };
                    pixels = pixels.max(image.pixels);
                    Some(image.last)
                }
                None if self.is_pixel(slot) && !space.constants.contains_key(&slot) => {
                    let image = self.entered(slot, source.channels, space);
                    parts.push(image.part);
                    entries.push(slot);
                    Some(image.last)
                }
                None => self.constants.of(kind, place, slot, &TO_FIRST, space)?,
            };
            let Some(input) = input else {
                return Ok(None);
            };
            inputs.push(Some(input));
        }
        let part = parts
            .into_iter()
            .reduce(|one, other| self.join(one, other))
            .unwrap_or(source.part);
        let image = Image {
            last: space.new_slot(),
            part,
            channels,
            pixels,
            is_entry: false,
        };
        let outputs = vec![image.last];
        self.images
            .extend(wires.outputs.iter().map(|&output| (output, image.clone())));
        Ok(Some(Change {
            node: Node {
                attribute,
                ..node.clone()
            },
            inputs,
            outputs,
            part,
            entries,
        }))
    }

    /// Applies the changes of the parts that gain time.
    fn rewritten(mut self, steps: Vec<StepWithNode>, space: &Space<'_>) -> Result<Vec<StepWithNode>> {
        let changes = std::mem::take(&mut self.changes);
        let mut made = Vec::with_capacity(steps.len());
        for ((step, node), change) in steps.into_iter().zip(changes) {
            let change = change.filter(|change| {
                let root = self.root(change.part);
                self.parts[root].gain > 0.0
            });
            let (Step::Node(direct), Some(change)) = (&step, change) else {
                made.push((step, node));
                continue;
            };
            for slot in change.entries {
                if let Some(image) = self.images.get_mut(&slot).filter(|image| image.is_entry) {
                    // Later nodes read the image that is made here.
                    image.is_entry = false;
                    made.push(transposed(&change.node, slot, image.last, &TO_LAST, space)?);
                }
            }
            let (mut step, node) = remade(change.node, change.inputs, change.outputs.clone(), space)?;
            if let (true, Step::Node(made)) = (direct.is_gated(), &mut step) {
                made.gate();
            }
            let name = node.clone().unwrap_or_default();
            made.push((step, node));
            for (&output, &last) in direct.wires.outputs.iter().zip(&change.outputs) {
                if self.exits.contains(&output) {
                    made.push(transposed(&name, last, output, &TO_FIRST, space)?);
                }
            }
        }
        Ok(made)
    }
}

/// Returns whether there are tiles for a depthwise convolution of channels-last images (`ChannelFilter` of
/// `onnx-gemm`) whose result has `width` columns, if that is known. Others are slower than with the channels first.
fn is_quick_filter(kernel: [usize; 2], attributes: Attributes<'_>, width: Option<usize>) -> bool {
    /// The number of pixels of a tile. They are as far apart as taps.
    const TILE: i64 = 4;
    let stride = attributes.ints("strides").last().copied().unwrap_or(1);
    let dilation = attributes.ints("dilations").last().copied().unwrap_or(1);
    let is_narrow = |width: usize| dilation > 1 && TILE.saturating_mul(dilation) > width as i64;
    if width.is_some_and(is_narrow) {
        return false;
    }
    match kernel {
        [3, 3] | [5, 5] => stride == 1 || stride == 2 && dilation == 1,
        [7, 7] => stride == 1,
        _ => false,
    }
}

/// Returns a Transpose that messages name like `node`.
fn transposed(node: &Node, from: Slot, to: Slot, order: &[usize], space: &Space<'_>) -> Result<StepWithNode> {
    let node = Node {
        input: vec![from.to_string()],
        output: vec![to.to_string()],
        name: node.name.clone(),
        op_type: "Transpose".to_owned(),
        domain: String::new(),
        opset: 13,
        attribute: vec![ints("perm", order.iter().map(|&axis| axis as i64).collect())],
    };
    remade(node, vec![Some(from)], vec![to], space)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::proto::{AttributeProto, NodeProto, TensorProto};

    use super::*;
    use crate::{
        Session,
        test_models::{constant, int, integers, ints, model, node, with},
    };
    use onnx_tensor::elements::elements;

    fn session(nodes: &[NodeProto], constants: &[TensorProto]) -> Session {
        let model = model(nodes.to_vec(), &[-1, 3, -1, -1], &[-1; 4], constants.to_vec());
        Session::prepare(&model, |_| Ok(())).unwrap()
    }

    fn operators(session: &Session) -> Vec<&str> {
        let operators = session.body.steps.iter().map(|step| match step {
            Step::Node(node) => node.direct().op_type(),
            Step::Control(_) => "",
        });
        operators.collect()
    }

    /// Makes the weights of convolutions depend on the input, so that they keep the order of channels.
    fn kept(nodes: &[NodeProto]) -> Vec<NodeProto> {
        let mut all = vec![
            node("ReduceMax", &["x"], "most"),
            node("Reshape", &["most", "none"], "one"),
            node("Sub", &["one", "one"], "zero"),
        ];
        for node in nodes {
            let mut node = node.clone();
            if node.op_type == "Conv" {
                let weights = format!("{}~{}", node.input[1], node.name);
                all.push(self::node("Add", &[&node.input[1], "zero"], &weights));
                node.input[1] = weights;
            }
            all.push(node);
        }
        all
    }

    /// Checks the operators after the rewrite, and that the results are those without it.
    #[track_caller]
    fn expect(nodes: &[NodeProto], constants: &[TensorProto], expected: &[&str]) {
        let mut constants = constants.to_vec();
        constants.push(integers("none", &[]));
        let (one, other) = (session(nodes, &constants), session(&kept(nodes), &constants));
        let names = operators(&one).into_iter();
        let names: Vec<&str> = names
            .map(|name| name.strip_prefix("tensorferry/").unwrap_or(name))
            .collect();
        assert_eq!(names, expected);
        assert!(operators(&other).contains(&"Conv"));
        for [batch, height, width] in [[1, 12, 16], [2, 9, 7]] {
            let numbers: Vec<f32> = (0..batch * 3 * height * width)
                .map(|at| (at * 7 % 23) as f32 / 4.0 - 2.0)
                .collect();
            let input = Tensor::from_shape(&[batch, 3, height, width], &numbers).unwrap();
            let (made, wanted) = (one.run([input.clone()]).unwrap(), other.run([input]).unwrap());
            assert_eq!(made[0].shape(), wanted[0].shape());
            let most = elements::<f32>(&wanted[0]).unwrap();
            let most = most.iter().fold(0f32, |most, number| most.max(number.abs()));
            for (found, wanted) in elements::<f32>(&made[0])
                .unwrap()
                .iter()
                .zip(elements::<f32>(&wanted[0]).unwrap())
            {
                assert!((found - wanted).abs() <= 1e-5 * most, "{found}, not {wanted}");
            }
        }
    }

    fn convolution(input: &str, weights: &str, output: &str, pad: i64, group: i64) -> NodeProto {
        with(
            node("Conv", &[input, weights], output),
            [ints("pads", &[pad; 4]), int("group", group)],
        )
    }

    const WEIGHTS: [(&str, &[i64]); 6] = [
        ("first", &[16, 3, 3, 3]),
        ("depthwise", &[16, 1, 3, 3]),
        ("wide", &[24, 16, 3, 3]),
        ("dense", &[24, 24, 3, 3]),
        ("point", &[24, 24, 1, 1]),
        ("single", &[1, 24, 3, 3]),
    ];

    fn weights() -> Vec<TensorProto> {
        WEIGHTS.map(|(name, dims)| constant(name, dims)).to_vec()
    }

    #[test]
    fn channels_stay_last_from_the_first_convolution_to_the_last() {
        let nodes = [
            convolution("x", "first", "a", 1, 1),
            node("Relu", &["a"], "b"),
            convolution("b", "depthwise", "c", 1, 16),
            node("Add", &["b", "c"], "d"),
            with(
                node("MaxPool", &["d"], "e"),
                [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])],
            ),
            convolution("e", "wide", "f", 1, 1),
            node("GlobalAveragePool", &["f"], "g"),
            convolution("g", "point", "h", 0, 1),
            node("Sigmoid", &["h"], "i"),
            node("Mul", &["f", "i"], "j"),
            node("Mul", &["j", "scales"], "k"),
            with(node("Concat", &["k", "f"], "l"), [int("axis", 1)]),
            with(
                NodeProto {
                    output: vec!["m".to_owned(), "n".to_owned()],
                    ..node("Split", &["l"], "m")
                },
                [int("axis", -3), int("num_outputs", 2)],
            ),
            node("Slice", &["n", "starts", "ends", "axes"], "o"),
            node("Resize", &["o", "", "twice"], "p"),
            with(node("Softmax", &["p"], "q"), [int("axis", 1)]),
            node("ReduceMean", &["q", "pixels"], "r"),
            node("Flatten", &["r"], "s"),
            node("Reshape", &["s", "four"], "y"),
        ];
        let mut constants = weights();
        constants.push(constant("scales", &[24, 1, 1]));
        constants.extend([
            integers("starts", &[1, 0]),
            integers("ends", &[-1, 100]),
            integers("axes", &[1, -1]),
            integers("pixels", &[2, 3]),
            integers("four", &[0, -1, 1, 1]),
        ]);
        let twice = [1f32, 1.0, 2.0, 2.0].map(f32::to_le_bytes).concat();
        constants.push(TensorProto {
            raw_data: twice.into(),
            ..constant("twice", &[4])
        });
        expect(
            &nodes,
            &constants,
            &[
                "ChannelsLastConv",
                // With the Add.
                "ChannelsLastConv",
                "ChannelsLastMaxPool",
                "ChannelsLastConv",
                "ChannelsLastGlobalAveragePool",
                "ChannelsLastConv",
                "Mul",
                "Mul",
                "Concat",
                "Split",
                "Slice",
                "Resize",
                "Softmax",
                "ReduceMean",
                "Transpose",
                "Flatten",
                "Reshape",
            ],
        );
    }

    #[test]
    fn a_depthwise_convolution_a_product_and_a_sum_are_one_node() {
        let nodes = [
            convolution("x", "first", "a", 1, 1),
            convolution("a", "depthwise", "b", 1, 16),
            node("Relu", &["b"], "c"),
            convolution("c", "narrow", "d", 0, 1),
            node("Relu", &["d"], "e"),
            node("Add", &["a", "e"], "f"),
            node("Sigmoid", &["f"], "g"),
            // The other term of this sum exists after the product, which therefore stays alone.
            convolution("g", "depthwise", "h", 1, 16),
            convolution("h", "narrow", "i", 0, 1),
            convolution("g", "wide", "j", 1, 1),
            node("GlobalAveragePool", &["j"], "k"),
            convolution("k", "last", "l", 0, 1),
            node("Add", &["i", "l"], "m"),
            // The result of a depthwise convolution with two readers is a value.
            convolution("m", "depthwise", "n", 1, 16),
            convolution("n", "narrow", "o", 0, 1),
            node("Mul", &["n", "o"], "y"),
        ];
        let mut constants = weights();
        constants.push(constant("narrow", &[16, 16, 1, 1]));
        constants.push(constant("last", &[16, 24, 1, 1]));
        expect(
            &nodes,
            &constants,
            &[
                "ChannelsLastConv",
                "ChannelsLastConv",
                "ChannelsLastConv",
                "ChannelsLastConv",
                "ChannelsLastGlobalAveragePool",
                "ChannelsLastConv",
                "ChannelsLastConv",
                "ChannelsLastConv",
                "Mul",
                "Transpose",
            ],
        );
    }

    #[test]
    fn an_error_of_a_fused_sum_names_the_sum() {
        let mut constants = weights();
        constants.push(constant("narrow", &[16, 16, 1, 1]));
        let nodes = [
            convolution("x", "first", "a", 1, 1),
            with(
                node("MaxPool", &["a"], "b"),
                [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])],
            ),
            convolution("a", "depthwise", "c", 1, 16),
            convolution("c", "narrow", "d", 0, 1),
            NodeProto {
                name: "total".to_owned(),
                ..node("Add", &["b", "d"], "e")
            },
            convolution("e", "wide", "f", 1, 1),
            convolution("f", "dense", "y", 1, 1),
        ];
        let session = session(&nodes, &constants);
        assert!(!operators(&session).contains(&"Add"));
        let input = Tensor::zero::<f32>(&[1, 3, 8, 8]).unwrap();
        let error = session.run([input]).unwrap_err().to_string();
        assert!(error.contains("total"), "{error}");
    }

    #[test]
    fn other_readers_get_the_channels_first() {
        // The convolution of a single channel keeps the order, and so does the InstanceNormalization.
        let nodes = [
            convolution("x", "first", "a", 1, 1),
            convolution("a", "wide", "b", 1, 1),
            convolution("b", "dense", "c", 1, 1),
            node("InstanceNormalization", &["c", "ones", "ones"], "d"),
            convolution("c", "single", "e", 1, 1),
            node("Mul", &["d", "e"], "y"),
        ];
        let mut constants = weights();
        constants.push(constant("ones", &[24]));
        expect(
            &nodes,
            &constants,
            &[
                "ChannelsLastConv",
                "ChannelsLastConv",
                "ChannelsLastConv",
                "Transpose",
                "InstanceNormalization",
                "Conv",
                "Mul",
            ],
        );
    }

    /// Builds a model of another operator set: three convolutions, `middle` from `c` to `d`, and another convolution.
    fn around(opset: i64, middle: &[NodeProto], constants: &[TensorProto], is_kept: bool) -> Result<Session> {
        let mut nodes = vec![
            convolution("x", "first", "a", 1, 1),
            convolution("a", "same", "b", 1, 1),
            convolution("b", "same", "c", 1, 1),
        ];
        nodes.extend_from_slice(middle);
        nodes.push(convolution("d", "same", "y", 3, 1));
        if is_kept {
            nodes = kept(&nodes);
        }
        let mut all = vec![
            constant("first", &[16, 3, 3, 3]),
            constant("same", &[16, 16, 3, 3]),
            integers("none", &[]),
        ];
        all.extend_from_slice(constants);
        let mut model = model(nodes, &[-1, 3, -1, -1], &[-1; 4], all);
        model.opset_import[0].version = opset;
        Session::prepare(&model, |_| Ok(())).map_err(|error| Error::msg(error.to_string()))
    }

    /// Compares the results of a graph with those without the rewrite; a graph that fails has to fail either way.
    #[track_caller]
    fn expect_same(opset: i64, middle: &[NodeProto], constants: &[TensorProto]) {
        let [found, wanted] = [false, true].map(|is_kept| {
            let session = around(opset, middle, constants, is_kept)?;
            let numbers: Vec<f32> = (0..2 * 3 * 12 * 16)
                .map(|at| (at * 7 % 23) as f32 / 4.0 - 2.0)
                .collect();
            let input = Tensor::from_shape(&[2, 3, 12, 16], &numbers).unwrap();
            let made = session.run([input]);
            Ok::<_, Error>(made.map_err(|error| Error::msg(error.to_string()))?.remove(0))
        });
        let (found, wanted) = match (found, wanted) {
            (Ok(found), Ok(wanted)) => (found, wanted),
            (found, wanted) => {
                assert_eq!(found.is_ok(), wanted.is_ok(), "{middle:?}: {found:?}, {wanted:?}");
                return;
            }
        };
        assert_eq!(found.shape(), wanted.shape(), "{middle:?}");
        let [found, wanted] = [&found, &wanted].map(|tensor| elements::<f32>(tensor).unwrap());
        let most = wanted.iter().fold(0f32, |most, number| most.max(number.abs()));
        let mut pairs = found.iter().zip(wanted);
        assert!(
            pairs.all(|(found, wanted)| (found - wanted).abs() <= 1e-5 * most),
            "{middle:?}"
        );
    }

    #[test]
    fn all_forms_of_nodes_give_the_same_results() {
        let one = |op_type: &str, inputs: &[&str], attributes: Vec<AttributeProto>| {
            vec![with(node(op_type, inputs, "d"), attributes)]
        };
        let slopes = [constant("slopes", &[16])];
        expect_same(6, &one("PRelu", &["c", "slopes"], vec![]), &slopes);
        let slopes = [constant("slopes", &[16, 1, 1])];
        expect_same(9, &one("PRelu", &["c", "slopes"], vec![]), &slopes);
        let sizes = [0, 0, 1, 2, 0, 0, 3, 4];
        expect_same(5, &one("Pad", &["c"], vec![ints("pads", &sizes)]), &[]);
        let [oldest, old] = [(1, "paddings"), (2, "pads")].map(|(opset, name)| {
            let pad = one("Pad", &["c"], vec![ints(name, &sizes)]);
            let session = around(opset, &pad, &[], false).unwrap();
            session
                .run([Tensor::zero::<f32>(&[1, 3, 12, 16]).unwrap()])
                .unwrap()
        });
        assert_eq!(oldest, old);
        expect_same(
            13,
            &one("Pad", &["c", "pads"], vec![]),
            &[integers("pads", &sizes)],
        );
        let pads = [integers("pads", &[1, 2]), integers("axes", &[3])];
        expect_same(18, &one("Pad", &["c", "pads", "", "axes"], vec![]), &pads);
        let slice = [
            integers("from", &[0]),
            integers("to", &[0]),
            integers("axes", &[2]),
        ];
        let mut empty = vec![node("Slice", &["c", "from", "to", "axes"], "e")];
        empty.extend(one("GlobalAveragePool", &["e"], vec![]));
        expect_same(13, &empty, &slice);
        let steps = [
            integers("from", &[-1, 0]),
            integers("to", &[-100, 9]),
            integers("axes", &[1, -1]),
            integers("steps", &[-1, 2]),
        ];
        expect_same(
            13,
            &one("Slice", &["c", "from", "to", "axes", "steps"], vec![]),
            &steps,
        );
        let twice = TensorProto {
            raw_data: [1f32, 1.0, 2.0, 1.5].map(f32::to_le_bytes).concat().into(),
            ..constant("twice", &[4])
        };
        for opset in [10, 11, 18] {
            let inputs: &[&str] = if opset == 10 {
                &["c", "twice"]
            } else {
                &["c", "", "twice"]
            };
            expect_same(
                opset,
                &one("Resize", inputs, vec![]),
                std::slice::from_ref(&twice),
            );
        }
        // The region is not read, and is an image.
        expect_same(18, &one("Resize", &["c", "c", "twice"], vec![]), &[twice]);
        let sizes = [integers("sizes", &[20, 19])];
        let axes = vec![ints("axes", &[-1, 2])];
        expect_same(18, &one("Resize", &["c", "", "", "sizes"], axes), &sizes);
        for (opset, axis) in [(11, 1), (13, 1), (13, -1), (13, 0)] {
            expect_same(opset, &one("Softmax", &["c"], vec![int("axis", axis)]), &[]);
        }
        for kernel in [2, 3, 7] {
            for name in ["AveragePool", "MaxPool"] {
                let attributes = vec![
                    ints("kernel_shape", &[kernel; 2]),
                    ints("strides", &[2, 1]),
                    ints("pads", &[1, 0, 0, 1]),
                    int("ceil_mode", 1),
                ];
                expect_same(19, &one(name, &["c"], attributes), &[]);
            }
        }
        for (inputs, constants) in [
            (["c", "operand"], constant("operand", &[16, 1, 1])),
            (["operand", "c"], constant("operand", &[16])),
            (["c", "operand"], constant("operand", &[1, 1, 1, 1, 16])),
        ] {
            expect_same(13, &one("Sub", &inputs, vec![]), &[constants]);
        }
        let halves = vec![
            with(
                NodeProto {
                    output: vec!["e".to_owned(), "f".to_owned()],
                    ..node("Split", &["c"], "e")
                },
                [int("axis", 1)],
            ),
            with(node("Concat", &["f", "e"], "d"), [int("axis", -3)]),
        ];
        expect_same(11, &halves, &[]);
        expect_same(13, &halves, &[]);
    }

    /// Checks that two products of few terms are not worth the Transposes around them.
    #[test]
    fn convolutions_that_gain_less_than_transposes_cost_stay() {
        let nodes = [
            node("Tile", &["x", "times"], "a"),
            convolution("a", "point", "b", 0, 1),
            convolution("b", "point", "y", 0, 1),
        ];
        let mut constants = weights();
        constants.push(integers("times", &[1, 8, 1, 1]));
        expect(&nodes, &constants, &["Tile", "Conv", "Conv"]);
    }
}
