//! The example models, served by the real program to real clients: scans of handwritten digits that training never saw.

use std::path::{Path, PathBuf};

use oip_grpc::proto::{
    ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
    model_infer_request::InferInputTensor,
};
use oip_types::{
    InferRequest, InferResponse, Limits, ModelRef,
    rest::{HEADER_LENGTH, RequestEncoding, decode_request, decode_response, encode_request},
};
use serde_json::Value;
use tensor_core::Tensor;
use tonic::transport::Endpoint;

use crate::support::Server;

const MODELS: [&str; 2] = ["digits", "digits_forest"];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(examples().join("requests").join(name)).unwrap()
}

/// What was recorded when the models were made.
struct Record {
    truth: Vec<i64>,
    labels: Vec<i64>,
    right: usize,
}

impl Record {
    fn of(model: &str) -> Self {
        let record: Value = serde_json::from_slice(&read("digits.labels.json")).unwrap();
        let numbers = |value: &Value| serde_json::from_value(value.clone()).unwrap();
        let recorded = &record["models"][model];
        Self {
            truth: numbers(&record["truth"]),
            labels: numbers(&recorded["labels"]),
            right: recorded["right"].as_u64().unwrap() as usize,
        }
    }

    /// Holds an answer against the record: every label, the accuracy, and probabilities that go with the labels.
    fn check(&self, labels: &Tensor, probabilities: &Tensor) {
        let count = self.truth.len() as u64;
        assert_eq!(labels.shape().dims(), [count]);
        assert_eq!(probabilities.shape().dims(), [count, 10]);
        let labels: Vec<i64> = labels.to_vec().unwrap();
        assert_eq!(labels, self.labels);
        let right = labels
            .iter()
            .zip(&self.truth)
            .filter(|(label, truth)| label == truth)
            .count();
        assert_eq!(right, self.right);
        assert!(right * 100 >= self.truth.len() * 94, "{right} of {count}");
        let probabilities: Vec<f32> = probabilities.to_vec().unwrap();
        for (label, row) in labels.iter().zip(probabilities.chunks(10)) {
            let most = row.iter().copied().fold(0.0, f32::max);
            assert_eq!(row[usize::try_from(*label).unwrap()], most);
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-4);
        }
    }

    fn check_response(&self, response: &InferResponse) {
        let output = |name: &str| {
            let output = response.outputs.iter().find(|output| output.name == name);
            output.unwrap().value.as_fixed().unwrap().clone()
        };
        self.check(&output("label"), &output("probabilities"));
    }
}

fn request(model: &str) -> InferRequest {
    let model = ModelRef::new(model, None).unwrap();
    let decoded = decode_request(model, &read("digits.json").into(), None, &Limits::default());
    decoded.unwrap().request
}

#[test]
fn held_back_images_are_recognised_over_http_json() {
    let server = loaded();
    for model in MODELS {
        let answer = server.request(
            "POST",
            &format!("/v2/models/{model}/infer"),
            &[],
            &read("digits.json"),
        );
        assert_eq!(answer.status, 200);
        let response = decode_response(&answer.body.into(), None, &Limits::default()).unwrap();
        Record::of(model).check_response(&response);
    }
}

#[test]
fn held_back_images_are_recognised_over_http_binary() {
    let server = loaded();
    for model in MODELS {
        let encoding = RequestEncoding {
            binary_inputs: true,
            binary_outputs: true,
            ..RequestEncoding::default()
        };
        let body = encode_request(&request(model), encoding).unwrap();
        let length = body.header_length().unwrap().to_string();
        let path = format!("/v2/models/{model}/infer");
        let answer = server.request("POST", &path, &[(HEADER_LENGTH, &length)], &body.into_bytes());
        assert_eq!(answer.status, 200);
        let length = answer.header(HEADER_LENGTH).unwrap().parse().unwrap();
        let response = decode_response(&answer.body.into(), Some(length), &Limits::default()).unwrap();
        Record::of(model).check_response(&response);
    }
}

#[tokio::test]
async fn held_back_images_are_recognised_over_grpc() {
    let server = loaded();
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    let mut client = GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap());
    for model in MODELS {
        let pixels = request(model).inputs.remove(0);
        let response = client
            .model_infer(ModelInferRequest {
                model_name: model.to_owned(),
                inputs: vec![InferInputTensor {
                    name: pixels.name.clone(),
                    datatype: pixels.value.datatype().name().to_owned(),
                    shape: pixels
                        .value
                        .shape()
                        .dims()
                        .iter()
                        .map(|&dim| dim as i64)
                        .collect(),
                    ..InferInputTensor::default()
                }],
                raw_input_contents: vec![pixels.value.into_raw()],
                ..ModelInferRequest::default()
            })
            .await
            .unwrap()
            .into_inner();
        let names: Vec<&str> = response
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        assert_eq!(names, ["label", "probabilities"]);
        let [labels, probabilities] = &response.raw_output_contents[..] else {
            panic!("expected two tensors");
        };
        let count = labels.len() as u64 / 8;
        let tensor = |dtype, dims: &[u64], bytes: &bytes::Bytes| {
            let spec = tensor_core::TensorSpec::new(dtype, tensor_core::Shape::new(dims).unwrap()).unwrap();
            Tensor::new(spec, bytes.clone()).unwrap()
        };
        Record::of(model).check(
            &tensor(tensor_core::DType::I64, &[count], labels),
            &tensor(tensor_core::DType::F32, &[count, 10], probabilities),
        );
    }
}

/// The README promises a 7.
#[test]
fn the_readmes_digit_is_a_seven() {
    let server = loaded();
    let answer = server.request("POST", "/v2/models/digits/infer", &[], &read("one_digit.json"));
    let label = answer.json()["outputs"][0].clone();
    assert_eq!(
        (&label["name"], &label["data"]),
        (&"label".into(), &serde_json::json!([7]))
    );
}

fn loaded() -> Server {
    let mut server = Server::start(&examples().join("models"), &[]);
    let printed = server.wait_until_loaded();
    for model in MODELS {
        assert!(printed.contains(model), "{printed}");
    }
    assert!(printed.contains("FP32[-1, 64]"), "{printed}");
    server
}
