//! The option for the library of ONNX Runtime: wrong, foreign and old libraries.

use std::{fs, path::Path, process::Command};

use crate::support::{command, failing};

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
        // The log is off, because it would also contain the error caught from the faulty library.
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
