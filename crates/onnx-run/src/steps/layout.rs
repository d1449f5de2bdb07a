//! Cancels Transposes. TensorFlow exports have a Transpose before and after each convolution, with
//! element-wise nodes in between.
//!
//! A Transpose is moved past nodes that do not depend on the order of the axes, until it reaches its inverse.
//! Transposes that move through common nodes form a group. A group is rewritten only if this removes
//! Transposes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use onnx_kernels::shape::transpose_of;
use onnx_tensor::{
    elements::elements,
    node::{Attribute, Attributes, Node},
    packs::Packs,
    prelude::*,
    size, time_limit,
};

use crate::steps::{
    body::Step,
    direct::DirectNode,
    fusion_graph::StepWithNode,
    values::{Slot, Wires},
};

/// The constants and slots that a rewrite may add to.
pub(crate) struct Space<'s> {
    pub(crate) constants: &'s mut HashMap<Slot, Arc<Tensor>>,
    /// The store of packed weights, whose memory limit also covers copied constants.
    pub(crate) packs: &'s mut Packs,
    /// The number of slots.
    pub(crate) slots: &'s mut usize,
}

impl Space<'_> {
    pub(super) fn new_slot(&mut self) -> Slot {
        *self.slots += 1;
        Slot(*self.slots - 1)
    }
}

/// Rewrites the steps of a graph, and redirects outputs to equal values. `rank` returns the rank of a value,
/// if known.
///
/// # Errors
/// Returns an error if memory is exhausted, or the time limit of the preparation has passed.
pub(crate) fn without_transposes(
    steps: Vec<StepWithNode>,
    outputs: &mut [Slot],
    rank: impl Fn(Slot) -> Option<usize>,
    space: &mut Space<'_>,
) -> Result<Vec<StepWithNode>> {
    let is_transpose =
        |(_, node): &&StepWithNode| node.as_ref().is_some_and(|node| node.op_type == "Transpose");
    if steps.iter().filter(is_transpose).count() < 2 {
        return Ok(steps);
    }
    let mut plan = Plan {
        moved: HashMap::new(),
        groups: Vec::new(),
        changes: Vec::with_capacity(steps.len()),
        constants: TurnedConstants::default(),
        kept: HashSet::new(),
        read: outputs.iter().copied().collect(),
    };
    for (at, (step, node)) in steps.iter().enumerate() {
        time_limit::check()?;
        let change = match (step, node) {
            (Step::Node(step), Some(node)) => plan.change(at, node, &step.wires, &rank, space)?,
            _ => None,
        };
        if change.is_none() {
            let set = match step {
                Step::Node(_) => &mut plan.read,
                // Subgraphs refer to the values by these slots, so the slots must be kept.
                Step::Control(_) => &mut plan.kept,
            };
            set.extend(step.reads());
        }
        plan.changes.push(change);
    }
    plan.count();
    for output in outputs {
        *output = plan.resolved(*output);
    }
    plan.rewritten(steps, space)
}

/// A value that is a transpose of another value.
#[derive(Clone)]
struct MovedValue {
    source: Slot,
    order: ShortVec<usize>,
    group: usize,
    /// The step of the Transpose that produces the value; messages name this step.
    origin: usize,
}

impl MovedValue {
    fn is_same(&self) -> bool {
        self.order.iter().enumerate().all(|(at, &axis)| at == axis)
    }
}

/// The change that the rewrite makes to a step.
enum Change {
    /// The step is a Transpose, which is removed. Its output is a [`MovedValue`].
    Moved,
    /// The step is a node that moves before the Transpose, with these inputs and attributes.
    Computed {
        inputs: Vec<Option<Slot>>,
        attribute: Vec<Attribute>,
    },
}

struct Group {
    parent: usize,
    /// Number of Transposes before the rewrite.
    before: usize,
    /// Number of Transposes after the rewrite.
    after: usize,
}

struct Plan {
    moved: HashMap<Slot, MovedValue>,
    groups: Vec<Group>,
    changes: Vec<Option<Change>>,
    constants: TurnedConstants,
    /// Values that subgraphs read, which must keep their slots.
    kept: HashSet<Slot>,
    /// Values that unchanged steps read.
    read: HashSet<Slot>,
}

