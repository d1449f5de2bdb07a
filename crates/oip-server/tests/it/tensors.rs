//! A tensor file as a model: the example of docs/start.md, over both transports.

use std::path::{Path, PathBuf};

use oip_grpc::proto::{
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
    grpc_inference_service_client::GrpcInferenceServiceClient,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};
use oip_types::{
    InferRequest, ModelRef, RequestLimits,
    rest::{HEADER_LENGTH, RequestEncoding, decode_response, encode_request},
};
use serde_json::{Value, json};
use tensor_core::{Shape, Tensor};
use tonic::transport::Endpoint;

use crate::support::{Server, TestResponse};

const INFER: &str = "/v2/models/digit_means/infer";

/// Starts a server with only the tensor file, so that these tests need no other backend.
fn server(arguments: &[&str]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("digit_means/1");
    std::fs::create_dir_all(&copy).unwrap();
    std::fs::copy(example(), copy.join("model.safetensors")).unwrap();
    let mut server = Server::start(folder.path(), arguments);
    let printed = server.wait_until_loaded();
    assert!(printed.contains("mean FP32[..., 64]"), "{printed}");
    // The directory is deleted: a loaded model no longer needs its file.
    server
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digit_means/1/model.safetensors")
}

/// Reads the bytes of `mean` from the file, row by row.
fn mean() -> Vec<f32> {
    let reader = tensor_files::open(&example(), &Default::default()).unwrap();
    reader
        .tensor(reader.find("mean").unwrap())
        .unwrap()
        .to_vec()
        .unwrap()
}

fn rows(digits: &[i64]) -> Vec<f32> {
    let mean = mean();
    let row = |digit: &i64| &mean[*digit as usize * 64..][..64];
    digits.iter().flat_map(row).copied().collect()
}

fn post(server: &Server, body: &Value) -> TestResponse {
    server.request("POST", INFER, &[], body.to_string().as_bytes())
}

/// Extracts the last quoted `-d` argument for this model in docs/start.md.
fn example_request() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/start.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, command) = page.rsplit_once("/v2/models/digit_means/infer -d '").unwrap();
    command.split_once('\'').unwrap().0.to_owned()
}

#[test]
fn the_examples_rows_over_http_json() {
    let server = server(&[]);
    let answer = server.request("POST", INFER, &[], example_request().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.json());
    let output = &answer.json()["outputs"][0];
    assert_eq!(
        (&output["name"], &output["shape"]),
        (&json!("mean"), &json!([2, 64]))
    );
    let data: Vec<f32> = serde_json::from_value(output["data"].clone()).unwrap();
    assert_eq!(data, rows(&[3, 8]));
}

#[test]
fn whole_tensors_over_http_json() {
    let server = server(&[]);
    let answer = post(&server, &json!({"inputs": [], "outputs": [{"name": "count"}]}));
    assert_eq!(answer.json()["outputs"][0]["shape"], json!([10]));
    let all = post(&server, &json!({"inputs": []})).json();
    let names: Vec<&str> = all["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|output| output["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["mean", "count"]);
    let metadata = server.get("/v2/models/digit_means").json();
    assert_eq!(metadata["platform"], "tensorferry_safetensors");
    assert_eq!(
        metadata["inputs"][0],
        json!({"name": "mean.rows", "datatype": "INT64", "shape": [-1]})
    );
    assert_eq!(
        metadata["outputs"][0],
        json!({"name": "mean", "datatype": "FP32", "shape": [-1, 64]})
    );
}

#[test]
fn rows_over_http_binary() {
    let server = server(&[]);
    let digits = Tensor::from_vec(Shape::new(&[2, 2]).unwrap(), vec![9i64, 0, 1, 9]).unwrap();
    let request =
        InferRequest::new(ModelRef::new("digit_means", None).unwrap()).with_input("mean.rows", digits);
    let encoding = RequestEncoding::default().with(|encoding| {
        encoding.binary_inputs = true;
        encoding.binary_outputs = true;
    });
    let body = encode_request(&request, encoding).unwrap();
    let length = body.header_length().unwrap().to_string();
    let answer = server.request("POST", INFER, &[(HEADER_LENGTH, &length)], &body.into_bytes());
    assert_eq!(answer.status, 200);
    let length = answer.header(HEADER_LENGTH).unwrap().parse().unwrap();
    let response = decode_response(&answer.body.into(), Some(length), &RequestLimits::default()).unwrap();
    let output = response.output("mean").unwrap().as_fixed().unwrap();
    assert_eq!(output.shape().dims(), [2, 2, 64]);
    assert_eq!(output.to_vec::<f32>().unwrap(), rows(&[9, 0, 1, 9]));
}

async fn infer(server: &Server, request: ModelInferRequest) -> Result<ModelInferResponse, tonic::Status> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    let mut client = GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap());
    let request = ModelInferRequest {
        model_name: "digit_means".to_owned(),
        ..request
    };
    Ok(client.model_infer(request).await?.into_inner())
}

