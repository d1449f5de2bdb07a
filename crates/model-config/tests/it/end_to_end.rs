//! Tests all steps, from the text of a configuration to the effective configuration.

use model_config::{
    CompletedConfig, Defaults, MismatchError, Syntax, WrittenConfig, complete, complete_pipeline,
};
use oip_types::{DataType, Joining, ModelMetadata, TensorMetadata};

/// Returns the metadata of a model that takes batches of images.
pub(crate) fn digits() -> ModelMetadata {
    ModelMetadata::new(
        "digits",
        "onnx_onnxv1",
        vec![TensorMetadata::new("x", DataType::FP32, &[-1, 784])],
        vec![TensorMetadata::new("y", DataType::FP32, &[-1, 10])],
    )
    .with_versions(["1"])
}

pub(crate) fn run(text: &str, model: &ModelMetadata) -> Result<CompletedConfig, MismatchError> {
    let written = WrittenConfig::read(text, Syntax::Pbtxt).unwrap();
    let defaults = Defaults::default()
        .with_instances(2)
        .with_max_batch_size(64)
        .with_joining(Joining::Proven);
    complete(&written, model, "onnx", &defaults)
}

#[test]
fn what_is_completed_says_the_same_when_it_is_read_again() {
    let completed = run("instance_group { count: 3 } max_batch_size: 16", &digits()).unwrap();
    let shown = serde_json::to_string(&completed.config).unwrap();
    let written = WrittenConfig::read(&shown, Syntax::Json).unwrap();
    let again = complete(&written, &digits(), "another", &Defaults::default()).unwrap();
    assert_eq!(again.config, completed.config);
    assert_eq!(completed.config.backend, "onnx");
    assert_eq!(completed.config.instance_group[0].count, 3);
}

#[test]
fn without_defaults_for_batches_a_model_is_not_batched() {
    let written = WrittenConfig::read("", Syntax::Pbtxt).unwrap();
    let completed = complete(&written, &digits(), "onnx", &Defaults::default()).unwrap();
    assert_eq!(completed.config.max_batch_size, 0);
    assert_eq!(completed.config.input[0].dims, [-1, 784]);
    assert!(completed.without_batches.is_none());
    let completed = run("", &digits()).unwrap();
    assert_eq!(completed.config.max_batch_size, 64);
    assert_eq!(completed.without_batches.unwrap().max_batch_size, 0);
}

#[test]
fn a_pipeline_is_what_its_configuration_says() {
    let text = r#"
        max_batch_size: 4
        input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
        output { name: "label" data_type: TYPE_INT64 dims: [ ] }
        ensemble_scheduling { step {
            model_name: "classify"
            input_map { key: "x" value: "text" }
            output_map { key: "y" value: "label" }
        } }
    "#;
    let written = WrittenConfig::read(text, Syntax::Pbtxt).unwrap();
    assert!(written.is_pipeline());
    let completed = complete_pipeline(&written, "p", Some("1")).unwrap();
    assert_eq!(completed.metadata.inputs[0].to_string(), "'text' (BYTES[-1, 1])");
    assert_eq!(completed.config.platform, WrittenConfig::PIPELINE);
}
