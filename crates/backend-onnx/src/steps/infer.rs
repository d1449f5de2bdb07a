//! What is known of a model's values before it runs: types, and the dimensions that no request decides.
//!
//! Operators say it of their outputs as they do in a run, with names in the place of sizes. Numbers that are made of dimensions, as
//! those that a `Reshape` is given, are followed where all that happens to them is that they are moved, added up or multiplied: as FP64, with
//! NaN for what is not known, by the operators themselves.

use std::{collections::HashMap, sync::Arc};

use onnx_graph::{Dim, Port};
use tract_hir::internal::*;

use super::{
    body::{Body, Control, Step},
    direct::DirectNode,
    values::Slot,
};
use crate::{
    dtype,
    faults::Unsupported,
    ops::{Fact, named_in, unknown},
    room::Room,
    size,
};

/// Numbers of a value that are followed, at most.
const MOST: usize = 1 << 12;

/// What is known of values, by where they are kept.
pub(super) struct Known<'c> {
    constants: &'c HashMap<Slot, Arc<Tensor>>,
    facts: HashMap<Slot, Fact>,
}

/// What a node does with numbers that it is given.
enum Numbers {
    /// Moves or repeats those of these inputs.
    Moved(&'static [usize]),
    /// Does arithmetic with those of all inputs.
    Counted,
}

impl Numbers {
    fn of(op_type: &str) -> Option<Self> {
        Some(match op_type {
            "Concat" => Self::Moved(&[0, 1, 2, 3, 4, 5, 6, 7]),
            "Where" => Self::Moved(&[1, 2]),
            "Cast" | "Expand" | "Flatten" | "Gather" | "Reshape" | "Slice" | "Split" | "Squeeze" | "Tile"
            | "Transpose" | "Unsqueeze" | "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => {
                Self::Moved(&[0])
            }
            "Add" | "Sub" | "Mul" | "Div" | "Min" | "Max" | "Neg" => Self::Counted,
            _ => return None,
        })
    }

    fn are_of(&self, place: usize) -> bool {
        match self {
            Self::Moved(places) => places.contains(&place),
            Self::Counted => true,
        }
    }
}

impl<'c> Known<'c> {
    /// Follows the inputs of a model through its graph.
    ///
    /// # Errors
    /// Why a node is not computed, whatever its sizes.
    pub(super) fn of(
        body: &Body,
        inputs: &[Port],
        constants: &'c HashMap<Slot, Arc<Tensor>>,
        names: &SymbolScope,
    ) -> TractResult<Self> {
        let mut known = Self {
            constants,
            facts: HashMap::new(),
        };
        named_in(names, || {
            let mut named: HashMap<&str, TDim> = HashMap::new();
            for (&slot, port) in body.inputs.iter().zip(inputs) {
                let datum_type = dtype::to_tract(dtype::of(port.element_type));
                let Some((dims, datum_type)) = port.dims.as_ref().zip(datum_type) else {
                    continue;
                };
                let dims = dims.iter().map(|dim| match dim {
                    Dim::Fixed(size) => size.to_dim(),
                    Dim::Named(name) => named.entry(name).or_insert_with(unknown).clone(),
                    Dim::Free => unknown(),
                });
                known.facts.insert(slot, Fact::new(datum_type, dims));
            }
            known.walk(body)
        })?;
        Ok(known)
    }

    pub(super) fn fact(&self, slot: Slot) -> Option<Fact> {
        match self.constants.get(&slot) {
            Some(constant) => Fact::of_values(std::slice::from_ref(constant)).pop(),
            None => self.facts.get(&slot).cloned(),
        }
    }

    fn walk(&mut self, body: &Body) -> TractResult<()> {
        for step in &body.steps {
            match step {
                Step::Node(node) => self.node(node)?,
                Step::Control(node) => {
                    if let Control::If { then, other } = &node.op {
                        self.walk(then)?;
                        self.walk(other)?;
                        let branches = then.outputs.iter().zip(&other.outputs);
                        for ((&then, &other), &output) in branches.zip(&node.wires.outputs) {
                            if let Some(fact) = self.either(then, other) {
                                self.facts.insert(output, fact);
                            }
                        }
                    }
                }
                Step::Stage(_) => {}
            }
        }
        Ok(())
    }

    /// What is known of one of two values.
    fn either(&self, one: Slot, other: Slot) -> Option<Fact> {
        let (one, other) = (self.fact(one)?, self.fact(other)?);
        if one.datum_type != other.datum_type || one.rank() != other.rank() {
            return None;
        }
        let dims = one.shape.iter().zip(&other.shape);
        let dims = dims.map(|(one, other)| if one == other { one.clone() } else { unknown() });
        Some(Fact::new(one.datum_type, dims))
    }

    fn node(&mut self, node: &DirectNode) -> TractResult<()> {
        let Some(inputs) = node.facts(|slot| self.fact(slot)) else {
            return Ok(());
        };
        let outputs = match self.outputs(node, &inputs) {
            Ok(outputs) => outputs,
            Err(error)
                if error
                    .chain()
                    .any(<dyn std::error::Error + 'static>::is::<Unsupported>) =>
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

    fn outputs(&self, node: &DirectNode, inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        if let Some(folded) = self.folded(node, inputs) {
            return Ok(Some(folded));
        }
        let Some(mut outputs) = node.direct().outputs(inputs)? else {
            return Ok(None);
        };
        if inputs.iter().any(|input| input.sizes.is_some())
            && let Some(numbers) = followed(node, inputs)
        {
            for (output, numbers) in outputs.iter_mut().zip(numbers) {
                learn(output, numbers);
            }
        }
        Ok(Some(outputs))
    }

    /// What a node makes of small values that are all known.
    fn folded(&self, node: &DirectNode, inputs: &[Fact]) -> Option<Vec<Fact>> {
        let values: Option<TVec<Arc<Tensor>>> = inputs.iter().map(|input| input.constant.clone()).collect();
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
            .map(|dim| dim.to_usize().ok())
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
                Some(constant.cast_to::<f64>().ok()?.into_owned().into_arc_tensor())
            }
            (Some(constant), _) => Some(constant.clone()),
            (None, Some(sizes)) if numbers.are_of(place) => Some(sizes.clone()),
            _ => None,
        });
    let mut given: TVec<Arc<Tensor>> = given.collect::<Option<_>>()?;
    let mut made = size::limited(8 * MOST as u64, || {
        node.direct().run(&mut given, &mut Room::new())
    })
    .ok()?;
    let is_whole = inputs[0].datum_type.is_integer();
    if op_type == "Div" && is_whole {
        for quotient in &mut made {
            let mut rounded = (**quotient).clone();
            rounded
                .try_as_plain_ram_mut()
                .ok()?
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
        .try_as_plain_ram()
        .and_then(|view| Ok(view.as_slice::<f64>()?.iter().all(|number| !number.is_nan())));
    let shape = numbers.shape().iter().map(ToDim::to_dim).collect();
    // What is known of its dimensions is exact here.
    output.shape = shape;
    match numbers.cast_to_dt(output.datum_type) {
        Ok(constant) if is_known.unwrap_or(false) => {
            output.constant = Some(constant.into_owned().into_arc_tensor());
        }
        _ => output.sizes = Some(numbers),
    }
}
