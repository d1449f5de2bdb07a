//! Converts requests and responses between Python and the protocol.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use oip_types::{
    BytesTensor, DataType, InferInput, InferRequest, InferResponse, ModelRef, ParameterValue, Parameters,
    RequestedOutput, SharedMemorySlice, TensorValue, check_parameter_name,
};
use pyo3::{
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyBytes, PyList},
};
use tensor_core::{Shape, SpareBuffers, Tensor, TensorSpec};

use crate::{
    buffer::{Buffer, PythonBytes},
    error,
};

/// A parameter's value, as the corresponding Python type.
#[derive(FromPyObject, IntoPyObject)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
}

impl From<Value> for ParameterValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(value),
            Value::Int(value) => Self::Int64(value),
            Value::Uint(value) => Self::Uint64(value),
            Value::Double(value) => Self::Double(value),
            Value::Text(value) => Self::String(value),
        }
    }
}

impl From<ParameterValue> for Value {
    fn from(value: ParameterValue) -> Self {
        match value {
            ParameterValue::Bool(value) => Self::Bool(value),
            ParameterValue::Int64(value) => Self::Int(value),
            ParameterValue::Uint64(value) => Self::Uint(value),
            ParameterValue::Double(value) => Self::Double(value),
            ParameterValue::String(value) => Self::Text(value),
            other => Self::Text(other.to_string()),
        }
    }
}

type Values = BTreeMap<String, Value>;

/// An input: name, datatype, shape, an object with its bytes (a list of byte strings for BYTES; None if
/// parameters refer to shared memory), and parameters.
type Input<'py> = (String, String, Vec<u64>, Bound<'py, PyAny>, Values);

/// An output: name, datatype, shape, bytes and parameters. Elements of BYTES are prefixed with a length of
/// four bytes, little-endian. An output in shared memory has no bytes; its parameters name the region.
type Output = (String, String, Vec<u64>, Buffer, Values);

/// A response: model, version, id, parameters, outputs.
pub(crate) type ResponseParts = (String, Option<String>, Option<String>, Values, Vec<Output>);

/// Arguments of an inference.
#[derive(FromPyObject)]
pub(crate) struct InferArguments<'py>(
    String,
    Option<String>,
    Vec<Input<'py>>,
    Vec<(String, Values)>,
    Option<String>,
    Values,
);

impl InferArguments<'_> {
    /// Converts the arguments to a request. Large inputs are copied into buffers from `spare`.
    pub(crate) fn into_request(self, spare: &Arc<SpareBuffers>) -> PyResult<InferRequest> {
        let Self(name, version, inputs, outputs, id, parameters) = self;
        let mut request = named(&name, version.as_deref())?;
        request.id = id;
        request.parameters = read_parameters(parameters)?;
        for (name, datatype, shape, data, parameters) in inputs {
            let parameters = read_parameters(parameters)?;
            let value = match SharedMemorySlice::is_in(&parameters) {
                true => elsewhere(&datatype, &shape),
                false => value(&datatype, &shape, &data, |data| data.to_spare(spare)),
            };
            let value = value.map_err(|error| error::usage(format!("input '{name}': {error}")))?;
            request.inputs.push(InferInput {
                name,
                value,
                parameters,
            });
        }
        for (name, parameters) in outputs {
            let parameters = read_parameters(parameters)?;
            request.outputs.push(RequestedOutput { name, parameters });
        }
        Ok(request)
    }
}

fn read_parameters(values: Values) -> PyResult<Parameters> {
    let mut parameters = Parameters::new();
    for (name, value) in values {
        // Clients may send this reserved parameter over streams. All other reserved names are rejected.
        if name != "triton_enable_empty_final_response" {
            check_parameter_name(&name).map_err(|error| error::usage(error.message()))?;
        }
        parameters.insert(name, value.into());
    }
    Ok(parameters)
}

fn values(parameters: Parameters) -> Values {
    let values = parameters.into_iter();
    values.map(|(name, value)| (name, value.into())).collect()
}

pub(crate) fn response_parts(response: InferResponse) -> ResponseParts {
    let outputs = response.outputs.into_iter().map(|output| {
        let datatype = output.value.datatype().to_string();
        let shape = output.value.shape().dims().to_vec();
        let mut parameters = output.parameters;
        let data = match output.shared_memory {
            None => output.value.into_raw(),
            Some(place) => {
                parameters.extend(place.to_parameters());
                Bytes::new()
            }
        };
        (
            output.name,
            datatype,
            shape,
            Buffer::new(data),
            values(parameters),
        )
    });
    (
        response.model_name,
        response.model_version,
        response.id,
        values(response.parameters),
        outputs.collect(),
    )
}

/// Creates a request for a model, with checked names.
pub(crate) fn named(name: &str, version: Option<&str>) -> PyResult<InferRequest> {
    let model = ModelRef::new(name, version).map_err(|error| error::usage(error.message()))?;
    Ok(InferRequest::new(model))
}

/// Creates the placeholder of an input in shared memory, whose bytes are not sent.
fn elsewhere(datatype: &str, shape: &[u64]) -> Result<TensorValue, String> {
    let shape = Shape::new(shape).map_err(|error| error.to_string())?;
    let value = DataType::from_name(datatype)
        .and_then(|datatype| TensorValue::zeros(datatype, shape, isize::MAX as usize));
    value.map_err(|error| error.message().to_owned())
}

/// Converts a tensor's value. Copies its data once, except for Python's `bytes`, which are shared.
pub(crate) fn value(
    datatype: &str,
    shape: &[u64],
    data: &Bound<'_, PyAny>,
    copy: impl FnOnce(&PythonBytes) -> Bytes,
) -> Result<TensorValue, String> {
    let shape = Shape::new(shape).map_err(|error| error.to_string())?;
    let datatype = DataType::from_name(datatype).map_err(|error| error.message().to_owned())?;
    match datatype {
        DataType::Bytes => {
            let elements = data.cast::<PyList>().map_err(|error| error.to_string())?;
            let elements: PyResult<Vec<Vec<u8>>> = elements.iter().map(|element| element.extract()).collect();
            let elements = elements.map_err(|error| error.to_string())?;
            let value =
                BytesTensor::from_elements(shape, elements).map_err(|error| error.message().to_owned())?;
            Ok(value.into())
        }
        DataType::Fixed(dtype) => {
            let spec = TensorSpec::new(dtype, shape).map_err(|error| error.to_string())?;
            let data = match data.cast::<PyBytes>() {
                // `bytes` is immutable.
                Ok(bytes) => Bytes::from_owner(PyBackedBytes::from(bytes.clone())),
                Err(_) => copy(&PythonBytes::new(data).map_err(|error| error.to_string())?),
            };
            let value = Tensor::new(spec, data).map_err(|error| error.to_string())?;
            Ok(value.into())
        }
    }
}
