//! Tests of instances under policies that only a configuration can set.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_executor::block_on;
use oip_model::{BoxFuture, Call, Capabilities, Model, Outcome};
use oip_service::RequestContext;
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, ModelConfig, ModelMetadata, ModelRef, ParameterValue,
    ServiceError, TensorMetadata, TensorValue,
    model_config::{DynamicBatching, QueuePolicy, TimeoutAction},
};
use parking_lot::Mutex;
use tensor_core::{Shape, Tensor};

use crate::{
    batching::scheduler::BatchPolicy,
    infer_result::InferResult,
    run::{
        instances::{InstanceSettings, Instances},
        model_calls::Others,
    },
    statistics::{FailureReason, VersionMetrics},
};

/// A model that returns its input values. If the last value is [`SHORT`], the model omits it. If the first
/// value is [`GATE`], the model waits until the gate opens; a positive first value is the time to sleep in
/// milliseconds.
struct TestModel {
    metadata: ModelMetadata,
    is_open: Arc<AtomicBool>,
    batches: Arc<Mutex<Vec<Vec<i32>>>>,
}

const GATE: i32 = -1;
const SHORT: i32 = -2;

impl Model for TestModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let mut x = call.request.take::<i32>("x")?.into_vec();
        self.batches.lock().push(x.clone());
        while x[0] == GATE && !self.is_open.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        if x[0] > 0 {
            thread::sleep(Duration::from_millis(x[0] as u64));
        }
        if x.last() == Some(&SHORT) {
            x.pop();
        }
        Ok(Outcome::output("y", vector(x)))
    }
}

struct Bench {
    instances: Instances,
    is_open: Arc<AtomicBool>,
    batches: Arc<Mutex<Vec<Vec<i32>>>>,
}

impl Bench {
    fn new(threads: usize, max_batch_size: u32, batching: DynamicBatching) -> Self {
        let policy = BatchPolicy::from_config(&ModelConfig {
            max_batch_size,
            dynamic_batching: Some(batching),
            ..ModelConfig::default()
        });
        let metadata = ModelMetadata::new(
            "m",
            "test_test",
            vec![TensorMetadata::new("x", DataType::INT32, &[-1])],
            vec![TensorMetadata::new("y", DataType::INT32, &[-1])],
        );
        let (is_open, batches) = (
            Arc::<AtomicBool>::default(),
            Arc::<Mutex<Vec<Vec<i32>>>>::default(),
        );
        let model = TestModel {
            metadata: metadata.clone(),
            is_open: is_open.clone(),
            batches: batches.clone(),
        };
        let settings = InstanceSettings {
            capabilities: Capabilities::default(),
            threads,
            queue_capacity: 100,
            policy: policy.unwrap(),
            hang_timeout: Duration::from_secs(5),
            on_thread: || {},
            in_place: None,
            warmed_up: Vec::new(),
            is_decoupled: false,
            others: Others::default(),
        };
        let instances = Instances::new(Box::new(model), metadata, settings);
        Self {
            instances,
            is_open,
            batches,
        }
    }

    fn metrics(&self) -> VersionMetrics {
        self.instances
            .recorder()
            .snapshot("m", None, self.instances.waiting())
    }

    /// Queues a request with the values `x`.
    fn submit(&self, x: &[i32], priority: u64, timeout: Option<u64>) -> BoxFuture<'_, InferResult> {
        let mut request =
            InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", vector(x.to_vec()));
        let timeout = timeout.map(ParameterValue::Uint64);
        request
            .parameters
            .extend(timeout.map(|timeout| ("timeout".to_owned(), timeout)));
        let mut answer: BoxFuture<'_, InferResult> = Box::pin(async move {
            let cx = RequestContext::new(None).with_priority(priority);
            self.instances.infer(request, &cx).await
        });
        match poll(&mut answer) {
            Poll::Pending => answer,
            Poll::Ready(result) => Box::pin(std::future::ready(result)),
        }
    }

    /// Sends a request that blocks the only thread.
    fn hold(&self) -> BoxFuture<'_, InferResult> {
        let held = self.submit(&[GATE], 0, None);
        while self.batches.lock().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        held
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }
}

