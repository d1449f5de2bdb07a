//! Steps served as separate models.

use std::sync::Arc;

use bytes::Bytes;
use oip_model::{Backend, LoadContext, Model, ModelSource, RowIndependence};
use oip_text::{TextOptions, TextStepBackend};
use oip_types::{ErrorCode, InferOutput, InferRequest, ModelConfig, ModelRef, model_config::ConfigParameter};
use serde_json::{Value as Json, json};
use tensor_core::{Shape, Tensor};

use crate::support::{Files, floats, infer, request, texts, tokenizer};

fn step(name: &str, file: &Json, beside: &[(&str, Json)]) -> Result<Box<dyn Model>, String> {
    let backend = TextStepBackend::new(TextOptions::default());
    let content = Bytes::from(file.to_string());
    let beside = backend.gather(&content, &Files::new(beside)).unwrap();
    let mut config = ModelConfig::default();
    let parameter = ConfigParameter {
        string_value: name.to_owned(),
    };
    config.parameters.insert("step".to_owned(), parameter);
    let source = ModelSource::new(name, "1", "step", content).with_beside(beside);
    let cx = LoadContext::default().with_config(Arc::new(config));
    backend
        .load(&source, &cx)
        .map_err(|error| error.message().to_owned())
}

fn asked(inputs: &[(&str, Tensor)]) -> InferRequest {
    let request = InferRequest::new(ModelRef::new("step", None).unwrap());
    inputs.iter().fold(request, |request, (name, tensor)| {
        request.with_input(*name, tensor.clone())
    })
}

fn tensor<T: tensor_core::Element + Clone>(dims: &[u64], values: &[T]) -> Tensor {
    Tensor::from_vec(Shape::new(dims).unwrap(), values.to_vec()).unwrap()
}

fn integers(outputs: &[InferOutput], name: &str) -> (Vec<u64>, Vec<i64>) {
    let output = outputs.iter().find(|output| output.name == name).unwrap();
    let tensor = output.value.as_fixed().unwrap();
    (tensor.shape().dims().to_vec(), tensor.to_vec().unwrap())
}

#[test]
fn tokenize_pads_the_texts_of_a_request_to_the_longest() {
    let config = json!({"model_type": "bert", "max_position_embeddings": 5});
    let model = step("tokenize", &tokenizer(), &[("config.json", config)]).unwrap();
    let outputs = infer(&*model, request(&["one", "two three one two"])).unwrap();
    assert_eq!(
        integers(&outputs, "input_ids"),
        (vec![2, 5], vec![2, 4, 3, 0, 0, 2, 5, 6, 4, 3])
    );
    assert_eq!(
        integers(&outputs, "attention_mask").1,
        [1, 1, 1, 0, 0, 1, 1, 1, 1, 1]
    );
    assert_eq!(integers(&outputs, "token_type_ids").1, [0; 10]);
    assert!(matches!(
        model.capabilities().row_independence,
        RowIndependence::Unproven(_)
    ));
    let ids = request(&["one"]).with_output("input_ids");
    assert_eq!(infer(&*model, ids).unwrap().len(), 1);
}

#[test]
fn tokenize_refuses_more_padded_tokens_than_it_gives() {
    let config = json!({"model_type": "bert", "max_position_embeddings": 4096});
    let model = step("tokenize", &tokenizer(), &[("config.json", config)]).unwrap();
    let long = "one ".repeat(4096);
    let mut given = vec!["one"; 1100];
    given.push(&long);
    let error = infer(&*model, request(&given)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    assert!(
        error.message().contains("1101 texts padded to 4096 tokens"),
        "{error}"
    );
}

#[test]
fn pool_leaves_masked_tokens_out_wherever_they_are() {
    let model = step("pool", &json!({"pooling_mode_mean_tokens": true}), &[]).unwrap();
    let hidden = tensor::<f32>(&[2, 3, 1], &[1.0, 3.0, 100.0, 100.0, 5.0, 7.0]);
    let mask = tensor::<i64>(&[2, 3], &[1, 1, 0, 0, 1, 1]);
    let outputs = infer(
        &*model,
        asked(&[("token_embeddings", hidden.clone()), ("attention_mask", mask)]),
    )
    .unwrap();
    assert_eq!(floats(&outputs, "embedding"), [2.0, 6.0]);
    let other = tensor::<i64>(&[2, 2], &[1; 4]);
    let error = infer(
        &*model,
        asked(&[("token_embeddings", hidden), ("attention_mask", other)]),
    )
    .unwrap_err();
    assert_eq!(
        error.message(),
        "input 'attention_mask' has the shape [2, 2], expected [2, 3]"
    );
    assert!(matches!(
        model.capabilities().row_independence,
        RowIndependence::Proven(_)
    ));
}

#[test]
fn rows_without_values_are_refused_however_many_there_are() {
    let rows = 1 << 40;
    let model = step("pool", &json!({"pooling_mode_cls_token": true}), &[]).unwrap();
    let inputs = [
        ("token_embeddings", tensor::<f32>(&[rows, 0, 8], &[])),
        ("attention_mask", tensor::<i64>(&[rows, 0], &[])),
    ];
    assert!(
        infer(&*model, asked(&inputs))
            .unwrap_err()
            .message()
            .contains("has no values")
    );
    let model = step("labels", &json!({"id2label": {"0": "a"}}), &[]).unwrap();
    let error = infer(&*model, asked(&[("logits", tensor::<f32>(&[rows, 0], &[]))])).unwrap_err();
    assert!(error.message().contains("has no classes"));
    let model = step("normalize", &json!({}), &[]).unwrap();
    let outputs = infer(&*model, asked(&[("embedding", tensor::<f32>(&[rows, 0], &[]))])).unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [rows, 0]);
}

#[test]
fn normalize_and_labels_work_row_by_row() {
    let model = step("normalize", &json!([]), &[]).unwrap();
    let vectors = tensor::<f32>(&[2, 2], &[3.0, 4.0, 0.0, 0.0]);
    let outputs = infer(&*model, asked(&[("embedding", vectors)])).unwrap();
    assert_eq!(floats(&outputs, "embedding"), [0.6, 0.8, 0.0, 0.0]);

    let model = step("labels", &json!({"id2label": {"0": "bad", "1": "good"}}), &[]).unwrap();
    let logits = asked(&[("logits", tensor::<f32>(&[2, 2], &[0.0, 9.0, 1.0, 1.0]))]);
    let outputs = infer(&*model, logits.clone()).unwrap();
    assert_eq!(texts(&outputs, "label"), ["good", "bad"]);
    assert_eq!(floats(&outputs, "scores")[2..], [0.5, 0.5]);
    let named = ["scores", "label", "labels"]
        .into_iter()
        .fold(logits, InferRequest::with_output);
    let outputs = infer(&*model, named).unwrap();
    assert_eq!(texts(&outputs, "labels"), ["bad", "good", "bad", "good"]);
}

#[test]
fn a_step_that_is_not_known_is_refused_with_those_that_are() {
    for (name, found) in [("stem", "found 'stem'"), ("", "found nothing")] {
        let error = step(name, &json!({}), &[]).err().unwrap();
        assert!(
            error.contains("expected tokenize, pool, normalize or labels"),
            "{error}"
        );
        assert!(error.contains(found), "{error}");
    }
    let error = step("pool", &json!({}), &[]).err().unwrap();
    assert!(error.contains("it enables no known pooling"), "{error}");
}
