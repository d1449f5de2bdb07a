//! Runs a node for inputs of any shape. Memory is reserved before values are allocated ([`Room`]).

use onnx_kernels::elementwise::convert;
use onnx_tensor::{
    faults::ensure_input,
    node::Node,
    operator::{Compute, Constants, Fact, Wiring},
    packs::Packs,
    prelude::*,
    room::Room,
    size,
};

use super::{guard::NodeGuard, registry};

/// A node that is ready to run for inputs of any shape.
#[derive(Debug)]
pub(crate) struct Direct {
    op_type: String,
    compute: Box<dyn Compute>,
    guard: NodeGuard,
    /// Indices and facts of the absorbed inputs: constants whose contents `compute` holds in packed form.
    taken: Vec<(usize, Fact)>,
}

/// The kernel of a node that has been fused into another.
#[derive(Debug)]
struct Nothing;

impl Compute for Nothing {
    fn run(&self, _: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        bail!("the node is part of another")
    }
}

/// The reason why a node did not compute its outputs.
pub(crate) enum Stop {
    /// The operator does not accept the inputs.
    Refused(Error),
    /// The operator failed while it computed.
    Failed(Error),
}

impl Direct {
    /// Builds a node, some of whose inputs are constants.
    pub(crate) fn new(node: &Node, constants: Constants<'_>) -> Result<Self> {
        let (compute, guard) = registry::build(node, constants)?;
        Ok(Self {
            op_type: node.op_type.clone(),
            compute,
            guard,
            taken: Vec::new(),
        })
    }

    pub(crate) fn op_type(&self) -> &str {
        &self.op_type
    }

    /// Lets the kernel absorb a constant input, for example by packing weights.
    pub(crate) fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<()> {
        if let Some(place) = self.compute.take_over(constants, packs)? {
            let constant = constants.get(place).and_then(Option::as_ref);
            let constant = constant.context("takes over what is no constant")?;
            let dims = constant.shape().iter().map(ToDim::to_dim);
            self.taken.push((place, Fact::new(constant.element_type(), dims)));
        }
        Ok(())
    }

    /// Returns the indices and the facts of the absorbed inputs, whose values a run does not need.
    pub(crate) fn taken(&self) -> &[(usize, Fact)] {
        &self.taken
    }

    /// Replaces the kernel with its gated form, if it has one. The gated form multiplies the input by the
    /// result.
    pub(crate) fn gate(&mut self) {
        if let Some(gated) = self.compute.gated() {
            self.compute = gated;
        }
    }

    /// Fuses the node `next` into this one, if the kernel can apply the function of `next` to its own
    /// results. Returns whether the nodes were fused.
    pub(crate) fn follow(&mut self, next: &Self) -> bool {
        self.compute.follow(&*next.compute)
    }

    /// Fuses the node `next` into this one, if the kernel can compute both together. The other inputs of `next`
    /// then follow those of this node. Returns whether the nodes were fused.
    pub(crate) fn chain(&mut self, next: &mut Self, wiring: Wiring<'_>) -> bool {
        let compute = std::mem::replace(&mut next.compute, Box::new(Nothing));
        if let Some(compute) = self.compute.chain(compute, wiring) {
            next.compute = compute;
            return false;
        }
        for (place, fact) in next.taken.drain(..) {
            let other = place - usize::from(place > wiring.place);
            self.taken.push((wiring.inputs + other, fact));
        }
        true
    }

    /// Returns whether the node is deterministic.
    pub(crate) fn is_pure(&self) -> bool {
        !self.guard.is_random()
    }

    /// Computes the outputs. Inputs without other references may be overwritten.
    pub(crate) fn run(
        &self,
        inputs: &mut ShortVec<Arc<Tensor>>,
        room: &mut Room<'static>,
    ) -> Result<ShortVec<Arc<Tensor>>, Stop> {
        self.guard.admit_typed_input(inputs).map_err(Stop::Refused)?;
        let wide: ShortVec<Option<ElementType>> = inputs
            .iter()
            .map(|input| self.guard.wide(input.element_type()))
            .collect();
        if let Some(narrow) = wide.iter().position(Option::is_some) {
            let narrow = inputs[narrow].element_type();
            return self.widened(narrow, inputs, &wide, room);
        }
        let mut facts = Fact::of_values(inputs);
        for (place, fact) in &self.taken {
            facts[*place] = fact.clone();
        }
        self.guard.admit(&facts).map_err(Stop::Refused)?;
        let outputs = self.compute.outputs(&facts).map_err(Stop::Refused)?;
        let are_known = match &outputs {
            Some(outputs) => admit(outputs, room).map_err(Stop::Failed)?,
            None => false,
        };
        // Drops the references to the inputs, so that the kernel may overwrite them.
        drop((facts, outputs));
        room.during(!are_known, || self.compute.run(inputs))
            .map_err(Stop::Failed)
    }

