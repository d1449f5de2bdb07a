//! Tests loading and unloading by request, and their effect on inference requests.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, ModelControl};
use oip_service::{InferenceService, Readiness};
use oip_types::{ErrorCode, LoadOptions, ModelIndexEntry, ModelRef, ModelState, ServiceError, UnloadOptions};

use crate::support::{engine, infer, repository, request, write, y};

/// Creates an engine that loads only the given models.
pub(crate) fn explicit(root: &std::path::Path, load: &[&str]) -> Arc<Engine> {
    let config = EngineConfig::default().with(|config| {
        config.instances = 2;
        config.control = ModelControl::Explicit {
            load: load.iter().map(|&name| name.to_owned()).collect(),
        };
    });
    Arc::new(engine(root, config).0)
}

pub(crate) fn load(engine: &Engine, name: &str) -> Result<(), ServiceError> {
    load_with(engine, name, None)
}

pub(crate) fn load_with(engine: &Engine, name: &str, config: Option<&str>) -> Result<(), ServiceError> {
    let options = LoadOptions::default().with(|options| options.config = config.map(str::to_owned));
    block_on(
        engine
            .repository()
            .unwrap()
            .load(ModelRef::new(name, None)?, options),
    )
}

pub(crate) fn unload(engine: &Engine, name: &str) -> Result<(), ServiceError> {
    block_on(
        engine
            .repository()
            .unwrap()
            .unload(ModelRef::new(name, None)?, UnloadOptions::default()),
    )
}

pub(crate) fn index(engine: &Engine) -> Vec<ModelIndexEntry> {
    engine.repository().unwrap().index()
}

/// Returns the index as lines of the form `name/version STATE reason`.
pub(crate) fn shown(engine: &Engine) -> Vec<String> {
    let entries = index(engine).into_iter();
    entries
        .map(|entry| {
            let version = entry
                .version
                .map_or(String::new(), |version| format!("/{version}"));
            let state = entry.state.map_or(String::new(), |state| format!(" {state}"));
            format!("{}{version}{state} {}", entry.name, entry.reason)
                .trim_end()
                .to_owned()
        })
        .collect()
}

/// Waits until `is_so` returns true. Panics with `what` after a timeout.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it does not happen: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn models_are_loaded_when_they_are_asked_for() {
    let folder = repository(&[
        ("a/1/model.word", "echo"),
        ("b/1/model.word", "echo"),
        ("broken/1/model.word", "broken"),
    ]);
    let engine = explicit(folder.path(), &["a"]);
    assert_eq!(shown(&engine), ["a/1 READY", "b", "broken"]);
    assert_eq!(engine.readiness(), Readiness::Ready);
    assert_eq!(
        infer(&engine, request("b", None, 1)).unwrap_err().code(),
        ErrorCode::NotFound
    );

    load(&engine, "b").unwrap();
    assert_eq!(y(&infer(&engine, request("b", None, 5)).unwrap()), 5);
    unload(&engine, "a").unwrap();
    until("a is unloaded", || {
        shown(&engine)[0] == "a/1 UNAVAILABLE unloaded"
    });
    let error = infer(&engine, request("a", None, 1)).unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (ErrorCode::NotFound, "model 'a' is not ready: unloaded")
    );
    // A failed load is reported to the client that requested it and does not affect the server's readiness.
    let error = load(&engine, "broken").unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (
            ErrorCode::InvalidArgument,
            "failed to load 'broken', version '1': it is broken"
        )
    );
    assert_eq!(
        shown(&engine),
        [
            "a/1 UNAVAILABLE unloaded",
            "b/1 READY",
            "broken/1 UNAVAILABLE it is broken"
        ]
    );
    assert_eq!(engine.readiness(), Readiness::Ready);
}

#[test]
fn models_to_load_at_start() {
    let folder = repository(&[("a/1/model.word", "echo"), ("b/1/model.word", "echo")]);
    assert_eq!(
        shown(&explicit(folder.path(), &["*"])),
        ["a/1 READY", "b/1 READY"]
    );
    let engine = explicit(folder.path(), &["b", "none"]);
    assert_eq!(
        shown(&engine),
        [
            "a",
            "b/1 READY",
            "none UNAVAILABLE failed to poll from model repository: it is not there"
        ]
    );
    assert_eq!(
        engine.readiness(),
        Readiness::NotReady("models not ready: none".into())
    );
}

