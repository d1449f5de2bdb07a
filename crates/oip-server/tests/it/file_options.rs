//! Tests of the configuration file, and of the settings that only exist there.

use std::{fs, process::Command};

use crate::{
    command_line::npy_file,
    support::{ConfigFile, Server, command, failing},
};

#[test]
fn the_configuration_file_is_checked_and_told_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.toml");
    for (text, message) in [
        (
            "http-address = \"127.0.0.1:0\"\nhttp-adress = 1",
            "line 2: unknown field `http-adress`; did you mean `http-address`?",
        ),
        (
            "instances = \"many\"",
            "line 1: invalid type: string \"many\", expected usize",
        ),
        ("\n\nqueue-size = ", "line 3: "),
    ] {
        fs::write(&path, text).unwrap();
        let (code, line) = failing(&["--config", path.to_str().unwrap()]);
        assert!(code == 2 && line.contains(message), "{line}");
    }
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    fs::create_dir(&models).unwrap();
    let config = folder.path().join("server.toml");
    // The file's addresses are unusable. The environment overrides the HTTP address, and the command line
    // overrides the gRPC address.
    fs::write(&config, format!("model-repository = {models:?}\nhttp-address = \"192.0.2.1:1\"\ngrpc-address = \"192.0.2.1:1\"\nlog = \"off\""))
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command
        .env("OIP_CONFIG", &config)
        .env("OIP_HTTP_ADDRESS", "127.0.0.1:0")
        .env("OIP_GRPC_ADDRESS", "192.0.2.1:2");
    let server = Server::spawn(command.args(["--grpc-address", "127.0.0.1:0"]));
    assert_eq!(server.get("/v2/health/live").status, 200);
}

/// Rare options exist only in the configuration file. If they are given elsewhere, the error shows the line
/// to write into that file.
#[test]
fn settings_of_the_configuration_file_alone_are_no_options() {
    let output = Command::new(env!("CARGO_BIN_EXE_oip-server"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let options = help
        .lines()
        .filter(|line| line.trim_start().starts_with("--"))
        .count();
    assert!((40..=60).contains(&options), "{options} options: {help}");
    let (_, of_file) = help.split_once("\nOnly in the configuration file").unwrap();
    for setting in [
        "capture = ",
        "otlp-endpoint = ",
        "in-place-time = ",
        "cpu-threads = ",
    ] {
        assert!(of_file.contains(setting), "{setting}: {of_file}");
    }
    for arguments in [
        &["models", "--capture=seen", "--capture-rate", "0.5"][..],
        &["check", "models", "--capture=seen", "--capture-rate", "0.5"],
    ] {
        let (code, line) = failing(arguments);
        let expected = "--capture, --capture-rate are set in the configuration file only: put these lines into a file that \
                        --config FILE names: `capture = \"seen\"`, `capture-rate = 0.5`";
        assert_eq!((code, &*line), (2, expected));
    }
    let folder = tempfile::tempdir().unwrap();
    let output = command(folder.path(), &[])
        .env("OIP_JSON_NONFINITE", "string")
        .output()
        .unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2)
            && line.starts_with("error: OIP_JSON_NONFINITE is set in the configuration file only")
            && line.ends_with("`json-nonfinite = \"string\"`\n"),
        "{line}"
    );
    let config = ConfigFile::new("capture-rat = 1");
    let (code, line) = failing(&[&config.option]);
    assert!(
        code == 2 && line.ends_with("unknown field `capture-rat`; did you mean `capture-rate`?"),
        "{line}"
    );
}

/// Checks settings without a command-line option: how numbers are written in JSON, how gRPC sends tensors,
/// the number of threads, and the time limit of runs on a transport's thread.
#[test]
fn the_configuration_file_sets_what_only_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = npy_file();
    let value = file.len() - 4;
    file[value..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(folder.path().join("means.npy"), file).unwrap();
    let config = ConfigFile::new(
        "json-nonfinite = \"string\"\ngrpc-output = \"typed\"\ncpu-threads = 1\nin-place-time = \"0s\"",
    );
    let mut server = Server::start(folder.path(), &[&config.option]);
    server.wait_until_loaded();
    let answer = server.request(
        "POST",
        "/v2/models/means/infer",
        &[("Content-Type", "application/json")],
        br#"{"inputs": []}"#,
    );
    assert_eq!(
        answer.json()["outputs"][0]["data"],
        serde_json::json!(["NaN"]),
        "{}",
        answer.json()
    );
}

/// The values that a loop accumulates in ONNX Runtime have a memory limit, because a request controls the
/// number of iterations.
#[cfg(feature = "onnx")]
#[test]
fn the_values_of_onnx_runtime_have_a_limit() {
    let Some(library) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) else {
        let note = b"skipped: the limit for ONNX Runtime, as ORT_DYLIB_PATH names no library\n";
        std::io::Write::write_all(&mut std::io::stderr(), note).unwrap();
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../backend-onnx/tests/fixtures/loop/loop_with_unnamed.onnx"
    );
    fs::copy(fixture, folder.path().join("loop.onnx")).unwrap();
    let config = ConfigFile::new(&format!(
        "onnxruntime = {library:?}\nonnxruntime-memory = \"64MiB\""
    ));
    let mut server = Server::start(folder.path(), &[&config.option]);
    server.wait_until_loaded();
    let ask = |count: u64| {
        let body = serde_json::json!({"inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
            {"name": "count", "datatype": "INT64", "shape": [], "data": [count]},
        ]});
        server.request("POST", "/v2/models/loop/infer", &[], body.to_string().as_bytes())
    };
    let answer = ask(1 << 40);
    assert_eq!(answer.status, 429, "{}", answer.json());
    assert!(
        answer.json()["error"]
            .as_str()
            .unwrap()
            .contains("not enough memory for a value")
    );
    assert_eq!(ask(4).status, 200);
}