/// Kinds of elementwise nodes, by the inputs that may be constants with several elements.
pub(super) enum Elementwise {
    /// No input: one input is transposed, and the others are scalars.
    Of,
    /// All inputs, which are broadcast together.
    Broadcast,
    /// All inputs, which are concatenated along an axis.
    Joined,
    /// The second input, which contains padding sizes for both ends of each axis.
    Padded,
}

impl Elementwise {
    pub(super) fn of(node: &Node) -> Option<Self> {
        Some(match node.op_type.as_str() {
            "Abs" | "Cast" | "Ceil" | "Celu" | "Clip" | "Elu" | "Erf" | "Exp" | "Floor" | "Gelu"
            | "HardSigmoid" | "HardSwish" | "LeakyRelu" | "Log" | "Mish" | "Neg" | "Not" | "Reciprocal"
            | "Relu" | "Round" | "Selu" | "Sigmoid" | "Sign" | "Softplus" | "Softsign" | "Sqrt" | "Tanh"
            | "ThresholdedRelu" => Self::Of,
            // Old operator sets declare broadcast axes and paddings in attributes, and slopes by channel; such
            // nodes are not moved.
            "Add" | "Div" | "Max" | "Min" | "Mul" | "Pow" | "PRelu" | "Sub" | "Sum"
                if node.attribute.is_empty() && node.opset >= 7 =>
            {
                Self::Broadcast
            }
            "Concat" => Self::Joined,
            "Pad" if node.opset >= 11 => Self::Padded,
            _ => return None,
        })
    }

    /// Returns the attributes of a node that moves before a Transpose by `order`.
    pub(super) fn attributes(&self, node: &Node, order: &[usize]) -> Option<Vec<Attribute>> {
        let mut attributes = node.attribute.clone();
        if matches!(self, Self::Joined) {
            let axis = attributes.iter_mut().find(|attribute| attribute.name == "axis")?;
            let place = if axis.i < 0 {
                axis.i + order.len() as i64
            } else {
                axis.i
            };
            axis.i = *order.get(usize::try_from(place).ok()?)? as i64;
        }
        Some(attributes)
    }
}

impl Plan {
    /// Returns the value in `slot` if it is the transpose of another value; `None` also if its Transposes
    /// cancel.
    fn turned_value(&self, slot: Slot) -> Option<&MovedValue> {
        self.moved.get(&slot).filter(|moved| !moved.is_same())
    }

    fn change(
        &mut self,
        at: usize,
        node: &Node,
        wires: &Wires,
        rank: &impl Fn(Slot) -> Option<usize>,
        space: &mut Space<'_>,
    ) -> Result<Option<Change>> {
        let &[output] = &*wires.outputs else {
            return Ok(None);
        };
        if node.op_type == "Transpose" {
            return Ok(self.transpose(at, node, wires, rank).map(|moved| {
                self.moved.insert(output, moved);
                Change::Moved
            }));
        }
        let Some(kind) = Elementwise::of(node) else {
            return Ok(None);
        };
        let turned = wires.inputs.iter().flatten();
        let turned: Vec<&MovedValue> = turned.filter_map(|&slot| self.turned_value(slot)).collect();
        let Some(first) = turned.first() else {
            return Ok(None);
        };
        if turned.iter().any(|other| other.order != first.order) {
            return Ok(None);
        }
        let (order, origin) = (first.order.clone(), first.origin);
        let groups: Vec<usize> = turned.iter().map(|moved| moved.group).collect();
        let Some(inputs) = self.inputs(&kind, wires, &order, space)? else {
            return Ok(None);
        };
        let Some(attribute) = kind.attributes(node, &order) else {
            return Ok(None);
        };
        let group = groups.into_iter().reduce(|one, other| self.join(one, other));
        let moved = MovedValue {
            source: space.new_slot(),
            order,
            group: group.unwrap_or_default(),
            origin,
        };
        self.moved.insert(output, moved);
        Ok(Some(Change::Computed { inputs, attribute }))
    }

