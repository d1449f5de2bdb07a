//! GR-27: every failure that exists in both transports, described once, sent through both, judged alike.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use http_body_util::BodyExt;
use oip_grpc::{
    GrpcConfig, GrpcService,
    proto::{
        InferParameter, ModelInferRequest,
        grpc_inference_service_client::GrpcInferenceServiceClient,
        infer_parameter::ParameterChoice,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
};
use oip_http::HttpConfig;
use oip_service::{ByteBudget, TimeLimits, testing::TestService};
use oip_types::ErrorCode::{self, *};
use serde_json::{Value, json};
use tower::ServiceExt;

/// A request in no transport's form.
#[derive(Clone)]
struct Neutral {
    model: String,
    version: String,
    id: String,
    parameters: Vec<(&'static str, Parameter)>,
    inputs: Vec<Input>,
    outputs: Vec<String>,
}

#[derive(Clone)]
struct Input {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    raw: Vec<u8>,
}

#[derive(Clone)]
enum Parameter {
    Bool(bool),
    Int(i64),
    String(&'static str),
}

fn input(name: &str, datatype: &str, shape: &[i64], raw: &[u8]) -> Input {
    Input {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.into(),
        raw: raw.into(),
    }
}

/// A request that succeeds.
fn good() -> Neutral {
    Neutral {
        model: "identity_fp32".into(),
        version: String::new(),
        id: "42".into(),
        parameters: vec![],
        inputs: vec![input("x", "FP32", &[2], &[0; 8])],
        outputs: vec![],
    }
}

fn to_model(model: &str) -> Neutral {
    Neutral {
        model: model.into(),
        ..good()
    }
}

fn with_input(model: &str, input: Input) -> Neutral {
    Neutral {
        model: model.into(),
        inputs: vec![input],
        ..good()
    }
}

fn with_parameter(name: &'static str, value: Parameter) -> Neutral {
    Neutral {
        parameters: vec![(name, value)],
        ..good()
    }
}

/// Each failure with the verdict and a part of the message that says it.
fn failures() -> Vec<(&'static str, Neutral, ErrorCode, &'static str)> {
    let x = |shape: &[i64], raw: &[u8]| with_input("identity_fp32", input("x", "FP32", shape, raw));
    let bytes = |raw: &[u8]| with_input("identity_bytes", input("x", "BYTES", &[1], raw));
    let many = Neutral {
        outputs: vec!["y".into(); 256],
        ..good()
    };
    let two = Neutral {
        inputs: vec![good().inputs[0].clone(); 2],
        ..good()
    };
    vec![
        (
            "unknown model",
            to_model("zz"),
            NotFound,
            "model 'zz' does not exist",
        ),
        (
            "unknown version",
            Neutral {
                version: "99".into(),
                ..to_model("matrix")
            },
            NotFound,
            "version '99' does not exist",
        ),
        (
            "model not ready",
            to_model("loading"),
            Unavailable,
            "model 'loading' is not ready",
        ),
        (
            "model fails",
            to_model("failing"),
            Internal,
            "model 'failing': it failed",
        ),
        ("queue full", to_model("busy"), Overloaded, "its queue is full"),
        (
            "deadline",
            Neutral {
                parameters: vec![("timeout", Parameter::Int(1000))],
                ..to_model("slow")
            },
            DeadlineExceeded,
            "the deadline passed",
        ),
        (
            "GR-26 dots",
            to_model(".."),
            InvalidArgument,
            "must not be a path",
        ),
        ("GR-26 slash", to_model("a/b"), InvalidArgument, "path separator"),
        (
            "HT-16 version",
            Neutral {
                version: "../1".into(),
                ..to_model("matrix")
            },
            InvalidArgument,
            "path separator",
        ),
        (
            "HT-22 overflow",
            x(&[16, (1 << 60) + 2], &[0; 4]),
            InvalidArgument,
            "does not fit 64 bits",
        ),
        (
            "HT-22 square",
            x(&[1 << 20, 1 << 20], &[0; 32]),
            InvalidArgument,
            "expected 4398046511104 bytes",
        ),
        (
            "HT-23 byte overflow",
            x(&[4, (1 << 60) + 2], &[0; 4]),
            InvalidArgument,
            "does not fit 64 bits",
        ),
        (
            "HT-24 negative dimension",
            x(&[-5], &[0; 4]),
            InvalidArgument,
            "negative dimension",
        ),
        (
            "HT-24 rank",
            x(&[1; 33], &[0; 4]),
            InvalidArgument,
            "33 dimensions, the limit is 32",
        ),
        (
            "wrong rank",
            x(&[1, 2], &[0; 8]),
            InvalidArgument,
            "input 'x': expected shape [-1], found [1, 2]",
        ),
        (
            "GR-20 one byte short",
            x(&[2], &[0; 7]),
            InvalidArgument,
            "input 'x': expected 8 bytes for FP32[2], found 7",
        ),
        (
            "GR-20 one byte more",
            x(&[2], &[0; 9]),
            InvalidArgument,
            "input 'x': expected 8 bytes for FP32[2], found 9",
        ),
        (
            "GR-21 lying length",
            bytes(&[255, 255, 255, 255, 1]),
            InvalidArgument,
            "BYTES element 0 is cut off",
        ),
        (
            "GR-21 cut prefix",
            bytes(&[1, 0]),
            InvalidArgument,
            "BYTES element 0 is cut off",
        ),
        (
            "GR-21 count",
            bytes(&[0; 8]),
            InvalidArgument,
            "expected 1 BYTES elements for shape [1], found 2",
        ),
        (
            "HT-27 spelling",
            with_input("identity_fp32", input("x", "fp32", &[2], &[0; 8])),
            InvalidArgument,
            "did you mean 'FP32'?",
        ),
        (
            "HT-27 unknown",
            with_input("identity_fp32", input("x", "FLOAT", &[2], &[0; 8])),
            InvalidArgument,
            "unknown datatype 'FLOAT'",
        ),
        (
            "wrong datatype",
            with_input("identity_fp32", input("x", "FP64", &[1], &[0; 8])),
            InvalidArgument,
            "expected datatype FP32, found FP64",
        ),
        (
            "HT-30 missing input",
            Neutral {
                inputs: vec![],
                ..good()
            },
            InvalidArgument,
            "input 'x' (FP32[-1]) is missing",
        ),
        (
            "HT-30 unknown input",
            with_input("identity_fp32", input("qq", "FP32", &[2], &[0; 8])),
            InvalidArgument,
            "unexpected input 'qq'",
        ),
        (
            "HT-30 input twice",
            two,
            InvalidArgument,
            "input 'x' is given more than once",
        ),
        (
            "HT-30 unknown output",
            Neutral {
                outputs: vec!["nope".into()],
                ..good()
            },
            InvalidArgument,
            "unexpected output 'nope'",
        ),
        (
            "HT-30 output twice",
            Neutral {
                outputs: vec!["y".into(); 2],
                ..good()
            },
            InvalidArgument,
            "output 'y' is requested more than once",
        ),
        (
            "HT-32 too many tensors",
            many,
            InvalidArgument,
            "the limit is 256",
        ),
        (
            "HT-33 id",
            Neutral {
                id: "x".repeat(1025),
                ..good()
            },
            InvalidArgument,
            "too many bytes of id: the limit is 1024",
        ),
        (
            "HT-34 reserved parameter",
            with_parameter("triton_x", Parameter::Bool(true)),
            InvalidArgument,
            "reserved",
        ),
        (
            "HT-34 timeout",
            with_parameter("timeout", Parameter::String("soon")),
            InvalidArgument,
            "expected microseconds",
        ),
        (
            "HT-34 binary_data_output",
            with_parameter("binary_data_output", Parameter::Int(1)),
            InvalidArgument,
            "binary_data_output",
        ),
    ]
}

impl Neutral {
    fn http(&self) -> Request<Body> {
        let encode = |name: &str| name.replace('/', "%2f");
        let mut path = format!("/v2/models/{}", encode(&self.model));
        if !self.version.is_empty() {
            path += &format!("/versions/{}", encode(&self.version));
        }
        let parameter = |parameter: &Parameter| match parameter {
            Parameter::Bool(value) => json!(value),
            Parameter::Int(value) => json!(value),
            Parameter::String(value) => json!(value),
        };
        let inputs: Vec<Value> = self
            .inputs
            .iter()
            .map(|input| {
                json!({
                    "name": input.name, "datatype": input.datatype, "shape": input.shape,
                    "parameters": {"binary_data_size": input.raw.len()},
                })
            })
            .collect();
        let outputs: Vec<Value> = self.outputs.iter().map(|name| json!({"name": name})).collect();
        let parameters: serde_json::Map<String, Value> = self
            .parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), parameter(value)))
            .collect();
        let json = json!({"id": self.id, "parameters": parameters, "inputs": inputs, "outputs": outputs})
            .to_string();
        let mut body = json.clone().into_bytes();
        self.inputs
            .iter()
            .for_each(|input| body.extend_from_slice(&input.raw));
        Request::post(format!("{path}/infer"))
            .header("host", "x")
            .header("inference-header-content-length", json.len())
            .body(body.into())
            .unwrap()
    }

    fn grpc(&self) -> ModelInferRequest {
        let parameter = |(name, value): &(&str, Parameter)| {
            let choice = match value {
                Parameter::Bool(value) => ParameterChoice::BoolParam(*value),
                Parameter::Int(value) => ParameterChoice::Int64Param(*value),
                Parameter::String(value) => ParameterChoice::StringParam((*value).to_owned()),
            };
            (
                (*name).to_owned(),
                InferParameter {
                    parameter_choice: Some(choice),
                },
            )
        };
        let inputs = self.inputs.iter().map(|input| InferInputTensor {
            name: input.name.clone(),
            datatype: input.datatype.clone(),
            shape: input.shape.clone(),
            ..Default::default()
        });
        let outputs = self.outputs.iter().map(|name| InferRequestedOutputTensor {
            name: name.clone(),
            ..Default::default()
        });
        ModelInferRequest {
            model_name: self.model.clone(),
            model_version: self.version.clone(),
            id: self.id.clone(),
            parameters: self.parameters.iter().map(parameter).collect(),
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            raw_input_contents: self.inputs.iter().map(|input| input.raw.clone().into()).collect(),
        }
    }
}

