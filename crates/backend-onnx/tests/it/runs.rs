//! Tests runs that end early, and concurrent runs.

use std::time::{Duration, Instant};

use oip_model::CancelToken;
use oip_types::ErrorCode;

use crate::support::{Runtime, infer, recorded_request, runtimes};

#[test]
fn a_run_that_nobody_waits_for_ends() {
    for &runtime in runtimes() {
        let model = runtime.model("mlp_classifier");
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
}

#[test]
fn models_can_run_at_the_same_time() {
    for &runtime in runtimes() {
        let model = runtime.model("random_forest");
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
}

/// Checks that the deadline ends a `NonMaxSuppression` of many boxes. The boxes do not overlap, so all are
/// kept, and each is compared with all kept ones.
#[test]
fn an_operator_that_takes_long_ends_with_its_request() {
    let model = Runtime::BuiltIn.model("boxes_of_a_request");
    let count = 60_000u16;
    let corners = (0..count).flat_map(|index| {
        let left = f32::from(index) * 2.0;
        [0.0, left, 1.0, left + 1.0]
    });
    let tensor = |dims: &[u64], numbers: Vec<f32>| {
        tensor_core::Tensor::from_vec(tensor_core::Shape::new(dims).unwrap(), numbers).unwrap()
    };
    let mut request = recorded_request("boxes_of_a_request");
    request.inputs[0].value = tensor(&[1, u64::from(count), 4], corners.collect()).into();
    request.inputs[1].value = tensor(&[1, 1, u64::from(count)], vec![0.5; usize::from(count)]).into();
    request.inputs[2].value = {
        let shape = tensor_core::Shape::new(&[1]).unwrap();
        tensor_core::Tensor::from_vec(shape, vec![1i64 << 31])
            .unwrap()
            .into()
    };
    let started = Instant::now();
    let token = CancelToken::new(Some(started + Duration::from_millis(100)));
    let error = model.infer(request, &token).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded, "{}", error.report());
    let taken = started.elapsed();
    assert!(taken < Duration::from_secs(3), "{taken:?}");
}
