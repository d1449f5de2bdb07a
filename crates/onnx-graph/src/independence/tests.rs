//! Tests of the proof with small graphs, which are written as strings.

use tensor_core::DType;

use super::prove;
use crate::{
    ElementType,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
        attribute_proto::AttributeType, tensor_proto::DataType,
    },
    signature::{Dim, Port},
};

/// A graph, parsed from lines: `x: [n, 3]` is an input, `s = {-1, 3}` are integers, `k = 0` is an integer
/// scalar, `w = <3, 4>` are floats of this shape, `y = Concat(a, b) axis=1` is a node (a prefix `ms.` of the
/// operator means com.microsoft), and `-> y` names the outputs. Several outputs are written `a b = Split(x)`.
pub(super) struct Text {
    pub(super) model: ModelProto,
    inputs: Vec<Port>,
}

impl Text {
    pub(super) fn parse(text: &str) -> Self {
        let mut graph = GraphProto::default();
        let mut inputs = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(names) = line.strip_prefix("-> ") {
                graph.output = names.split(' ').map(value_info).collect();
            } else if let Some((name, dims)) = line.split_once(": ") {
                inputs.push(port(name, dims));
            } else {
                let (name, right) = line.split_once(" = ").unwrap();
                match right.contains('(') {
                    true => graph.node.push(node(name, right)),
                    false => graph.initializer.push(constant(name, right)),
                }
            }
        }
        let onnx = OperatorSetIdProto {
            domain: String::new(),
            version: 18,
        };
        let model = ModelProto {
            graph: Some(graph),
            opset_import: vec![onnx],
            ..ModelProto::default()
        };
        Self { model, inputs }
    }

    pub(super) fn with_opset(mut self, version: i64) -> Self {
        self.model.opset_import[0].version = version;
        self
    }

    /// Sets the body of the loops; `inputs` names the inputs of the body.
    fn with_body(mut self, inputs: &str, text: &str) -> Self {
        let mut body = Self::parse(text).model.graph.unwrap();
        body.input = inputs.split(' ').map(value_info).collect();
        let nodes = &mut self.model.graph.as_mut().unwrap().node;
        for node in nodes.iter_mut().filter(|node| node.op_type == "Loop") {
            node.attribute.push(AttributeProto {
                name: "body".to_owned(),
                r#type: AttributeType::Graph as i32,
                g: Some(body.clone()),
                ..AttributeProto::default()
            });
        }
        self
    }

    /// Returns the names of the inputs without rows, or the reason why the rows are not independent.
    pub(super) fn shared(&self) -> Result<Vec<String>, String> {
        prove(&self.model, &self.inputs).map(|proof| proof.shared_inputs)
    }
}

