//! Tests models that fail to load: other models are not affected, and the reason is recorded.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use oip_engine::{Engine, EngineConfig, Repository};
use oip_service::{InferenceService, Readiness};
use oip_types::{ErrorCode, ModelRef, ModelState};

use crate::support::{WordBackend, engine, infer, repository, request, y};

#[test]
fn failures_are_kept_and_the_others_run() {
    let folder = repository(&[
        ("bad/1/model.word", "broken"),
        ("good/1/model.word", "echo"),
        ("mixed/1/model.word", "echo"),
        ("mixed/2/model.word", "broken"),
        ("mixed/config.pbtxt", "version_policy { all { } }"),
        ("worse/1/model.word", "panics while loading"),
    ]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    assert_eq!(y(&infer(&engine, request("good", None, 7)).unwrap()), 7);

    let error = infer(&engine, request("bad", None, 7)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert_eq!(error.to_string(), "model 'bad' is not ready: it is broken");
    // A panic's message is only logged, because it contains source locations.
    let error = infer(&engine, request("worse", None, 7)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "model 'worse' is not ready: the backend panicked while loading it"
    );

    // The highest ready version answers; the broken version reports its reason.
    assert_eq!(
        infer(&engine, request("mixed", None, 7))
            .unwrap()
            .model_version
            .as_deref(),
        Some("1")
    );
    let error = engine
        .model_ready(ModelRef::new("mixed", Some("2")).unwrap())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "model 'mixed' version '2' is not ready: it is broken"
    );
    let metadata = engine
        .model_metadata(ModelRef::new("mixed", None).unwrap())
        .unwrap();
    assert_eq!(metadata.versions, ["1"]);

    assert_eq!(
        engine.readiness(),
        Readiness::NotReady("models not ready: bad, mixed, worse".into())
    );
    let states = engine
        .models()
        .into_iter()
        .filter(|model| model.state == ModelState::Ready)
        // The memory of a load is unknown on systems that do not report it.
        .filter(|model| model.load_time.is_some() && model.load_memory.is_some() == cfg!(target_os = "linux"))
        .count();
    assert_eq!(states, 2);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = repository(&[("bad/1/model.word", "cut off")]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    let error = infer(&engine, request("bad", None, 7)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "model 'bad' is not ready: model.word: the file is truncated"
    );
}

#[test]
fn readiness_can_be_lenient() {
    let folder = repository(&[("bad/1/model.word", "broken"), ("good/1/model.word", "echo")]);
    let config = EngineConfig::default().with(|config| {
        config.strict_readiness = false;
    });
    assert_eq!(engine(folder.path(), config).0.readiness(), Readiness::Ready);
}

/// A model that is loading is known but not ready.
#[test]
fn requests_before_a_model_is_ready() {
    let folder = repository(&[
        ("slow/1/model.word", "never loads"),
        ("good/1/model.word", "echo"),
    ]);
    let repository = Repository::open(folder.path(), &[Arc::new(WordBackend::default())], None).unwrap();
    let config = EngineConfig::default().with(|config| {
        config.load_timeout = Duration::from_millis(300);
    });
    let start = Instant::now();
    let engine = Engine::start(repository, config);
    let error = infer(&engine, request("slow", None, 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert_eq!(error.to_string(), "model 'slow' is not ready: it is being loaded");
    assert!(!engine.readiness().is_ready());

    // The model never finishes loading; the wait ends when the load timeout has passed.
    engine.wait_until_loaded();
    assert!(start.elapsed() < Duration::from_secs(60));
    let error = infer(&engine, request("slow", None, 1)).unwrap_err();
    assert!(error.message().contains("took longer than"), "{error}");
    assert_eq!(y(&infer(&engine, request("good", None, 3)).unwrap()), 3);
}

#[test]
fn an_empty_repository_is_ready() {
    let folder = repository(&[]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    assert_eq!(engine.readiness(), Readiness::Ready);
    engine.start_draining();
    assert_eq!(
        engine.readiness(),
        Readiness::NotReady("the server is shutting down".into())
    );
}
