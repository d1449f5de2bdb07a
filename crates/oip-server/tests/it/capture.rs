//! Tests the recording of requests and responses over both transports.

use std::time::Duration;

use oip_capture::Recording;
use oip_types::{InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

use crate::{
    metrics::{Page, rows, server, until},
    support::{ConfigFile, failing},
};

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_recorded_as_they_came() {
    let folder = tempfile::tempdir().unwrap();
    let captured = folder.path().join("captured");
    let config = ConfigFile::new(&format!(
        "capture = {captured:?}\ncapture-rate = 1.0\ncapture-models = [\"digit_*\", \"none\"]"
    ));
    let (mut server, _repository) = server(&[&config.option]);
    let body = rows(&[1, 2]).to_string();
    let path = "/v2/models/digit_means/infer";
    assert_eq!(server.request("POST", path, &[], body.as_bytes()).status, 200);
    // Failed requests are not recorded.
    assert_eq!(
        server
            .request("POST", "/v2/models/none/infer", &[], body.as_bytes())
            .status,
        404
    );
    let client = oip_client::builder(format!("grpc://{}", server.grpc))
        .build()
        .unwrap();
    let asked = InferRequest::new(ModelRef::new("digit_means", None).unwrap())
        .with_input(
            "mean.rows",
            Tensor::from_vec(Shape::vector(1), vec![7_i64]).unwrap(),
        )
        .with_output("mean");
    client.infer(&asked).await.unwrap();
    drop(client);
    until("they are counted", || {
        Page::of(&server).value("oip_captured_requests_total", &[]) == 2.0
    });
    assert_eq!(Page::of(&server).value("oip_capture_dropped_total", &[]), 0.0);
    server.signal("TERM");
    assert!(server.wait(Duration::from_secs(30)).success());
    let recording = Recording::open(&captured).unwrap();
    let [first, second] = recording.entries() else {
        panic!("{recording:?}")
    };
    assert_eq!((first.model(), first.version()), ("digit_means", Some("1")));
    let first = recording.request(first).unwrap();
    assert_eq!(first.inputs[0].value.raw()[..8], 1_u64.to_le_bytes());
    let second = recording.request(second).unwrap();
    assert_eq!((&second.inputs, &second.outputs), (&asked.inputs, &asked.outputs));
}

#[test]
fn wrong_settings_for_recording_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let folder = folder.path().to_str().unwrap();
    for (settings, code, message) in [
        (
            "capture-rate = 0.5",
            2,
            "the configuration file: capture-rate needs capture, the directory that requests are recorded in"
                .to_owned(),
        ),
        (
            "capture = \"x\"\ncapture-rate = 2.0",
            2,
            "the configuration file: capture-rate: expected a number from 0 to 1, found 2".to_owned(),
        ),
        (
            &format!("capture = {file:?}"),
            1,
            format!("capture: {}: ", file.display()),
        ),
    ] {
        let config = ConfigFile::new(settings);
        let (found, line) = failing(&[folder, "--http-port=0", "--grpc-port=0", &config.option]);
        assert!(found == code && line.starts_with(&message), "{found}: {line}");
    }
}
