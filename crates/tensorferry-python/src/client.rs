//! A client of inference servers. Each call either blocks the calling thread only, or tells a callback when it has ended.

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use oip_client::{Compression, InferenceClient, RetryPolicy, TensorForm};
use oip_types::{
    BytesTensor, DataType, InferInput, InferRequest, InferResponse, LoadOptions, LogSettings, ModelRef,
    ParameterValue, Parameters, RequestedOutput, SharedMemoryRegion, TensorValue, UnloadOptions,
    check_parameter_name, rest::json_body,
};
use pyo3::{IntoPyObjectExt, exceptions::PyRuntimeError, prelude::*, types::PyList};
use tensor_core::{Shape, Tensor, TensorSpec};
use tokio::runtime::Runtime;

use crate::{
    buffer::{Borrowed, Buffer},
    error,
    runtime::runtime,
};

/// A connection pool to a server, over whichever transport its URL names.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Client {
    client: Arc<dyn InferenceClient>,
    runtime: &'static Runtime,
    process: u32,
}

/// What connections are made with.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    timeout: Option<f64>,
    connect_timeout: f64,
    headers: Vec<(String, String)>,
    /// PEM.
    authorities: Option<Vec<u8>>,
    /// A certificate and its key, PEM.
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// `gzip`, `deflate`.
    compress: Option<String>,
    accept_compressed: bool,
    /// Whether tensors travel as values, not as they are in memory.
    typed: bool,
    attempts: u32,
    max_response_bytes: usize,
}

/// A parameter, which Python has as what it is.
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

/// An input: name, the protocol's datatype, shape, an object with its raw bytes or a list of byte strings for BYTES, and
/// its parameters.
type Input<'py> = (String, String, Vec<u64>, Bound<'py, PyAny>);

/// An output: name, the protocol's datatype, shape, its raw bytes, its parameters; BYTES have a length of four bytes,
/// little-endian, before each element.
type Output = (String, String, Vec<u64>, Buffer, Values);

/// An answer: model, version, id, parameters, outputs.
type Answer = (String, Option<String>, Option<String>, Values, Vec<Output>);

/// What is called when a call has ended: with an exception and None, or with None and the result.
type Callback = Option<Py<PyAny>>;

/// A call that runs.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Call(tokio::task::AbortHandle);

#[pymethods]
impl Call {
    /// Ends it, unless it has ended; its callback is not called then.
    fn cancel(&self) {
        self.0.abort();
    }
}

#[pymethods]
impl Client {
    #[new]
    fn new(py: Python<'_>, url: String, settings: Settings) -> PyResult<Self> {
        let runtime = runtime()?;
        let mut builder = oip_client::builder(url)
            .connect_timeout(seconds("connect_timeout", settings.connect_timeout)?)
            .max_answer_bytes(settings.max_response_bytes)
            .accept_compressed(settings.accept_compressed);
        builder = match settings.timeout {
            None => builder.no_request_timeout(),
            Some(timeout) => builder.request_timeout(seconds("timeout", timeout)?),
        };
        builder = match settings.compress.as_deref() {
            None => builder,
            Some("gzip") => builder.compress_requests(Compression::Gzip),
            Some("deflate") => builder.compress_requests(Compression::Deflate),
            Some(other) => {
                let message = format!("compress: expected 'gzip' or 'deflate', found '{other}'");
                return Err(error::usage(message));
            }
        };
        if settings.typed {
            builder = builder.tensor_form(TensorForm::Typed);
        }
        if let Some(pem) = settings.authorities {
            builder = builder.authorities(pem);
        }
        if let Some((certificate, key)) = settings.certificate {
            builder = builder.certificate(certificate, key);
        }
        builder = builder.retry(match settings.attempts {
            0 | 1 => RetryPolicy::never(),
            attempts => RetryPolicy::default().with(|policy| policy.attempts = attempts),
        });
        for (name, value) in settings.headers {
            builder = builder.header(name, value);
        }
        let client = {
            let _entered = runtime.enter();
            builder.build().map_err(|error| error::of_call(py, &error))?
        };
        Ok(Self {
            client: client.into(),
            runtime,
            process: std::process::id(),
        })
    }

    #[pyo3(signature = (callback=None))]
    fn server_live(&self, py: Python<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        self.call(py, callback, None, async move { client.server_live().await })
    }

