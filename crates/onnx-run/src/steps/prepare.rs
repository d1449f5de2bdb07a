//! Prepares the nodes of a graph to run for inputs of any shape.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use onnx_graph::{Error as FileError, Port};
use onnx_tensor::prelude::*;

use crate::steps::{
    body::{Body, Control, ControlNode, Step, dropped},
    channels_last,
    dequantized::Dequantized,
    direct::DirectNode,
    folding::Folding,
    fuse,
    fusion_graph::{Fused, StepWithNode},
    infer, layout,
    values::{Slot, Wires},
};
use crate::{
    lower::Lowered,
    lowered::{OnnxGraph, OnnxNode},
    operators::{
        constants,
        registry::{self, OUTPUT},
    },
    outcome,
};
use onnx_tensor::{
    node::{Attribute, Attributes, Node},
    operator::Fact,
    packs::Packs,
    size, time_limit,
};

/// A graph that is ready to run.
pub(crate) struct PreparedGraph {
    pub(crate) body: Body,
    pub(crate) constants: HashMap<Slot, Arc<Tensor>>,
    pub(crate) slots: usize,
    /// Whether all sizes follow from the shapes of the inputs, with neither loops nor branches.
    pub(crate) is_bounded: bool,
}

/// Prepares a lowered model with these inputs.
pub(crate) fn prepare(lowered: &Lowered, inputs: &[Port]) -> Result<PreparedGraph, FileError> {
    let Lowered { graph, labels } = lowered;
    let bytes = bytes(graph);
    let mut preparer = Preparer {
        slots: HashMap::new(),
        count: 0,
        constants: HashMap::new(),
        facts: HashMap::new(),
        small: HashMap::new(),
        twins: HashMap::new(),
        statics: HashSet::new(),
        is_bounded: true,
        packs: Packs::beside(bytes),
        folding: Folding::beside(bytes),
        dequantized: HashMap::new(),
    };
    preparer.count_readers(graph);
    let slots: Vec<Slot> = graph
        .input
        .iter()
        .map(|input| preparer.slot(&input.name))
        .collect();
    preparer.facts = infer::declared(&slots, inputs);
    let body = preparer
        .graph(graph)
        .map_err(|error| outcome::unprepared(error, labels))?;
    let needed = body.needs();
    preparer.constants.retain(|slot, _| needed.contains(slot));
    Ok(PreparedGraph {
        body,
        constants: preparer.constants,
        slots: preparer.count,
        is_bounded: preparer.is_bounded,
    })
}

struct Preparer {
    /// Slots by value name. Names are unique in the whole model. An alias shares the
    /// slot of its value.
    slots: HashMap<String, Slot>,
    count: usize,
    constants: HashMap<Slot, Arc<Tensor>>,
    /// Inferred facts about values that are not constants.
    facts: HashMap<Slot, Fact>,
    /// Constants of at most [`SMALL`] bytes, for deduplication.
    small: HashMap<Small, Slot>,
    /// The outputs of this graph's nodes so far, for common subexpression elimination.
    twins: HashMap<Twin, Vec<Slot>>,
    /// Values that depend only on shapes and constants.
    statics: HashSet<Slot>,
    is_bounded: bool,
    packs: Packs,
    folding: Folding,
    /// Folded constants whose 8-bit integers a fused node may read.
    dequantized: HashMap<Slot, Dequantized>,
}

/// The type, the shape and the bytes of a small constant.
type Small = (ElementType, Vec<usize>, Vec<u8>);

/// Maximum size in bytes of constants, and maximum number of elements of attributes, that are deduplicated.
const SMALL: usize = 64;

/// The identity of a deterministic node. Nodes of equal identity have equal outputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Twin {
    op_type: String,
    opset: i64,
    inputs: Vec<Option<Slot>>,
    outputs: usize,
    attributes: String,
}

