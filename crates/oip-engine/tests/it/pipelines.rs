//! Tests pipelines.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, FailureReason, ModelControl};
use oip_service::{InferenceService, Readiness, RequestContext};
use oip_types::{
    ErrorCode, InferRequest, LoadOptions, ModelRef, ModelStatistics, RequestedOutput, UnloadOptions,
};
use tensor_core::{Shape, Tensor};

use crate::{
    control::{explicit, load, load_with, shown, unload, until},
    functions::submit_within,
    support::{engine, infer, repository, request, small_engine, write, y},
};

/// Returns the configuration of a pipeline that runs `models` in sequence from `x` to `y`.
pub(crate) fn chain(models: &[&str]) -> String {
    let tensor = |index: usize| match index {
        0 => "x".to_owned(),
        last if last == models.len() => "y".to_owned(),
        index => format!("t{index}"),
    };
    let steps: Vec<String> = models
        .iter()
        .enumerate()
        .map(|(index, model)| {
            let (from, to) = (tensor(index), tensor(index + 1));
            format!(
                "{{ model_name: '{model}' model_version: -1 input_map {{ key: 'x' value: '{from}' }} \
                 output_map {{ key: 'y' value: '{to}' }} }}"
            )
        })
        .collect();
    format!(
        "platform: 'ensemble'
         input [ {{ name: 'x' data_type: TYPE_INT32 dims: [ -1 ] }} ]
         output [ {{ name: 'y' data_type: TYPE_INT32 dims: [ -1 ] }} ]
         ensemble_scheduling {{ step [ {} ] }}",
        steps.join(", ")
    )
}

fn statistics(engine: &Engine, model: &str) -> ModelStatistics {
    let model = ModelRef::new(model, None).unwrap();
    let mut all = engine
        .statistics()
        .unwrap()
        .model_statistics(Some(model))
        .unwrap();
    all.pop().unwrap()
}

fn reload(engine: &Engine, root: &Path, path: &str, content: &str) {
    write(root, path, content);
    load(engine, path.split('/').next().unwrap()).unwrap();
}

#[test]
fn a_pipeline_is_a_model_among_others() {
    let (engine, _, _folder) = small_engine(&[
        // Models load in the order of their names, so these pipelines load before their steps.
        ("a/config.pbtxt", &chain(&["ten", "slow", "ten"])),
        ("b/config.pbtxt", &chain(&["a", "ten"])),
        ("slow/1/model.word", "loads slowly"),
        ("ten/1/model.word", "adds 10"),
    ]);
    assert_eq!(engine.readiness(), Readiness::Ready);
    assert_eq!(
        shown(&engine),
        ["a/1 READY", "b/1 READY", "slow/1 READY", "ten/1 READY"]
    );
    for (model, expected) in [("a", 21), ("b", 31)] {
        let response = infer(&engine, request(model, None, 1)).unwrap();
        assert_eq!(y(&response), expected);
        assert_eq!(
            (response.model_name.as_str(), response.model_version.as_deref()),
            (model, Some("1"))
        );
    }
    let model = ModelRef::new("b", None).unwrap();
    let metadata = engine.model_metadata(model).unwrap();
    assert_eq!(
        (metadata.platform.as_str(), &metadata.versions[..]),
        ("ensemble", &["1".to_owned()][..])
    );
    assert_eq!(metadata.inputs[0].to_string(), "'x' (INT32[-1])");
    let config = engine.configuration().unwrap().model_config(model).unwrap();
    assert_eq!(
        config.ensemble_scheduling.as_ref().unwrap().step[0].model_name,
        "a"
    );
    assert!(config.instance_group.is_empty() && config.dynamic_batching.is_none());

    // Each request counts once for the pipeline, and for a model as often as the model runs.
    for (model, expected) in [("b", 1), ("a", 2), ("slow", 2), ("ten", 5)] {
        let statistics = statistics(&engine, model);
        assert_eq!(statistics.inference_stats.success.count, expected, "{model}");
        assert_eq!(statistics.inference_count, expected, "{model}");
    }
}

