//! Tests of tensor files that are served by the engine and over HTTP.

use std::{fs, path::Path, sync::Arc, time::Instant};

use axum::{body::Body, http::Request};
use backend_tensors::TensorsBackend;
use bytes::Bytes;
use http_body_util::BodyExt;
use oip_engine::{Engine, EngineConfig, Repository};
use oip_http::{HttpConfig, router};
use oip_model::Backend;
use oip_service::{InferenceService, RequestContext};
use oip_types::{InferRequest, ModelRef};
use tempfile::TempDir;
use tensor_core::{Shape, Tensor};
use tower::ServiceExt;

use crate::support::{embed, file, tensors};

/// The configuration of `words` that serves every version, not only the latest.
const ALL_VERSIONS: (&str, Bytes) = (
    "words/config.json",
    Bytes::from_static(br#"{"version_policy":{"all":{}}}"#),
);

/// Creates a repository with these files, and an engine that has loaded it.
fn engine(files: &[(&str, Bytes)]) -> (Arc<Engine>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let engine = start(folder.path());
    (engine, folder)
}

fn start(root: &Path) -> Arc<Engine> {
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(TensorsBackend::new())];
    let repository = Repository::open(root, &backends, None).unwrap();
    let engine = Engine::start(repository, EngineConfig::default());
    engine.wait_until_loaded();
    Arc::new(engine)
}

fn whole(engine: &Engine, model: &str) -> Tensor {
    let request = InferRequest::new(ModelRef::new(model, None).unwrap()).with_output("embed");
    let answer = futures_executor::block_on(engine.infer(request, RequestContext::new(None)));
    tensors(answer.unwrap().outputs).remove(0).1
}

#[test]
fn a_file_in_a_version_folder_is_a_model() {
    let embed = embed();
    let (engine, _folder) = engine(&[
        ALL_VERSIONS,
        ("words/1/model.zt", file("model.zt", &[("embed", &embed)])),
        (
            "words/2/model.safetensors",
            file("model.safetensors", &[("embed", &embed)]),
        ),
        ("empty/1/weights.zt", Bytes::new()),
    ]);
    assert_eq!(whole(&engine, "words"), embed);
    let metadata = engine
        .model_metadata(ModelRef::new("words", None).unwrap())
        .unwrap();
    assert_eq!(
        (&*metadata.platform, &metadata.versions[..]),
        ("tensorferry_safetensors", &["1".to_owned(), "2".to_owned()][..])
    );
    let error = engine
        .model_ready(ModelRef::new("empty", None).unwrap())
        .unwrap_err();
    assert_eq!(
        error.message(),
        "model 'empty' is not ready: its version '1' has no model.safetensors or another of the 7 names of model files (there is \
         '1/weights.zt', which would be the model as '1/model.zt', or with default_model_filename: \"weights.zt\" in its \
         configuration)"
    );
}

/// A version that fails to load does not affect one that loads.
#[test]
fn a_good_version_serves_beside_a_broken_one() {
    let good = file("model.zt", &[("embed", &embed())]);
    let (engine, _folder) = engine(&[
        ALL_VERSIONS,
        ("words/1/model.zt", good.clone()),
        ("words/2/model.zt", good.slice(..good.len() / 2)),
    ]);
    assert_eq!(whole(&engine, "words"), embed());
    let error = engine
        .model_ready(ModelRef::new("words", Some("2")).unwrap())
        .unwrap_err();
    assert!(
        error
            .message()
            .starts_with("model 'words' version '2' is not ready: model.zt: "),
        "{error}"
    );
}

/// The file is read, not mapped, so truncating it has no effect on the server: no signal, and the same
/// responses.
#[test]
fn a_served_file_is_truncated() {
    let table: Vec<u32> = (0..1 << 20).collect();
    let table = Tensor::from_vec(Shape::new(&[1 << 12, 1 << 8]).unwrap(), table).unwrap();
    for name in ["model.zt", "model.safetensors", "model.tbuf", "model.npz"] {
        let path = format!("words/1/{name}");
        let (engine, folder) = engine(&[(&path, file(name, &[("embed", &table)]))]);
        let served = fs::OpenOptions::new()
            .write(true)
            .open(folder.path().join(&path))
            .unwrap();
        for len in [1000, 0] {
            served.set_len(len).unwrap();
            assert_eq!(whole(&engine, "words"), table, "{name}");
        }
        drop(served);
        fs::remove_dir_all(folder.path().join("words")).unwrap();
        assert_eq!(whole(&engine, "words"), table, "{name}");
    }
}

/// The response frame refers to the file's bytes in memory, without a copy.
#[tokio::test]
async fn a_whole_tensor_is_not_copied_on_its_way_to_the_wire() {
    let table = Tensor::from_vec(Shape::new(&[1024, 256]).unwrap(), vec![0.25f32; 1 << 18]).unwrap();
    let (engine, _folder) = engine(&[("words/1/model.zt", file("model.zt", &[("embed", &table)]))]);
    let served = whole(&engine, "words");
    let app = router(engine, HttpConfig::default());
    let call = |body: &'static str| {
        let request = Request::post("/v2/models/words/infer")
            .header("host", "x")
            .body(Body::from(body));
        let app = app.clone();
        async move {
            let answer = app.oneshot(request.unwrap()).await.unwrap();
            assert_eq!(answer.status(), 200);
            let mut body = answer.into_body();
            let mut frames = Vec::new();
            while let Some(frame) = body.frame().await {
                frames.extend(frame.unwrap().into_data());
            }
            frames
        }
    };
    let frames =
        call(r#"{"inputs":[],"outputs":[{"name":"embed","parameters":{"binary_data":true}}]}"#).await;
    assert_eq!(frames[1].len(), 1 << 20);
    assert_eq!(frames[1].as_ptr(), served.bytes().as_ptr(), "copied");
    // Consecutive rows are not copied either.
    let rows = r#"{"inputs":[{"name":"embed.rows","datatype":"INT64","shape":[3],"data":[7,8,9]}],"parameters":{"binary_data_output":true}}"#;
    let frames = call(rows).await;
    assert_eq!(frames[1].len(), 3 << 10);
    assert_eq!(frames[1].as_ptr(), served.bytes()[7 << 10..].as_ptr(), "copied");
}

/// A model with many tensors responds as quickly as a model with few.
#[test]
fn ten_thousand_tensors() {
    let element = Tensor::scalar(1u8);
    let names: Vec<String> = (0..10_000).map(|index| format!("layer.{index}")).collect();
    let tensors: Vec<(&str, &Tensor)> = names.iter().map(|name| (name.as_str(), &element)).collect();
    let (engine, _folder) = engine(&[("many/1/model.zt", file("model.zt", &tensors))]);
    let start = Instant::now();
    let request = InferRequest::new(ModelRef::new("many", None).unwrap());
    let answer = futures_executor::block_on(engine.infer(request, RequestContext::new(None))).unwrap();
    assert_eq!(answer.outputs.len(), 10_000);
    assert!(start.elapsed().as_secs_f64() < 10.0, "{:?}", start.elapsed());
}