impl Twin {
    /// Returns the identity of a node; `None` if an attribute is a tensor or has many elements.
    fn of(node: &Node, wires: &Wires) -> Option<Self> {
        let attributes = &node.attribute;
        let size = |attribute: &Attribute| match &attribute.t {
            Some(_) => usize::MAX,
            None => {
                let strings = attribute.strings.iter().map(|string| string.len() + 1);
                attribute.s.len() + attribute.ints.len() + attribute.floats.len() + strings.sum::<usize>()
            }
        };
        if attributes.iter().any(|attribute| size(attribute) > SMALL) {
            return None;
        }
        Some(Self {
            op_type: node.op_type.clone(),
            opset: node.opset,
            inputs: wires.inputs.clone(),
            outputs: node.output.len(),
            attributes: match attributes.is_empty() {
                true => String::new(),
                false => format!("{attributes:?}"),
            },
        })
    }
}

/// Returns the size of a constant in bytes. Constants of one-byte types count three times, to include their
/// copies in 16 bits and FP32.
fn bytes_of(value: &Tensor) -> u64 {
    let times = if value.element_type().size_of() == 1 { 3 } else { 1 };
    times * size::of_value(value)
}

/// Returns the total size in bytes of the constants of a graph and its subgraphs.
fn bytes(graph: &OnnxGraph) -> u64 {
    let own = graph.initializer.iter().map(|constant| bytes_of(&constant.value));
    let inner = graph.node.iter().map(|OnnxNode { node, graphs }| {
        let values = node.attribute.iter().filter_map(|attribute| attribute.t.as_ref());
        let values: u64 = values.map(|value| bytes_of(value)).sum();
        values + graphs.iter().map(|(_, graph)| bytes(graph)).sum::<u64>()
    });
    own.chain(inner).sum()
}

/// Fuses nodes into those whose results they read, where `join` can: it gets a node, the only reader of its result,
/// and a function that returns whether a value exists before the node runs. Values that no step makes do.
fn join_nodes(
    steps: &mut Vec<Step>,
    outputs: &[Slot],
    join: impl Fn(&mut DirectNode, &mut DirectNode, &dyn Fn(Slot) -> bool) -> bool,
) -> Result<()> {
    let mut readers: HashMap<Slot, Vec<usize>> = HashMap::new();
    let mut makers: HashMap<Slot, usize> = HashMap::new();
    for (at, step) in steps.iter().enumerate() {
        for slot in step.reads() {
            readers.entry(slot).or_default().push(at);
        }
        makers.extend(step.makes().into_iter().map(|slot| (slot, at)));
    }
    let outputs: HashSet<Slot> = outputs.iter().copied().collect();
    let mut is_joined = vec![false; steps.len()];
    for at in 0..steps.len() {
        time_limit::check()?;
        let (before, after) = steps.split_at_mut(at + 1);
        let Some(Step::Node(node)) = before.last_mut().filter(|_| !is_joined[at]) else {
            continue;
        };
        let is_known = |slot: Slot| makers.get(&slot).is_none_or(|&maker| maker < at);
        // Several nodes in a row may be fused into one node.
        while let [output] = *node.wires.outputs
            && let Some(&[reader]) = readers.get(&output).map(Vec::as_slice)
            && let Some(Step::Node(next)) = reader.checked_sub(at + 1).and_then(|at| after.get_mut(at))
            && !outputs.contains(&output)
            && join(node, next, &is_known)
        {
            is_joined[reader] = true;
        }
    }
    let mut joined = is_joined.into_iter();
    steps.retain(|_| !joined.next().unwrap_or(false));
    Ok(())
}

/// Removes `DequantizeLinear` nodes whose results no step reads.
fn drop_dequantizations(steps: &mut Vec<Step>, outputs: &[Slot]) {
    let mut read: HashSet<Slot> = outputs.iter().copied().collect();
    read.extend(steps.iter().flat_map(Step::reads));
    steps.retain(|step| match step {
        Step::Node(node) if node.direct().op_type() == "DequantizeLinear" => {
            step.makes().iter().any(|slot| read.contains(slot))
        }
        _ => true,
    });
}

