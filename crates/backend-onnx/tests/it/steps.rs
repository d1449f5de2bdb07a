//! Tests loops, branches and sizes that depend on values: loops end, and bad values in a request are never an
//! internal error.

use std::time::{Duration, Instant};

use oip_model::CancelToken;
use oip_types::{ErrorCode, InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

use crate::support::{Runtime, infer, recorded_request};

fn count_to(count: i64) -> InferRequest {
    let count = Tensor::from_vec(Shape::new(&[]).unwrap(), vec![count]).unwrap();
    InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("n", count)
}

/// Checks that a loop of 2^62 iterations ends at the deadline, or when it is cancelled.
#[test]
fn loops_without_end_are_ended() {
    let model = Runtime::BuiltIn.model("loop");
    let start = Instant::now();
    let token = CancelToken::new(Some(start + Duration::from_millis(100)));
    let error = model.infer(count_to(1 << 62), &token).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded, "{}", error.report());

    let token = CancelToken::new(None);
    token.cancel();
    let error = model.infer(count_to(1 << 62), &token).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Cancelled, "{}", error.report());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());

    let outputs = infer(&*model, count_to(3)).unwrap();
    assert_eq!(outputs[0].value.as_fixed().unwrap().to_vec::<i64>().unwrap(), [3]);
}

/// Checks which models are bounded. The shapes alone determine the run time of a bounded model, so it can run
/// on a thread that also serves other requests.
#[test]
fn runs_whose_sizes_follow_from_values_are_not_bounded() {
    for (name, is_bounded) in [
        ("mlp_classifier", true),
        ("shape_by_product", true),
        ("loop_with_weights", false),
        ("range", false),
        ("reshape_to_numbers", false),
    ] {
        assert_eq!(
            Runtime::BuiltIn.model(name).capabilities().bounded,
            is_bounded,
            "{name}"
        );
    }
}

/// Checks that bad values and sizes in the body of a `Scan` are client errors, as in every graph.
#[test]
fn bodies_of_scans_have_all_checks() {
    let request = |numbers: &[i64]| {
        let shape = Shape::new(&[numbers.len() as u64]).unwrap();
        let numbers = Tensor::from_vec(shape, numbers.to_vec()).unwrap();
        InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("numbers", numbers)
    };
    for (name, wrong) in [
        ("scan_of_places", &[1, 5][..]),
        ("scan_of_places", &[-6, 0]),
        ("scan_of_counts", &[1, 5]),
        ("scan_of_counts", &[-1]),
        ("scan_of_divisors", &[3, 0]),
    ] {
        let model = Runtime::BuiltIn.model(name);
        let error = infer(&*model, request(wrong)).unwrap_err();
        let report = error.report();
        assert_eq!(
            error.code(),
            ErrorCode::InvalidArgument,
            "{name} of {wrong:?}: {report}"
        );
        infer(&*model, recorded_request(name)).unwrap();
    }
}

/// Builds a column and rows for a `Scan` that multiplies the column with each row.
fn products(height: u64, width: u64, steps: u64) -> InferRequest {
    let ones = |dims: &[u64]| {
        let shape = Shape::new(dims).unwrap();
        let count = shape.element_count() as usize;
        Tensor::from_vec(shape, vec![1.0f32; count]).unwrap()
    };
    InferRequest::new(ModelRef::new("m", None).unwrap())
        .with_input("column", ones(&[1, height, 1]))
        .with_input("rows", ones(&[steps, 1, width]))
}

