//! Operators on values that are there: no plan, no names of sizes, whatever shapes come.
//!
//! Movements go by the size of an element, so that there is one of each for all types whose elements are copied. What takes memory is
//! asked for before it is made ([`size::admit_shape`](crate::size::admit_shape)).

mod batch_normalization;
mod clip;
mod compute;
mod einsum;
mod fill;
mod heads;
mod integer_products;
mod integer_windows;
#[cfg(test)]
mod made_nodes;
mod moves;
mod pairs;
mod pools;
mod products;
mod slice;
mod sums;
mod views;
mod windows;

use std::sync::Arc;

use tract_hir::{internal::*, ops::element_wise::ElementWiseOp, tract_core::ops::element_wise};

use self::compute::Compute;
use super::{
    attributes::Attributes,
    guard::Guarded,
    kernel::{self, Fact},
};
use crate::{building::BuildContext, faults::ensure_input, lowered::OnnxNode, room::Room, size};

/// A node, ready to be computed for inputs of any shapes.
#[derive(Debug)]
pub(crate) struct Direct {
    op_type: String,
    own: Option<Box<dyn Compute>>,
    op: Box<dyn InferenceOp>,
    is_pure: bool,
}

/// Why a node computes nothing.
pub(crate) enum Stop {
    /// A plan is needed for these inputs.
    Unplanned,
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
            op,
            is_pure: !node.op_type.starts_with("Random")
                && !matches!(node.op_type.as_str(), "Bernoulli" | "Multinomial"),
        })
    }

    pub(crate) fn op_type(&self) -> &str {
        &self.op_type
    }

    /// Whether the same inputs give the same outputs.
    pub(crate) fn is_pure(&self) -> bool {
        self.is_pure
    }

    /// Computes the outputs. The inputs are left as they are where a plan is needed.
    pub(crate) fn run(
        &self,
        inputs: &mut TVec<Arc<Tensor>>,
        room: &mut Room<'_>,
    ) -> Result<TVec<Arc<Tensor>>, Stop> {
        let facts = Fact::of_values(inputs);
        if let Some(own) = &self.own {
            let outputs = own.outputs(&facts).map_err(Stop::Refused)?;
            admit(outputs.as_deref().unwrap_or_default(), room).map_err(Stop::Failed)?;
            if let Some(outputs) = own.run(inputs).map_err(Stop::Failed)? {
                return Ok(outputs);
            }
        }
        let Some(guarded) = self.op.as_op().downcast_ref::<Guarded>() else {
            return match kernel::of(&*self.op, &facts) {
                Some(kernel) => computed(&*kernel, &facts, inputs, room),
                None => Err(Stop::Unplanned),
            };
        };
        guarded.admit(&facts).map_err(Stop::Refused)?;
        let wide: TVec<Option<DatumType>> = facts.iter().map(|fact| guarded.wide(fact.datum_type)).collect();
        if let Some(narrow) = wide.iter().position(Option::is_some) {
            let narrow = inputs[narrow].datum_type();
            return self.widened(narrow, inputs, &wide, room);
        }
        let op = guarded.chosen(&facts);
        match kernel::of(op, &facts) {
            Some(kernel) => computed(&*kernel, &facts, inputs, room),
            None => match function(op) {
                Some(function) => applied(function, inputs),
                None => Err(Stop::Unplanned),
            },
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
                    None => function(op).map(|_| vec![inputs[0].with(inputs[0].datum_type)]),
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
        let cast = |tensor: &Arc<Tensor>, to: DatumType| -> TractResult<Arc<Tensor>> {
            size::admit_shape(to, tensor.shape())?;
            Ok(tensor.cast_to_dt(to)?.into_owned().into_arc_tensor())
        };
        let given = inputs.iter().zip(wide).map(|(input, wide)| match wide {
            Some(wide) => cast(input, *wide),
            None => Ok(input.clone()),
        });
        let mut given = given.collect::<TractResult<TVec<_>>>().map_err(Stop::Failed)?;
        let between = wide.iter().copied().flatten().next();
        let outputs = self
            .run(&mut given, room)?
            .into_iter()
            .map(|output| match between {
                Some(between) if output.datum_type() == between => cast(&output, narrow),
                _ => Ok(output),
            });
        outputs.collect::<TractResult<_>>().map_err(Stop::Failed)
    }
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

/// The function of single numbers that an operator is.
fn function(op: &dyn InferenceOp) -> Option<&ElementWiseOp> {
    let expansion = op.as_op().downcast_ref::<Box<dyn Expansion>>()?;
    (**expansion).as_any().downcast_ref()
}

/// Computes a function of single numbers. The result has as many as the input.
fn applied(
    ElementWiseOp(function): &ElementWiseOp,
    inputs: &mut TVec<Arc<Tensor>>,
) -> Result<TVec<Arc<Tensor>>, Stop> {
    let [input] = &**inputs else {
        return Err(Stop::Unplanned);
    };
    let datum_type = input.datum_type();
    if function.operating_datum_type(datum_type) != datum_type {
        return Err(Stop::Unplanned);
    }
    let op = element_wise::ElementWiseOp(function.clone(), None);
    let inputs = inputs.drain(..).map(IntoTValue::into_tvalue).collect();
    let outputs = op
        .eval(&EvalContext::out_of_plan(), inputs)
        .map_err(Stop::Failed)?;
    Ok(outputs.into_iter().map(IntoArcTensor::into_arc_tensor).collect())
}

/// What computes a node here.
fn own(node: &OnnxNode, constants: &[Option<Arc<Tensor>>]) -> TractResult<Option<Box<dyn Compute>>> {
    let attributes = Attributes(node);
    Ok(match node.op_type.as_str() {
        "Add" | "Div" | "Mul" | "Sub" => Some(Box::new(pairs::Pair::of(&node.op_type))),
        "BatchNormalization" => Some(Box::new(batch_normalization::BatchNormalization::of(
            attributes, constants,
        )?)),
        "Clip" => Some(Box::new(clip::Clip::of(node))),
        "Slice" => Some(Box::new(slice::Slice::of(node)?)),
        "tensorferry/Ranked" => Some(Box::new(heads::Ranked::of(attributes))),
        "tensorferry/SameShape" => Some(Box::new(heads::SameShape)),
        "tensorferry/SplitHeads" => Some(Box::new(heads::SplitHeads::of(attributes))),
        "tensorferry/TransposeLast" => Some(Box::new(heads::TransposeLast)),
        "AveragePool" => Some(Box::new(pools::Pool::average(attributes)?)),
        "MaxPool" => Some(Box::new(pools::Pool::maximum(attributes)?)),
        "Conv" => Some(Box::new(windows::Conv::of(attributes, constants)?)),
        "ConvInteger" => Some(Box::new(integer_windows::ConvInteger::of(attributes, constants)?)),
        "QLinearConv" => Some(Box::new(integer_windows::QLinearConv::of(attributes, constants)?)),
        "MatMulInteger" => Some(Box::new(integer_products::MatMulInteger::of(
            attributes, constants,
        )?)),
        "QLinearMatMul" => Some(Box::new(integer_products::QLinearMatMul::of(constants)?)),
        "Einsum" => Some(Box::new(einsum::Einsum::of(attributes)?)),
        "Gemm" => Some(Box::new(products::Gemm::of(attributes, constants)?)),
        "ReduceMean" | "ReduceSum" => Some(Box::new(sums::Reduce::of(node))),
        "GlobalAveragePool" => Some(Box::new(sums::GlobalAverage)),
        "Expand" => Some(Box::new(fill::Expand)),
        "Where" => Some(Box::new(fill::Where)),
        "ConstantOfShape" => {
            let value = attributes.get("value").and_then(|value| value.t.clone());
            Some(Box::new(fill::ConstantOfShape(
                value.unwrap_or_else(|| Arc::new(tensor0(0.0f32))),
            )))
        }
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => {
            Some(Box::new(fill::Compare::of(&node.op_type)))
        }
        "Split" => Some(Box::new(fill::Split {
            axis: attributes.int("axis", 0),
            sizes: attributes.has("split").then(|| attributes.ints("split").to_vec()),
            count: node.output.len(),
            rounds_up: attributes.has("num_outputs"),
        })),
        "Concat" => Some(Box::new(moves::Concat(attributes.int("axis", 0)))),
        "Gather" => Some(Box::new(moves::Gather(attributes.int("axis", 0)))),
        "MatMul" => Some(Box::new(products::MatMul::of(constants)?)),
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
