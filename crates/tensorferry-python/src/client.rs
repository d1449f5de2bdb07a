//! A client of inference servers. A call blocks the calling thread, or invokes a callback when it has ended.

use std::{
    collections::BTreeMap,
    future::Future,
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use oip_client::{BlockingClient, Compression, InferenceClient, RetryPolicy};
use oip_types::{
    CudaMemoryRegion, InferRequest, LoadOptions, LogSettings, SharedMemoryRegion, UnloadOptions,
    rest::json_body,
};
use pyo3::prelude::*;
use tensor_core::SpareBuffers;
use tokio::runtime::Runtime;

use crate::{
    call::{Callback, Failure, run, wait, wait_here},
    error,
    runtime::{Process, SharedRuntime, let_connections_notice, runtime, shared},
    stream::Stream,
    wire::{InferArguments, named, response_parts},
};

/// Connections to a server, over the transport that its URL names.
///
/// A blocking call does its own I/O, which saves two thread switches: directly over plain HTTP, otherwise by
/// driving a runtime. Calls with a callback, and streams, are driven by a background thread.
#[pyclass(frozen, module = "tensorferry._native")]
pub(crate) struct Client {
    waiting: Waiting,
    /// Headers sent with each call, in addition to those of the connections.
    headers: Vec<(String, String)>,
    driven: Arc<OnceLock<DrivenClient>>,
    make: Arc<Make>,
    process: Process,
    /// Buffers of finished requests and responses, for reuse.
    spare: Arc<SpareBuffers>,
}

/// Creates connections that a background thread drives.
type Make = dyn Fn() -> oip_client::Result<Box<dyn InferenceClient>> + Send + Sync;

/// Maximum total size of the buffers kept for reuse, in bytes.
const SPARE: u64 = 64 << 20;

/// The client that blocking calls use.
enum Waiting {
    Blocking(BlockingClient),
    Shared(Arc<dyn InferenceClient>, &'static SharedRuntime),
}

/// A client and the runtime that drives its connections.
type DrivenClient = (Arc<dyn InferenceClient>, &'static Runtime);

/// Connection settings.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    timeout: Option<f64>,
    connect_timeout: f64,
    /// Trusted certificate authorities, in PEM.
    authorities: Option<Vec<u8>>,
    /// Client certificate and its key, in PEM.
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Compression of requests: `gzip` or `deflate`.
    compress: Option<String>,
    accept_compressed: bool,
    attempts: u32,
    max_response_bytes: usize,
}

// Methods with equal parameters are written out: PyO3 accepts no macros in `#[pymethods]`, and reads the
// parameters of Python from each signature.
#[pymethods]
impl Client {
    #[new]
    fn new(py: Python<'_>, url: String, settings: Settings) -> PyResult<Self> {
        let may_block = ["http://", "http+unix://", "unix://"]
            .iter()
            .any(|scheme| url.starts_with(scheme));
        let spare = Arc::new(SpareBuffers::new(SPARE));
        let mut builder = oip_client::builder(url)
            .spare_buffers(spare.clone())
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
        let waiting = match may_block {
            true => builder.clone().build_blocking().map(Waiting::Blocking),
            false => {
                let shared = shared()?;
                let _entered = shared.runtime().enter();
                let built = builder.clone().build();
                built.map(|client| Waiting::Shared(client.into(), shared))
            }
        };
        Ok(Self {
            waiting: waiting.map_err(|error| error::of_call(py, &error))?,
            headers: Vec::new(),
            driven: Arc::default(),
            make: Arc::new(move || builder.clone().build()),
            process: Process::current(),
            spare,
        })
    }

    /// Returns a client that sends additional headers over the same connections.
    fn with_headers(&self, py: Python<'_>, headers: Vec<(String, String)>) -> PyResult<Self> {
        let waiting = match &self.waiting {
            Waiting::Blocking(client) => {
                let headers = headers.iter().map(|(name, value)| (&**name, &**value));
                client.with_headers(headers).map(Waiting::Blocking)
            }
            Waiting::Shared(client, shared) => client
                .with_headers(&headers)
                .map(|client| Waiting::Shared(client.into(), shared)),
        };
        Ok(Self {
            waiting: waiting.map_err(|error| error::of_call(py, &error))?,
            headers: [&self.headers[..], &headers].concat(),
            driven: self.driven.clone(),
            make: self.make.clone(),
            process: self.process,
            spare: self.spare.clone(),
        })
    }

    #[pyo3(signature = (timeout=None, callback=None))]
    fn server_live(&self, py: Python<'_>, timeout: Option<f64>, callback: Callback) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            client.server_live().await
        })
    }

    #[pyo3(signature = (timeout=None, callback=None))]
    fn server_ready(&self, py: Python<'_>, timeout: Option<f64>, callback: Callback) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            client.server_ready().await
        })
    }

    #[pyo3(signature = (name, version, timeout=None, callback=None))]
    fn model_ready(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<String>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let named = named(&name, version.as_deref())?;
        self.call(py, callback, timeout, |client| async move {
            client.model_ready(named.model()).await
        })
    }

    /// Returns the response as JSON, in the form that the HTTP transport uses.
    #[pyo3(signature = (timeout=None, callback=None))]
    fn server_metadata(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            client.server_metadata().await.map(|found| json(&found))
        })
    }

    /// Returns the response as JSON, in the form that the HTTP transport uses.
    #[pyo3(signature = (name, version, timeout=None, callback=None))]
    fn model_metadata(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<String>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let named = named(&name, version.as_deref())?;
        self.call(py, callback, timeout, |client| async move {
            let found = client.model_metadata(named.model()).await;
            found.map(|found| json(&found))
        })
    }

    /// Returns the response as JSON, in the form that the HTTP transport uses.
    #[pyo3(signature = (name, version, timeout=None, callback=None))]
    fn model_config(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<String>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let named = named(&name, version.as_deref())?;
        self.call(py, callback, timeout, |client| async move {
            let found = client.model_config(named.model()).await;
            found.map(|found| json(&found))
        })
    }

    /// Returns the results as a JSON array.
    #[pyo3(signature = (name, version, timeout=None, callback=None))]
    fn statistics(
        &self,
        py: Python<'_>,
        name: Option<String>,
        version: Option<String>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let name = name.map(|name| named(&name, version.as_deref())).transpose()?;
        self.call(py, callback, timeout, |client| async move {
            let model = name.as_ref().map(InferRequest::model);
            client.statistics(model).await.map(|found| json(&found))
        })
    }

    /// Returns the results as a JSON array.
    #[pyo3(signature = (timeout=None, callback=None))]
    fn repository_index(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            client.repository_index(false).await.map(|found| json(&found))
        })
    }

    /// Loads a model. `files` contains files by their path in the model's directory.
    #[pyo3(signature = (name, config=None, files=BTreeMap::new(), timeout=None, callback=None))]
    fn load_model(
        &self,
        py: Python<'_>,
        name: String,
        config: Option<String>,
        files: BTreeMap<String, Vec<u8>>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let options = LoadOptions::default().with(|options| {
            options.config = config;
            options.files = files
                .into_iter()
                .map(|(path, content)| (path, content.into()))
                .collect();
        });
        self.call(py, callback, timeout, |client| async move {
            client.load_model(&name, &options).await
        })
    }

    #[pyo3(signature = (name, with_dependents=false, timeout=None, callback=None))]
    fn unload_model(
        &self,
        py: Python<'_>,
        name: String,
        with_dependents: bool,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let options = UnloadOptions::default().with(|options| options.unload_dependents = with_dependents);
        self.call(py, callback, timeout, |client| async move {
            client.unload_model(&name, options).await
        })
    }

    /// Takes and returns settings as JSON.
    #[pyo3(signature = (changes, timeout=None, callback=None))]
    fn log_settings(
        &self,
        py: Python<'_>,
        changes: &str,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let changes =
            oip_types::rest::decode_log_settings(changes.as_bytes(), &oip_types::RequestLimits::default());
        let changes: LogSettings = changes.map_err(|error| error::usage(error.message()))?;
        self.call(py, callback, timeout, |client| async move {
            client.log_settings(&changes).await.map(|found| json(&found))
        })
    }

    /// Returns the results as a JSON array.
    #[pyo3(signature = (name=None, timeout=None, callback=None))]
    fn shared_memory_status(
        &self,
        py: Python<'_>,
        name: Option<String>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            let found = client.shared_memory_status(name.as_deref()).await;
            found.map(|found| json(&found))
        })
    }

    #[pyo3(signature = (name, key, offset, byte_size, timeout=None, callback=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "the protocol's fields, and how the call runs"
    )]
    fn register_shared_memory(
        &self,
        py: Python<'_>,
        name: String,
        key: String,
        offset: u64,
        byte_size: u64,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let region = SharedMemoryRegion {
            name,
            key,
            offset,
            byte_size,
        };
        self.call(py, callback, timeout, |client| async move {
            client.register_shared_memory(&region).await
        })
    }

    #[pyo3(signature = (name=None, timeout=None, callback=None))]
    fn unregister_shared_memory(
        &self,
        py: Python<'_>,
        name: Option<String>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            client.unregister_shared_memory(name.as_deref()).await
        })
    }

    /// Changes the trace settings of a model or of the server, and returns all of them.
    #[pyo3(signature = (model=None, changes=BTreeMap::new(), timeout=None, callback=None))]
    fn trace_settings(
        &self,
        py: Python<'_>,
        model: Option<String>,
        changes: BTreeMap<String, Vec<String>>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            client.trace_settings(model.as_deref(), &changes).await
        })
    }

    /// Returns the results as a JSON array.
    #[pyo3(signature = (name=None, timeout=None, callback=None))]
    fn cuda_memory_status(
        &self,
        py: Python<'_>,
        name: Option<String>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            let found = client.cuda_memory_status(name.as_deref()).await;
            found.map(|found| json(&found))
        })
    }

    #[pyo3(signature = (name, handle, device_id, byte_size, timeout=None, callback=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "the protocol's fields, and how the call runs"
    )]
    fn register_cuda_memory(
        &self,
        py: Python<'_>,
        name: String,
        handle: Vec<u8>,
        device_id: u64,
        byte_size: u64,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let region = CudaMemoryRegion {
            name,
            device_id,
            byte_size,
        };
        self.call(py, callback, timeout, |client| async move {
            client.register_cuda_memory(&region, &handle.into()).await
        })
    }

    #[pyo3(signature = (name=None, timeout=None, callback=None))]
    fn unregister_cuda_memory(
        &self,
        py: Python<'_>,
        name: Option<String>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        self.call(py, callback, timeout, |client| async move {
            client.unregister_cuda_memory(name.as_deref()).await
        })
    }

    /// Runs a model. An empty list of outputs requests all outputs.
    #[pyo3(signature = (request, timeout=None, callback=None))]
    fn infer(
        &self,
        py: Python<'_>,
        request: InferArguments<'_>,
        timeout: Option<f64>,
        callback: Callback,
    ) -> PyResult<Py<PyAny>> {
        let request = request.into_request(&self.spare)?;
        self.call(py, callback, timeout, |client| async move {
            client.infer(&request).await.map(response_parts)
        })
    }

    /// Opens a stream of requests and responses.
    fn stream(&self, py: Python<'_>) -> PyResult<Stream> {
        self.check_process()?;
        let (client, runtime) = self.driven(py)?;
        Ok(Stream::open(client, runtime, self.spare.clone()))
    }
}

