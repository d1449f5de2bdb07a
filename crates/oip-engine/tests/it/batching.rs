//! Requests that run together, and what happens to the others when one of them is bad, slow or gone.

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

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, FailureReason, Repository};
use oip_service::{
    Backend, BoxFuture, CancelToken, InferenceService, LoadContext, Model, ModelSource, RequestContext,
};
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ModelState,
    ServiceError, TensorMetadata,
};
use tempfile::TempDir;
use tensor_core::{Shape, Tensor};

use crate::support::{repository, request, y};

type Run = Arc<dyn Fn(&[i32], &CancelToken) -> Result<Vec<InferOutput>, ServiceError> + Send + Sync>;

/// Models made of functions from the rows of `x INT32[-1]` to outputs, of which there is `y INT32[-1]`,
/// found by the name of the model.
#[derive(Clone, Default)]
struct FunctionBackend(HashMap<&'static str, Run>);

struct FunctionModel {
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
        let metadata = ModelMetadata {
            name: String::new(),
            versions: vec![],
            platform: "test_function".into(),
            inputs: vec![TensorMetadata::new("x", DataType::INT32, &[-1])],
            outputs: vec![TensorMetadata::new("y", DataType::INT32, &[-1])],
        };
        let run = self.0[source.name.as_str()].clone();
        Ok(Box::new(FunctionModel { run, metadata }))
    }
}

impl Model for FunctionModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, request: InferRequest, cancel: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
        let x = request
            .input("x")
            .unwrap()
            .as_fixed()
            .unwrap()
            .to_vec::<i32>()
            .unwrap();
        (self.run)(&x, cancel)
    }
}

fn vector(values: Vec<i32>) -> Tensor {
    Tensor::from_vec(Shape::vector(values.len() as u64), values).unwrap()
}

/// Output `y`.
fn out(values: Vec<i32>) -> Result<Vec<InferOutput>, ServiceError> {
    Ok(vec![InferOutput::new("y", vector(values))])
}

fn double(x: &[i32]) -> Vec<i32> {
    x.iter().map(|x| x * 2).collect()
}

/// An engine with a model of one function, `m`, and a model `other` that doubles.
fn engine(
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

fn one_instance() -> EngineConfig {
    EngineConfig {
        instances: 1,
        hang_timeout: Duration::from_millis(100),
        ..EngineConfig::default()
    }
}

type Answer<'a> = BoxFuture<'a, Result<InferResponse, ServiceError>>;

/// Puts a request into the queue.
fn submit(engine: &Engine, request: InferRequest) -> Answer<'_> {
    submit_within(engine, request, Duration::from_secs(60))
}

fn submit_within(engine: &Engine, request: InferRequest, timeout: Duration) -> Answer<'_> {
    let mut answer = engine.infer(request, RequestContext::new(Some(Instant::now() + timeout)));
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => answer,
        Poll::Ready(result) => Box::pin(std::future::ready(result)),
    }
}

/// A value for which the models below wait until the gate is open.
const GATE: i32 = -1;

/// Holds a model up, so that requests gather.
#[derive(Clone, Default)]
struct Gate {
    is_open: Arc<AtomicBool>,
    is_reached: Arc<AtomicBool>,
}

impl Gate {
    fn pass(&self, x: &[i32]) {
        if x == [GATE] {
            self.is_reached.store(true, Ordering::SeqCst);
            while !self.is_open.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// Sends the request that holds the model up, and waits until it does.
    fn hold<'a>(&self, engine: &'a Engine) -> Answer<'a> {
        self.is_open.store(false, Ordering::SeqCst);
        self.is_reached.store(false, Ordering::SeqCst);
        let held = submit(engine, request("m", None, GATE));
        while !self.is_reached.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        held
    }
}

/// The rows of each run.
type Batches = Arc<Mutex<Vec<Vec<i32>>>>;

