//! Tests failing requests and their status codes.

use std::time::Duration;

use oip_grpc::{
    GrpcConfig,
    proto::{
        InferTensorContents, ModelInferRequest, ModelMetadataRequest, infer_parameter::ParameterChoice,
        model_infer_request::InferRequestedOutputTensor,
    },
};
use oip_resources::{ByteBudget, TimeLimits};
use oip_service::testing::identity;
use oip_types::DataType;
use tonic::{Code, Request, Status};

use crate::support::{client, client_with, good, input, parameter, raw_x, typed_x};

async fn refusal(request: ModelInferRequest) -> Status {
    let status = client().model_infer(request).await.unwrap_err();
    let message = status.message();
    assert!(
        message.len() <= 1024 && !message.contains('\n') && !message.contains("src/"),
        "{message}"
    );
    status
}

async fn assert_invalid(request: ModelInferRequest, message: &str) {
    let status = refusal(request).await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, message)
    );
}

#[tokio::test]
async fn codes_of_models() {
    for (model, code, message) in [
        ("zz", Code::NotFound, "model 'zz' does not exist"),
        (
            "loading",
            Code::Unavailable,
            "model 'loading' is not ready: it is being loaded",
        ),
        ("failing", Code::Internal, "model 'failing': it failed"),
        (
            "busy",
            Code::ResourceExhausted,
            "model 'busy': its queue is full; try again later",
        ),
    ] {
        let status = refusal(ModelInferRequest {
            model_name: model.into(),
            ..good()
        })
        .await;
        assert_eq!((status.code(), status.message()), (code, message));
    }
}

/// Rejects raw contents that do not match the inputs.
#[tokio::test]
async fn raw_contents_and_inputs() {
    let too_many = ModelInferRequest {
        raw_input_contents: vec![vec![0; 4].into(); 2],
        ..good()
    };
    assert_invalid(
        too_many,
        "model 'identity_fp32': expected 1 raw_input_contents, one per input, found 2",
    )
    .await;
    let mut both = good();
    both.inputs[0].contents = Some(InferTensorContents {
        fp32_contents: vec![1.0],
        ..Default::default()
    });
    assert_invalid(
        both,
        "model 'identity_fp32': input 'x': expected no contents together with raw_input_contents",
    )
    .await;
    let neither = ModelInferRequest {
        raw_input_contents: vec![],
        ..good()
    };
    assert_invalid(
        neither,
        "model 'identity_fp32': input 'x': expected contents or raw_input_contents, found neither",
    )
    .await;
    let no_inputs = ModelInferRequest {
        inputs: vec![],
        ..good()
    };
    assert_invalid(
        no_inputs,
        "model 'identity_fp32': expected 0 raw_input_contents, one per input, found 1",
    )
    .await;
}

/// Rejects raw contents of the wrong length, for each datatype.
#[tokio::test]
async fn raw_lengths() {
    for datatype in oip_service::testing::datatypes().filter_map(DataType::dtype) {
        let datatype = DataType::Fixed(datatype);
        let right = 2 * datatype.dtype().unwrap().size();
        for wrong in [right - 1, right + 1, 0] {
            let request = raw_x(&identity(datatype), datatype.name(), &[2], &vec![0; wrong]);
            let message = format!(
                "model '{}': input 'x': expected {right} bytes for {datatype}[2], found {wrong}",
                identity(datatype)
            );
            assert_invalid(request, &message).await;
        }
    }
}

/// Rejects BYTES elements with wrong lengths.
#[tokio::test]
async fn raw_bytes() {
    for (raw, message) in [
        (
            &[0xff, 0xff, 0xff, 0xff, 1][..],
            "BYTES element 0 is truncated at byte 4: expected 4294967295 bytes of data, found 1",
        ),
        (
            &[1, 0],
            "BYTES element 0 is truncated at byte 0: expected 4 bytes of length, found 2",
        ),
        (
            &[0, 0, 0, 0, 0, 0, 0, 0],
            "expected 1 BYTES elements for shape [1], found 2",
        ),
        (&[], "expected 1 BYTES elements for shape [1], found 0"),
    ] {
        let message = format!("model 'identity_bytes': input 'x': {message}");
        assert_invalid(raw_x("identity_bytes", "BYTES", &[1], raw), &message).await;
    }
}

