//! Tests models that need more memory than their limit.

use std::{fs, sync::Arc, time::Duration};

use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::{CancelToken, Model};
use oip_service::InferenceService;
use oip_types::ErrorCode;
use oip_worker::IsolatedBackend;

use crate::support::{ACT, DeedBackend, infer, isolation, load, request, vector};

/// Allocating 4 GiB under a limit of 1 GiB fails only the request that caused it, with the reason.
#[test]
fn a_model_that_takes_4_gib_fails_alone() {
    let parameters = [("isolation", "process"), ("memory_limit", "1GiB")];
    let model = load("takes 4 GiB", isolation("worker"), &parameters).unwrap();
    assert_eq!(infer(&*model, 7).unwrap(), 7);
    let error = infer(&*model, ACT).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert_eq!(
        error.to_string(),
        "its process died: it was terminated by SIGABRT, out of memory; it may use 1 GiB of memory. This \
         request is lost, the next one will be tried by a new process"
    );
    assert_eq!(infer(&*model, 8).unwrap(), 8);
}

/// A request that does not fit into the memory limit is refused, and the process continues.
#[test]
fn a_request_that_does_not_fit_is_refused() {
    let parameters = [("isolation", "process"), ("memory_limit", "512 MiB")];
    let model = load("echo", isolation("worker"), &parameters).unwrap();
    let before = crate::support::pid_of(&*model);
    let mut large = request(1);
    large.inputs[0].value = vector(vec![0; 130 << 20]).into();
    let error = model.infer(large, &CancelToken::new(None)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    assert_eq!(
        error.to_string(),
        "its 545259520 bytes do not fit the memory of the model's process"
    );
    assert_eq!(crate::support::pid_of(&*model), before);
}

/// A model that needs more than its memory limit is not loaded, whether its file is already too large or
/// loading it exceeds the limit. The index contains the reason, and other models are not affected.
#[test]
fn a_model_that_needs_too_much_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let large = " ".repeat(2 << 20);
    for (model, content, limit) in [
        ("greedy", "while loading: takes 4 GiB", "1GiB"),
        ("large", large.as_str(), "2MiB"),
        ("modest", "echo", "1GiB"),
    ] {
        let version = folder.path().join(model).join("1");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("model.deed"), content).unwrap();
        let config = format!(
            "parameters {{ key: 'isolation' value {{ string_value: 'process' }} }}
             parameters {{ key: 'memory_limit' value {{ string_value: '{limit}' }} }}"
        );
        fs::write(folder.path().join(model).join("config.pbtxt"), config).unwrap();
    }
    let backend = IsolatedBackend::new(Arc::new(DeedBackend), isolation("worker"));
    let repository = Repository::open(folder.path(), &[Arc::new(backend)], None).unwrap();
    let config = EngineConfig::default().with(|config| {
        config.load_timeout = Duration::from_secs(60);
    });
    let engine = Engine::start(repository, config);
    engine.wait_until_loaded();
    let ready = |model: &str| engine.model_ready(oip_types::ModelRef::new(model, None).unwrap());
    assert_eq!(
        ready("greedy").unwrap_err().to_string(),
        "model 'greedy' is not ready: a separate process was started, but while it loaded the model it was \
         terminated by \
         SIGABRT, out of memory; it may use 1 GiB of memory"
    );
    assert_eq!(
        ready("large").unwrap_err().to_string(),
        "model 'large' is not ready: its file has 2097152 bytes, and its process may use 2 MiB of memory"
    );
    ready("modest").unwrap();
}

/// The error for an invalid parameter names the parameter.
#[test]
fn wrong_parameters_are_named() {
    for (parameters, why) in [
        (
            &[("isolation", "thread")][..],
            "the parameter 'isolation' of its configuration is 'thread', expected 'process' or 'none'",
        ),
        (
            &[("isolation", "process"), ("memory_limit", "much")],
            "the parameter 'memory_limit' of its configuration is 'much', expected a number of bytes, such as 2GiB, 512MiB \
             or 1000000000",
        ),
        (
            &[("memory_limit", "1GiB")],
            "the parameter 'memory_limit' of its configuration needs 'isolation' to be 'process'",
        ),
    ] {
        let error = load("echo", isolation("worker"), parameters).err().unwrap();
        assert_eq!(
            (error.code(), error.to_string().as_str()),
            (ErrorCode::InvalidArgument, why)
        );
    }
    // The wrapper's own parameters are never passed to the backend, with or without isolation.
    for isolated in ["process", "none"] {
        let model = load(
            "echo",
            isolation("worker"),
            &[("isolation", isolated), ("other", "x")],
        )
        .unwrap();
        let mut tell = request(crate::support::TELL);
        tell.id = Some("name".into());
        let told = model.infer(tell, &CancelToken::new(None)).unwrap();
        let told: Vec<&[u8]> = told[1].value.as_bytes().unwrap().iter().collect();
        assert_eq!(told, [br#"m 1 "model.deed" ["other"] true"#.as_slice(), b"name"]);
        assert_eq!(model.metadata().inputs.len(), 2);
    }
    let default = isolation("worker").by_default(true);
    let model: Box<dyn Model> = load("echo", default, &[]).unwrap();
    assert_ne!(crate::support::pid_of(&*model), std::process::id());
}
