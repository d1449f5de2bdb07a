//! A server inside a Python program. Its models are Python callables, or models of another server.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use oip_client::{ClientError, ErrorKind, InferenceClient};
use oip_types::{ParameterValue, ShapePattern};
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyRuntimeError, PyStopIteration},
    prelude::*,
    types::PyTuple,
};
use tensorferry::{
    Call, CancelToken, Capabilities, DataType, Engine, EngineConfig, ErrorCode, InferOutput, InferRequest,
    Model, ModelMetadata, Outcome, ResponseSink, RowIndependence, Running, ServiceError, TensorMetadata,
    serve,
};
use tokio::runtime::{Builder, Runtime};

use crate::{
    buffer::Buffer,
    client::Client,
    error, python_code,
    runtime::Process,
    stream::Requests,
    wire::{Value, value},
};

/// A tensor of a model: name, datatype, shape with -1 for free dimensions, and whether it is optional.
type Described = (String, String, Vec<i64>, bool);

/// A model: name, inputs, outputs, callable, maximum number of rows per run if declared, and whether the
/// callable is a generator of any number of responses.
type GivenModel = (
    String,
    Vec<Described>,
    Vec<Described>,
    Py<PyAny>,
    Option<u32>,
    bool,
);

/// A running server, and the runtime that drives it.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Server {
    running: Mutex<Option<(Running<Engine>, Runtime)>>,
    process: Process,
    http: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
}

#[pymethods]
impl Server {
    /// Starts serving models. `others` are models of another server, each given by its name and two clients
    /// of that server: one for HTTP, and one for gRPC streams.
    #[new]
    fn new(
        py: Python<'_>,
        models: Vec<GivenModel>,
        others: Vec<(String, Py<Client>, Py<Client>)>,
        http: Option<&str>,
        grpc: Option<&str>,
        drain_timeout: f64,
    ) -> PyResult<Self> {
        let (http, grpc) = (address("http", http)?, address("grpc", grpc)?);
        let drain_timeout = Duration::try_from_secs_f64(drain_timeout)
            .map_err(|error| error::usage(format!("drain_timeout: {error}")))?;
        let mut builder = Engine::builder()
            .config(EngineConfig::default().with(|config| config.server_name = "tensorferry".to_owned()));
        for model in models {
            builder = builder.model(Callable::new(model)?);
        }
        for (name, client, streams) in others {
            builder = builder.model(Remote::new(py, name, client.get(), streams.get())?);
        }
        let engine = builder.build().map_err(|error| error::usage(error.to_string()))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tensorferry-io")
            .enable_all()
            .build()?;
        let mut serving = serve(engine).drain_timeout(drain_timeout);
        if let Some(http) = http {
            serving = serving.http(http);
        }
        if let Some(grpc) = grpc {
            serving = serving.grpc(grpc);
        }
        let running = py.detach(|| runtime.block_on(serving.start()))?;
        Ok(Self {
            http: running.http(),
            grpc: running.grpc(),
            running: Mutex::new(Some((running, runtime))),
            process: Process::current(),
        })
    }

    /// Returns the HTTP address.
    #[getter]
    fn http(&self) -> Option<String> {
        self.http.map(|address| address.to_string())
    }

    /// Returns the gRPC address.
    #[getter]
    fn grpc(&self) -> Option<String> {
        self.grpc.map(|address| address.to_string())
    }

    /// Drains and stops the server. Returns false if a request was aborted. Returns true if the server was
    /// already stopped, and in a forked process.
    fn stop(&self, py: Python<'_>) -> bool {
        if !self.process.is_current() {
            return true;
        }
        let running = self.running.lock().take();
        let Some((running, runtime)) = running else {
            return true;
        };
        py.detach(|| {
            let is_clean = runtime.block_on(running.drain());
            // A model that hangs must not keep the program alive.
            runtime.shutdown_background();
            is_clean
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let running = self.running.get_mut().take();
        if !self.process.is_current() {
            // A forked process does not have the server's threads, and locks that they held stay locked.
            std::mem::forget(running);
            return;
        }
        if let Some((running, runtime)) = running {
            drop(running);
            // The server's threads may wait for the GIL, which this thread holds.
            runtime.shutdown_background();
        }
    }
}

fn address(name: &str, text: Option<&str>) -> PyResult<Option<SocketAddr>> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|_| {
        let text = text.unwrap_or_default();
        error::usage(format!(
            "{name}: expected an address such as 127.0.0.1:8080, found '{text}'"
        ))
    })
}