/// Rejects invalid shapes.
#[tokio::test]
async fn shapes() {
    for (shape, message) in [
        (&[-1][..], "shape [-1] has a negative dimension"),
        (
            &[i64::MIN],
            "shape [-9223372036854775808] has a negative dimension",
        ),
        (
            &[1 << 62, 4],
            "the element count of shape [4611686018427387904, 4] does not fit 64 bits",
        ),
        (&[1; 33], "shape has 33 dimensions, the limit is 32"),
        (
            &[1 << 40, 1 << 40],
            "the element count of shape [1099511627776, 1099511627776] does not fit 64 bits",
        ),
        // The element count fits 64 bits, the byte count does not.
        (
            &[1 << 62],
            "the byte length of FP32[4611686018427387904] does not fit 64 bits",
        ),
    ] {
        let message = format!("model 'identity_fp32': input 'x': {message}");
        assert_invalid(raw_x("identity_fp32", "FP32", shape, &[0; 4]), &message).await;
    }
}

/// Rejects typed contents in the wrong field, out of range or of the wrong number.
#[tokio::test]
async fn typed_contents() {
    let empty = InferTensorContents::default;
    let ints = |ints: &[i32]| InferTensorContents {
        int_contents: ints.into(),
        ..empty()
    };
    let floats = InferTensorContents {
        fp32_contents: vec![1.0],
        ..empty()
    };
    for (datatype, contents, message) in [
        ("INT8", ints(&[300]), "element 0: 300 does not fit INT8"),
        ("INT16", ints(&[-40000]), "element 0: -40000 does not fit INT16"),
        (
            "UINT8",
            InferTensorContents {
                uint_contents: vec![256],
                ..empty()
            },
            "element 0: 256 does not fit UINT8",
        ),
        (
            "INT32",
            floats.clone(),
            "expected int_contents for INT32, found fp32_contents",
        ),
        (
            "FP16",
            floats.clone(),
            "FP16 has no typed contents; send raw_input_contents",
        ),
        (
            "BF16",
            floats.clone(),
            "BF16 has no typed contents; send raw_input_contents",
        ),
        (
            "INT32",
            InferTensorContents {
                fp32_contents: vec![1.0],
                ..ints(&[1])
            },
            "expected int_contents for INT32, found fp32_contents",
        ),
        (
            "INT32",
            ints(&[1, 2]),
            "expected 1 elements for shape [1], found 2",
        ),
        ("INT32", empty(), "expected 1 elements for shape [1], found 0"),
        ("BYTES", empty(), "expected 1 elements for shape [1], found 0"),
    ] {
        let model = identity(DataType::from_name(datatype).unwrap());
        let expected = format!("model '{model}': input 'x': {message}");
        assert_invalid(typed_x(&model, datatype, &[1], contents), &expected).await;
    }
}

/// Rejects unsafe and unknown names, and models that are not ready.
#[tokio::test]
async fn names() {
    use Code::{InvalidArgument, NotFound, Unavailable};
    for (name, code, message) in [
        ("", InvalidArgument, "model name '' must not be empty"),
        (
            "..",
            InvalidArgument,
            "model name '..' must not be a path or a hidden file's name",
        ),
        (
            "a/b",
            InvalidArgument,
            "model name 'a/b' must not contain a path separator",
        ),
        (
            "x\nforged",
            InvalidArgument,
            "model name 'x\\nforged' must not contain control characters",
        ),
        ("zz", NotFound, "model 'zz' does not exist"),
        (
            "loading",
            Unavailable,
            "model 'loading' is not ready: it is being loaded",
        ),
    ] {
        let request = ModelInferRequest {
            model_name: name.into(),
            ..good()
        };
        let status = refusal(request).await;
        assert_eq!((status.code(), status.message()), (code, message));
        let request = ModelMetadataRequest {
            name: name.into(),
            version: String::new(),
        };
        let status = client().model_metadata(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, message));
    }
    let version = |version: &str| ModelInferRequest {
        model_version: version.into(),
        ..good()
    };
    assert_invalid(
        version("../1"),
        "model version '../1' must not contain a path separator",
    )
    .await;
    let status = refusal(version("9")).await;
    let expected = (NotFound, "model 'identity_fp32' version '9' does not exist");
    assert_eq!((status.code(), status.message()), expected);
}

