//! A client of inference servers that blocks the calling thread only.

use std::time::Duration;

use oip_client::InferenceClient;
use oip_types::{BytesTensor, DataType, InferRequest, ModelRef, TensorValue};
use pyo3::{prelude::*, types::PyList};
use tensor_core::{Shape, Tensor, TensorSpec};
use tokio::runtime::Runtime;

use crate::{
    buffer::{Borrowed, Buffer},
    error,
};

/// A connection pool to a server, over whichever transport its URL names.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Client {
    // Dropped before the runtime that drives its connections.
    client: Box<dyn InferenceClient>,
    runtime: Runtime,
}

/// An input: name, the protocol's datatype, shape, and an object with its raw bytes, or a list of byte strings for BYTES.
type Input<'py> = (String, String, Vec<u64>, Bound<'py, PyAny>);

/// An output: name, the protocol's datatype, shape, its raw bytes; BYTES have a length of four bytes, little-endian,
/// before each element.
type Output = (String, String, Vec<u64>, Buffer);

/// A tensor of a model: name, the protocol's datatype, shape with -1 for free dimensions.
type Described = (String, String, Vec<i64>);

/// A model: versions, platform, inputs, outputs.
type DescribedModel = (Vec<String>, String, Vec<Described>, Vec<Described>);

/// A model of the repository: name, version, state, reason.
type Listed = (String, Option<String>, String, String);

#[pymethods]
impl Client {
    #[new]
    fn new(
        py: Python<'_>,
        url: String,
        timeout: Option<f64>,
        headers: Vec<(String, String)>,
    ) -> PyResult<Self> {
        // One thread drives connections; callers wait on their own.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tensorferry")
            .enable_all()
            .build()?;
        let mut builder = oip_client::builder(url);
        builder = match timeout {
            None => builder.no_request_timeout(),
            Some(seconds) => {
                let timeout = Duration::try_from_secs_f64(seconds)
                    .map_err(|error| error::usage(format!("timeout: {error}")))?;
                builder.request_timeout(timeout)
            }
        };
        for (name, value) in headers {
            builder = builder.header(name, value);
        }
        let client = {
            let _entered = runtime.enter();
            builder.build().map_err(|error| error::of_call(py, &error))?
        };
        Ok(Self { client, runtime })
    }

    fn server_live(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |client| client.server_live())
    }

    fn server_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |client| client.server_ready())
    }

    fn model_ready(&self, py: Python<'_>, name: &str, version: Option<&str>) -> PyResult<bool> {
        let model = model(name, version)?;
        self.call(py, |client| client.model_ready(model))
    }

    /// Name, version, extensions.
    fn server_metadata(&self, py: Python<'_>) -> PyResult<(String, String, Vec<String>)> {
        let metadata = self.call(py, |client| client.server_metadata())?;
        Ok((metadata.name, metadata.version, metadata.extensions))
    }

    /// Versions, platform, inputs, outputs.
    fn model_metadata(&self, py: Python<'_>, name: &str, version: Option<&str>) -> PyResult<DescribedModel> {
        let model = model(name, version)?;
        let metadata = self.call(py, |client| client.model_metadata(model))?;
        let described = |tensors: &[oip_types::TensorMetadata]| {
            let tensors = tensors.iter();
            tensors
                .map(|tensor| {
                    (
                        tensor.name.clone(),
                        tensor.datatype.to_string(),
                        tensor.shape.to_wire().collect(),
                    )
                })
                .collect()
        };
        let (inputs, outputs) = (described(&metadata.inputs), described(&metadata.outputs));
        Ok((metadata.versions, metadata.platform, inputs, outputs))
    }

    /// The models of the repository: name, version, state, reason.
    fn models(&self, py: Python<'_>) -> PyResult<Vec<Listed>> {
        let index = self.call(py, |client| client.repository_index(false))?;
        let models = index.into_iter();
        Ok(models
            .map(|entry| {
                let state = entry
                    .state
                    .map(|state| state.name().to_owned())
                    .unwrap_or_default();
                (entry.name, entry.version, state, entry.reason)
            })
            .collect())
    }

    fn load_model(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let options = oip_types::LoadOptions::default();
        self.call(py, |client| client.load_model(name, &options))
    }

    fn unload_model(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let options = oip_types::UnloadOptions::default();
        self.call(py, |client| client.unload_model(name, options))
    }

    /// Runs a model. An empty list of outputs asks for all.
    fn infer(
        &self,
        py: Python<'_>,
        name: &str,
        version: Option<&str>,
        inputs: Vec<Input<'_>>,
        outputs: Vec<String>,
    ) -> PyResult<Vec<Output>> {
        let mut request = InferRequest::new(model(name, version)?);
        for (name, datatype, shape, data) in inputs {
            let value = value(&datatype, &shape, &data)
                .map_err(|error| error::usage(format!("input '{name}': {error}")))?;
            request = request.with_input(name, value);
        }
        for output in outputs {
            request = request.with_output(output);
        }
        let response = self.call(py, |client| client.infer(&request))?;
        let outputs = response.outputs.into_iter();
        Ok(outputs
            .map(|output| {
                let datatype = output.value.datatype().to_string();
                let shape = output.value.shape().dims().to_vec();
                (output.name, datatype, shape, Buffer::new(output.value.into_raw()))
            })
            .collect())
    }
}

impl Client {
    /// Makes a call without the interpreter's lock.
    fn call<'a, T: Send>(
        &'a self,
        py: Python<'_>,
        call: impl FnOnce(&'a dyn InferenceClient) -> oip_client::BoxFuture<'a, oip_client::Result<T>> + Send,
    ) -> PyResult<T> {
        let called = py.detach(|| self.runtime.block_on(call(&*self.client)));
        called.map_err(|error| error::of_call(py, &error))
    }
}

fn model<'a>(name: &'a str, version: Option<&'a str>) -> PyResult<ModelRef<'a>> {
    ModelRef::new(name, version).map_err(|error| error::usage(error.message()))
}

/// An input's value; its bytes are copied once.
fn value(datatype: &str, shape: &[u64], data: &Bound<'_, PyAny>) -> Result<TensorValue, String> {
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
            let data = Borrowed::new(data).map_err(|error| error.to_string())?;
            let value = Tensor::new(spec, data.to_bytes()).map_err(|error| error.to_string())?;
            Ok(value.into())
        }
    }
}
