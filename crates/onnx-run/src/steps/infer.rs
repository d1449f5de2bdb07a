//! Infers facts about a model's values before it runs: types, and the dimensions that do not depend on the
//! request.
//!
//! Operators infer their outputs in the same way as in a run, with symbolic dimensions for unknown sizes.
//! Integers computed from dimensions, such as the shape input of a `Reshape`, are tracked through operators
//! that move, add or multiply them: the operators compute them as FP64, with NaN for unknown ones.

use std::{collections::HashMap, sync::Arc};

use onnx_graph::{Dim as FileDim, Port};
use onnx_tensor::prelude::*;

use crate::computed;
use crate::steps::{
    body::{Body, Control, Step},
    direct::DirectNode,
    values::Slot,
};
use onnx_tensor::shapes;
use onnx_tensor::{faults::Unsupported, operator::Fact, room::Room, size, time_limit};

/// Maximum number of tracked elements of a value.
const MOST: usize = 1 << 12;

/// Maximum total size of the tracked elements of all values, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// The facts inferred about values, keyed by the slot of the value.
pub(crate) struct KnownFacts<'c> {
    constants: &'c HashMap<Slot, Arc<Tensor>>,
    facts: HashMap<Slot, Fact>,
    /// Whether the current nodes are in a branch, which does not run for every request.
    is_in_branch: bool,
    /// Bytes of elements that can still be tracked.
    left: u64,
}

/// The inputs whose elements a node moves, repeats, adds or multiplies: a list of indices, or all.
enum Numbers {
    Of(&'static [usize]),
    OfAll,
}

impl Numbers {
    fn of(op_type: &str) -> Option<Self> {
        Some(match op_type {
            "Where" => Self::Of(&[1, 2]),
            "Cast" | "Expand" | "Flatten" | "Gather" | "Reshape" | "Slice" | "Split" | "Squeeze" | "Tile"
            | "Transpose" | "Unsqueeze" | "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => {
                Self::Of(&[0])
            }
            "Add" | "Concat" | "Sub" | "Mul" | "Div" | "Min" | "Max" | "Neg" => Self::OfAll,
            _ => return None,
        })
    }

    fn are_of(&self, place: usize) -> bool {
        match self {
            Self::Of(places) => places.contains(&place),
            Self::OfAll => true,
        }
    }
}

/// Returns the facts that a file declares for its graph's inputs.
pub(crate) fn declared(slots: &[Slot], inputs: &[Port]) -> HashMap<Slot, Fact> {
    let mut named: HashMap<&str, Dim> = HashMap::new();
    let facts = slots.iter().zip(inputs).filter_map(|(&slot, port)| {
        let dims = port.dims.as_ref()?.iter().map(|dim| match dim {
            FileDim::Fixed(size) => size.to_dim(),
            FileDim::Named(name) => *named.entry(name).or_insert_with(Dim::unknown),
            FileDim::Free => Dim::unknown(),
        });
        Some((slot, Fact::new(computed(port.element_type)?, dims)))
    });
    facts.collect()
}

impl<'c> KnownFacts<'c> {
    /// Infers facts from the inputs of a model through its graph.
    ///
    /// # Errors
    /// Returns an error if a node is unsupported for all sizes, or for the only sizes that it can have.
    pub(crate) fn of(
        body: &Body,
        inputs: &[Port],
        constants: &'c HashMap<Slot, Arc<Tensor>>,
    ) -> Result<Self> {
        let mut known = Self {
            constants,
            facts: declared(&body.inputs, inputs),
            is_in_branch: false,
            left: MOST_BYTES,
        };
        known.walk(body)?;
        Ok(known)
    }

    pub(crate) fn fact(&self, slot: Slot) -> Option<Fact> {
        match self.constants.get(&slot) {
            Some(constant) => Fact::of_values(std::slice::from_ref(constant)).pop(),
            None => self.facts.get(&slot).cloned(),
        }
    }