    /// Returns the output of a Transpose as a transpose of another value.
    fn transpose(
        &mut self,
        at: usize,
        node: &Node,
        wires: &Wires,
        rank: &impl Fn(Slot) -> Option<usize>,
    ) -> Option<MovedValue> {
        let input = wires.input(0)?;
        let rank = match self.turned_value(input) {
            Some(moved) => moved.order.len(),
            // A rank that does not match `perm` is not an error here; the run reports it.
            None => rank(input)?,
        };
        let order = Attributes(node).ints("perm");
        let order: Option<ShortVec<usize>> = match order.is_empty() {
            true => Some((0..rank).rev().collect()),
            false => order.iter().map(|&axis| usize::try_from(axis).ok()).collect(),
        };
        let order =
            order.filter(|order| order.len() == rank && (0..rank).all(|axis| order.contains(&axis)))?;
        let moved = match self.turned_value(input) {
            Some(before) => MovedValue {
                source: before.source,
                order: order.iter().map(|&axis| before.order[axis]).collect(),
                group: before.group,
                origin: at,
            },
            None => {
                self.groups.push(Group {
                    parent: self.groups.len(),
                    before: 0,
                    after: 0,
                });
                MovedValue {
                    source: input,
                    order,
                    group: self.groups.len() - 1,
                    origin: at,
                }
            }
        };
        let group = self.root(moved.group);
        self.groups[group].before += 1;
        Some(moved)
    }

    /// Returns the inputs of a node that moves before a Transpose by `order`.
    fn inputs(
        &mut self,
        kind: &Elementwise,
        wires: &Wires,
        order: &[usize],
        space: &mut Space<'_>,
    ) -> Result<Option<Vec<Option<Slot>>>> {
        let mut inputs = Vec::with_capacity(wires.inputs.len());
        for (place, slot) in wires.inputs.iter().enumerate() {
            let Some(slot) = *slot else {
                inputs.push(None);
                continue;
            };
            let source = match self.turned_value(slot) {
                Some(moved) => Some(moved.source),
                None => self.constants.of(kind, place, slot, order, space)?,
            };
            let Some(source) = source else {
                return Ok(None);
            };
            inputs.push(Some(source));
        }
        Ok(Some(inputs))
    }

    fn root(&mut self, group: usize) -> usize {
        let mut root = group;
        while self.groups[root].parent != root {
            let next = self.groups[root].parent;
            self.groups[root].parent = self.groups[next].parent;
            root = next;
        }
        root
    }

    fn join(&mut self, one: usize, other: usize) -> usize {
        let (one, other) = (self.root(one), self.root(other));
        if one != other {
            self.groups[other].parent = one;
            self.groups[one].before += self.groups[other].before;
        }
        one
    }

    /// Returns whether a moved value must still be computed in its original axis order.
    fn is_made(&self, slot: Slot, moved: &MovedValue) -> bool {
        self.kept.contains(&slot) || (!moved.is_same() && self.read.contains(&slot))
    }

    /// Counts the remaining Transposes of each group.
    fn count(&mut self) {
        let made = self
            .moved
            .iter()
            .filter(|(slot, moved)| self.is_made(**slot, moved));
        let made: Vec<usize> = made.map(|(_, moved)| moved.group).collect();
        for group in made {
            let group = self.root(group);
            self.groups[group].after += 1;
        }
    }

    fn is_worth(&mut self, group: usize) -> bool {
        let group = self.root(group);
        self.groups[group].after < self.groups[group].before
    }

    /// Returns the slot of the value that equals `slot` because its Transposes cancel; otherwise `slot`.
    fn resolved(&mut self, mut slot: Slot) -> Slot {
        while let Some(moved) = self.moved.get(&slot)
            && moved.is_same()
            && !self.kept.contains(&slot)
        {
            let (group, source) = (moved.group, moved.source);
            if !self.is_worth(group) {
                break;
            }
            slot = source;
        }
        slot
    }

