use tensor_core::Shape;

use crate::{DataType, ModelRef, Parameters, ServiceError, SharedMemorySlice, TensorValue};

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
    /// The client's name for this request; the response carries it too.
    pub id: Option<String>,
    /// Parameters of the request as a whole.
    pub parameters: Parameters,
    /// The input tensors.
    pub inputs: Vec<InferInput>,
    /// The outputs wanted; none named means all of them.
    pub outputs: Vec<RequestedOutput>,
    /// The requests that a server has joined into this one, in the order of their rows; empty for a request by itself. Not part
    /// of what clients send.
    pub parts: Vec<RequestPart>,
}

/// One of several requests that were joined into one along their first dimension.
///
/// ```
/// use oip_types::RequestPart;
///
/// let part = RequestPart { id: Some("7".to_owned()), rows: 2, outputs: vec![] };
/// assert_eq!(part.rows, 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPart {
    /// The client's name for it.
    pub id: Option<String>,
    /// How many rows of the joined inputs are its own.
    pub rows: u64,
    /// The names of the outputs that it wants; empty for all.
    pub outputs: Vec<String>,
}

impl InferRequest {
    /// A request to a model, without inputs yet.
    #[must_use]
    pub fn new(model: ModelRef<'_>) -> Self {
        Self {
            model_name: model.name().to_owned(),
            model_version: model.version().map(str::to_owned),
            id: None,
            parameters: Parameters::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Bytes of memory that it takes beside the elements of its tensors, about: names, parameters and the tables that
    /// hold them.
    #[must_use]
    pub fn overhead_bytes(&self) -> usize {
        /// An entry of a table, with what the table keeps free.
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

    /// Adds an input.
    #[must_use]
    pub fn with_input(mut self, name: impl Into<String>, value: impl Into<TensorValue>) -> Self {
        self.inputs.push(InferInput {
            name: name.into(),
            value: value.into(),
            parameters: Parameters::new(),
        });
        self
    }

    /// Adds an input whose elements the server finds in shared memory: what is sent is its datatype and shape, and the place.
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
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when such a tensor does not fit into memory.
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

    /// Asks for an output.
    #[must_use]
    pub fn with_output(mut self, name: impl Into<String>) -> Self {
        self.outputs.push(RequestedOutput {
            name: name.into(),
            parameters: Parameters::new(),
        });
        self
    }

    /// Which model is to run.
    ///
    /// # Panics
    /// Never: the names were checked when the request was made.
    #[must_use]
    pub fn model(&self) -> ModelRef<'_> {
        ModelRef::new(&self.model_name, self.model_version.as_deref())
            .expect("names are checked at construction")
    }

    /// Finds an input by name.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<&TensorValue> {
        self.inputs
            .iter()
            .find(|input| input.name == name)
            .map(|input| &input.value)
    }

    /// Takes an input's value out by name, for models that pass it on.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when there is no such input.
    pub fn take_input(&mut self, name: &str) -> Result<TensorValue, ServiceError> {
        let position = self.inputs.iter().position(|input| input.name == name);
        let position = position.ok_or_else(|| ServiceError::invalid(format!("input '{name}' is missing")))?;
        Ok(self.inputs.swap_remove(position).value)
    }
}

/// An input tensor with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct InferInput {
    /// The model's name for it.
    pub name: String,
    /// What it holds.
    pub value: TensorValue,
    /// Parameters of this input. Where they name a place in shared memory
    /// ([`SharedMemorySlice::to_parameters`]), clients send the place and not the value.
    pub parameters: Parameters,
}

/// An output the client wants.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedOutput {
    /// The model's name for it.
    pub name: String,
    /// Parameters of this output.
    pub parameters: Parameters,
}

/// What a model answered.
#[derive(Clone, Debug, PartialEq)]
pub struct InferResponse {
    /// The model that ran.
    pub model_name: String,
    /// The version of it that ran; none for models without versions.
    pub model_version: Option<String>,
    /// The request's id.
    pub id: Option<String>,
    /// Parameters of the response as a whole.
    pub parameters: Parameters,
    /// The output tensors.
    pub outputs: Vec<InferOutput>,
}

impl InferResponse {
    /// Finds an output by name.
    #[must_use]
    pub fn output(&self, name: &str) -> Option<&TensorValue> {
        self.outputs
            .iter()
            .find(|output| output.name == name)
            .map(|output| &output.value)
    }
}

/// An output tensor with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct InferOutput {
    /// The model's name for it.
    pub name: String,
    /// What it holds.
    pub value: TensorValue,
    /// Parameters of this output. REST bodies carry them for binary outputs only: Triton's C++ client gives up on a
    /// JSON output that has any.
    pub parameters: Parameters,
    /// Where in shared memory the client finds its bytes, which then do not travel with the response.
    pub shared_memory: Option<SharedMemorySlice>,
}

impl InferOutput {
    /// An output without parameters.
    pub fn new(name: impl Into<String>, value: impl Into<TensorValue>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            parameters: Parameters::new(),
            shared_memory: None,
        }
    }
}
