//! Tests models that run in place, on their callers' threads.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use oip_engine::{Engine, EngineConfig, InPlace, Repository};
use oip_model::{
    Backend, BoxFuture, Call, Capabilities, LoadContext, Model, ModelSource, Outcome, RestOfRun,
};
use oip_service::{InferenceService, RequestContext};
use oip_types::{
    DataType, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ServiceError,
    TensorMetadata, TensorValue,
};
use tempfile::TempDir;
use tensor_core::{Shape, Tensor};

use crate::{
    functions::independent_rows,
    support::{repository, y},
};

const LIMIT: Duration = Duration::from_millis(20);

/// The runs of all models of a test.
#[derive(Default)]
struct RunLog {
    /// The thread and the rows of each run.
    runs: Mutex<Vec<(String, Vec<i32>)>>,
    is_released: AtomicBool,
}

impl RunLog {
    /// Returns the names of the threads and the batches, and clears the log.
    fn take(&self) -> (BTreeSet<String>, Vec<Vec<i32>>) {
        std::mem::take(&mut *self.runs.lock().unwrap())
            .into_iter()
            .unzip()
    }
}

struct SeenBackend(Arc<RunLog>);

impl Backend for SeenBackend {
    fn name(&self) -> &'static str {
        "seen"
    }

    fn file_names(&self) -> &[&str] {
        &["model.seen"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let tensor = |name: &str| vec![TensorMetadata::new(name, DataType::INT32, &[-1, 1])];
        Ok(Box::new(TestModel {
            is_bounded: source.content.is_empty(),
            is_elsewhere: *source.content == *b"runs elsewhere",
            metadata: ModelMetadata::new("", "test_seen", tensor("x"), tensor("y")),
            seen: self.0.clone(),
        }))
    }
}

/// A model that returns its rows. Some values trigger an action first.
struct TestModel {
    is_bounded: bool,
    is_elsewhere: bool,
    metadata: ModelMetadata,
    seen: Arc<RunLog>,
}

const SLOW: i32 = -1;
const PANICS: i32 = -2;
const HANGS: i32 = -3;
const FAILS: i32 = -4;
const PANICS_LATER: i32 = -5;

impl Model for TestModel {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn capabilities(&self) -> Capabilities {
        independent_rows().with(|capabilities| {
            capabilities.bounded = self.is_bounded;
            capabilities.elsewhere = self.is_elsewhere;
        })
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let x = call.request.take_input("x")?;
        let rows = x.as_fixed().unwrap().to_vec::<i32>().unwrap();
        let is_late = || rows.iter().any(|row| [SLOW, HANGS, PANICS_LATER].contains(row));
        if let Some(patience) = call.patience {
            assert!(self.is_elsewhere && patience == 4 * LIMIT);
        }
        if call.patience.is_none() || !is_late() {
            return run(&self.seen, x).map(Outcome::from);
        }
        let seen = self.seen.clone();
        Ok(Outcome::Unfinished(RestOfRun::new(move |_, _| {
            assert!(!rows.contains(&PANICS_LATER), "a panic that a test wants");
            run(&seen, x)
        })))
    }
}

fn run(seen: &RunLog, x: TensorValue) -> Result<Vec<InferOutput>, ServiceError> {
    let rows = x.as_fixed().unwrap().to_vec::<i32>().unwrap();
    let thread = thread::current().name().unwrap_or_default().to_owned();
    seen.runs.lock().unwrap().push((thread, rows.clone()));
    if rows.contains(&SLOW) {
        thread::sleep(3 * LIMIT);
    }
    if rows.contains(&FAILS) {
        return Err(ServiceError::invalid("it fails"));
    }
    assert!(!rows.contains(&PANICS), "a panic that a test wants");
    while rows.contains(&HANGS) && !seen.is_released.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(vec![InferOutput::new("y", x)])
}