    /// Applies the changes that remove Transposes. Rebuilds changed nodes, since a kernel may have absorbed a
    /// different constant.
    fn rewritten(mut self, steps: Vec<StepWithNode>, space: &Space<'_>) -> Result<Vec<StepWithNode>> {
        let names: Vec<Option<Node>> = steps.iter().map(|(_, node)| node.clone()).collect();
        let changes = std::mem::take(&mut self.changes);
        let mut made = Vec::with_capacity(steps.len());
        for ((step, node), change) in steps.into_iter().zip(changes) {
            let (Step::Node(direct), Some(node)) = (&step, &node) else {
                made.push((step, node));
                continue;
            };
            let output = direct.wires.outputs.first().copied();
            let moved = change.and_then(|change| {
                let output = output?;
                let group = self.moved.get(&output)?.group;
                self.is_worth(group).then_some((output, change))
            });
            let Some((output, change)) = moved else {
                let inputs: Vec<_> = direct
                    .wires
                    .inputs
                    .iter()
                    .map(|slot| slot.map(|slot| self.resolved(slot)))
                    .collect();
                made.push(match inputs == direct.wires.inputs {
                    true => (step, Some(node.clone())),
                    false => remade(node.clone(), inputs, direct.wires.outputs.clone(), space)?,
                });
                continue;
            };
            let MovedValue {
                source,
                order,
                origin,
                ..
            } = self.moved[&output].clone();
            if let Change::Computed { inputs, attribute } = change {
                let inputs = inputs
                    .into_iter()
                    .map(|slot| slot.map(|slot| self.resolved(slot)));
                let node = Node {
                    attribute,
                    ..node.clone()
                };
                made.push(remade(node, inputs.collect(), vec![source], space)?);
            }
            if self.is_made(output, &self.moved[&output]) {
                let node = Node {
                    attribute: vec![Attribute {
                        name: "perm".to_owned(),
                        ints: order.iter().map(|&axis| axis as i64).collect(),
                        ..Attribute::default()
                    }],
                    ..names[origin].clone().unwrap_or_default()
                };
                made.push(remade(
                    node,
                    vec![Some(self.resolved(source))],
                    vec![output],
                    space,
                )?);
            }
        }
        Ok(made)
    }
}

/// Constants with permuted axes.
#[derive(Default)]
pub(super) struct TurnedConstants {
    /// The permuted constants, by the original slot and the order.
    made: HashMap<(Slot, ShortVec<usize>), Slot>,
}

impl TurnedConstants {
    /// Returns a constant with its axes permuted for a node that moves before the Transpose.
    pub(super) fn of(
        &mut self,
        kind: &Elementwise,
        place: usize,
        slot: Slot,
        order: &[usize],
        space: &mut Space<'_>,
    ) -> Result<Option<Slot>> {
        let Some(constant) = space.constants.get(&slot).cloned() else {
            return Ok(None);
        };
        let fits = match kind {
            Elementwise::Padded if place == 1 => {
                constant.shape() == [2 * order.len()] && constant.element_type() == ElementType::I64
            }
            Elementwise::Padded if place > 2 => false,
            Elementwise::Of | Elementwise::Padded => return Ok((constant.rank() == 0).then_some(slot)),
            Elementwise::Broadcast => constant.rank() <= order.len(),
            Elementwise::Joined => constant.rank() == order.len(),
        };
        if !fits {
            return Ok(None);
        }
        if constant.rank() == 0 {
            return Ok(Some(slot));
        }
        let key = (slot, ShortVec::from(order));
        if let Some(&turned) = self.made.get(&key) {
            return Ok(Some(turned));
        }
        if !space.packs.admit(size::of_value(&constant)) {
            return Ok(None);
        }
        let turned = match kind {
            Elementwise::Padded => pads(&constant, order)?,
            _ => turned(&constant, order)?,
        };
        let made = space.new_slot();
        space.constants.insert(made, turned);
        self.made.insert(key, made);
        Ok(Some(made))
    }
}

/// Rebuilds a node with these inputs and outputs.
pub(super) fn remade(
    node: Node,
    inputs: Vec<Option<Slot>>,
    outputs: Vec<Slot>,
    space: &Space<'_>,
) -> Result<StepWithNode> {
    let direct = DirectNode::new(&node, Wires { inputs, outputs }, space.constants)?;
    Ok((Step::Node(direct), Some(node)))
}

