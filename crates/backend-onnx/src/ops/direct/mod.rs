//! Operators on values that are there: no plan, no names of sizes, whatever shapes come.
//!
//! Movements go by the size of an element, so that there is one of each for all types whose elements are copied. What takes memory is
//! asked for before it is made ([`size::admit_shape`](crate::size::admit_shape), [`Room`]).

mod batch_normalization;
mod blocks;
mod clip;
mod compare;
mod compute;
mod einsum;
mod fill;
mod functions;
mod heads;
mod integer_products;
mod integer_windows;
mod kept;
#[cfg(test)]
mod made_nodes;
mod moves;
#[cfg(test)]
mod paced;
mod pairs;
mod parts;
mod pools;
mod products;
mod reductions;
mod slice;
mod texts;
mod views;
mod windows;

use std::sync::Arc;

use tract_hir::internal::*;

use self::compute::Compute;
use super::{
    attributes::Attributes,
    cast,
    guard::Guarded,
    kernel::{self, Fact},
    packs::Packs,
};
use crate::{
    building::BuildContext,
    faults::{Unsupported, ensure_input},
    lowered::OnnxNode,
    room::Room,
    size,
};

/// A node, ready to be computed for inputs of any shapes.
#[derive(Debug)]
pub(crate) struct Direct {
    op_type: String,
    own: Option<Box<dyn Compute>>,
    /// An input whose constant nothing but `own` needs any more, and what it was.
    taken: Option<(usize, Fact)>,
    op: Box<dyn InferenceOp>,
    is_pure: bool,
}

/// Why a node computes nothing.
pub(crate) enum Stop {
    /// Its inputs do not fit it.
    Refused(TractError),
    /// It failed on the way.
    Failed(TractError),
}

impl Direct {
    /// A node of which some inputs are constants.
    pub(crate) fn new(
        context: &BuildContext,
        node: &OnnxNode,
        constants: &[Option<Arc<Tensor>>],
    ) -> TractResult<Self> {
        let (op, used_within) = context.op(node)?;
        ensure!(used_within.is_empty(), "graphs within {}", node.op_type);
        Ok(Self {
            op_type: node.op_type.clone(),
            own: own(node, constants)?,
            taken: None,
            op,
            is_pure: !node.op_type.starts_with("Random")
                && !matches!(node.op_type.as_str(), "Bernoulli" | "Multinomial"),
        })
    }

    pub(crate) fn op_type(&self) -> &str {
        &self.op_type
    }

    /// Keeps what it makes of a constant among its inputs.
    pub(crate) fn take_over(
        &mut self,
        constants: &[Option<Arc<Tensor>>],
        packs: &mut Packs,
    ) -> TractResult<()> {
        let Some(own) = &mut self.own else {
            return Ok(());
        };
        if let Some(place) = own.take_over(constants, packs)? {
            let constant = constants.get(place).and_then(Option::as_ref);
            let constant = constant.context("takes over what is no constant")?;
            let dims = constant.shape().iter().map(ToDim::to_dim);
            self.taken = Some((place, Fact::new(constant.datum_type(), dims)));
        }
        Ok(())
    }

    /// The input that need not be given any more, as its constant was taken over.
    pub(crate) fn taken(&self) -> Option<(usize, &Fact)> {
        self.taken.as_ref().map(|(place, fact)| (*place, fact))
    }

    /// Gives from now on its input times what it gave, if that is one function.
    pub(crate) fn gate(&mut self) {
        if let Some(gated) = self.own.as_ref().and_then(|own| own.gated()) {
            self.own = Some(gated);
        }
    }

    /// Takes over the function that another node is, of its result, if it computes that on its way.
    pub(crate) fn follow(&mut self, next: &Self) -> bool {
        let activation = next.own.as_ref().and_then(|own| own.activation());
        let own = self.own.as_mut().zip(activation);
        own.is_some_and(|(own, activation)| own.follow(&activation))
    }

    /// Whether the same inputs give the same outputs.
    pub(crate) fn is_pure(&self) -> bool {
        self.is_pure
    }

    /// Computes the outputs. Inputs that nothing else holds may be written over.
    pub(crate) fn run(
        &self,
        inputs: &mut TVec<Arc<Tensor>>,
        room: &mut Room<'_>,
    ) -> Result<TVec<Arc<Tensor>>, Stop> {
        let guarded = self.op.as_op().downcast_ref::<Guarded>();
        if let Some(guarded) = guarded {
            guarded.admit_types(inputs).map_err(Stop::Refused)?;
            let wide: TVec<Option<DatumType>> = inputs
                .iter()
                .map(|input| guarded.wide(input.datum_type()))
                .collect();
            if let Some(narrow) = wide.iter().position(Option::is_some) {
                let narrow = inputs[narrow].datum_type();
                return self.widened(narrow, inputs, &wide, room);
            }
        }
        if let Some(own) = &self.own {
            let mut facts = Fact::of_values(inputs);
            if let Some((place, fact)) = &self.taken {
                facts[*place] = fact.clone();
            }
            let outputs = own.outputs(&facts).map_err(Stop::Refused)?;
            drop(facts);
            admit(outputs.as_deref().unwrap_or_default(), room).map_err(Stop::Failed)?;
            // Nothing else holds the inputs now: they may be written over.
            drop(outputs);
            return own.run(inputs).map_err(Stop::Failed);
        }
        let facts = Fact::of_values(inputs);
        if let Some(guarded) = guarded {
            guarded.admit(&facts).map_err(Stop::Refused)?;
        }
        let op = guarded.map_or(&*self.op, |guarded| guarded.chosen(&facts));
        match kernel::of(op, &facts) {
            Some(kernel) => computed(&*kernel, &facts, inputs, room),
            None => Err(Stop::Refused(unsupported(inputs))),
        }
    }

