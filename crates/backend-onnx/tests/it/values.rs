//! Values that a model cannot take, and runs that end early.

use std::time::{Duration, Instant};

use oip_service::CancelToken;
use oip_types::ErrorCode;

use crate::support::{infer, model, recorded_request, request};

#[track_caller]
fn refuses(name: &str, json: &'static str, expected: &str) {
    let error = infer(&*model(name), request(json)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn an_index_outside_of_the_table_is_the_clients_mistake() {
    for index in ["3", "-4", "4294967296", "-9223372036854775808"] {
        let json = format!(
            r#"{{"inputs": [{{"name": "i", "shape": [2], "datatype": "INT64", "data": [0, {index}]}}]}}"#
        );
        let error = infer(&*model("gather"), request(json)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        let expected = format!("the index {index} is outside of a dimension of 3");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn dividing_an_integer_by_zero_is_the_clients_mistake() {
    refuses(
        "integer_division",
        r#"{"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [1]},
                       {"name": "b", "shape": [1], "datatype": "INT64", "data": [0]}]}"#,
        "divided by zero",
    );
}

/// A few megabytes of request can ask for a product of a third of a terabyte.
#[test]
fn sizes_without_bound_are_the_clients_mistake() {
    let column = |dims: [u64; 2]| {
        let shape = tensor_core::Shape::new(&dims).unwrap();
        tensor_core::Tensor::from_vec(shape, vec![1.0f32; 300_000]).unwrap()
    };
    let mut large = recorded_request("outer_product");
    large.inputs[0].value = column([300_000, 1]).into();
    large.inputs[1].value = column([1, 300_000]).into();
    let error = infer(&*model("outer_product"), large).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(
        error
            .to_string()
            .contains("takes 335 GiB, which is beyond the limit of 4 GiB"),
        "{error}"
    );

    refuses(
        "range",
        r#"{"inputs": [{"name": "a", "shape": [], "datatype": "INT64", "data": [0]},
                       {"name": "b", "shape": [], "datatype": "INT64", "data": [1099511627776]},
                       {"name": "c", "shape": [], "datatype": "INT64", "data": [1]}]}"#,
        "a range of 1099511627776 numbers is beyond the limit",
    );
}

#[test]
fn dimensions_of_the_same_name_must_be_equal() {
    refuses(
        "two_inputs",
        r#"{"inputs": [{"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]},
                       {"name": "b", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}"#,
        "input 'a' has 2 in dimension 0 but input 'b' has 1 in dimension 0; the model calls both 'rows'",
    );
}

#[test]
fn strings_that_are_not_utf8_are_refused() {
    let mut bad = recorded_request("strings");
    let elements: [&[u8]; 2] = [b"fine", b"\xff"];
    let shape = tensor_core::Shape::new(&[2]).unwrap();
    bad.inputs[0].value = oip_types::BytesTensor::from_elements(shape, elements)
        .unwrap()
        .into();
    let error = infer(&*model("strings"), bad).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.to_string().contains("element 1 is not UTF-8"), "{error}");
}

#[test]
fn a_run_that_nobody_waits_for_ends() {
    let model = model("mlp_classifier");
    let run = |token: &CancelToken| {
        model
            .infer(recorded_request("mlp_classifier"), token)
            .unwrap_err()
            .code()
    };
    let cancelled = CancelToken::new(None);
    cancelled.cancel();
    assert_eq!(run(&cancelled), ErrorCode::Cancelled);
    let late = CancelToken::new(Some(Instant::now() - Duration::from_millis(1)));
    assert_eq!(run(&late), ErrorCode::DeadlineExceeded);
}

#[test]
fn models_can_run_at_the_same_time() {
    let model = model("random_forest");
    let expected = infer(&*model, recorded_request("random_forest")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let outputs = infer(&*model, recorded_request("random_forest")).unwrap();
                    assert_eq!(outputs[1].value.raw(), expected[1].value.raw());
                }
            });
        }
    });
}