/// Returns the constant whose transpose by `order` is `constant`. Its rank is `order.len()`.
fn turned(constant: &Arc<Tensor>, order: &[usize]) -> Result<Arc<Tensor>> {
    let mut shape: ShortVec<usize> = smallvec![1; order.len() - constant.rank()];
    shape.extend_from_slice(constant.shape());
    let mut inverse = vec![0; order.len()];
    for (place, &axis) in order.iter().enumerate() {
        inverse[axis] = place as i64;
    }
    let perm = Attribute {
        name: "perm".to_owned(),
        ints: inverse,
        ..Attribute::default()
    };
    let transpose = transpose_of(&Node {
        attribute: vec![perm],
        ..Node::default()
    })?;
    let whole = Arc::new((**constant).clone().into_shape(&shape)?);
    let mut made = transpose.run(&mut smallvec![whole])?;
    made.pop().context("a Transpose without a result")
}

/// Permutes padding sizes of both ends of axes back to the order before the Transpose.
fn pads(sizes: &Tensor, order: &[usize]) -> Result<Arc<Tensor>> {
    let sizes = elements::<i64>(sizes)?;
    let mut made = vec![0; sizes.len()];
    for (place, &axis) in order.iter().enumerate() {
        made[axis] = sizes[place];
        made[axis + order.len()] = sizes[place + order.len()];
    }
    Ok(Arc::new(Tensor::vector(&made)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::proto::{NodeProto, TensorProto};

    use super::*;
    use crate::{
        Session,
        test_models::{constant, int, integers, ints, model, node, with},
    };

    const LAST: [i64; 4] = [0, 2, 3, 1];
    const FIRST: [i64; 4] = [0, 3, 1, 2];

    fn transpose(order: [i64; 4], input: &str, output: &str) -> NodeProto {
        with(node("Transpose", &[input], output), [ints("perm", &order)])
    }

    fn concat(axis: i64, inputs: &[&str], output: &str) -> NodeProto {
        with(node("Concat", inputs, output), [int("axis", axis)])
    }

    fn session(nodes: Vec<NodeProto>, constants: &[TensorProto]) -> Session {
        let model = model(nodes, &[-1, -1, -1, 3], &[-1; 4], constants.to_vec());
        Session::prepare(&model, |_| Ok(())).unwrap()
    }

    fn operators(steps: &Session) -> Vec<&str> {
        let operators = steps.body.steps.iter().map(|step| match step {
            Step::Node(node) => node.direct().op_type(),
            Step::Control(_) => "",
        });
        operators.collect()
    }

    /// Inserts a Reshape after each Transpose, so that no Transpose can be moved.
    fn apart(nodes: &[NodeProto]) -> Vec<NodeProto> {
        let mut all = Vec::new();
        for node in nodes {
            let output = node.output[0].clone();
            if node.op_type != "Transpose" {
                all.push(node.clone());
                continue;
            }
            let (made, shape) = (format!("{output}~"), format!("{output}~shape"));
            all.push(NodeProto {
                output: vec![made.clone()],
                ..node.clone()
            });
            all.push(self::node("Shape", &[&made], &shape));
            all.push(self::node("Reshape", &[&made, &shape], &output));
        }
        all
    }

    /// Checks that the operators after the rewrite are `expected`, and that the outputs equal those without
    /// the rewrite.
    #[track_caller]
    fn expect(nodes: &[NodeProto], constants: &[TensorProto], expected: &[&str]) {
        let (one, other) = (
            session(nodes.to_vec(), constants),
            session(apart(nodes), constants),
        );
        assert_eq!(operators(&one), expected);
        let numbers: Vec<f32> = (0..2 * 5 * 4 * 3)
            .map(|at| (at * 7 % 23) as f32 / 4.0 - 2.0)
            .collect();
        let input = Tensor::from_shape(&[2, 5, 4, 3], &numbers).unwrap();
        let (made, wanted) = (one.run([input.clone()]).unwrap(), other.run([input]).unwrap());
        assert_eq!(made[0].shape(), wanted[0].shape());
        assert_eq!(made[0], wanted[0]);
    }

    #[test]
    fn transposes_meet_their_inverse_behind_elementwise_nodes() {
        let nodes = [
            transpose(FIRST, "x", "a"),
            node("MaxPool", &["a"], "b"),
            transpose(LAST, "b", "c"),
            node("Mul", &["scales", "c"], "d"),
            node("Relu", &["d"], "e"),
            node("Clip", &["e", "", "most"], "f"),
            node("Sub", &["f", "image"], "g"),
            transpose(FIRST, "g", "h"),
            node("MaxPool", &["h"], "i"),
            transpose(LAST, "i", "y"),
        ];
        let pooled = |mut nodes: Vec<NodeProto>| {
            for pool in nodes.iter_mut().filter(|node| node.op_type == "MaxPool") {
                pool.attribute = vec![ints("kernel_shape", &[2, 1])];
            }
            nodes
        };
        let most = TensorProto {
            dims: vec![],
            raw_data: 0.5f32.to_le_bytes().to_vec().into(),
            ..constant("most", &[1])
        };
        let constants = [constant("scales", &[3]), constant("image", &[4, 4, 3]), most];
        expect(
            &pooled(nodes.to_vec()),
            &constants,
            &[
                "Transpose",
                "MaxPool",
                "Mul",
                "Relu",
                "Clip",
                "Sub",
                "MaxPool",
                "Transpose",
            ],
        );
    }

    #[test]
    fn sums_of_two_ways_concatenations_and_pads_are_moved() {
        let ways = [
            node("Relu", &["x"], "r"),
            transpose(LAST, "x", "a"),
            transpose(LAST, "r", "b"),
            node("Add", &["a", "b"], "c"),
            concat(-1, &["c", "b", "a"], "d"),
            node("Pad", &["d", "pads"], "e"),
            transpose(FIRST, "e", "y"),
        ];
        let constants = [integers("pads", &[0, 1, 2, 3, 0, 4, 5, 6])];
        expect(&ways, &constants, &["Relu", "Add", "Concat", "Pad"]);
    }

    #[test]
    fn transposes_stay_where_no_fewer_are_left() {
        // Other nodes read the value before the Transpose, and the value after it.
        let both = [
            transpose(LAST, "x", "a"),
            node("Relu", &["a"], "b"),
            node("Shape", &["a"], "s"),
            node("Expand", &["b", "s"], "c"),
            transpose(FIRST, "b", "d"),
            transpose(LAST, "d", "e"),
            node("Add", &["e", "c"], "y"),
        ];
        let found = session(both.to_vec(), &[]);
        assert!(
            operators(&found).starts_with(&["Transpose", "Relu"]),
            "{:?}",
            operators(&found)
        );
        // The permutations of the two Transposes are not inverses.
        let other = [
            transpose(LAST, "x", "a"),
            transpose(FIRST, "x", "b"),
            node("Add", &["a", "image"], "c"),
            node("Mul", &["b", "image"], "d"),
            concat(0, &["c", "d"], "y"),
        ];
        let found = session(other.to_vec(), &[constant("image", &[1])]);
        assert_eq!(
            operators(&found),
            ["Transpose", "Transpose", "Add", "Mul", "Concat"]
        );
    }

    /// Checks that a Transpose whose permutation has the wrong rank stays in the graph, so that the run
    /// reports it.
    #[test]
    fn an_order_of_other_axes_is_still_refused() {
        let nodes = vec![
            node("Flatten", &["x"], "a"),
            transpose(LAST, "a", "b"),
            transpose(FIRST, "b", "c"),
            node("Relu", &["c"], "y"),
        ];
        let found = session(nodes, &[]);
        assert_eq!(operators(&found), ["Flatten", "Transpose", "Transpose", "Relu"]);
        let input = Tensor::zero::<f32>(&[2, 5, 4, 3]).unwrap();
        let error = found.run([input]).unwrap_err();
        assert!(
            error.to_string().contains("an order of 4 axes for 2 dimensions"),
            "{error}"
        );
    }
}