fn described(model: &str, tensors: Vec<Described>) -> PyResult<Vec<TensorMetadata>> {
    let tensors = tensors.into_iter();
    let read = tensors.map(|(name, datatype, dims, is_optional)| {
        let wrong = |what: String| error::usage(format!("model '{model}', tensor '{name}': {what}"));
        let datatype = DataType::from_name(&datatype).map_err(|error| wrong(error.message().to_owned()))?;
        let dims = dims.into_iter().map(|dim| match dim {
            -1 => Ok(None),
            dim => u64::try_from(dim)
                .map(Some)
                .map_err(|_| wrong(format!("expected sizes or -1 in its shape, found {dim}"))),
        });
        let shape = ShapePattern::new(dims.collect::<PyResult<_>>()?);
        let tensor = TensorMetadata::with_shape(name.clone(), datatype, shape);
        Ok(if is_optional { tensor.optional() } else { tensor })
    });
    read.collect()
}

/// Arguments of a callable: inputs with name, datatype, shape and bytes; id, parameters and requested
/// outputs; and a cancellation token.
type Request = (
    Vec<(String, String, Vec<u64>, Buffer)>,
    Option<String>,
    BTreeMap<String, Value>,
    Vec<String>,
    CancelCheck,
);

/// A callable that returns whether the request was cancelled.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct CancelCheck(CancelToken);

#[pymethods]
impl CancelCheck {
    fn __call__(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Result of a callable: status and message on failure, else None; and outputs in the form of inputs.
type Answered<'py> = (
    Option<(u16, String)>,
    Vec<(String, String, Vec<u64>, Bound<'py, PyAny>)>,
);

/// A model that is a Python callable.
struct Callable {
    metadata: ModelMetadata,
    callable: Py<PyAny>,
    max_batch_size: Option<u32>,
    is_decoupled: bool,
}

impl Callable {
    fn new(model: GivenModel) -> PyResult<Self> {
        let (name, inputs, outputs, callable, max_batch_size, is_decoupled) = model;
        let metadata = ModelMetadata::new(
            name.clone(),
            "tensorferry_python",
            described(&name, inputs)?,
            described(&name, outputs)?,
        );
        Ok(Self {
            metadata,
            callable,
            max_batch_size,
            is_decoupled,
        })
    }
}

impl Model for Callable {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let request = asked(call.request, call.cancel);
        let Some(responses) = call.responses.filter(|_| self.is_decoupled) else {
            return attached(|py| {
                let answered = called(self.callable.bind(py), request).map_err(failed)?;
                outputs(&answered).map(Outcome::from)
            });
        };
        let steps = attached(|py| {
            let steps = called(self.callable.bind(py), request).map_err(failed)?;
            Ok(steps.unbind())
        })?;
        loop {
            let step = attached(|py| {
                let next = method(steps.bind(py), "__next__");
                match next {
                    Err(error) if error.is_instance_of::<PyStopIteration>(py) => Ok(None),
                    step => outputs(&step.map_err(failed)?).map(Some),
                }
            });
            // The response is sent without the GIL, since sending waits for the client.
            let sent = match step? {
                None => return Ok(Outcome::Streamed),
                Some(outputs) => responses.send(outputs),
            };
            if let Err(error) = sent {
                // Runs the generator's `finally` and `with` blocks if the client wants no more responses.
                attached(|py| method(steps.bind(py), "close").map(drop).map_err(failed))?;
                return Err(error);
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| {
            // Only one thread at a time can hold the GIL.
            capabilities.instances = Some(1);
            capabilities.max_batch_size = self.max_batch_size;
            capabilities.decoupled = self.is_decoupled;
            capabilities.row_independence = RowIndependence::Unproven("it has no max_batch_size".to_owned());
        })
    }
}

fn called<'py>(callable: &Bound<'py, PyAny>, request: Request) -> PyResult<Bound<'py, PyAny>> {
    python_code::call(callable, &request.into_pyobject(callable.py())?)
}

