//! Tests raw and typed contents of every datatype in both directions.

use oip_grpc::{
    GrpcConfig, GrpcOutput,
    proto::{InferTensorContents, ModelInferRequest, ModelInferResponse, infer_parameter::ParameterChoice},
};
use oip_service::testing::identity;
use oip_types::DataType;

use crate::support::{client, client_with, input, parameter, raw_x, typed_x};

fn contents() -> InferTensorContents {
    InferTensorContents::default()
}

/// Returns two elements of each datatype with a typed form, typed and raw.
fn samples() -> Vec<(&'static str, InferTensorContents, Vec<u8>)> {
    let le = |words: [&[u8]; 2]| words.concat();
    vec![
        (
            "BOOL",
            InferTensorContents {
                bool_contents: vec![true, false],
                ..contents()
            },
            vec![1, 0],
        ),
        (
            "UINT8",
            InferTensorContents {
                uint_contents: vec![0, 255],
                ..contents()
            },
            vec![0, 255],
        ),
        (
            "UINT16",
            InferTensorContents {
                uint_contents: vec![1, 65535],
                ..contents()
            },
            vec![1, 0, 255, 255],
        ),
        (
            "UINT32",
            InferTensorContents {
                uint_contents: vec![1, u32::MAX],
                ..contents()
            },
            le([&[1, 0, 0, 0], &[255; 4]]),
        ),
        (
            "UINT64",
            InferTensorContents {
                uint64_contents: vec![2, u64::MAX],
                ..contents()
            },
            le([&2u64.to_le_bytes(), &[255; 8]]),
        ),
        (
            "INT8",
            InferTensorContents {
                int_contents: vec![-128, 127],
                ..contents()
            },
            vec![0x80, 0x7f],
        ),
        (
            "INT16",
            InferTensorContents {
                int_contents: vec![-1, 258],
                ..contents()
            },
            vec![255, 255, 2, 1],
        ),
        (
            "INT32",
            InferTensorContents {
                int_contents: vec![i32::MIN, 7],
                ..contents()
            },
            le([&i32::MIN.to_le_bytes(), &7i32.to_le_bytes()]),
        ),
        (
            "INT64",
            InferTensorContents {
                int64_contents: vec![i64::MIN, 9],
                ..contents()
            },
            le([&i64::MIN.to_le_bytes(), &9i64.to_le_bytes()]),
        ),
        (
            "FP32",
            InferTensorContents {
                fp32_contents: vec![1.5, -0.0],
                ..contents()
            },
            le([&1.5f32.to_le_bytes(), &(-0f32).to_le_bytes()]),
        ),
        (
            "FP64",
            InferTensorContents {
                fp64_contents: vec![1e300, 0.1],
                ..contents()
            },
            le([&1e300f64.to_le_bytes(), &0.1f64.to_le_bytes()]),
        ),
        (
            "BYTES",
            InferTensorContents {
                bytes_contents: vec!["ab".into(), vec![0xff, 0].into()],
                ..contents()
            },
            b"\x02\0\0\0ab\x02\0\0\0\xff\0".to_vec(),
        ),
    ]
}

fn model(datatype: &str) -> String {
    identity(DataType::from_name(datatype).unwrap())
}

async fn infer(output: GrpcOutput, request: ModelInferRequest) -> ModelInferResponse {
    let config = GrpcConfig::default().with(|config| config.output = output);
    client_with(config)
        .0
        .model_infer(request)
        .await
        .unwrap()
        .into_inner()
}

#[tokio::test]
async fn outputs_mirror_inputs_or_follow_the_setting() {
    for (datatype, typed, raw) in samples() {
        let model = model(datatype);
        let typed_request = typed_x(&model, datatype, &[2], typed.clone());
        let raw_request = raw_x(&model, datatype, &[2], &raw);
        for (output, request, is_raw) in [
            (GrpcOutput::Mirror, &typed_request, false),
            (GrpcOutput::Mirror, &raw_request, true),
            (GrpcOutput::Raw, &typed_request, true),
            (GrpcOutput::Typed, &raw_request, false),
        ] {
            let response = infer(output, request.clone()).await;
            let [y] = &response.outputs[..] else {
                panic!("{response:?}")
            };
            assert_eq!((&*y.name, &*y.datatype, &y.shape[..]), ("y", datatype, &[2][..]));
            if is_raw {
                assert_eq!(
                    (&response.raw_output_contents[..], &y.contents),
                    (&[raw.clone().into()][..], &None)
                );
            } else {
                assert_eq!(
                    (response.raw_output_contents.len(), y.contents.as_ref()),
                    (0, Some(&typed))
                );
            }
        }
    }
}

#[tokio::test]
async fn a_request_can_ask_for_its_form() {
    let (_, typed, _) = samples().swap_remove(9);
    for (binary, raws) in [(true, 1), (false, 0)] {
        let mut request = typed_x("identity_fp32", "FP32", &[2], typed.clone());
        request.parameters.insert(
            "binary_data_output".into(),
            parameter(ParameterChoice::BoolParam(binary)),
        );
        let response = client().model_infer(request).await.unwrap().into_inner();
        assert_eq!(response.raw_output_contents.len(), raws);
    }
}

#[tokio::test]
async fn sixteen_bit_floats_are_always_raw() {
    for datatype in ["FP16", "BF16"] {
        let request = raw_x(&model(datatype), datatype, &[2], &[0, 0x3c, 1, 2]);
        let response = infer(GrpcOutput::Typed, request).await;
        assert_eq!(response.raw_output_contents, [&[0, 0x3c, 1, 2][..]]);
    }
}

/// An empty output keeps its entry among the raw contents.
#[tokio::test]
async fn tensors_without_elements() {
    let response = client()
        .model_infer(raw_x("identity_fp32", "FP32", &[0], &[]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(response.raw_output_contents, [&[][..]]);
    let mut request = raw_x("identity_fp32", "FP32", &[0], &[]);
    request.raw_input_contents.clear();
    assert_eq!(
        client().model_infer(request).await.unwrap().get_ref().outputs[0].shape,
        [0]
    );
}

#[tokio::test]
async fn several_inputs_keep_their_order() {
    let request = ModelInferRequest {
        model_name: "matrix".into(),
        inputs: vec![input("b", "INT64", &[1]), input("a", "FP32", &[1, 2])],
        raw_input_contents: vec![
            5i64.to_le_bytes().to_vec().into(),
            [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat().into(),
        ],
        ..Default::default()
    };
    let response = client().model_infer(request).await.unwrap().into_inner();
    let names: Vec<&str> = response.outputs.iter().map(|output| &*output.name).collect();
    assert_eq!((names, &*response.model_version), (vec!["sum", "b"], "2"));
    assert_eq!(
        response.raw_output_contents,
        [&3f32.to_le_bytes()[..], &5i64.to_le_bytes()]
    );
}
