//! The measured models: the architectures of ResNet-50 and BERT-base with random weights, and a model that
//! allocates a requested amount of memory.

use super::onnx::{Attribute, Dim, FLOAT, Graph, INT64};

/// Builds ResNet-50: images `x` of [batch, 3, 224, 224] to scores `y` of [batch, 1000]. Batch normalization
/// is folded into the convolutions, as ONNX Runtime and the built-in runtime would do.
pub(super) fn resnet50() -> Vec<u8> {
    let mut graph = Graph::new();
    let batch = Dim::Free("batch");
    let sizes = [3, 224, 224].map(Dim::Size);
    graph.input("x", FLOAT, &[batch, sizes[0], sizes[1], sizes[2]]);
    let stem = conv(&mut graph, "x", (3, 64), 7, 2, 1.0);
    let stem = graph.node("Relu", &[&stem], &[]);
    let mut value = graph.node(
        "MaxPool",
        &[&stem],
        &[
            ("kernel_shape", Attribute::Ints(&[3, 3])),
            ("strides", Attribute::Ints(&[2, 2])),
            ("pads", Attribute::Ints(&[1, 1, 1, 1])),
        ],
    );
    let mut channels = 64;
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let width = 64 << stage;
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            value = bottleneck(&mut graph, &value, channels, width, stride);
            channels = 4 * width;
        }
    }
    let pooled = graph.node("GlobalAveragePool", &[&value], &[]);
    let flat = graph.node("Flatten", &[&pooled], &[]);
    let weights = graph.weights(&[2048, 1000], 0.02);
    let bias = graph.weights(&[1000], 0.1);
    graph.named("Gemm", &[&flat, &weights, &bias], &[], "y");
    graph.output("y", FLOAT, &[batch, Dim::Size(1000)]);
    graph.into_file()
}

fn bottleneck(graph: &mut Graph, input: &str, channels: u64, width: u64, stride: i64) -> String {
    let narrow = conv(graph, input, (channels, width), 1, 1, 1.0);
    let narrow = graph.node("Relu", &[&narrow], &[]);
    let middle = conv(graph, &narrow, (width, width), 3, stride, 1.0);
    let middle = graph.node("Relu", &[&middle], &[]);
    // The scale is small, so that activations do not grow over the 16 residual blocks.
    let wide = conv(graph, &middle, (width, 4 * width), 1, 1, 0.3);
    let beside = match channels == 4 * width && stride == 1 {
        true => input.to_owned(),
        false => conv(graph, input, (channels, 4 * width), 1, stride, 0.7),
    };
    let sum = graph.node("Add", &[&wide, &beside], &[]);
    graph.node("Relu", &[&sum], &[])
}

fn conv(
    graph: &mut Graph,
    input: &str,
    (from, to): (u64, u64),
    size: u64,
    stride: i64,
    scale: f32,
) -> String {
    let deviation = scale * (2.0 / (from * size * size) as f32).sqrt();
    let weights = graph.weights(&[to, from, size, size], deviation);
    let bias = graph.weights(&[to], 0.05);
    let pad = (size / 2) as i64;
    graph.node(
        "Conv",
        &[input, &weights, &bias],
        &[
            ("strides", Attribute::Ints(&[stride, stride])),
            ("pads", Attribute::Ints(&[pad, pad, pad, pad])),
        ],
    )
}

const WIDTH: u64 = 768;
const LAYERS: usize = 12;
const WORDS: u64 = 30_522;
const POSITIONS: u64 = 512;