    fn walk(&mut self, body: &Body) -> Result<()> {
        for step in &body.steps {
            time_limit::check()?;
            match step {
                Step::Node(node) => self.node(node)?,
                Step::Control(node) => {
                    if let Control::If { then, other } = &node.op {
                        let is_in_branch = std::mem::replace(&mut self.is_in_branch, true);
                        self.walk(then)?;
                        self.walk(other)?;
                        self.is_in_branch = is_in_branch;
                        let branches = then.outputs.iter().zip(&other.outputs);
                        for ((&then, &other), &output) in branches.zip(&node.wires.outputs) {
                            if let Some(fact) = self.either(then, other) {
                                self.facts.insert(output, fact);
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the facts that two values share, such as the results of two branches.
    fn either(&self, one: Slot, other: Slot) -> Option<Fact> {
        let (one, other) = (self.fact(one)?, self.fact(other)?);
        if one.element_type != other.element_type || one.rank() != other.rank() {
            return None;
        }
        let dims = one.shape.iter().zip(&other.shape);
        let dims = dims.map(|(one, other)| if one == other { *one } else { Dim::unknown() });
        Some(Fact::new(one.element_type, dims))
    }

    fn node(&mut self, node: &DirectNode) -> Result<()> {
        let Some(inputs) = node.facts(|slot| self.fact(slot)) else {
            return Ok(());
        };
        let mut outputs = match self.outputs(node, &inputs) {
            Ok(outputs) => outputs,
            Err(error)
                if is_unsupported(&error) || !self.is_in_branch && inputs.iter().all(has_known_shape) =>
            {
                return Err(error.context(node.label().to_owned()));
            }
            // The error is ignored, since this node may never run with these sizes.
            Err(error) => {
                tracing::debug!(node = node.label(), "{error:#}");
                None
            }
        };
        outputs.iter_mut().flatten().for_each(|output| self.bound(output));
        let slots = node.wires.outputs.iter().copied();
        self.facts.extend(slots.zip(outputs.into_iter().flatten()));
        Ok(())
    }

    /// Removes the tracked elements of a fact if the tracked elements of all values together would take too
    /// much memory.
    fn bound(&mut self, fact: &mut Fact) {
        let tracked = fact.constant.iter().chain(&fact.sizes);
        let bytes = tracked.map(|value| size::of_value(value)).sum();
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => (fact.constant, fact.sizes) = (None, None),
        }
    }

    fn outputs(&self, node: &DirectNode, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        if let Some(folded) = self.folded(node, inputs) {
            return Ok(Some(folded));
        }
        let Some(mut outputs) = node.direct().outputs(inputs)? else {
            return Ok(None);
        };
        outputs.iter().try_for_each(admit)?;
        if inputs.iter().any(|input| input.sizes.is_some())
            && let Some(numbers) = followed(node, inputs)
        {
            // Only integers are tracked: for floats, rounding would also have to be tracked.
            let whole = outputs.iter_mut().zip(numbers);
            let whole = whole
                .filter(|(output, _)| matches!(output.element_type, ElementType::I32 | ElementType::I64));
            whole.for_each(|(output, numbers)| learn(output, numbers));
        }
        Ok(Some(outputs))
    }

    /// Computes the outputs of a node whose inputs are small constants.
    fn folded(&self, node: &DirectNode, inputs: &[Fact]) -> Option<Vec<Fact>> {
        let values: Option<ShortVec<Arc<Tensor>>> =
            inputs.iter().map(|input| input.constant.clone()).collect();
        let mut values = values.filter(|values| {
            let elements = values.iter().map(|value| value.len()).sum::<usize>();
            node.direct().is_pure() && !values.is_empty() && elements <= MOST
        })?;
        let made = size::limited(8 * MOST as u64, || {
            node.direct().run(&mut values, &mut Room::new())
        })
        .ok()?;
        Some(Fact::of_values(&made))
    }
}

fn is_unsupported(error: &Error) -> bool {
    error
        .chain()
        .any(<dyn std::error::Error + 'static>::is::<Unsupported>)
}

fn has_known_shape(fact: &Fact) -> bool {
    shapes::known(&fact.shape).is_some()
}

/// Refuses an output that is too large, or whose rank is too high, in every run.
fn admit(output: &Fact) -> Result<()> {
    size::admit_rank(output.rank())?;
    match shapes::known(&output.shape) {
        Some(shape) => size::admit_size(output.element_type, &shape).map(drop),
        None => Ok(()),
    }
}

/// Computes the tracked numbers of the outputs from those of the inputs.
fn followed(node: &DirectNode, inputs: &[Fact]) -> Option<Vec<Arc<Tensor>>> {
    let op_type = node.direct().op_type();
    let numbers = Numbers::of(op_type)?;
    if op_type == "Cast" {
        return Some(vec![inputs[0].sizes.clone()?]);
    }
    let is_small = |input: &Fact| {
        let count = input
            .shape
            .iter()
            .map(onnx_tensor::Size::to_usize)
            .product::<Option<usize>>();
        count.is_some_and(|count| count <= MOST)
    };
    if !inputs.iter().all(is_small) {
        return None;
    }
    let given = inputs
        .iter()
        .enumerate()
        .map(|(place, input)| match (&input.constant, &input.sizes) {
            (Some(constant), _) if numbers.are_of(place) => {
                Some(constant.cast_to::<f64>().ok()?.into_owned().into_arc())
            }
            (Some(constant), _) => Some(constant.clone()),
            (None, Some(sizes)) if numbers.are_of(place) => Some(sizes.clone()),
            _ => None,
        });
    let mut given: ShortVec<Arc<Tensor>> = given.collect::<Option<_>>()?;
    let mut made = size::limited(8 * MOST as u64, || {
        node.direct().run(&mut given, &mut Room::new())
    })
    .ok()?;
    if op_type == "Div" {
        for quotient in &mut made {
            let mut rounded = (**quotient).clone();
            rounded
                .as_slice_mut::<f64>()
                .ok()?
                .iter_mut()
                .for_each(|number| *number = number.trunc());
            *quotient = Arc::new(rounded);
        }
    }
    Some(made.into_vec())
}

/// Adds tracked numbers to an output's fact: as a constant if all are known.
fn learn(output: &mut Fact, numbers: Arc<Tensor>) {
    let is_known = numbers
        .as_slice::<f64>()
        .map(|numbers| numbers.iter().all(|number| number.is_finite()));
    let shape = numbers.shape().iter().map(ToDim::to_dim).collect();
    // The shape of the tracked tensor is exact, so it replaces the inferred shape.
    output.shape = shape;
    match numbers.cast_to_type(output.element_type) {
        Ok(constant) if is_known.unwrap_or(false) => {
            output.constant = Some(constant.into_owned().into_arc());
        }
        _ => output.sizes = Some(numbers),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::{
        Signature,
        proto::{NodeProto, TensorProto},
    };

    use super::*;
    use crate::{
        Session, lower,
        steps::prepare,
        test_models::{int, integers, model, node, with},
    };

    /// Checks that the tracked elements of all values have a common limit, since a small file can describe a
    /// long chain of tracked shapes.
    #[test]
    fn tracked_elements_have_a_limit_together() {
        const COUNT: usize = 3000;
        let mut nodes = vec![node("Shape", &["x"], "s"), node("Expand", &["s", "many"], "e0")];
        let steps = (0..COUNT).map(|at| node("Add", &[&format!("e{at}"), "one"], &format!("e{}", at + 1)));
        nodes.extend(steps);
        nodes.push(with(node("Cast", &[&format!("e{COUNT}")], "y"), [int("to", 1)]));
        let constants = vec![integers("many", &[MOST as i64]), integers("one", &[1])];
        let model = model(nodes, &[-1], &[-1], constants);
        let signature = Signature::of(&model).unwrap();
        let lowered = lower::lower(model.graph.as_ref().unwrap(), &signature.opsets).unwrap();
        let prepared = prepare::prepare(&lowered, &signature.inputs).unwrap();
        let known = KnownFacts::of(&prepared.body, &signature.inputs, &prepared.constants).unwrap();
        let tracked = known.facts.values().filter_map(|fact| fact.sizes.as_ref());
        let bytes: u64 = tracked.map(|numbers| size::of_value(numbers)).sum();
        assert!(bytes <= MOST_BYTES && bytes > MOST_BYTES / 2, "{bytes} bytes");
    }

    /// Returns the output's dimensions, `None` for each unknown one, if the rank is known.
    fn dims(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> Option<Vec<Option<i64>>> {
        let model = model(nodes, &[-1, 6], &[-1, -1, -1], constants);
        let steps = Session::prepare(&model, |_| Ok(())).unwrap();
        let output = steps.outputs().next().unwrap()?;
        Some(output.shape.iter().map(onnx_tensor::Size::to_i64).collect())
    }

    /// Infers the shape of `x` reshaped to [rows, 2, rest], where `between` computes `rest`.
    fn reshaped(between: Vec<NodeProto>, constants: Vec<TensorProto>) -> Option<Vec<Option<i64>>> {
        let mut nodes = vec![
            node("Shape", &["x"], "shape"),
            node("Gather", &["shape", "first"], "rows"),
            node("Gather", &["shape", "second"], "six"),
        ];
        nodes.extend(between);
        nodes.push(with(
            node("Concat", &["rows", "two", "rest"], "sizes"),
            [int("axis", 0)],
        ));
        nodes.push(node("Reshape", &["x", "sizes"], "y"));
        let places = [
            integers("first", &[0]),
            integers("second", &[1]),
            integers("two", &[2]),
        ];
        dims(nodes, [places.to_vec(), constants].concat())
    }

    #[test]
    fn numbers_made_of_dimensions_are_followed() {
        let halved = vec![node("Div", &["six", "two"], "rest")];
        assert_eq!(reshaped(halved, vec![]), Some(vec![None, Some(2), Some(3)]));
        // Integer division truncates: 6 / 4 is 1.
        let rounded = vec![
            node("Div", &["six", "four"], "one"),
            node("Mul", &["one", "three"], "rest"),
        ];
        let constants = vec![integers("four", &[4]), integers("three", &[3])];
        assert_eq!(reshaped(rounded, constants), Some(vec![None, Some(2), Some(3)]));
        // In this graph, `rest` depends on the batch size of the request.
        let unknown = vec![
            node("Mul", &["rows", "zero"], "nothing"),
            node("Add", &["nothing", "three"], "rest"),
        ];
        let constants = vec![integers("zero", &[0]), integers("three", &[3])];
        assert_eq!(reshaped(unknown, constants), Some(vec![None, Some(2), None]));
    }

    #[test]
    fn sizes_that_a_request_gives_leave_the_number_of_dimensions_open() {
        let nodes = vec![
            with(node("Cast", &["x"], "sizes"), [int("to", 7)]),
            node("Reshape", &["x", "flat"], "row"),
            node("Reshape", &["sizes", "flat"], "wanted"),
            node("Reshape", &["row", "wanted"], "y"),
        ];
        assert_eq!(dims(nodes, vec![integers("flat", &[-1])]), None);
    }
}