fn engine(in_place: Option<InPlace>, instances: usize) -> (Engine, Arc<RunLog>, TempDir) {
    let folder = repository(&[
        ("quick/1/model.seen", ""),
        ("other/1/model.seen", ""),
        ("any/1/model.seen", "may take any time"),
        ("elsewhere/1/model.seen", "runs elsewhere"),
    ]);
    let seen = Arc::new(RunLog::default());
    let backend: Arc<dyn Backend> = Arc::new(SeenBackend(seen.clone()));
    let engine = Engine::start(
        Repository::open(folder.path(), &[backend], None).unwrap(),
        EngineConfig::default().with(|config| {
            config.instances = instances;
            config.in_place = in_place;
        }),
    );
    engine.wait_until_loaded();
    (engine, seen, folder)
}

fn request(model: &str, rows: &[i32]) -> InferRequest {
    let shape = Shape::new(&[rows.len() as u64, 1]).unwrap();
    let x = Tensor::from_vec(shape, rows.to_vec()).unwrap();
    InferRequest::new(ModelRef::new(model, None).unwrap()).with_input("x", x)
}

type InferResult = Result<InferResponse, ServiceError>;

fn infer(engine: &Engine, model: &str, rows: &[i32]) -> InferResult {
    futures_executor::block_on(start(engine, model, rows))
}

fn start<'e>(engine: &'e Engine, model: &str, rows: &[i32]) -> BoxFuture<'e, InferResult> {
    engine.infer(request(model, rows), RequestContext::new(None))
}

fn poll(future: &mut BoxFuture<'_, InferResult>) -> Poll<InferResult> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// A future that is pending at its first poll only.
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        cx.waker().wake_by_ref();
        match std::mem::replace(&mut self.0, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        }
    }
}

fn in_place(at_once: usize) -> Option<InPlace> {
    Some(InPlace::new(LIMIT, at_once, || Box::pin(Once(false))))
}

/// Runs a model until batches of `rows` rows count as quick. Returns whether that succeeded.
fn warm_up(engine: &Engine, seen: &RunLog, model: &str, rows: usize) -> bool {
    let here = thread::current().name().unwrap().to_owned();
    (0..50).any(|attempt| {
        // Other programs may occupy the CPUs for a while, so each attempt waits longer.
        thread::sleep(Duration::from_millis(attempt));
        for _ in 0..8 {
            infer(engine, model, &(0..rows as i32).collect::<Vec<_>>()).unwrap();
        }
        seen.runs
            .lock()
            .unwrap()
            .drain(..)
            .next_back()
            .is_some_and(|(thread, _)| thread == here)
    })
}

#[test]
fn a_model_that_is_quick_and_promises_to_be_runs_where_its_request_is() {
    let (engine, seen, _folder) = engine(in_place(1), 2);
    let here = thread::current().name().unwrap().to_owned();
    infer(&engine, "quick", &[5]).unwrap();
    assert!(!seen.take().0.contains(&here), "nothing is known of it yet");
    assert!(warm_up(&engine, &seen, "quick", 1));
    assert!(!warm_up(&engine, &seen, "any", 1), "it may take any time");

    // Only batches of one row were measured, so a request with two rows runs on the model's thread.
    infer(&engine, "quick", &[1, 2]).unwrap();
    assert!(!seen.take().0.contains(&here));
    // Runs on callers' threads have the same responses and statistics as runs on the model's threads.
    let before = engine.metrics();
    assert_eq!(y(&infer(&engine, "quick", &[7]).unwrap()), 7);
    let count = |metrics: &[oip_engine::VersionMetrics]| {
        let quick = metrics.iter().find(|metrics| metrics.statistics.name == "quick");
        let statistics = &quick.unwrap().statistics;
        (
            statistics.execution_count,
            statistics.inference_count,
            statistics.inference_stats.success.count,
        )
    };
    let (a, b, c) = count(&before);
    assert_eq!(count(&engine.metrics()), (a + 1, b + 1, c + 1));
    assert!(engine.stop(Instant::now() + Duration::from_secs(60)));
    assert_eq!(
        infer(&engine, "quick", &[7]).unwrap_err().code(),
        ErrorCode::Unavailable
    );
}

