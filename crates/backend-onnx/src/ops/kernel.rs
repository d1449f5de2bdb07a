use std::{cell::RefCell, fmt, sync::Arc};

use tract_hir::internal::*;

use super::packs::Packs;
use crate::cancelling;

/// What is known of a value that flows between nodes before the model runs.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) datum_type: DatumType,
    pub(crate) shape: TVec<TDim>,
    pub(crate) constant: Option<Arc<Tensor>>,
    /// What is known of the numbers of a value that is no constant: FP64, NaN for each that is not known. Arithmetic with it is not
    /// known either.
    pub(crate) sizes: Option<Arc<Tensor>>,
}

thread_local! {
    static NAMES: RefCell<SymbolScope> = RefCell::default();
}

/// Has what is unknown named in this scope, as long as something runs: names of two scopes are not told apart.
pub(crate) fn named_in<T>(scope: &SymbolScope, run: impl FnOnce() -> T) -> T {
    let outer = NAMES.replace(scope.clone());
    let made = run();
    NAMES.set(outer);
    made
}

/// A dimension that is not known, and equal to no other one.
pub(crate) fn unknown() -> TDim {
    NAMES.with_borrow(|names| names.new_with_prefix("size").to_dim())
}

impl Fact {
    pub(crate) fn new(datum_type: DatumType, shape: impl IntoIterator<Item = TDim>) -> Self {
        Self {
            datum_type,
            shape: shape.into_iter().collect(),
            constant: None,
            sizes: None,
        }
    }

    pub(crate) fn of(fact: &TypedFact) -> Self {
        Self {
            constant: fact.konst.clone(),
            ..Self::new(fact.datum_type, fact.shape.iter().cloned())
        }
    }

    /// The facts of values that have been computed.
    pub(crate) fn of_values(values: &[Arc<Tensor>]) -> Vec<Self> {
        let facts = values.iter().map(|value| Self {
            constant: Some(value.clone()),
            ..Self::new(value.datum_type(), value.shape().iter().map(ToDim::to_dim))
        });
        facts.collect()
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The same dimensions with another type.
    pub(crate) fn with(&self, datum_type: DatumType) -> Self {
        Self::new(datum_type, self.shape.iter().cloned())
    }

    /// The value as whole numbers, if it is a constant.
    pub(crate) fn integers(&self) -> Option<Vec<i64>> {
        let numbers = self.constant.as_ref()?.cast_to::<i64>().ok()?;
        Some(numbers.try_as_plain_ram().ok()?.as_slice::<i64>().ok()?.to_vec())
    }

    /// The value as dimensions, which may be free, if it is a constant of whole numbers.
    pub(crate) fn dims(&self) -> Option<Vec<TDim>> {
        if let (None, Some(sizes)) = (&self.constant, &self.sizes) {
            let numbers = super::elements::elements::<f64>(sizes).ok()?;
            let dim = |number: &f64| match number.is_finite() {
                true => (*number as i64).to_dim(),
                false => unknown(),
            };
            return Some(numbers.iter().map(dim).collect());
        }
        match self.datum_type {
            DatumType::TDim => {
                let view = self.constant.as_ref()?.try_as_plain_ram().ok()?;
                Some(view.as_slice::<TDim>().ok()?.to_vec())
            }
            datum_type if datum_type.is_integer() => {
                Some(self.integers()?.iter().map(ToDim::to_dim).collect())
            }
            _ => None,
        }
    }

    /// The value as one number, if it is a constant.
    pub(crate) fn number(&self) -> Option<f64> {
        super::elements::scalar::<f64>(self.constant.as_ref()?).ok()
    }

    /// The value as FP32, if it is a constant of that type.
    pub(crate) fn floats(&self) -> Option<Vec<f32>> {
        let view = self.constant.as_ref()?.try_as_plain_ram().ok()?;
        Some(view.as_slice::<f32>().ok()?.to_vec())
    }
}

/// An operator computed here: plain code from tensors to tensors.
///
/// Dimensions that tract computes symbolically arrive as plain INT64, but for inputs that [`Kernel::takes_sizes`] names.
pub(crate) trait Kernel: fmt::Debug + Send + Sync + 'static {
    /// The operator's name.
    fn name(&self) -> &'static str;