    #[pyo3(signature = (callback=None))]
    fn server_ready(&self, py: Python<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        self.call(py, callback, None, async move { client.server_ready().await })
    }

    #[pyo3(signature = (name, version, callback=None))]
    fn model_ready(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<String>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        let named = named(&name, version.as_deref())?;
        self.call(py, callback, None, async move {
            client.model_ready(named.model()).await
        })
    }

    /// JSON, as over HTTP.
    #[pyo3(signature = (callback=None))]
    fn server_metadata(&self, py: Python<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        self.call(py, callback, None, async move {
            client.server_metadata().await.map(|found| json(&found))
        })
    }

    /// JSON, as over HTTP.
    #[pyo3(signature = (name, version, callback=None))]
    fn model_metadata(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<String>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        let named = named(&name, version.as_deref())?;
        self.call(py, callback, None, async move {
            let found = client.model_metadata(named.model()).await;
            found.map(|found| json(&found))
        })
    }

    /// JSON, as over HTTP.
    #[pyo3(signature = (name, version, callback=None))]
    fn model_config(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<String>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        let named = named(&name, version.as_deref())?;
        self.call(py, callback, None, async move {
            let found = client.model_config(named.model()).await;
            found.map(|found| json(&found))
        })
    }

    /// JSON: an array.
    #[pyo3(signature = (name, version, callback=None))]
    fn statistics(
        &self,
        py: Python<'_>,
        name: Option<String>,
        version: Option<String>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        let name = name.map(|name| named(&name, version.as_deref())).transpose()?;
        self.call(py, callback, None, async move {
            let model = name.as_ref().map(InferRequest::model);
            client.statistics(model).await.map(|found| json(&found))
        })
    }

    /// JSON: an array.
    #[pyo3(signature = (callback=None))]
    fn repository_index(&self, py: Python<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        self.call(py, callback, None, async move {
            client.repository_index(false).await.map(|found| json(&found))
        })
    }

    #[pyo3(signature = (name, config=None, callback=None))]
    fn load_model(
        &self,
        py: Python<'_>,
        name: String,
        config: Option<String>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        let options = LoadOptions::default().with(|options| options.config = config);
        self.call(py, callback, None, async move {
            client.load_model(&name, &options).await
        })
    }

    #[pyo3(signature = (name, with_dependents=false, callback=None))]
    fn unload_model(
        &self,
        py: Python<'_>,
        name: String,
        with_dependents: bool,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        let options = UnloadOptions::default().with(|options| options.unload_dependents = with_dependents);
        self.call(py, callback, None, async move {
            client.unload_model(&name, options).await
        })
    }

    /// Settings and changes as JSON.
    #[pyo3(signature = (changes, callback=None))]
    fn log_settings(&self, py: Python<'_>, changes: &str, callback: Callback) -> PyResult<Py<PyAny>> {
        let changes = oip_types::rest::decode_log_settings(changes.as_bytes(), &oip_types::Limits::default());
        let changes: LogSettings = changes.map_err(|error| error::usage(error.message()))?;
        let client = self.client.clone();
        self.call(py, callback, None, async move {
            client.log_settings(&changes).await.map(|found| json(&found))
        })
    }

    /// JSON: an array.
    #[pyo3(signature = (name=None, callback=None))]
    fn shared_memory_status(
        &self,
        py: Python<'_>,
        name: Option<String>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        self.call(py, callback, None, async move {
            let found = client.shared_memory_status(name.as_deref()).await;
            found.map(|found| json(&found))
        })
    }

    #[pyo3(signature = (name, key, offset, byte_size, callback=None))]
    fn register_shared_memory(
        &self,
        py: Python<'_>,
        name: String,
        key: String,
        offset: u64,
        byte_size: u64,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let region = SharedMemoryRegion {
            name,
            key,
            offset,
            byte_size,
        };
        let client = self.client.clone();
        self.call(py, callback, None, async move {
            client.register_shared_memory(&region).await
        })
    }

    #[pyo3(signature = (name=None, callback=None))]
    fn unregister_shared_memory(
        &self,
        py: Python<'_>,
        name: Option<String>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.clone();
        self.call(py, callback, None, async move {
            client.unregister_shared_memory(name.as_deref()).await
        })
    }