#[test]
fn without_leave_every_run_is_on_a_thread_of_the_model() {
    let (engine, seen, _folder) = engine(None, 1);
    for _ in 0..20 {
        infer(&engine, "quick", &[1]).unwrap();
    }
    assert_eq!(seen.take().0, BTreeSet::from(["run-quick-0".to_owned()]));
}

#[test]
fn a_model_that_turns_slow_goes_back_to_its_threads_at_once() {
    let (engine, seen, _folder) = engine(in_place(1), 1);
    assert!(warm_up(&engine, &seen, "quick", 1));
    infer(&engine, "quick", &[SLOW]).unwrap();
    seen.take();
    for _ in 0..4 {
        infer(&engine, "quick", &[SLOW]).unwrap();
    }
    assert_eq!(seen.take().0, BTreeSet::from(["run-quick-0".to_owned()]));
}

#[test]
fn requests_that_come_together_run_together_on_the_first_ones_thread() {
    let (engine, seen, _folder) = engine(in_place(1), 1);
    assert!(warm_up(&engine, &seen, "quick", 1) && warm_up(&engine, &seen, "quick", 3));
    let together = |rows: [i32; 3]| {
        let mut requests = rows.map(|row| start(&engine, "quick", &[row]));
        for request in &mut requests {
            assert!(poll(request).is_pending());
        }
        requests
    };
    // Runs a first batch of different requests.
    for request in together([1, 2, 3]) {
        futures_executor::block_on(request).unwrap();
    }
    let start_of_test = Instant::now();
    // On a busy machine the model may count as slow for a while, so the test tries again.
    loop {
        assert!(warm_up(&engine, &seen, "quick", 3) && warm_up(&engine, &seen, "quick", 1));
        seen.take();
        let [mut first, left, mut last] = together([4, 5, 6]);
        drop(left);
        let answer = poll(&mut first);
        let (threads, batches) = seen.take();
        if let (Poll::Ready(answer), [batch]) = (&answer, &batches[..])
            && threads.contains(thread::current().name().unwrap())
        {
            assert_eq!((y(answer.as_ref().unwrap()), &batch[..]), (4, &[4, 6][..]));
            let Poll::Ready(Ok(last)) = poll(&mut last) else {
                panic!("its response is there already");
            };
            assert_eq!(y(&last), 6);
            break;
        }
        // Batches of two rows do not count as quick yet, so one of the model's threads runs this batch.
        for request in [first, last] {
            if answer.is_pending() {
                futures_executor::block_on(request).unwrap();
            }
        }
        infer(&engine, "quick", &[1, 2]).unwrap();
        assert!(start_of_test.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn a_panic_or_an_error_costs_one_request_of_those_that_run_together() {
    let (engine, seen, _folder) = engine(in_place(1), 1);
    for bad in [PANICS, FAILS] {
        warm_up(&engine, &seen, "quick", 2);
        warm_up(&engine, &seen, "quick", 1);
        let mut requests = [bad, 7].map(|row| start(&engine, "quick", &[row]));
        for request in &mut requests {
            assert!(poll(request).is_pending());
        }
        let [wrong, right] = requests.map(futures_executor::block_on);
        assert!(wrong.is_err());
        assert_eq!(y(&right.unwrap()), 7);
        assert_eq!(y(&infer(&engine, "quick", &[8]).unwrap()), 8);
    }
    assert!(engine.stop(Instant::now() + Duration::from_secs(60)));
}

#[test]
fn a_model_that_breaks_its_promise_takes_no_more_threads_than_it_may() {
    let (engine, seen, _folder) = engine(in_place(1), 2);
    let engine = Arc::new(engine);
    assert!(warm_up(&engine, &seen, "quick", 1) && warm_up(&engine, &seen, "other", 1));
    let hanging = thread::spawn({
        let engine = engine.clone();
        move || infer(&engine, "quick", &[HANGS])
    });
    while seen.runs.lock().unwrap().is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    seen.take();
    // While the model hangs, requests to other models run on those models' threads.
    for model in ["quick", "other"] {
        assert_eq!(y(&infer(&engine, model, &[7]).unwrap()), 7);
    }
    let threads = seen.take().0;
    assert!(threads.iter().all(|name| name.starts_with("run-")), "{threads:?}");
    seen.is_released.store(true, Ordering::SeqCst);
    hanging.join().unwrap().unwrap();
    assert!(warm_up(&engine, &seen, "other", 1));
    assert!(engine.stop(Instant::now() + Duration::from_secs(60)));
}

/// A run in another process starts on its caller's thread and continues on another thread if it takes longer.
#[test]
fn a_model_that_runs_elsewhere_is_waited_for_by_the_caller_and_then_by_a_thread() {
    let (engine, seen, _folder) = engine(in_place(1), 2);
    let here = thread::current().name().unwrap().to_owned();
    let begins = || {
        // Sends enough requests for the engine to detect that there is a single caller.
        (0..50).any(|_| {
            for _ in 0..80 {
                infer(&engine, "elsewhere", &[1]).unwrap();
            }
            let runs = std::mem::take(&mut *seen.runs.lock().unwrap());
            runs.iter().rev().take(10).any(|(thread, _)| *thread == here)
        })
    };
    assert!(begins());
    // Repeats until a run starts in place: occasionally a request goes straight to a thread.
    let leave = |row| {
        assert!(begins());
        let answer = infer(&engine, "elsewhere", &[row]);
        let threads = seen.take().0;
        assert!(threads.iter().all(|name| name.starts_with("run-")), "{threads:?}");
        answer
    };
    assert_eq!(y(&leave(SLOW).unwrap()), SLOW);
    let error = leave(PANICS_LATER).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert!(begins());
    let error = infer(&engine, "elsewhere", &[FAILS]).unwrap_err();
    assert_eq!(error.message(), "model 'elsewhere': it fails");
    assert_eq!(
        infer(&engine, "elsewhere", &[PANICS]).unwrap_err().code(),
        ErrorCode::Internal
    );
    assert_eq!(y(&infer(&engine, "elsewhere", &[7]).unwrap()), 7);

    // A hanging run blocks neither its caller's thread nor the other instance, and its response arrives once
    // it ends.
    assert!(begins());
    let mut hanging = start(&engine, "elsewhere", &[HANGS]);
    assert!(poll(&mut hanging).is_pending());
    assert_eq!(y(&infer(&engine, "elsewhere", &[7]).unwrap()), 7);
    seen.is_released.store(true, Ordering::SeqCst);
    assert_eq!(y(&futures_executor::block_on(hanging).unwrap()), HANGS);
    assert!(engine.stop(Instant::now() + Duration::from_secs(60)));
}

/// On a runtime like a server's, each caller gets its own response, whichever thread runs the request.
/// Afterwards, the engine stops in time.
#[test]
fn many_callers_get_their_own_rows() {
    const WORKERS: usize = 3;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .build()
        .unwrap();
    let yielding = InPlace::new(LIMIT, WORKERS - 1, || Box::pin(tokio::task::yield_now()));
    let (engine, seen, _folder) = engine(Some(yielding), 2);
    let engine = Arc::new(engine);
    let callers: Vec<_> = (0..32)
        .map(|caller| {
            let engine = engine.clone();
            runtime.spawn(async move {
                for round in 0..200 {
                    let row = caller * 1000 + round;
                    let model = ["quick", "other", "any", "elsewhere"][(row % 4) as usize];
                    let answer = engine
                        .infer(request(model, &[row]), RequestContext::new(None))
                        .await;
                    assert_eq!(y(&answer.unwrap()), row);
                }
            })
        })
        .collect();
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
    let rows: usize = seen.take().1.iter().map(Vec::len).sum();
    assert_eq!(rows, 32 * 200);
    assert!(engine.stop(Instant::now() + Duration::from_secs(60)));
}