fn list(text: &str) -> Vec<&str> {
    let inner = &text[1..text.len() - 1];
    inner
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn port(name: &str, dims: &str) -> Port {
    let dim = |text: &str| match text.parse() {
        Ok(size) => Dim::Fixed(size),
        Err(_) if text == "?" => Dim::Free,
        Err(_) => Dim::Named(text.to_owned()),
    };
    Port::new(
        name,
        ElementType::Fixed(DType::F32),
        Some(list(dims).into_iter().map(dim).collect()),
    )
}

fn value_info(name: &str) -> ValueInfoProto {
    ValueInfoProto {
        name: name.to_owned(),
        ..ValueInfoProto::default()
    }
}

fn constant(name: &str, text: &str) -> TensorProto {
    let number = |text: &str| text.parse::<i64>().unwrap();
    let integers = |dims: Vec<i64>, values: Vec<i64>| TensorProto {
        name: name.to_owned(),
        dims,
        data_type: DataType::Int64 as i32,
        int64_data: values,
        ..TensorProto::default()
    };
    match text.chars().next().unwrap() {
        '{' => {
            let values: Vec<i64> = list(text).into_iter().map(number).collect();
            integers(vec![values.len() as i64], values)
        }
        '<' => {
            let dims: Vec<i64> = list(text).into_iter().map(number).collect();
            let count = dims.iter().product::<i64>() as usize;
            TensorProto {
                name: name.to_owned(),
                dims,
                data_type: DataType::Float as i32,
                float_data: vec![0.5; count],
                ..TensorProto::default()
            }
        }
        _ => integers(vec![], vec![number(text)]),
    }
}

fn node(outputs: &str, text: &str) -> NodeProto {
    let (operator, rest) = text.split_once('(').unwrap();
    let (inputs, attributes) = rest.split_once(')').unwrap();
    let (domain, operator) = match operator.rsplit_once('.') {
        Some(("ms", operator)) => ("com.microsoft", operator),
        Some((domain, operator)) => (domain, operator),
        None => ("", operator),
    };
    NodeProto {
        domain: domain.to_owned(),
        op_type: operator.to_owned(),
        input: inputs.split(',').map(|name| name.trim().to_owned()).collect(),
        output: outputs.split(' ').map(str::to_owned).collect(),
        attribute: attributes.split_whitespace().map(attribute).collect(),
        ..NodeProto::default()
    }
}

/// Attributes that are lists even if the text has a single number.
const LISTS: &[&str] = &["axes", "perm", "kernel_shape", "strides", "dilations"];

/// Parses `axis=1`, `axes=0,2`, or a string.
fn attribute(text: &str) -> AttributeProto {
    let (name, value) = text.split_once('=').unwrap();
    let mut attribute = AttributeProto {
        name: name.to_owned(),
        ..AttributeProto::default()
    };
    let numbers: Option<Vec<i64>> = value.split(',').map(|part| part.parse().ok()).collect();
    let kind = match numbers.as_deref() {
        Some([number]) if !LISTS.contains(&name) => {
            attribute.i = *number;
            AttributeType::Int
        }
        Some(numbers) => {
            attribute.ints = numbers.to_vec();
            AttributeType::Ints
        }
        None if value.parse::<f32>().is_ok() => {
            attribute.f = value.parse().unwrap();
            AttributeType::Float
        }
        None => {
            attribute.s = value.as_bytes().to_vec().into();
            AttributeType::String
        }
    };
    attribute.r#type = kind as i32;
    attribute
}

/// Asserts that the rows are independent and no input is shared.
fn independent(text: &str) {
    assert_eq!(Text::parse(text).shared(), Ok(vec![]), "{text}");
}

fn dependent(text: &str, reason: &str) {
    assert_eq!(Text::parse(text).shared(), Err(reason.to_owned()), "{text}");
}

#[test]
fn layers_keep_rows_apart() {
    independent(
        "x: [n, 3]
        w = <3, 4>
        b = <4>
        p = Gemm(x, w, b)
        y = Softmax(p)
        -> y",
    );
    independent(
        "x: [n, 3, 32, 32]
        w = <8, 3, 3, 3>
        c = Conv(x, w) pads=1,1,1,1
        r = Relu(c)
        p = GlobalAveragePool(r)
        f = Flatten(p)
        -> f",
    );
}

#[test]
fn what_runs_along_the_rows_is_named() {
    dependent(
        "x: [n, 3]
        k = 0
        y = CumSum(x, k)
        -> y",
        "CumSum 'y' runs along axis 0",
    );
    dependent(
        "x: [n, 3]
        rows = {0}
        m = ReduceMean(x, rows)
        y = Sub(x, m)
        -> y",
        "ReduceMean 'm' reduces axis 0",
    );
    dependent(
        "x: [n]
        y = Softmax(x)
        -> y",
        "Softmax 'y' runs along axis 0",
    );
    dependent(
        "x: [n, 3]
        t = Transpose(x) perm=1,0
        y = MatMul(t, x)
        -> y",
        "MatMul 'y' runs along axis 1",
    );
    independent(
        "x: [n, 3]
        k = 1
        y = CumSum(x, k)
        -> y",
    );
}

#[test]
fn attributes_that_left_the_operator_set_are_no_axes() {
    let text = "x: [n, 3]
        y = ReduceMax(x) axes=1
        -> y";
    let reason = "ReduceMax 'y' has the attribute 'axes' of an old operator set";
    assert_eq!(Text::parse(text).with_opset(18).shared(), Err(reason.to_owned()));
    let reason = "ReduceMax 'y' reduces axis 0".to_owned();
    let text = text.replace("axes=1", "axes=0,1");
    assert_eq!(Text::parse(&text).with_opset(17).shared(), Err(reason));
}

#[test]
fn elements_are_only_picked_from_rows_of_the_same_size() {
    dependent(
        "x: [n, 4]
        i: [n, 2]
        halves = {-1, 2}
        h = Reshape(x, halves)
        y = GatherElements(h, i) axis=1
        -> y",
        "GatherElements 'y' gathers from rows by indices of other rows",
    );
}

#[test]
fn softmax_of_old_operator_sets_runs_along_all_axes_from_the_named_one() {
    let text = "x: [n, 2, 3]
        y = Softmax(x) axis=0
        -> y";
    let reason = Err("Softmax 'y' runs along axis 0".to_owned());
    assert_eq!(Text::parse(text).with_opset(12).shared(), reason);
    let text = text.replace("axis=0", "axis=1");
    assert_eq!(Text::parse(&text).with_opset(12).shared(), Ok(vec![]));
}

#[test]
fn scales_over_all_rows_and_random_numbers_mix() {
    dependent(
        "x: [n, 3]
        q s z = DynamicQuantizeLinear(x)
        y = DequantizeLinear(q, s, z)
        -> y",
        "DynamicQuantizeLinear 'q' takes a scale over all rows",
    );
    dependent(
        "x: [n, 3]
        w = <3>
        r = RandomNormalLike(w)
        y = Add(x, r)
        -> y",
        "RandomNormalLike 'r' is random",
    );
}

#[test]
fn outputs_whose_rows_depend_on_values_are_none() {
    dependent(
        "x: [n, 3]
        y = NonZero(x)
        -> y",
        "NonZero 'y' has an input 'x' that is not the same for all requests",
    );
}

#[test]
fn shapes_are_followed_through_arithmetic() {
    independent(
        "x: [n, s, 64]
        zero = 0
        one = 1
        shape = Shape(x)
        n = Gather(shape, zero)
        s = Gather(shape, one)
        axes = {0}
        rows = Unsqueeze(n, axes)
        steps = Unsqueeze(s, axes)
        heads = {4}
        width = {16}
        wanted = Concat(rows, steps, heads, width) axis=0
        h = Reshape(x, wanted)
        t = Transpose(h) perm=0,2,1,3
        k = Transpose(h) perm=0,2,3,1
        p = MatMul(t, k)
        a = Softmax(p)
        v = MatMul(a, t)
        u = Transpose(v) perm=0,2,1,3
        merged = {64}
        back = Concat(rows, steps, merged) axis=0
        y = Reshape(u, back)
        -> y",
    );
}

#[test]
fn a_reshape_that_could_join_rows_is_refused() {
    let reason = "merges rows with other dimensions, and may split a row";
    dependent(
        "x: [samples]
        s = {-1, 480}
        y = Reshape(x, s)
        -> y",
        &format!("Reshape 'y' {reason}"),
    );
    dependent(
        "x: [n, samples]
        s = {-1, 480}
        y = Reshape(x, s)
        -> y",
        &format!("Reshape 'y' {reason}"),
    );
    dependent(
        "x: [n, 4]
        s = {2, -1}
        y = Reshape(x, s)
        -> y",
        "Reshape 'y' splits rows or mixes them with another dimension",
    );
    independent(
        "x: [n, 960]
        s = {-1, 480}
        f = Reshape(x, s)
        back = {-1, 960}
        y = Reshape(f, back)
        -> y",
    );
    dependent(
        "x: [n, 960]
        s = {-1, 480}
        y = Reshape(x, s)
        -> y",
        "output 'y' has another number of rows than the inputs",
    );
}

#[test]
fn attention_over_steps_may_merge_them_with_rows() {
    independent(
        "x: [n, s, 64]
        t = Transpose(x) perm=1,0,2
        flat = {-1, 64}
        f = Reshape(t, flat)
        w = <64, 64>
        g = Gemm(f, w)
        shape = Shape(t)
        b = Reshape(g, shape)
        y = Transpose(b) perm=1,0,2
        -> y",
    );
    // The first axis of the output merges steps and rows, so the rows of one request are not contiguous.
    dependent(
        "x: [n, s, 64]
        t = Transpose(x) perm=1,0,2
        flat = {-1, 64}
        y = Reshape(t, flat)
        -> y",
        "output 'y' has another number of rows than the inputs",
    );
    dependent(
        "x: [n, s, 64]
        t = Transpose(x) perm=1,0,2
        flat = {-1, 64}
        f = Reshape(t, flat)
        o = Reshape(x, flat)
        y = Add(f, o)
        -> y",
        "Add 'y' combines rows in different orders",
    );
}

#[test]
fn a_batch_on_axis_1_inside_of_the_graph_is_followed() {
    let text = "x: [n, s, 4]
        t = Transpose(x) perm=1,0,2
        w = <1, 20, 4>
        r = <1, 20, 5>
        y h c = LSTM(t, w, r) hidden_size=5
        axes = {0}
        z = Squeeze(h, axes)
        -> z";
    independent(text);
    dependent(
        &text.replace("LSTM(t, w", "LSTM(x, w"),
        "LSTM 'y' runs along axis 0",
    );
}

/// Checks a loop over the steps of a sequence, as Keras exports it. The loop runs at least once, since no
/// dimension is 0 in batched requests.
#[test]
fn a_loop_over_the_steps_of_a_sequence_has_iterations() {
    let text = "x: [n, s, 4]
        t = Transpose(x) perm=1,0,2
        d = Shape(t) start=0 end=1
        axes = {0}
        count = Squeeze(d, axes)
        f = Cast(count) to=1
        zero = 0
        z = Cast(zero) to=1
        has_steps = Less(z, f)
        has_more = Greater(f, z)
        goes_on = And(has_steps, has_more)
        first = Gather(t, zero) axis=0
        last all = Loop(count, goes_on, first)
        y = Transpose(all) perm=1,0,2
        -> y";
    let body = "x = Gather(t, i) axis=0
        h2 = Add(h, x)
        c2 = Identity(c)
        s = Identity(h2)
        -> c2 h2 s";
    let proven = |text: &str| Text::parse(text).with_body("i c h", body).shared();
    let refused = Err("Loop 'last' may have no iterations, and then no rows".to_owned());
    assert_eq!(proven(text), Ok(vec![]));
    let literal = text.replace("f = Cast(count)", "seven = 7\nf = Cast(seven)");
    assert_eq!(proven(&literal), Ok(vec![]));
    assert_eq!(proven(&literal.replace("seven = 7", "seven = 0")), refused);
    assert_eq!(proven(&literal.replace("seven = 7", "seven = -7")), refused);
    assert_eq!(
        proven(&text.replace("has_steps = Less(z, f)", "has_steps = Less(f, z)")),
        refused
    );
    let fewer = text.replace("axes = {0}", "axes = {0}\none = {1}").replace(
        "count = Squeeze(d, axes)",
        "less = Sub(d, one)\ncount = Squeeze(less, axes)",
    );
    assert_eq!(proven(&fewer), refused, "of one step less than the sequence has");
}

#[test]
fn a_state_with_its_rows_on_another_axis_is_named() {
    dependent(
        "x: [n, s, 4]
        h: [2, n, 5]
        y = Relu(x)
        -> y",
        "input 'h' has its rows on axis 1",
    );
}

#[test]
fn inputs_without_rows_are_shared() {
    let text = Text::parse(
        "x: [n, 3]
        threshold: []
        table: [k, 3]
        t = Transpose(table) perm=1,0
        p = MatMul(x, t)
        y = Greater(p, threshold)
        -> y",
    );
    assert_eq!(
        text.shared(),
        Ok(vec!["threshold".to_owned(), "table".to_owned()])
    );
}

#[test]
fn dimensions_with_one_name_are_told() {
    let text = Text::parse(
        "x: [n, s]
        mask: [n, s]
        y = Mul(x, mask)
        -> y",
    );
    let proof = prove(&text.model, &text.inputs).unwrap();
    assert_eq!(proof.equal_dims, [[("x".to_owned(), 1), ("mask".to_owned(), 1)]]);
}

#[test]
fn each_row_may_pick_its_own_elements_by_its_index() {
    let text = "x: [n, s, 8]
        at: [n]
        zero = 0
        one = 1
        shape = Shape(x)
        n = Gather(shape, zero)
        numbers = Range(zero, n, one)
        axes = {1}
        a = Unsqueeze(numbers, axes)
        b = Unsqueeze(at, axes)
        i = Concat(a, b) axis=1
        y = GatherND(x, i)
        -> y";
    independent(text);
    dependent(
        &text.replace("Concat(a, b)", "Concat(b, a)"),
        "GatherND 'y' gathers by the index of a row",
    );
    dependent(
        "x: [n]
        zero = 0
        one = 1
        shape = Shape(x)
        n = Squeeze(shape)
        numbers = Range(zero, n, one)
        f = Cast(numbers) to=1
        y = Add(x, f)
        -> y",
        "output 'y' depends on the index of a row",
    );
}

#[test]
fn the_number_of_rows_is_no_number_to_compute_with() {
    dependent(
        "x: [n, 3]
        zero = 0
        shape = Shape(x)
        n = Gather(shape, zero)
        f = Cast(n) to=1
        y = Div(x, f)
        -> y",
        "Div 'y' computes with the number of rows",
    );
}

#[test]
fn slices_of_rows_mix_unless_they_take_all() {
    let text = "x: [n, 3]
        from = {0, 1}
        to = {9223372036854775807, 3}
        axes = {0, 1}
        y = Slice(x, from, to, axes)
        -> y";
    independent(text);
    dependent(
        &text.replace("{0, 1}\n        to", "{1, 1}\n        to"),
        "Slice 'y' runs along axis 0",
    );
    independent(&text.replace("9223372036854775807", "1000000000"));
    dependent(
        &text.replace("9223372036854775807", "1000000"),
        "Slice 'y' runs along axis 0",
    );
}

#[test]
fn pads_that_are_computed_as_matrices_are_followed() {
    let text = "x: [n, 3, h, w]
        before = {0, 0, 0, 0, 1, 1, 2, 2}
        pairs = {-1, 2}
        m = Reshape(before, pairs)
        from = {-1}
        to = {-9223372036854775807}
        axes = {0}
        r = Slice(m, from, to, axes, from)
        t = Transpose(r) perm=1,0
        all = {-1}
        pads = Reshape(t, all)
        y = Pad(x, pads)
        -> y";
    dependent(text, "Pad 'y' runs along axis 0");
    independent(&text.replace("{0, 0, 0, 0, 1, 1, 2, 2}", "{1, 1, 2, 2, 0, 0, 0, 0}"));
}

#[test]
fn what_is_not_used_does_not_matter() {
    independent(
        "x: [n, 3]
        u = NonZero(x)
        y = Relu(x)
        -> y",
    );
}

#[test]
fn operators_of_which_nothing_is_known_are_named() {
    dependent(
        "x: [n, 3]
        y = Frobnicate(x)
        -> y",
        "Frobnicate 'y' is not known to keep rows independent",
    );
}

#[test]
fn models_without_a_free_first_dimension_have_no_rows() {
    dependent(
        "x: [1, 3]
        y = Relu(x)
        -> y",
        "no input has a free first dimension",
    );
}
