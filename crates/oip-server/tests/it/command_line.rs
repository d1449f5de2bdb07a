//! Startup errors are one line, with an exit code.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
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
            "invalid value 'shop' for '--port <PORT>': expected an integer (--help",
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
        (1, "the directory /nowhere does not exist".to_owned())
    );
    let file = format!("{folder}/file");
    fs::write(&file, "text").unwrap();
    let (code, line) = failing(&["--model-repository", &file]);
    let expected =
        format!("{file} is neither a directory nor, by its extension, a model's file: expected one of .");
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
                && line.ends_with(&format!("({option} sets another address)")),
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
            code == 1 && line.ends_with(&format!("({option} sets another address)")),
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
        "error: invalid value 'abc' for OIP_PORT in the environment: expected an integer (--help shows all \
         options)\n"
    );
    assert_eq!(
        line(&["--port=0"]),
        "error: invalid value 'html' for OIP_LOG_FORMAT in the environment; [possible values: text, json] (--help shows all \
         options)\n"
    );
    assert!(line(&["--port", "80x"]).contains("'80x' for '--port <PORT>': expected an integer"));
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

/// Checks that the JSON log names the files that are not served, which the text output shows below the table.
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
    let warning = "OIP_MEMORY_BUGDET in the environment is not an option; did you mean OIP_MEMORY_BUDGET?";
    assert!(log.contains(warning) && !log.contains("SERVICE_HOST"), "{log}");
    let (code, line) = failing(&["--port", "0", "--address", "127.0.0.1:0", "."]);
    assert!(code == 2 && line.contains("use one of them"), "{line}");
}