    /// The number of outputs.
    fn output_count(&self) -> usize {
        1
    }

    /// Whether the same inputs give the same outputs.
    fn is_pure(&self) -> bool {
        true
    }

    /// Whether outputs have sizes that are known by name only until the operator ran.
    fn names_sizes(&self) -> bool {
        false
    }

    /// The inputs in which sizes stay expressions, as what it does with them is the same for all types.
    fn takes_sizes(&self) -> &[usize] {
        &[]
    }

    /// The outputs for given inputs, or why they cannot be computed.
    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>>;

    /// Computes the outputs. Inputs have the types and ranks that [`Kernel::outputs`] was shown.
    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>>;

    /// An operator of tract that computes the same of the first input alone, and may be fused with others.
    fn in_tract(&self, _inputs: &[Fact]) -> Option<Box<dyn TypedOp>> {
        None
    }

    /// The kernel to run for inputs of these types, if it is another one.
    fn specialized(&self, _inputs: &[Fact]) -> Option<Arc<dyn Kernel>> {
        None
    }

    /// The kernel to run with constants among its inputs, of which it keeps what it makes of them.
    fn packed(&self, _inputs: &[Fact], _packs: &mut Packs) -> TractResult<Option<Arc<dyn Kernel>>> {
        Ok(None)
    }

    /// What it keeps of constants: an address, and bytes.
    fn kept(&self) -> Option<(usize, u64)> {
        None
    }
}

/// Puts kernels that keep what they make of constants in the place of others.
pub(super) fn pack(model: &mut TypedModel, packs: &mut Packs) -> TractResult<()> {
    for id in 0..model.nodes().len() {
        let node = model.node(id);
        let Some(KernelOp(kernel)) = node.op_as::<KernelOp>() else {
            continue;
        };
        cancelling::check_all()?;
        let inputs = node.inputs.iter();
        let facts = inputs.map(|input| Ok(Fact::of(model.outlet_fact(*input)?)));
        let facts: Vec<Fact> = facts.collect::<TractResult<_>>()?;
        if let Some(packed) = kernel.packed(&facts, packs)? {
            model.node_mut(id).op = Box::new(KernelOp(packed));
        }
    }
    Ok(())
}

/// What the kernel of a node keeps of constants: an address, and bytes.
pub(crate) fn kept(node: &TypedNode) -> Option<(usize, u64)> {
    let KernelOp(kernel) = node.op_as::<KernelOp>()?;
    kernel.kept()
}

/// Wraps a kernel for tract.
pub(crate) fn kernel(kernel: impl Kernel) -> Box<dyn InferenceOp> {
    Box::new(KernelOp(Arc::new(kernel)))
}

/// Wraps a kernel for a plan whose types are known.
pub(crate) fn typed(kernel: impl Kernel) -> impl TypedOp {
    KernelOp(Arc::new(kernel))
}

/// The kernel of an operator that is computed here, the one for inputs of these types.
pub(super) fn of(op: &dyn InferenceOp, inputs: &[Fact]) -> Option<Arc<dyn Kernel>> {
    let KernelOp(kernel) = op.as_op().downcast_ref::<KernelOp>()?;
    Some(kernel.specialized(inputs).unwrap_or_else(|| kernel.clone()))
}

#[derive(Clone, Debug)]
struct KernelOp(Arc<dyn Kernel>);

impl KernelOp {
    fn outputs(&self, inputs: &[Fact]) -> TractResult<TVec<Fact>> {
        let plain = |(place, fact): (usize, &Fact)| Fact {
            datum_type: match fact.datum_type {
                DatumType::TDim if !self.0.takes_sizes().contains(&place) => DatumType::I64,
                other => other,
            },
            ..fact.clone()
        };
        let inputs: Vec<Fact> = inputs.iter().enumerate().map(plain).collect();
        let outputs: TVec<Fact> = self.0.outputs(&inputs)?.into_iter().collect();
        let of_constants = inputs.iter().all(|input| input.constant.is_some());
        for output in &outputs {
            crate::size::admit_planned(of_constants, output.datum_type, &output.shape)?;
        }
        Ok(outputs)
    }
}