impl Client {
    /// Returns the client that a background thread drives, and creates it on the first call.
    pub(crate) fn driven(&self, py: Python<'_>) -> PyResult<DrivenClient> {
        let failed = |error| error::of_call(py, &error);
        let (client, runtime) = match self.driven.get() {
            Some(driven) => driven.clone(),
            None => {
                let runtime = runtime()?;
                let _entered = runtime.enter();
                let made = (self.make)().map_err(failed)?;
                // If another thread has created a client meanwhile, that client is used.
                self.driven.get_or_init(|| (made.into(), runtime)).clone()
            }
        };
        if self.headers.is_empty() {
            return Ok((client, runtime));
        }
        let client = client.with_headers(&self.headers).map_err(failed)?;
        Ok((client.into(), runtime))
    }

    /// Runs a call: blocks without the GIL, or returns a [`Call`] and invokes the callback.
    fn call<T, F>(
        &self,
        py: Python<'_>,
        callback: Callback,
        timeout: Option<f64>,
        call: impl FnOnce(Arc<dyn InferenceClient>) -> F + Send,
    ) -> PyResult<Py<PyAny>>
    where
        T: Send + 'static + for<'py> IntoPyObject<'py>,
        F: Future<Output = oip_client::Result<T>> + Send + 'static,
    {
        self.check_process()?;
        let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        let client = match (&self.waiting, &callback) {
            (Waiting::Blocking(client), None) => return wait_here(py, client, timeout, call),
            (Waiting::Shared(client, _), None) => client.clone(),
            (_, Some(_)) => self.driven(py)?.0,
        };
        let call = call(client);
        let call = async move {
            match timeout {
                None => call.await.map_err(Failure::Call),
                Some(limit) => match tokio::time::timeout(limit, call).await {
                    Ok(outcome) => outcome.map_err(Failure::Call),
                    Err(_) => Err(Failure::Timeout(limit)),
                },
            }
        };
        match (&self.waiting, callback) {
            (Waiting::Shared(_, shared), None) => wait(py, *shared, async {
                let_connections_notice().await;
                call.await
            }),
            (_, callback) => run(py, self.driven(py)?.1, callback, call),
        }
    }

    fn check_process(&self) -> PyResult<()> {
        self.process.check("client")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.process.is_current() {
            return;
        }
        // In a forked process, dropping connections would wake the tasks that drive them, whose locks a
        // thread of the parent may have held at the fork. Connections that callers drive themselves have no
        // such locks.
        if let Waiting::Shared(client, _) = &self.waiting {
            mem::forget(client.clone());
        }
        if let Some((client, _)) = self.driven.get() {
            mem::forget(client.clone());
        }
    }
}

/// Serializes a type of the protocol as JSON.
fn json<T: serde::Serialize>(value: &T) -> String {
    String::from_utf8_lossy(&json_body(value)).into_owned()
}

fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| error::usage(format!("{name}: {error}")))
}
