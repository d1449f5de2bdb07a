//! A node, computed for inputs of any shapes. Memory is asked for before values are made ([`Room`]).

use onnx_kernels::elementwise::convert;
use onnx_tensor::{
    faults::ensure_input,
    node::Node,
    operator::{Compute, Constants, Fact},
    packs::Packs,
    prelude::*,
    room::Room,
    size,
};

use super::{guard::NodeGuard, registry};

/// A node, ready to be computed for inputs of any shapes.
#[derive(Debug)]
pub(crate) struct Direct {
    op_type: String,
    compute: Box<dyn Compute>,
    guard: NodeGuard,
    /// An input whose constant nothing but `compute` needs any more, and what it was.
    taken: Option<(usize, Fact)>,
}

/// Why a node computes nothing.
pub(crate) enum Stop {
    /// Its inputs do not fit it.
    Refused(Error),
    /// It failed on the way.
    Failed(Error),
}

impl Direct {
    /// A node of which some inputs are constants.
    pub(crate) fn new(node: &Node, constants: Constants<'_>) -> Result<Self> {
        let (compute, guard) = registry::build(node, constants)?;
        Ok(Self {
            op_type: node.op_type.clone(),
            compute,
            guard,
            taken: None,
        })
    }

    pub(crate) fn op_type(&self) -> &str {
        &self.op_type
    }

    /// Keeps what it makes of a constant among its inputs.
    pub(crate) fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<()> {
        if let Some(place) = self.compute.take_over(constants, packs)? {
            let constant = constants.get(place).and_then(Option::as_ref);
            let constant = constant.context("takes over what is no constant")?;
            let dims = constant.shape().iter().map(ToDim::to_dim);
            self.taken = Some((place, Fact::new(constant.element_type(), dims)));
        }
        Ok(())
    }

    /// The input that need not be given any more, as its constant was taken over.
    pub(crate) fn taken(&self) -> Option<(usize, &Fact)> {
        self.taken.as_ref().map(|(place, fact)| (*place, fact))
    }

    /// Gives from now on its input times what it gave, if that is one function.
    pub(crate) fn gate(&mut self) {
        if let Some(gated) = self.compute.gated() {
            self.compute = gated;
        }
    }

    /// Takes over the function that another node is, of its result, if it computes that on its way.
    pub(crate) fn follow(&mut self, next: &Self) -> bool {
        self.compute.follow(&*next.compute)
    }

    /// Whether the same inputs give the same outputs.
    pub(crate) fn is_pure(&self) -> bool {
        !self.guard.is_random()
    }

    /// Computes the outputs. Inputs that nothing else holds may be written over.
    pub(crate) fn run(
        &self,
        inputs: &mut ShortVec<Arc<Tensor>>,
        room: &mut Room<'_>,
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
        if let Some((place, fact)) = &self.taken {
            facts[*place] = fact.clone();
        }
        self.guard.admit(&facts).map_err(Stop::Refused)?;
        let outputs = self.compute.outputs(&facts).map_err(Stop::Refused)?;
        admit(outputs.as_deref().unwrap_or_default(), room).map_err(Stop::Failed)?;
        // Nothing else holds the inputs now: they may be written over.
        drop((facts, outputs));
        self.compute.run(inputs).map_err(Stop::Failed)
    }

    /// What is known of the outputs before a run, if anything is.
    ///
    /// # Errors
    /// Why nothing computes the node for such inputs.
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

    /// Computes in another type, and gives the results of that type in the inputs' own.
    fn widened(
        &self,
        narrow: ElementType,
        inputs: &[Arc<Tensor>],
        wide: &[Option<ElementType>],
        room: &mut Room<'_>,
    ) -> Result<ShortVec<Arc<Tensor>>, Stop> {
        let converted = |tensor: &Arc<Tensor>, to: ElementType| -> Result<Arc<Tensor>> {
            size::admit_shape(to, tensor.shape())?;
            Ok(Arc::new(convert(tensor, to)?))
        };
        let given = inputs.iter().zip(wide).map(|(input, wide)| match wide {
            Some(wide) => converted(input, *wide),
            None => Ok(input.clone()),
        });
        let mut given = given.collect::<Result<ShortVec<_>>>().map_err(Stop::Failed)?;
        let between = wide.iter().copied().flatten().next();
        let outputs = self
            .run(&mut given, room)?
            .into_iter()
            .map(|output| match between {
                Some(between) if output.element_type() == between => converted(&output, narrow),
                _ => Ok(output),
            });
        outputs.collect::<Result<_>>().map_err(Stop::Failed)
    }
}

/// Refuses results that are too large, or have too many dimensions or some below zero, and asks for room for the others.
fn admit(outputs: &[Fact], room: &mut Room<'_>) -> Result<()> {
    let mut bytes = 0u64;
    for fact in outputs {
        size::admit_rank(fact.rank())?;
        // Those that a kernel only learns on its way it admits itself.
        let known: Option<ShortVec<i64>> = fact.shape.iter().map(onnx_tensor::Size::to_i64).collect();
        let Some(known) = known else {
            continue;
        };
        let shape: Option<ShortVec<usize>> = known.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        ensure_input!(shape.is_some(), "a value would have the dimensions {known:?}");
        let shape = shape.unwrap_or_default();
        size::admit_shape(fact.element_type, &shape)?;
        bytes = bytes.saturating_add((shape.iter().product::<usize>() * fact.element_type.size_of()) as u64);
    }
    room.ask(bytes)
}
