//! Inference requests and responses, independent of the transport.

use tensor_core::{Element, QuotedName, Shape};

use crate::{DataType, Elements, ModelRef, Parameters, ServiceError, SharedMemorySlice, TensorValue};

/// A request to run a model.
///
/// ```
/// use oip_types::{InferInput, InferRequest, ModelRef};
/// use tensor_core::{Shape, Tensor};
///
/// let pixels = Tensor::from_vec(Shape::new(&[1, 4])?, vec![0.0f32, 0.5, 1.0, 0.5])?;
/// let request = InferRequest::new(ModelRef::new("digits", None).unwrap())
///     .with_input("X", pixels)
///     .with_output("probabilities");
/// assert_eq!(request.inputs[0].value.shape().dims(), [1, 4]);
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct InferRequest {
    model_name: String,
    model_version: Option<String>,
    /// The client's id for this request; the response repeats it.
    pub id: Option<String>,
    /// Parameters of the request as a whole.
    pub parameters: Parameters,
    /// The input tensors, each with its name.
    pub inputs: Vec<InferInput>,
    /// The requested outputs; empty for all.
    pub outputs: Vec<RequestedOutput>,
}

impl InferRequest {
    /// Creates a request to a model, without inputs yet.
    #[must_use]
    pub fn new(model: ModelRef<'_>) -> Self {
        Self {
            model_name: model.name().to_owned(),
            model_version: model.version().map(str::to_owned),
            id: None,
            parameters: Parameters::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// Estimates the memory of names, parameters and the collections that hold them, in bytes. Tensor
    /// elements are not included.
    #[must_use]
    pub fn overhead_bytes(&self) -> usize {
        /// Memory of one collection entry, including its share of spare capacity.
        const ENTRY: usize = 128;
        let parameters = |parameters: &Parameters| {
            let entries = parameters.iter().map(|(name, value)| {
                let text = value.as_str().map_or(0, str::len);
                ENTRY + name.len() + text
            });
            entries.sum::<usize>()
        };
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|input| 2 * ENTRY + input.name.len() + parameters(&input.parameters));
        let outputs = self.outputs.iter();
        let outputs = outputs.map(|output| ENTRY + output.name.len() + parameters(&output.parameters));
        let id = self.id.as_ref().map_or(0, String::len);
        id + parameters(&self.parameters) + inputs.sum::<usize>() + outputs.sum::<usize>()
    }

    /// Adds an input without parameters.
    #[must_use]
    pub fn with_input(mut self, name: impl Into<String>, value: impl Into<TensorValue>) -> Self {
        self.inputs.push(InferInput {
            name: name.into(),
            value: value.into(),
            parameters: Parameters::new(),
        });
        self
    }

    /// Adds an input whose elements are in shared memory. The request carries the input's datatype, shape and
    /// location.
    ///
    /// ```
    /// use oip_types::{DataType, InferRequest, ModelRef, SharedMemorySlice};
    /// use tensor_core::Shape;
    ///
    /// let place = SharedMemorySlice { region: "images".into(), offset: 0, byte_size: 256 };
    /// let request = InferRequest::new(ModelRef::new("digits", None).unwrap());
    /// let request = request.with_shared_input("X", DataType::FP32, Shape::new(&[1, 64])?, &place).unwrap();
    /// assert_eq!(request.inputs[0].value.shape().dims(), [1, 64]);
    /// # Ok::<(), tensor_core::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when a tensor of this shape does not fit into
    /// memory.
    pub fn with_shared_input(
        mut self,
        name: impl Into<String>,
        datatype: DataType,
        shape: Shape,
        place: &SharedMemorySlice,
    ) -> Result<Self, ServiceError> {
        self.inputs.push(InferInput {
            name: name.into(),
            value: TensorValue::zeros(datatype, shape, isize::MAX as usize)?,
            parameters: place.to_parameters(),
        });
        Ok(self)
    }

    /// Requests the output `name`, without parameters.
    #[must_use]
    pub fn with_output(mut self, name: impl Into<String>) -> Self {
        self.outputs.push(RequestedOutput {
            name: name.into(),
            parameters: Parameters::new(),
        });
        self
    }

    /// Returns the model to run.
    ///
    /// # Panics
    /// Never: names are checked by the constructor.
    #[must_use]
    pub fn model(&self) -> ModelRef<'_> {
        ModelRef::new(&self.model_name, self.model_version.as_deref())
            .expect("names are checked at construction")
    }