/// Builds BERT-base: tokens `x` of [batch, sequence] to vectors `y` of [batch, sequence, 768].
pub(super) fn bert_base() -> Vec<u8> {
    let mut graph = Graph::new();
    let (batch, sequence) = (Dim::Free("batch"), Dim::Free("sequence"));
    graph.input("x", INT64, &[batch, sequence]);
    let words = graph.weights(&[WORDS, WIDTH], 0.02);
    let words = graph.node("Gather", &[&words, "x"], &[]);
    let shape = graph.node("Shape", &["x"], &[]);
    let (one, two, zero) = (graph.integers(&[1]), graph.integers(&[2]), graph.integers(&[0]));
    let length = graph.node("Slice", &[&shape, &one, &two], &[]);
    let positions = graph.weights(&[POSITIONS, WIDTH], 0.02);
    let positions = graph.node("Slice", &[&positions, &zero, &length, &zero], &[]);
    let sum = graph.node("Add", &[&words, &positions], &[]);
    let mut value = normalized(&mut graph, &sum);
    for _ in 0..LAYERS {
        let attention = attention(&mut graph, &value);
        let sum = graph.node("Add", &[&value, &attention], &[]);
        let middle = normalized(&mut graph, &sum);
        let wide = linear(&mut graph, &middle, WIDTH, 4 * WIDTH);
        let wide = gelu(&mut graph, &wide);
        let narrow = linear(&mut graph, &wide, 4 * WIDTH, WIDTH);
        let sum = graph.node("Add", &[&middle, &narrow], &[]);
        value = normalized(&mut graph, &sum);
    }
    graph.named("Identity", &[&value], &[], "y");
    graph.output("y", FLOAT, &[batch, sequence, Dim::Size(WIDTH)]);
    graph.into_file()
}

fn linear(graph: &mut Graph, input: &str, from: u64, to: u64) -> String {
    let weights = graph.weights(&[from, to], 0.02);
    let bias = graph.weights(&[to], 0.02);
    let product = graph.node("MatMul", &[input, &weights], &[]);
    graph.node("Add", &[&product, &bias], &[])
}

fn normalized(graph: &mut Graph, input: &str) -> String {
    let scale = graph.filled(&[WIDTH], 1.0);
    let bias = graph.filled(&[WIDTH], 0.0);
    let epsilon = ("epsilon", Attribute::Float(1e-12));
    let axis = ("axis", Attribute::Int(-1));
    graph.node("LayerNormalization", &[input, &scale, &bias], &[axis, epsilon])
}

fn gelu(graph: &mut Graph, input: &str) -> String {
    let (root, one, half) = (graph.float(2f32.sqrt()), graph.float(1.0), graph.float(0.5));
    let scaled = graph.node("Div", &[input, &root], &[]);
    let erf = graph.node("Erf", &[&scaled], &[]);
    let shifted = graph.node("Add", &[&erf, &one], &[]);
    let product = graph.node("Mul", &[input, &shifted], &[]);
    graph.node("Mul", &[&product, &half], &[])
}

fn attention(graph: &mut Graph, input: &str) -> String {
    let heads = graph.integers(&[0, 0, 12, 64]);
    let head = |graph: &mut Graph, order: &[i64]| {
        let value = linear(graph, input, WIDTH, WIDTH);
        let value = graph.node("Reshape", &[&value, &heads], &[]);
        graph.node("Transpose", &[&value], &[("perm", Attribute::Ints(order))])
    };
    let query = head(graph, &[0, 2, 1, 3]);
    let key = head(graph, &[0, 2, 3, 1]);
    let value = head(graph, &[0, 2, 1, 3]);
    let scores = graph.node("MatMul", &[&query, &key], &[]);
    let scale = graph.float(0.125);
    let scores = graph.node("Mul", &[&scores, &scale], &[]);
    let weights = graph.node("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
    let mixed = graph.node("MatMul", &[&weights, &value], &[]);
    let mixed = graph.node(
        "Transpose",
        &[&mixed],
        &[("perm", Attribute::Ints(&[0, 2, 1, 3]))],
    );
    let flat = graph.integers(&[0, 0, WIDTH as i64]);
    let mixed = graph.node("Reshape", &[&mixed, &flat], &[]);
    linear(graph, &mixed, WIDTH, WIDTH)
}

/// Builds a model that allocates `n` numbers and sums them: `n` of shape 1 to `y` of shape 1.
pub(super) fn grow() -> Vec<u8> {
    let mut graph = Graph::new();
    graph.input("n", INT64, &[Dim::Size(1)]);
    let one = graph.filled(&[1], 1.0);
    let many = graph.node("Expand", &[&one, "n"], &[]);
    let many = graph.node("Sin", &[&many], &[]);
    graph.named("ReduceSum", &[&many], &[("keepdims", Attribute::Int(1))], "y");
    graph.output("y", FLOAT, &[Dim::Size(1)]);
    graph.into_file()
}
