//! Tests that the message for a refused node names the node, and its attribute or input with the found value.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onnx_graph::{
    ErrorKind,
    proto::{AttributeProto, OperatorSetIdProto, ValueInfoProto, attribute_proto::AttributeType},
};

use super::conditions::CONDITIONS;
use crate::{Session, test_models};

/// A node that is refused.
struct RefusedNode {
    op_type: &'static str,
    domain: &'static str,
    opset: i64,
    /// The shapes of the inputs; `None` for a missing one. Input 0 is the model's, all others are constants.
    inputs: Vec<Option<Vec<i64>>>,
    outputs: usize,
    attributes: Vec<AttributeProto>,
}

fn refused(op_type: &'static str) -> RefusedNode {
    RefusedNode {
        op_type,
        domain: "",
        opset: 21,
        inputs: vec![Some(vec![1, 4, 8, 8])],
        outputs: 1,
        attributes: Vec::new(),
    }
}

impl RefusedNode {
    fn of(mut self, domain: &'static str) -> Self {
        self.domain = domain;
        self
    }

    fn opset(mut self, opset: i64) -> Self {
        self.opset = opset;
        self
    }

    fn inputs(mut self, shapes: &[&[i64]]) -> Self {
        self.inputs = shapes.iter().map(|shape| Some(shape.to_vec())).collect();
        self
    }

    /// Adds missing inputs.
    fn without(mut self, count: usize) -> Self {
        self.inputs.extend(vec![None; count]);
        self
    }

    fn outputs(mut self, outputs: usize) -> Self {
        self.outputs = outputs;
        self
    }

    fn attribute(mut self, r#type: AttributeType, name: &str) -> Self {
        self.attributes.push(AttributeProto {
            name: name.to_owned(),
            r#type: r#type as i32,
            ..AttributeProto::default()
        });
        self
    }

    fn with(mut self, set: impl FnOnce(&mut AttributeProto)) -> Self {
        set(self.attributes.last_mut().unwrap());
        self
    }

    fn int(self, name: &str, i: i64) -> Self {
        self.attribute(AttributeType::Int, name)
            .with(|attribute| attribute.i = i)
    }

    fn ints(self, name: &str, ints: &[i64]) -> Self {
        self.attribute(AttributeType::Ints, name)
            .with(|attribute| attribute.ints = ints.to_vec())
    }

    fn float(self, name: &str, f: f32) -> Self {
        self.attribute(AttributeType::Float, name)
            .with(|attribute| attribute.f = f)
    }

    fn text(self, name: &str, text: &str) -> Self {
        let text = text.to_owned().into();
        self.attribute(AttributeType::String, name)
            .with(|attribute| attribute.s = text)
    }

    fn texts(self, name: &str, texts: &[&str]) -> Self {
        let texts = texts.iter().map(|&text| text.to_owned().into()).collect();
        self.attribute(AttributeType::Strings, name)
            .with(|attribute| attribute.strings = texts)
    }

    /// Loads a model of the node alone, and returns the error.
    fn error(&self) -> onnx_graph::Error {
        let names: Vec<String> = (0..self.inputs.len())
            .map(|index| match (index, &self.inputs[index]) {
                (_, None) => String::new(),
                (0, _) => "x".to_owned(),
                _ => format!("input{index}"),
            })
            .collect();
        let mut node = test_models::node(self.op_type, &[], "y");
        node.input.clone_from(&names);
        node.name = "the node".to_owned();
        node.domain = self.domain.to_owned();
        node.attribute.clone_from(&self.attributes);
        node.output
            .extend((1..self.outputs).map(|index| format!("output{index}")));
        let given = names.iter().zip(&self.inputs).skip(1);
        let constants = given.filter_map(|(name, shape)| Some(test_models::constant(name, shape.as_ref()?)));
        let constants = constants.collect();
        let nothing = vec![1];
        let shape = self.inputs.first().and_then(Option::as_ref).unwrap_or(&nothing);
        let mut model = test_models::model(vec![node], shape, &[-1], constants);
        model.opset_import = [("", self.opset), ("com.microsoft", 1), ("ai.onnx.ml", 3)]
            .map(|(domain, version)| OperatorSetIdProto {
                domain: domain.to_owned(),
                version,
            })
            .to_vec();
        // Makes all outputs of the node outputs of the model, since other outputs would not be computed.
        let graph = model.graph.as_mut().unwrap();
        let more = (1..self.outputs).map(|index| ValueInfoProto {
            name: format!("output{index}"),
            ..graph.output[0].clone()
        });
        let more: Vec<ValueInfoProto> = more.collect();
        graph.output.extend(more);
        let prepared = Session::prepare(&model, |_| Ok(()));
        prepared.expect_err(&format!("{} {:?}", self.op_type, self.attributes))
    }
}