/// An engine with one thread, whose model notes the rows of its batches, and then does as `run` says.
fn gated(
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

fn code(answer: Result<InferResponse, ServiceError>) -> Result<i32, ErrorCode> {
    answer.map(|response| y(&response)).map_err(|error| error.code())
}

#[test]
fn what_waits_runs_together() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    let held = gate.hold(&engine);
    let answers: Vec<_> = (0..100).map(|x| submit(&engine, request("m", None, x))).collect();
    gate.open();
    assert_eq!(code(block_on(held)), Ok(-2));
    for (x, answer) in (0..).zip(answers) {
        assert_eq!(code(block_on(answer)), Ok(2 * x));
    }
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    // The first of the first batch is run by itself too, to see whether it gets the same answer.
    assert_eq!(sizes, [1, 64, 1, 36]);

    let statistics = engine.statistics().unwrap();
    let model = ModelRef::new("m", None).unwrap();
    let found = statistics.model_statistics(Some(model)).unwrap();
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.name.as_str(), found.version.as_str()), ("m", "1"));
    assert_eq!((found.inference_count, found.execution_count), (101, 3));
    let stats = &found.inference_stats;
    let counts = [
        stats.success,
        stats.queue,
        stats.compute_input,
        stats.compute_infer,
        stats.compute_output,
    ];
    assert_eq!(counts.map(|duration| duration.count), [101; 5]);
    assert_eq!(
        [stats.fail, stats.cache_hit, stats.cache_miss].map(|duration| duration.count),
        [0; 3]
    );
    assert!(stats.success.ns >= stats.queue.ns + stats.compute_infer.ns);
    let by_size: Vec<(u64, u64)> = found
        .batch_stats
        .iter()
        .map(|batch| (batch.batch_size, batch.compute_infer.count))
        .collect();
    assert_eq!(by_size, [(1, 1), (36, 1), (64, 1)]);
    assert_eq!(statistics.model_statistics(None).unwrap().len(), 2);
    let unknown = statistics.model_statistics(Some(ModelRef::new("m", Some("2")).unwrap()));
    assert_eq!(unknown.unwrap_err().code(), ErrorCode::NotFound);
}

#[test]
fn requests_of_many_rows_run_too() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    let held = gate.hold(&engine);
    let large = |rows| {
        let x = vector((0..rows).collect());
        InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", x)
    };
    let answers: Vec<_> = [40, 100, 30, 20]
        .map(|rows| (rows, submit(&engine, large(rows))))
        .into();
    gate.open();
    block_on(held).unwrap();
    for (rows, answer) in answers {
        let response = block_on(answer).unwrap();
        let found = response
            .output("y")
            .unwrap()
            .as_fixed()
            .unwrap()
            .to_vec::<i32>()
            .unwrap();
        assert_eq!(found, double(&(0..rows).collect::<Vec<_>>()));
    }
    // 40 and 30 are more than 64 together, 100 are by themselves; 30 once more to compare.
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 40, 100, 50, 30]);
}

/// MD-03: a model that panics on one input, in a batch of 8.
#[test]
fn md_03_a_panic_in_a_batch_is_one_requests_error() {
    let (engine, gate, _, _folder) = gated(|x| match x.contains(&13) {
        true => panic!("13 at src/secret.rs"),
        false => Ok(double(x)),
    });
    for _ in 0..100 {
        let held = gate.hold(&engine);
        let answers: Vec<_> = (10..18)
            .map(|x| (x, submit(&engine, request("m", None, x))))
            .collect();
        gate.open();
        block_on(held).unwrap();
        for (x, answer) in answers {
            let expected = if x == 13 {
                Err(ErrorCode::Internal)
            } else {
                Ok(2 * x)
            };
            assert_eq!(code(block_on(answer)), expected);
        }
    }
}