/// A disconnect, or a deadline that passes during a step, is counted for the pipeline and for the step.
#[test]
fn a_pipeline_that_is_given_up_counts_as_a_failure() {
    let (engine, _, _folder) = small_engine(&[
        ("p/1/.keep", ""),
        ("p/config.pbtxt", &chain(&["ten", "waits"])),
        ("ten/1/model.word", "adds 10"),
        ("waits/1/model.word", "waits to be cancelled"),
    ]);
    let failures = |model: &str| -> Vec<_> {
        let metrics = engine.metrics().into_iter();
        let mut of_model = metrics.filter(|metrics| metrics.statistics.name == model);
        let failures = of_model.next().unwrap().failures.into_iter();
        failures.filter(|(_, count)| *count > 0).collect()
    };
    let submit = |timeout| submit_within(&engine, request("p", None, 1), timeout);

    let mut answer = submit(Duration::from_secs(60));
    until("the first step has run", || {
        statistics(&engine, "ten").execution_count > 0
    });
    let mut context = Context::from_waker(Waker::noop());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        assert!(answer.as_mut().poll(&mut context).is_pending());
    }
    drop(answer);
    let expected = [(FailureReason::Canceled, 1)];
    until("the step counts it", || failures("waits") == expected);
    assert_eq!(failures("p"), expected);
    assert_eq!(statistics(&engine, "p").inference_stats.fail.count, 1);

    // The deadline passed after the first step had run, so the request does not count as rejected.
    let before = statistics(&engine, "ten").execution_count;
    let answer = submit(Duration::from_secs(1));
    until("the first step has run again", || {
        statistics(&engine, "ten").execution_count > before
    });
    thread::sleep(Duration::from_secs(1));
    drop(answer);
    let expected = [(FailureReason::Canceled, 1), (FailureReason::Other, 1)];
    assert_eq!(failures("p"), expected);
    assert_eq!(statistics(&engine, "p").inference_stats.success.count, 0);
}

#[test]
fn a_step_that_fails_is_named() {
    let (engine, runs, _folder) = small_engine(&[
        ("p/1/.keep", ""),
        ("p/config.pbtxt", &chain(&["ten", "fails", "ten"])),
        ("ten/1/model.word", "adds 10"),
        ("fails/1/model.word", "fails on 13"),
    ]);
    let error = infer(&engine, request("p", None, 3)).unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (
            ErrorCode::InvalidArgument,
            "model 'p': model 'fails': 13 is out of range"
        )
    );
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(statistics(&engine, "p").inference_stats.fail.count, 1);
    // The request is checked against the pipeline's metadata before any step runs.
    let tensor = Tensor::from_vec(Shape::vector(1), vec![1.0f32]).unwrap();
    let wrong = InferRequest::new(ModelRef::new("p", None).unwrap()).with_input("x", tensor);
    let error = infer(&engine, wrong).unwrap_err();
    assert_eq!(
        error.message(),
        "model 'p': input 'x': expected datatype INT32, found FP32"
    );
    let mut unknown = request("p", None, 1);
    unknown.outputs.push(RequestedOutput {
        name: "t1".to_owned(),
        parameters: Default::default(),
    });
    assert_eq!(
        infer(&engine, unknown).unwrap_err().code(),
        ErrorCode::InvalidArgument
    );
}

#[test]
fn batches_of_pipelines_are_bounded() {
    let (engine, _, _folder) = small_engine(&[
        (
            "p/config.pbtxt",
            &format!("max_batch_size: 2 {}", chain(&["echo"]).replace("[ -1 ]", "[ ]")),
        ),
        ("echo/1/model.word", "echo"),
    ]);
    let rows = |rows: usize| {
        let x = Tensor::from_vec(Shape::vector(rows as u64), vec![7; rows]).unwrap();
        infer(
            &engine,
            InferRequest::new(ModelRef::new("p", None).unwrap()).with_input("x", x),
        )
    };
    assert_eq!(y(&rows(2).unwrap()), 7);
    assert_eq!(statistics(&engine, "p").inference_count, 2);
    let error = rows(3).unwrap_err();
    assert_eq!(
        error.message(),
        "model 'p': expected a batch of at most 2 rows, found 3"
    );
}

