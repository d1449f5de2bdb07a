//! Tests of refused models and unusable interpreters.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use backend_python::{PythonBackend, SavedObjectBackend, Settings};
use oip_model::{Backend, LoadContext, ModelSource};
use oip_types::{ErrorCode, ModelConfig, ServiceError, model_config::ConfigParameter};

fn load(backend: &dyn Backend, path: &Path, parameters: &[(&str, &str)]) -> Result<(), ServiceError> {
    let source = ModelSource::new("m", "1", path, "class Model: pass".into());
    let parameters = parameters.iter().map(|(name, value)| {
        let string_value = (*value).to_owned();
        ((*name).to_owned(), ConfigParameter { string_value })
    });
    let config = ModelConfig {
        parameters: parameters.collect(),
        ..ModelConfig::default()
    };
    let cx = LoadContext::default()
        .with_deadline(Some(Instant::now() + Duration::from_secs(30)))
        .with_config(Arc::new(config));
    backend.load(&source, &cx).map(drop)
}

fn allowed() -> PythonBackend {
    PythonBackend::new(Settings::default().with(|settings| settings.is_allowed = true))
}

fn message(result: Result<(), ServiceError>) -> String {
    result.unwrap_err().message().to_owned()
}

#[test]
fn nothing_runs_unless_it_is_allowed() {
    // The interpreter would create a file if it ran.
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let interpreter = script(folder.path(), &format!("touch {}", trace.display()));
    let settings = Settings::default().with(|settings| settings.interpreter = interpreter);
    let path = folder.path().join("m/1/model.py");
    let refusal = message(load(&PythonBackend::new(settings.clone()), &path, &[]));
    assert_eq!(
        refusal,
        "it is a Python program, which would run with the server's rights; --allow-python lets the server run it"
    );
    let refusal = message(load(&SavedObjectBackend::new(settings), &path, &[]));
    assert_eq!(
        refusal,
        "it is a pickled object, which can run any code with the server's rights when it is read; --allow-pickle lets the \
         server read it"
    );
    assert!(!trace.exists());
}

#[test]
fn what_a_configuration_cannot_have() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m/1/model.py");
    for (name, value, expected) in [
        (
            "isolation",
            "none",
            "python models always run in separate processes",
        ),
        ("memory_limit", "much", "expected a number of bytes"),
        ("memory_limit", "1", "its process may use"),
        ("python", "nowhere/", "where there is no Python"),
        (
            "EXECUTION_ENV_PATH",
            "env.tar.gz",
            "unpack it, and set its directory with the parameter 'python'",
        ),
    ] {
        let interpreter = script(folder.path(), "exit 0");
        let settings = Settings::default().with(|settings| {
            settings.is_allowed = true;
            settings.interpreter = interpreter;
        });
        let refusal = message(load(&PythonBackend::new(settings), &path, &[(name, value)]));
        assert!(refusal.contains(expected), "{name}: {refusal}");
    }
}

#[test]
fn an_interpreter_that_is_none_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m/1/model.py");
    for (deed, expected) in [
        ("exit 3", "it ended with code 3"),
        (
            "echo 'a text of more than 24 bytes, and no frame' >&0; exec sleep 30",
            "it was killed because it sent a frame of an unknown kind",
        ),
    ] {
        let interpreter = script(folder.path(), deed);
        let named = interpreter.to_str().unwrap();
        let error = load(&allowed(), &path, &[("python", named)]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(error.message().contains(expected), "{error}");
    }
}

/// Writes a shell script that runs the command `deed`, to be used as the interpreter.
fn script(folder: &Path, deed: &str) -> std::path::PathBuf {
    let path = folder.join("interpreter");
    fs::write(&path, format!("#!/bin/sh\n{deed}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}
