//! Tests values that a model does not accept, and runs that end early.

use std::time::{Duration, Instant};

use oip_service::CancelToken;
use oip_types::{ErrorCode, InferRequest, TensorValue};
use tensor_core::Tensor;

use crate::support::{Runtime, infer, names, recorded_request, request, runtimes};

#[track_caller]
fn refuses(name: &str, json: &'static str, expected: &str, by_onnx_runtime: &str) {
    for &runtime in runtimes() {
        let error = infer(&*runtime.model(name), request(json)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{runtime:?}: {error}");
        let expected = match runtime {
            Runtime::BuiltIn => expected,
            Runtime::OnnxRuntime => by_onnx_runtime,
        };
        assert!(error.to_string().contains(expected), "{runtime:?}: {error}");
    }
}

#[test]
fn an_index_outside_of_the_table_is_the_clients_mistake() {
    for index in ["3", "-4", "4294967296", "-9223372036854775808"] {
        let json = format!(
            r#"{{"inputs": [{{"name": "i", "shape": [2], "datatype": "INT64", "data": [0, {index}]}}]}}"#
        );
        for &runtime in runtimes() {
            let error = infer(&*runtime.model("gather"), request(json.clone())).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{runtime:?}: {error}");
            let expected = match runtime {
                Runtime::BuiltIn => {
                    format!("the index {index} is outside of a dimension of 3")
                }
                Runtime::OnnxRuntime => format!("idx={index} must be within the inclusive range [-3,2]"),
            };
            assert!(error.to_string().contains(&expected), "{runtime:?}: {error}");
        }
    }
}

#[test]
fn dividing_an_integer_by_zero_is_the_clients_mistake() {
    refuses(
        "integer_division",
        r#"{"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [1]},
                       {"name": "b", "shape": [1], "datatype": "INT64", "data": [0]}]}"#,
        "divided by zero",
        "divided by zero",
    );
    // The model divides by the square of `b`. The square of 2^32 is 2^64, which wraps around to 0.
    for divisor in ["0", "4294967296"] {
        let json = format!(
            r#"{{"inputs": [{{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}},
                            {{"name": "b", "shape": [], "datatype": "INT64", "data": [{divisor}]}}]}}"#
        );
        let error = infer(&*Runtime::BuiltIn.model("size_division"), request(json)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains("divided by zero"), "{error}");
    }
}