/// Path-like names never reach the file system; unusual but valid names do.
#[test]
fn names_are_checked_at_every_door() {
    let folder = repository(&[
        ("in/1/model.word", "echo"),
        ("..m/1/model.word", "echo"),
        ("größe/1/model.word", "echo"),
    ]);
    fs::create_dir(folder.path().join("repository")).unwrap();
    fs::rename(folder.path().join("..m"), folder.path().join("repository/..m")).unwrap();
    fs::rename(
        folder.path().join("größe"),
        folder.path().join("repository/größe"),
    )
    .unwrap();
    let engine = explicit(
        &folder.path().join("repository"),
        &["../in", "/etc", "..", ".", "~", ""],
    );
    for name in [
        "../in",
        "a/../../in",
        "..",
        "/etc/passwd",
        "in/",
        " ..",
        ".. ",
        "",
        "\t",
        "\0",
        ".hidden",
        "~",
    ] {
        for answer in [load(&engine, name), unload(&engine, name)] {
            assert_eq!(answer.unwrap_err().code(), ErrorCode::InvalidArgument, "{name:?}");
        }
    }
    assert!(
        engine
            .models()
            .iter()
            .all(|model| model.state == ModelState::Unavailable)
    );
    assert!(
        engine.models()[0].reason.contains("must not"),
        "{:?}",
        engine.models()
    );
    for name in ["...", "m..1", "m.v1"] {
        assert_eq!(
            load(&engine, name).unwrap_err().code(),
            ErrorCode::NotFound,
            "{name}"
        );
    }
    for name in ["..m", "größe"] {
        load(&engine, name).unwrap();
    }
}

/// A configuration in a load request cannot contain paths, and an invalid one changes nothing.
#[test]
fn configurations_by_request_name_no_paths() {
    let folder = repository(&[
        ("m/1/model.word", "echo"),
        ("m/1/other.word", "gives nothing"),
        ("secret", "s"),
    ]);
    let engine = explicit(folder.path(), &["m"]);
    let large = format!("{{\"name\": \"{}\"}}", "x".repeat(2 << 20));
    for config in [
        r#"{"default_model_filename": "../../secret"}"#,
        r#"{"default_model_filename": "/etc/passwd"}"#,
        r#"{"output": [{"name": "y", "label_filename": "../secret"}]}"#,
        r#"{"model_warmup": [{"inputs": {"x": {"data_type": "TYPE_INT32", "input_data_file": "../../secret"}}}]}"#,
        "{",
        "[]",
        &large,
        r#"{"sequence_batching": {}}"#,
    ] {
        let error = load_with(&engine, "m", Some(config)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
        assert_eq!(y(&infer(&engine, request("m", None, 3)).unwrap()), 3);
    }
    // A valid configuration applies until the model is loaded without one.
    load_with(
        &engine,
        "m",
        Some(r#"{"defaultModelFilename": "other.word", "maxBatchSize": "4"}"#),
    )
    .unwrap();
    assert!(infer(&engine, request("m", None, 3)).is_err());
    let config = engine
        .configuration()
        .unwrap()
        .model_config(ModelRef::new("m", None).unwrap());
    assert_eq!(config.unwrap().max_batch_size, 4);
    load(&engine, "m").unwrap();
    assert_eq!(y(&infer(&engine, request("m", None, 3)).unwrap()), 3);
}

/// A configuration in a load request can repeat the program that runs a model, but not change it.
#[test]
fn configurations_by_request_choose_no_program() {
    let parameter = |value: &str| format!(r#"{{"parameters": {{"python": {{"string_value": "{value}"}}}}}}"#);
    let folder = repository(&[
        ("m/1/model.word", "echo"),
        ("m/config.json", &parameter("venv")),
        ("n/1/model.word", "echo"),
    ]);
    let engine = explicit(folder.path(), &["*"]);
    for (model, value) in [("m", "/bin/sh"), ("n", "venv"), ("n", "")] {
        let error = load_with(&engine, model, Some(&parameter(value))).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "failed to load '{model}', its config: parameters.python is allowed only for configurations \
                 in the repository"
            )
        );
        assert_eq!(y(&infer(&engine, request(model, None, 3)).unwrap()), 3);
    }
    load_with(&engine, "m", Some(&parameter("venv"))).unwrap();
    load_with(&engine, "m", Some("{}")).unwrap();
}

#[test]
fn loading_by_request_must_be_allowed() {
    let folder = repository(&[("m/1/model.word", "echo")]);
    for control in [
        ModelControl::None,
        ModelControl::Poll {
            interval: Duration::from_secs(60),
        },
    ] {
        let config = EngineConfig::default().with(|config| {
            config.control = control;
        });
        let (engine, _) = engine(folder.path(), config);
        for answer in [load(&engine, "m"), unload(&engine, "m")] {
            let error = answer.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Unavailable);
            let tritons = "explicit model load / unload is not allowed if polling is enabled";
            assert!(error.message().starts_with(tritons), "{error}");
        }
    }
}

