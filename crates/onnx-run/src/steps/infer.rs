//! What is known of a model's values before it runs: types, and the dimensions that no request decides.
//!
//! Operators say it of their outputs as they do in a run, with names in the place of sizes. Numbers that are made of dimensions, as
//! those that a `Reshape` is given, are followed while they are whole and all that happens to them is that they are moved, added up or multiplied:
//! as FP64, with NaN for what is not known, by the operators themselves.

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

/// Numbers of a value that are followed, at most.
const MOST: usize = 1 << 12;

/// What is known of values, by where they are kept.
pub(crate) struct Known<'c> {
    constants: &'c HashMap<Slot, Arc<Tensor>>,
    facts: HashMap<Slot, Fact>,
    /// Whether the nodes that are followed are those of a branch, which a request may not run.
    is_in_branch: bool,
}

/// The inputs whose numbers a node moves, repeats, adds up or multiplies.
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

/// What a file declares of the inputs of its graph.
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

impl<'c> Known<'c> {
    /// Follows the inputs of a model through its graph.
    ///
    /// # Errors
    /// Why a node is not computed, whatever its sizes, or for the only sizes that it has.
    pub(crate) fn of(
        body: &Body,
        inputs: &[Port],
        constants: &'c HashMap<Slot, Arc<Tensor>>,
    ) -> Result<Self> {
        let mut known = Self {
            constants,
            facts: declared(&body.inputs, inputs),
            is_in_branch: false,
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

    /// What is known of one of two values.
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
        let outputs = match self.outputs(node, &inputs) {
            Ok(outputs) => outputs,
            Err(error)
                if is_unsupported(&error) || !self.is_in_branch && inputs.iter().all(has_known_shape) =>
            {
                return Err(error.context(node.label().to_owned()));
            }
            // Requests may be answered differently: what is wrong here may be never run.
            Err(error) => {
                tracing::debug!(node = node.label(), "{error:#}");
                None
            }
        };
        let slots = node.wires.outputs.iter().copied();
        self.facts.extend(slots.zip(outputs.into_iter().flatten()));
        Ok(())
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
            // Of floats the rounding would have to be followed too.
            let whole = outputs.iter_mut().zip(numbers);
            let whole = whole
                .filter(|(output, _)| matches!(output.element_type, ElementType::I32 | ElementType::I64));
            whole.for_each(|(output, numbers)| learn(output, numbers));
        }
        Ok(Some(outputs))
    }

    /// What a node makes of small values that are all known.
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

/// Refuses a value that is too large, or has too many dimensions, in every run.
fn admit(output: &Fact) -> Result<()> {
    size::admit_rank(output.rank())?;
    match shapes::known(&output.shape) {
        Some(shape) => size::admit_size(output.element_type, &shape).map(drop),
        None => Ok(()),
    }
}

/// Numbers of the outputs, as far as those of the inputs are known.
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

/// Takes what is known of an output's numbers: a constant where it is all of them.
fn learn(output: &mut Fact, numbers: Arc<Tensor>) {
    let is_known = numbers
        .as_slice::<f64>()
        .map(|numbers| numbers.iter().all(|number| number.is_finite()));
    let shape = numbers.shape().iter().map(ToDim::to_dim).collect();
    // What is known of its dimensions is exact here.
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

    use onnx_graph::proto::{AttributeProto, NodeProto, TensorProto};

    use crate::{
        Session,
        made_up::{constant, model, node},
    };

    fn integers(name: &str, numbers: &[i64]) -> TensorProto {
        TensorProto {
            data_type: 7,
            raw_data: numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            ..constant(name, &[numbers.len() as i64])
        }
    }

    fn with(node: NodeProto, name: &str, i: i64) -> NodeProto {
        let attribute = AttributeProto {
            name: name.to_owned(),
            i,
            r#type: 2,
            ..AttributeProto::default()
        };
        NodeProto {
            attribute: vec![attribute],
            ..node
        }
    }

    /// The output's dimensions as far as they are known, if their number is.
    fn dims(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> Option<Vec<Option<i64>>> {
        let model = model(nodes, &[-1, 6], &[-1, -1, -1], constants);
        let steps = Session::prepare(&model, |_| Ok(())).unwrap();
        let output = steps.outputs().next().unwrap()?;
        Some(output.shape.iter().map(|dim| dim.to_i64()).collect())
    }

    /// `x` as so many rows of what `sizes` gives beside them.
    fn reshaped(between: Vec<NodeProto>, constants: Vec<TensorProto>) -> Option<Vec<Option<i64>>> {
        let mut nodes = vec![
            node("Shape", &["x"], "shape"),
            node("Gather", &["shape", "first"], "rows"),
            node("Gather", &["shape", "second"], "six"),
        ];
        nodes.extend(between);
        nodes.push(with(node("Concat", &["rows", "two", "rest"], "sizes"), "axis", 0));
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
        // Rounded as whole numbers are.
        let rounded = vec![
            node("Div", &["six", "four"], "one"),
            node("Mul", &["one", "three"], "rest"),
        ];
        let constants = vec![integers("four", &[4]), integers("three", &[3])];
        assert_eq!(reshaped(rounded, constants), Some(vec![None, Some(2), Some(3)]));
        // As many rows as a request has.
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
            with(node("Cast", &["x"], "sizes"), "to", 7),
            node("Reshape", &["x", "flat"], "row"),
            node("Reshape", &["sizes", "flat"], "wanted"),
            node("Reshape", &["row", "wanted"], "y"),
        ];
        assert_eq!(dims(nodes, vec![integers("flat", &[-1])]), None);
    }
}