/// MD-08: one bad request in a batch of 31 good ones.
#[test]
fn md_08_a_bad_request_does_not_spoil_its_neighbours() {
    let (engine, gate, batches, _folder) = gated(|x| match x.contains(&13) {
        true => Err(ServiceError::invalid("13 is out of range")),
        false => Ok(double(x)),
    });
    let held = gate.hold(&engine);
    let answers: Vec<_> = (0..32).map(|x| submit(&engine, request("m", None, x))).collect();
    gate.open();
    block_on(held).unwrap();
    for (x, answer) in (0..).zip(answers) {
        let expected = if x == 13 {
            Err(ErrorCode::InvalidArgument)
        } else {
            Ok(2 * x)
        };
        assert_eq!(code(block_on(answer)), expected);
    }
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(
        sizes,
        [&[1, 32][..], &[1; 32]].concat(),
        "each is tried once more, and no more"
    );
    let metrics = &engine.metrics()[0];
    assert_eq!(metrics.failures, [(FailureReason::Other, 1)]);
    assert_eq!(metrics.statistics.inference_count, 32);
}

/// MD-06: outputs that do not have the batch's rows are nobody's.
#[test]
fn md_06_outputs_without_the_batchs_rows_end_the_guess_that_it_is_one() {
    // The values above 10: the first dimension of output `y` is no batch.
    let (engine, gate, batches, _folder) = gated(|x| Ok(x.iter().copied().filter(|x| *x > 10).collect()));
    for _ in 0..2 {
        let held = gate.hold(&engine);
        let answers: Vec<_> = (8..16)
            .map(|x| (x, submit(&engine, request("m", None, x))))
            .collect();
        gate.open();
        block_on(held).unwrap();
        for (x, answer) in answers {
            let response = block_on(answer).unwrap();
            let found = response
                .output("y")
                .unwrap()
                .as_fixed()
                .unwrap()
                .to_vec::<i32>()
                .unwrap();
            assert_eq!(found, [x].into_iter().filter(|x| *x > 10).collect::<Vec<_>>());
        }
    }
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(
        sizes,
        [&[1, 8][..], &[1; 8], &[1], &[1; 8]].concat(),
        "joined once, and never again"
    );
}

/// A model whose rows depend on each other although its shapes look like a batch.
#[test]
fn answers_that_depend_on_the_batch_end_the_guess_that_it_is_one() {
    let (engine, gate, batches, _folder) = gated(|x| {
        let sum: i32 = x.iter().sum();
        Ok(x.iter().map(|x| x * 1000 + sum).collect())
    });
    let shown = || {
        let model = ModelRef::new("m", None).unwrap();
        let config = engine.configuration().unwrap().model_config(model).unwrap();
        (
            config.max_batch_size,
            config.dynamic_batching.is_some(),
            config.input[0].dims.clone(),
        )
    };
    assert_eq!(shown(), (64, true, vec![]));
    for _ in 0..2 {
        let held = gate.hold(&engine);
        let answers: Vec<_> = (1..5)
            .map(|x| (x, submit(&engine, request("m", None, x))))
            .collect();
        gate.open();
        block_on(held).unwrap();
        for (x, answer) in answers {
            assert_eq!(code(block_on(answer)), Ok(x * 1001));
        }
    }
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(
        sizes,
        [&[1, 4, 1][..], &[1; 4], &[1], &[1; 4]].concat(),
        "tried once, and never again"
    );
    // What the configuration shows is what is done.
    assert_eq!(shown(), (0, false, vec![-1]));
}

/// GR-18: a client leaves while its request waits, and while it runs with three others.
#[test]
fn gr_18_a_client_that_leaves_is_dropped_from_the_batch_and_the_others_are_exact() {
    let running = Gate::default();
    let (engine, gate, batches, _folder) = gated({
        let running = running.clone();
        move |x| {
            if x.len() > 1 {
                running.pass(&[GATE]);
            }
            Ok(double(x))
        }
    });
    let held = gate.hold(&engine);
    let mut answers: Vec<_> = (0..5)
        .map(|x| Some(submit(&engine, request("m", None, x))))
        .collect();
    drop(answers[1].take());
    gate.open();
    block_on(held).unwrap();
    while !running.is_reached.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
    drop(answers[3].take());
    running.open();
    for x in [0, 2, 4] {
        assert_eq!(code(block_on(answers[x as usize].take().unwrap())), Ok(2 * x));
    }
    assert_eq!(batches.lock().unwrap()[1..], [vec![0, 2, 3, 4], vec![0]]);
    assert_eq!(engine.metrics()[0].failures, [(FailureReason::Canceled, 1)]);
}