impl Preparer {
    fn graph(&mut self, graph: &OnnxGraph) -> Result<Body> {
        // Nodes of a subgraph are only deduplicated within the subgraph, since its values are not visible
        // outside.
        let outer = std::mem::take(&mut self.twins);
        for constant in &graph.initializer {
            self.keep(&constant.name, constant.value.clone());
        }
        let inputs: Vec<Slot> = graph.input.iter().map(|input| self.slot(&input.name)).collect();
        let mut nodes = Vec::with_capacity(graph.node.len());
        for lowered in &graph.node {
            let node = &lowered.node;
            time_limit::check().with_context(|| node.name.clone())?;
            match node.op_type.as_str() {
                "Identity" | OUTPUT => self.pass(node),
                "Cast" if self.has_type(node) => self.pass(node),
                "Constant" => {
                    self.keep(&node.output[0], constants::value(node)?);
                }
                _ => nodes.extend(self.step(lowered)?),
            }
        }
        let outputs = graph.output.iter().map(|output| self.slot(&output.name));
        let mut outputs: Vec<Slot> = outputs.collect();
        let steps = self.fused(nodes, &mut outputs)?;
        self.twins = outer;
        Ok(Body {
            dropped: dropped(&inputs, &steps, &outputs),
            inputs,
            outputs,
            declared: graph
                .output
                .iter()
                .map(|output| output.declared.clone())
                .collect(),
            steps,
        })
    }

    /// Counts the readers of all values of a graph and its subgraphs.
    fn count_readers(&mut self, graph: &OnnxGraph) {
        for OnnxNode { node, graphs } in &graph.node {
            for name in node.input.iter().filter(|name| !name.is_empty()) {
                let slot = self.slot(name);
                self.folding.add_reader(slot);
            }
            graphs.iter().for_each(|(_, graph)| self.count_readers(graph));
        }
        for output in &graph.output {
            let slot = self.slot(&output.name);
            self.folding.add_reader(slot);
        }
    }

    /// Makes the output of `node` an alias of its input.
    fn pass(&mut self, node: &Node) {
        let slot = self.slot(&node.input[0]);
        self.alias(&node.output[0], slot);
        self.leave(slot);
    }

    /// Makes `name` an alias of the value in `slot`.
    fn alias(&mut self, name: &str, slot: Slot) {
        if let Some(before) = self.slots.insert(name.to_owned(), slot) {
            self.folding.redirect(before, slot);
        }
    }

    /// Removes a reader of a value, and drops a constant without readers.
    fn leave(&mut self, slot: Slot) {
        if self.folding.remove_reader(slot) {
            self.constants.remove(&slot);
        }
    }

    /// Returns whether a Cast's input already has the target type.
    fn has_type(&mut self, node: &Node) -> bool {
        let code = i32::try_from(Attributes(node).int("to", 0)).ok();
        let slot = self.slot(&node.input[0]);
        let is_of = |fact: Fact| code.and_then(ElementType::from_code) == Some(fact.element_type);
        self.fact(slot).is_some_and(is_of)
    }

    fn fact(&self, slot: Slot) -> Option<Fact> {
        match self.constants.get(&slot) {
            Some(constant) => Fact::of_values(std::slice::from_ref(constant)).pop(),
            None => self.facts.get(&slot).cloned(),
        }
    }

    /// Rewrites and fuses the nodes of a graph into steps.
    fn fused(&mut self, nodes: Vec<StepWithNode>, outputs: &mut [Slot]) -> Result<Vec<Step>> {
        let mut space = layout::Space {
            constants: &mut self.constants,
            packs: &mut self.packs,
            slots: &mut self.count,
        };
        let rank = |slot: Slot| self.facts.get(&slot).map(Fact::rank);
        let nodes = layout::without_transposes(nodes, outputs, rank, &mut space)?;
        let found = fuse::fused(
            &nodes,
            outputs,
            &self.constants,
            &self.dequantized,
            &mut self.packs,
        )?;
        let mut steps: Vec<Option<StepWithNode>> = nodes.into_iter().map(Some).collect();
        for Fused {
            node,
            mut wires,
            constants,
            steps: replaced,
            is_gated,
        } in found
        {
            for (place, constant) in constants {
                let slot = self.new_slot();
                self.constants.insert(slot, constant);
                wires.inputs.resize(wires.inputs.len().max(place + 1), None);
                wires.inputs[place] = Some(slot);
            }
            let mut direct = DirectNode::new(&node, wires, &self.constants)?;
            if is_gated {
                direct.gate();
            }
            replaced.iter().for_each(|&at| steps[at] = None);
            if let Some(&last) = replaced.last() {
                steps[last] = Some((Step::Node(direct), Some(node)));
            }
        }
        let steps = steps.into_iter().flatten().collect();
        let mut space = layout::Space {
            constants: &mut self.constants,
            packs: &mut self.packs,
            slots: &mut self.count,
        };
        let fact = |slot: Slot| self.facts.get(&slot);
        let steps = channels_last::converted(steps, outputs, fact, &mut space)?;
        let mut steps: Vec<Step> = steps.into_iter().map(|(step, _)| step).collect();
        drop_dequantizations(&mut steps, outputs);
        join_nodes(&mut steps, outputs, |node, next, _| node.follow(next))?;
        for step in &mut steps {
            if let Step::Node(node) = step {
                time_limit::check()?;
                let taken = node.take_over(&self.constants, &mut self.packs);
                taken.with_context(|| node.label().to_owned())?;
            }
        }
        join_nodes(&mut steps, outputs, |node, next, is_known| {
            node.follow(next) || node.chain(next, is_known)
        })?;
        Ok(steps)
    }

