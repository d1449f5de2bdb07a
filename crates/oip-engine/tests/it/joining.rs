//! Tests that requests of different callers are batched only if the model or the operator declares its rows
//! independent.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::{
    Backend, Call, Capabilities, IndependentRows, LoadContext, Model, ModelSource, Outcome, RowIndependence,
};
use oip_service::InferenceService;
use oip_types::{
    DataType, InferRequest, Joining, ModelConfig, ModelMetadata, ModelRef, ServiceError, TensorMetadata,
};
use tempfile::TempDir;
use tensor_core::{Shape, Tensor, f16};

use crate::{
    functions::{ResponseFuture, submit},
    support::{repository, write},
};

/// A model that returns `y FP16[-1]` for the rows of `x FP32[-1]`, and blocks on a gate at the value
/// [`GATE`]. If its rows are proven independent, it multiplies them by a scalar, `scale FP32[]`.
struct RowModel {
    metadata: ModelMetadata,
    run: fn(&[f32]) -> Vec<f32>,
    says: RowIndependence,
    max_batch_size: Option<u32>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
    is_reached: AtomicBool,
    /// The number of rows of each run.
    runs: Mutex<Vec<usize>>,
}

const GATE: f32 = -1.0;

impl Model for RowModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let x = call.request.take::<f32>("x")?;
        let scale = call.request.take::<f32>("scale").map_or(1.0, |scale| scale[0]);
        self.gate.runs.lock().unwrap().push(x.len());
        if x[..] == [GATE] {
            self.gate.is_reached.store(true, Ordering::SeqCst);
            while !self.gate.is_open.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        let y: Vec<f16> = (self.run)(&x).iter().map(|y| f16::from_f32(y * scale)).collect();
        let y = Tensor::from_vec(Shape::vector(y.len() as u64), y)?;
        Ok(Outcome::output("y", y))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| {
            capabilities.row_independence = self.says.clone();
            capabilities.max_batch_size = self.max_batch_size;
        })
    }
}

/// Backend whose models all run the same function, `run`.
struct RowBackend {
    run: fn(&[f32]) -> Vec<f32>,
    says: RowIndependence,
    max_batch_size: Option<u32>,
    gate: Arc<Gate>,
}

impl Backend for RowBackend {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn file_names(&self) -> &[&str] {
        &["model.rows"]
    }

    fn load(&self, _: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let x = TensorMetadata::new("x", DataType::FP32, &[-1]);
        let scale = TensorMetadata::new("scale", DataType::FP32, &[]);
        let y = TensorMetadata::new("y", DataType::FP16, &[-1]);
        let has_scale = matches!(self.says, RowIndependence::Proven(_));
        let inputs = [x].into_iter().chain(has_scale.then_some(scale)).collect();
        Ok(Box::new(RowModel {
            metadata: ModelMetadata::new("", "test_rows", inputs, vec![y]),
            run: self.run,
            says: self.says.clone(),
            max_batch_size: self.max_batch_size,
            gate: self.gate.clone(),
        }))
    }
}

/// A server with one instance of the model `m`.
struct TestServer {
    engine: Arc<Engine>,
    gate: Arc<Gate>,
    has_scale: bool,
    _folder: TempDir,
}

impl TestServer {
    fn new(
        run: fn(&[f32]) -> Vec<f32>,
        says: RowIndependence,
        max_batch_size: Option<u32>,
        config: Option<&str>,
    ) -> Self {
        let folder = repository(&[("m/1/model.rows", "")]);
        if let Some(config) = config {
            write(folder.path(), "m/config.pbtxt", config);
        }
        let gate = Arc::<Gate>::default();
        let has_scale = matches!(says, RowIndependence::Proven(_));
        let backend = RowBackend {
            run,
            says,
            max_batch_size,
            gate: gate.clone(),
        };
        let repository = Repository::open(folder.path(), &[Arc::new(backend)], None).unwrap();
        let engine = Engine::start(
            repository,
            EngineConfig::default().with(|config| config.instances = 1),
        );
        engine.wait_until_loaded();
        Self {
            engine: Arc::new(engine),
            gate,
            has_scale,
            _folder: folder,
        }
    }

    fn config(&self) -> Arc<ModelConfig> {
        let model = ModelRef::new("m", None).unwrap();
        self.engine.configuration().unwrap().model_config(model).unwrap()
    }

    /// Returns how the configuration describes batching. Checks that the model's status has the same
    /// description.
    fn said(&self) -> String {
        let config = self.config();
        let shown = Joining::shown_in(&config).unwrap();
        let models = self.engine.models();
        assert_eq!(models[0].joining.as_ref().unwrap().to_string(), shown);
        shown.to_owned()
    }

    fn submit(&self, x: &[f32], scale: f32) -> ResponseFuture<'_> {
        let x = Tensor::from_vec(Shape::vector(x.len() as u64), x.to_vec()).unwrap();
        let mut request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", x);
        if self.has_scale {
            request = request.with_input("scale", Tensor::scalar(scale));
        }
        submit(&self.engine, request)
    }

    /// Sends requests while the instance is blocked, so that they queue up. Returns their outputs and the
    /// number of rows of each run.
    fn together(&self, requests: &[(&[f32], f32)]) -> (Vec<Vec<f32>>, Vec<usize>) {
        self.gate.is_open.store(false, Ordering::SeqCst);
        self.gate.is_reached.store(false, Ordering::SeqCst);
        let held = self.submit(&[GATE], 0.0);
        while !self.gate.is_reached.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.gate.runs.lock().unwrap().clear();
        let answers: Vec<_> = requests.iter().map(|(x, scale)| self.submit(x, *scale)).collect();
        self.gate.is_open.store(true, Ordering::SeqCst);
        block_on(held).unwrap();
        let outputs = answers.into_iter().map(|answer| {
            let response = block_on(answer).unwrap();
            let y = response
                .output("y")
                .unwrap()
                .as_fixed()
                .unwrap()
                .to_vec::<f16>()
                .unwrap();
            y.into_iter().map(f16::to_f32).collect()
        });
        (outputs.collect(), self.gate.runs.lock().unwrap().clone())
    }
}

