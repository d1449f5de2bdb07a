//! Startup errors are one line, with an exit code.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{command, failing};

#[test]
fn wrong_options() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (arguments, message) in [
        (
            &[][..],
            "no model repository: give a directory with models, or a model's file",
        ),
        (
            &["--htp-address", "x"],
            "unexpected argument '--htp-address' found; tip: a similar argument exists: '--http-address'",
        ),
        (
            &["--max-batchsize", "8"],
            "unexpected argument '--max-batchsize' found; max_batch_size is a field of a model's config.pbtxt",
        ),
        (
            &["--model-repository", folder, "--http-address", "nonsense"],
            "--http-address: expected HOST:PORT, :PORT, unix:PATH or none, found 'nonsense'",
        ),
        (
            &["--model-repository", folder, "--instances", "-1"],
            "unexpected argument '-1' found",
        ),
        (
            &["--port", "shop"],
            "invalid value 'shop' for '--port <PORT>': expected a whole number (--help",
        ),
        (
            &["--model-repository", folder, "--request-timeout", "30x"],
            "invalid value '30x' for '--request-timeout <TIME>'",
        ),
        (
            &["--model-repository", folder, "--request-timeout", "0s"],
            "--request-timeout: expected more than 0",
        ),
        (
            &["--model-repository", folder, "--max-request-timeout", "0"],
            "--max-request-timeout: expected more than 0",
        ),
        (
            &["--model-repository", folder, "--memory-budget", "63MiB"],
            "--memory-budget (66060288 bytes) is less than --max-request-size (67108864 bytes)",
        ),
        (
            &["--model-repository", folder, "--max-request-size", "64M"],
            "invalid value '64M' for '--max-request-size <SIZE>'",
        ),
        (
            &["--model-repository", folder, "--log", "chatty!!"],
            "--log: expected a level",
        ),
        (
            &["--model-repository", folder, "--model-name", "../x"],
            "--model-name '../x' must not contain a path separator",
        ),
        (
            &["--model-repository", folder, "--load-model", "m"],
            "--load-model needs --model-control-mode=explicit",
        ),
        (
            &[
                "--model-repository",
                folder,
                "--model-control-mode=explicit",
                "--load-model=*,m",
            ],
            "--load-model=* stands for all models and must be the only one",
        ),
        (
            &["--model-repository", folder, "--model-repository", folder],
            "--model-repository: ",
        ),
        (
            &[
                "--model-repository",
                folder,
                "--model-repository=s3://b/x",
                "--model-name=m",
            ],
            "--model-name is the name of the only model, and there are several repositories",
        ),
        (
            &["--model-repository", folder, "--repository-poll-secs=0"],
            "invalid value '0' for '--repository-poll-secs <N>'",
        ),
        (
            &[
                "--model-repository",
                folder,
                "--allowed-hosts",
                "http://a.example",
            ],
            "--allowed-hosts: expected a host name without scheme and port, or * for all, found 'http://a.example'",
        ),
        (
            &["--config", "/nowhere.toml"],
            "the configuration file /nowhere.toml cannot be read",
        ),
    ] {
        let (code, line) = failing(arguments);
        assert!(code == 2 && line.starts_with(message), "{code}: {line}");
    }
}