fn grpc_rows(digits: &[i64]) -> ModelInferRequest {
    ModelInferRequest {
        inputs: vec![InferInputTensor {
            name: "mean.rows".to_owned(),
            datatype: "INT64".to_owned(),
            shape: vec![digits.len() as i64],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![
            digits
                .iter()
                .flat_map(|digit| digit.to_le_bytes())
                .collect::<Vec<u8>>()
                .into(),
        ],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn rows_and_whole_tensors_over_grpc() {
    let server = server(&[]);
    let floats = |raw: &[u8]| -> Vec<f32> {
        raw.chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect()
    };
    let response = infer(&server, grpc_rows(&[3, 8])).await.unwrap();
    assert_eq!(response.outputs[0].shape, [2, 64]);
    assert_eq!(floats(&response.raw_output_contents[0]), rows(&[3, 8]));

    let whole = ModelInferRequest {
        outputs: vec![InferRequestedOutputTensor {
            name: "mean".to_owned(),
            ..InferRequestedOutputTensor::default()
        }],
        ..ModelInferRequest::default()
    };
    let response = infer(&server, whole).await.unwrap();
    assert_eq!(response.outputs[0].shape, [10, 64]);
    assert_eq!(floats(&response.raw_output_contents[0]), mean());

    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    let mut client = GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap());
    let metadata = client.model_metadata(ModelMetadataRequest {
        name: "digit_means".to_owned(),
        version: String::new(),
    });
    assert_eq!(metadata.await.unwrap().into_inner().outputs[0].shape, [-1, 64]);
}

/// Code and message are the same over both transports.
#[tokio::test]
async fn what_cannot_be_had_is_told_alike() {
    let server = server(&["--max-answer-size", "1KiB"]);
    for (digits, message) in [
        (
            &[0i64, 10][..],
            "model 'digit_means': input 'mean.rows': there is no row 10, at position [1]: expected 0 to 9",
        ),
        (
            &[-1],
            "model 'digit_means': input 'mean.rows': there is no row -1, at position [0]: expected 0 to 9",
        ),
        (
            &[0; 5],
            "model 'digit_means': the response would have 1280 bytes of tensors, the limit is 1024: name \
             fewer outputs, or \
             give rows (an input '<tensor>.rows')",
        ),
    ] {
        let input =
            json!({"name": "mean.rows", "datatype": "INT64", "shape": [digits.len()], "data": digits});
        let answer = post(&server, &json!({"inputs": [input]}));
        assert_eq!((answer.status, &answer.json()["error"]), (400, &json!(message)));
        let status = infer(&server, grpc_rows(digits)).await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (tonic::Code::InvalidArgument, message)
        );
    }
}

/// A mapped model is not read into memory, and can still run after its file has been deleted.
#[cfg(target_os = "linux")]
#[test]
fn a_file_is_mapped_where_operator_and_configuration_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    for (model, configuration) in [
        (
            "digit_means",
            "parameters { key: 'mapped' value { string_value: 'true' } }",
        ),
        ("read", ""),
    ] {
        let version = root.join(model).join("1");
        std::fs::create_dir_all(&version).unwrap();
        std::fs::copy(example(), version.join("model.safetensors")).unwrap();
        std::fs::write(root.join(model).join("config.pbtxt"), configuration).unwrap();
    }
    let mut server = Server::start(&root, &[]);
    server.wait_until_loaded();
    let index = server.request("POST", "/v2/repository/index", &[], b"").json();
    assert_eq!(
        index[0]["reason"],
        "its configuration has parameters.mapped = true, but the server maps no files \
         (--allow-mapped-models allows it)"
    );
    drop(server);

    let mut server = Server::start(&root, &["--allow-mapped-models"]);
    server.wait_until_loaded();
    let is_mapped = |model: &str| {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.child.id())).unwrap();
        let file = root.join(model).join("1/model.safetensors");
        maps.contains(file.to_str().unwrap())
    };
    assert!(is_mapped("digit_means") && !is_mapped("read"));
    std::fs::remove_dir_all(root.join("digit_means")).unwrap();
    let body = json!({"inputs": [{"name": "mean.rows", "datatype": "INT64", "shape": [2], "data": [3, 8]}]});
    let answer = post(&server, &body).json();
    let data: Vec<f32> = serde_json::from_value(answer["outputs"][0]["data"].clone()).unwrap();
    assert_eq!(data, rows(&[3, 8]));
}

/// Clients cannot enable mapping.
#[test]
fn mapping_is_not_for_configurations_that_are_sent() {
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("digit_means/1");
    std::fs::create_dir_all(&version).unwrap();
    std::fs::copy(example(), version.join("model.safetensors")).unwrap();
    let arguments = ["--allow-mapped-models", "--model-control-mode=explicit"];
    let mut server = Server::start(folder.path(), &arguments);
    server.wait_until_loaded();
    let config = json!({"parameters": {"mapped": {"string_value": "true"}}}).to_string();
    let body = json!({"parameters": {"config": config}}).to_string();
    let load = "/v2/repository/models/digit_means/load";
    let answer = server.request("POST", load, &[], body.as_bytes());
    assert_eq!(
        (answer.status, answer.json()["error"].as_str().unwrap()),
        (
            400,
            "failed to load 'digit_means', its config: parameters.mapped is allowed only for configurations \
             in the repository"
        )
    );
}
