//! A model with external weights beyond 2 GiB, which an ONNX file cannot contain itself.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use serde_json::json;

use crate::support::Server;

/// Offset of the weights; the file has a hole before them.
const OFFSET: u64 = (2 << 30) + 4096;

/// Encodes a length-delimited protobuf field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    match length {
        0..128 => [&[number << 3 | 2, length], content].concat(),
        _ => [&[number << 3 | 2, length & 0x7f | 0x80, length >> 7], content].concat(),
    }
}

/// Encodes a field with a small number.
fn number(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

/// Encodes an input or output of two FP32 numbers.
fn port(name: &str) -> Vec<u8> {
    let shape = field(1, &number(1, 2));
    let tensor = [number(1, 1), field(2, &shape)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

/// Encodes a model that adds the weights to its input.
fn model() -> Vec<u8> {
    let entry = |key: &str, value: &str| {
        let entry = [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
        field(13, &entry)
    };
    let weights = [
        number(1, 2),
        number(2, 1),
        field(8, b"w"),
        entry("location", "model.onnx.data"),
        entry("offset", &OFFSET.to_string()),
        entry("length", "8"),
        number(14, 1),
    ]
    .concat();
    let node = [field(1, b"x"), field(1, b"w"), field(2, b"y"), field(4, b"Add")].concat();
    let graph = [
        field(1, &node),
        field(2, b"g"),
        field(5, &weights),
        field(11, &port("x")),
        field(12, &port("y")),
    ]
    .concat();
    [number(1, 8), field(7, &graph), field(8, &number(2, 17))].concat()
}

#[test]
fn weights_are_found_beyond_two_gibibytes() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("far/1");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("model.onnx"), model()).unwrap();
    let config = "parameters { key: \"mapped\" value { string_value: \"true\" } }";
    fs::write(root.path().join("far/config.pbtxt"), config).unwrap();
    let data = File::create(folder.join("model.onnx.data")).unwrap();
    let weights = [10.0f32, 20.0].map(f32::to_le_bytes).concat();
    data.write_all_at(&weights, OFFSET).unwrap();

    let mut server = Server::start(root.path(), &["--allow-mapped-models"]);
    server.wait_until_loaded();
    let input = json!({"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]});
    let body = json!({ "inputs": [input] }).to_string();
    let answer = server.request("POST", "/v2/models/far/infer", &[], body.as_bytes());
    assert_eq!(answer.json()["outputs"][0]["data"], json!([11.0, 22.0]));
}

#[test]
fn a_file_that_ends_before_its_weights_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("far/1");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("model.onnx"), model()).unwrap();
    let data = File::create(folder.join("model.onnx.data")).unwrap();
    data.set_len(4096).unwrap();

    let mut server = Server::start(root.path(), &[]);
    let printed = server.wait_until_loaded();
    let reason = format!("'w' has its external data at {OFFSET} of 'model.onnx.data', 8 bytes long");
    assert!(printed.contains(&reason), "{printed}");
}