#[test]
fn wrong_surroundings() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let (code, line) = failing(&["--model-repository", "/nowhere"]);
    assert_eq!((code, &*line), (1, "there is no file or directory /nowhere"));
    assert_eq!(
        failing(&["--model-repository", folder, "--repository-also", "/nowhere"]),
        (1, "the folder /nowhere does not exist".to_owned())
    );
    let file = format!("{folder}/file");
    fs::write(&file, "text").unwrap();
    let (code, line) = failing(&["--model-repository", &file]);
    let expected =
        format!("{file} is neither a folder nor, by its extension, a model's file: expected one of .");
    assert!(code == 1 && line.starts_with(&expected), "{line}");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (option, transport) in [("--http-address", "HTTP"), ("--grpc-address", "gRPC")] {
        let other = if option == "--http-address" {
            "--grpc-address"
        } else {
            "--http-address"
        };
        let (code, line) = failing(&[
            "--model-repository",
            folder,
            option,
            &address,
            other,
            "127.0.0.1:0",
        ]);
        assert!(
            code == 1
                && line.starts_with(&format!(
                    "cannot listen on {address} for {transport}: Address already in use"
                ))
                && line.ends_with(&format!("({option} takes another one)")),
            "{line}"
        );
    }
    // The message suggests the right option.
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, option) in [
        (&["--port", &port][..], "--port"),
        (&["--http-port", &port, "--grpc-port", "0"], "--http-port"),
    ] {
        let (code, line) = failing(&[&[folder][..], arguments].concat());
        assert!(
            code == 1 && line.ends_with(&format!("({option} takes another one)")),
            "{line}"
        );
    }
}

/// An invalid environment variable is reported as such if the command line does not set the option.
#[test]
fn wrong_variables() {
    let line = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
        command
            .args(arguments)
            .env("OIP_PORT", "abc")
            .env("OIP_LOG_FORMAT", "html");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(
        line(&["--log-format", "text"]),
        "error: invalid value 'abc' for OIP_PORT in the environment: expected a whole number (--help shows all options)\n"
    );
    assert_eq!(
        line(&["--port=0"]),
        "error: invalid value 'html' for OIP_LOG_FORMAT in the environment; [possible values: text, json] (--help shows all \
         options)\n"
    );
    assert!(line(&["--port", "80x"]).contains("'80x' for '--port <PORT>': expected a whole number"));
}

/// An unusable library is fatal before any model is loaded, however it was specified.
#[test]
fn wrong_libraries_for_onnx_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = folder.join("libonnxruntime.so");
    fs::write(&text, "#!/bin/sh\necho no library\n".repeat(100)).unwrap();
    let missing = folder.join("missing.so");
    for (path, reason) in [
        (missing.as_path(), "No such file or directory"),
        (text.as_path(), "invalid ELF header"),
        (folder, "not a file; name the library"),
    ] {
        let shown = path.display();
        let expected = format!("ONNX Runtime cannot be loaded from {shown}: ");
        let repository = folder.to_str().unwrap();
        let path = path.to_str().unwrap();
        let (code, line) = failing(&["--model-repository", repository, "--onnxruntime", path]);
        assert_eq!(code, 1, "{line}");
        assert!(line.starts_with(&expected), "{line}");
        if cfg!(target_os = "linux") {
            assert!(line.contains(reason), "{line}");
        }
    }
    let shown = missing.display();
    let config = folder.join("server.toml");
    fs::write(&config, format!("onnxruntime = \"{shown}\"")).unwrap();
    for variable in ["OIP_ONNXRUNTIME", "ORT_DYLIB_PATH", "OIP_CONFIG"] {
        let value = if variable == "OIP_CONFIG" {
            &config
        } else {
            &missing
        };
        let output = command(folder, &[]).env(variable, value).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{variable}: {line}");
        assert!(
            line.contains(&format!("ONNX Runtime cannot be loaded from {shown}: ")),
            "{variable}: {line}"
        );
    }
}

/// A library that is not ONNX Runtime is rejected: any library that the test itself loads will do.
#[cfg(target_os = "linux")]
#[test]
fn another_library_than_onnx_runtime() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let other = maps.lines().filter_map(|line| line.split_whitespace().last());
    let other = other.into_iter().find(|path| path.contains("/libc.so")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().to_str().unwrap();
    let (code, line) = failing(&["--model-repository", repository, "--onnxruntime", other]);
    assert_eq!(code, 1, "{line}");
    assert!(line.contains("it is a library, but not ONNX Runtime"), "{line}");
}

