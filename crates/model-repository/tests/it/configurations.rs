//! Tests that a directory's configuration applies to its model, and that an invalid one makes the model
//! unusable with a reason.

use std::{path::Path, sync::Arc};

use model_repository::Repository;
use oip_model::{Backend, LoadContext, Model, ModelSource};
use oip_types::ServiceError;

use crate::support::{WordBackend, found, repository};

/// A backend for weights files, which require the code of their network.
struct Weights;

impl Backend for Weights {
    fn name(&self) -> &'static str {
        "weights"
    }

    fn file_names(&self) -> &[&str] {
        &["model.weights"]
    }

    fn holds_weights_only(&self) -> bool {
        true
    }

    fn load(&self, _: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        Err(ServiceError::invalid("these tests load nothing"))
    }
}

fn open(path: &Path) -> Repository {
    let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(WordBackend), Arc::new(Weights)];
    Repository::open(path, &backends, Some("m")).unwrap()
}

/// Returns one line per model of a directory: `NAME ready`, or the name and the reason why the model is
/// unusable.
fn shown(path: &Path) -> Vec<String> {
    let models = found(&open(path)).into_iter();
    models
        .map(|found| {
            let reason = found.content.err();
            format!("{} {}", found.model, reason.as_deref().unwrap_or("ready"))
        })
        .collect()
}

#[test]
fn a_directory_with_a_configuration_is_a_model_even_if_the_configuration_is_wrong() {
    let unknown = "m platform is 'onxruntime', expected one of word, weights, or none";
    for (files, expected) in [
        // Without the configuration, the file would be served as a separate model, whatever its name.
        (
            &[
                ("iris.word", "echo"),
                ("config.pbtxt", "platform: \"onxruntime\""),
            ][..],
            unknown,
        ),
        (
            &[
                ("model.word", "echo"),
                ("config.json", r#"{"platform": "onxruntime"}"#),
            ],
            unknown,
        ),
        (
            &[
                ("1/model.word", "echo"),
                ("config.toml", "platform = \"onxruntime\""),
            ],
            unknown,
        ),
        (
            &[("iris.word", "echo"), ("config.pbtxt", "max_batch_size: many")],
            "m config.pbtxt: line 1, column 17: max_batch_size: expected an integer",
        ),
        (
            &[
                ("iris.word", "echo"),
                ("config.pbtxt", "default_model_filename: \"iris.lost\""),
            ],
            "m no backend has files like default_model_filename 'iris.lost'",
        ),
        (
            &[("iris.word", "echo"), ("config.pbtxt", "max_batch_size: 4")],
            "m it has no model.word or model.text or model.weights (there is 'iris.word', which would be the model as \
             'model.word', or with default_model_filename: \"iris.word\" in its configuration)",
        ),
        // The directory is one model, not a repository with models called `1` and `warmup`.
        (
            &[("1/model.word", "echo"), ("warmup/x", ""), ("config.pbtxt", "")],
            "m ready",
        ),
        (
            &[("config.pbtxt", "max_batch_size: 4")],
            "m it has no model.word or model.text",
        ),
        // The repository does not check a pipeline's steps.
        (&[("config.pbtxt", "platform: \"ensemble\"")], "m ready"),
    ] {
        let folder = repository(files);
        let shown = shown(folder.path());
        assert!(
            shown.len() == 1 && shown[0].starts_with(expected),
            "{files:?}: {shown:?}"
        );
    }
    let named = [
        ("iris.word", "adds 1"),
        ("config.pbtxt", "default_model_filename: \"iris.word\""),
    ];
    assert_eq!(shown(repository(&named).path()), ["m ready"]);
}

#[test]
fn a_configuration_that_no_model_takes_gets_a_line() {
    // Configurations are ignored next to the models of a repository, next to a model that is a single file,
    // and in a version's directory.
    let folder = repository(&[
        ("m/1/model.word", "echo"),
        ("config.pbtxt", ""),
        ("n/1/model.word", "echo"),
    ]);
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(WordBackend)];
    let opened = Repository::open(folder.path(), &backends, None).unwrap();
    assert_eq!(opened.model_names().unwrap(), ["m", "n"]);
    let lines = |repository: &Repository| -> Vec<String> {
        let passed_over = repository.passed_over().into_iter();
        passed_over
            .map(|passed| format!("{}: {}", passed.file, passed.advice))
            .collect()
    };
    assert_eq!(
        lines(&opened),
        ["config.pbtxt: a model's configuration, among models: move it into the model's directory"]
    );
    for (files, named, expected) in [
        (
            &[("iris.word", "echo"), ("config.toml", "")][..],
            "iris.word",
            "config.toml: not read for a file that is named: name its directory instead",
        ),
        (
            &[("1/model.word", "echo"), ("config.pbtxt", "")],
            "1/model.word",
            "../config.pbtxt: not read for a file that is named: name its directory instead",
        ),
        (
            &[("1/model.word", "echo"), ("1/config.pbtxt", "")],
            "",
            "1/config.pbtxt: a configuration holds for all versions: move it into the model's directory",
        ),
    ] {
        let folder = repository(files);
        assert_eq!(lines(&open(&folder.path().join(named))), [expected]);
    }
    let folder = repository(&[
        ("m/1/model.word", "echo"),
        ("m/1/config.pbtxt", ""),
        ("m/1/config.json", "{}"),
    ]);
    assert_eq!(lines(&open(folder.path())).len(), 1);
}