#[test]
fn expired_requests_are_dropped_from_the_batch() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    let held = gate.hold(&engine);
    let late = submit_within(&engine, request("m", None, 1), Duration::from_millis(20));
    let patient = submit(&engine, request("m", None, 2));
    thread::sleep(Duration::from_millis(30));
    gate.open();
    block_on(held).unwrap();
    assert_eq!(code(block_on(late)), Err(ErrorCode::DeadlineExceeded));
    assert_eq!(code(block_on(patient)), Ok(4));
    assert_eq!(batches.lock().unwrap()[1..], [vec![2]]);
}

#[test]
fn a_client_that_leaves_makes_room_in_the_queue() {
    let gate = Gate::default();
    let config = EngineConfig {
        queue_capacity: 1,
        ..one_instance()
    };
    let (engine, _folder) = engine(config, {
        let gate = gate.clone();
        move |x, _| {
            gate.pass(x);
            out(double(x))
        }
    });
    let held = gate.hold(&engine);
    let first = submit(&engine, request("m", None, 1));
    assert_eq!(
        code(block_on(submit(&engine, request("m", None, 2)))),
        Err(ErrorCode::Overloaded)
    );
    drop(first);
    let third = submit(&engine, request("m", None, 3));
    gate.open();
    block_on(held).unwrap();
    assert_eq!(code(block_on(third)), Ok(6));
}

