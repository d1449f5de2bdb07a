//! Tests inputs and outputs in shared memory, classification and priorities.

use std::sync::Arc;

use oip_grpc::{
    GrpcConfig,
    proto::{
        InferParameter, InferTensorContents, ModelInferRequest,
        grpc_inference_service_client::GrpcInferenceServiceClient, infer_parameter::ParameterChoice,
        model_infer_request::InferRequestedOutputTensor,
    },
    service,
};
use oip_resources::ByteBudget;
use oip_service::{InferenceService, testing::TestService};
use oip_types::SharedMemoryRegion;
use tonic::{Code, Status};

use crate::support::{
    Client, Recorder, client, client_with, floats, good, input, parameter, plain_client, raw_x,
};

type Parameters = std::collections::BTreeMap<String, InferParameter>;

fn slice(offset: i64, byte_size: i64) -> Parameters {
    let number = |number| parameter(ParameterChoice::Int64Param(number));
    Parameters::from([
        (
            "shared_memory_region".to_owned(),
            parameter(ParameterChoice::StringParam("r".into())),
        ),
        ("shared_memory_byte_size".to_owned(), number(byte_size)),
        ("shared_memory_offset".to_owned(), number(offset)),
    ])
}

fn output(name: &str, parameters: Parameters) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor {
        name: name.into(),
        parameters,
    }
}

/// Returns a client, and 64 bytes of shared memory: FP32 values 1, 2, ... at 0, and INT64 5 at 32.
fn with_memory(config: GrpcConfig) -> (Client, Arc<TestService>) {
    let (client, test) = client_with(config);
    let mut memory: Vec<u8> = (1..=8u8)
        .flat_map(|value| f32::from(value).to_le_bytes())
        .collect();
    memory.extend(5i64.to_le_bytes());
    memory.resize(64, 0);
    test.share("/k", memory);
    let region = SharedMemoryRegion {
        name: "r".into(),
        key: "/k".into(),
        offset: 0,
        byte_size: 64,
    };
    test.shared_memory().unwrap().register(region).unwrap();
    (client, test)
}