fn method<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    python_code::call(&object.getattr(name)?, &PyTuple::empty(object.py()))
}

/// Converts a request for a callable.
fn asked(request: InferRequest, cancel: &CancelToken) -> Request {
    let inputs = request.inputs.into_iter().map(|input| {
        let datatype = input.value.datatype().to_string();
        let shape = input.value.shape().dims().to_vec();
        (input.name, datatype, shape, Buffer::new(input.value.into_raw()))
    });
    let parameters = request.parameters.into_iter();
    let outputs = request.outputs.into_iter().map(|output| output.name);
    (
        inputs.collect(),
        request.id,
        parameters.map(|(name, value)| (name, value.into())).collect(),
        outputs.collect(),
        CancelCheck(cancel.clone()),
    )
}

/// Converts the outputs of a response, or its error.
fn outputs(answered: &Bound<'_, PyAny>) -> Result<Vec<InferOutput>, ServiceError> {
    let (failure, outputs): Answered<'_> = answered.extract().map_err(failed)?;
    if let Some((status, message)) = failure {
        return Err(ServiceError::new(code(status), message));
    }
    let outputs = outputs.into_iter().map(|(name, datatype, shape, data)| {
        let value = value(&datatype, &shape, &data, |data| data.to_vec().into())
            .map_err(|error| ServiceError::internal(format!("output '{name}': {error}")))?;
        Ok(InferOutput::new(name, value))
    });
    outputs.collect()
}

fn failed(error: PyErr) -> ServiceError {
    ServiceError::internal(format!("its model failed: {error}"))
}