    /// What is known of the outputs before a run, if anything is.
    ///
    /// # Errors
    /// Why nothing computes the node for such inputs.
    pub(crate) fn outputs(&self, inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        let guarded = self.op.as_op().downcast_ref::<Guarded>();
        let mut inputs: Vec<Fact> = inputs.to_vec();
        let mut narrow = None;
        if let Some(guarded) = guarded {
            guarded.admit(&inputs)?;
            for input in &mut inputs {
                if let Some(wide) = guarded.wide(input.datum_type) {
                    narrow = Some((input.datum_type, wide));
                    input.datum_type = wide;
                    input.constant = match &input.constant {
                        Some(constant) => Some(constant.cast_to_dt(wide)?.into_owned().into_arc_tensor()),
                        None => None,
                    };
                }
            }
        }
        let mut outputs = match &self.own {
            Some(own) => own.outputs(&inputs)?,
            None => {
                let op = guarded.map_or(&*self.op, |guarded| guarded.chosen(&inputs));
                match kernel::of(op, &inputs) {
                    Some(kernel) => Some(kernel.outputs(&inputs)?),
                    None => None,
                }
            }
        };
        if let Some((narrow, wide)) = narrow {
            for output in outputs
                .iter_mut()
                .flatten()
                .filter(|output| output.datum_type == wide)
            {
                output.datum_type = narrow;
                output.constant = None;
            }
        }
        Ok(outputs)
    }

    /// Computes in another type, and gives the results of that type in the inputs' own.
    fn widened(
        &self,
        narrow: DatumType,
        inputs: &[Arc<Tensor>],
        wide: &[Option<DatumType>],
        room: &mut Room<'_>,
    ) -> Result<TVec<Arc<Tensor>>, Stop> {
        let converted = |tensor: &Arc<Tensor>, to: DatumType| -> TractResult<Arc<Tensor>> {
            size::admit_shape(to, tensor.shape())?;
            Ok(Arc::new(cast::convert(tensor, to)?))
        };
        let given = inputs.iter().zip(wide).map(|(input, wide)| match wide {
            Some(wide) => converted(input, *wide),
            None => Ok(input.clone()),
        });
        let mut given = given.collect::<TractResult<TVec<_>>>().map_err(Stop::Failed)?;
        let between = wide.iter().copied().flatten().next();
        let outputs = self
            .run(&mut given, room)?
            .into_iter()
            .map(|output| match between {
                Some(between) if output.datum_type() == between => converted(&output, narrow),
                _ => Ok(output),
            });
        outputs.collect::<TractResult<_>>().map_err(Stop::Failed)
    }
}

/// Nothing computes an operator for such inputs.
fn unsupported(inputs: &[Arc<Tensor>]) -> TractError {
    let types: Vec<DatumType> = inputs.iter().map(|input| input.datum_type()).collect();
    Unsupported::Here(format!("is not supported for inputs of the types {types:?}")).into()
}

/// Computes by a kernel of ours, if its inputs fit it.
fn computed(
    kernel: &dyn kernel::Kernel,
    facts: &[Fact],
    inputs: &[Arc<Tensor>],
    room: &mut Room<'_>,
) -> Result<TVec<Arc<Tensor>>, Stop> {
    admit(&kernel.outputs(facts).map_err(Stop::Refused)?, room).map_err(Stop::Failed)?;
    let outputs = kernel.run(inputs).map_err(Stop::Failed)?;
    Ok(outputs.into_iter().map(Arc::new).collect())
}

/// Refuses results that are too large, or have dimensions below zero, and asks for room for the others.
fn admit(outputs: &[Fact], room: &mut Room<'_>) -> TractResult<()> {
    let mut bytes = 0u64;
    for fact in outputs {
        // Those that a kernel only learns on its way it admits itself.
        let known: Option<TVec<i64>> = fact.shape.iter().map(|dim| dim.to_i64().ok()).collect();
        let Some(known) = known else {
            continue;
        };
        let shape: Option<TVec<usize>> = known.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        ensure_input!(shape.is_some(), "a value would have the dimensions {known:?}");
        let shape = shape.unwrap_or_default();
        size::admit_shape(fact.datum_type, &shape)?;
        bytes = bytes.saturating_add((shape.iter().product::<usize>() * fact.datum_type.size_of()) as u64);
    }
    room.ask(bytes)
}