    /// Prepares a node, unless an equal one exists.
    fn step(&mut self, lowered: &OnnxNode) -> Result<Option<StepWithNode>> {
        let node = &lowered.node;
        let given = node.input.iter();
        let given = given.map(|name| (!name.is_empty()).then(|| self.slot(name)));
        let wires = Wires {
            inputs: given.collect(),
            outputs: node.output.iter().map(|name| self.slot(name)).collect(),
        };
        if let Some(op) = Control::of(lowered, |graph| self.graph(graph))? {
            self.is_bounded = false;
            let label = node.name.clone();
            let control = ControlNode { label, op, wires };
            return Ok(Some((Step::Control(control), None)));
        }
        self.follow(node, &wires);
        let twin = Twin::of(node, &wires);
        if let Some(outputs) = twin.as_ref().and_then(|twin| self.twins.get(twin)) {
            for (name, slot) in node.output.iter().zip(outputs.clone()) {
                self.alias(name, slot);
            }
            wires.inputs.iter().flatten().for_each(|&slot| self.leave(slot));
            return Ok(None);
        }
        let outputs = wires.outputs.clone();
        let direct = DirectNode::new(node, wires, &self.constants).with_context(|| node.name.clone())?;
        let limit = self.folding.limit(direct.wires.inputs.iter().flatten());
        let inputs = direct.wires.inputs.iter();
        let inputs = inputs.map(|slot| self.constants.get(slot.as_ref()?).cloned());
        let dequantized = Dequantized::of(node, &inputs.collect::<Vec<_>>());
        let mut made = Vec::new();
        match direct.folded(&self.constants, limit)? {
            Some(folded) => {
                let inputs = direct.wires.inputs.iter().flatten();
                inputs.for_each(|&slot| self.leave(slot));
                for (name, (slot, value)) in node.output.iter().zip(folded) {
                    if self.folding.is_read(slot) {
                        let slot = self.keep(name, value.clone());
                        self.folding.count(slot, &value);
                        made.push(slot);
                    }
                }
                self.dequantized.extend(made.pop().zip(dequantized));
            }
            None => {
                self.dequantized.extend(outputs.first().copied().zip(dequantized));
                self.learn(&direct);
                self.twins.extend(
                    twin.filter(|_| direct.direct().is_pure())
                        .map(|twin| (twin, outputs)),
                );
                return Ok(Some((Step::Node(direct), Some(node.clone()))));
            }
        }
        Ok(None)
    }

    /// Stores facts about a node's outputs. Ignores invalid inputs, which [`infer`] reports.
    fn learn(&mut self, direct: &DirectNode) {
        if let Some(inputs) = direct.facts(|slot| self.fact(slot))
            && let Ok(Some(outputs)) = direct.direct().outputs(&inputs)
        {
            let outputs = direct.wires.outputs.iter().copied().zip(outputs);
            self.facts
                .extend(outputs.filter(|(_, fact)| size::admit_rank(fact.rank()).is_ok()));
        }
    }