/// Runs `step` with the GIL, unless the interpreter is shutting down.
fn attached<T>(step: impl FnOnce(Python<'_>) -> Result<T, ServiceError>) -> Result<T, ServiceError> {
    python_code::attached(step).unwrap_or_else(|| {
        let message = "the program that serves it is shutting down";
        Err(ServiceError::new(ErrorCode::Unavailable, message))
    })
}

/// Maps the HTTP statuses that a model may return to the protocol's codes.
fn code(status: u16) -> ErrorCode {
    match status {
        400 => ErrorCode::InvalidArgument,
        404 => ErrorCode::NotFound,
        408 | 504 => ErrorCode::DeadlineExceeded,
        413 => ErrorCode::TooLarge,
        429 => ErrorCode::Overloaded,
        499 => ErrorCode::Cancelled,
        501 => ErrorCode::Unimplemented,
        503 => ErrorCode::Unavailable,
        _ => ErrorCode::Internal,
    }
}

/// Returns a remote model's metadata, and whether it is decoupled. The protocol's metadata lacks the
/// information which tensors are optional. For inputs it comes from the model's configuration; all outputs
/// count as optional, because the remote server decides which ones it returns.
async fn described_by(client: &dyn InferenceClient, name: &str) -> Result<(ModelMetadata, bool), String> {
    let named = oip_types::ModelRef::new(name, None);
    let named = named.map_err(|error| error.message().to_owned())?;
    let mut metadata = client
        .model_metadata(named)
        .await
        .map_err(|error| error.to_string())?;
    let config = client
        .model_config(named)
        .await
        .map_err(|error| error.to_string())?;
    for input in &mut metadata.inputs {
        input.optional = config
            .input
            .iter()
            .any(|known| known.name == input.name && known.optional);
    }
    for output in &mut metadata.outputs {
        output.optional = true;
    }
    Ok((metadata, config.model_transaction_policy.decoupled))
}

/// A model of another server.
struct Remote {
    metadata: ModelMetadata,
    is_decoupled: bool,
    client: Arc<dyn InferenceClient>,
    streams: Arc<dyn InferenceClient>,
    runtime: &'static Runtime,
}

impl Remote {
    /// Maximum concurrent calls. The remote server has its own queue, and batches the requests in it.
    const CALLS: u32 = 32;

    /// Waits for a step of a call, until the request is cancelled or its deadline passes. Dropping the step
    /// cancels the call at the remote server.
    async fn step<T>(step: impl Future<Output = T>, cancel: &CancelToken) -> Result<T, ServiceError> {
        /// Interval at which the token is checked, since the token does not wake waiters.
        const LOOK: Duration = Duration::from_millis(10);
        let mut step = std::pin::pin!(step);
        loop {
            if let Ok(outcome) = tokio::time::timeout(LOOK, step.as_mut()).await {
                return Ok(outcome);
            }
            if cancel.is_expired() {
                let message = "no response within the request's time";
                return Err(ServiceError::new(ErrorCode::DeadlineExceeded, message));
            }
            if cancel.is_cancelled() {
                return Err(ServiceError::new(ErrorCode::Cancelled, "the client disconnected"));
            }
        }
    }
}

/// Sets the request's timeout to its remaining time, because the remote server does not receive the deadline
/// otherwise.
fn within(mut request: InferRequest, cancel: &CancelToken) -> InferRequest {
    if let Some(deadline) = cancel.deadline() {
        let left = deadline.saturating_duration_since(Instant::now()).as_micros();
        let left = i64::try_from(left).unwrap_or(i64::MAX).max(1);
        request
            .parameters
            .insert("timeout".to_owned(), ParameterValue::Int64(left));
    }
    request
}

/// Converts an error of the remote server. Errors on streams have no code.
fn refused(error: &ClientError) -> ServiceError {
    let code = error.code().unwrap_or(match error.kind() {
        ErrorKind::Refused => ErrorCode::Internal,
        _ => ErrorCode::Unavailable,
    });
    ServiceError::new(code, error.message())
}

impl Remote {
    /// Requests the metadata of the remote server's model `name`.
    fn new(py: Python<'_>, name: String, client: &Client, streams: &Client) -> PyResult<Self> {
        let (client, runtime) = client.driven(py)?;
        let (streams, _) = streams.driven(py)?;
        let described = py.detach(|| runtime.block_on(described_by(&*client, &name)));
        let (mut metadata, is_decoupled) =
            described.map_err(|error| PyRuntimeError::new_err(format!("model '{name}': {error}")))?;
        metadata.name = name;
        Ok(Self {
            metadata,
            is_decoupled,
            client,
            streams,
            runtime,
        })
    }
}

impl Model for Remote {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let (request, cancel) = (within(call.request, call.cancel), call.cancel);
        if let Some(responses) = call.responses {
            return self.stream(request, cancel, responses);
        }
        let response = self
            .runtime
            .block_on(Self::step(self.client.infer(&request), cancel))?;
        Ok(response.map_err(|error| refused(&error))?.outputs.into())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| {
            capabilities.instances = Some(Self::CALLS);
            capabilities.decoupled = self.is_decoupled;
            // Requests are not batched here, because the remote server batches them.
            capabilities.max_batch_size = Some(0);
        })
    }
}

impl Remote {
    /// Passes the responses of the remote server to `responses`.
    fn stream(
        &self,
        mut request: InferRequest,
        cancel: &CancelToken,
        responses: &mut dyn ResponseSink,
    ) -> Result<Outcome, ServiceError> {
        /// Request parameter that asks for an explicit end of the stream of responses. The response parameter
        /// `FINAL` marks that end.
        const ASKED: &str = "triton_enable_empty_final_response";
        const FINAL: &str = "triton_final_response";
        request
            .parameters
            .insert(ASKED.to_owned(), ParameterValue::Bool(true));
        let requests = Requests::one(request);
        let opened = Self::step(self.streams.infer_stream(Box::pin(requests)), cancel);
        let mut stream = self.runtime.block_on(opened)?.map_err(|error| refused(&error))?;
        loop {
            let next = Self::step(poll_fn(|cx| stream.as_mut().poll_next(cx)), cancel);
            let Some(response) = self.runtime.block_on(next)? else {
                return Ok(Outcome::Streamed);
            };
            let response = response.map_err(|error| refused(&error))?;
            let is_last = response.parameters.get(FINAL) == Some(&ParameterValue::Bool(true));
            match (is_last, response.outputs.is_empty()) {
                (true, true) => return Ok(Outcome::Streamed),
                (true, false) => return Ok(response.outputs.into()),
                (false, _) => responses.send(response.outputs)?,
            }
        }
    }
}