/// What computes a node here.
fn own(node: &OnnxNode, constants: &[Option<Arc<Tensor>>]) -> TractResult<Option<Box<dyn Compute>>> {
    let attributes = Attributes(node);
    Ok(match node.op_type.as_str() {
        "Abs" | "Acos" | "Acosh" | "Asin" | "Asinh" | "Atan" | "Atanh" | "Ceil" | "Celu" | "Cos" | "Cosh"
        | "Elu" | "Erf" | "Exp" | "Floor" | "Gelu" | "HardSigmoid" | "HardSwish" | "LeakyRelu" | "Log"
        | "Mish" | "Neg" | "Reciprocal" | "Relu" | "Round" | "Selu" | "Shrink" | "Sigmoid" | "Sign"
        | "Sin" | "Sinh" | "Softplus" | "Softsign" | "Sqrt" | "Tan" | "Tanh" | "ThresholdedRelu" => {
            Some(Box::new(functions::Function::of(node)?))
        }
        "Add" | "And" | "Div" | "Max" | "Min" | "Mul" | "Or" | "Sub" | "Sum" | "Xor" => {
            Some(Box::new(pairs::Pair::of(&node.op_type)?))
        }
        "DepthToSpace" | "SpaceToDepth" => Some(Box::new(blocks::Blocks::of(node)?)),
        "Dropout" => Some(Box::new(kept::Dropout::of(node))),
        "Identity" => Some(Box::new(kept::Identity)),
        "IsInf" | "IsNaN" | "Not" => Some(Box::new(functions::Truth::of(node)?)),
        "Size" => Some(Box::new(views::Size)),
        "Tile" => Some(Box::new(fill::Tile)),
        "BatchNormalization" => Some(Box::new(batch_normalization::BatchNormalization::of(
            attributes, constants,
        )?)),
        "Clip" => Some(Box::new(clip::Clip::of(node, constants))),
        "Slice" => Some(Box::new(slice::Slice::of(node)?)),
        "tensorferry/Ranked" => Some(Box::new(heads::Ranked::of(attributes))),
        "tensorferry/SameShape" => Some(Box::new(heads::SameShape)),
        "tensorferry/SplitHeads" => Some(Box::new(heads::SplitHeads::of(attributes))),
        "tensorferry/TransposeLast" => Some(Box::new(heads::TransposeLast)),
        "AveragePool" => Some(Box::new(pools::Pool::average(attributes)?)),
        "MaxPool" => Some(Box::new(pools::Pool::maximum(attributes)?)),
        "Conv" => Some(Box::new(windows::Conv::of(attributes)?)),
        "ConvInteger" => Some(Box::new(integer_windows::ConvInteger::of(attributes, constants)?)),
        "QLinearConv" => Some(Box::new(integer_windows::QLinearConv::of(attributes, constants)?)),
        "MatMulInteger" => Some(Box::new(integer_products::MatMulInteger::of(
            attributes, constants,
        )?)),
        "QLinearMatMul" => Some(Box::new(integer_products::QLinearMatMul::of(constants)?)),
        "Einsum" => Some(Box::new(einsum::Einsum::of(attributes)?)),
        "Gemm" => Some(Box::new(products::Gemm::of(attributes))),
        "ArgMax" | "ArgMin" => Some(Box::new(reductions::Argument::of(node))),
        "GlobalAveragePool" | "GlobalMaxPool" => Some(Box::new(reductions::GlobalPool {
            is_max: node.op_type == "GlobalMaxPool",
        })),
        "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax" | "ReduceMean"
        | "ReduceMin" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => {
            Some(Box::new(reductions::Reduce::of(node)?))
        }
        "Expand" => Some(Box::new(fill::Expand)),
        "Where" => Some(Box::new(fill::Where)),
        "ConstantOfShape" => {
            let value = attributes.get("value").and_then(|value| value.t.clone());
            Some(Box::new(fill::ConstantOfShape::of(value)?))
        }
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => {
            Some(Box::new(compare::Compare::of(&node.op_type)?))
        }
        "Split" => Some(Box::new(parts::Split::of(node))),
        "Concat" => Some(Box::new(parts::Concat(attributes.int("axis", 0)))),
        "Gather" => Some(Box::new(moves::Gather(attributes.int("axis", 0)))),
        "MatMul" => Some(Box::new(products::MatMul::default())),
        "Transpose" => Some(Box::new(moves::Transpose(attributes.ints("perm").to_vec()))),
        "Reshape" => Some(Box::new(views::Reshape {
            allows_zero: attributes.int("allowzero", 0) != 0,
        })),
        "Flatten" => Some(Box::new(views::Flatten(attributes.int("axis", 1)))),
        "Unsqueeze" => Some(Box::new(views::Unsqueeze(attributes.ints("axes").to_vec()))),
        "Squeeze" => Some(Box::new(views::Squeeze(attributes.ints("axes").to_vec()))),
        "Shape" => Some(Box::new(views::Shape {
            start: attributes.int("start", 0),
            end: attributes.get("end").map(|end| end.i),
        })),
        _ => None,
    })
}