/// Both transports in front of one service.
struct Both {
    http: Router,
    grpc: GrpcInferenceServiceClient<GrpcService>,
}

impl Both {
    fn new(http: HttpConfig, grpc: GrpcConfig) -> Self {
        let service = Arc::new(TestService::default());
        Self {
            http: oip_http::router(service.clone(), http),
            grpc: GrpcInferenceServiceClient::new(oip_grpc::service(service, grpc)),
        }
    }

    /// Status and message of each: HTTP's number and gRPC's, 200 and 0 for success.
    async fn send(&mut self, request: &Neutral) -> [(i32, String); 2] {
        let response = self.http.clone().oneshot(request.http()).await.unwrap();
        let status = i32::from(response.status().as_u16());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let message = serde_json::from_slice::<Value>(&body)
            .ok()
            .and_then(|json| Some(json["error"].as_str()?.to_owned()));
        let grpc = match self.grpc.model_infer(request.grpc()).await {
            Ok(_) => (0, String::new()),
            Err(status) => (status.code() as i32, status.message().to_owned()),
        };
        [(status, message.unwrap_or_default()), grpc]
    }
}

#[tokio::test]
async fn gr_27_every_failure_is_judged_alike() {
    let time = TimeLimits {
        default: Duration::from_secs(20),
        max: Duration::from_secs(20),
    };
    let http = HttpConfig {
        time,
        ..HttpConfig::default()
    };
    let mut both = Both::new(
        http,
        GrpcConfig {
            time,
            ..GrpcConfig::default()
        },
    );
    let [http, grpc] = both.send(&good()).await;
    assert_eq!((http.0, grpc.0), (200, 0), "{} {}", http.1, grpc.1);
    for (name, request, code, message) in failures() {
        let [http, grpc] = both.send(&request).await;
        assert_eq!(http.1, grpc.1, "{name}: the messages differ");
        assert!(http.1.contains(message), "{name}: {}", http.1);
        assert_eq!(
            (http.0, grpc.0),
            (i32::from(code.http_status()), code.grpc_code()),
            "{name}"
        );
    }
}

