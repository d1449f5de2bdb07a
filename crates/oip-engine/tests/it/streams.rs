//! Tests models that send any number of responses per request.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::{
    Backend, Call, CancelToken, Capabilities, LoadContext, Model, ModelSource, Outcome, ResponseSink,
    ResponseStream, Responses, StreamedResponse,
};
use oip_resources::{ByteBudget, Lease, TimeLimits};
use oip_service::{InferenceService, ModelConfiguration, RequestContext, Statistics};
use oip_types::{DataType, ErrorCode, InferOutput, ModelMetadata, ModelRef, ServiceError, TensorMetadata};
use tensor_core::{Shape, Tensor};

use crate::support::{infer, repository, request, y};

/// Backend that loads `model.stream` files. The word in the file selects the behaviour of the model.
#[derive(Default)]
struct StreamBackend(Arc<StreamLog>);

/// The state of the models, which the test reads and controls.
#[derive(Default)]
struct StreamLog {
    /// The number of responses sent.
    sent: AtomicUsize,
    /// The number of requests that the model has finished.
    ended: AtomicUsize,
    is_released: AtomicBool,
}

impl Backend for StreamBackend {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn file_names(&self) -> &[&str] {
        &["model.stream"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let tensor = |name: &str| vec![TensorMetadata::new(name, DataType::INT32, &[-1])];
        Ok(Box::new(StreamModel {
            word: String::from_utf8(source.content.to_vec()).unwrap(),
            metadata: ModelMetadata::new("", "test_stream", tensor("x"), tensor("y")),
            seen: self.0.clone(),
        }))
    }
}

struct StreamModel {
    word: String,
    metadata: ModelMetadata,
    seen: Arc<StreamLog>,
}

impl StreamModel {
    fn stream(
        &self,
        x: i32,
        cancel: &CancelToken,
        answers: &mut dyn ResponseSink,
    ) -> Result<(), ServiceError> {
        let vector = |len, value: i32| Tensor::from_vec(Shape::vector(len as u64), vec![value; len]).unwrap();
        let output = |value| vec![InferOutput::new("y", vector(1, value))];
        let mut send = |outputs| {
            answers.send(outputs)?;
            self.seen.sent.fetch_add(1, Ordering::SeqCst);
            Ok::<(), ServiceError>(())
        };
        match self.word.as_str() {
            "counts" => (0..x).try_for_each(|value| send(output(value))),
            "counts for ever" => (0..).try_for_each(|value| send(output(value))),
            "passes over errors" => {
                for value in 0..x {
                    let _ = send(output(value));
                }
                Ok(())
            }
            "is large" => {
                (0..x).try_for_each(|value| send(vec![InferOutput::new("y", vector(1 << 20, value))]))
            }
            "fails after two" => {
                (0..2).try_for_each(|value| send(output(value)))?;
                Err(ServiceError::invalid("two is enough"))
            }
            "panics after two" => {
                (0..2).try_for_each(|value| send(output(value)))?;
                panic!("at src/secret.rs")
            }
            "knows its last" => {
                (0..x - 1).try_for_each(|value| send(output(value)))?;
                answers.send_last(output(x - 1))
            }
            "works on after its last" => {
                answers.send_last(output(x))?;
                while !self.seen.is_released.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
                match cancel.is_cancelled() {
                    false => Ok(()),
                    true => Err(ServiceError::internal("it was told to stop")),
                }
            }
            "gives one too many" => {
                answers.send_last(output(x))?;
                answers.send(output(x))
            }
            "gives another type" => send(vec![InferOutput::new("y", Tensor::scalar(1u8))]),
            "hangs after one" => {
                send(output(0))?;
                while !self.seen.is_released.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            }
            "stops when it is told" => {
                send(output(0))?;
                while !cancel.is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            }
            "frees its instance" => {
                answers.send(output(x))?;
                answers.free_instance();
                // Freeing the instance twice has no effect.
                answers.free_instance();
                while !self.seen.is_released.load(Ordering::SeqCst) && !cancel.is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                answers.send(output(-x))?;
                match x {
                    3 => panic!("at src/secret.rs"),
                    _ => Ok(()),
                }
            }
            "waits to be cancelled" => {
                send(output(0))?;
                while !cancel.is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(ServiceError::new(ErrorCode::Cancelled, "it was told"))
            }
            word => Err(ServiceError::internal(format!("{word} is no word"))),
        }
    }
}

impl Model for StreamModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        struct EndCounter<'s>(&'s StreamLog);
        impl Drop for EndCounter<'_> {
            fn drop(&mut self) {
                self.0.ended.fetch_add(1, Ordering::SeqCst);
            }
        }
        let _ended = EndCounter(&self.seen);
        let x = call.request.take::<i32>("x")?[0];
        self.stream(x, call.cancel, call.sink()?)?;
        Ok(Outcome::Streamed)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with(|capabilities| capabilities.decoupled = true)
    }
}