    /// Infers facts about the outputs before a run, if possible.
    ///
    /// # Errors
    /// Returns an error if the node does not support such inputs.
    pub(crate) fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let mut inputs: Vec<Fact> = inputs.to_vec();
        let mut narrow = None;
        self.guard.admit(&inputs)?;
        for input in &mut inputs {
            if let Some(wide) = self.guard.wide(input.element_type) {
                narrow = Some((input.element_type, wide));
                input.element_type = wide;
                input.constant = match &input.constant {
                    Some(constant) => Some(constant.cast_to_type(wide)?.into_owned().into_arc()),
                    None => None,
                };
            }
        }
        let mut outputs = self.compute.outputs(&inputs)?;
        if let Some((narrow, wide)) = narrow {
            for output in outputs
                .iter_mut()
                .flatten()
                .filter(|output| output.element_type == wide)
            {
                output.element_type = narrow;
                output.constant = None;
            }
        }
        Ok(outputs)
    }

    /// Computes the outputs in a wider type, and converts the outputs of that type back to the type of the
    /// inputs.
    fn widened(
        &self,
        narrow: ElementType,
        inputs: &[Arc<Tensor>],
        wide: &[Option<ElementType>],
        room: &mut Room<'static>,
    ) -> Result<ShortVec<Arc<Tensor>>, Stop> {
        let given = inputs.iter().zip(wide.iter().copied());
        let (mut given, held) = converted(given, room).map_err(Stop::Failed)?;
        let outputs = self.run(&mut given, room)?;
        drop(given);
        room.release(held);
        let between = wide.iter().copied().flatten().next();
        let types = outputs
            .iter()
            .map(|output| (Some(output.element_type()) == between).then_some(narrow));
        let held = outputs.iter().map(|output| size::of_value(output)).sum();
        room.hold(held);
        let converted = converted(outputs.iter().zip(types), room).map_err(Stop::Failed);
        room.release(held);
        let (outputs, held) = converted?;
        room.release(held);
        Ok(outputs)
    }
}

/// Casts each value to the type given with it. A value with `None` is shared instead of cast. Counts the
/// memory of the casts in `room`, and returns its size in bytes.
fn converted<'v>(
    values: impl Iterator<Item = (&'v Arc<Tensor>, Option<ElementType>)> + Clone,
    room: &mut Room<'_>,
) -> Result<(ShortVec<Arc<Tensor>>, u64)> {
    let mut bytes = 0u64;
    for (value, to) in values.clone() {
        if let Some(to) = to {
            bytes = bytes.saturating_add(size::admit_size(to, value.shape())?);
        }
    }
    room.ask(bytes)?;
    size::admit_now(bytes)?;
    let casts = values.map(|(value, to)| match to {
        Some(to) => Ok(Arc::new(convert(value, to)?)),
        None => Ok(value.clone()),
    });
    let casts = casts.collect::<Result<_>>()?;
    room.hold(bytes);
    Ok((casts, bytes))
}

/// Checks the sizes and ranks of the outputs, and reserves memory for those whose size is known. Returns
/// whether the sizes of all outputs are known.
fn admit(outputs: &[Fact], room: &mut Room<'_>) -> Result<bool> {
    let mut bytes = 0u64;
    let mut are_known = true;
    for fact in outputs {
        size::admit_rank(fact.rank())?;
        // The kernel checks outputs of unknown shape, once their shape is known.
        let known: Option<ShortVec<i64>> = fact.shape.iter().map(onnx_tensor::Size::to_i64).collect();
        let Some(known) = known else {
            are_known = false;
            continue;
        };
        let shape: Option<ShortVec<usize>> = known.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        ensure_input!(shape.is_some(), "a value would have the dimensions {known:?}");
        let shape = shape.unwrap_or_default();
        size::admit_shape(fact.element_type, &shape)?;
        bytes = bytes.saturating_add((shape.iter().product::<usize>() * fact.element_type.size_of()) as u64);
    }
    room.ask(bytes)?;
    Ok(are_known)
}
