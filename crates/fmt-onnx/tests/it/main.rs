//! Tests with models like those that exporters write, and with invalid ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod reading;

use std::sync::Arc;

use fmt_core::{Error, ReadOptions};
use fmt_onnx::OnnxReader;
use tensor_core::Bytes;

/// A builder for a protobuf message.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, mut number: u64) -> Self {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    fn number(self, field: u64, number: u64) -> Self {
        self.varint(field << 3).varint(number)
    }

    fn bytes(self, field: u64, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let mut message = self.varint(field << 3 | 2).varint(bytes.len() as u64);
        message.0.extend_from_slice(bytes);
        message
    }

    fn message(self, field: u64, message: Self) -> Self {
        self.bytes(field, message.0)
    }

    fn float(self, field: u64, number: f32) -> Self {
        let mut message = self.varint(field << 3 | 5);
        message.0.extend(number.to_le_bytes());
        message
    }
}

/// Builds a weight without data.
fn weight(name: &str, dtype: u64, dims: &[u64]) -> Message {
    let weight = Message::default().bytes(8, name).number(2, dtype);
    dims.iter().fold(weight, |weight, dim| weight.number(1, *dim))
}

/// Builds a node with an operator.
fn node(domain: &str, name: &str) -> Message {
    Message::default().bytes(4, name).bytes(7, domain)
}

/// Builds a model with a graph.
fn model(graph: Message) -> Message {
    let opset = Message::default().number(2, 17);
    Message::default()
        .number(1, 8)
        .bytes(2, "pytorch")
        .bytes(3, "2.9")
        .message(8, opset)
        .message(7, graph)
}

fn open(model: Message) -> Result<OnnxReader, Error> {
    OnnxReader::open(Arc::new(Bytes::from(model.0)), &ReadOptions::default())
}