fn said(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

/// Raw contents belong to the inputs outside shared memory, in order.
#[tokio::test]
async fn inputs_in_shared_memory_and_beside() {
    let (mut client, _) = with_memory(GrpcConfig::default());
    let mut a = input("a", "FP32", &[2, 2]);
    a.parameters = slice(0, 16);
    let request = ModelInferRequest {
        model_name: "matrix".into(),
        inputs: vec![a.clone(), input("b", "INT64", &[1])],
        raw_input_contents: vec![9i64.to_le_bytes().to_vec().into()],
        ..Default::default()
    };
    let response = client.model_infer(request.clone()).await.unwrap().into_inner();
    let sums = [3f32.to_le_bytes(), 7f32.to_le_bytes()].concat();
    assert_eq!(response.raw_output_contents, [&sums[..], &9i64.to_le_bytes()]);

    // The response mirrors the form of the inputs. Inputs in shared memory have no form, so the response to a
    // request with only such inputs is raw.
    let mut b = input("b", "INT64", &[1]);
    b.parameters = slice(32, 8);
    let all = ModelInferRequest {
        inputs: vec![a.clone(), b],
        raw_input_contents: vec![],
        ..request.clone()
    };
    let response = client.model_infer(all).await.unwrap().into_inner();
    assert_eq!(response.raw_output_contents, [&sums[..], &5i64.to_le_bytes()]);

    let too_many = ModelInferRequest {
        raw_input_contents: vec![vec![0; 8].into(); 2],
        ..request.clone()
    };
    let status = client.model_infer(too_many).await.unwrap_err();
    let message =
        "model 'matrix': expected 1 raw_input_contents, one per input that is not in shared memory, found 2";
    assert_eq!(said(&status), (Code::InvalidArgument, message));
    a.contents = Some(InferTensorContents::default());
    let both = ModelInferRequest {
        inputs: vec![a],
        raw_input_contents: vec![],
        ..request
    };
    let status = client.model_infer(both).await.unwrap_err();
    let message = "model 'matrix': input 'a': expected contents or shared_memory_region, found both";
    assert_eq!(said(&status), (Code::InvalidArgument, message));
}

/// Outputs in shared memory keep an empty entry among the raw contents, because clients match contents by
/// index.
#[tokio::test]
async fn outputs_in_shared_memory() {
    let (mut client, test) = with_memory(GrpcConfig::default());
    let mut request = ModelInferRequest {
        model_name: "matrix".into(),
        inputs: vec![input("a", "FP32", &[1, 2]), input("b", "INT64", &[1])],
        outputs: vec![output("sum", slice(40, 4)), output("b", Parameters::new())],
        raw_input_contents: vec![
            [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat().into(),
            9i64.to_le_bytes().to_vec().into(),
        ],
        ..Default::default()
    };
    let response = client.model_infer(request.clone()).await.unwrap().into_inner();
    assert_eq!(response.raw_output_contents, [&[][..], &9i64.to_le_bytes()]);
    let sum = &response.outputs[0];
    assert_eq!(
        (&*sum.datatype, &sum.shape[..], &sum.contents),
        ("FP32", &[1][..], &None)
    );
    assert_eq!(sum.parameters, slice(40, 4));
    assert!(response.outputs[1].parameters.is_empty());
    assert_eq!(test.shared("/k").unwrap()[40..44], 3f32.to_le_bytes());

    // In typed form, the output in shared memory has no contents, and the other output uses the datatype's
    // field.
    let typed = parameter(ParameterChoice::BoolParam(false));
    request.parameters.insert("binary_data_output".into(), typed);
    let response = client.model_infer(request.clone()).await.unwrap().into_inner();
    assert!(response.raw_output_contents.is_empty());
    let contents: Vec<_> = response
        .outputs
        .iter()
        .map(|output| output.contents.as_ref())
        .collect();
    let nine = InferTensorContents {
        int64_contents: vec![9],
        ..Default::default()
    };
    assert_eq!(contents, [None, Some(&nine)]);

    request.outputs[0].parameters = slice(40, 3);
    let status = client.model_infer(request).await.unwrap_err();
    let message = "model 'matrix' version '2': output 'sum': shared memory region 'r': expected at least 4 bytes, found 3";
    assert_eq!(said(&status), (Code::InvalidArgument, message));
}

#[tokio::test]
async fn wrong_slices_are_refused() {
    let (mut client, _) = with_memory(GrpcConfig::default());
    let mut region = slice(0, 4);
    region.remove("shared_memory_byte_size");
    for (parameters, message) in [
        (
            slice(60, 8),
            "shared memory region 'r': the slice is not within it",
        ),
        (slice(0, 8), "expected 4 bytes for FP32[1], found 8"),
        (
            region,
            "parameter 'shared_memory_byte_size': expected a number of bytes, found nothing",
        ),
        (
            slice(-1, 4),
            "parameter 'shared_memory_offset': expected a number of bytes, found -1",
        ),
    ] {
        let mut request = good();
        request.inputs[0].parameters = parameters;
        request.raw_input_contents.clear();
        let status = client.model_infer(request).await.unwrap_err();
        let message = format!("model 'identity_fp32': input 'x': {message}");
        assert_eq!(said(&status), (Code::InvalidArgument, &*message));
    }
}

/// Copies out of shared memory count toward the budget like message bytes.
#[tokio::test]
async fn copies_of_shared_memory_count() {
    let budget = ByteBudget::new(1000);
    let (mut client, _) = with_memory(GrpcConfig::default().with(|config| config.budget = budget.clone()));
    let mut request = good();
    request.inputs[0] = input("x", "FP32", &[16]);
    request.inputs[0].parameters = slice(0, 64);
    request.raw_input_contents.clear();
    let size = prost::Message::encoded_len(&request) as u64;
    let taken = budget.take(1000 - size - 63).unwrap();
    let status = client.model_infer(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    drop(taken);
    client.model_infer(request).await.unwrap();
    assert_eq!(budget.used(), 0, "bytes were not given back");
}

#[tokio::test]
async fn without_the_extensions_they_are_refused() {
    let mut shared = good();
    shared.inputs[0].parameters = slice(0, 4);
    shared.raw_input_contents.clear();
    let mut to_memory = good();
    to_memory.outputs = vec![output("y", slice(0, 4))];
    let mut classes = good();
    classes.outputs = vec![output("y", classification(ParameterChoice::Int64Param(1)))];
    for (request, message) in [
        (
            shared,
            "input 'x': shared memory region 'r': shared memory is not offered by this server; send the data itself",
        ),
        (
            to_memory,
            "output 'y': shared memory is not offered by this server",
        ),
        (
            classes,
            "output 'y': classification is not offered by this server",
        ),
    ] {
        let status = plain_client().model_infer(request).await.unwrap_err();
        let message = format!("model 'identity_fp32': {message}");
        assert_eq!(said(&status), (Code::InvalidArgument, &*message));
    }
}

fn classification(choice: ParameterChoice) -> Parameters {
    Parameters::from([("classification".to_owned(), parameter(choice))])
}

#[tokio::test]
async fn outputs_become_classes() {
    let mut request = floats("identity_fp32", &[0.5, 2.0, 1.0]);
    request.outputs = vec![output("y", classification(ParameterChoice::Int64Param(2)))];
    let response = client().model_infer(request.clone()).await.unwrap().into_inner();
    assert_eq!(
        (&*response.outputs[0].datatype, &response.outputs[0].shape[..]),
        ("BYTES", &[2][..])
    );
    assert_eq!(
        response.raw_output_contents,
        [&b"\x0e\0\0\x002.000000:1:dog\x0a\0\0\x001.000000:2"[..]]
    );
    for (choice, found) in [
        (ParameterChoice::Int64Param(0), "0"),
        (ParameterChoice::Int64Param(-1), "-1"),
        (ParameterChoice::StringParam("2".into()), "'2'"),
    ] {
        request.outputs = vec![output("y", classification(choice))];
        let status = client().model_infer(request.clone()).await.unwrap_err();
        let message = format!(
            "model 'identity_fp32': output 'y': parameter 'classification': expected a number of classes above 0, \
             found {found}"
        );
        assert_eq!(said(&status), (Code::InvalidArgument, &*message));
    }
}

#[tokio::test]
async fn priorities_reach_the_service() {
    let recorder = Arc::new(Recorder::default());
    let mut client = GrpcInferenceServiceClient::new(service(recorder.clone(), GrpcConfig::default()));
    client.model_infer(good()).await.unwrap();
    // Triton's clients send an unsigned number.
    for choice in [ParameterChoice::Uint64Param(7), ParameterChoice::Int64Param(2)] {
        let mut request = good();
        request.parameters.insert("priority".into(), parameter(choice));
        client.model_infer(request).await.unwrap();
    }
    let priorities = || -> Vec<u64> {
        let seen = recorder.seen.lock().unwrap();
        seen.iter().map(|seen| seen.priority).collect()
    };
    assert_eq!(priorities(), [0, 7, 2]);
    let mut request = raw_x("identity_fp32", "FP32", &[1], &[0; 4]);
    let negative = parameter(ParameterChoice::Int64Param(-1));
    request.parameters.insert("priority".into(), negative);
    let status = client.model_infer(request).await.unwrap_err();
    assert_eq!(
        said(&status),
        (
            Code::InvalidArgument,
            "parameter 'priority': expected a priority of 0 or more, found -1"
        )
    );
}
