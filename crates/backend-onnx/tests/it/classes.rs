//! Tests labels and scores of classifiers for which ONNX Runtime's results are wrong. `docs/onnx.md` explains
//! the results of the built-in runtime.

use oip_types::{ErrorCode, TensorValue};
use tensor_core::DType;

use crate::support::{Runtime, infer, request};

/// Returns the labels and scores of a model with two features, for all combinations of their signs.
fn classified(name: &str) -> (Vec<i64>, Vec<f32>) {
    let rows = r#"{"inputs": [{"name": "x", "shape": [4, 2], "datatype": "FP32", "data": [-1, -1, -1, 1, 1, -1, 1, 1]}]}"#;
    let outputs = infer(&*Runtime::BuiltIn.model(name), request(rows)).unwrap();
    let [TensorValue::Fixed(labels), TensorValue::Fixed(scores)] = [&outputs[0].value, &outputs[1].value]
    else {
        panic!("{outputs:?}");
    };
    assert_eq!(
        (labels.spec().dtype(), scores.spec().dtype()),
        (DType::I64, DType::F32)
    );
    (labels.to_vec().unwrap(), scores.to_vec().unwrap())
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }
}

/// Checks that a margin above 0, and so a probability above 0.5, selects the second class, as in LightGBM and
/// XGBoost. ONNX Runtime returns the first class, 4, up to a margin of 0.5.
#[test]
fn the_label_of_a_margin_is_that_of_its_probability() {
    let (labels, scores) = classified("forest_of_low_margins");
    assert_eq!(labels, [4, 9, 9, 9]);
    let expected = [0.0f32, 0.125, 0.25, 0.375].map(|margin| 1.0 / (1.0 + (-margin).exp()));
    assert_close(&scores, &expected.map(|second| [1.0 - second, second]).concat());
}

/// Checks that the greater score decides the label. ONNX Runtime returns labels 1 and 0 here: 1 for each row
/// whose second score is above 0.
#[test]
fn two_classes_with_a_score_each_are_labelled_by_the_greater_score() {
    let (labels, scores) = classified("forest_of_two_scores");
    assert_eq!(labels, [4, 4, 4, 9]);
    assert_close(&scores, &[1.25, 0.25, 0.875, 0.5, 0.5, 0.5, 0.125, 0.75]);
}

/// Checks that both base values are added. ONNX Runtime ignores the first one, and the leaf values of the
/// second class.
#[test]
fn two_classes_with_a_base_value_each_have_both_added() {
    let (labels, scores) = classified("forest_of_two_base_values");
    assert_eq!(labels, [4, 9, 9, 9]);
    assert_close(&scores, &[1.375, 1.25, 1.0, 1.5, 0.625, 1.5, 0.25, 1.75]);
}

#[test]
fn nan_is_on_no_side_of_a_threshold() {
    // The NaN is set here, since JSON cannot express it.
    let mut asked =
        request(r#"{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}"#);
    asked.inputs[0].value = tensor_core::Tensor::from_slice([1, 2], &[1.0f32, f32::NAN])
        .unwrap()
        .into();
    let error = infer(&*Runtime::BuiltIn.model("binarized"), asked).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.to_string().contains("element 1 is NaN"), "{error}");
}