    /// Tracks whether sizes of values depend on elements of the model's inputs.
    fn follow(&mut self, node: &Node, wires: &Wires) {
        let is_static = |slot: &Slot| self.statics.contains(slot) || self.constants.contains_key(slot);
        let mut shaping = registry::shaping_inputs(&node.op_type).filter_map(|index| wires.input(index));
        self.is_bounded &=
            !registry::has_unknown_sizes(&node.op_type) && shaping.all(|slot| is_static(&slot));
        let gives_sizes = matches!(node.op_type.as_str(), "Shape" | "Size");
        if gives_sizes || wires.inputs.iter().flatten().all(is_static) {
            self.statics.extend(&wires.outputs);
        }
    }

    /// Stores the constant `name`, and returns its slot. Small constants with equal contents share a slot.
    fn keep(&mut self, name: &str, value: Arc<Tensor>) -> Slot {
        let small = value.as_bytes().ok().filter(|bytes| bytes.len() <= SMALL);
        let key = small.map(|bytes| (value.element_type(), value.shape().into(), bytes.into()));
        let slot = match key.as_ref().and_then(|key| self.small.get(key)) {
            Some(&slot) => slot,
            None => self.slot(name),
        };
        self.small.extend(key.map(|key| (key, slot)));
        self.alias(name, slot);
        self.constants.entry(slot).or_insert(value);
        slot
    }

    fn slot(&mut self, name: &str) -> Slot {
        if let Some(&slot) = self.slots.get(name) {
            return slot;
        }
        let slot = self.new_slot();
        self.slots.insert(name.to_owned(), slot);
        slot
    }

