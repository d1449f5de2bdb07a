//! Hugging Face Hub directories in the real program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use model_store::testing::{FakeServer, Objects};
use serde_json::json;

use crate::support::{Server, command};

/// The files of a sentence model. The vector of `one` is [3, 0], that of `two` is [0, 4], and those of
/// special tokens are zeros.
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

/// Copies the files of the sentence model to the directory `words` in `folder`; returns its path.
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

/// Checks that requests are batched although the second texts are an optional input.
#[test]
fn requests_are_joined_by_default_and_up_to_a_configured_size() {
    let folder = tempfile::tempdir().unwrap();
    let words = words(folder.path());
    fs::rename(words.join("onnx/model.onnx"), words.join("model.onnx")).unwrap();
    let joined = |server: &Server| {
        let config = server.get("/v2/models/words/config").json();
        (
            config["max_batch_size"].clone(),
            config["parameters"]["batched"]["string_value"].clone(),
        )
    };
    let three = br#"{"inputs": ["one", "two", "one"]}"#;
    let server = started(Server::start(&words, &[]));
    assert_eq!(joined(&server), (json!(32), json!("proven")));
    assert_eq!(server.request("POST", "/embed", &[], three).status, 200);
    drop(server);
    fs::write(words.join("config.pbtxt"), "max_batch_size: 2").unwrap();
    let server = started(Server::start(&words, &[]));
    assert_eq!(joined(&server), (json!(2), json!("declared")));
    let answer = server.request("POST", "/embed", &[], br#"{"inputs": ["one", "two"]}"#);
    assert_eq!(answer.json(), json!([[1.0, 0.0], [0.0, 1.0]]));
    assert_eq!(server.request("POST", "/embed", &[], three).status, 400);
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

/// A file of a text model's directory on the Hub is a text model, as the same local path is.
#[test]
fn a_file_of_the_hub_is_fetched_with_the_files_that_describe_it() {
    let objects = Objects::default();
    for file in FILES {
        objects.put(&format!("words/{file}"), fs::read(fixture(file)).unwrap());
        objects.put(file, fs::read(fixture(file)).unwrap());
    }
    for network in [
        "onnx/model_quantized.onnx",
        "words/small.onnx",
        "alone/network.onnx",
    ] {
        objects.put(network, fs::read(fixture("onnx/model.onnx")).unwrap());
    }
    for other in [
        "pytorch_model.bin",
        "onnx/model_O4.onnx",
        "words/model.safetensors",
    ] {
        objects.put(other, "weights");
    }
    let served = objects.clone();
    let hub = FakeServer::start(move |request| served.as_hub("owner/repo", request));
    for (file, name, input) in [
        ("onnx/model_quantized.onnx", "repo", "text"),
        ("words/onnx/model.onnx", "words", "text"),
        ("words/small.onnx", "small", "text"),
        ("alone/network.onnx", "network", "input_ids"),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let mut program = command(
            Path::new(&format!("hf://owner/repo/{file}")),
            &["--repository-cache", cache.path().to_str().unwrap()],
        );
        let server = started(Server::spawn(program.env("HF_ENDPOINT", hub.url())));
        let metadata = server.get(&format!("/v2/models/{name}")).json();
        assert_eq!(metadata["inputs"][0]["name"], input, "{file}: {metadata}");
        if input == "text" {
            let answer = server.request("POST", "/embed", &[], br#"{"inputs": "two"}"#);
            assert_eq!(answer.json(), json!([[0.0, 1.0]]), "{file}");
        }
        let fetched = hub.take_requests();
        let is_fetched = |name: &str| {
            fetched
                .iter()
                .any(|request| request.contains(name) && request.contains("/resolve/"))
        };
        assert!(is_fetched(file), "{fetched:?}");
        for other in ["pytorch_model", "model_O4", "safetensors"] {
            assert!(!is_fetched(other), "{file}: {fetched:?}");
        }
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
    for part in [
        "BertModel",
        "download.pytorch.org/whl/cpu && optimum-cli export onnx --model DIRECTORY --task feature-extraction OUTPUT",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_damaged_description_is_named_with_its_fault() {
    let folder = tempfile::tempdir().unwrap();
    let words = words(folder.path());
    fs::write(words.join("config.json"), "{\"model_type\": \"bert\",").unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_oip-server"))
        .arg("check")
        .arg(&words)
        .env_clear()
        .output()
        .unwrap();
    let error = String::from_utf8(checked.stdout).unwrap();
    assert!(!checked.status.success(), "{error}");
    assert!(
        error.contains("config.json: ") && error.contains("EOF while parsing"),
        "{error}"
    );
    assert!(!error.contains("has no model.onnx"), "{error}");
}

/// A pipeline combines the steps of a text model, served as separate models, with its network.
#[test]
fn a_pipeline_names_the_steps_of_a_text_model() {
    let folder = tempfile::tempdir().unwrap();
    let place = |path: &str, content: &[u8]| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let copy = |from: &str, to: &str| place(to, &fs::read(fixture(from)).unwrap());
    copy("onnx/model.onnx", "network/1/model.onnx");
    copy("config.json", "tokens/1/config.json");
    for (model, step, from, file) in [
        ("tokens", "tokenize", "tokenizer.json", "tokenizer.json"),
        ("pooled", "pool", "1_Pooling/config.json", "config.json"),
        ("unit", "normalize", "modules.json", "modules.json"),
    ] {
        copy(from, &format!("{model}/1/{file}"));
        let config = format!(
            r#"backend: "text-step" default_model_filename: "{file}" parameters {{ key: "step" value {{ string_value: "{step}" }} }}"#
        );
        place(&format!("{model}/config.pbtxt"), config.as_bytes());
    }
    place(
        "sentence/config.pbtxt",
        br#"platform: "ensemble"
        input [ { name: "text" data_type: TYPE_STRING dims: [ -1 ] } ]
        output [ { name: "embedding" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
        ensemble_scheduling { step [
          { model_name: "tokens" input_map { key: "text" value: "text" }
            output_map { key: "input_ids" value: "ids" } output_map { key: "attention_mask" value: "mask" } },
          { model_name: "network" input_map { key: "input_ids" value: "ids" } input_map { key: "attention_mask" value: "mask" }
            output_map { key: "last_hidden_state" value: "hidden" } },
          { model_name: "pooled" input_map { key: "token_embeddings" value: "hidden" }
            input_map { key: "attention_mask" value: "mask" } output_map { key: "embedding" value: "mean" } },
          { model_name: "unit" input_map { key: "embedding" value: "mean" } output_map { key: "embedding" value: "embedding" } }
        ] }"#,
    );
    let server = started(Server::start(folder.path(), &[]));
    let answer = server.request(
        "POST",
        "/embed",
        &[],
        br#"{"model": "sentence", "inputs": ["one two", "TWO", "one"], "normalize": false}"#,
    );
    let found = answer.json();
    for (row, wanted) in [[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]].iter().enumerate() {
        for (at, wanted) in wanted.iter().enumerate() {
            let value = found[row][at].as_f64().unwrap_or_else(|| panic!("{found}"));
            assert!((value - wanted).abs() < 1e-6, "{found}");
        }
    }
    let body =
        json!({"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["one two", "two"]}]});
    let answer = server.request(
        "POST",
        "/v2/models/tokens/infer",
        &[],
        body.to_string().as_bytes(),
    );
    let outputs = answer.json()["outputs"].take();
    assert_eq!(outputs[0]["shape"], json!([2, 4]), "{outputs}");
    assert_eq!(outputs[1]["data"], json!([1, 1, 1, 1, 1, 1, 1, 0]), "{outputs}");
}

#[test]
fn a_step_without_its_file_or_name_says_what_its_configuration_lacks() {
    let folder = tempfile::tempdir().unwrap();
    for (model, config) in [
        ("no_file", r#"backend: "text-step""#),
        (
            "no_step",
            r#"backend: "text-step" default_model_filename: "modules.json""#,
        ),
    ] {
        fs::create_dir_all(folder.path().join(model).join("1")).unwrap();
        fs::copy(
            fixture("modules.json"),
            folder.path().join(model).join("1/modules.json"),
        )
        .unwrap();
        fs::write(folder.path().join(model).join("config.pbtxt"), config).unwrap();
    }
    let checked = Command::new(env!("CARGO_BIN_EXE_oip-server"))
        .arg("check")
        .arg(folder.path())
        .env_clear()
        .output()
        .unwrap();
    let error = String::from_utf8(checked.stdout).unwrap();
    for part in [
        "file that its configuration names as default_model_filename",
        "parameter 'step' of its configuration: expected tokenize, pool, normalize or labels, found nothing",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn identities_may_use_text_routes_for_their_models_only() {
    let folder = tempfile::tempdir().unwrap();
    let words = words(folder.path());
    let table = folder.path().join("auth.toml");
    fs::write(
        &table,
        // The digests of "s3cret", "0ther" and "w4tch".
        r#"
        [identities.reader]
        token-sha256 = ["1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0"]
        apis = ["inference", "metadata"]
        models = ["words"]
        [identities.other]
        token-sha256 = ["0ebe673674d0374cdfce506500e3426c9d005e5f69e0602d71213817794842b2"]
        apis = ["inference", "metadata"]
        models = ["numbers"]
        [identities.watcher]
        token-sha256 = ["477b4aafbd15a1c46e256d33a3c10b12d385519afe5332d745274c3cba0b05cb"]
        apis = ["metadata"]
        "#,
    )
    .unwrap();
    let server = started(Server::start(&words, &["--auth", table.to_str().unwrap()]));
    let texts: [(&str, &[u8]); 5] = [
        ("/v1/embeddings", br#"{"model": "words", "input": "two"}"#),
        ("/embed", br#"{"model": "words", "inputs": "two"}"#),
        (
            "/rerank",
            br#"{"model": "words", "query": "one", "texts": ["two"]}"#,
        ),
        ("/predict", br#"{"model": "words", "inputs": "two"}"#),
        (
            "/v1/rerank",
            br#"{"model": "words", "query": "one", "documents": ["two"]}"#,
        ),
    ];
    for (path, body) in texts {
        let asked = |token: Option<&str>| {
            let bearer = token.map(|token| format!("Bearer {token}"));
            let headers: Vec<(&str, &str)> =
                bearer.iter().map(|bearer| ("authorization", &**bearer)).collect();
            server.request("POST", path, &headers, body).status
        };
        // The model is an embedding model; ranking and classification need other models.
        let known = if path.contains("embed") { 200 } else { 400 };
        assert_eq!(asked(Some("s3cret")), known, "{path}");
        assert_eq!(asked(None), 401, "{path}");
        assert_eq!(asked(Some("wrong")), 401, "{path}");
        assert_eq!(asked(Some("0ther")), 403, "{path}");
        assert_eq!(asked(Some("w4tch")), 403, "{path}");
    }
    // OpenAI's clients read the message of an object.
    let refused = server.request(
        "POST",
        "/v1/embeddings",
        &[],
        br#"{"model": "words", "input": "two"}"#,
    );
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    // A request without a model name calls the only model that the identity may use. If there is none, the
    // request fails.
    let unnamed = |token: &str| {
        let bearer = format!("Bearer {token}");
        server.request(
            "POST",
            "/embed",
            &[("authorization", &bearer)],
            br#"{"inputs": "two"}"#,
        )
    };
    assert_eq!(unnamed("s3cret").json(), json!([[0.0, 1.0]]));
    assert_eq!(unnamed("0ther").status, 404);
    let listed = |token: &str| {
        let bearer = format!("Bearer {token}");
        let listed = server.request("GET", "/v1/models", &[("authorization", &bearer)], b"");
        listed.json()["data"].as_array().map(Vec::len)
    };
    assert_eq!((listed("s3cret"), listed("0ther")), (Some(1), Some(0)));
}
