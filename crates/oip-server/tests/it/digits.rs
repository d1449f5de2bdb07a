//! The example models, served to real clients: scans of handwritten digits that were not used in training.

use std::path::{Path, PathBuf};

use oip_client::TensorForm;
use oip_types::{InferRequest, InferResponse, ModelRef, RequestLimits, rest::decode_request};
use serde_json::Value;
use tensor_core::Tensor;

use crate::support::Server;

const MODELS: [&str; 2] = ["digits", "digits_forest"];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(examples().join("requests").join(name)).unwrap()
}

/// The outputs recorded when the models were trained.
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

    /// Checks a response against the record: every label, the accuracy, and probabilities that match the
    /// labels.
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
    let decoded = decode_request(
        model,
        &read("digits.json").into(),
        None,
        &RequestLimits::default(),
    );
    decoded.unwrap().request
}

#[tokio::test]
async fn held_back_images_are_recognised_in_every_form() {
    let server = loaded();
    for url in [
        format!("http://{}", server.http),
        format!("grpc://{}", server.grpc),
    ] {
        for form in [TensorForm::Raw, TensorForm::Typed] {
            let client = oip_client::builder(&url).tensor_form(form).build().unwrap();
            for model in MODELS {
                let response = client.infer(&request(model)).await.unwrap();
                Record::of(model).check_response(&response);
            }
        }
    }
}

/// The README's input file contains the same images as the request, one byte per pixel.
#[test]
fn the_readmes_file_has_the_same_images() {
    let request = request("digits");
    let pixels: Vec<f32> = request.input("X").unwrap().as_fixed().unwrap().to_vec().unwrap();
    let bytes: Vec<u8> = pixels.iter().map(|pixel| *pixel as u8).collect();
    let file = read("digits.npy");
    let (head, data) = file.split_at(128);
    assert!(
        String::from_utf8_lossy(head).contains("'descr': '|u1', 'fortran_order': False, 'shape': (450, 64)")
    );
    assert_eq!(data, bytes);
}

/// The README claims that this digit is a 7.
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