const CHANNELS: &[i64] = &[4];
const IMAGE: &[i64] = &[1, 4, 8, 8];

fn normalization() -> RefusedNode {
    refused("BatchNormalization").inputs(&[IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS])
}

fn layer(op_type: &'static str, gates: i64) -> RefusedNode {
    refused(op_type)
        .inputs(&[&[5, 1, 4], &[1, gates * 2, 4], &[1, gates * 2, 2]])
        .int("hidden_size", 2)
}

fn einsum(equation: &str) -> RefusedNode {
    refused("Einsum")
        .inputs(&[&[2, 3], &[3, 4]])
        .text("equation", equation)
}

/// Returns nodes that a condition refuses, each with words that the message must contain.
fn by_condition() -> Vec<(RefusedNode, &'static [&'static str])> {
    let pool = |op_type: &'static str| {
        refused(op_type)
            .text("auto_pad", "SAME_UPPER")
            .ints("kernel_shape", &[2, 2])
    };
    vec![
        (
            pool("MaxPool").ints("dilations", &[2, 1]),
            &["'dilations' is [2, 1]", "auto_pad SAME_UPPER", "explicit 'pads'"],
        ),
        (
            pool("AveragePool").ints("strides", &[4, 4]),
            &["'strides' is [4, 4]", "auto_pad SAME_UPPER", "explicit 'pads'"],
        ),
        (
            pool("MaxPool").int("ceil_mode", 1),
            &["'ceil_mode' is 1", "auto_pad SAME_UPPER", "explicit 'pads'"],
        ),
        (
            normalization().opset(7).int("spatial", 0),
            &["'spatial' is 0", "only 1"],
        ),
        (
            refused("DFT")
                .without(1)
                .opset(17)
                .int("inverse", 1)
                .int("onesided", 1)
                .inputs(&[&[1, 8, 2]]),
            &["'inverse' is 1", "'onesided' is 1"],
        ),
        (
            refused("DequantizeLinear")
                .opset(23)
                .inputs(&[IMAGE, &[]])
                .int("output_dtype", 11),
            &["'output_dtype' is DOUBLE", "only FLOAT"],
        ),
        (
            refused("Dropout").opset(6).int("is_test", 0),
            &["'is_test' is 0", "expected 1", "model.eval()"],
        ),
        (
            refused("Dropout").opset(10).outputs(2),
            &["output 'mask'", "operator set 10", "operator set 12"],
        ),
        (einsum("i1,jk->ik"), &["'equation' is 'i1,jk->ik'", "letters"]),
        (
            einsum("ij,jk->il"),
            &["'equation' is 'ij,jk->il'", "those of the inputs"],
        ),
        (
            einsum("ij,jk->ii"),
            &["'equation' is 'ij,jk->ii'", "each index once"],
        ),
        (einsum("...j,jk->k"), &["'equation' is '...j,jk->k'", "ellipsis"]),
        (einsum("Ij,jk"), &["'equation' is 'Ij,jk'", "'->'"]),
        (
            layer("GRU", 3).text("direction", "backward"),
            &["'direction' is 'backward'", "'reverse'"],
        ),
        (layer("RNN", 1).float("clip", 1.0), &["'clip'", "LSTM only"]),
        (
            layer("LSTM", 4).texts("activations", &["Tanh"]),
            &["'activations' has 1 functions, expected 3"],
        ),
        (
            layer("RNN", 1).texts("activations", &["Swish"]),
            &["'activations' has 'Swish'"],
        ),
        (
            refused("DynamicQuantizeLSTM")
                .of("com.microsoft")
                .inputs(&[&[5, 1, 4], &[1, 4, 8], &[1, 2, 8]])
                .without(5)
                .int("hidden_size", 2)
                .text("direction", "backward"),
            &["'direction' is 'backward'"],
        ),
        (
            refused("QuantizeLinear")
                .inputs(&[IMAGE, &[1, 2, 8, 8]])
                .int("block_size", 2),
            &["'block_size' is 2", "only 0"],
        ),
        (
            refused("QuantizeLinear")
                .opset(23)
                .inputs(&[IMAGE, &[]])
                .int("precision", 16),
            &["'precision' is BFLOAT16", "only FLOAT"],
        ),
        (
            refused("TopK").opset(8).outputs(2),
            &["'k'", "operator set 8", "as the attribute"],
        ),
    ]
}

#[test]
fn conditions_name_the_attribute_and_its_value() {
    let cases = by_condition();
    for (_, names) in CONDITIONS {
        for name in *names {
            let op_type = name.rsplit('/').next().unwrap();
            assert!(
                cases.iter().any(|(node, _)| node.op_type == op_type),
                "no case for {name}"
            );
        }
    }
    expect_words(&cases);
}

