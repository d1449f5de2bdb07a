//! What an operator is: types and dimensions of its outputs, and the outputs.

use std::{any::Any, fmt};

use crate::prelude::*;

use crate::packs::Packs;

/// What is known of a value that flows between nodes before the model runs.
#[derive(Clone, Debug)]
pub struct Fact {
    /// The type of its elements.
    pub element_type: ElementType,
    /// Its dimensions.
    pub shape: ShortVec<Dim>,
    /// The value, if it is a constant.
    pub constant: Option<Arc<Tensor>>,
    /// What is known of the numbers of a value that is no constant: FP64, NaN for each that is not known. Arithmetic with it is not
    /// known either.
    pub sizes: Option<Arc<Tensor>>,
}

impl Fact {
    /// A type and dimensions.
    pub fn new(element_type: ElementType, shape: impl IntoIterator<Item = Dim>) -> Self {
        Self {
            element_type,
            shape: shape.into_iter().collect(),
            constant: None,
            sizes: None,
        }
    }

    /// The facts of values that have been computed.
    pub fn of_values(values: &[Arc<Tensor>]) -> Vec<Self> {
        let facts = values.iter().map(|value| Self {
            constant: Some(value.clone()),
            ..Self::new(value.element_type(), value.shape().iter().map(ToDim::to_dim))
        });
        facts.collect()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The same dimensions with another type.
    pub fn with(&self, element_type: ElementType) -> Self {
        Self::new(element_type, self.shape.iter().copied())
    }

    /// The value as whole numbers, if it is a constant.
    pub fn integers(&self) -> Option<Vec<i64>> {
        let numbers = self.constant.as_ref()?.cast_to::<i64>().ok()?;
        Some(numbers.as_slice::<i64>().ok()?.to_vec())
    }

    /// The value as dimensions, which may be free, if it is a constant of whole numbers.
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

    /// The value as one number, if it is a constant.
    pub fn number(&self) -> Option<f64> {
        crate::elements::scalar::<f64>(self.constant.as_ref()?).ok()
    }

    /// The value as FP32, if it is a constant of that type.
    pub fn floats(&self) -> Option<Vec<f32>> {
        Some(self.constant.as_ref()?.as_slice::<f32>().ok()?.to_vec())
    }
}

/// What is known of the inputs of a node that are given: the value of each that is a constant.
pub type Constants<'c> = &'c [Option<Arc<Tensor>>];

/// What computes an operator. The inputs are those that are given, in their order.
pub trait Compute: Any + fmt::Debug + Send + Sync {
    /// The types and dimensions of the outputs, or why the inputs do not fit. In a run all dimensions are numbers, and all inputs
    /// constants; before it dimensions may be unknown. `None` if the outputs are only known once they are computed.
    ///
    /// # Errors
    /// Why the inputs do not fit.
    fn outputs(&self, _inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        Ok(None)
    }

    /// Keeps what it makes of constants among its inputs, as far as `packs` have room for it. If it says which input needs not be kept
    /// beside that, [`Compute::run`] is given nothing in its place from then on.
    ///
    /// # Errors
    /// If there is no memory.
    fn take_over(&mut self, _constants: &[Option<Arc<Tensor>>], _packs: &mut Packs) -> Result<Option<usize>> {
        Ok(None)
    }

    /// What gives its input times its result, if there is something.
    fn gated(&self) -> Option<Box<dyn Compute>> {
        None
    }

    /// Takes over the operator that its only result goes to, if it computes that on its way.
    fn follow(&mut self, _next: &dyn Compute) -> bool {
        false
    }

    /// The outputs, of inputs that [`Compute::outputs`] has found to fit. An input that nothing else holds may be written over.
    ///
    /// # Errors
    /// What of the inputs makes no sense, or that the run was cancelled.
    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>>;
}

/// An operator that makes new tensors of its inputs.
pub trait Kernel: fmt::Debug + Send + Sync + 'static {
    /// The types and dimensions of the outputs, or why the inputs do not fit.
    ///
    /// # Errors
    /// Why the inputs do not fit.
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>>;

    /// Computes the outputs. Inputs have the types and ranks that [`Kernel::outputs`] was shown.
    ///
    /// # Errors
    /// As [`Compute::run`].
    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>>;
}

/// A kernel as the operator of a node.
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