/// Checks that a request of two megabytes is refused if a product in the body of a `Scan` would take 150 GiB.
#[test]
fn sizes_inside_of_a_scan_are_counted() {
    let model = Runtime::BuiltIn.model("scan_of_products");
    let error = infer(&*model, products(200_000, 200_000, 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    assert!(error.to_string().contains("beyond the limit of 4 GiB"), "{error}");
}

/// Checks that a `Scan` ends at the deadline: each iteration checks for cancellation.
#[test]
fn a_scan_ends_with_its_request() {
    let model = Runtime::BuiltIn.model("scan_of_products");
    let start = Instant::now();
    let token = CancelToken::new(Some(start + Duration::from_millis(300)));
    let error = model.infer(products(20_000, 20, 2_000), &token).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded, "{}", error.report());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Sends requests of different sizes to one model, and then the first request again.
#[test]
fn one_model_answers_requests_of_all_sizes() {
    let model = Runtime::BuiltIn.model("chosen_rows");
    let first = infer(&*model, recorded_request("chosen_rows")).unwrap();
    for rows in [1u64, 7, 40] {
        let x: Vec<f32> = (0..rows * 4).map(|value| value as f32).collect();
        let x = Tensor::from_vec(Shape::new(&[rows, 4]).unwrap(), x).unwrap();
        let limit = Tensor::from_vec(Shape::new(&[]).unwrap(), vec![9.5f32]).unwrap();
        let request = InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("x", x)
            .with_input("limit", limit);
        let outputs = infer(&*model, request).unwrap();
        // The last number of each row is the largest (3, 7, 11, ...), so all rows but the first two exceed
        // the limit.
        let chosen = rows.saturating_sub(2);
        assert_eq!(outputs[0].value.shape().dims(), [chosen, 4]);
    }
    let again = infer(&*model, recorded_request("chosen_rows")).unwrap();
    assert_eq!(first[0].value, again[0].value);
}

/// Checks that a `TopK` count that is negative or larger than the axis is a client error.
#[test]
fn values_that_do_not_fit_are_the_requests_fault() {
    let model = Runtime::BuiltIn.model("top_of_a_request");
    let request = |k: i64| {
        let x = Tensor::from_vec(Shape::new(&[1, 4]).unwrap(), vec![1.0f32, 4.0, 2.0, 3.0]).unwrap();
        let k = Tensor::from_vec(Shape::new(&[1]).unwrap(), vec![k]).unwrap();
        InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("x", x)
            .with_input("k", k)
    };
    let outputs = infer(&*model, request(2)).unwrap();
    assert_eq!(
        outputs[0].value.as_fixed().unwrap().to_vec::<f32>().unwrap(),
        [4.0, 3.0]
    );
    for k in [5, -1, i64::MAX] {
        let error = infer(&*model, request(k)).unwrap_err();
        assert_eq!(
            error.code(),
            ErrorCode::InvalidArgument,
            "{k}: {}",
            error.report()
        );
    }
}

/// Checks that sizes from values in the request are limited before allocation, and that none of them wraps
/// around to a small one.
#[test]
fn sizes_from_values_are_counted() {
    let values = |values: Vec<i64>| {
        let shape = Shape::new(&[values.len() as u64]).unwrap();
        Tensor::from_vec(shape, values).unwrap()
    };
    let ask = |model: &str, input: &str, given: Vec<i64>| {
        let x = Tensor::from_vec(Shape::new(&[1, 4]).unwrap(), vec![1.0f32, 4.0, 2.0, 3.0]).unwrap();
        let request = InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("x", x)
            .with_input(input, values(given));
        infer(&*Runtime::BuiltIn.model(model), request)
    };
    for (repeats, expected) in [
        (
            [1, 1 << 62],
            "a position of 4611686018427387904, expected at most 2147483647",
        ),
        (
            [1 << 31, 1],
            "a position of 2147483648, expected at most 2147483647",
        ),
        ([1 << 20, 1 << 20], "which is beyond the limit of 4 GiB"),
        ([i64::MAX, i64::MAX], "expected at most 2147483647"),
        ([-1, 1], "-1 repetitions of a dimension"),
    ] {
        let repeats = repeats.to_vec();
        let error = ask("tiles_of_a_request", "repeats", repeats.clone()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains(expected), "{repeats:?}: {error}");
    }
    let nothing = ask("tiles_of_a_request", "repeats", vec![1, 0]).unwrap();
    assert_eq!(nothing[0].value.shape().dims(), [1, 0]);

    let mut dims = vec![1; 70];
    dims.extend([1, 4]);
    let error = ask("dims_of_a_request", "dims", dims).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    let expected = "a value would have 72 dimensions, expected 64 at most";
    assert!(error.to_string().contains(expected), "{error}");
}
