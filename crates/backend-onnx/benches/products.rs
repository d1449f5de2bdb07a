//! Products of FP32 matrices as transformers and classification heads have them, on the built-in runtime and on tract.
//!
//! ```text
//! cargo bench -p backend-onnx --bench products
//! ```
//!
//! A model is one `MatMul`, whose second factor is a constant of the file or an input. Everything is in memory and warm.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use std::{path::Path, sync::Arc};

use backend_onnx::OnnxBackend;
use bench_kit::Comparison;
use oip_service::{Backend, CancelToken, LoadContext, Model, ModelSource};
use oip_types::{InferRequest, ModelConfig, ModelRef};
use onnx_graph::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use prost::Message;
use tensor_core::{Shape, Tensor};

/// Rows, depth and columns.
const SHAPES: [[usize; 3]; 9] = [
    [1, 384, 384],
    [1, 1024, 1000],
    [1, 768, 3072],
    [8, 384, 1536],
    [32, 384, 384],
    [128, 384, 1536],
    [128, 1536, 384],
    [200, 768, 3072],
    [128, 64, 128],
];

/// The heads of an attention layer.
const HEADS: usize = 12;

fn main() {
    for shape in SHAPES {
        compare(1, shape, true);
        compare(1, shape, false);
    }
    compare(HEADS, [128, 64, 128], false);
    compare(HEADS, [128, 128, 64], false);
    compare(HEADS, [1, 64, 128], false);
}

fn compare(batch: usize, [rows, depth, columns]: [usize; 3], is_constant: bool) {
    let factors = [numbers(&[batch, rows, depth]), numbers(&[batch, depth, columns])];
    let model = model(&factors, is_constant);
    let token = CancelToken::new(None);
    let work = (batch * rows * depth * columns) as f64;
    let calls = ((1e8 / work) as usize).clamp(2, 500);
    let kind = if is_constant { "constant" } else { "input" };
    let title = format!("{batch} x {rows} x {depth} x {columns}, second factor: {kind}: {calls} calls");
    let models = ["built-in", "tract"].map(|runtime| (runtime, load(runtime, &model)));
    let mut comparison = Comparison::new(title).rounds(7);
    for (runtime, model) in &models {
        let factors = &factors;
        let token = &token;
        comparison.add(*runtime, move || {
            for _ in 0..calls {
                let mut request = InferRequest::new(ModelRef::new("m", None).unwrap());
                request = request.with_input("a", factors[0].clone());
                if !is_constant {
                    request = request.with_input("b", factors[1].clone());
                }
                model.infer(request, token).unwrap();
            }
        });
    }
    for time in comparison.run() {
        let call = time.as_secs_f64() / calls as f64;
        println!(
            "  {:.1} us a call, {:.1} GFLOP/s",
            call * 1e6,
            2.0 * work / call / 1e9
        );
    }
}

fn numbers(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|index| (index * 7919 % 17) as f32 - 8.0).collect();
    let dims: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
    Tensor::from_vec(Shape::new(&dims).unwrap(), values).unwrap()
}

fn load(runtime: &str, model: &ModelProto) -> Box<dyn Model> {
    let source = ModelSource::new("m", "1", Path::new("model.onnx"), model.encode_to_vec().into());
    let mut config = ModelConfig::default();
    runtime.clone_into(&mut config.runtime);
    let cx = LoadContext::default().with_config(Arc::new(config));
    OnnxBackend::new().load(&source, &cx).unwrap()
}

fn model(factors: &[Tensor; 2], is_constant: bool) -> ModelProto {
    let dims = factors
        .each_ref()
        .map(|factor| factor.shape().dims().iter().map(|&dim| dim as i64));
    let [a, b] = dims.map(Iterator::collect::<Vec<i64>>);
    let constant = TensorProto {
        name: "b".to_owned(),
        dims: b[if b[0] == 1 { 1 } else { 0 }..].to_vec(),
        data_type: 1,
        raw_data: factors[1].bytes().to_vec().into(),
        ..TensorProto::default()
    };
    let mut inputs = vec![port("a", &a)];
    if !is_constant {
        inputs.push(port("b", &b));
    }
    ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: 17,
        }],
        graph: Some(GraphProto {
            name: "product".to_owned(),
            node: vec![NodeProto {
                op_type: "MatMul".to_owned(),
                input: vec!["a".to_owned(), "b".to_owned()],
                output: vec!["c".to_owned()],
                ..NodeProto::default()
            }],
            initializer: if is_constant { vec![constant] } else { vec![] },
            input: inputs,
            output: vec![port("c", &[a[0], a[1], b[2]])],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

fn port(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dims = dims.iter().map(|&dim| Dimension {
        value: Some(dimension::Value::DimValue(dim)),
    });
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(type_proto::Tensor {
                elem_type: 1,
                shape: Some(TensorShapeProto { dim: dims.collect() }),
            })),
        }),
    }
}