fn poll(answer: &mut BoxFuture<'_, InferResult>) -> Poll<InferResult> {
    answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn vector(values: Vec<i32>) -> Tensor {
    Tensor::from_vec(Shape::vector(values.len() as u64), values).unwrap()
}

fn values(answer: InferResult) -> Result<Vec<i32>, ErrorCode> {
    let outputs = answer.map_err(|error| error.code())?;
    Ok(outputs[0].value.as_fixed().unwrap().to_vec().unwrap())
}

#[test]
fn the_delay_is_kept_and_a_full_batch_does_not_wait() {
    let delay = Duration::from_millis(5);
    let bench = Bench::new(
        2,
        4,
        DynamicBatching {
            max_queue_delay_microseconds: 5_000,
            ..DynamicBatching::default()
        },
    );
    let mut times = Vec::new();
    for _ in 0..30 {
        let start = Instant::now();
        assert_eq!(values(block_on(bench.submit(&[0], 0, None))), Ok(vec![0]));
        times.push(start.elapsed());
    }
    let fastest = times.into_iter().min().unwrap();
    assert!(fastest >= delay, "{fastest:?}");
    // On a busy machine, most responses may be late, so only the fastest one is checked.
    // `scheduler/properties.rs` checks the exact times.
    assert!(fastest <= delay + Duration::from_millis(2), "{fastest:?}");

    let start = Instant::now();
    let answers: Vec<_> = (0..4).map(|_| bench.submit(&[0], 0, None)).collect();
    for answer in answers {
        assert_eq!(values(block_on(answer)), Ok(vec![0]));
    }
    assert_eq!(bench.batches.lock().last().unwrap().len(), 4);
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn answers_keep_the_order_of_requests_where_that_is_configured() {
    let bench = Bench::new(
        2,
        1,
        DynamicBatching {
            preserve_ordering: true,
            ..DynamicBatching::default()
        },
    );
    let mut first = bench.submit(&[GATE], 0, None);
    let mut second = bench.submit(&[0], 0, None);
    let third = bench.submit(&[0], 0, None);
    let mut fourth = bench.submit(&[0], 0, None);
    // The client disconnects before the response.
    drop(third);
    while bench.batches.lock().len() < 3 {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(20));
    assert!(poll(&mut second).is_pending() && poll(&mut fourth).is_pending());
    bench.open();
    assert_eq!(values(block_on(fourth)), Ok(vec![0]));
    assert!(poll(&mut first).is_ready() && poll(&mut second).is_ready());
}

#[test]
fn higher_priorities_run_first() {
    let bench = Bench::new(
        1,
        1,
        DynamicBatching {
            priority_levels: 3,
            default_priority_level: 2,
            ..DynamicBatching::default()
        },
    );
    let held = bench.hold();
    let answers: Vec<_> = [(-10, 3), (-11, 0), (-12, 1), (-13, 9), (-14, 1)]
        .map(|(x, priority)| bench.submit(&[x], priority, None))
        .into();
    bench.open();
    block_on(held).unwrap();
    for answer in answers {
        block_on(answer).unwrap();
    }
    assert_eq!(bench.batches.lock()[1..].concat(), [-12, -14, -11, -13, -10]);
}

#[test]
fn queues_have_times_and_sizes_as_configured() {
    let policy = |timeout_action| QueuePolicy {
        timeout_action,
        default_timeout_microseconds: 60_000_000,
        allow_timeout_override: true,
        max_queue_size: 3,
    };
    let bench = Bench::new(
        1,
        1,
        DynamicBatching {
            priority_levels: 2,
            default_priority_level: 1,
            default_queue_policy: Some(policy(TimeoutAction::Reject)),
            priority_queue_policy: BTreeMap::from([(2, policy(TimeoutAction::Delay))]),
            ..DynamicBatching::default()
        },
    );
    let held = bench.hold();
    let rejected = bench.submit(&[-10], 1, Some(1_000));
    let kept = bench.submit(&[-11], 1, None);
    let delayed = bench.submit(&[-12], 2, Some(1_000));
    let behind = bench.submit(&[-13], 2, None);
    let last = bench.submit(&[-14], 1, Some(30_000_000));
    let full = bench.submit(&[-15], 1, None);
    assert_eq!(values(block_on(full)), Err(ErrorCode::Overloaded));
    thread::sleep(Duration::from_millis(10));
    bench.open();
    block_on(held).unwrap();
    let error = block_on(rejected).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
    assert_eq!(error.to_string(), "it waited longer than its queue allows");
    for answer in [kept, delayed, behind, last] {
        block_on(answer).unwrap();
    }
    assert_eq!(bench.batches.lock()[1..].concat(), [-11, -14, -13, -12]);
    let metrics = bench.metrics();
    assert_eq!(metrics.statistics.inference_stats.fail.count, 2);
    assert_eq!(metrics.waiting, 0);
}

/// If batching is configured, outputs with a different number of rows than the batch are an internal error.
#[test]
fn outputs_without_the_batchs_rows_are_internal_errors() {
    let bench = Bench::new(1, 8, DynamicBatching::default());
    let held = bench.hold();
    let answers = [&[-10][..], &[-12], &[-11, SHORT]].map(|x| bench.submit(x, 0, None));
    bench.open();
    block_on(held).unwrap();
    let [good, other, bad] = answers.map(block_on);
    assert_eq!((values(good), values(other)), (Ok(vec![-10]), Ok(vec![-12])));
    let error = bad.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert_eq!(
        error.to_string(),
        "the model returned a wrong output 'y': expected 2 rows as in its inputs, found shape [1]"
    );
    let sizes: Vec<usize> = bench.batches.lock().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 4, 1, 1, 2]);
}

