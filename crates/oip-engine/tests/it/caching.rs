//! Tests of the response cache.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, ModelControl};
use oip_service::{InferenceService, RequestContext};
use oip_types::{ErrorCode, InferStatistics, ModelRef};
use tempfile::TempDir;

use crate::{
    control::{load, until},
    pipelines::chain,
    support::{engine, infer, repository, request, write, y},
};

const CACHED: &str = "response_cache { enable: true }";

fn caching_engine(files: &[(&str, &str)], bytes: u64) -> (Engine, Arc<AtomicUsize>, TempDir) {
    let folder = repository(files);
    let config = EngineConfig::default().with(|config| {
        config.response_cache_bytes = bytes;
        config.control = ModelControl::Explicit {
            load: vec!["*".to_owned()],
        };
    });
    let (engine, runs) = engine(folder.path(), config);
    (engine, runs, folder)
}

fn counts(engine: &Engine, model: &str) -> InferStatistics {
    let model = ModelRef::new(model, None).unwrap();
    let all = engine.statistics().unwrap().model_statistics(Some(model));
    all.unwrap()[0].inference_stats
}

#[test]
fn an_answer_is_computed_once() {
    let files = [
        ("cached/config.pbtxt", CACHED),
        ("cached/1/model.word", "adds 1"),
        ("plain/1/model.word", "adds 1"),
    ];
    let (engine, runs, _folder) = caching_engine(&files, 1 << 20);
    for (x, expected_runs) in [(1, 1), (1, 1), (2, 2), (1, 2)] {
        let mut request = request("cached", None, x);
        request.id = Some(format!("request {expected_runs}"));
        let response = infer(&engine, request.clone()).unwrap();
        assert_eq!((y(&response), response.id), (x + 1, request.id));
        assert_eq!(runs.load(Ordering::SeqCst), expected_runs);
    }
    let stats = counts(&engine, "cached");
    assert_eq!(
        (stats.cache_hit.count, stats.cache_miss.count, stats.success.count),
        (2, 2, 4)
    );
    assert!(stats.cache_hit.ns > 0 && stats.cache_miss.ns > 0);
    let metrics = engine.metrics();
    // A cache hit is not counted as an inference.
    assert_eq!(metrics[0].statistics.inference_count, 2);

    // Responses are cached only if the model's configuration enables it.
    for _ in 0..2 {
        infer(&engine, request("plain", None, 1)).unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 4);
    assert_eq!(counts(&engine, "plain").cache_miss.count, 0);
}

#[test]
fn without_room_nothing_is_kept() {
    let files = [("cached/config.pbtxt", CACHED), ("cached/1/model.word", "adds 1")];
    let (engine, runs, _folder) = caching_engine(&files, 0);
    for _ in 0..2 {
        infer(&engine, request("cached", None, 1)).unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(counts(&engine, "cached").cache_miss.count, 0);
}

#[test]
fn no_answer_outlives_its_model() {
    let files = [("cached/config.pbtxt", CACHED), ("cached/1/model.word", "adds 1")];
    let (engine, _, folder) = caching_engine(&files, 1 << 20);
    assert_eq!(y(&infer(&engine, request("cached", None, 1)).unwrap()), 2);
    write(folder.path(), "cached/1/model.word", "adds 100");
    load(&engine, "cached").unwrap();
    assert_eq!(y(&infer(&engine, request("cached", None, 1)).unwrap()), 101);
}

#[test]
fn equal_requests_that_come_together_are_computed_once() {
    let files = [
        ("cached/config.pbtxt", CACHED),
        ("cached/1/model.word", "sleeps"),
        ("fails/config.pbtxt", CACHED),
        ("fails/1/model.word", "fails on 13"),
    ];
    let (engine, runs, _folder) = caching_engine(&files, 1 << 20);
    // Starts a request without waiting for it.
    let begin = |model, x| {
        let mut answer = engine.infer(request(model, None, x), RequestContext::new(None));
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => answer,
            Poll::Ready(answer) => Box::pin(std::future::ready(answer)),
        }
    };
    let [first, second, other] = [begin("cached", 300), begin("cached", 300), begin("cached", 10)];
    for (answer, expected) in [(first, 300), (second, 300), (other, 10)] {
        assert_eq!(y(&block_on(answer).unwrap()), expected);
    }
    let stats = counts(&engine, "cached");
    assert_eq!((stats.cache_hit.count, stats.cache_miss.count), (1, 2));
    assert_eq!(runs.load(Ordering::SeqCst), 2);

    // If an identical request is cancelled or fails, the request that waits for it runs itself.
    let [first, second] = [begin("cached", 200), begin("cached", 200)];
    drop(first);
    assert_eq!(y(&block_on(second).unwrap()), 200);
    let [first, second] = [begin("fails", 13), begin("fails", 13)];
    assert!(block_on(first).is_err() && block_on(second).is_err());
}

