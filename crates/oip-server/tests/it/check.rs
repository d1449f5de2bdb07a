//! Tests the checks by `check` and before serving: which models are recognized, how they are named, and why
//! they are refused.

use std::{fs, path::Path, process::Command};

use crate::command_line::npy_file;

/// Checks that `check` loads models as the server does, and that a single file is a model.
#[test]
fn models_are_checked_before_they_are_served() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let check = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .arg("check")
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (
            output.status.code().unwrap(),
            text,
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (code, text, _) = check(&[path]);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("No models are loaded.\n"), "{text}");

    // The file is checked by itself, at a path where it is not a model, and at the right path next to a
    // broken model.
    let file = folder.path().join("means.safetensors");
    fs::copy(examples.join("digit_means/1/model.safetensors"), &file).unwrap();
    let (code, text, _) = check(&[file.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("means  -        READY"), "{text}");
    // A directory with only this file is treated like the file itself; a directory with a second model is a
    // repository.
    let (code, text, _) = check(&["--model-repository", path]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("means  -        READY"), "{text}");
    fs::create_dir(folder.path().join("other")).unwrap();
    fs::write(folder.path().join("net.pt"), "").unwrap();
    let (code, text, _) = check(&["--model-repository", path]);
    assert_eq!(code, 1, "{text}");
    fs::remove_dir(folder.path().join("other")).unwrap();
    fs::remove_file(folder.path().join("net.pt")).unwrap();
    let told = "not served: net.pt: a file of PyTorch: export the model to ONNX\n";
    assert!(text.contains(told), "{text}");
    let told = "not served: means.safetensors: to serve it, move it to means/1/model.safetensors\n";
    assert!(text.contains(told), "{text}");

    fs::create_dir_all(folder.path().join("means/1")).unwrap();
    fs::rename(&file, folder.path().join("means/1/model.safetensors")).unwrap();
    assert_eq!(check(&[path]).0, 0);
    fs::create_dir_all(folder.path().join("broken/1")).unwrap();
    fs::write(folder.path().join("broken/1/model.safetensors"), "x").unwrap();
    let (code, text, log) = check(&["--json", path]);
    assert_eq!(code, 1, "{text}{log}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let models = &report["models"];
    assert_eq!(
        (&models[0]["name"], &models[0]["state"]),
        (&"broken".into(), &"UNAVAILABLE".into())
    );
    assert!(
        models[0]["reason"]
            .as_str()
            .unwrap()
            .contains("model.safetensors"),
        "{text}"
    );
    assert_eq!(models[1]["outputs"][0]["datatype"], "FP32");
    assert_eq!(report["passed_over"], serde_json::json!([]));
    fs::write(folder.path().join("loose.safetensors"), "").unwrap();
    let report: serde_json::Value = serde_json::from_str(&check(&["--json", path]).1).unwrap();
    let loose = serde_json::json!({
        "file": "loose.safetensors",
        "advice": "to serve it, move it to loose/1/model.safetensors",
    });
    assert_eq!(report["passed_over"], serde_json::json!([loose]));

    let (code, text, log) = check(&["/nowhere"]);
    assert_eq!((code, text.as_str()), (1, ""));
    assert_eq!(log, "error: there is no file or directory /nowhere\n");
    assert_eq!(check(&["--jsn"]).0, 2);
    assert!(check(&["--help"]).1.contains("--json"));
}

/// Boosters share extensions with ordinary text files: a directory with one booster is treated like the
/// booster's file, and text files next to it are ignored.
#[test]
fn boosters_and_python_models_are_recognised_by_their_content() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-boosters/tests/fixtures");
    let check = |folder: &Path| {
        let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .arg("check")
            .arg(folder)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for (fixture, file) in [("lgb_binary.txt", "clicks.txt"), ("xgb_json.json", "clicks.json")] {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(fixtures.join(fixture), folder.path().join(file)).unwrap();
        fs::write(folder.path().join("README.txt"), "tree\n").unwrap();
        fs::write(folder.path().join("labels.json"), "[\"learner\"]").unwrap();
        fs::write(
            folder.path().join("setup.py"),
            "from setuptools import setup\nsetup()\n",
        )
        .unwrap();
        let text = check(folder.path());
        assert!(
            text.contains("clicks  -        READY") && !text.contains("not served"),
            "{text}"
        );
        // With a second booster the directory is a repository, and each gets advice on its location.
        fs::copy(fixtures.join(fixture), folder.path().join(format!("more_{file}"))).unwrap();
        fs::write(folder.path().join("mine.py"), "class Model:\n    pass\n").unwrap();
        let text = check(folder.path());
        let extension = Path::new(file).extension().unwrap().display();
        for expected in [
            format!("not served: {file}: to serve it, move it to clicks/1/model.{extension}\n"),
            "not served: mine.py: to serve it, move it to mine/1/model.py\n".to_owned(),
        ] {
            assert!(text.contains(&expected), "{text}");
        }
        assert_eq!(text.matches("not served").count(), 3, "{text}");
    }
}

/// `check` works when the ports are in use, which shows that it opens none.
#[test]
fn check_opens_no_port() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let run = |first: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .args(first)
            .args(["--http-address", &address, "--grpc-address", "none"])
            .arg(&examples)
            .output()
            .unwrap()
    };
    let served = run(&[]);
    assert_eq!(served.status.code(), Some(1));
    let error = String::from_utf8(served.stderr).unwrap();
    assert!(error.contains(&address), "{error}");
    let checked = run(&["check"]);
    let error = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(0), "{error}");
}