fn engine(root: &Path, hang_timeout: Duration) -> (Engine, Arc<StreamLog>) {
    let backend = StreamBackend::default();
    let seen = backend.0.clone();
    let backends: [Arc<dyn Backend>; 2] = [
        Arc::new(backend),
        Arc::new(crate::support::WordBackend::default()),
    ];
    let config = EngineConfig::default().with(|config| {
        config.instances = 1;
        config.hang_timeout = hang_timeout;
    });
    let engine = Engine::start(Repository::open(root, &backends, None).unwrap(), config);
    engine.wait_until_loaded();
    (engine, seen)
}

fn start_with(engine: &Engine, x: i32, cx: RequestContext) -> Result<ResponseStream, ServiceError> {
    match block_on(engine.infer_stream(request("m", None, x), cx))? {
        Responses::Several(answers) => Ok(answers),
        Responses::One(_) => panic!("one response of a model that may give several"),
    }
}

fn start(engine: &Engine, x: i32) -> ResponseStream {
    let deadline = Instant::now() + Duration::from_secs(60);
    start_with(engine, x, RequestContext::new(Some(deadline))).unwrap()
}

fn next(answers: &mut ResponseStream) -> Option<Result<StreamedResponse, ServiceError>> {
    block_on(answers.next())
}

/// Returns all responses of a stream, and the error that ends it.
fn all(answers: &mut ResponseStream) -> (Vec<i32>, Option<ServiceError>) {
    let mut values = Vec::new();
    loop {
        match next(answers) {
            None => return (values, None),
            Some(Ok(answer)) => values.push(y(&answer.response)),
            Some(Err(error)) => return (values, Some(error)),
        }
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn house(word: &str) -> (Engine, Arc<StreamLog>, tempfile::TempDir) {
    let folder = repository(&[("m/1/model.stream", word)]);
    let patience = match word {
        "hangs after one" => Duration::from_millis(50),
        _ => Duration::from_secs(60),
    };
    let (engine, seen) = engine(folder.path(), patience);
    (engine, seen, folder)
}

#[test]
fn answers_come_in_order_to_their_end_and_none_is_one_number_of_them() {
    let (engine, seen, _folder) = house("counts");
    for count in [0, 1, 2, 1000] {
        let mut answers = start(&engine, count);
        assert_eq!(
            all(&mut answers).0,
            (0..count).collect::<Vec<_>>(),
            "{count} answers"
        );
        assert!(next(&mut answers).is_none(), "the end stays the end");
    }
    assert_eq!(seen.ended.load(Ordering::SeqCst), 4);
    let statistics = &engine.model_statistics(None).unwrap()[0];
    assert_eq!((statistics.inference_count, statistics.execution_count), (4, 4));
    let model = ModelRef::new("m", None).unwrap();
    let config = engine.model_config(model).unwrap();
    assert!(config.model_transaction_policy.decoupled);
    assert_eq!(config.max_batch_size, 0, "nothing is guessed");
}

/// There is one instance. Each request frees it after the first response and continues, so that many requests
/// run at the same time.
#[test]
fn requests_go_on_beside_others_once_their_instance_is_free() {
    let (engine, seen, _folder) = house("frees its instance");
    for round in 0..3 {
        let mut open: Vec<ResponseStream> = Vec::new();
        for x in 1..40 {
            let mut answers = start(&engine, x);
            assert_eq!(next(&mut answers).unwrap().unwrap().response.outputs.len(), 1);
            open.push(answers);
        }
        let begun = 39 * (round + 1) as usize;
        assert_eq!(seen.ended.load(Ordering::SeqCst), begun - 39, "all are under way");
        // If a client disconnects, only its own request ends.
        drop(open.pop());
        wait_until("the model is told", || {
            seen.ended.load(Ordering::SeqCst) == begun - 38
        });
        seen.is_released.store(true, Ordering::SeqCst);
        for (x, mut answers) in (1..).zip(open) {
            let (values, error) = all(&mut answers);
            assert_eq!(values, [-x]);
            assert_eq!(
                error.map(|error| error.code()),
                (x == 3).then_some(ErrorCode::Internal)
            );
        }
        assert_eq!(seen.ended.load(Ordering::SeqCst), begun);
        seen.is_released.store(false, Ordering::SeqCst);
    }
    let statistics = &engine.model_statistics(None).unwrap()[0];
    assert_eq!(statistics.execution_count, 3 * 39);
    // All threads end: those with an instance, those without, and idle ones.
    let mut last = start(&engine, 1);
    next(&mut last);
    seen.is_released.store(true, Ordering::SeqCst);
    drop(engine);
    assert_eq!(all(&mut last).0, [-1]);
}

/// At most 256 requests run without an instance. Further requests wait for an instance, as they do for models
/// that hold their instance until the request ends.
#[test]
fn requests_beside_instances_are_bounded() {
    const MOST: usize = 256;
    let (engine, seen, _folder) = house("frees its instance");
    let mut open: Vec<ResponseStream> = Vec::new();
    for _ in 0..=MOST {
        let mut answers = start(&engine, 1);
        assert!(next(&mut answers).unwrap().is_ok());
        open.push(answers);
    }
    open.extend((0..2).map(|_| start(&engine, 1)));
    thread::sleep(Duration::from_millis(50));
    // The two queued requests get no response until another request ends.
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(open[MOST + 1].poll_next(&mut cx).is_pending());
    seen.is_released.store(true, Ordering::SeqCst);
    let left: usize = open.iter_mut().map(|answers| all(answers).0.len()).sum();
    assert_eq!(left, MOST + 1 + 2 * 2);
}

#[test]
fn who_wants_one_answer_is_told_which_calls_give_several() {
    let (engine, seen, _folder) = house("counts");
    let error = infer(&engine, request("m", None, 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unimplemented);
    assert!(
        error.message().starts_with("model 'm': it is decoupled"),
        "{error}"
    );
    assert!(error.message().contains("ModelStreamInfer"), "{error}");
    assert_eq!(seen.ended.load(Ordering::SeqCst), 0);

    // A model that is not decoupled sends one response, even to a caller that accepts several.
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let (engine, _) = crate::support::engine(folder.path(), EngineConfig::default());
    let cx = RequestContext::new(None);
    match block_on(engine.infer_stream(request("m", None, 1), cx)).unwrap() {
        Responses::One(response) => assert_eq!(y(&response), 2),
        Responses::Several(_) => panic!("several responses of a model that gives one"),
    }
}

#[test]
fn a_configuration_makes_any_model_one_that_is_decoupled() {
    let folder = repository(&[
        ("m/1/model.word", "adds 1"),
        (
            "m/config.pbtxt",
            "max_batch_size: 4 model_transaction_policy { decoupled: true } model_warmup { name: \"w\" batch_size: 1 \
             inputs { key: \"x\" value { data_type: TYPE_INT32 dims: [] zero_data: true } } }",
        ),
        (
            "p/config.pbtxt",
            "platform: \"ensemble\" input { name: \"x\" data_type: TYPE_INT32 dims: [ -1 ] } \
             output { name: \"y\" data_type: TYPE_INT32 dims: [ -1 ] } ensemble_scheduling { step { model_name: \"m\" \
             input_map { key: \"x\" value: \"x\" } output_map { key: \"y\" value: \"y\" } } }",
        ),
    ]);
    let (engine, _) = engine(folder.path(), Duration::from_secs(60));
    let mut answers = start(&engine, 1);
    let answer = next(&mut answers).unwrap().unwrap();
    assert_eq!((y(&answer.response), answer.is_last), (2, true));
    assert!(next(&mut answers).is_none());
    let error = infer(&engine, request("p", None, 1)).unwrap_err();
    assert!(error.message().contains("it is decoupled"), "{error}");
}

#[test]
fn errors_in_the_middle_come_after_the_answers_before_them() {
    for (word, code, message) in [
        (
            "fails after two",
            ErrorCode::InvalidArgument,
            "model 'm': two is enough",
        ),
        (
            "panics after two",
            ErrorCode::Internal,
            "model 'm': it panicked; this request is lost, the next one will be tried",
        ),
    ] {
        let (engine, _, _folder) = house(word);
        for _ in 0..2 {
            let mut answers = start(&engine, 0);
            let (values, error) = all(&mut answers);
            let error = error.unwrap();
            assert_eq!(
                (values, error.code(), error.message()),
                (vec![0, 1], code, message)
            );
            assert!(next(&mut answers).is_none());
        }
    }
    let (engine, _, _folder) = house("gives another type");
    let (values, error) = all(&mut start(&engine, 0));
    assert!(values.is_empty());
    assert!(error.unwrap().message().contains("'y'"));
}

#[test]
fn a_model_can_say_which_answer_is_its_last() {
    let (engine, _, _folder) = house("knows its last");
    let mut answers = start(&engine, 3);
    let marks = std::iter::from_fn(|| next(&mut answers)).map(|answer| answer.unwrap().is_last);
    assert_eq!(marks.collect::<Vec<_>>(), [false, false, true]);
    let (engine, _, _folder) = house("gives one too many");
    let (values, error) = all(&mut start(&engine, 7));
    assert_eq!(values, [7]);
    assert!(error.unwrap().message().contains("after the last one"));
}

/// Transports drop the stream after the last response, possibly before the model has returned. The request
/// still counts as successful.
#[test]
fn who_has_taken_the_last_answer_has_not_given_up() {
    let (engine, seen, _folder) = house("works on after its last");
    let mut answers = start(&engine, 3);
    assert!(next(&mut answers).unwrap().unwrap().is_last);
    drop(answers);
    seen.is_released.store(true, Ordering::SeqCst);
    let ended = || engine.metrics()[0].statistics.inference_stats;
    wait_until("the model is back", || {
        ended().success.count + ended().fail.count > 0
    });
    assert_eq!((ended().success.count, ended().fail.count), (1, 0));
}

#[test]
fn a_model_waits_for_a_client_that_takes_nothing_and_stops_when_it_leaves() {
    let (engine, seen, _folder) = house("counts for ever");
    for round in 0..3 {
        let mut answers = start(&engine, 0);
        for value in 0..20 {
            assert_eq!(y(&next(&mut answers).unwrap().unwrap().response), value);
        }
        let sent = seen.sent.swap(0, Ordering::SeqCst);
        assert!(sent <= 20 + 9, "{sent} answers of which 20 were taken");
        drop(answers);
        // Afterwards the only instance is free again.
        wait_until("the model goes on", || {
            seen.ended.load(Ordering::SeqCst) == round + 1
        });
        seen.sent.store(0, Ordering::SeqCst);
    }
}

#[test]
fn what_waits_for_a_client_is_bounded_and_charged() {
    const MIB: u64 = 1 << 20;
    let (engine, seen, _folder) = house("is large");
    let budget = ByteBudget::new(64 * MIB);
    let lease = Lease::new(&budget, &TimeLimits::default());
    let request = request("m", None, 40);
    let cx = RequestContext::for_request(&request, &lease, None, &TimeLimits::default()).unwrap();
    let mut answers = start_with(&engine, 40, cx).unwrap();
    for value in 0..40 {
        let answer = next(&mut answers).unwrap().unwrap();
        assert_eq!(y(&answer.response), value);
        // One response was taken, one is queued, one is blocked: 4 MiB each.
        assert!(budget.used() >= 4 * MIB, "{} bytes", budget.used());
        assert!(budget.used() <= 12 * MIB, "{} bytes", budget.used());
    }
    assert!(next(&mut answers).is_none());
    assert_eq!((budget.used(), seen.sent.load(Ordering::SeqCst)), (0, 40));

    // A response that does not fit the budget ends the stream.
    let budget = ByteBudget::new(MIB);
    let lease = Lease::new(&budget, &TimeLimits::default());
    let cx = RequestContext::for_request(&request, &lease, None, &TimeLimits::default()).unwrap();
    let (values, error) = all(&mut start_with(&engine, 40, cx).unwrap());
    assert_eq!((values.len(), error.unwrap().code()), (0, ErrorCode::TooLarge));
}

#[test]
fn a_model_that_passes_over_errors_gives_nothing_more() {
    let (engine, seen, _folder) = house("passes over errors");
    let mut answers = start(&engine, 1_000_000);
    next(&mut answers).unwrap().unwrap();
    drop(answers);
    wait_until("the model goes on", || seen.ended.load(Ordering::SeqCst) == 1);
    assert!(seen.sent.load(Ordering::SeqCst) < 20);
}

#[test]
fn the_deadline_ends_what_waits_and_what_runs() {
    let (engine, seen, _folder) = house("counts for ever");
    let soon = RequestContext::new(Some(Instant::now() + Duration::from_secs(2)));
    let mut answers = start_with(&engine, 0, soon).unwrap();
    // Although no client reads the responses, the model is notified at the deadline.
    wait_until("the model goes on", || seen.ended.load(Ordering::SeqCst) == 1);
    let (values, error) = all(&mut answers);
    assert!(values.len() <= 9, "{values:?}");
    assert_eq!(error.unwrap().code(), ErrorCode::DeadlineExceeded);

    // A model that stops because its request was cancelled has not completed, regardless of what it returns.
    let (told, seen_told, _folder) = house("stops when it is told");
    let soon = RequestContext::new(Some(Instant::now() + Duration::from_secs(2)));
    let (values, error) = all(&mut start_with(&told, 0, soon).unwrap());
    assert_eq!(
        (values, error.unwrap().code()),
        (vec![0], ErrorCode::DeadlineExceeded)
    );
    assert_eq!(seen_told.ended.load(Ordering::SeqCst), 1);

    let late = start_with(&engine, 0, RequestContext::new(Some(Instant::now())));
    let error = late.map(|mut answers| all(&mut answers).1.unwrap());
    assert_eq!(
        error.unwrap_or_else(|error| error).code(),
        ErrorCode::DeadlineExceeded
    );
}

#[test]
fn who_waits_for_the_next_answer_may_leave_and_the_model_is_told() {
    let (engine, seen, _folder) = house("waits to be cancelled");
    let mut answers = start(&engine, 0);
    next(&mut answers).unwrap().unwrap();
    assert_eq!(seen.ended.load(Ordering::SeqCst), 0);
    drop(answers);
    wait_until("the model was not told", || {
        seen.ended.load(Ordering::SeqCst) == 1
    });
    // A request that has not started leaves the queue when its stream is dropped.
    let running = start(&engine, 0);
    let waiting = start(&engine, 0);
    wait_until("it does not begin", || seen.sent.load(Ordering::SeqCst) == 2);
    assert_eq!(engine.waiting(), 1);
    drop(waiting);
    assert_eq!(engine.waiting(), 0);
    drop(running);
    wait_until("the model was not told", || {
        seen.ended.load(Ordering::SeqCst) == 2
    });
}

#[test]
fn a_model_that_hangs_after_its_client_has_left_counts_as_lost_until_it_is_back() {
    let (engine, seen, _folder) = house("hangs after one");
    let mut answers = start(&engine, 0);
    next(&mut answers).unwrap().unwrap();
    drop(answers);
    let model = ModelRef::new("m", None).unwrap();
    wait_until("it does not count as lost", || engine.model_ready(model).is_err());
    seen.is_released.store(true, Ordering::SeqCst);
    wait_until("it is not back", || engine.model_ready(model).is_ok());
}

#[test]
fn a_stream_ends_before_the_engine_does() {
    let (engine, _, _folder) = house("counts");
    let engine = Arc::new(engine);
    let mut answers = start(&engine, 100);
    next(&mut answers).unwrap().unwrap();
    let stopping = thread::spawn({
        let engine = engine.clone();
        move || engine.stop(Instant::now() + Duration::from_secs(60))
    });
    let model = ModelRef::new("m", None).unwrap();
    let refused = || block_on(engine.infer_stream(request("m", None, 1), RequestContext::new(None))).is_err();
    wait_until("requests are still accepted", refused);
    assert!(engine.model_ready(model).is_ok());
    // The running request is not affected: its stream can be read to the end.
    assert_eq!(all(&mut answers).0, (1..100).collect::<Vec<_>>());
    drop(answers);
    assert!(stopping.join().unwrap());
}
