//! Tests of reading valid models.

use std::sync::Arc;

use fmt_core::{ByteSource, Error, ErrorKind, ReadOptions, TensorReader, testing::read_everything};
use fmt_onnx::OnnxReader;
use tensor_core::Bytes;

use crate::{Message, model, node, open, weight};

#[test]
fn weights_in_all_the_ways_that_they_are_written() {
    let floats: Vec<u8> = [1.0_f32, -2.0]
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    let graph = Message::default()
        .message(5, weight("raw", 1, &[2]).bytes(9, &floats))
        .message(5, weight("packed", 1, &[2]).bytes(4, &floats))
        .message(5, weight("single", 1, &[2]).float(4, 1.0).float(4, -2.0))
        .message(
            5,
            weight("two rows", 1, &[2])
                .bytes(4, &floats[..4])
                .bytes(4, &floats[4..]),
        )
        .message(5, weight("i64", 7, &[2]).number(7, 3).number(7, u64::MAX))
        .message(
            5,
            weight("i8", 3, &[2]).bytes(5, Message::default().varint(127).varint(-128_i64 as u64).0),
        )
        .message(5, weight("half", 10, &[1]).number(5, 0x3C00))
        .message(5, weight("bool", 9, &[2]).number(5, 1).number(5, 0))
        .message(5, weight("u32", 12, &[]).number(11, u32::MAX.into()))
        .message(5, weight("empty", 1, &[0, 4]))
        .message(5, weight("e4m3", 17, &[3]).bytes(9, [1, 2, 3]))
        .message(5, weight("text", 8, &[1]).bytes(6, "a"));
    let reader = open(model(graph)).unwrap();
    read_everything(&reader);
    for name in ["raw", "packed", "single", "two rows"] {
        assert_eq!(
            reader.tensor(reader.find(name).unwrap()).unwrap().bytes(),
            &floats,
            "{name}"
        );
    }
    for (name, bytes) in [
        ("i64", [3_i64.to_le_bytes(), (-1_i64).to_le_bytes()].concat()),
        ("i8", vec![127, 128]),
        ("half", vec![0, 0x3C]),
        ("bool", vec![1, 0]),
        ("u32", vec![255; 4]),
        ("empty", vec![]),
    ] {
        let index = reader.find(name).unwrap();
        let tensor = reader.tensor(index).unwrap();
        assert_eq!(tensor.bytes(), &bytes, "{name}");
        let mut into = vec![0; bytes.len()];
        reader.read_into(index, &mut into).unwrap();
        assert_eq!(into, bytes);
        reader.verify(index).unwrap();
    }
    let rows = reader.rows(reader.find("i64").unwrap(), 1..2).unwrap();
    assert_eq!(rows.bytes(), &(-1_i64).to_le_bytes()[..]);
    let mut piece = [0; 16];
    let opaque = reader.find("e4m3").unwrap();
    assert_eq!(reader.stream(opaque).unwrap().read(&mut piece).unwrap(), 3);
    let text = reader.tensor(reader.find("text").unwrap()).unwrap_err();
    assert_eq!(text.kind(), ErrorKind::Unsupported);
}

#[test]
fn what_a_model_says_of_itself() {
    let dim = |dim: Message| Message::default().message(1, dim);
    let shape = dim(Message::default().bytes(2, "batch")).message(1, Message::default().number(1, 3));
    let kind = Message::default().message(1, Message::default().number(1, 1).message(2, shape));
    let port = |name: &str, kind: &Message| Message::default().bytes(1, name).message(2, kind.clone());
    let sequence = Message::default().message(4, Message::default());
    let inner = Message::default().message(1, node("", "Relu"));
    let branch = Message::default().bytes(1, "then_branch").message(6, inner);
    let graph = Message::default()
        .message(1, node("", "Conv"))
        .message(1, node("ai.onnx", "Conv"))
        .message(1, node("local", "block"))
        .message(1, node("", "If").message(5, branch))
        .bytes(2, "main")
        .message(5, weight("w", 2, &[1]).bytes(9, [7]))
        .message(11, port("x", &kind))
        .message(11, port("w", &kind))
        .message(12, port("y", &sequence));
    let property = Message::default().bytes(1, "author").bytes(2, "me");
    let function = Message::default()
        .bytes(1, "block")
        .bytes(10, "local")
        .message(7, node("", "Relu"));
    let model = model(graph).message(14, property).message(25, function);
    let reader = open(model).unwrap();
    let summary = reader.summary();
    assert_eq!(
        (summary.ir_version, &*summary.producer, &*summary.graph),
        (8, "pytorch 2.9", "main")
    );
    let metadata = reader.metadata();
    for (key, text) in [
        ("onnx.inputs", "x: f32[batch, 3]"),
        ("onnx.outputs", "y: a sequence"),
        ("onnx.operators", "Conv 2, If 1, Relu 2"),
        ("onnx.opsets", "ai.onnx 17"),
        ("onnx.property.author", "me"),
    ] {
        assert_eq!(metadata[key], text);
    }
    assert!(metadata["onnx.runs_on_oip_server"].starts_with("all operators"));
}

#[test]
fn weights_in_other_files() {
    let place = |key: &str, text: &str| Message::default().bytes(1, key).bytes(2, text);
    let elsewhere = |name: &str, file: &str, offset: &str, length: Option<&str>| {
        let weight = weight(name, 2, &[3]).number(14, 1);
        let weight = weight
            .message(13, place("location", file))
            .message(13, place("offset", offset));
        length.into_iter().fold(weight, |weight, length| {
            weight.message(13, place("length", length))
        })
    };
    let graph = Message::default()
        .message(5, elsewhere("a", "data", "2", Some("3")))
        .message(5, elsewhere("b", "data", "0", None))
        .message(5, elsewhere("beyond", "data", "4", Some("3")))
        .message(5, elsewhere("gone", "other", "0", Some("3")));
    let source: Arc<dyn ByteSource> = Arc::new(Bytes::from(model(graph).0));
    let data: Arc<dyn ByteSource> = Arc::new(Bytes::from_static(b"012345"));
    let beside = |name: &str| match name {
        "data" => Ok(Arc::clone(&data)),
        _ => Err(Error::new(ErrorKind::Io, "no such file")),
    };
    let reader = OnnxReader::open_with(Arc::clone(&source), &ReadOptions::default(), &beside).unwrap();
    assert_eq!(reader.tensor(0).unwrap().bytes(), "234");
    assert_eq!(reader.tensor(1).unwrap().bytes(), "012");
    for (index, words) in [(2, "6 bytes only"), (3, "no such file")] {
        let error = reader.tensor(index).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(words), "{error}");
        assert!(reader.stream(index).is_err());
    }
    let alone = OnnxReader::open(source, &ReadOptions::default()).unwrap();
    assert!(alone.entries().iter().all(|entry| entry.unsupported.is_some()));
}
