//! `tensor replay`: sends recorded requests again.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use oip_capture::{Recorder, RecorderConfig};
use oip_model::BoxFuture;
use oip_service::{InferenceService, Readiness, RequestContext};
use oip_types::{
    DataType, InferOutput, InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata,
    ServiceError, TensorMetadata,
};
use tensor_core::{Shape, Tensor};

use crate::server::Server;

fn tensor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensor"))
        .env_remove("TENSOR_URL")
        .args(arguments)
        .output()
        .unwrap()
}

/// A model that multiplies its input by a constant.
struct Multiplier(f32);

impl InferenceService for Multiplier {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("times", "1")
    }

    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        let tensor = |name| TensorMetadata::new(name, DataType::FP32, &[-1]);
        Ok(Arc::new(ModelMetadata::new(
            model.name(),
            String::new(),
            vec![tensor("x")],
            vec![tensor(output_of(model.name()))],
        )))
    }

    fn model_ready(&self, _: ModelRef<'_>) -> Result<(), ServiceError> {
        Ok(())
    }

    fn infer(
        &self,
        request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        let answer = answer(&request, self.0);
        Box::pin(async { answer })
    }
}

/// The name of a model's output.
fn output_of(model: &str) -> &'static str {
    match model {
        "renamed" => "z",
        _ => "y",
    }
}

fn answer(request: &InferRequest, factor: f32) -> Result<InferResponse, ServiceError> {
    let name = match request.model().name() {
        "fails" => return Err(ServiceError::internal("it fails")),
        model => output_of(model),
    };
    let x = request
        .input("x")
        .and_then(|x| x.as_fixed().and_then(|x| x.to_vec::<f32>().ok()));
    let y: Vec<f32> = x.unwrap_or_default().iter().map(|x| x * factor).collect();
    Ok(InferResponse::new(
        request.model().name().to_owned(),
        vec![InferOutput::new(
            name,
            Tensor::from_vec(Shape::vector(y.len() as u64), y).unwrap(),
        )],
    )
    .with_id(request.id.clone()))
}

fn record(folder: &Path) {
    let recorder = Recorder::start(RecorderConfig::new(folder)).unwrap();
    for (model, count) in [("a", 1_u64), ("b", 3), ("a", 5)] {
        let x = Tensor::from_vec(Shape::vector(count), (1..=count).map(|x| x as f32).collect()).unwrap();
        let request = InferRequest::new(ModelRef::new(model, None).unwrap()).with_input("x", x);
        let response = answer(&request, 2.0).unwrap();
        recorder.record(request, response);
    }
    recorder.finish(Duration::from_secs(60));
    assert_eq!(recorder.recorded(), 3);
}

#[test]
fn answers_are_held_against_the_recorded_ones() {
    let folder = tempfile::tempdir().unwrap();
    let captured = folder.path().join("captured");
    record(&captured);
    let captured = captured.to_str().unwrap();
    let same = Server::of(Arc::new(Multiplier(2.0)));
    let encrypted = Server::encrypted(folder.path(), Arc::new(Multiplier(2.0)), false);
    let ca = folder.path().join("ca.pem");
    let trusted = ["--ca", ca.to_str().unwrap()];
    for (url, more) in [
        (&same.http, &[][..]),
        (&same.grpc, &[]),
        (&encrypted.http, &trusted),
        (&encrypted.grpc, &trusted),
    ] {
        let output = tensor(&[&["replay", captured, "--url", url], more].concat());
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            text,
            "3 requests: 3 answered as recorded, 0 differently, 0 failed\n"
        );
    }
    let other = Server::of(Arc::new(Multiplier(2.002)));
    let output = tensor(&["replay", captured, "--url", &other.http]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains(" model 'b': tensor 'y' differs in 3 elements"),
        "{text}"
    );
    assert!(
        text.ends_with("3 requests: 0 answered as recorded, 3 differently, 0 failed\n"),
        "{text}"
    );
    let into = folder.path().join("answers");
    let arguments = [
        "replay",
        captured,
        "--url",
        &other.http,
        "--rtol",
        "0.01",
        "--only",
        "b",
        "--into",
    ];
    let output = tensor(&[&arguments[..], &[into.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{output:?}");
    let names: Vec<_> = fs::read_dir(&into)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    let [name] = &names[..] else { panic!("{names:?}") };
    let (recorded, answered) = (Path::new(captured).join(name), into.join(name));
    let files = [recorded.to_str().unwrap(), answered.to_str().unwrap()];
    assert_eq!(tensor(&["diff", files[0], files[1]]).status.code(), Some(1));
    assert!(
        tensor(&["diff", files[0], files[1], "--rtol", "0.01"])
            .status
            .success()
    );

    let output = tensor(&[
        "replay",
        captured,
        "--url",
        &other.http,
        "--model",
        "fails",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&told["requests"], &told["failed"]),
        (&3.into(), &3.into()),
        "{told}"
    );
    let message = told["differences"][0]["message"].as_str().unwrap();
    assert!(message.contains("it fails"), "{message}");

    let output = tensor(&["replay", captured, "--url", &other.http, "--model", "renamed"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in ["output 'z' was not recorded", "output 'y' is missing"] {
        assert_eq!(text.matches(expected).count(), 3, "{text}");
    }
}

#[test]
fn a_folder_without_requests_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    let told = |arguments: &[&str]| {
        let output = tensor(arguments);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let line = told(&["replay", empty]);
    assert!(
        line.contains("has no index of captured requests (index-*.jsonl)"),
        "{line}"
    );
    let captured = folder.path().join("captured");
    record(&captured);
    let line = told(&["replay", captured.to_str().unwrap(), "--only", "c"]);
    assert!(
        line.contains("no recorded request is for the model 'c'"),
        "{line}"
    );
}
