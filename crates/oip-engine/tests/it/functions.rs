//! Test models that are functions, and a gate that blocks them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::{
    Backend, BoxFuture, Call, CancelToken, Capabilities, IndependentRows, LoadContext, Model, ModelSource,
    Outcome, Outputs, RowIndependence,
};
use oip_service::{InferenceService, RequestContext};
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ServiceError,
    TensorMetadata,
};
use tempfile::TempDir;
use tensor_core::{Shape, Tensor};

use crate::support::{repository, request, y};

pub(crate) type Run =
    Arc<dyn Fn(&[i32], &CancelToken) -> Result<Vec<InferOutput>, ServiceError> + Send + Sync>;

/// Models implemented by functions, selected by model name. A function maps the rows of `x INT32[-1]` to
/// outputs, one of which is `y INT32[-1]`. The rows are declared independent.
#[derive(Clone, Default)]
pub(crate) struct FunctionBackend(HashMap<&'static str, Run>);

pub(crate) struct FunctionModel {
    run: Run,
    metadata: ModelMetadata,
}

impl Backend for FunctionBackend {
    fn name(&self) -> &'static str {
        "function"
    }

    fn file_names(&self) -> &[&str] {
        &["model.function"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let metadata = ModelMetadata::new(
            "",
            "test_function",
            vec![TensorMetadata::new("x", DataType::INT32, &[-1])],
            vec![TensorMetadata::new("y", DataType::INT32, &[-1])],
        );
        let run = self.0[source.name.as_str()].clone();
        Ok(Box::new(FunctionModel { run, metadata }))
    }
}

impl Model for FunctionModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    /// In a batch, requests with the id `refused` fail.
    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let parts = call.parts.iter().enumerate();
        let refused = parts.filter(|(_, part)| part.id.as_deref() == Some("refused"));
        let failed = refused.map(|(part, _)| (part, ServiceError::invalid("it is refused")));
        let x = call.request.take::<i32>("x")?;
        let mut outputs = Outputs::new((self.run)(&x, call.cancel)?);
        outputs.failed = failed.collect();
        Ok(outputs.into())
    }

    fn capabilities(&self) -> Capabilities {
        independent_rows()
    }
}

/// Returns the capabilities of a model with independent rows and nothing else.
pub(crate) fn independent_rows() -> Capabilities {
    let rows = RowIndependence::Proven(IndependentRows::default());
    Capabilities::default().with(|capabilities| capabilities.row_independence = rows)
}

pub(crate) fn vector(values: Vec<i32>) -> Tensor {
    Tensor::from_vec(Shape::vector(values.len() as u64), values).unwrap()
}

/// Returns `values` as output `y`.
pub(crate) fn out(values: Vec<i32>) -> Result<Vec<InferOutput>, ServiceError> {
    Ok(vec![InferOutput::new("y", vector(values))])
}

pub(crate) fn double(x: &[i32]) -> Vec<i32> {
    x.iter().map(|x| x * 2).collect()
}

/// Creates an engine with a model `m` that runs the given function, and a model `other` that doubles its
/// input.
pub(crate) fn engine(
    config: EngineConfig,
    run: impl Fn(&[i32], &CancelToken) -> Result<Vec<InferOutput>, ServiceError> + Send + Sync + 'static,
) -> (Arc<Engine>, TempDir) {
    let folder = repository(&[("m/1/model.function", ""), ("other/1/model.function", "")]);
    let other: Run = Arc::new(|x, _| out(double(x)));
    let backend = FunctionBackend(HashMap::from([("m", Arc::new(run) as Run), ("other", other)]));
    let repository = Repository::open(folder.path(), &[Arc::new(backend)], None).unwrap();
    let engine = Engine::start(repository, config);
    engine.wait_until_loaded();
    (Arc::new(engine), folder)
}

pub(crate) fn one_instance() -> EngineConfig {
    EngineConfig::default().with(|config| {
        config.instances = 1;
        config.hang_timeout = Duration::from_millis(100);
    })
}

pub(crate) type ResponseFuture<'a> = BoxFuture<'a, Result<InferResponse, ServiceError>>;

/// Queues `request` without waiting for its response.
pub(crate) fn submit(engine: &Engine, request: InferRequest) -> ResponseFuture<'_> {
    submit_within(engine, request, Duration::from_secs(60))
}

pub(crate) fn submit_within(engine: &Engine, request: InferRequest, timeout: Duration) -> ResponseFuture<'_> {
    let mut answer = engine.infer(request, RequestContext::new(Some(Instant::now() + timeout)));
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => answer,
        Poll::Ready(result) => Box::pin(std::future::ready(result)),
    }
}

/// With this input value, the models below block until the gate opens.
pub(crate) const GATE: i32 = -1;

/// Blocks a model, so that requests queue up.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    pub(crate) is_open: Arc<AtomicBool>,
    pub(crate) is_reached: Arc<AtomicBool>,
}

impl Gate {
    pub(crate) fn pass(&self, x: &[i32]) {
        if x == [GATE] {
            self.is_reached.store(true, Ordering::SeqCst);
            while !self.is_open.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// Sends the request that blocks the model, and waits until it is blocked.
    pub(crate) fn hold<'a>(&self, engine: &'a Engine) -> ResponseFuture<'a> {
        self.is_open.store(false, Ordering::SeqCst);
        self.is_reached.store(false, Ordering::SeqCst);
        let held = submit(engine, request("m", None, GATE));
        while !self.is_reached.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        held
    }
}

/// The rows of each run's batch.
pub(crate) type Batches = Arc<Mutex<Vec<Vec<i32>>>>;

/// Creates an engine with one thread. Its model records the rows of each batch and then calls `run`.
pub(crate) fn gated(
    run: impl Fn(&[i32]) -> Result<Vec<i32>, ServiceError> + Send + Sync + 'static,
) -> (Arc<Engine>, Gate, Batches, TempDir) {
    let (gate, batches) = (Gate::default(), Arc::new(Mutex::new(Vec::new())));
    let (engine, folder) = engine(one_instance(), {
        let (gate, batches) = (gate.clone(), batches.clone());
        move |x, _| {
            gate.pass(x);
            batches.lock().unwrap().push(x.to_vec());
            out(run(x)?)
        }
    });
    (engine, gate, batches, folder)
}

pub(crate) fn code(answer: Result<InferResponse, ServiceError>) -> Result<i32, ErrorCode> {
    answer.map(|response| y(&response)).map_err(|error| error.code())
}