/// If the backend fails or panics during a reload, the reason is reported within a second, and the previous
/// version stays in service.
#[test]
fn a_failed_reload_leaves_the_old_one_serving() {
    let folder = repository(&[("m/1/model.word", "echo")]);
    let engine = explicit(folder.path(), &["m"]);
    for word in ["broken", "panics while loading"] {
        write(folder.path(), "m/1/model.word", word);
        let start = Instant::now();
        let error = load(&engine, "m").unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert_eq!(y(&infer(&engine, request("m", None, 3)).unwrap()), 3);
        let entry = &index(&engine)[0];
        assert_eq!(entry.state, Some(ModelState::Ready));
        assert!(
            entry.reason.starts_with(
                "the files in the repository now cannot be loaded, so the earlier ones keep running: "
            ),
            "{entry:?}"
        );
        assert!(engine.readiness().is_ready());
    }
    // A broken new version, or a broken configuration, does not stop the old version either.
    write(folder.path(), "m/1/model.word", "echo");
    load(&engine, "m").unwrap();
    assert_eq!(shown(&engine), ["m/1 READY"]);
    write(folder.path(), "m/2/model.word", "broken");
    assert!(load(&engine, "m").is_err());
    assert_eq!(shown(&engine), ["m/1 READY", "m/2 UNAVAILABLE it is broken"]);
    write(folder.path(), "m/config.pbtxt", "max_batch_size: x");
    assert!(load(&engine, "m").is_err());
    assert_eq!(
        infer(&engine, request("m", None, 3))
            .unwrap()
            .model_version
            .as_deref(),
        Some("1")
    );
    assert!(engine.readiness().is_ready());
    fs::remove_file(folder.path().join("m/config.pbtxt")).unwrap();
    write(folder.path(), "m/2/model.word", "echo");
    load(&engine, "m").unwrap();
    until("1 is unloaded", || {
        shown(&engine) == ["m/1 UNAVAILABLE unloaded", "m/2 READY"]
    });
    assert_eq!(
        infer(&engine, request("m", None, 3))
            .unwrap()
            .model_version
            .as_deref(),
        Some("2")
    );
}

/// A served file is replaced by renaming under load: every request is answered, by the old version until the
/// new one is ready.
#[test]
fn replacing_a_served_model_fails_no_request() {
    let folder = repository(&[("m/1/model.word", "adds 1000")]);
    let engine = explicit(folder.path(), &["m"]);
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let (engine, is_over, answered) = (engine.clone(), is_over.clone(), answered.clone());
            thread::spawn(move || {
                let mut last = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let added = y(&infer(&engine, request("m", None, client)).unwrap()) - client;
                    // Results are multiples of 1000 and never decrease: a replaced version does not return.
                    assert!(added >= last && added % 1000 == 0, "{added} after {last}");
                    last = added;
                    answered.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(2));
                }
            })
        })
        .collect();
    for round in 2..40 {
        // Wait until the server is under load, even if the machine is busy.
        let before = answered.load(Ordering::SeqCst);
        until("requests are answered", || {
            answered.load(Ordering::SeqCst) >= before + 10
        });
        write(folder.path(), "next", &format!("adds {round}000"));
        fs::rename(folder.path().join("next"), folder.path().join("m/1/model.word")).unwrap();
        load(&engine, "m").unwrap();
        assert_eq!(
            y(&infer(&engine, request("m", None, 7)).unwrap()),
            round * 1000 + 7
        );
    }
    is_over.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(engine.stop(Instant::now() + Duration::from_secs(10)));
}