#[test]
fn what_does_not_fit_together_is_not_ready_and_says_why() {
    let (engine, _, _folder) = small_engine(&[
        ("broken/1/model.word", "broken"),
        ("cycle/config.pbtxt", &chain(&["echo", "cycle2"])),
        ("cycle2/config.pbtxt", &chain(&["cycle"])),
        ("echo/1/model.word", "echo"),
        ("missing/config.pbtxt", &chain(&["echo", "nothing"])),
        ("needs_broken/config.pbtxt", &chain(&["broken"])),
        ("none/config.pbtxt", "platform: 'ensemble'"),
        ("self/config.pbtxt", &chain(&["self"])),
        (
            "shape/config.pbtxt",
            &chain(&["echo"]).replace(
                "output [ { name: 'y' data_type: TYPE_INT32",
                "output [ { name: 'y' data_type: TYPE_FP32",
            ),
        ),
    ]);
    let shown = shown(&engine);
    let expected = [
        "broken/1 UNAVAILABLE it is broken",
        "cycle/1 UNAVAILABLE step 1 (model 'cycle2'): it is a pipeline that runs this one in turn",
        "cycle2/1 UNAVAILABLE step 0 (model 'cycle'): it is a pipeline that runs this one in turn",
        "echo/1 READY",
        "missing/1 UNAVAILABLE step 1 (model 'nothing'): model 'nothing' does not exist",
        "needs_broken/1 UNAVAILABLE step 0 (model 'broken'): model 'broken' is not ready: it is broken",
        "none/1 UNAVAILABLE its configuration is not a valid pipeline: a pipeline needs steps in ensemble_scheduling",
        "self/1 UNAVAILABLE step 0 (model 'self') is the pipeline itself",
        "shape/1 UNAVAILABLE tensor 'y' comes from step 0 output 'y' (INT32[-1]), but goes to the pipeline's output 'y' \
         (FP32[-1])",
    ];
    assert_eq!(shown, expected);
    assert_eq!(
        engine.readiness(),
        Readiness::NotReady(
            "models not ready: broken, cycle, cycle2, missing, needs_broken, none, self, shape".to_owned()
        )
    );
    let error = infer(&engine, request("missing", None, 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
}

#[test]
fn loading_a_pipeline_loads_what_it_runs() {
    let folder = repository(&[
        ("inner/config.pbtxt", &chain(&["one"])),
        ("one/1/model.word", "adds 1"),
        ("outer/config.pbtxt", &chain(&["inner", "ten"])),
        ("ten/1/model.word", "adds 10"),
        ("other/config.pbtxt", &chain(&["ten"])),
    ]);
    let engine = explicit(folder.path(), &[]);
    load(&engine, "outer").unwrap();
    let all_ready = [
        "inner/1 READY",
        "one/1 READY",
        "other",
        "outer/1 READY",
        "ten/1 READY",
    ];
    assert_eq!(shown(&engine), all_ready);
    assert_eq!(y(&infer(&engine, request("outer", None, 0)).unwrap()), 11);

    // A step is unloaded and loaded again.
    unload(&engine, "one").unwrap();
    until("one is gone", || {
        shown(&engine)[1] == "one/1 UNAVAILABLE unloaded"
    });
    let expected = "outer/1 UNAVAILABLE step 0 (model 'inner'): model 'inner' is not ready: step 0 (model 'one'): model \
                    'one' is not ready: unloaded";
    until("the pipeline knows", || shown(&engine)[3] == expected);
    let error = infer(&engine, request("outer", None, 0)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    load(&engine, "one").unwrap();
    assert_eq!(shown(&engine), all_ready);
    assert_eq!(y(&infer(&engine, request("outer", None, 0)).unwrap()), 11);

    // Steps that were loaded only for the pipeline are unloaded with it. `one` was requested by a client
    // meanwhile, and another pipeline still needs `ten`.
    load(&engine, "other").unwrap();
    let options = UnloadOptions::default().with(|options| options.unload_dependents = true);
    let outer = ModelRef::new("outer", None).unwrap();
    block_on(engine.repository().unwrap().unload(outer, options)).unwrap();
    // Each model ends on a separate thread.
    let expected = [
        "inner/1 UNAVAILABLE unloaded",
        "one/1 READY",
        "other/1 READY",
        "outer/1 UNAVAILABLE unloaded",
        "ten/1 READY",
    ];
    until("both pipelines are gone", || shown(&engine) == expected);
}

#[test]
fn what_is_asked_of_a_pipeline_is_done_in_order() {
    let folder = repository(&[
        ("p/config.pbtxt", &chain(&["slow"])),
        ("slow/1/model.word", "loads slowly"),
    ]);
    let engine = explicit(folder.path(), &[]);
    let (p, repository) = (ModelRef::new("p", None).unwrap(), engine.repository().unwrap());
    // Loading waits for the steps; the later unload does not overtake the load.
    let loading = repository.load(p, LoadOptions::default());
    let unloading = repository.unload(p, UnloadOptions::default());
    block_on(loading).unwrap();
    block_on(unloading).unwrap();
    let expected = ["p/1 UNAVAILABLE unloaded", "slow/1 READY"];
    until("it is unloaded", || shown(&engine) == expected);
}

#[test]
fn a_pipeline_that_runs_goes_on_when_the_new_one_does_not_fit() {
    let folder = repository(&[
        ("ten/1/model.word", "adds 10"),
        ("p/config.pbtxt", &chain(&["ten"])),
    ]);
    let engine = explicit(folder.path(), &["*"]);
    write(folder.path(), "p/config.pbtxt", &chain(&["ten", "nothing"]));
    let error = load(&engine, "p").unwrap_err();
    let reason = "step 1 (model 'nothing'): model 'nothing' does not exist";
    assert_eq!(
        error.message(),
        format!("failed to load 'p', version '1': {reason}")
    );
    assert_eq!(
        shown(&engine)[0],
        format!(
            "p/1 READY the files in the repository now cannot be loaded, so the earlier ones keep running: {reason}"
        )
    );
    assert_eq!(y(&infer(&engine, request("p", None, 1)).unwrap()), 11);
    reload(&engine, folder.path(), "p/config.pbtxt", &chain(&["ten", "ten"]));
    assert_eq!(y(&infer(&engine, request("p", None, 1)).unwrap()), 21);
    // Loads by request, with a configuration that the repository does not have.
    let config = r#"{"platform": "ensemble", "input": [{"name": "in", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_INT32", "dims": [-1]}],
        "ensemble_scheduling": {"step": [{"model_name": "ten", "input_map": {"x": "in"}, "output_map": {"y": "y"}}]}}"#;
    load_with(&engine, "p", Some(config)).unwrap();
    let metadata = engine.model_metadata(ModelRef::new("p", None).unwrap()).unwrap();
    assert_eq!(metadata.inputs[0].name, "in");
}

#[test]
fn a_pipeline_waits_for_what_it_is_to_run() {
    let folder = repository(&[
        ("p/config.pbtxt", &chain(&["late"])),
        ("late/1/model.word", "broken"),
    ]);
    let control = ModelControl::Poll {
        interval: Duration::from_millis(20),
    };
    let config = EngineConfig::default().with(|config| {
        config.control = control;
    });
    let (engine, _) = engine(folder.path(), config);
    assert_eq!(
        shown(&engine)[1],
        "p/1 UNAVAILABLE step 0 (model 'late'): model 'late' is not ready: it is broken"
    );
    write(folder.path(), "late/1/model.word", "adds 1");
    until("the pipeline is ready", || engine.readiness() == Readiness::Ready);
    assert_eq!(y(&infer(&engine, request("p", None, 1)).unwrap()), 2);
}

#[test]
fn whoever_leaves_a_pipeline_leaves_its_steps() {
    let (engine, runs, _folder) = small_engine(&[
        ("p/config.pbtxt", &chain(&["waits"])),
        ("waits/1/model.word", "waits to be cancelled"),
    ]);
    let cx = RequestContext::new(Some(Instant::now() + Duration::from_secs(60)));
    let cancel = cx.cancel().clone();
    thread::scope(|scope| {
        let answer = scope.spawn(|| block_on(engine.infer(request("p", None, 1), cx)));
        until("the step runs", || runs.load(Ordering::SeqCst) == 1);
        cancel.cancel();
        // The model of the running step responds although the request is cancelled.
        assert!(answer.join().unwrap().is_ok());
    });
    assert!(engine.stop(Instant::now() + Duration::from_secs(10)));
}

/// The remaining steps of a running pipeline send requests to models, so these models must not stop first.
#[test]
fn stopping_waits_for_pipelines_that_run() {
    let (engine, runs, _folder) = small_engine(&[
        ("p/config.pbtxt", &chain(&["slow", "one"])),
        ("outer/config.pbtxt", &chain(&["p", "one"])),
        ("slow/1/model.word", "sleeps"),
        ("one/1/model.word", "adds 1"),
    ]);
    thread::scope(|scope| {
        let answer = scope.spawn(|| infer(&engine, request("outer", None, 300)));
        until("the first step runs", || runs.load(Ordering::SeqCst) == 1);
        assert!(engine.stop(Instant::now() + Duration::from_secs(30)));
        assert_eq!(y(&answer.join().unwrap().unwrap()), 302);
    });
    let error = infer(&engine, request("one", None, 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
}

#[test]
fn stopping_does_not_wait_for_pipelines_beyond_its_deadline() {
    let (engine, runs, _folder) = small_engine(&[
        ("p/config.pbtxt", &chain(&["waits", "one"])),
        ("waits/1/model.word", "waits to be cancelled"),
        ("one/1/model.word", "adds 1"),
    ]);
    let cx = RequestContext::new(Some(Instant::now() + Duration::from_secs(60)));
    let cancel = cx.cancel().clone();
    thread::scope(|scope| {
        let answer = scope.spawn(|| block_on(engine.infer(request("p", None, 1), cx)));
        until("the step runs", || runs.load(Ordering::SeqCst) == 1);
        let start = Instant::now();
        assert!(!engine.stop(start + Duration::from_millis(200)));
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the request has a minute"
        );
        cancel.cancel();
        assert!(answer.join().unwrap().is_err(), "its second step was refused");
    });
}

/// After many concurrent loads and unloads of pipelines and steps, one load makes everything ready.
#[test]
fn pipelines_and_their_steps_can_be_loaded_by_many() {
    let folder = repository(&[
        ("one/1/model.word", "adds 1"),
        ("inner/config.pbtxt", &chain(&["one", "one"])),
        ("outer/config.pbtxt", &chain(&["inner", "one"])),
    ]);
    let engine = explicit(folder.path(), &["*"]);
    thread::scope(|scope| {
        for seed in 0..4usize {
            let engine: Arc<Engine> = engine.clone();
            scope.spawn(move || {
                for round in 0..30 {
                    let model = ["one", "inner", "outer"][(seed + round) % 3];
                    let model = ModelRef::new(model, None).unwrap();
                    let repository = engine.repository().unwrap();
                    match (seed + round / 3) % 2 {
                        // The step may have been unloaded just before.
                        0 => drop(block_on(repository.load(model, LoadOptions::default()))),
                        _ => block_on(repository.unload(model, UnloadOptions::default())).unwrap(),
                    }
                    match infer(&engine, request("outer", None, 0)) {
                        Ok(response) => assert_eq!(y(&response), 3),
                        Err(error) => assert!(
                            matches!(error.code(), ErrorCode::Unavailable | ErrorCode::NotFound),
                            "{error}"
                        ),
                    }
                }
            });
        }
    });
    load(&engine, "outer").unwrap();
    assert_eq!(shown(&engine), ["inner/1 READY", "one/1 READY", "outer/1 READY"]);
    assert_eq!(y(&infer(&engine, request("outer", None, 0)).unwrap()), 3);
}