#[tokio::test]
async fn names_of_tensors_and_counts() {
    let wrong_dtype = raw_x("identity_fp32", "fp32", &[1], &[0; 4]);
    assert_invalid(
        wrong_dtype,
        "model 'identity_fp32': input 'x': unknown datatype 'fp32' (did you mean 'FP32'?)",
    )
    .await;
    let mut twice = good();
    twice.inputs.push(input("x", "FP32", &[1]));
    twice.raw_input_contents.push(vec![0; 4].into());
    assert_invalid(twice, "model 'identity_fp32': input 'x' is given more than once").await;
    let output = InferRequestedOutputTensor {
        name: "nope".into(),
        ..Default::default()
    };
    let unknown = ModelInferRequest {
        outputs: vec![output.clone()],
        ..good()
    };
    assert_invalid(
        unknown,
        "model 'identity_fp32': unexpected output 'nope'; the model gives 'y' (FP32[-1])",
    )
    .await;
    let many = ModelInferRequest {
        outputs: vec![output; 257],
        ..good()
    };
    assert!(refusal(many).await.message().contains("the limit is 256"));
    let id = ModelInferRequest {
        id: "x".repeat(1 << 20),
        ..good()
    };
    assert!(refusal(id).await.message().contains("the limit is 1024"));
}

#[tokio::test]
async fn parameters() {
    for (name, choice) in [
        ("triton_x", Some(ParameterChoice::BoolParam(true))),
        ("binary_data_output", Some(ParameterChoice::Int64Param(1))),
        ("timeout", Some(ParameterChoice::StringParam("soon".into()))),
        ("empty", None),
        (
            "triton_enable_empty_final_response",
            Some(ParameterChoice::Int64Param(1)),
        ),
    ] {
        let mut request = good();
        let value = choice.map_or_else(Default::default, parameter);
        request.parameters.insert(name.into(), value);
        assert_eq!(refusal(request).await.code(), Code::InvalidArgument, "{name}");
    }
}

/// Ends calls at their deadline, and rejects malformed deadlines.
#[tokio::test]
async fn deadlines() {
    let call = |timeout: &'static str| async move {
        let mut request = Request::new(ModelInferRequest {
            model_name: "slow".into(),
            ..good()
        });
        request
            .metadata_mut()
            .insert("grpc-timeout", timeout.parse().unwrap());
        client().model_infer(request).await.unwrap_err()
    };
    for timeout in ["1n", "1m", "0S", "50m"] {
        assert_eq!(call(timeout).await.code(), Code::DeadlineExceeded, "{timeout}");
    }
    for timeout in ["abc", "-1S", "123456789S"] {
        assert_eq!(call(timeout).await.code(), Code::InvalidArgument, "{timeout}");
    }
    // The server's limit applies to clients with a longer deadline.
    let time = TimeLimits::default().with(|time| {
        time.default = Duration::from_millis(30);
        time.max = Duration::from_millis(30);
    });
    let (mut client, test) = client_with(GrpcConfig::default().with(|config| config.time = time));
    let mut request = Request::new(ModelInferRequest {
        model_name: "slow".into(),
        ..good()
    });
    request
        .metadata_mut()
        .insert("grpc-timeout", "99999999H".parse().unwrap());
    let status = client.model_infer(request).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::DeadlineExceeded, "model 'slow': the deadline passed")
    );
    assert_eq!(test.waiting(), 0, "the work goes on");
}

/// Accepts messages of the maximum size, and rejects larger ones.
#[tokio::test]
async fn message_limit() {
    let request = raw_x("identity_uint8", "UINT8", &[10_000], &[1; 10_000]);
    let size = prost::Message::encoded_len(&request);
    for (limit, code) in [
        (size - 1, Some(Code::ResourceExhausted)),
        (size, None),
        (size + 1, None),
    ] {
        let config = GrpcConfig::default().with(|config| config.max_message_bytes = limit);
        let answer = client_with(config).0.model_infer(request.clone()).await;
        assert_eq!(answer.err().map(|status| status.code()), code, "{limit}");
    }
}

/// When the message budget is used up, the next message is rejected.
#[tokio::test]
async fn messages_share_a_budget() {
    let budget = ByteBudget::new(20_000);
    let (mut client, _) = client_with(GrpcConfig::default().with(|config| config.budget = budget.clone()));
    let request = raw_x("identity_uint8", "UINT8", &[10_000], &[1; 10_000]);
    let taken = budget.take(15_000).unwrap();
    let status = client.model_infer(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    drop(taken);
    client.model_infer(request).await.unwrap();
    assert_eq!(budget.used(), 0, "bytes were not given back");
}