#[test]
fn builders_name_the_attribute_and_its_value() {
    let image = || refused("GridSample").inputs(&[IMAGE, &[1, 2, 2, 2]]);
    let resized = || refused("Resize").without(1).inputs(&[IMAGE, &[0], &[4]]);
    expect_words(&[
        (
            refused("Transpose").ints("perm", &[0, 2, 2, 1]),
            &["'perm' is [0, 2, 2, 1]", "each axis once"],
        ),
        (image().text("mode", "square"), &["'mode' is 'square'", "nearest"]),
        (
            image().text("padding_mode", "wrap"),
            &["padding_mode is 'wrap'", "border"],
        ),
        (resized().text("mode", "square"), &["'mode' is 'square'", "cubic"]),
        (resized().text("nearest_mode", "up"), &["nearest_mode is 'up'"]),
        (
            resized().text("coordinate_transformation_mode", "own"),
            &["coordinate_transformation_mode is 'own'"],
        ),
        (refused("Cast").int("to", 16), &["'to' is BFLOAT16"]),
        (
            refused("ReverseSequence")
                .inputs(&[&[2, 3, 4], &[2]])
                .int("time_axis", 2),
            &["time_axis is 2", "batch_axis 1"],
        ),
        (
            refused("Pad")
                .without(0)
                .inputs(&[IMAGE, &[8]])
                .text("mode", "mirror"),
            &["'mode' is 'mirror'", "edge"],
        ),
        (
            refused("LpPool").ints("kernel_shape", &[2, 2]).int("p", 0),
            &["'p' is 0"],
        ),
        (
            refused("MatMulNBits")
                .of("com.microsoft")
                .inputs(&[&[2, 32], &[4, 1, 16], &[4]])
                .int("K", 32)
                .int("N", 4)
                .int("block_size", 32)
                .int("bits", 3),
            &["'bits' is 3", "2, 4 or 8"],
        ),
        (
            refused("ReduceMax")
                .opset(13)
                .int("keepdims", i64::from(i32::MIN)),
            &["'keepdims' is -2147483648", "expected 0 or 1"],
        ),
        (
            refused("ArgMax").int("select_last_index", 2),
            &["'select_last_index' is 2", "expected 0 or 1"],
        ),
        (
            refused("MatMulBnb4")
                .of("com.microsoft")
                .inputs(&[&[2, 32], &[64], &[8]])
                .int("K", 32)
                .int("N", 4)
                .int("block_size", 16)
                .int("quant_type", 2),
            &["quant_type is 2", "expected 0 or 1", "export the model again"],
        ),
        (
            refused("LinearAttention")
                .of("com.microsoft")
                .inputs(&[&[1, 2, 6], &[1, 2, 4], &[1, 2, 4]])
                .text("update_rule", "linear")
                .int("q_num_heads", 3)
                .int("kv_num_heads", 2),
            &["q_num_heads is 3", "kv_num_heads 2"],
        ),
        (
            refused("LinearAttention")
                .of("com.microsoft")
                .inputs(&[&[1, 2, 4], &[1, 2, 4], &[1, 2, 4]])
                .int("q_num_heads", 2)
                .int("kv_num_heads", 2),
            &["the input decay is not given"],
        ),
        (
            refused("FusedGemm")
                .of("com.microsoft")
                .inputs(&[&[2, 4], &[4, 3]])
                .text("activation", "Swish"),
            &["'activation' is 'Swish'"],
        ),
    ]);
}

#[test]
fn the_table_names_the_input_or_the_operator_set() {
    expect_words(&[
        (refused("Relu").float("slope", 1.0), &["the attribute 'slope'"]),
        (
            refused("Trilu").opset(13),
            &["version 13 of the ONNX operators", "from version 14 on"],
        ),
        (
            refused("Softmax").int("axis", 1 << 40),
            &["'axis' has the number 1099511627776", "at most 2147483647"],
        ),
        (
            refused("BitwiseNot"),
            &["has an input 0 of FP32", "expected integers"],
        ),
        (
            refused("Relu").inputs(&[IMAGE, IMAGE]),
            &["has 2 inputs, expected 1", "export the model again"],
        ),
        (refused("NoSuchOperator"), &["the operator is not supported"]),
    ]);
}

fn expect_words(cases: &[(RefusedNode, &[&str])]) {
    let mut wrong = Vec::new();
    for (node, words) in cases {
        let error = node.error();
        let message = error.to_string();
        let label = format!("node 'the node' ({}): ", node.op_type);
        let mut missing = words.iter().filter(|&&word| !message.contains(word));
        let has_way_out = error.kind() != ErrorKind::Invalid || message.contains("export");
        if !message.starts_with(&label) || missing.next().is_some() || !has_way_out {
            wrong.push(format!("{message}, expected {words:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