/// Reasons are printed in the table. They are logged as well only if a log level is requested.
#[test]
fn check_says_each_reason_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("broken/1")).unwrap();
    fs::write(folder.path().join("broken/1/model.npy"), "no array").unwrap();
    let run = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
        let output = command
            .arg("check")
            .arg(folder.path())
            .args(options)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let (table, log) = run(&[]);
    assert!(table.contains("broken 1: ") && log.is_empty(), "{table}{log}");
    let (_, log) = run(&["--log", "warn"]);
    assert!(log.contains("a model is unavailable"), "{log}");
}

/// Checks a directory saved by `MLflow`: its model is loaded, or the message names `MLflow`.
#[test]
fn directories_of_mlflow_are_served_or_named() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-boosters/tests/fixtures");
    let check = |folder: &Path| {
        let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .arg("check")
            .arg(folder)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), text)
    };
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("clicks");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("MLmodel"), "flavors:\n").unwrap();
    fs::write(model.join("conda.yaml"), "name: mlflow-env\n").unwrap();
    let (code, text) = check(&model);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("not served: MLmodel: a file of MLflow: export the model to ONNX"),
        "{text}"
    );

    fs::copy(fixtures.join("lgb_binary.txt"), model.join("model.lgb")).unwrap();
    let (code, text) = check(&model);
    assert!(code == 0 && text.contains("clicks  -        READY"), "{text}");
    fs::remove_file(model.join("model.lgb")).unwrap();

    // Training was stopped early: `Booster.predict` uses all trees, but the operator may expect only the
    // trees up to the best iteration.
    fs::copy(fixtures.join("xgb_best_iteration.ubj"), model.join("model.xgb")).unwrap();
    let (code, text) = check(&model);
    assert!(code == 0 && text.contains("clicks  -        READY"), "{text}");
    assert!(text.contains("trees are used, as Booster.predict does"), "{text}");
    fs::write(
        model.join("config.toml"),
        "parameters.best_iteration.string_value = \"false\"\n",
    )
    .unwrap();
    let (code, text) = check(&model);
    assert!(code == 0 && !text.contains("trees are used"), "{text}");
}

/// Regression: a directory with one file and a configuration was served under the file's name, without the
/// configuration.
#[test]
fn a_configuration_that_names_an_unknown_backend_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = npy_file();
    fs::write(folder.path().join("means.npy"), file).unwrap();
    fs::write(folder.path().join("config.pbtxt"), "platform: \"tensorts\"").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
        .arg("check")
        .arg(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("platform is 'tensorts', expected one of text, onnx, "),
        "{text}"
    );
}