    /// Runs a model. An empty list of outputs asks for all.
    #[pyo3(signature = (request, timeout=None, callback=None))]
    fn infer(
        &self,
        py: Python<'_>,
        request: Given<'_>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let request = request.into_request()?;
        let client = self.client.clone();
        self.call(py, callback, timeout, async move {
            client.infer(&request).await.map(answer)
        })
    }

    /// Opens a stream of requests and answers.
    fn stream(&self) -> PyResult<Stream> {
        self.check_process()?;
        Ok(Stream::open(self.client.clone(), self.runtime))
    }
}

impl Client {
    /// What it calls with, and what drives that.
    pub(crate) fn parts(&self) -> (Arc<dyn InferenceClient>, &'static Runtime) {
        (self.client.clone(), self.runtime)
    }

    /// Makes a call: waits for its end without the interpreter's lock, or gives back a [`Call`] and tells the callback.
    fn call<T>(
        &self,
        py: Python<'_>,
        callback: Callback,
        timeout: Option<f64>,
        call: impl Future<Output = oip_client::Result<T>> + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        T: Send + 'static + for<'py> IntoPyObject<'py>,
    {
        self.check_process()?;
        let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        let call = async move {
            match timeout {
                None => call.await.map_err(Failure::Call),
                Some(limit) => match tokio::time::timeout(limit, call).await {
                    Ok(outcome) => outcome.map_err(Failure::Call),
                    Err(_) => Err(Failure::Timeout(limit)),
                },
            }
        };
        run(py, self.runtime, callback, call)
    }

    /// Threads do not come along when a process forks, and connections cannot be shared.
    fn check_process(&self) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "this client was made before the process was forked: make one in each process",
        ))
    }
}

/// Why a call failed.
enum Failure {
    Call(oip_client::ClientError),
    Timeout(Duration),
}

impl Failure {
    fn into_py(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => error::of_call(py, &error),
            Self::Timeout(limit) => error::of_timeout(py, limit),
        }
    }
}

/// Waits for a call without the interpreter's lock, or spawns it.
fn run<T>(
    py: Python<'_>,
    runtime: &'static Runtime,
    callback: Callback,
    call: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> PyResult<Py<PyAny>>
where
    T: Send + 'static + for<'py> IntoPyObject<'py>,
{
    let Some(callback) = callback else {
        let outcome = py.detach(|| runtime.block_on(call));
        let value = outcome.map_err(|failure| failure.into_py(py))?;
        return value.into_py_any(py);
    };
    let task = runtime.spawn(async move {
        let outcome = call.await;
        // None when the interpreter is ending: nobody waits then.
        Python::try_attach(|py| {
            let outcome = match outcome {
                Ok(value) => value.into_py_any(py),
                Err(failure) => Err(failure.into_py(py)),
            };
            let (error, value) = match outcome {
                Ok(value) => (py.None(), value),
                Err(error) => (error.into_value(py).into_any(), py.None()),
            };
            if let Err(error) = callback.call1(py, (error, value)) {
                error.write_unraisable(py, None);
            }
        });
    });
    Call(task.abort_handle()).into_py_any(py)
}

/// What a model is to be asked.
#[derive(FromPyObject)]
pub(crate) struct Given<'py>(
    String,
    Option<String>,
    Vec<Input<'py>>,
    Vec<(String, Values)>,
    Option<String>,
    Values,
);

impl Given<'_> {
    fn into_request(self) -> PyResult<InferRequest> {
        let Self(name, version, inputs, outputs, id, parameters) = self;
        let mut request = named(&name, version.as_deref())?;
        request.id = id;
        request.parameters = read_parameters(parameters)?;
        for (name, datatype, shape, data) in inputs {
            let value = value(&datatype, &shape, &data)
                .map_err(|error| error::usage(format!("input '{name}': {error}")))?;
            request.inputs.push(InferInput {
                name,
                value,
                parameters: Parameters::new(),
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
        check_parameter_name(&name).map_err(|error| error::usage(error.message()))?;
        parameters.insert(name, value.into());
    }
    Ok(parameters)
}

fn values(parameters: Parameters) -> Values {
    let values = parameters.into_iter();
    values.map(|(name, value)| (name, value.into())).collect()
}

fn answer(response: InferResponse) -> Answer {
    let outputs = response.outputs.into_iter().map(|output| {
        let datatype = output.value.datatype().to_string();
        let shape = output.value.shape().dims().to_vec();
        let data = Buffer::new(output.value.into_raw());
        (output.name, datatype, shape, data, values(output.parameters))
    });
    (
        response.model_name,
        response.model_version,
        response.id,
        values(response.parameters),
        outputs.collect(),
    )
}

/// The protocol's nouns as their JSON.
fn json<T: serde::Serialize>(value: &T) -> String {
    String::from_utf8_lossy(&json_body(value)).into_owned()
}

fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| error::usage(format!("{name}: {error}")))
}