/// Libraries that pretend to be ONNX Runtime are rejected: one that is too old, and one that violates the API
/// of its version.
#[cfg(target_os = "linux")]
#[test]
fn libraries_older_than_is_needed() {
    const LIBRARY: &str = r#"
        use std::ffi::{c_char, c_void};

        #[repr(C)]
        pub struct Base {
            api: extern "C" fn(u32) -> *const c_void,
            version: extern "C" fn() -> *const c_char,
        }

        extern "C" fn api(_: u32) -> *const c_void {
            std::ptr::null()
        }

        extern "C" fn version() -> *const c_char {
            concat!(env!("VERSION"), "\0").as_ptr().cast()
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn OrtGetApiBase() -> *const Base {
            static BASE: Base = Base { api, version };
            &BASE
        }
    "#;
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("old.rs");
    fs::write(&source, LIBRARY).unwrap();
    for (version, reason) in [
        ("1.10.0", "it is version 1.10.0, expected 1.17 or newer"),
        ("newest", "it is version newest, expected 1.17 or newer"),
        ("1.17.0", "it does not behave like ONNX Runtime"),
    ] {
        let library = folder.path().join(format!("libonnxruntime.so.{version}"));
        // `rustc` is next to the cargo that built the test.
        let status = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"))
            .args(["--edition", "2024", "--crate-type", "cdylib", "-o"])
            .args([&library, &source])
            .env("VERSION", version)
            .status();
        assert!(status.unwrap().success());
        let (repository, library) = (folder.path().to_str().unwrap(), library.to_str().unwrap());
        // The log contains the error caught from the faulty library.
        let arguments = [
            "--model-repository",
            repository,
            "--onnxruntime",
            library,
            "--log",
            "off",
        ];
        let (code, line) = failing(&arguments);
        assert_eq!(code, 1, "{line}");
        assert!(line.contains(reason), "{line}");
    }
}

/// The log names the runtime of each model, and a model's configuration can choose it.
#[test]
fn onnx_runtime_is_used_where_it_is_wanted() {
    let Some(library) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) else {
        // Written directly, because the test harness captures the output of passing tests.
        let note = b"skipped: a server with ONNX Runtime, as ORT_DYLIB_PATH names no library\n";
        std::io::Write::write_all(&mut std::io::stderr(), note).unwrap();
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models/digits/1/model.onnx");
    for (model, configuration) in [("by_default", ""), ("by_choice", "runtime: \"built-in\"")] {
        let version = folder.path().join(model).join("1");
        fs::create_dir_all(&version).unwrap();
        fs::copy(digits, version.join("model.onnx")).unwrap();
        fs::write(folder.path().join(model).join("config.pbtxt"), configuration).unwrap();
    }
    let mut command = command(folder.path(), &["--log-format", "json"]);
    let mut child = command
        .env("ORT_DYLIB_PATH", library)
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut runtimes = std::collections::BTreeMap::new();
    for line in lines {
        let event: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let (Some(model), Some(runtime)) = (event["model"].as_str(), event["runtime"].as_str()) {
            runtimes.insert(model.to_owned(), runtime.to_owned());
        }
        if event["message"] == "loaded all models" {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let expected = [("by_choice", "built-in"), ("by_default", "onnxruntime")];
    assert!(
        runtimes
            .iter()
            .map(|(model, runtime)| (&**model, &**runtime))
            .eq(expected),
        "{runtimes:?}"
    );
}

#[test]
fn help_and_version_are_no_errors() {
    for (flag, expected) in [("--help", "Usage: oip-server"), ("--version", "oip-server 0.1.0")] {
        let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .arg(flag)
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        assert!(String::from_utf8(output.stdout).unwrap().contains(expected));
    }
}

#[test]
fn logs_can_be_json() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(folder.path(), &["--log-format", "json"]);
    let mut child = command
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stderr.take().unwrap()),
        &mut line,
    )
    .unwrap();
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stdout.is_empty(), "a table between JSON lines");
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["message"], "listening");
    assert!(
        event["http"]
            .as_str()
            .unwrap()
            .parse::<std::net::SocketAddr>()
            .is_ok()
    );
}