/// MD-05: a model that never comes back.
#[test]
fn md_05_threads_that_hang_are_lost_one_by_one_and_then_the_model_is_unavailable() {
    let gate = Gate::default();
    let config = EngineConfig {
        instances: 2,
        ..one_instance()
    };
    let (engine, _folder) = engine(config, {
        let gate = gate.clone();
        move |x, _| {
            gate.pass(x);
            out(double(x))
        }
    });
    let model = ModelRef::new("m", None).unwrap();
    let patience = Duration::from_millis(150);
    for lost in 1..=2 {
        // The transport gives up at the deadline.
        drop(gate.hold(&engine));
        thread::sleep(patience);
        assert_eq!(engine.model_ready(model).is_ok(), lost < 2, "{lost} lost");
        let start = Instant::now();
        let answer = code(block_on(submit(&engine, request("m", None, 1))));
        assert_eq!(
            answer,
            if lost < 2 {
                Ok(2)
            } else {
                Err(ErrorCode::Unavailable)
            }
        );
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
    let reason = "all of its 2 instances hang in requests that were given up";
    let error = engine.model_ready(model).unwrap_err();
    assert_eq!(error.to_string(), format!("model 'm' is not ready: {reason}"));
    assert!(!engine.readiness().is_ready());
    let status = engine
        .models()
        .into_iter()
        .find(|status| status.name == "m")
        .unwrap();
    assert_eq!(
        (status.state, status.reason.as_str()),
        (ModelState::Unavailable, reason)
    );
    // Nobody else is hurt, and the end is not held up.
    assert_eq!(code(block_on(submit(&engine, request("other", None, 1)))), Ok(2));
    // Should they come back after all, the model is there again.
    gate.open();
    while engine.model_ready(model).is_err() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(code(block_on(submit(&engine, request("m", None, 1)))), Ok(2));
    drop(gate.hold(&engine));
    let start = Instant::now();
    assert!(!engine.stop(start + patience));
    assert!(start.elapsed() < patience + Duration::from_secs(1));
    gate.open();
}

#[test]
fn md_05_requests_that_wait_for_a_model_that_hangs_are_answered() {
    let gate = Gate::default();
    let (engine, _folder) = engine(one_instance(), {
        let gate = gate.clone();
        move |x, _| {
            gate.pass(x);
            out(double(x))
        }
    });
    drop(gate.hold(&engine));
    let waiting = submit(&engine, request("m", None, 1));
    thread::sleep(Duration::from_millis(150));
    assert_eq!(
        code(block_on(submit(&engine, request("m", None, 2)))),
        Err(ErrorCode::Unavailable)
    );
    assert_eq!(code(block_on(waiting)), Err(ErrorCode::Unavailable));
    // And those that wait when the server ends.
    gate.open();
    while engine.model_ready(ModelRef::new("m", None).unwrap()).is_err() {
        thread::sleep(Duration::from_millis(1));
    }
    let _held = gate.hold(&engine);
    let waiting = submit(&engine, request("m", None, 3));
    assert!(!engine.stop(Instant::now() + Duration::from_millis(50)));
    assert_eq!(code(block_on(waiting)), Err(ErrorCode::Unavailable));
    gate.open();
}

/// LC-11: one model is flooded and slow; another one, and the health endpoints, do not notice.
#[test]
fn lc_11_a_flooded_model_leaves_the_others_alone() {
    const SLOW: Duration = Duration::from_millis(30);
    let (engine, _folder) = engine(one_instance(), |x, _| {
        thread::sleep(SLOW);
        out(double(x))
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let flood = thread::spawn({
        let (engine, is_over) = (engine.clone(), is_over.clone());
        move || {
            let mut refused = 0;
            let mut waiting = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                waiting.push(submit(&engine, request("m", None, 1)));
                if waiting.len() > 1_000 {
                    refused += waiting.drain(..500).filter(|_| true).count();
                    thread::sleep(Duration::from_millis(1));
                }
            }
            refused
        }
    });
    let mut times = Vec::new();
    for x in 0..200 {
        let start = Instant::now();
        assert_eq!(
            code(block_on(submit(&engine, request("other", None, x)))),
            Ok(2 * x)
        );
        times.push(start.elapsed());
        let start = Instant::now();
        assert!(engine.readiness().is_ready());
        assert!(
            start.elapsed() < Duration::from_millis(50),
            "{:?}",
            start.elapsed()
        );
    }
    is_over.store(true, Ordering::SeqCst);
    flood.join().unwrap();
    times.sort_unstable();
    // Behind the other model's requests it would be at least its time, and the queue's length times that.
    assert!(times[197] < SLOW, "{:?}", times[197]);
}

/// MD-07: 64 clients with unique values through the batcher; each gets exactly its own rows.
///
/// 10,000 requests of each client with optimizations, 3,000 without.
#[test]
fn md_07_no_row_astray() {
    const CLIENTS: i32 = 64;
    let rounds = if cfg!(debug_assertions) { 3_000 } else { 10_000 };
    let largest = Arc::new(Mutex::new(0));
    let config = EngineConfig {
        instances: 4,
        ..EngineConfig::default()
    };
    let (engine, _folder) = engine(config, {
        let largest = largest.clone();
        move |x, _| {
            let mut largest = largest.lock().unwrap();
            *largest = x.len().max(*largest);
            out(x.iter().map(|x| x ^ 0x5555_5555).collect())
        }
    });
    // 8 threads with 8 clients each, so that the test measures the engine rather than the system's threads.
    let threads = (0..8).map(|thread| {
        let engine = engine.clone();
        thread::spawn(move || {
            for round in 0..rounds {
                let answers = (0..CLIENTS / 8).map(|client| {
                    let start = ((thread * CLIENTS / 8 + client) * rounds + round) * 4;
                    let x: Vec<i32> = (start..=start + round % 4).collect();
                    let request = InferRequest::new(ModelRef::new("m", None).unwrap());
                    (x.clone(), submit(&engine, request.with_input("x", vector(x))))
                });
                let answers: Vec<_> = answers.collect();
                for (x, answer) in answers {
                    let response = block_on(answer).unwrap();
                    let found = response
                        .output("y")
                        .unwrap()
                        .as_fixed()
                        .unwrap()
                        .to_vec::<i32>()
                        .unwrap();
                    assert!(found.iter().map(|y| y ^ 0x5555_5555).eq(x), "a row went astray");
                }
            }
        })
    });
    threads
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert!(*largest.lock().unwrap() > 4, "nothing was joined");
    let counted: u64 = engine.metrics()[0].statistics.inference_stats.success.count;
    assert_eq!(counted, CLIENTS as u64 * rounds as u64);
}