impl Op for KernelOp {
    fn name(&self) -> StaticName {
        self.0.name().into()
    }

    fn mints_runtime_symbols(&self) -> bool {
        self.0.names_sizes()
    }

    op_as_typed_op!();
}

impl PartialEq for KernelOp {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for KernelOp {}

impl EvalOp for KernelOp {
    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        match self.0.is_pure() {
            true => self.eval(&EvalContext::out_of_plan(), inputs).map(Some),
            false => Ok(None),
        }
    }

    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let inputs: TVec<Arc<Tensor>> = inputs
            .into_iter()
            .enumerate()
            .map(|(place, input)| match self.0.takes_sizes().contains(&place) {
                true => Ok(input.into_arc_tensor()),
                false => numbers(input, context.symbols),
            })
            .collect::<TractResult<_>>()?;
        Ok(self
            .0
            .run(&inputs)?
            .into_iter()
            .map(Tensor::into_tvalue)
            .collect())
    }
}

impl TypedOp for KernelOp {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let inputs: Vec<Fact> = inputs.iter().map(|fact| Fact::of(fact)).collect();
        let outputs = self.outputs(&inputs)?;
        Ok(outputs
            .into_iter()
            .map(|fact| fact.datum_type.fact(fact.shape))
            .collect())
    }

    as_op!();
}

impl InferenceOp for KernelOp {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        let known: Option<Vec<Fact>> = inputs.iter().map(|fact| known(fact)).collect();
        let mut inferred: TVec<InferenceFact> = outputs.into_iter().cloned().collect();
        if let Some(known) = known {
            let facts = self.outputs(&known)?;
            ensure!(
                facts.len() >= inferred.len(),
                "{} has {} outputs",
                self.0.name(),
                facts.len()
            );
            for (inferred, fact) in inferred.iter_mut().zip(facts) {
                // Computed already, of constants.
                if self.0.names_sizes() && inferred.value.concretize().is_some() {
                    continue;
                }
                inferred.unify_with(&InferenceFact::dt_shape(fact.datum_type, fact.shape))?;
            }
        }
        let inputs = inputs.into_iter().cloned().collect();
        Ok((inputs, inferred, observed.into_iter().cloned().collect()))
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(self.0.output_count())
    }

    fn to_typed(
        &self,
        _source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        let mut facts = Vec::with_capacity(inputs.len());
        for input in &inputs {
            facts.push(Fact::of(target.outlet_fact(*input)?));
        }
        if let Some(op) = self.0.in_tract(&facts) {
            return target.wire_node(&*node.name, op, &inputs[..1]);
        }
        let op = self.0.specialized(&facts).map_or_else(|| self.clone(), KernelOp);
        target.wire_node(&*node.name, op, &inputs)
    }

    as_op!();
}

/// What is known of a value during analysis, `None` while type or dimensions are not.
pub(crate) fn known(fact: &InferenceFact) -> Option<Fact> {
    Some(Fact {
        datum_type: fact.datum_type.concretize()?,
        shape: fact.shape.concretize()?,
        constant: fact.value.concretize(),
        sizes: None,
    })
}

/// Symbolic dimensions as the numbers they are in this run; everything else as it is.
pub(crate) fn numbers(value: TValue, symbols: &SymbolValues) -> TractResult<Arc<Tensor>> {
    if value.datum_type() != DatumType::TDim {
        return Ok(value.into_arc_tensor());
    }
    let view = value.try_as_plain_ram()?;
    let dims = view.as_slice::<TDim>()?.iter();
    let numbers = dims
        .map(|dim| Ok(dim.eval(symbols).to_i64()?))
        .collect::<TractResult<Vec<i64>>>()?;
    Ok(Tensor::from_shape(value.shape(), &numbers)?.into_arc_tensor())
}
