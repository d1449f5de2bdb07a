//! Tests that invalid and malicious files give errors, and take little more memory than their size.

use std::{io, ops::Range, sync::Arc};

use fmt_core::{ByteSource, ErrorKind, ReadOptions, TensorReader, testing::read_everything};
use fmt_onnx::OnnxReader;
use tensor_core::Bytes;

use crate::{Message, model, node, open, weight};

#[track_caller]
fn refused(kind: ErrorKind, model: Message) {
    let error = open(model).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
}

fn of_weight(weight: Message) -> Message {
    model(Message::default().message(5, weight))
}

#[test]
fn models_that_cannot_be() {
    refused(ErrorKind::BadMagic, Message::default());
    refused(ErrorKind::BadMagic, Message::default().number(1, 8));
    refused(
        ErrorKind::Malformed,
        model(Message::default()).message(7, Message::default()),
    );
    refused(ErrorKind::Malformed, Message(vec![0x3B]));
    refused(ErrorKind::Malformed, Message(vec![0x02, 0]));
    refused(ErrorKind::Malformed, Message(vec![0xFF; 11]));
    refused(ErrorKind::Truncated, Message(vec![0x3A, 200, 200, 200, 200, 1]));
    refused(ErrorKind::Malformed, model(Message::default().number(5, 1)));
    refused(ErrorKind::Malformed, model(Message::default().bytes(2, [0xFF])));
}

#[test]
fn weights_that_cannot_be() {
    refused(
        ErrorKind::SizeMismatch,
        of_weight(weight("w", 1, &[2]).bytes(9, [0; 7])),
    );
    refused(ErrorKind::SizeMismatch, of_weight(weight("w", 1, &[2])));
    refused(
        ErrorKind::SizeMismatch,
        of_weight(weight("w", 1, &[1 << 40]).bytes(9, [0; 4])),
    );
    refused(
        ErrorKind::Overflow,
        of_weight(weight("w", 1, &[1 << 40, 1 << 40]).bytes(9, [0; 4])),
    );
    refused(
        ErrorKind::Overflow,
        of_weight(weight("w", 1, &[u64::MAX, 3]).bytes(9, [0; 4])),
    );
    refused(
        ErrorKind::TooLarge,
        of_weight(weight("w", 1, &[1; 65]).bytes(9, [0; 4])),
    );
    refused(ErrorKind::Malformed, of_weight(weight("w", 1, &[1]).number(7, 1)));
    refused(
        ErrorKind::TooLarge,
        of_weight(weight(&"w".repeat(70_000), 1, &[1]).bytes(9, [0; 4])),
    );
    let twice = Message::default()
        .message(5, weight("w", 2, &[1]).bytes(9, [0]))
        .message(5, weight("w", 2, &[1]).bytes(9, [0]));
    refused(ErrorKind::Duplicate, model(twice));
    let place = Message::default().bytes(1, "offset").bytes(2, "-1");
    refused(
        ErrorKind::Malformed,
        of_weight(weight("w", 2, &[1]).number(14, 1).message(13, place)),
    );
    let place = Message::default()
        .bytes(1, "offset")
        .bytes(2, u64::MAX.to_string());
    refused(
        ErrorKind::SizeMismatch,
        of_weight(weight("w", 2, &[2]).number(14, 1).message(13, place)),
    );
}

#[test]
fn elements_that_do_not_fit() {
    for (weight, kind) in [
        (weight("w", 3, &[1]).number(5, 128), ErrorKind::Overflow),
        (
            weight("w", 3, &[1]).number(5, -129_i64 as u64),
            ErrorKind::Overflow,
        ),
        (
            weight("w", 5, &[1]).number(5, -65_536_i64 as u64),
            ErrorKind::Overflow,
        ),
        (weight("w", 2, &[1]).number(5, 256), ErrorKind::Overflow),
        (weight("w", 12, &[1]).number(11, 1 << 32), ErrorKind::Overflow),
        (
            weight("w", 7, &[1]).number(7, 1).number(7, 2),
            ErrorKind::SizeMismatch,
        ),
        (weight("w", 7, &[1 << 20]).number(7, 1), ErrorKind::SizeMismatch),
        (weight("w", 7, &[1 << 40]).number(7, 1), ErrorKind::TooLarge),
    ] {
        let reader = open(of_weight(weight)).unwrap();
        assert_eq!(reader.tensor(0).unwrap_err().kind(), kind);
    }
}

#[test]
fn graphs_inside_graphs() {
    let mut inner = Message::default();
    for _ in 0..40 {
        let branch = Message::default().message(6, inner);
        inner = Message::default().message(1, node("", "If").message(5, branch));
    }
    refused(ErrorKind::TooLarge, model(inner));
}

#[test]
fn limits_hold() {
    let mut options = ReadOptions::default();
    options.limits.index_bytes = 4096;
    let many = (0..100).fold(Message::default(), |graph, number| {
        graph.message(5, weight(&number.to_string(), 2, &[1]).bytes(9, [0]))
    });
    let source = Arc::new(Bytes::from(model(many).0));
    let error = OnnxReader::open(source.clone(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    let mut options = ReadOptions::default();
    options.limits.tensors = 99;
    assert_eq!(
        OnnxReader::open(source, &options).unwrap_err().kind(),
        ErrorKind::TooLarge
    );
}

/// Checks that opening skips data: it reads less than 64 KiB of a model of a terabyte.
#[test]
fn data_is_not_read() {
    struct Huge(Vec<u8>, std::sync::atomic::AtomicU64);
    impl ByteSource for Huge {
        fn len(&self) -> u64 {
            self.0.len() as u64 + (1 << 40)
        }
        fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
            self.1
                .fetch_add(range.end - range.start, std::sync::atomic::Ordering::Relaxed);
            Ok(range
                .map(|at| self.0.get(at as usize).copied().unwrap_or(0))
                .collect())
        }
    }
    let len = 1_u64 << 40;
    let head = weight("w", 2, &[len]).varint(9 << 3 | 2).varint(len).0;
    let graph = Message::default()
        .varint(5 << 3 | 2)
        .varint(head.len() as u64 + len)
        .0;
    let graph_len = graph.len() as u64 + head.len() as u64 + len;
    let file = Message::default()
        .number(1, 8)
        .varint(7 << 3 | 2)
        .varint(graph_len)
        .0;
    let source = Arc::new(Huge([file, graph, head].concat(), 0.into()));
    let reader = OnnxReader::open(Arc::clone(&source) as _, &ReadOptions::default()).unwrap();
    assert_eq!(reader.entries()[0].byte_len(), Some(len));
    assert!(source.1.load(std::sync::atomic::Ordering::Relaxed) < 64 << 10);
}

/// Checks that a model that is truncated, or in which a byte is changed, gives an error or is another valid
/// model.
#[test]
fn damaged_models() {
    let graph = Message::default()
        .message(1, node("", "Conv"))
        .message(5, weight("a", 1, &[2]).bytes(9, [0; 8]))
        .message(5, weight("b", 7, &[2]).number(7, 3).number(7, u64::MAX))
        .message(11, Message::default().bytes(1, "x"));
    let file = model(graph).0;
    let try_it = |file: Vec<u8>| {
        if let Ok(reader) = open(Message(file)) {
            read_everything(&reader);
        }
    };
    (0..file.len()).for_each(|len| try_it(file[..len].to_vec()));
    for at in 0..file.len() {
        for byte in 0..=255 {
            let mut damaged = file.clone();
            damaged[at] = byte;
            try_it(damaged);
        }
    }
}
