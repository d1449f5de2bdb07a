//! Tests the configurations in a repository.

use std::{fs, path::Path, time::Instant};

use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::Backend;
use oip_service::InferenceService;
use oip_types::{DataType, InferRequest, ModelConfig, ModelRef, ModelState, TensorMetadata};
use tensor_core::{Shape, Tensor};

use crate::support::{WordBackend, engine, infer, repository, request, write, y};

/// Returns the state of model `m` and its reason.
fn state(engine: &Engine) -> (ModelState, String) {
    let model = engine
        .models()
        .into_iter()
        .find(|model| model.name == "m")
        .unwrap();
    (model.state, model.reason)
}

/// Returns the reason why a model with this configuration is unavailable.
fn refusal(config: &str) -> String {
    let folder = repository(&[("m/1/model.word", "echo"), ("m/config.pbtxt", config)]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    let (state, reason) = state(&engine);
    assert_eq!(state, ModelState::Unavailable, "{config}");
    reason
}

fn config(engine: &Engine) -> ModelConfig {
    let model = ModelRef::new("m", None).unwrap();
    let config = engine.configuration().unwrap().model_config(model);
    (*config.unwrap()).clone()
}

#[test]
fn none_is_needed() {
    let folder = repository(&[("m/1/model.word", "echo")]);
    let options = EngineConfig::default().with(|config| {
        config.instances = 3;
    });
    let (engine, _) = engine(folder.path(), options);
    let config = config(&engine);
    assert_eq!(
        (
            config.name.as_str(),
            config.platform.as_str(),
            config.backend.as_str()
        ),
        ("m", "test_word", "word")
    );
    assert_eq!((config.max_batch_size, config.instance_group[0].count), (0, 3));
    assert_eq!(
        (config.input[0].name.as_str(), &config.input[0].dims[..]),
        ("x", &[-1][..])
    );
    assert_eq!(config.output[0].data_type, DataType::INT32);
}

#[test]
fn the_three_forms_say_the_same() {
    let forms = [
        (
            "m/config.pbtxt",
            "max_batch_size: 0 input [{ name: \"x\" data_type: TYPE_INT32 dims: [ 1 ] }]",
        ),
        (
            "m/config.json",
            r#"{"max_batch_size": 0, "input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [1]}]}"#,
        ),
        (
            "m/config.toml",
            "max_batch_size = 0\n[[input]]\nname = \"x\"\ndata_type = \"TYPE_INT32\"\ndims = [1]\n",
        ),
    ];
    let configs = forms.map(|form| {
        let folder = repository(&[("m/1/model.word", "echo"), form]);
        let (engine, _) = engine(folder.path(), EngineConfig::default());
        assert_eq!(y(&infer(&engine, request("m", None, 7)).unwrap()), 7);
        // The configured dimensions apply to requests and are visible to clients.
        let metadata = engine.model_metadata(ModelRef::new("m", None).unwrap()).unwrap();
        assert_eq!(
            metadata.inputs[0],
            TensorMetadata::new("x", DataType::INT32, &[1])
        );
        config(&engine)
    });
    assert_eq!(configs[0], configs[1]);
    assert_eq!(configs[0], configs[2]);

    let both = repository(&[("m/1/model.word", "echo"), forms[0], forms[1]]);
    let (engine, _) = engine(both.path(), EngineConfig::default());
    assert_eq!(
        state(&engine).1,
        "it has both a config.pbtxt and a config.json; remove one of them"
    );
}

/// A symbolic link to a version's directory is a label for that version.
#[cfg(unix)]
#[test]
fn versions_have_labels() {
    let folder = repository(&[
        ("m/1/model.word", "echo"),
        ("m/2/model.word", "echo"),
        ("m/config.pbtxt", "version_policy: { all { } }"),
    ]);
    std::os::unix::fs::symlink("1", folder.path().join("m/stable")).unwrap();
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    let answered_by = |version| {
        let model = ModelRef::new("m", version).unwrap();
        let x = Tensor::from_vec(Shape::vector(1), vec![7i32]).unwrap();
        infer(&engine, InferRequest::new(model).with_input("x", x))
            .unwrap()
            .model_version
    };
    assert_eq!(answered_by(Some("stable")).as_deref(), Some("stable"));
    // If the request names no version, numbers take precedence over words.
    assert_eq!(answered_by(None).as_deref(), Some("2"));
}

/// Clients see `[rows, 1]` where the model has `[rows]`, in requests and responses, alone and in batches.
#[test]
fn clients_may_see_other_axes_of_one() {
    let config = "max_batch_size: 8 input { name: \"x\" dims: [ 1 ] reshape { shape: [ ] } } \
                  output { name: \"y\" dims: [ 1, 1 ] reshape { shape: [ ] } }";
    let folder = repository(&[("m/1/model.word", "echo"), ("m/config.pbtxt", config)]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    let model = ModelRef::new("m", None).unwrap();
    let metadata = engine.model_metadata(model).unwrap();
    assert_eq!(metadata.inputs[0].to_string(), "'x' (INT32[-1, 1])");
    assert_eq!(metadata.outputs[0].to_string(), "'y' (INT32[-1, 1, 1])");
    let x = Tensor::from_vec(Shape::new(&[2, 1]).unwrap(), vec![7i32, 8]).unwrap();
    let response = infer(&engine, InferRequest::new(model).with_input("x", x)).unwrap();
    let y = response.output("y").unwrap();
    assert_eq!(y.shape().dims(), [2, 1, 1]);
    assert_eq!(y.as_fixed().unwrap().to_vec::<i32>().unwrap(), [7, 8]);
    // Clients may not send the model's own shape.
    let flat = Tensor::from_vec(Shape::vector(2), vec![7i32, 8]).unwrap();
    let error = infer(&engine, InferRequest::new(model).with_input("x", flat)).unwrap_err();
    assert!(error.message().contains("[-1, 1]"), "{}", error.message());
}

#[test]
fn what_does_not_fit_is_told() {
    for (config, expected) in [
        (
            "input {\n  name: \"x\"\n  data_type: TYPE_INT31\n}",
            "config.pbtxt: line 3, column 14: input[0].data_type: expected one of",
        ),
        (
            "input { name: \"z\" }",
            "its configuration does not match the model: the model has no input 'z'; it has 'x' (INT32[-1])",
        ),
        (
            "output { name: \"y\" data_type: TYPE_FP32 }",
            "its configuration does not match the model: output 'y': data_type is TYPE_FP32, but the model \
             has TYPE_INT32",
        ),
        (
            "name: \"other\"",
            "its configuration has the name 'other'; expected that of the directory",
        ),
        (
            "platform: \"tensorrt_plan\"",
            "platform is 'tensorrt_plan', expected one of word, or none",
        ),
        (
            "backend: \"python\"",
            "backend is 'python', expected one of word, or none",
        ),
        (
            "default_model_filename: \"other.word\"",
            "it has no version directory with other.word in it",
        ),
        (
            "version_policy: { specific { versions: [ 2, 3 ] } }",
            "its version policy selects only 2, 3, which do not exist",
        ),
        (
            "output { name: \"y\" label_filename: \"none.txt\" }",
            "none.txt cannot be opened: entity not found",
        ),
    ] {
        let reason = refusal(config);
        assert!(
            reason.starts_with(expected) || reason.contains("its version '1' has no"),
            "{reason}"
        );
    }
}

/// Malformed configurations, and one of 10 MB, are refused promptly with a reason. Unknown fields are
/// accepted.
#[test]
fn configurations_of_any_kind_end_in_a_reason() {
    let start = Instant::now();
    for (config, expected) in [
        (
            "# 10 MB\n".repeat(10 << 17),
            "config.pbtxt is larger than 1048576 bytes",
        ),
        (
            "a {".repeat(10_000),
            "config.pbtxt: line 1, column 99: nested deeper than 32",
        ),
        (
            "max_batch_size: -1".to_owned(),
            "config.pbtxt: line 1, column 17: max_batch_size: expected",
        ),
        (
            "input { name: \"x\" dims: 9223372036854775808 }".to_owned(),
            "config.pbtxt: line 1, column 25: input[0].dims[0]: expected",
        ),
        (
            "\0".to_owned(),
            "config.pbtxt: line 1, column 1: expected the name of a field",
        ),
    ] {
        let reason = refusal(&config);
        assert!(reason.starts_with(expected), "{reason}");
    }
    assert!(start.elapsed().as_secs() < 10);
    let folder = repository(&[
        ("m/1/model.word", "echo"),
        ("m/config.pbtxt", "surprise: 1 input { name: \"x\" wow { } }"),
    ]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    assert_eq!(state(&engine).0, ModelState::Ready);
}

#[test]
fn file_backend_and_versions_as_configured() {
    let config = "
        platform: \"words_wordv1\"
        default_model_filename: \"mine.word\"
        version_policy: { specific { versions: [ 1, 3, 4 ] } }
        parameters { key: \"loudness\" value { string_value: \"11\" } }
        runtime: \"loud\"
        input { name: \"x\" dims: [ 1 ] }";
    let folder = repository(&[
        ("m/1/mine.word", "echo"),
        ("m/2/mine.word", "broken"),
        ("m/3/mine.word", "tells its settings"),
        ("m/config.pbtxt", config),
    ]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    assert_eq!(engine.readiness(), oip_service::Readiness::Ready);
    let metadata = engine.model_metadata(ModelRef::new("m", None).unwrap()).unwrap();
    assert_eq!(metadata.versions, ["1", "3"]);
    let error = infer(&engine, request("m", Some("3"), 1)).unwrap_err();
    assert_eq!(
        error.message(),
        "model 'm': runtime loud, dims Some([1]), loudness 11"
    );
}

/// By default the latest version is served, as in Triton. The version `experimental` ranks below any number.
#[test]
fn the_latest_version_is_the_default() {
    let files = [
        ("m/1/model.word", "echo"),
        ("m/2/model.word", "echo"),
        ("m/10/model.word", "echo"),
        ("m/experimental/model.word", "echo"),
    ];
    let versions = |config: Option<&str>| {
        let folder = repository(&files);
        if let Some(config) = config {
            write(folder.path(), "m/config.pbtxt", config);
        }
        let (engine, _) = engine(folder.path(), EngineConfig::default());
        engine
            .model_metadata(ModelRef::new("m", None).unwrap())
            .unwrap()
            .versions
            .clone()
    };
    assert_eq!(versions(None), ["10"]);
    assert_eq!(
        versions(Some("version_policy { latest { num_versions: 2 } }")),
        ["2", "10"]
    );
    assert_eq!(
        versions(Some("version_policy { all { } }")),
        ["experimental", "1", "2", "10"]
    );
    assert_eq!(
        versions(Some("version_policy { specific { versions: 2 } }")),
        ["2"]
    );
}

#[test]
fn labels_are_read_for_classification() {
    let folder = repository(&[
        ("m/1/model.word", "echo"),
        ("m/labels.txt", "cat\r\ndog\n\nbird\n"),
        (
            "m/config.pbtxt",
            "max_batch_size: 4 output { name: \"y\" label_filename: \"labels.txt\" }",
        ),
    ]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    let model = ModelRef::new("m", None).unwrap();
    let classes = engine.classification().unwrap().classes(model, "y");
    assert!(classes.is_batched);
    assert_eq!(*classes.labels, ["cat", "dog", "", "bird"]);
    assert!(
        engine
            .classification()
            .unwrap()
            .classes(model, "x")
            .labels
            .is_empty()
    );
}

/// A version's labels take precedence over the model's.
#[test]
fn a_version_may_have_labels_of_its_own() {
    let folder = repository(&[
        ("m/1/model.word", "echo"),
        ("m/2/model.word", "echo"),
        ("m/2/labels.txt", "fish\n"),
        ("m/labels.txt", "cat\n"),
        (
            "m/config.pbtxt",
            "max_batch_size: 4 version_policy { all {} } output { name: \"y\" label_filename: \"labels.txt\" }",
        ),
    ]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    let label = |version| {
        let model = ModelRef::new("m", Some(version)).unwrap();
        engine.classification().unwrap().classes(model, "y").labels[0].clone()
    };
    assert_eq!([label("1"), label("2")], ["cat", "fish"]);
}

/// Symbolic links out of the repository cannot be used to read other files as labels, configurations or
/// warm-up data.
#[cfg(unix)]
#[test]
fn side_files_are_confined() {
    use std::os::unix::fs::symlink;

    let outside = repository(&[("secret", "root:x:0:0")]);
    let secret = outside.path().join("secret");
    let warmup = "model_warmup { name: \"w\" inputs { key: \"x\" value { data_type: TYPE_INT32 input_data_file: \"link\" } } }";
    for (link, config) in [
        ("m/link", "output { name: \"y\" label_filename: \"link\" }"),
        ("m/warmup/link", warmup),
        ("m/config.pbtxt", ""),
    ] {
        let folder = repository(&[("m/1/model.word", "echo"), ("m/warmup/x", "")]);
        if !config.is_empty() {
            write(folder.path(), "m/config.pbtxt", config);
        }
        symlink(&secret, folder.path().join(link)).unwrap();
        let (engine, _) = engine(folder.path(), EngineConfig::default());
        let (state, reason) = state(&engine);
        assert_eq!(state, ModelState::Unavailable);
        assert!(
            reason.contains("is a link that leads out of the repository"),
            "{reason}"
        );
        assert!(!reason.contains("root"), "{reason}");
    }
}

#[test]
fn warm_up_requests_run_before_the_model_is_ready() {
    let warmup = |content: &str| {
        format!(
            "max_batch_size: 8 model_warmup {{ name: \"w\" batch_size: 2 count: 3 \
             inputs {{ key: \"x\" value {{ data_type: TYPE_INT32 {content} }} }} }}"
        )
    };
    for content in ["zero_data: true", "random_data: true", "input_data_file: \"x\""] {
        let config = warmup(content);
        let folder = repository(&[
            ("m/1/model.word", "echo"),
            ("m/config.pbtxt", &config),
            ("m/warmup/x", "\u{1}\0\0\0\u{2}\0\0\0"),
        ]);
        let (engine, runs) = engine(folder.path(), EngineConfig::default());
        assert_eq!(state(&engine), (ModelState::Ready, String::new()));
        assert_eq!(runs.load(std::sync::atomic::Ordering::SeqCst), 3);
    }
}

/// A model whose warm-up fails is not ready, and the repository index gives the reason.
#[test]
fn a_failed_warm_up_keeps_the_model_from_being_ready() {
    for (word, input, expected) in [
        (
            "fails on 13",
            "data_type: TYPE_INT32 input_data_file: \"x\"",
            "13 is out of range",
        ),
        (
            "gives nothing",
            "data_type: TYPE_INT32 zero_data: true",
            "did not return its output 'y'",
        ),
        (
            "panics on 13",
            "data_type: TYPE_INT32 input_data_file: \"x\"",
            "the backend panicked while warming it up",
        ),
        (
            "echo",
            "data_type: TYPE_FP32 zero_data: true",
            "expected datatype INT32, found FP32",
        ),
        (
            "echo",
            "data_type: TYPE_INT32 dims: [ -1 ] zero_data: true",
            "none may be free",
        ),
        (
            "echo",
            "data_type: TYPE_INT32 dims: [ 9223372036854775807 ] zero_data: true",
            "byte",
        ),
        (
            "echo",
            "data_type: TYPE_INT32 dims: [ 999999999999 ] zero_data: true",
            "more than 1073741824",
        ),
        (
            "echo",
            "data_type: TYPE_INT32 input_data_file: \"../1/model.word\"",
            "path separator",
        ),
        (
            "echo",
            "data_type: TYPE_INT32 input_data_file: \"none\"",
            "none cannot be opened",
        ),
    ] {
        let config = format!("model_warmup {{ name: \"w\" inputs {{ key: \"x\" value {{ {input} }} }} }}");
        let folder = repository(&[
            ("m/1/model.word", word),
            ("m/config.pbtxt", &config),
            ("m/warmup/x", "\u{d}\0\0\0"),
        ]);
        let (engine, _) = engine(folder.path(), EngineConfig::default());
        let index = engine.repository().unwrap().index();
        assert_eq!(index[0].state, Some(ModelState::Unavailable));
        assert!(index[0].reason.contains(expected), "{:?}", index[0]);
        assert!(!engine.readiness().is_ready());
    }
}

/// An unreadable file or directory makes only its own model unavailable, with the reason.
#[cfg(unix)]
#[test]
fn folders_and_files_that_may_not_be_read() {
    use std::os::unix::fs::PermissionsExt;

    let folder = repository(&[
        ("dir/1/model.word", "echo"),
        ("file/1/model.word", "echo"),
        ("good/1/model.word", "echo"),
    ]);
    let root = folder.path();
    let forbid =
        |path: &str, mode| fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    forbid("dir", 0);
    forbid("file/1/model.word", 0);
    let (engine, _) = engine(root, EngineConfig::default());
    let reason = |name: &str| {
        engine
            .models()
            .into_iter()
            .find(|model| model.name == name)
            .unwrap()
            .reason
    };
    let reasons = [reason("dir"), reason("file"), reason("good")];
    forbid("dir", 0o755);
    // The superuser can read everything.
    if fs::read_dir("/root").is_ok() {
        return;
    }
    assert!(reasons[0].contains("permission denied"), "{reasons:?}");
    assert_eq!(reasons[1], "model.word cannot be read: permission denied");
    assert_eq!(reasons[2], "");
}

/// A file larger than the memory limit is not read.
#[cfg(target_os = "linux")]
#[test]
fn models_larger_than_the_memory_are_refused() {
    let folder = repository(&[("m/1/model.word", "")]);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("m/1/model.word"))
        .unwrap();
    file.set_len(1 << 43).unwrap();
    let start = Instant::now();
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    let (_, reason) = state(&engine);
    assert!(
        reason.starts_with("model.word has 8796093022208 bytes, but only "),
        "{reason}"
    );
    assert!(start.elapsed().as_secs() < 5);
}

/// Listing and loading take linear time, for many models, many versions, a deep directory tree and a cyclic
/// link.
#[test]
fn ten_thousand_models_and_a_thousand_versions() {
    // Use a memory file system if available: this many directories take a minute on a disk.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    let folder = folder.unwrap();
    let root = folder.path();
    write(
        root,
        "m/config.pbtxt",
        "version_policy { latest { num_versions: 2 } }",
    );
    (0..1000).for_each(|version| write(root, &format!("m/{version}/model.word"), "echo"));
    (0..10_000).for_each(|model| fs::create_dir(root.join(format!("model{model}"))).unwrap());
    fs::create_dir_all(root.join("deep").join("d/".repeat(255))).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(root, root.join("round")).unwrap();

    let config = EngineConfig::default().with(|config| {
        config.control = oip_engine::ModelControl::Explicit {
            load: vec!["m".into()],
        };
    });
    let start = Instant::now();
    let (engine, _) = engine(root, config);
    assert_eq!(state(&engine).0, ModelState::Ready);
    let index = engine.repository().unwrap().index();
    // Quadratic time would take minutes.
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    assert!(index.len() >= 10_003, "{}", index.len());
    let ready: Vec<_> = index.iter().filter(|entry| entry.state.is_some()).collect();
    assert_eq!(
        ready
            .iter()
            .map(|entry| entry.version.as_deref())
            .collect::<Vec<_>>(),
        [Some("998"), Some("999")]
    );

    // Loads all models; each failure is recorded with its reason.
    let start = Instant::now();
    let engine = Engine::start(
        Repository::open(
            root,
            &[std::sync::Arc::new(WordBackend::default()) as std::sync::Arc<dyn Backend>],
            None,
        )
        .unwrap(),
        EngineConfig::default(),
    );
    engine.wait_until_loaded();
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
    assert_eq!(
        engine
            .models()
            .iter()
            .filter(|model| model.state == ModelState::Ready)
            .count(),
        2
    );
}

/// A model may have an example request; a version's example takes precedence. An invalid example does not
/// fail the model.
#[test]
fn models_bring_an_example() {
    let body = |x: i32| {
        format!(r#"{{"inputs": [{{"name": "x", "datatype": "INT32", "shape": [1], "data": [{x}]}}]}}"#)
    };
    let example = |files: &[(&str, &str)], version| {
        let model = [("m/1/model.word", "echo"), ("m/2/model.word", "echo")];
        let policy = ("m/config.pbtxt", "version_policy { all {} }");
        let folder = repository(&[&model[..], &[policy], files].concat());
        let (engine, _) = engine(folder.path(), EngineConfig::default());
        assert_eq!(y(&infer(&engine, request("m", Some("1"), 7)).unwrap()), 7);
        let model = ModelRef::new("m", Some(version)).unwrap();
        engine.configuration().unwrap().model_example(model).unwrap()
    };
    let (three, four) = (body(3), body(4));
    let files = [("m/example.json", &*three), ("m/2/example.json", &*four)];
    assert_eq!(example(&files, "1").unwrap(), three);
    assert_eq!(example(&files, "2").unwrap(), four);
    assert_eq!(example(&[], "1"), None);
    let large = " ".repeat(1 << 20) + &three;
    let renamed = three.replace("\"x\"", "\"z\"");
    let retyped = three.replace("INT32", "INT64");
    for wrong in ["", "{", "{}", "[]", "\u{0}", &large, &renamed, &retyped] {
        assert_eq!(example(&[("m/example.json", wrong)], "1"), None, "{wrong:.80}");
    }
    let folder = repository(&[("m/1/model.word", "echo")]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    let unknown = ModelRef::new("n", None).unwrap();
    assert!(engine.configuration().unwrap().model_example(unknown).is_err());
}