#[test]
fn a_hugging_face_model_is_named_as_one_and_its_weights_served_only_when_asked() {
    let bert = r#"{"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 768}"#;
    let expected = "m model.weights has the weights of a Hugging Face model (BertForMaskedLM, see config.json), which need \
                    the package transformers to compute anything: export the model to ONNX (pip install \
                    'optimum[onnxruntime]' torch --extra-index-url https://download.pytorch.org/whl/cpu && optimum-cli export \
                    onnx --model DIRECTORY --task feature-extraction OUTPUT) and serve that; to serve the weights as tensors, \
                    name the file itself, or write \
                    backend = \"weights\" into a config.toml";
    for files in [
        &[("model.weights", "echo"), ("config.json", bert)][..],
        &[("1/model.weights", "echo"), ("1/config.json", bert)],
        &[("1/model.weights", "echo"), ("config.json", bert)],
        &[
            ("model.weights", "echo"),
            ("config.json", bert),
            ("config.pbtxt", "max_batch_size: 0"),
        ],
    ] {
        assert_eq!(shown(repository(files).path()), [expected]);
    }
    let exported = [
        ("model.weights", "echo"),
        ("config.json", bert),
        ("onnx/model.onnx", ""),
    ];
    let folder = repository(&exported);
    assert!(shown(folder.path())[0].contains("export of it is there: serve onnx/model.onnx"));
    let checkpoint = [
        ("pytorch_model.bin", ""),
        ("config.json", r#"{"model_type": "bert"}"#),
    ];
    let told = shown(repository(&checkpoint).path());
    assert!(
        told[0].starts_with("m it is a Hugging Face model (bert, see config.json)"),
        "{told:?}"
    );
    let classifier = [
        ("pytorch_model.bin", ""),
        (
            "config.json",
            r#"{"architectures": ["BertForSequenceClassification"]}"#,
        ),
    ];
    let told = shown(repository(&classifier).path());
    assert!(told[0].contains("--task text-classification OUTPUT"), "{told:?}");
    let in_repository = [
        ("bert/model.weights", ""),
        ("bert/config.json", bert),
        ("m/1/model.word", "echo"),
    ];
    let told = shown(repository(&in_repository).path());
    assert!(
        told[0].starts_with("bert model.weights has the weights of a Hugging Face model"),
        "{told:?}"
    );
    assert_eq!(told[1], "m ready");

    // The weights are requested by file or by configuration. An export next to a Hugging Face `config.json`
    // is served; the fields of `config.json` cause no error.
    let folder = repository(&[("model.weights", "echo"), ("config.json", bert)]);
    assert_eq!(shown(&folder.path().join("model.weights")), ["m ready"]);
    let toml = ("config.toml", "backend = \"weights\"");
    assert_eq!(
        shown(repository(&[("model.weights", "echo"), ("config.json", bert), toml]).path()),
        ["m ready"]
    );
    assert_eq!(
        shown(repository(&[("model.word", "echo"), ("config.json", bert)]).path()),
        ["m ready"]
    );
}