/// Sizes of 2^32 plus a small number are refused, although they would be valid if truncated to 32 bits.
#[test]
fn sizes_beyond_32_bits_are_the_clients_mistake() {
    for name in [
        "expand_to_numbers",
        "reshape_to_numbers",
        "tile_to_numbers",
        "zeros_of_numbers",
    ] {
        let x = match name {
            "zeros_of_numbers" => "",
            _ => r#"{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]},"#,
        };
        let json = format!(
            r#"{{"inputs": [{x}{{"name": "k", "shape": [1], "datatype": "INT64", "data": [4294967299]}}]}}"#
        );
        let error = infer(&*Runtime::BuiltIn.model(name), request(json)).unwrap_err();
        assert_eq!(
            error.code(),
            ErrorCode::InvalidArgument,
            "{name}: {}",
            error.report()
        );
        assert!(
            error
                .to_string()
                .contains("of 4294967299, expected at most 2147483647"),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_negative_count_of_elements_is_the_clients_mistake() {
    for (count, expected) in [
        ("-1", "a K of -1"),
        (
            "-4611686018427387904",
            "a position of -4611686018427387904, expected at most",
        ),
    ] {
        let json = format!(
            r#"{{"inputs": [{{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}},
                            {{"name": "k", "shape": [1], "datatype": "INT64", "data": [{count}]}}]}}"#
        );
        let error = infer(&*Runtime::BuiltIn.model("top_k_of_chosen"), request(json)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// A request of a few megabytes that asks for a product of 300 GB is refused.
#[test]
fn sizes_without_bound_are_the_clients_mistake() {
    let column = |dims: [u64; 2]| {
        let shape = tensor_core::Shape::new(&dims).unwrap();
        tensor_core::Tensor::from_vec(shape, vec![1.0f32; 300_000]).unwrap()
    };
    let mut large = recorded_request("outer_product");
    large.inputs[0].value = column([300_000, 1]).into();
    large.inputs[1].value = column([1, 300_000]).into();
    for &runtime in runtimes() {
        let error = infer(&*runtime.model("outer_product"), large.clone()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{runtime:?}: {error}");
        let expected = "takes 335 GiB, which is beyond the limit of 4 GiB";
        assert!(error.to_string().contains(expected), "{runtime:?}: {error}");
    }

    refuses(
        "range",
        r#"{"inputs": [{"name": "a", "shape": [], "datatype": "INT64", "data": [0]},
                       {"name": "b", "shape": [], "datatype": "INT64", "data": [1099511627776]},
                       {"name": "c", "shape": [], "datatype": "INT64", "data": [1]}]}"#,
        "a range of 1099511627776 numbers is beyond the limit",
        "takes 8192 GiB, which is beyond the limit of 4 GiB",
    );
}

/// Replaces the sizes, axes, depths and steps in requests with absurd numbers. None of them causes a server
/// error or a huge allocation.
#[test]
fn absurd_sizes_that_are_asked_for_are_the_clients_mistake() {
    let names = names("_asked_for.request.json");
    assert!(names.len() > 12);
    for name in names.iter().map(|name| format!("{name}_asked_for")) {
        let model = Runtime::BuiltIn.model(&name);
        let request = recorded_request(&name);
        for (place, input) in request.inputs.iter().enumerate() {
            let TensorValue::Fixed(tensor) = &input.value else {
                continue;
            };
            let Ok(numbers) = tensor.to_vec::<i64>() else {
                continue;
            };
            for number in [0, -1, 3, 1 << 31, 1 << 40, i64::MAX, i64::MIN] {
                for at in 0..numbers.len() {
                    let mut numbers = numbers.clone();
                    numbers[at] = number;
                    let mut request = request.clone();
                    let shape = input.value.shape().clone();
                    request.inputs[place].value = Tensor::from_vec(shape, numbers).unwrap().into();
                    if let Err(error) = infer(&*model, request) {
                        let expected = ErrorCode::InvalidArgument;
                        assert_eq!(error.code(), expected, "{name} with {number}: {}", error.report());
                    }
                }
            }
        }
    }
}

#[test]
fn dimensions_of_the_same_name_must_be_equal() {
    refuses(
        "two_inputs",
        r#"{"inputs": [{"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]},
                       {"name": "b", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}"#,
        "input 'a' has 2 in dimension 0 but input 'b' has 1 in dimension 0; the model calls both 'rows'",
        "input 'a' has 2 in dimension 0 but input 'b' has 1 in dimension 0; the model calls both 'rows'",
    );
}

#[test]
fn strings_that_are_not_utf8_are_refused() {
    for &runtime in runtimes() {
        let error = infer(&*runtime.model("strings"), strings([b"fine", b"\xff"])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.to_string().contains("element 1 is not UTF-8"), "{error}");
    }
}

/// ONNX Runtime takes null-terminated strings, so strings with an inner zero byte are refused instead of
/// truncated.
#[test]
fn strings_with_a_zero_byte_are_whole_or_refused() {
    for &runtime in runtimes() {
        let outcome = infer(&*runtime.model("strings"), strings([b"a\0b", b"c"]));
        match runtime {
            Runtime::BuiltIn => assert!(outcome.is_ok()),
            Runtime::OnnxRuntime => {
                let error = outcome.unwrap_err();
                assert_eq!(error.code(), ErrorCode::InvalidArgument);
                assert!(error.to_string().contains("element 0 has a zero byte"), "{error}");
            }
        }
    }
}

fn strings(elements: [&[u8]; 2]) -> InferRequest {
    let mut request = recorded_request("strings");
    let shape = tensor_core::Shape::new(&[2]).unwrap();
    let strings = oip_types::BytesTensor::from_elements(shape, elements).unwrap();
    request.inputs[0].value = strings.into();
    request
}

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

/// With images smaller than the window in both directions, two negative dimensions would have a positive
/// product.
#[test]
fn images_smaller_than_a_window_are_refused() {
    let model = Runtime::BuiltIn.model("window_of_any_image");
    for (height, width) in [(1, 1), (1, 2), (2, 1), (1, 6), (0, 0), (0, 6)] {
        let error = infer(&*model, image(height, width)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        let expected = "the inputs are too small for the model: a window of a convolution or pool reaches ";
        assert!(error.to_string().contains(expected), "{error}");
    }
    let outputs = infer(&*model, image(3, 4)).unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [1, 64, 1, 2]);
}

/// The error reports how many channels the weights have. The metadata has the file's dimensions, since
/// configurations repeat them.
#[test]
fn images_of_other_channels_are_refused() {
    let model = Runtime::BuiltIn.model("window_of_any_channels");
    assert_eq!(
        model.metadata().inputs[0].shape.dims(),
        [Some(1), None, None, None]
    );
    for (name, channels, expected) in [
        (
            "window_of_any_channels",
            3,
            "takes images of 6 channels, not of 3",
        ),
        ("window_of_two_images", 2, "takes images of 6 channels, not of 4"),
        ("window_of_two_images", 5, "takes images of 6 channels, not of 10"),
    ] {
        let error = infer(&*Runtime::BuiltIn.model(name), images(channels, 4, 4)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Images smaller than the window in some direction are an error: the output would have no elements.
#[test]
fn images_one_step_smaller_than_a_window_are_refused() {
    let windows = ["window_of_any_image", "window_by_twos"]
        .iter()
        .chain(&POOLS[..4]);
    let windows = windows.map(|name| (*name, [(2, 2), (2, 4), (4, 2)]));
    // With stride 2 and rounding up, a window may start beyond the image, so only smaller images are refused.
    for (name, sizes) in windows.chain([("max_pool_rounded_up", [(1, 1), (1, 4), (4, 1)])]) {
        let model = Runtime::BuiltIn.model(name);
        for (height, width) in sizes {
            let error = infer(&*model, image(height, width)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
            let expected =
                "the inputs are too small for the model: a window of a convolution or pool reaches ";
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
        infer(&*model, image(3, 3)).unwrap();
    }
}

/// Models with pools of 3x3 windows, for images of any size.
const POOLS: [&str; 5] = [
    "average_pool_by_twos",
    "average_pool_of_any_image",
    "max_pool_by_twos",
    "max_pool_of_any_image",
    "max_pool_rounded_up",
];

#[test]
fn images_smaller_than_a_pools_window_are_refused() {
    for name in POOLS {
        let model = Runtime::BuiltIn.model(name);
        for (height, width) in [(1, 1), (1, 5), (5, 1), (2, 1)] {
            let error = infer(&*model, image(height, width)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
            let expected = "the inputs are too small for the model";
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
    }
}

/// The size of the pooled image depends on values of the request.
#[test]
fn slices_smaller_than_a_window_are_refused() {
    let model = Runtime::BuiltIn.model("window_of_a_slice");
    let part = |ends: [i64; 2]| {
        let corner = |places: [i64; 2]| {
            let shape = tensor_core::Shape::new(&[2]).unwrap();
            tensor_core::Tensor::from_vec(shape, places.to_vec()).unwrap()
        };
        let request = image(8, 8).with_input("starts", corner([0, 0]));
        request.with_input("ends", corner(ends))
    };
    for ends in [[1, 1], [0, 0], [1, 8], [8, 1], [2, 8], [8, 2]] {
        let error = infer(&*model, part(ends)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    }
    let outputs = infer(&*model, part([4, 8])).unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [1, 64, 2, 6]);
}

#[test]
fn images_without_pixels_are_refused() {
    let model = Runtime::BuiltIn.model("pool_of_any_image");
    for (height, width) in [(0, 0), (0, 4), (4, 0)] {
        let error = infer(&*model, image(height, width)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        let expected = "the inputs are too small for the model";
        assert!(error.to_string().contains(expected), "{error}");
    }
    let outputs = infer(&*model, image(1, 2)).unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [1, 3, 1, 1]);
}

#[test]
fn batches_that_are_neither_the_same_nor_one_are_refused() {
    for name in ["batches_same", "batches_same_of_bytes", "batches_same_quantized"] {
        let model = Runtime::BuiltIn.model(name);
        let mut request = recorded_request(name);
        let shape = tensor_core::Shape::new(&[3, 3, 4]).unwrap();
        let left = &mut request.inputs[0].value;
        *left = match name {
            "batches_same" => tensor_core::Tensor::from_vec(shape, vec![0f32; 36])
                .unwrap()
                .into(),
            _ => tensor_core::Tensor::from_vec(shape, vec![0u8; 36])
                .unwrap()
                .into(),
        };
        let error = infer(&*model, request.clone()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        let expected = "cannot broadcast the shapes [[3], [2]]";
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
}

/// Values with mismatched sizes are a client error wherever they are multiplied or added.
#[test]
fn values_that_do_not_fit_together_are_the_clients_mistake() {
    for name in [
        "gemm_of_a_request",
        "integers_of_a_request",
        "product_of_a_request",
        "product_in_a_branch",
        "product_in_a_branch_by_chance",
        "product_in_a_branch_by_size",
        "product_in_a_loop",
        "product_in_a_scan",
        "product_with_a_row",
        "sum_of_a_request",
    ] {
        let model = Runtime::BuiltIn.model(name);
        let mut request = recorded_request(name);
        let left = request.inputs.iter_mut().find(|input| input.name == "a").unwrap();
        left.value = match name {
            "gemm_of_a_request" => matrix([2, 5], vec![1f64; 10]).into(),
            "integers_of_a_request" => matrix([2, 5], vec![1u8; 10]).into(),
            _ => matrix([2, 5], vec![1f32; 10]).into(),
        };
        let error = infer(&*model, request).unwrap_err();
        let report = error.report();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{name}: {report}");
        assert!(!report.contains("is not supported"), "{name}: {report}");
        infer(&*model, recorded_request(name)).unwrap();
    }
}

#[test]
fn a_branch_that_gives_no_factor_is_the_clients_mistake() {
    let model = Runtime::BuiltIn.model("branch_as_a_factor");
    let mut request = recorded_request("branch_as_a_factor");
    infer(&*model, request.clone()).unwrap();
    request.inputs[0].value = matrix([2, 3], vec![1f32; 6]).into();
    let error = infer(&*model, request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    let expected = "two factors of a product differ by 2 in a dimension that they share";
    assert!(error.to_string().contains(expected), "{error}");
}

/// Whether the condition of an `If` has an element depends on the request; an empty one is a client error.
#[test]
fn a_branch_without_a_condition_is_the_clients_mistake() {
    let model = Runtime::BuiltIn.model("branch_by_chance");
    infer(&*model, recorded_request("branch_by_chance")).unwrap();
    let mut request = recorded_request("branch_by_chance");
    let nothing = tensor_core::Tensor::from_vec(tensor_core::Shape::new(&[0]).unwrap(), Vec::<f32>::new());
    request.inputs[0].value = nothing.unwrap().into();
    let error = infer(&*model, request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    let expected =
        "node 'y' (If): the model cannot take these values: a condition of 0 elements, expected one";
    assert!(error.to_string().contains(expected), "{error}");
}

fn matrix<T: tensor_core::Element>(dims: [u64; 2], elements: Vec<T>) -> tensor_core::Tensor {
    tensor_core::Tensor::from_vec(tensor_core::Shape::new(&dims).unwrap(), elements).unwrap()
}

/// Boxes that do not overlap are all kept, and each is compared with all kept ones; cancelling the request
/// ends this early.
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

/// Ranges are counted in their own type: FP64 cannot represent 2^53 + 1.
#[test]
fn ranges_of_large_integers_are_counted_exactly() {
    let model = Runtime::BuiltIn.model("range");
    for (start, limit, step) in [
        ((1i64 << 53), (1 << 53) + 3, 1),
        (i64::MAX - 2, i64::MAX, 1),
        (i64::MIN, i64::MIN + 5, 2),
        (1_700_000_000_000_000_001, 1_700_000_000_000_000_000, -1),
        (3, 3, 1),
    ] {
        let number = |number: i64| -> oip_types::TensorValue {
            let shape = tensor_core::Shape::new(&[]).unwrap();
            tensor_core::Tensor::from_vec(shape, vec![number]).unwrap().into()
        };
        let mut request = recorded_request("range");
        for (input, value) in request.inputs.iter_mut().zip([start, limit, step]) {
            input.value = number(value);
        }
        let outputs = infer(&*model, request).unwrap();
        let oip_types::TensorValue::Fixed(found) = &outputs[0].value else {
            panic!("not numbers");
        };
        let count = (i128::from(limit) - i128::from(start))
            .unsigned_abs()
            .div_ceil(u128::from(step.unsigned_abs()));
        let expected: Vec<i64> = (0..count as i64).map(|index| start + index * step).collect();
        assert_eq!(found.to_vec::<i64>().unwrap(), expected);
    }
}

/// A step of 0 is an error even for an empty range, as in ONNX Runtime.
#[test]
fn a_range_has_a_step() {
    let model = Runtime::BuiltIn.model("range");
    for limit in [-5i64, 3, 5] {
        let mut request = recorded_request("range");
        for (input, number) in request.inputs.iter_mut().zip([3, limit, 0]) {
            let shape = tensor_core::Shape::new(&[]).unwrap();
            input.value = tensor_core::Tensor::from_vec(shape, vec![number]).unwrap().into();
        }
        let error = infer(&*model, request).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains("a range has a step of 0"), "{error}");
    }
}

/// Checks that requests with mismatched values are refused. Each item has a model and the inputs to replace.
#[track_caller]
fn refuses_each(requests: Vec<(&str, Vec<(&str, oip_types::TensorValue)>)>) {
    for (name, values) in requests {
        let model = Runtime::BuiltIn.model(name);
        let mut request = recorded_request(name);
        for (input, value) in values {
            let mut inputs = request.inputs.iter_mut();
            inputs.find(|given| given.name == input).unwrap().value = value;
        }
        let shapes: Vec<String> = request
            .inputs
            .iter()
            .map(|input| input.value.shape().to_string())
            .collect();
        match infer(&*model, request.clone()) {
            Ok(outputs) => panic!("{name} of {shapes:?} gives {outputs:?}"),
            Err(error) => {
                let report = error.report();
                assert_eq!(
                    error.code(),
                    ErrorCode::InvalidArgument,
                    "{name} of {shapes:?}: {report}"
                );
                assert!(
                    !report.contains("is not supported"),
                    "{name} of {shapes:?}: {report}"
                );
            }
        }
        infer(&*model, recorded_request(name)).unwrap();
    }
}

fn floats<const N: usize>(dims: [u64; N]) -> oip_types::TensorValue {
    let count = dims.iter().product::<u64>() as usize;
    let shape = tensor_core::Shape::new(&dims).unwrap();
    let tensor = tensor_core::Tensor::from_vec(shape, vec![1f32; count]);
    tensor.unwrap().into()
}

/// Inputs of an elementwise operator must have equal sizes.
#[test]
fn sizes_that_must_be_equal_are_the_clients_mistake() {
    refuses_each(vec![
        ("sum_and_product_of_a_request", vec![("b", floats([1, 5]))]),
        ("sum_and_product_of_a_request", vec![("b", floats([2, 4]))]),
        ("choice_of_a_request", vec![("b", floats([1, 3]))]),
        (
            "choice_of_a_request",
            vec![("c", matrix([2, 1], vec![true; 2]).into())],
        ),
        ("mask_of_a_request", vec![("mask", floats([3, 3]))]),
        ("mask_of_a_request", vec![("mask", floats([2, 2]))]),
    ]);
}

/// Requests with too few scales, indices or updates, or with indices out of range, are refused.
#[test]
fn sizes_that_are_too_small_are_the_clients_mistake() {
    let scales = |size: u64| vec![("scale", floats([size])), ("bias", floats([size]))];
    refuses_each(vec![
        ("layer_of_a_request", scales(3)),
        ("layer_of_a_request", scales(5)),
        ("instance_of_a_request", scales(2)),
        ("instance_of_a_request", scales(1)),
        (
            "elements_of_a_request",
            vec![("places", matrix([4, 2], vec![0i64; 8]).into())],
        ),
        ("updates_of_a_request", vec![("new", floats([1, 4]))]),
        ("updates_of_a_request", vec![("new", floats([2, 3]))]),
    ]);
}

/// Too many scales or updates are an error, as in ONNX Runtime.
#[test]
fn sizes_that_are_too_large_are_the_clients_mistake() {
    refuses_each(vec![
        (
            "instance_of_a_request",
            vec![("scale", floats([4])), ("bias", floats([4]))],
        ),
        ("updates_of_a_request", vec![("new", floats([3, 4]))]),
    ]);
}

/// Indices, a shape or a condition repeat a string of one megabyte thousands of times.
#[test]
fn texts_that_take_too_much_memory_together_are_the_clients_mistake() {
    let shape = |dims: &[u64]| tensor_core::Shape::new(dims).unwrap();
    let long = "x".repeat(1 << 20);
    let texts = || oip_types::BytesTensor::from_elements(shape(&[1]), [long.as_bytes()]).unwrap();
    let numbers = |numbers: Vec<i64>| {
        let shape = shape(&[numbers.len() as u64]);
        oip_types::TensorValue::from(tensor_core::Tensor::from_vec(shape, numbers).unwrap())
    };
    let many = || numbers(vec![0; 4200]);
    refuses_each(vec![
        ("texts_gather", vec![("t", texts().into()), ("n", many())]),
        ("texts_gather_nd", vec![("t", texts().into()), ("n", many())]),
        (
            "texts_gather_elements",
            vec![("t", texts().into()), ("n", many())],
        ),
        ("texts_features", vec![("t", texts().into()), ("n", many())]),
        ("texts_where", vec![("t", texts().into()), ("n", many())]),
        (
            "texts_expand",
            vec![("t", texts().into()), ("n", numbers(vec![4200, 1]))],
        ),
        ("texts_labels", vec![("n", numbers(vec![1; 1 << 18]))]),
    ]);
    let pair = [long.as_bytes(), b""];
    let pair = oip_types::BytesTensor::from_elements(shape(&[2]), pair).unwrap();
    refuses_each(vec![("texts_one_hot", vec![("t", pair.into()), ("n", many())])]);
}

/// Builds a request with one image of this size.
fn image(height: u64, width: u64) -> InferRequest {
    images(3, height, width)
}

fn images(channels: u64, height: u64, width: u64) -> InferRequest {
    let shape = tensor_core::Shape::new(&[1, channels, height, width]).unwrap();
    let image = vec![1.0f32; (channels * height * width) as usize];
    let image = tensor_core::Tensor::from_vec(shape, image).unwrap();
    let model = oip_types::ModelRef::new("m", None).unwrap();
    InferRequest::new(model).with_input("image", image)
}

/// `Gemm` with an infinite product gives NaN if `alpha` is 0. It does not add the bias if `beta` is 0.
#[test]
fn infinities_times_nothing_are_no_numbers() {
    for &runtime in runtimes() {
        for (name, expected) in [
            ("gemm_of_nothing", [f64::NAN, f64::NAN, 5.0, f64::NAN]),
            ("gemm_with_nothing", [f64::INFINITY, f64::INFINITY, 14.0, 20.0]),
        ] {
            for (suffix, is_double) in [("", false), ("_double", true)] {
                let name = format!("{name}{suffix}");
                let mut request = recorded_request(&name);
                let numbers = |shape: &[u64], numbers: &[f64]| {
                    let shape = tensor_core::Shape::new(shape).unwrap();
                    match is_double {
                        true => tensor_core::Tensor::from_vec(shape, numbers.to_vec()),
                        false => {
                            tensor_core::Tensor::from_vec(shape, numbers.iter().map(|&x| x as f32).collect())
                        }
                    }
                    .unwrap()
                };
                request.inputs[0].value = numbers(&[2, 2], &[f64::INFINITY, 1.0, 1.0, 2.0]).into();
                request.inputs[1].value = numbers(&[2], &[5.0, f64::NAN]).into();
                let outputs = infer(&*runtime.model(&name), request).unwrap();
                let found = outputs[0].value.as_fixed().unwrap();
                let found: Vec<f64> = match is_double {
                    true => found.to_vec::<f64>().unwrap(),
                    false => found
                        .to_vec::<f32>()
                        .unwrap()
                        .into_iter()
                        .map(f64::from)
                        .collect(),
                };
                let is_same = |(found, expected): (&f64, &f64)| {
                    found == expected || (found.is_nan() && expected.is_nan())
                };
                assert!(
                    found.iter().zip(&expected).all(is_same),
                    "{name} with {runtime:?}: {found:?}"
                );
            }
        }
    }
}

/// ONNX's integer division rounds towards zero.
#[test]
fn sizes_are_divided_as_numbers_are() {
    let model = Runtime::BuiltIn.model("sizes_divided");
    for size in (0..24u64).chain([4; 6]) {
        let mut request = recorded_request("sizes_divided");
        request.inputs[0].value = zeros(size).into();
        let outputs = infer(&*model, request).unwrap();
        let oip_types::TensorValue::Fixed(found) = &outputs[0].value else {
            panic!("not numbers");
        };
        assert_eq!(found.to_vec::<i64>().unwrap(), [(size as i64 - 9) / 2], "{size}");
    }
}

fn zeros(rows: u64) -> tensor_core::Tensor {
    let shape = tensor_core::Shape::new(&[rows, 1]).unwrap();
    tensor_core::Tensor::from_vec(shape, vec![0f32; rows as usize]).unwrap()
}

/// A function's operators have the version that the function imports: here a softmax over all axes from
/// `axis` to the end.
#[test]
fn a_function_has_a_version_of_its_own() {
    let model = Runtime::BuiltIn.model("function_of_an_older_set");
    let json = r#"{"inputs": [{"name": "x", "shape": [1, 2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}"#;
    let outputs = infer(&*model, request(json)).unwrap();
    let oip_types::TensorValue::Fixed(found) = &outputs[0].value else {
        panic!("not numbers");
    };
    for (found, expected) in found
        .to_vec::<f32>()
        .unwrap()
        .iter()
        .zip([0.032_058, 0.087_144, 0.236_882, 0.643_914])
    {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}
