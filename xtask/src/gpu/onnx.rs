//! Writes ONNX files with only the features that the measured models need: nodes and weights of a graph,
//! encoded as protobuf.

/// A graph under construction.
pub(super) struct Graph {
    nodes: Vec<u8>,
    weights: Vec<u8>,
    ports: Vec<u8>,
    random: Random,
    count: usize,
}

/// An attribute of a node.
pub(super) enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
}

/// A dimension: a size, or a symbolic name if it is free.
#[derive(Clone, Copy)]
pub(super) enum Dim {
    Size(u64),
    Free(&'static str),
}

pub(super) const FLOAT: u64 = 1;
pub(super) const INT64: u64 = 7;

impl Graph {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            weights: Vec::new(),
            ports: Vec::new(),
            random: Random(0x9e37_79b9_7f4a_7c15),
            count: 0,
        }
    }

    /// Adds a node with one output, and returns its name.
    pub(super) fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute<'_>)]) -> String {
        self.count += 1;
        let output = format!("{}_{}", op.to_lowercase(), self.count);
        self.named(op, inputs, attributes, &output);
        output
    }

    /// Adds a node whose output has the given name.
    pub(super) fn named(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: &[(&str, Attribute<'_>)],
        output: &str,
    ) {
        let mut node = Vec::new();
        for input in inputs {
            bytes(&mut node, 1, input.as_bytes());
        }
        bytes(&mut node, 2, output.as_bytes());
        bytes(&mut node, 4, op.as_bytes());
        for (name, value) in attributes {
            let mut attribute = Vec::new();
            bytes(&mut attribute, 1, name.as_bytes());
            let kind = match value {
                Attribute::Float(value) => {
                    attribute.push(2 << 3 | 5);
                    attribute.extend(value.to_le_bytes());
                    1
                }
                Attribute::Int(value) => {
                    number(&mut attribute, 3, *value as u64);
                    2
                }
                Attribute::Ints(values) => {
                    for value in *values {
                        number(&mut attribute, 8, *value as u64);
                    }
                    7
                }
            };
            number(&mut attribute, 20, kind);
            bytes(&mut node, 5, &attribute);
        }
        bytes(&mut self.nodes, 1, &node);
    }

    /// Adds a tensor of random weights with the given standard deviation.
    pub(super) fn weights(&mut self, shape: &[u64], deviation: f32) -> String {
        let count: u64 = shape.iter().product();
        let mut raw = Vec::with_capacity(count as usize * 4);
        for _ in 0..count {
            raw.extend((self.random.normal() * deviation).to_le_bytes());
        }
        self.tensor(shape, FLOAT, &raw)
    }

    /// Adds a constant vector of integers.
    pub(super) fn integers(&mut self, values: &[i64]) -> String {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(&[values.len() as u64], INT64, &raw)
    }

    /// Adds a scalar constant.
    pub(super) fn float(&mut self, value: f32) -> String {
        self.tensor(&[], FLOAT, &value.to_le_bytes())
    }

    /// Adds a constant in which every element is `value`.
    pub(super) fn filled(&mut self, shape: &[u64], value: f32) -> String {
        let count: u64 = shape.iter().product();
        self.tensor(shape, FLOAT, &value.to_le_bytes().repeat(count as usize))
    }

    fn tensor(&mut self, shape: &[u64], datatype: u64, raw: &[u8]) -> String {
        self.count += 1;
        let name = format!("w_{}", self.count);
        let mut tensor = Vec::with_capacity(raw.len() + 64);
        for dim in shape {
            number(&mut tensor, 1, *dim);
        }
        number(&mut tensor, 2, datatype);
        bytes(&mut tensor, 8, name.as_bytes());
        bytes(&mut tensor, 9, raw);
        bytes(&mut self.weights, 5, &tensor);
        name
    }

    pub(super) fn input(&mut self, name: &str, datatype: u64, dims: &[Dim]) {
        self.port(11, name, datatype, dims);
    }

    pub(super) fn output(&mut self, name: &str, datatype: u64, dims: &[Dim]) {
        self.port(12, name, datatype, dims);
    }

    fn port(&mut self, field: u64, name: &str, datatype: u64, dims: &[Dim]) {
        let mut shape = Vec::new();
        for dim in dims {
            let mut written = Vec::new();
            match dim {
                Dim::Size(size) => number(&mut written, 1, *size),
                Dim::Free(name) => bytes(&mut written, 2, name.as_bytes()),
            }
            bytes(&mut shape, 1, &written);
        }
        let mut tensor = Vec::new();
        number(&mut tensor, 1, datatype);
        bytes(&mut tensor, 2, &shape);
        let mut kind = Vec::new();
        bytes(&mut kind, 1, &tensor);
        let mut port = Vec::new();
        bytes(&mut port, 1, name.as_bytes());
        bytes(&mut port, 2, &kind);
        bytes(&mut self.ports, field, &port);
    }

    /// Encodes the graph as an ONNX file.
    pub(super) fn into_file(self) -> Vec<u8> {
        let mut graph = self.nodes;
        bytes(&mut graph, 2, b"graph");
        graph.extend(self.weights);
        graph.extend(self.ports);
        let mut opset = Vec::new();
        number(&mut opset, 2, 17);
        let mut model = Vec::with_capacity(graph.len() + 64);
        number(&mut model, 1, 8);
        bytes(&mut model, 7, &graph);
        bytes(&mut model, 8, &opset);
        model
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

/// A pseudorandom number generator with a fixed seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns an approximately normally distributed number: the sum of four uniform ones.
    pub(super) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: i32 = (0..4)
            .map(|part| (bits >> (16 * part)) as u16 as i32 - 32768)
            .sum();
        // Each uniform number has a standard deviation of 2^16 / sqrt(12).
        sum as f32 / (65536.0 * 2.0 / 12f32.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_weights_have_their_deviation() {
        let mut random = Random(1);
        let numbers: Vec<f32> = (0..100_000).map(|_| random.normal()).collect();
        let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
        let variance = numbers.iter().map(|number| number * number).sum::<f32>() / numbers.len() as f32;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
    }

    #[test]
    fn numbers_are_written_as_protocol_buffers_have_them() {
        let mut out = Vec::new();
        number(&mut out, 20, 300);
        bytes(&mut out, 1, b"ab");
        assert_eq!(out, [0xa0, 0x01, 0xac, 0x02, 0x0a, 2, b'a', b'b']);
    }
}
