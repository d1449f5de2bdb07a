//! XGBoost and LightGBM files, served over both transports: predictions match the packages' own.

use std::path::{Path, PathBuf};

use oip_client::TensorForm;
use oip_types::{InferRequest, InferResponse, Joining, ModelRef};
use serde_json::Value;
use tensor_core::{DType, Shape, Tensor};

use crate::support::Server;

/// The input rows of a booster, and the package's own predictions for them.
struct Case {
    file: String,
    width: usize,
    rows: Vec<Vec<f32>>,
    predictions: Vec<Vec<f64>>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-boosters/tests/fixtures")
}

fn cases(names: &[&str]) -> Vec<Case> {
    let text = std::fs::read_to_string(fixtures().join("cases.jsonl")).unwrap();
    let cases = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let wanted = cases.filter(|case| names.contains(&case["name"].as_str().unwrap()));
    let cases: Vec<Case> = wanted.map(|case| Case::read(&case)).collect();
    assert_eq!(cases.len(), names.len());
    cases
}

impl Case {
    fn read(case: &Value) -> Self {
        let words = |key: &str| -> Vec<String> {
            let text = case[key].as_str().unwrap();
            text.split_ascii_whitespace().map(str::to_owned).collect()
        };
        let width = case["width"].as_u64().unwrap() as usize;
        let values: Vec<f64> = words("rows").iter().map(|word| word.parse().unwrap()).collect();
        let rows: Vec<Vec<f32>> = values
            .chunks(width)
            .map(|row| row.iter().map(|&value| value as f32).collect())
            .collect();
        let native: Vec<f64> = words("native").iter().map(|word| word.parse().unwrap()).collect();
        let classes = native.len() / rows.len();
        let predictions = native.chunks(classes).map(<[f64]>::to_vec).collect();
        let (rows, predictions) = finite(rows, predictions);
        assert!(rows.len() > 4);
        Self {
            file: case["file"].as_str().unwrap().to_owned(),
            width,
            rows,
            predictions,
        }
    }

    fn model(&self) -> &str {
        self.file.split('.').next().unwrap()
    }

    fn request(&self) -> InferRequest {
        let shape = Shape::new(&[self.rows.len() as u64, self.width as u64]).unwrap();
        let rows = Tensor::from_vec(shape, self.rows.concat()).unwrap();
        InferRequest::new(ModelRef::new(self.model(), None).unwrap()).with_input("input-0", rows)
    }

    fn check(&self, response: &InferResponse) {
        let output = response.outputs[0].value.as_fixed().unwrap();
        // XGBoost returns FP32, printed with as many digits as needed.
        let (found, expected): (Vec<f64>, Vec<f64>) = match output.spec().dtype() {
            DType::F64 => (output.to_vec().unwrap(), self.predictions.concat()),
            _ => {
                let found = output.to_vec::<f32>().unwrap();
                let expected = self.predictions.concat();
                (
                    found.into_iter().map(f64::from).collect(),
                    expected
                        .into_iter()
                        .map(|value| f64::from(value as f32))
                        .collect(),
                )
            }
        };
        assert_eq!(found.len(), expected.len(), "{}", self.file);
        for (found, expected) in found.iter().zip(&expected) {
            let unit = match output.spec().dtype() {
                DType::F64 => f64::EPSILON,
                _ => f64::from(f32::EPSILON),
            };
            // The difference is zero on the reference machine; another C library may round an exponential
            // differently.
            let off = (found - expected).abs();
            assert!(
                off <= 2.0 * unit * expected.abs(),
                "{}: {found}, not {expected}",
                self.file
            );
        }
    }
}

/// Keeps the rows that JSON can represent.
fn finite(rows: Vec<Vec<f32>>, predictions: Vec<Vec<f64>>) -> (Vec<Vec<f32>>, Vec<Vec<f64>>) {
    let pairs = rows.into_iter().zip(predictions);
    pairs
        .filter(|(row, _)| row.iter().all(|value| value.is_finite()))
        .unzip()
}

#[tokio::test]
async fn boosters_answer_over_both_transports_as_their_packages_do() {
    let cases = cases(&[
        "xgb_reg_squarederror",
        "xgb_multi_softprob",
        "xgb_base_score",
        "lgb_binary",
        "lgb_multiclass",
    ]);
    let folder = tempfile::tempdir().unwrap();
    for case in &cases {
        let version = folder.path().join(case.model()).join("1");
        std::fs::create_dir_all(&version).unwrap();
        let extension = case.file.split('.').next_back().unwrap();
        let target = version.join(format!("model.{extension}"));
        std::fs::copy(fixtures().join(&case.file), target).unwrap();
    }
    let mut server = Server::start(folder.path(), &[]);
    let printed = server.wait_until_loaded();
    assert!(!printed.contains("unavailable"), "{printed}");
    for url in [
        format!("http://{}", server.http),
        format!("grpc://{}", server.grpc),
    ] {
        for form in [TensorForm::Raw, TensorForm::Typed] {
            let client = oip_client::builder(&url).tensor_form(form).build().unwrap();
            for case in &cases {
                case.check(&client.infer(&case.request()).await.unwrap());
            }
        }
    }
}

/// Checks that both transports, isolated processes and the startup output agree on whether and why a
/// booster's requests are batched.
#[tokio::test]
async fn it_is_said_whether_requests_are_joined_and_why() {
    let folder = tempfile::tempdir().unwrap();
    for (model, config) in [("proven", None), ("declared", Some(8)), ("alone", Some(0))] {
        let version = folder.path().join(model).join("1");
        std::fs::create_dir_all(&version).unwrap();
        std::fs::copy(fixtures().join("lgb_binary.txt"), version.join("model.txt")).unwrap();
        if let Some(rows) = config {
            let config = format!("max_batch_size: {rows}");
            std::fs::write(folder.path().join(model).join("config.pbtxt"), config).unwrap();
        }
    }
    let said = [
        ("proven", "proven"),
        ("declared", "declared"),
        ("alone", "no (max_batch_size is 0)"),
    ];
    for arguments in [&[][..], &["--isolate-models"]] {
        let mut server = Server::start(folder.path(), arguments);
        let printed = server.wait_until_loaded();
        assert!(printed.contains("  proven    input-0 FP32"), "{printed}");
        assert!(
            printed.contains("alone 1: batched: no (max_batch_size is 0)\n"),
            "{printed}"
        );
        for url in [
            format!("http://{}", server.http),
            format!("grpc://{}", server.grpc),
        ] {
            let client = oip_client::builder(&url).build().unwrap();
            for (model, expected) in said {
                let model = ModelRef::new(model, None).unwrap();
                let config = client.model_config(model).await.unwrap();
                assert_eq!(Joining::shown_in(&config), Some(expected));
            }
        }
    }
}