/// A request with more rows than the maximum batch size is refused.
#[test]
fn more_rows_than_configured_are_refused() {
    let bench = Bench::new(1, 2, DynamicBatching::default());
    let error = block_on(bench.submit(&[0, 0, 0], 0, None)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert_eq!(error.to_string(), "expected a batch of at most 2 rows, found 3");
    assert_eq!(bench.metrics().statistics.inference_stats.fail.count, 1);
}

/// Requests after an abandoned one do not wait for its response, and only delivered responses count as
/// success.
#[test]
fn whoever_leaves_leaves_the_order_though_the_model_goes_on() {
    let bench = Bench::new(
        2,
        1,
        DynamicBatching {
            preserve_ordering: true,
            ..DynamicBatching::default()
        },
    );
    let held = bench.hold();
    let mut second = bench.submit(&[0], 0, None);
    let third = bench.submit(&[0], 0, None);
    while bench.metrics().statistics.execution_count < 2 {
        thread::sleep(Duration::from_millis(1));
    }
    // Both later requests have run. Their responses are held back until the blocked request has its response.
    assert!(poll(&mut second).is_pending());
    assert_eq!(bench.metrics().statistics.inference_stats.success.count, 0);
    drop(third);
    drop(held);
    assert_eq!(values(block_on(second)), Ok(vec![0]));
    assert_eq!(values(block_on(bench.submit(&[0], 0, None))), Ok(vec![0]));
    bench.open();
    bench.instances.stop();
    assert!(bench.instances.join(Instant::now() + Duration::from_secs(10)));
    let metrics = bench.metrics();
    assert_eq!(metrics.statistics.inference_stats.success.count, 2);
    assert_eq!(metrics.failures, [(FailureReason::Canceled, 2)]);
}

/// A model whose extra output panics when its memory is freed.
struct Trap {
    metadata: ModelMetadata,
    is_set: AtomicBool,
}

struct Memory(Vec<u8>);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

impl Model for Trap {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let x = call.request.take_input("x")?;
        let z = match self.is_set.swap(false, Ordering::SeqCst) {
            true => TensorValue::from_raw(
                DataType::INT32,
                Shape::vector(1),
                Bytes::from_owner(Memory(vec![0; 4])),
            )?,
            false => x.clone(),
        };
        Ok(vec![InferOutput::new("y", x), InferOutput::new("z", z)].into())
    }
}

/// A panic outside the model's code loses one request, and the thread continues.
#[test]
fn a_panic_outside_of_the_model_ends_no_thread() {
    let tensor = |name: &str| TensorMetadata::new(name, DataType::INT32, &[-1]);
    let metadata = ModelMetadata::new(
        "m",
        "test_test",
        vec![tensor("x")],
        vec![tensor("y"), tensor("z")],
    );
    for preserve_ordering in [false, true] {
        let policy = BatchPolicy::from_config(&ModelConfig {
            max_batch_size: 1,
            dynamic_batching: Some(DynamicBatching {
                preserve_ordering,
                ..DynamicBatching::default()
            }),
            ..ModelConfig::default()
        });
        let settings = InstanceSettings {
            capabilities: Capabilities::default(),
            threads: 1,
            queue_capacity: 10,
            policy: policy.unwrap(),
            hang_timeout: Duration::from_secs(5),
            on_thread: || {},
            in_place: None,
            warmed_up: Vec::new(),
            is_decoupled: false,
            others: Others::default(),
        };
        let model = Trap {
            metadata: metadata.clone(),
            is_set: AtomicBool::new(true),
        };
        let instances = Instances::new(Box::new(model), metadata.clone(), settings);
        let cx = RequestContext::new(None);
        let ask = || {
            let request =
                InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", vector(vec![7]));
            instances.infer(request.with_output("y"), &cx)
        };
        assert_eq!(values(block_on(ask())), Err(ErrorCode::Internal));
        assert_eq!(values(block_on(ask())), Ok(vec![7]));
        let metrics = instances.recorder().snapshot("m", None, 0);
        assert_eq!(metrics.failures, [(FailureReason::Backend, 1)]);
        instances.stop();
        assert!(instances.join(Instant::now() + Duration::from_secs(10)));
    }
}
