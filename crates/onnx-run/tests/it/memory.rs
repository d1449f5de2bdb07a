//! Measures the memory that a session holds between runs, by counting allocations.

use allocation_counter::measure;
use bytes::Bytes;
use onnx_graph::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, tensor_shape_proto::Dimension, tensor_shape_proto::dimension, type_proto,
};
use onnx_run::Session;
use onnx_tensor::Tensor;
use prost::Message;

fn port(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dims = dims.iter().map(|&dim| Dimension {
        value: (dim >= 0).then_some(dimension::Value::DimValue(dim)),
    });
    let tensor = type_proto::Tensor {
        elem_type: 1,
        shape: Some(TensorShapeProto { dim: dims.collect() }),
    };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(tensor)),
        }),
    }
}

/// The sizes of a network of two layers.
#[derive(Clone, Copy)]
struct Network {
    width: usize,
    depth: usize,
}

/// Encodes a network for inputs with any two leading dimensions. The length of the name shifts the weights
/// within the file, and so changes their alignment.
fn file(Network { width, depth }: Network, name: &str) -> Bytes {
    let node = |op_type: &str, inputs: &[&str], output: &str| NodeProto {
        op_type: op_type.to_owned(),
        name: output.to_owned(),
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    };
    let weights = |name: &str, dims: &[usize]| TensorProto {
        name: name.to_owned(),
        dims: dims.iter().map(|&dim| dim as i64).collect(),
        data_type: 1,
        raw_data: vec![0u8; dims.iter().product::<usize>() * size_of::<f32>()].into(),
        ..TensorProto::default()
    };
    let model = ModelProto {
        ir_version: 8,
        graph: Some(GraphProto {
            name: name.to_owned(),
            node: vec![
                node("MatMul", &["x", "w1"], "a"),
                node("Add", &["a", "bias"], "b"),
                node("Relu", &["b"], "c"),
                node("MatMul", &["c", "w2"], "d"),
                node("Softmax", &["d"], "e"),
                node("Add", &["e", "offset"], "y"),
            ],
            input: vec![port("x", &[-1, -1, width as i64])],
            output: vec![port("y", &[-1, -1, width as i64])],
            initializer: vec![
                weights("w1", &[width, depth]),
                weights("bias", &[depth]),
                weights("w2", &[depth, width]),
                weights("offset", &[width]),
            ],
            ..GraphProto::default()
        }),
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: 18,
        }],
        ..ModelProto::default()
    };
    model.encode_to_vec().into()
}

/// Reads the file, and runs the session for each shape on this thread. Returns the number of bytes that the
/// session holds after the outputs are dropped.
fn held(network: Network, file: &Bytes, shapes: impl IntoIterator<Item = [usize; 2]>) -> i64 {
    let mut session = None;
    let allocated = measure(|| {
        // The copy of the file is counted if the session still holds it.
        let file = Bytes::copy_from_slice(file);
        let session = session.insert(Session::read(&file).unwrap().with_threads(1));
        for [first, second] in shapes {
            let shape = [first, second, network.width];
            let outputs = session.run([Tensor::zero::<f32>(&shape).unwrap()]).unwrap();
            assert_eq!(outputs[0].shape(), shape);
        }
    });
    allocated.bytes_current
}

#[test]
fn a_session_holds_nothing_for_the_shapes_that_it_has_run() {
    let network = Network { width: 4, depth: 8 };
    let file = file(network, "network");
    // Runs once without measuring, for allocations that the process makes only once, such as the table of
    // operators.
    held(network, &file, [[1, 1]]);
    let none = held(network, &file, []);
    let largest = held(network, &file, [[20, 50]]);
    let shapes = (1..=20).flat_map(|first| (1..=50).map(move |second| [first, second]));
    assert_eq!((held(network, &file, shapes), largest), (none, none));
}

#[test]
fn an_idle_session_holds_its_weights_and_little_more() {
    let network = Network {
        width: 256,
        depth: 2048,
    };
    let weights = (2 * network.width * network.depth * size_of::<f32>()) as i64;
    for name in ["n", "ne", "net", "netw"] {
        let held = held(network, &file(network, name), [[4, 5]]);
        assert!(
            held * 10 <= weights * 12,
            "{held} bytes for {weights} bytes of weights"
        );
    }
}