#[test]
fn failures_are_not_kept() {
    let files = [
        ("cached/config.pbtxt", CACHED),
        ("cached/1/model.word", "fails on 13"),
    ];
    let (engine, runs, _folder) = caching_engine(&files, 1 << 20);
    for _ in 0..2 {
        assert!(infer(&engine, request("cached", None, 13)).is_err());
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(counts(&engine, "cached").cache_miss.count, 0);
}

#[test]
fn a_pipeline_is_kept_as_a_whole() {
    let pipeline = format!(
        "{CACHED} input {{ name: 'a' data_type: TYPE_INT32 dims: [ -1 ] }} \
         output {{ name: 'y' data_type: TYPE_INT32 dims: [ -1 ] }} \
         ensemble_scheduling {{ step {{ model_name: 'one' input_map {{ key: 'x' value: 'a' }} \
         output_map {{ key: 'y' value: 'y' }} }} }}"
    );
    let files = [
        ("one/1/model.word", "adds 1"),
        ("p/config.pbtxt", pipeline.as_str()),
    ];
    let (engine, runs, _folder) = caching_engine(&files, 1 << 20);
    for _ in 0..3 {
        let mut request = request("p", None, 1);
        request.inputs[0].name = "a".to_owned();
        assert_eq!(y(&infer(&engine, request).unwrap()), 2);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(counts(&engine, "p").cache_hit.count, 2);
}

/// Cached responses of a pipeline are invalidated when one of its models is replaced.
#[test]
fn no_answer_of_a_pipeline_outlives_one_of_its_models() {
    let inner = format!("{CACHED} {}", chain(&["one", "two"]));
    let outer = format!("{CACHED} {}", chain(&["inner", "two"]));
    let files = [
        ("one/1/model.word", "adds 1"),
        ("two/1/model.word", "adds 10"),
        ("inner/config.pbtxt", inner.as_str()),
        ("outer/config.pbtxt", outer.as_str()),
    ];
    let (engine, runs, folder) = caching_engine(&files, 1 << 20);
    let answers = |expected: [i32; 2]| {
        for (model, expected) in ["inner", "outer"].into_iter().zip(expected) {
            for _ in 0..2 {
                assert_eq!(
                    y(&infer(&engine, request(model, None, 0)).unwrap()),
                    expected,
                    "{model}"
                );
            }
        }
    };
    answers([11, 21]);
    // The steps of the inner pipeline run twice: for its own client, and for the outer pipeline, whose
    // requests differ because they name the output. The outer pipeline's own step runs once.
    assert_eq!(runs.load(Ordering::SeqCst), 5, "the rest was kept");
    write(folder.path(), "one/1/model.word", "adds 100");
    load(&engine, "one").unwrap();
    answers([110, 120]);
    // Changes to other models do not evict cached responses.
    let before = runs.load(Ordering::SeqCst);
    write(folder.path(), "other/1/model.word", "adds 1");
    load(&engine, "other").unwrap();
    answers([110, 120]);
    assert_eq!(runs.load(Ordering::SeqCst), before);
}

#[test]
fn no_answer_of_a_pipeline_outlives_a_model_that_polling_replaced() {
    let pipeline = format!("{CACHED} {}", chain(&["one"]));
    let files = [
        ("one/1/model.word", "adds 1"),
        ("p/config.pbtxt", pipeline.as_str()),
    ];
    let folder = repository(&files);
    let config = EngineConfig::default().with(|config| {
        config.response_cache_bytes = 1 << 20;
        config.control = ModelControl::Poll {
            interval: Duration::from_millis(20),
        };
    });
    let (engine, _) = engine(folder.path(), config);
    for _ in 0..2 {
        assert_eq!(y(&infer(&engine, request("p", None, 1)).unwrap()), 2);
    }
    write(folder.path(), "one/1/model.word", "adds 1000");
    until("the model is replaced", || {
        y(&infer(&engine, request("one", None, 1)).unwrap()) == 1001
    });
    until("the pipeline answers with it", || {
        y(&infer(&engine, request("p", None, 1)).unwrap()) == 1001
    });
}

/// An invalid request is refused even if a response is cached.
#[test]
fn wrong_requests_are_not_looked_for() {
    let files = [("cached/config.pbtxt", CACHED), ("cached/1/model.word", "adds 1")];
    let (engine, _, _folder) = caching_engine(&files, 1 << 20);
    let mut wrong = request("cached", None, 1);
    wrong.inputs[0].name = "z".to_owned();
    assert_eq!(
        infer(&engine, wrong).unwrap_err().code(),
        ErrorCode::InvalidArgument
    );
    let stats = counts(&engine, "cached");
    assert_eq!((stats.fail.count, stats.cache_miss.count), (1, 0));
}

/// Responses that depend on other models are not cached, since a change of those models would not invalidate
/// them.
#[test]
fn answers_of_models_that_ask_others_are_not_kept() {
    let pipeline = format!("{CACHED} {}", chain(&["asks"]));
    let files = [
        ("asks/config.pbtxt", CACHED),
        ("asks/1/model.word", "asks other"),
        ("other/1/model.word", "adds 1"),
        ("pipeline/config.pbtxt", &*pipeline),
    ];
    let (engine, _, folder) = caching_engine(&files, 1 << 20);
    for (word, sum) in [("adds 1", 6), ("adds 2", 7), ("adds 3", 8)] {
        write(folder.path(), "other/1/model.word", word);
        load(&engine, "other").unwrap();
        for model in ["asks", "pipeline", "asks", "pipeline"] {
            let response = infer(&engine, request(model, None, 5)).unwrap();
            assert_eq!(y(&response), sum, "{model}: {word}");
        }
    }
}

/// A model calls the cached pipeline that contains it. If the call waited for the identical running request,
/// which caused it, both would wait forever.
#[test]
fn a_circle_through_a_cached_pipeline_is_refused_and_not_waited_for() {
    let pipeline = format!("{CACHED} {}", chain(&["asks"]));
    let files = [
        ("asks/1/model.word", "asks pipeline"),
        ("pipeline/config.pbtxt", &*pipeline),
    ];
    let (engine, _, _folder) = caching_engine(&files, 1 << 20);
    let error = infer(&engine, request("pipeline", None, 5)).unwrap_err();
    assert!(
        error.message().contains("cannot call itself"),
        "{}",
        error.message()
    );
}