    /// Returns the value of the input `name`; `None` if the request has no such input.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<&TensorValue> {
        self.inputs
            .iter()
            .find(|input| input.name == name)
            .map(|input| &input.value)
    }

    /// Removes an input by name and returns its value.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the input does not exist.
    pub fn take_input(&mut self, name: &str) -> Result<TensorValue, ServiceError> {
        let position = self.inputs.iter().position(|input| input.name == name);
        let position = position.ok_or_else(|| ServiceError::invalid(format!("input '{name}' is missing")))?;
        Ok(self.inputs.swap_remove(position).value)
    }

    /// Removes an input by name and returns its elements, for models that compute with them.
    ///
    /// ```
    /// use oip_types::{InferRequest, ModelRef};
    /// use tensor_core::Tensor;
    ///
    /// let request = InferRequest::new(ModelRef::new("m", None)?);
    /// let mut request = request.with_input("x", Tensor::from_slice([2], &[1.0f32, 2.0])?);
    /// assert_eq!(request.take::<f32>("x")?[..], [1.0, 2.0]);
    /// assert_eq!(request.take::<f32>("x").unwrap_err().message(), "input 'x' is missing");
    /// let mut request = request.with_input("x", Tensor::scalar(1i64));
    /// assert_eq!(request.take::<f32>("x").unwrap_err().message(), "input 'x': expected FP32, found INT64");
    /// # Ok::<(), oip_types::ServiceError>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the input does not exist or has another
    /// datatype.
    pub fn take<T: Element>(&mut self, name: &str) -> Result<Elements<T>, ServiceError> {
        let value = self.take_input(name)?;
        elements(&value)
            .map_err(|mismatch| ServiceError::invalid(format!("input {}: {mismatch}", QuotedName(name))))
    }
}

/// Returns the elements of a value, or a message about its wrong datatype.
fn elements<T: Element>(value: &TensorValue) -> Result<Elements<T>, String> {
    let (expected, found) = (DataType::Fixed(T::DTYPE), value.datatype());
    let values = value.as_fixed().and_then(|tensor| tensor.to_vec().ok());
    let values = values.ok_or_else(|| format!("expected {expected}, found {found}"))?;
    // `Elements::new` succeeds: a tensor has as many elements as its shape says.
    Elements::new(value.shape().clone(), values).map_err(|error| error.to_string())
}

/// A named input tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct InferInput {
    /// The input's name in the model's metadata.
    pub name: String,
    /// The tensor: datatype, shape and elements.
    pub value: TensorValue,
    /// Parameters of this input. If they name a slice of shared memory
    /// ([`SharedMemorySlice::to_parameters`]), clients send that slice instead of the value.
    pub parameters: Parameters,
}

/// An output that the client requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedOutput {
    /// The output's name in the model's metadata.
    pub name: String,
    /// Parameters of this output, such as the number of classes to return.
    pub parameters: Parameters,
}

/// A model's response to an inference request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct InferResponse {
    /// The name of the model that ran.
    pub model_name: String,
    /// The version of the model that ran; `None` for models without versions.
    pub model_version: Option<String>,
    /// The id of the request that this response belongs to.
    pub id: Option<String>,
    /// Parameters of the response as a whole.
    pub parameters: Parameters,
    /// The output tensors, each with its name.
    pub outputs: Vec<InferOutput>,
}

impl InferResponse {
    /// Creates a response of a model, without a version, an id or parameters.
    #[must_use]
    pub fn new(model_name: impl Into<String>, outputs: Vec<InferOutput>) -> Self {
        Self {
            model_name: model_name.into(),
            model_version: None,
            id: None,
            parameters: Parameters::new(),
            outputs,
        }
    }

    /// Returns the response with a model version.
    #[must_use]
    pub fn with_version(mut self, version: Option<String>) -> Self {
        self.model_version = version;
        self
    }

    /// Returns the response with the request's id.
    #[must_use]
    pub fn with_id(mut self, id: Option<String>) -> Self {
        self.id = id;
        self
    }

    /// Returns the response with `parameters` in place of its own parameters.
    #[must_use]
    pub fn with_parameters(mut self, parameters: Parameters) -> Self {
        self.parameters = parameters;
        self
    }

    /// Returns the elements of an output by name.
    ///
    /// # Errors
    /// [`Internal`](crate::ErrorCode::Internal) when the output does not exist or has another datatype.
    pub fn get<T: Element>(&self, name: &str) -> Result<Elements<T>, ServiceError> {
        let value = self.output(name).ok_or_else(|| {
            ServiceError::internal(format!(
                "the response of model {} has no output {}",
                QuotedName(&self.model_name),
                QuotedName(name)
            ))
        })?;
        elements(value)
            .map_err(|mismatch| ServiceError::internal(format!("output {}: {mismatch}", QuotedName(name))))
    }

    /// Returns the value of the output `name`; `None` if the response has no such output.
    #[must_use]
    pub fn output(&self, name: &str) -> Option<&TensorValue> {
        self.outputs
            .iter()
            .find(|output| output.name == name)
            .map(|output| &output.value)
    }
}

/// A named output tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct InferOutput {
    /// The output's name in the model's metadata.
    pub name: String,
    /// The tensor: datatype, shape and elements.
    pub value: TensorValue,
    /// Parameters of this output. REST bodies carry them only for binary outputs: Triton's C++ client fails
    /// on JSON outputs with parameters.
    pub parameters: Parameters,
    /// The shared memory slice that holds the output's bytes; `None` if the response carries them.
    pub shared_memory: Option<SharedMemorySlice>,
}

impl InferOutput {
    /// Creates an output without parameters.
    pub fn new(name: impl Into<String>, value: impl Into<TensorValue>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            parameters: Parameters::new(),
            shared_memory: None,
        }
    }
}