    fn new_slot(&mut self) -> Slot {
        self.count += 1;
        Slot(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::{Duration, Instant};

    use onnx_graph::{
        Signature,
        proto::{NodeProto, TensorProto},
    };
    use onnx_tensor::prelude::*;

    use super::*;
    use crate::{
        Session, lower,
        test_models::{constant, int, ints, model, node, with},
    };
    use onnx_tensor::elements::elements;

    fn prepared(
        nodes: Vec<NodeProto>,
        dims: &[i64],
        constants: Vec<TensorProto>,
    ) -> (PreparedGraph, Session) {
        let model = model(nodes, dims, &vec![-1; dims.len()], constants);
        let signature = Signature::of(&model).unwrap();
        let lowered = lower::lower(model.graph.as_ref().unwrap(), &signature.opsets).unwrap();
        let prepared = prepare(&lowered, &signature.inputs).unwrap();
        (prepared, Session::prepare(&model, |_| Ok(())).unwrap())
    }

    #[test]
    fn weights_that_are_packed_are_not_kept_beside() {
        let nodes = vec![
            node("MatMul", &["x", "w"], "a"),
            node("MatMul", &["a", "w"], "b"),
            node("Add", &["b", "bias"], "y"),
        ];
        let constants = vec![constant("w", &[6, 6]), constant("bias", &[6])];
        let (prepared, steps) = prepared(nodes, &[-1, 6], constants.clone());
        let kept: Vec<&[usize]> = prepared.constants.values().map(|kept| kept.shape()).collect();
        assert_eq!(kept, [&[6]]);
        // A node other than the convolution also reads the weights.
        let nodes = vec![
            node("MatMul", &["x", "w"], "a"),
            node("Add", &["w", "bias"], "sum"),
            node("MatMul", &["a", "sum"], "b"),
            node("Mul", &["w", "b"], "y"),
        ];
        let (both, other) = self::prepared(nodes, &[-1, 6], constants);
        assert!(both.constants.values().any(|kept| kept.shape() == [6, 6]));
        // Numbers from -3/8 to 3/8 in steps of 1/8: sums of their products are exact.
        let eighths = |count: usize| {
            (0..count)
                .map(|at| (at % 7) as f32 / 8.0 - 0.375)
                .collect::<Vec<f32>>()
        };
        let (w, bias) = (eighths(36), eighths(6));
        let product = |a: &[f32], b: &[f32]| -> Vec<f32> {
            let sum = |at: usize| {
                (0..6)
                    .map(|term| a[at / 6 * 6 + term] * b[term * 6 + at % 6])
                    .sum()
            };
            (0..36).map(sum).collect()
        };
        let with_bias = |rows: Vec<f32>| -> Vec<f32> {
            rows.iter().zip(bias.iter().cycle()).map(|(a, b)| a + b).collect()
        };
        let x = vec![0.5f32; 36];
        let once = product(&x, &w);
        let last = product(&once, &with_bias(w.clone()));
        let expected = [
            with_bias(product(&once, &w)),
            w.iter().zip(last).map(|(w, b)| w * b).collect(),
        ];
        for (steps, expected) in [steps, other].iter().zip(expected) {
            let input = Tensor::from_shape(&[6, 6], &x).unwrap();
            let made = steps.run([input]).unwrap();
            assert_eq!(elements::<f32>(&made[0]).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_computed_twice_is_one_node() {
        let with_axis = |axis: i64, output: &str| with(node("Softmax", &["x"], output), [int("axis", axis)]);
        let nodes = vec![
            with_axis(0, "a"),
            with_axis(1, "b"),
            with_axis(1, "c"),
            node("Mul", &["b", "two"], "d"),
            node("Mul", &["c", "also_two"], "e"),
            node("RandomNormalLike", &["x"], "f"),
            node("RandomNormalLike", &["x"], "g"),
            node("Sum", &["a", "d", "e", "f", "g"], "y"),
        ];
        let number = |name: &str| TensorProto {
            raw_data: 2f32.to_le_bytes().to_vec().into(),
            ..constant(name, &[1])
        };
        let (prepared, _) = prepared(nodes, &[-1, 3], vec![number("two"), number("also_two")]);
        let operators = prepared.body.steps.iter().map(|step| match step {
            Step::Node(node) => node.direct().op_type(),
            Step::Control(_) => "",
        });
        let expected = [
            "Softmax",
            "Softmax",
            "Mul",
            "RandomNormalLike",
            "RandomNormalLike",
            "Sum",
        ];
        assert_eq!(operators.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn casts_to_the_same_type_are_none() {
        let to =
            |code: i64, input: &str, output: &str| with(node("Cast", &[input], output), [int("to", code)]);
        let nodes = vec![
            to(1, "x", "a"),
            node("Relu", &["a"], "b"),
            to(1, "b", "c"),
            to(11, "c", "d"),
            to(1, "d", "e"),
            node("Add", &["e", "c"], "y"),
        ];
        let (prepared, steps) = prepared(nodes, &[-1], vec![]);
        assert_eq!(prepared.body.steps.len(), 4);
        let made = steps.run([Tensor::vector(&[-1.0f32, 0.1])]).unwrap();
        assert_eq!(elements::<f32>(&made[0]).unwrap(), [0.0, 0.2]);
    }

    #[test]
    fn preparation_ends_with_its_time() {
        let model = model(vec![node("Relu", &["x"], "y")], &[-1], &[-1], vec![]);
        let _limit = time_limit::until(Some(Instant::now()));
        std::thread::sleep(Duration::from_millis(1));
        let error = Session::prepare(&model, |_| Ok(())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "node 'y' (Relu): preparing the model takes too long"
        );
    }

    /// Checks that folding may widen constants, such as packed weights to FP32, but may not repeat elements.
    #[test]
    fn constants_become_wider_but_not_more() {
        let mut scale = constant("scale", &[1]);
        (scale.dims, scale.raw_data) = (vec![], 0.5f32.to_le_bytes().to_vec().into());
        let weights = TensorProto {
            data_type: 3,
            raw_data: vec![3u8; 400 * 400].into(),
            ..constant("w", &[400, 400])
        };
        let nodes = vec![
            node("DequantizeLinear", &["w", "scale"], "wide"),
            node("MatMul", &["x", "wide"], "y"),
        ];
        let (wide, steps) = prepared(nodes, &[-1, 400], vec![weights, scale]);
        assert_eq!(wide.body.steps.len(), 1);
        let input = Tensor::from_shape(&[1, 400], &[1f32; 400]).unwrap();
        let made = steps.run([input]).unwrap();
        assert_eq!(elements::<f32>(&made[0]).unwrap(), [600.0; 400]);
        // Folding this `Expand` would repeat the elements.
        let sizes = TensorProto {
            data_type: 7,
            raw_data: [400i64, 400].map(i64::to_le_bytes).concat().into(),
            ..constant("sizes", &[2])
        };
        let nodes = vec![
            node("Expand", &["row", "sizes"], "many"),
            node("MatMul", &["x", "many"], "y"),
        ];
        let (many, _) = prepared(nodes, &[-1, 400], vec![constant("row", &[1, 400]), sizes]);
        assert_eq!(many.body.steps.len(), 2);
    }

    /// Returns a chain of `count` functions of the constant `c0`, whose results have names from `c1`.
    fn chain(count: usize) -> Vec<NodeProto> {
        let functions = ["Sin", "Neg"].iter().cycle();
        let nodes = functions.zip(0..count);
        let nodes = nodes.map(|(function, at)| node(function, &[&format!("c{at}")], &format!("c{}", at + 1)));
        nodes.collect()
    }

    /// Checks that all folded constants together have a limit, since a small file can describe a long chain
    /// of large constants.
    #[test]
    fn folded_constants_have_a_limit_together() {
        const COUNT: usize = 100;
        let file = || vec![constant("c0", &[1 << 18])];
        let mut nodes = chain(COUNT);
        nodes.extend((1..=COUNT).map(|at| node("Add", &["x", &format!("c{at}")], &format!("y{at}"))));
        let results: Vec<String> = (1..=COUNT).map(|at| format!("y{at}")).collect();
        nodes.push(node(
            "Max",
            &results.iter().map(String::as_str).collect::<Vec<_>>(),
            "y",
        ));
        let (all, _) = prepared(nodes, &[-1], file());
        let bytes: u64 = all.constants.values().map(|kept| size::of_value(kept)).sum();
        assert!(bytes <= (1 << 20) * (1 + 2 + 64), "{bytes} bytes of constants");
        assert!(all.constants.len() > 60, "{} constants", all.constants.len());
        // A constant without readers is dropped, so that others can be folded.
        let mut nodes = chain(COUNT);
        nodes.push(node("Add", &["x", &format!("c{COUNT}")], "y"));
        let (last, _) = prepared(nodes, &[-1], file());
        assert_eq!((last.constants.len(), last.body.steps.len()), (1, 1));
    }

    /// Checks that an input that a node reads several times counts only once toward the limit of the folded
    /// constant.
    #[test]
    fn repeated_constants_are_not_folded() {
        let nodes = vec![
            node("Sum", &["c0"; 4], "sum"),
            node("MatMul", &["c0", "c0"], "product"),
            with(node("Concat", &["c0"; 16], "many"), [int("axis", 1)]),
            node("Sum", &["sum", "product"], "both"),
            node("MatMul", &["x", "both"], "a"),
            node("MatMul", &["a", "many"], "y"),
        ];
        let (made, _) = prepared(nodes, &[-1, 128], vec![constant("c0", &[128, 128])]);
        let operators = made.body.steps.iter().map(|step| match step {
            Step::Node(node) => node.direct().op_type(),
            Step::Control(_) => "",
        });
        assert_eq!(operators.collect::<Vec<_>>(), ["Concat", "MatMul", "MatMul"]);
    }

    /// Checks a convolution whose window elements are far apart, for which the kernel unpacks the packed
    /// weights.
    #[test]
    fn packed_weights_can_be_unpacked() {
        let convolution = with(
            node("Conv", &["x", "w"], "y"),
            [ints("dilations", &[200, 200]), ints("pads", &[200; 4])],
        );
        let weights = constant("w", &[2, 1, 3, 3]);
        let (prepared, steps) = prepared(vec![convolution], &[1, 1, -1, -1], vec![weights]);
        assert!(prepared.constants.is_empty());
        let input = Tensor::from_shape(&[1, 1, 2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        let made = steps.run([input]).unwrap();
        // Only one element of each window is in the image; all others are in the padding.
        let expected = [1.0 / 8.0, 3.0 / 8.0].map(|weight| [1.0, 2.0, 3.0, 4.0].map(|x: f32| weight * x));
        assert_eq!(elements::<f32>(&made[0]).unwrap(), expected.as_flattened());
    }
}
