//! `dims` in a configuration file fix dimensions that an ONNX file leaves free.

use std::{fs, path::Path};

use serde_json::json;

use crate::support::Server;

/// Returns a model that accepts only a width of 100, which its file does not declare.
fn one_width() -> Vec<u8> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-onnx/tests/fixtures");
    fs::read(fixtures.join("reshape/one_width.onnx")).unwrap()
}

#[test]
fn dims_in_config_pbtxt_fix_free_sizes() {
    const ISOLATED: &str = "parameters { key: \"isolation\" value { string_value: \"process\" } }";
    let configs = [
        ("nothing", String::new()),
        (
            "all",
            "input { name: \"x\" data_type: TYPE_FP32 dims: [ 1, 3, 100 ] }".to_owned(),
        ),
        (
            "rows",
            "max_batch_size: 4 input [ { name: \"x\" dims: [ 3, 100 ] } ]".to_owned(),
        ),
        (
            "free_rows",
            "max_batch_size: 0 input { name: \"x\" dims: [ -1, 3, 100 ] }".to_owned(),
        ),
        (
            "one_row",
            "max_batch_size: 1 input { name: \"x\" dims: 3 dims: 100 }".to_owned(),
        ),
        (
            "isolated",
            format!("input {{ name: \"x\" dims: [ 3, 100 ] }} {ISOLATED}"),
        ),
        (
            "wrong",
            "max_batch_size: 4 input { name: \"x\" dims: [ 1, 3, 100 ] }".to_owned(),
        ),
    ];
    let repository = tempfile::tempdir().unwrap();
    for (name, config) in &configs {
        let folder = repository.path().join(name);
        fs::create_dir_all(folder.join("1")).unwrap();
        fs::write(folder.join("1/model.onnx"), one_width()).unwrap();
        fs::write(folder.join("config.pbtxt"), config).unwrap();
    }
    let mut server = Server::start(repository.path(), &[]);
    server.wait_until_loaded();
    let index = server.request("POST", "/v2/repository/index", &[], b"{}").json();
    let reason = |name: &str| {
        let models = index.as_array().unwrap().iter();
        let model = models.clone().find(|model| model["name"] == name).unwrap();
        model["reason"].as_str().unwrap_or_default().to_owned()
    };
    assert!(!reason("wrong").is_empty());
    let request = json!({"inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 3, 100], "data": vec![1.5; 300]},
    ]});
    for (name, shape) in [
        ("nothing", [-1, 3, -1]),
        ("all", [1, 3, 100]),
        ("rows", [-1, 3, 100]),
        ("free_rows", [-1, 3, 100]),
        ("one_row", [-1, 3, 100]),
        ("isolated", [-1, 3, 100]),
    ] {
        assert_eq!(reason(name), "", "{name}");
        let metadata = server.get(&format!("/v2/models/{name}")).json();
        assert_eq!(metadata["inputs"][0]["shape"], json!(shape), "{name}");
        let path = format!("/v2/models/{name}/infer");
        let answer = server.request("POST", &path, &[], request.to_string().as_bytes());
        assert_eq!(
            answer.status,
            200,
            "{name}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        assert_eq!(answer.json()["outputs"][0]["shape"], json!([1, 300]), "{name}");
    }
}