/// What each transport finds out in its own way: sizes, budgets and compressions.
#[tokio::test]
async fn gr_27_limits_are_judged_alike() {
    let verdicts = |http: HttpConfig, grpc: GrpcConfig| async move {
        let request = with_input("identity_uint8", input("x", "UINT8", &[5000], &[0; 5000]));
        Both::new(http, grpc).send(&request).await.map(|(code, _)| code)
    };
    let pair = |code: ErrorCode| [i32::from(code.http_status()), code.grpc_code()];

    let http = HttpConfig {
        max_body_bytes: 4000,
        ..HttpConfig::default()
    };
    assert_eq!(
        verdicts(
            http,
            GrpcConfig {
                max_message_bytes: 4000,
                ..GrpcConfig::default()
            }
        )
        .await,
        pair(TooLarge)
    );

    let budget = ByteBudget::new(4000);
    let http = HttpConfig {
        budget: budget.clone(),
        ..HttpConfig::default()
    };
    assert_eq!(
        verdicts(
            http,
            GrpcConfig {
                budget,
                ..GrpcConfig::default()
            }
        )
        .await,
        pair(Overloaded)
    );
}

/// The table that both transports answer by: no two codes may surprise a client of one that knows the other.
#[test]
fn every_code_has_its_status_in_both_transports() {
    let table: Vec<(ErrorCode, u16, tonic::Code)> = ErrorCode::ALL
        .into_iter()
        .map(|code| (code, code.http_status(), tonic::Code::from_i32(code.grpc_code())))
        .collect();
    assert_eq!(
        table,
        [
            (InvalidArgument, 400, tonic::Code::InvalidArgument),
            (NotFound, 404, tonic::Code::NotFound),
            (TooLarge, 413, tonic::Code::ResourceExhausted),
            (UnsupportedEncoding, 415, tonic::Code::Unimplemented),
            (Unimplemented, 501, tonic::Code::Unimplemented),
            (Overloaded, 429, tonic::Code::ResourceExhausted),
            (Unavailable, 503, tonic::Code::Unavailable),
            (SlowRequest, 408, tonic::Code::DeadlineExceeded),
            (DeadlineExceeded, 504, tonic::Code::DeadlineExceeded),
            (Cancelled, 499, tonic::Code::Cancelled),
            (Internal, 500, tonic::Code::Internal),
        ]
    );
}
