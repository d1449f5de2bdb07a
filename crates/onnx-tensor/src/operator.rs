//! The operator trait: infers types and dimensions of outputs before a run, and computes the outputs.

use std::{any::Any, fmt};

use crate::prelude::*;

use crate::packs::Packs;

/// The known facts about a value before the model runs.
#[derive(Clone, Debug)]
pub struct Fact {
    /// The type of the value's elements.
    pub element_type: ElementType,
    /// The value's dimensions, each of which may be unknown.
    pub shape: ShortVec<Dim>,
    /// The value, if it is a constant.
    pub constant: Option<Arc<Tensor>>,
    /// The known elements of a value that is not a constant, as FP64. Unknown elements are NaN, which
    /// propagates through arithmetic.
    pub sizes: Option<Arc<Tensor>>,
}

impl Fact {
    /// Creates a fact from type and dimensions.
    pub fn new(element_type: ElementType, shape: impl IntoIterator<Item = Dim>) -> Self {
        Self {
            element_type,
            shape: shape.into_iter().collect(),
            constant: None,
            sizes: None,
        }
    }

    /// Returns facts that describe `values`: their types, shapes and elements.
    pub fn of_values(values: &[Arc<Tensor>]) -> Vec<Self> {
        let facts = values.iter().map(|value| Self {
            constant: Some(value.clone()),
            ..Self::new(value.element_type(), value.shape().iter().map(ToDim::to_dim))
        });
        facts.collect()
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns a fact with the same dimensions and another type.
    pub fn with(&self, element_type: ElementType) -> Self {
        Self::new(element_type, self.shape.iter().copied())
    }

    /// Returns the integers of a constant.
    pub fn integers(&self) -> Option<Vec<i64>> {
        let numbers = self.constant.as_ref()?.cast_to::<i64>().ok()?;
        Some(numbers.as_slice::<i64>().ok()?.to_vec())
    }

    /// Returns the elements of a constant, or the tracked [`sizes`](Self::sizes), as dimensions. Some of them
    /// may be unknown.
    pub fn dims(&self) -> Option<Vec<Dim>> {
        if let (None, Some(sizes)) = (&self.constant, &self.sizes) {
            let numbers = crate::elements::elements::<f64>(sizes).ok()?;
            let dim = |number: &f64| match number.is_finite() {
                true => (*number as i64).to_dim(),
                false => Dim::unknown(),
            };
            return Some(numbers.iter().map(dim).collect());
        }
        match self.element_type.is_integer() {
            true => Some(self.integers()?.iter().map(ToDim::to_dim).collect()),
            false => None,
        }
    }

    /// Returns the first element of a constant.
    pub fn number(&self) -> Option<f64> {
        crate::elements::scalar::<f64>(self.constant.as_ref()?).ok()
    }

    /// Returns the elements of an FP32 constant.
    pub fn floats(&self) -> Option<Vec<f32>> {
        Some(self.constant.as_ref()?.as_slice::<f32>().ok()?.to_vec())
    }
}

/// The present inputs of a node: the value of each constant, `None` for the others.
pub type Constants<'c> = &'c [Option<Arc<Tensor>>];

/// An operator, with its attributes. Its inputs are those of the node, in order; absent optional inputs are
/// left out.
pub trait Compute: Any + fmt::Debug + Send + Sync {
    /// Returns the types and dimensions of the outputs; `None` if only the run itself determines them. Before
    /// a run, dimensions of inputs may be unknown. In a run, all dimensions are numbers, and all inputs are
    /// constants.
    ///
    /// # Errors
    /// Returns an error that says why the inputs are invalid.
    fn outputs(&self, _inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        Ok(None)
    }

    /// Derives data from constant inputs, such as packed weights, within the memory limit of `packs`. Returns
    /// the index of an input that [`Compute::run`] no longer needs; it gets an empty tensor for that input.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    fn take_over(&mut self, _constants: &[Option<Arc<Tensor>>], _packs: &mut Packs) -> Result<Option<usize>> {
        Ok(None)
    }

    /// Returns the gated form of this operator, if supported: an operator that multiplies its input by this
    /// operator's result.
    fn gated(&self) -> Option<Box<dyn Compute>> {
        None
    }

    /// Fuses `next`, the only consumer of the result, into this operator, if supported. Returns whether
    /// `next` was fused.
    fn follow(&mut self, _next: &dyn Compute) -> bool {
        false
    }

    /// Fuses `next`, the only consumer of the result, into this operator, if supported. The other inputs of `next`
    /// then follow those of this operator. Returns `next` if it was not fused.
    fn chain(&mut self, next: Box<dyn Compute>, _wiring: Wiring<'_>) -> Option<Box<dyn Compute>> {
        Some(next)
    }

    /// Computes the outputs from inputs that [`Compute::outputs`] has accepted. An input without other
    /// references may be overwritten.
    ///
    /// # Errors
    /// Returns an error for invalid values of inputs, and on cancellation.
    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>>;
}

/// The inputs of an operator and of the only consumer of its result.
#[derive(Clone, Copy, Debug)]
pub struct Wiring<'w> {
    /// The number of inputs of the operator.
    pub inputs: usize,
    /// The index of the result among the inputs of the consumer.
    pub place: usize,
    /// The number of the consumer's other inputs.
    pub others: usize,
    /// The name of the consumer, which its errors carry as context.
    pub label: &'w str,
}

/// An operator that allocates its outputs.
pub trait Kernel: fmt::Debug + Send + Sync + 'static {
    /// Returns the types and dimensions of the outputs.
    ///
    /// # Errors
    /// Returns an error that says why the inputs are invalid.
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>>;

    /// Computes the outputs from inputs whose types and ranks [`Kernel::outputs`] has accepted.
    ///
    /// # Errors
    /// Returns the errors of [`Compute::run`].
    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>>;
}

/// Wraps a kernel as an operator.
pub fn kernel(kernel: impl Kernel) -> Box<dyn Compute> {
    Box::new(NewTensors(kernel))
}

#[derive(Debug)]
struct NewTensors<K>(K);

impl<K: Kernel> Compute for NewTensors<K> {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        self.0.outputs(inputs).map(Some)
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        Ok(self.0.run(inputs)?.into_iter().map(Arc::new).collect())
    }
}
