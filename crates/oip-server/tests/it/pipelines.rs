//! The example pipeline: an ONNX model whose output selects rows of a tensor file, over both transports and
//! from the cache.

use std::path::{Path, PathBuf};

use oip_types::{InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

use crate::support::Server;

const MODEL: &str = "digit_portrait";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Starts a server with the example models, and a response cache for the pipeline.
fn server() -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for path in ["digits/1/model.onnx", "digit_means/1/model.safetensors"] {
        let copy = folder.path().join(path);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(examples().join("models").join(path), copy).unwrap();
    }
    let config = std::fs::read_to_string(examples().join("models").join(MODEL).join("config.pbtxt")).unwrap();
    std::fs::create_dir(folder.path().join(MODEL)).unwrap();
    let cached = config + "response_cache { enable: true }\n";
    std::fs::write(folder.path().join(MODEL).join("config.pbtxt"), cached).unwrap();
    let mut server = Server::start(folder.path(), &["--response-cache-byte-size", "1MiB"]);
    let printed = server.wait_until_loaded();
    assert!(printed.contains("portrait FP32[-1, 64]"), "{printed}");
    (server, folder)
}

fn values(path: &Path, name: &str) -> Tensor {
    let reader = tensor_files::open(path, &Default::default()).unwrap();
    let index = reader.find(name).unwrap_or_default();
    reader.tensor(index).unwrap()
}

#[tokio::test]
async fn digits_become_their_portraits() {
    let (server, _folder) = server();
    let images: Vec<u8> = values(&examples().join("requests/digits.npy"), "")
        .to_vec()
        .unwrap();
    let pixels: Vec<f32> = images[..64 * 64].iter().map(|pixel| f32::from(*pixel)).collect();
    let x = Tensor::from_vec(Shape::new(&[64, 64]).unwrap(), pixels).unwrap();
    let request =
        |model: &str| InferRequest::new(ModelRef::new(model, None).unwrap()).with_input("X", x.clone());
    let means = values(&examples().join("models/digit_means/1/model.safetensors"), "mean");
    let means: Vec<f32> = means.to_vec().unwrap();
    for url in [
        format!("http://{}", server.http),
        format!("grpc://{}", server.grpc),
    ] {
        let client = oip_client::builder(&url).build().unwrap();
        let digits = client.infer(&request("digits")).await.unwrap();
        let portraits = client.infer(&request(MODEL)).await.unwrap();
        let label = |response: &oip_types::InferResponse| {
            let label = response.output("label").unwrap().as_fixed().unwrap().clone();
            label.to_vec::<i64>().unwrap()
        };
        let labels = label(&portraits);
        assert_eq!(labels, label(&digits));
        let portraits = portraits.output("portrait").unwrap().as_fixed().unwrap().clone();
        assert_eq!(portraits.shape().dims(), [64, 64]);
        let row = |label: &i64| &means[usize::try_from(*label).unwrap() * 64..][..64];
        let expected: Vec<f32> = labels.iter().flat_map(row).copied().collect();
        assert_eq!(portraits.to_vec::<f32>().unwrap(), expected);
    }
    let statistics = server.get(&format!("/v2/models/{MODEL}/stats")).json();
    let statistics = &statistics["model_stats"][0]["inference_stats"];
    // The second transport's response is from the cache.
    let count = |what: &str| statistics[what]["count"].as_u64().unwrap();
    assert_eq!(
        (count("success"), count("cache_miss"), count("cache_hit")),
        (2, 1, 1)
    );
}