/// A model that is named, with names that were checked.
fn named(name: &str, version: Option<&str>) -> PyResult<InferRequest> {
    let model = ModelRef::new(name, version).map_err(|error| error::usage(error.message()))?;
    Ok(InferRequest::new(model))
}

/// An input's value; its bytes are copied once.
pub(crate) fn value(
    datatype: &str,
    shape: &[u64],
    data: &Bound<'_, PyAny>,
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
            let data = Borrowed::new(data).map_err(|error| error.to_string())?;
            let value = Tensor::new(spec, data.to_bytes()).map_err(|error| error.to_string())?;
            Ok(value.into())
        }
    }
}

/// Requests and answers over one stream of gRPC.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Stream {
    requests: std::sync::Mutex<Option<tokio::sync::mpsc::Sender<InferRequest>>>,
    answers: Arc<tokio::sync::Mutex<tokio::sync::mpsc::Receiver<oip_client::Result<InferResponse>>>>,
    task: tokio::task::AbortHandle,
    runtime: &'static Runtime,
}

impl Stream {
    /// Requests that wait to be sent, and answers that wait to be taken.
    const WAITING: usize = 16;

    fn open(client: Arc<dyn InferenceClient>, runtime: &'static Runtime) -> Self {
        let (requests, to_send) = tokio::sync::mpsc::channel(Self::WAITING);
        let (received, answers) = tokio::sync::mpsc::channel(Self::WAITING);
        let task = runtime.spawn(async move {
            let mut stream = match client.infer_stream(Box::pin(Requests(to_send))).await {
                Ok(stream) => stream,
                Err(error) => {
                    let _ = received.send(Err(error)).await;
                    return;
                }
            };
            while let Some(item) = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
                // The last one who takes answers is gone: the stream ends with this task.
                if received.send(item).await.is_err() {
                    return;
                }
            }
        });
        Self {
            requests: std::sync::Mutex::new(Some(requests)),
            answers: Arc::new(tokio::sync::Mutex::new(answers)),
            task: task.abort_handle(),
            runtime,
        }
    }

    fn requests(&self) -> std::sync::MutexGuard<'_, Option<tokio::sync::mpsc::Sender<InferRequest>>> {
        self.requests.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[pymethods]
impl Stream {
    /// Sends a request, as soon as there is room; whether the stream still takes any.
    #[pyo3(signature = (request, callback=None))]
    fn send(&self, py: Python<'_>, request: Given<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        let request = request.into_request()?;
        let sender = self.requests().clone();
        let sending = async move {
            match sender {
                Some(sender) => Ok(sender.send(request).await.is_ok()),
                None => Ok(false),
            }
        };
        run(py, self.runtime, callback, sending)
    }

    /// Sends no more requests; those that were sent are answered.
    fn finish(&self) {
        drop(self.requests().take());
    }

    /// The next answer, or None at the end of the stream.
    #[pyo3(signature = (callback=None))]
    fn receive(&self, py: Python<'_>, callback: Callback) -> PyResult<Py<PyAny>> {
        let answers = self.answers.clone();
        let receiving = async move {
            match answers.lock().await.recv().await {
                Some(item) => item.map(|response| Some(answer(response))).map_err(Failure::Call),
                None => Ok(None),
            }
        };
        run(py, self.runtime, callback, receiving)
    }

    /// Ends the stream at once: the server is told that nobody waits for answers.
    fn cancel(&self) {
        self.finish();
        self.task.abort();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Requests as they are sent.
struct Requests(tokio::sync::mpsc::Receiver<InferRequest>);

impl futures_core::Stream for Requests {
    type Item = InferRequest;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<InferRequest>> {
        self.0.poll_recv(cx)
    }
}