/// Returns the prefix sums of the rows.
fn running_sum(x: &[f32]) -> Vec<f32> {
    let mut sum = 0.0;
    let add = |x: &f32| {
        sum += x;
        sum
    };
    x.iter().map(add).collect()
}

/// Returns the rows minus their mean.
fn centered(x: &[f32]) -> Vec<f32> {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    x.iter().map(|x| x - mean).collect()
}

fn doubled(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| 2.0 * x).collect()
}

fn unproven() -> RowIndependence {
    RowIndependence::Unproven("CumSum 'y' runs along axis 0".to_owned())
}

fn proven() -> RowIndependence {
    RowIndependence::Proven(IndependentRows::default().with_shared_input("scale"))
}

/// Requests of different callers are not batched together unless the model or the operator declares the rows
/// independent. A check of outputs at run time would not suffice: in a causal model the first request of a
/// batch is right, 16-bit outputs may round to the same values, and equal requests have equal rows.
#[test]
fn rows_of_one_caller_never_meet_those_of_another_where_nothing_says_that_they_are_independent() {
    for run in [running_sum, centered] {
        let house = TestServer::new(run, unproven(), None, None);
        let equal: Vec<(&[f32], f32)> = vec![(&[1.0, 1.0], 1.0); 80];
        let different: Vec<(&[f32], f32)> = vec![(&[1.0, 2.0], 1.0), (&[30.0, 40.0], 1.0), (&[7.0], 1.0)];
        for requests in [equal, different] {
            let (outputs, runs) = house.together(&requests);
            let expected: Vec<Vec<f32>> = requests.iter().map(|(x, _)| run(x)).collect();
            assert_eq!(outputs, expected);
            let rows: Vec<usize> = requests.iter().map(|(x, _)| x.len()).collect();
            assert_eq!(runs, rows, "each runs alone");
        }
        let metrics = &house.engine.metrics()[0].statistics;
        assert_eq!(metrics.inference_count, metrics.execution_count);
        assert_eq!(
            house.said(),
            "no (CumSum 'y' runs along axis 0; to promise that rows are independent, write max_batch_size: 8)"
        );
        let config = house.config();
        assert_eq!((config.max_batch_size, &config.dynamic_batching), (0, &None));
        assert_eq!(config.input[0].dims, [-1]);
    }
}

#[test]
fn requests_to_a_proven_model_are_joined_and_get_their_own_rows() {
    let house = TestServer::new(doubled, proven(), None, None);
    let requests: [(&[f32], f32); 3] = [(&[1.0, 2.0], 1.0), (&[3.0], 1.0), (&[4.0, 5.0], 1.0)];
    let (outputs, runs) = house.together(&requests);
    assert_eq!(outputs, [vec![2.0, 4.0], vec![6.0], vec![8.0, 10.0]]);
    assert_eq!(runs, [5]);
    let metrics = &house.engine.metrics()[0].statistics;
    assert!(metrics.execution_count < metrics.inference_count);
    assert_eq!(house.said(), "proven");
    // The configuration must not show `max_batch_size`, because clients would then send a scale per row.
    let config = house.config();
    assert_eq!((config.max_batch_size, &config.dynamic_batching), (0, &None));
}

#[test]
fn an_input_without_rows_joins_only_requests_in_which_it_is_equal() {
    let house = TestServer::new(doubled, proven(), None, None);
    let requests: [(&[f32], f32); 4] = [(&[1.0], 1.0), (&[2.0], 0.5), (&[3.0, 4.0], 1.0), (&[5.0], 0.5)];
    let (outputs, mut runs) = house.together(&requests);
    assert_eq!(outputs, [vec![2.0], vec![2.0], vec![6.0, 8.0], vec![5.0]]);
    runs.sort_unstable();
    assert_eq!(runs, [2, 3]);
}

#[test]
fn the_operators_word_is_followed_whatever_the_model_says() {
    let said = |says, config| TestServer::new(doubled, says, None, Some(config)).said();
    assert_eq!(said(proven(), "max_batch_size: 0"), "no (max_batch_size is 0)");
    assert_eq!(said(unproven(), "max_batch_size: 8"), "declared");
    let refused = TestServer::new(doubled, proven(), None, Some("max_batch_size: 8"));
    let [status] = &refused.engine.models()[..] else {
        panic!("one model")
    };
    assert!(
        status
            .reason
            .contains("the first dimension of 'scale' (FP32[]) is not free"),
        "{}",
        status.reason
    );
    assert!(status.joining.is_none());
}

#[test]
fn a_model_declares_its_rows_in_its_own_code() {
    let says = |says, rows| TestServer::new(doubled, says, Some(rows), None);
    assert_eq!(says(unproven(), 0).said(), "no (its own max_batch_size is 0)");
    for (known, said) in [(unproven(), "declared"), (proven(), "proven")] {
        let house = says(known, 3);
        assert_eq!(house.said(), said);
        let requests: [(&[f32], f32); 4] = [
            (&[1.0, 2.0], 1.0),
            (&[3.0], 1.0),
            (&[4.0, 5.0], 1.0),
            (&[6.0; 4], 1.0),
        ];
        let (outputs, runs) = house.together(&requests);
        assert_eq!(runs, [3, 2, 4], "the last one is larger than a batch");
        assert_eq!(outputs[1..3], [vec![6.0], vec![8.0, 10.0]]);
    }
}