/// Changes to the file of a served model have no effect.
#[test]
fn truncating_a_served_file_changes_no_answer() {
    let folder = repository(&[("m/1/model.word", "adds 5")]);
    let engine = explicit(folder.path(), &["m"]);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("m/1/model.word"))
        .unwrap();
    file.set_len(0).unwrap();
    assert_eq!(y(&infer(&engine, request("m", None, 1)).unwrap()), 6);
}

/// A model whose directory was deleted is still served and listed in the index; loading it again reports the
/// error.
#[test]
fn a_deleted_model_goes_on() {
    let folder = repository(&[("m/1/model.word", "echo")]);
    let engine = explicit(folder.path(), &["m"]);
    fs::remove_dir_all(folder.path().join("m")).unwrap();
    assert_eq!(y(&infer(&engine, request("m", None, 1)).unwrap()), 1);
    assert_eq!(shown(&engine), ["m/1 READY"]);
    let error = load(&engine, "m").unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (
            ErrorCode::NotFound,
            "failed to load 'm', failed to poll from model repository: it is not there"
        )
    );
    assert_eq!(y(&infer(&engine, request("m", None, 1)).unwrap()), 1);
    assert!(shown(&engine)[0].starts_with("m/1 READY the files in the repository now cannot be loaded"));
    unload(&engine, "m").unwrap();
    until("it is unloaded", || {
        shown(&engine) == ["m/1 UNAVAILABLE unloaded"]
    });
}

/// A file that changes while it is being read is not loaded.
#[test]
fn a_file_that_changes_while_it_is_read_is_not_loaded() {
    let folder = repository(&[("m/1/model.word", "loads slowly")]);
    let engine = explicit(folder.path(), &[]);
    let loading = thread::spawn({
        let engine = engine.clone();
        move || load(&engine, "m")
    });
    thread::sleep(Duration::from_millis(200));
    write(folder.path(), "m/1/model.word", "loads slowly, the second half");
    let error = loading.join().unwrap().unwrap_err();
    assert_eq!(
        error.message(),
        "failed to load 'm', version '1': its files changed while they were read"
    );
    write(folder.path(), "m/1/model.word", "echo");
    load(&engine, "m").unwrap();
}

/// Loading and unloading are idempotent, except for unknown models.
#[test]
fn loading_and_unloading_twice() {
    let folder = repository(&[("m/1/model.word", "echo"), ("file", "")]);
    let engine = explicit(folder.path(), &[]);
    unload(&engine, "m").unwrap();
    load(&engine, "m").unwrap();
    let model = ModelRef::new("m", None).unwrap();
    let before = engine.configuration().unwrap().model_config(model).unwrap();
    load(&engine, "m").unwrap();
    // Loading an unchanged model does not load it again.
    assert!(Arc::ptr_eq(
        &before,
        &engine.configuration().unwrap().model_config(model).unwrap()
    ));
    unload(&engine, "m").unwrap();
    unload(&engine, "m").unwrap();
    for name in ["none", "file"] {
        for error in [
            load(&engine, name).unwrap_err(),
            unload(&engine, name).unwrap_err(),
        ] {
            assert_eq!(error.code(), ErrorCode::NotFound, "{error}");
        }
    }
    let version = ModelRef::new("m", Some("1")).unwrap();
    let error = block_on(engine.repository().unwrap().load(version, LoadOptions::default())).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

/// Requests for unknown names leave no state behind.
#[test]
fn names_that_clients_make_up_are_not_kept() {
    let folder = repository(&[("m/1/model.word", "echo")]);
    let engine = explicit(folder.path(), &["m"]);
    for number in 0..100_000 {
        let name = format!("made_up_{number}");
        assert!(engine.model_ready(ModelRef::new(&name, None).unwrap()).is_err());
    }
    for number in 0..100 {
        let name = format!("made_up_{number}");
        assert!(load(&engine, &name).is_err() && unload(&engine, &name).is_err());
        assert!(infer(&engine, request(&name, Some("1"), 1)).is_err());
    }
    assert_eq!(engine.models().len(), 1);
    assert_eq!(index(&engine).len(), 1);
}
