//! Hugging Face Hub directories in the real program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use model_store::testing::{FakeServer, Objects};
use serde_json::json;

use crate::support::{Server, command};

/// The files of a sentence model: `one` is [3, 0], `two` is [0, 4], and special tokens are zeros.
const FILES: [&str; 5] = [
    "config.json",
    "modules.json",
    "tokenizer.json",
    "1_Pooling/config.json",
    "onnx/model.onnx",
];

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../oip-text/tests/fixtures/words")
        .join(file)
}

/// Returns a copy of the directory.
fn words(folder: &Path) -> PathBuf {
    let words = folder.join("words");
    for file in FILES {
        let target = words.join(file);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(fixture(file), target).unwrap();
    }
    words
}

/// Waits until the server's models are loaded.
fn started(mut server: Server) -> Server {
    server.wait_until_loaded();
    server
}

#[test]
fn a_directory_as_the_hub_has_it_embeds_texts() {
    let folder = tempfile::tempdir().unwrap();
    let server = started(Server::start(&words(folder.path()), &[]));
    let body =
        json!({"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["one two", "TWO"]}]});
    let answer = server.request("POST", "/v2/models/words/infer", &[], body.to_string().as_bytes());
    let outputs = answer.json()["outputs"].take();
    assert_eq!(outputs[0]["name"], "embedding", "{outputs}");
    let found: Vec<f64> = outputs[0]["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value.as_f64().unwrap())
        .collect();
    for (found, wanted) in found.iter().zip([0.6, 0.8, 0.0, 1.0]) {
        assert!((found - wanted).abs() < 1e-6, "{outputs}");
    }
    assert_eq!(outputs[1]["data"], json!([4, 3]));
    let answer = server.request("POST", "/embed", &[], br#"{"inputs": "two"}"#);
    assert_eq!(answer.json(), json!([[0.0, 1.0]]));
    let refused = server.request("POST", "/embed", &[], br#"{"inputs": 7}"#);
    assert_eq!(refused.status, 400);
    let metrics = String::from_utf8(server.get("/metrics").body).unwrap();
    assert!(metrics.contains(r#"route="/embed""#), "{metrics}");
}

#[test]
fn a_file_of_the_directory_that_is_named_is_the_model_with_its_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let words = words(folder.path());
    fs::copy(
        fixture("onnx/model.onnx"),
        words.join("onnx/model_quantized.onnx"),
    )
    .unwrap();
    fs::remove_file(words.join("onnx/model.onnx")).unwrap();
    for file in ["onnx/model_quantized.onnx", "model_quantized.onnx"] {
        if file.starts_with("model") {
            fs::rename(words.join("onnx").join(file), words.join(file)).unwrap();
        }
        let server = started(Server::start(&words.join(file), &[]));
        let answer = server.request("POST", "/embed", &[], br#"{"inputs": "two"}"#);
        assert_eq!(answer.json(), json!([[0.0, 1.0]]), "{file}");
    }
}

#[test]
fn a_worker_process_runs_a_text_model() {
    let folder = tempfile::tempdir().unwrap();
    let server = started(Server::start(&words(folder.path()), &["--isolate-models"]));
    let answer = server.request("POST", "/embed", &[], br#"{"inputs": ["one", "two"]}"#);
    assert_eq!(answer.json(), json!([[1.0, 0.0], [0.0, 1.0]]));
}

#[test]
fn a_configuration_that_names_onnx_gets_the_network_itself() {
    let folder = tempfile::tempdir().unwrap();
    let words = words(folder.path());
    fs::rename(words.join("onnx/model.onnx"), words.join("model.onnx")).unwrap();
    fs::write(words.join("config.pbtxt"), "backend: \"onnx\"").unwrap();
    let server = started(Server::start(&words, &[]));
    assert_eq!(
        server.get("/v2/models/words").json()["inputs"][0]["name"],
        "input_ids"
    );
}

#[test]
fn a_directory_of_the_hub_is_fetched_without_what_is_not_needed() {
    let objects = Objects::default();
    for file in FILES {
        objects.put(file, fs::read(fixture(file)).unwrap());
    }
    for other in ["pytorch_model.bin", "onnx/model_O4.onnx", "openvino/model.bin"] {
        objects.put(other, "weights");
    }
    let served = objects.clone();
    let hub = FakeServer::start(move |request| served.as_hub("owner/words", request));
    let cache = tempfile::tempdir().unwrap();
    let mut program = command(
        Path::new("hf://owner/words"),
        &["--repository-cache", cache.path().to_str().unwrap()],
    );
    let server = started(Server::spawn(program.env("HF_ENDPOINT", hub.url())));
    let answer = server.request("POST", "/embed", &[], br#"{"inputs": "two"}"#);
    assert_eq!(answer.json(), json!([[0.0, 1.0]]));
    let fetched = hub.take_requests();
    let is_fetched = |name: &str| {
        fetched
            .iter()
            .any(|request| request.contains(name) && request.contains("/resolve/"))
    };
    assert!(is_fetched("onnx/model.onnx"), "{fetched:?}");
    for other in ["pytorch_model", "model_O4", "openvino"] {
        assert!(!is_fetched(other), "{fetched:?}");
    }
}

#[test]
fn weights_without_a_network_are_told_what_they_are_and_how_to_export_them() {
    let folder = tempfile::tempdir().unwrap();
    let words = words(folder.path());
    fs::remove_file(words.join("onnx/model.onnx")).unwrap();
    fs::write(words.join("model.safetensors"), "weights").unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_oip-server"))
        .arg("check")
        .arg(&words)
        .env_clear()
        .output()
        .unwrap();
    let error = String::from_utf8(checked.stdout).unwrap();
    assert!(!checked.status.success(), "{error}");
    for part in ["BertModel", "optimum-cli export onnx"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}