/// The JSON log contains what the table shows to people.
#[test]
fn json_logs_name_what_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["a.onnx", "b.safetensors", "net.pt"] {
        fs::write(folder.path().join(file), "").unwrap();
    }
    let mut command = command(folder.path(), &["--log-format", "json"]);
    let mut child = command
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut warnings = Vec::new();
    for line in lines {
        let event: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if event["level"] == "WARN" {
            let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            warnings.push([text("message"), text("file"), text("advice")].join("; "));
        }
        if event["message"] == "loaded all models" {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(
        warnings,
        [
            "a file is not served; a.onnx; to serve it, move it to a/1/model.onnx",
            "a file is not served; b.safetensors; to serve it, move it to b/1/model.safetensors",
            "a file is not served; net.pt; a file of PyTorch: export the model to ONNX",
            "ready, with nothing to serve; ; ",
        ]
    );
}

/// `check` loads models as the server does, and opens no port; a single file is a model.
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

    // In turn: the file itself, the file in a location where it is not a model, and in the right location
    // next to a broken one.
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
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-forest/tests/fixtures");
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

/// Serves a model saved by `MLflow`, given by its directory.
#[test]
fn directories_of_mlflow_are_served_or_named() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-forest/tests/fixtures");
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
    assert!(text.contains("trees are used, as by Booster.predict"), "{text}");
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

/// Returns a NumPy array file with one FP32 element.
pub(crate) fn npy_file() -> Vec<u8> {
    let head = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
    let head = format!("{head:<117}\n");
    [
        b"\x93NUMPY\x01\x00\x76\x00",
        head.as_bytes(),
        &1.0f32.to_le_bytes(),
    ]
    .concat()
}

#[test]
fn help_has_headings_and_the_short_one_fits_a_screen() {
    let help = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for arguments in [&["--help"][..], &["check", "--help"]] {
        let long = help(arguments);
        let places = [
            "Models:",
            "Addresses:",
            "Limits:",
            "Access:",
            "Logs:",
            "Runtimes:",
            "Advanced:",
        ]
        .map(|heading| {
            long.find(&format!("\n{heading}\n"))
                .unwrap_or_else(|| panic!("{heading}: {long}"))
        });
        assert!(places.is_sorted(), "{places:?}");
    }
    let short = help(&["-h"]);
    assert!(short.lines().count() <= 60, "{}: {short}", short.lines().count());
    for expected in [
        "--port",
        "--auth",
        "--memory-budget",
        "check",
        "init",
        "Examples:",
    ] {
        assert!(short.contains(expected), "{expected}: {short}");
    }
    assert!(!short.contains("--access-log"), "{short}");
}

#[test]
fn serve_is_a_word_and_port_is_one_address_for_both() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("means.npy"), npy_file()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command
        .arg("serve")
        .arg(folder.path())
        .args(["--port", "0"])
        .env("OIP_MEMORY_BUGDET", "1Gi")
        .env("OIP_SERVER_SERVICE_HOST", "10.0.0.1")
        .env("OIP_MAX_REQUEST_SIZE", "8Mi")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    for line in stdout.lines() {
        let line = line.unwrap();
        printed += &format!("{line}\n");
        if line.contains("after") && line.contains(" ms") {
            break;
        }
    }
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    let port = |name: &str| {
        let line = printed
            .lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap();
        line.rsplit(':').next().unwrap().to_owned()
    };
    assert_eq!(port("HTTP"), port("gRPC"), "{printed}");
    assert!(printed.contains("127.0.0.1:"), "{printed}");
    let warning = "OIP_MEMORY_BUGDET in the environment is no option; did you mean OIP_MEMORY_BUDGET?";
    assert!(log.contains(warning) && !log.contains("SERVICE_HOST"), "{log}");
    let (code, line) = failing(&["--port", "0", "--address", "127.0.0.1:0", "."]);
    assert!(code == 2 && line.contains("leave one of them out"), "{line}");
}
